//! Numbers against the C headers of this machine (package linux-libc-dev).

use std::collections::HashMap;

use netlink_batch::{AttrTable, Attribute};

use crate::attrs::{AddressAttr, CmdAttr, CreateAttr, EntryAttr};
use crate::uapi;

/// Names and values of the enumerations and number macros of a header.
fn constants(header: &str, known: &HashMap<String, i64>) -> HashMap<String, i64> {
    let path = format!("/usr/include/linux/netfilter/{header}");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}; install linux-libc-dev"));
    // A value may stand on a line of its own.
    let text = text.replace("=\n\t\t(", "= (");
    let mut found = known.clone();
    let mut next = 0;
    for line in text.lines() {
        let line = line.split("/*").next().unwrap_or_default().trim().trim_end_matches('\\').trim();
        if line.starts_with("enum") {
            next = 0;
        } else if let Some(definition) = line.strip_prefix("#define ") {
            let (name, value) = definition.split_once(char::is_whitespace).unwrap_or((definition, ""));
            if let Some(value) = value_of(value, &found) {
                found.insert(name.to_owned(), value);
            }
        } else if line.starts_with("IPSET_") || line.starts_with("__IPSET_") || line.starts_with("NFNL_") {
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            let name = name.trim().trim_end_matches(',');
            if let Some(value) = value_of(value.trim().trim_end_matches(','), &found) {
                next = value;
            }
            found.insert(name.to_owned(), next);
            next += 1;
        }
    }
    found
}

/// A number, a name, `A + 1`, `(1 << A)`.
fn value_of(text: &str, known: &HashMap<String, i64>) -> Option<i64> {
    let text = text.trim().trim_start_matches('(').trim_end_matches(')').trim();
    if let Some((left, right)) = text.split_once("<<") {
        return Some(value_of(left, known)? << value_of(right, known)?);
    }
    if let Some((left, right)) = text.split_once('+') {
        return Some(value_of(left, known)? + value_of(right, known)?);
    }
    match text.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok().or_else(|| known.get(text).copied()),
    }
}

fn header() -> HashMap<String, i64> {
    constants("ipset/ip_set.h", &HashMap::new())
}

macro_rules! check {
    ($known:expr; $($name:ident),* $(,)?) => { $(
        let value = $known.get(stringify!($name)).unwrap_or_else(|| panic!("{} is not in the header", stringify!($name)));
        assert_eq!(i64::try_from(uapi::$name).unwrap(), *value, stringify!($name));
    )* };
}

#[test]
fn numbers_are_those_of_the_header() {
    let core = header();
    check!(core;
        IPSET_PROTOCOL, IPSET_PROTOCOL_MIN, IPSET_MAXNAMELEN, IPSET_MAX_COMMENT_SIZE, IPSET_CMD_PROTOCOL, IPSET_CMD_CREATE,
        IPSET_CMD_DESTROY, IPSET_CMD_FLUSH, IPSET_CMD_RENAME, IPSET_CMD_SWAP, IPSET_CMD_LIST, IPSET_CMD_SAVE, IPSET_CMD_ADD,
        IPSET_CMD_DEL, IPSET_CMD_TEST, IPSET_CMD_HEADER, IPSET_CMD_TYPE, IPSET_CMD_GET_BYNAME, IPSET_CMD_GET_BYINDEX,
        IPSET_FLAG_EXIST, IPSET_FLAG_LIST_SETNAME, IPSET_FLAG_LIST_HEADER, IPSET_FLAG_BEFORE, IPSET_FLAG_PHYSDEV,
        IPSET_FLAG_NOMATCH, IPSET_FLAG_WITH_COUNTERS, IPSET_FLAG_WITH_COMMENT, IPSET_FLAG_WITH_FORCEADD,
        IPSET_FLAG_WITH_SKBINFO, IPSET_FLAG_IFACE_WILDCARD, IPSET_ERR_PRIVATE, IPSET_ERR_PROTOCOL, IPSET_ERR_FIND_TYPE,
        IPSET_ERR_MAX_SETS, IPSET_ERR_BUSY, IPSET_ERR_EXIST_SETNAME2, IPSET_ERR_TYPE_MISMATCH, IPSET_ERR_EXIST,
        IPSET_ERR_INVALID_CIDR, IPSET_ERR_INVALID_NETMASK, IPSET_ERR_INVALID_FAMILY, IPSET_ERR_TIMEOUT, IPSET_ERR_REFERENCED,
        IPSET_ERR_IPADDR_IPV4, IPSET_ERR_IPADDR_IPV6, IPSET_ERR_COUNTER, IPSET_ERR_COMMENT, IPSET_ERR_INVALID_MARKMASK,
        IPSET_ERR_SKBINFO, IPSET_ERR_TYPE_SPECIFIC,
    );
    // Younger than some distributions' headers.
    let younger = core.get("IPSET_ERR_BITMASK_NETMASK_EXCL").copied().unwrap_or(4115);
    assert_eq!(i64::from(uapi::IPSET_ERR_BITMASK_NETMASK_EXCL), younger);
    let hash = constants("ipset/ip_set_hash.h", &core);
    check!(hash;
        IPSET_ERR_HASH_FULL, IPSET_ERR_HASH_ELEM, IPSET_ERR_INVALID_PROTO, IPSET_ERR_MISSING_PROTO,
        IPSET_ERR_HASH_RANGE_UNSUPPORTED, IPSET_ERR_HASH_RANGE,
    );
    let bitmap = constants("ipset/ip_set_bitmap.h", &core);
    check!(bitmap; IPSET_ERR_BITMAP_RANGE, IPSET_ERR_BITMAP_RANGE_SIZE);
    let list = constants("ipset/ip_set_list.h", &core);
    check!(list;
        IPSET_ERR_NAME, IPSET_ERR_LOOP, IPSET_ERR_BEFORE, IPSET_ERR_NAMEREF, IPSET_ERR_LIST_FULL, IPSET_ERR_REF_EXIST,
    );
    let netlink = constants("nfnetlink.h", &HashMap::new());
    check!(netlink; NFNL_SUBSYS_IPSET);
}

#[test]
fn attributes_are_those_of_the_header() {
    let core = header();
    let tables: [&AttrTable; 4] = [CmdAttr::TABLE, AddressAttr::TABLE, CreateAttr::TABLE, EntryAttr::TABLE];
    for table in tables {
        for row in table.rows {
            let name = format!("{}{}", table.prefix, row.name);
            match core.get(&name) {
                Some(value) => assert_eq!(i64::from(row.kind), *value, "{name}"),
                // Younger than some distributions' headers.
                None => assert_eq!((name.as_str(), row.kind), ("IPSET_ATTR_BITMASK", 12)),
            }
        }
    }
}

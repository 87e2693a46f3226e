//! Compares the numbers with this machine's C headers (package linux-libc-dev).

use std::collections::BTreeMap;

use netlink_batch::{AttrTable, Attribute};

use crate::attrs::{AddressAttr, CmdAttr, CreateAttr, EntryAttr};
use crate::uapi;

fn known() -> BTreeMap<String, i64> {
    let ipset =
        ["ip_set.h", "ip_set_hash.h", "ip_set_bitmap.h", "ip_set_list.h"].map(|name| format!("netfilter/ipset/{name}"));
    let headers: Vec<&str> = ["netfilter/nfnetlink.h"].into_iter().chain(ipset.iter().map(String::as_str)).collect();
    netlink_batch::testing::header_numbers(&headers).unwrap()
}

macro_rules! check {
    ($known:expr; $($name:ident),* $(,)?) => { $(
        let value = $known.get(stringify!($name)).unwrap_or_else(|| panic!("{} is not in the header", stringify!($name)));
        assert_eq!(i64::try_from(uapi::$name).unwrap(), *value, stringify!($name));
    )* };
}

#[test]
fn numbers_are_those_of_the_header() {
    let known = known();
    check!(known;
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
    // Newer than some distributions' headers.
    let younger = known.get("IPSET_ERR_BITMASK_NETMASK_EXCL").copied().unwrap_or(4115);
    assert_eq!(i64::from(uapi::IPSET_ERR_BITMASK_NETMASK_EXCL), younger);
    check!(known;
        IPSET_ERR_HASH_FULL, IPSET_ERR_HASH_ELEM, IPSET_ERR_INVALID_PROTO, IPSET_ERR_MISSING_PROTO,
        IPSET_ERR_HASH_RANGE_UNSUPPORTED, IPSET_ERR_HASH_RANGE,
    );
    check!(known; IPSET_ERR_BITMAP_RANGE, IPSET_ERR_BITMAP_RANGE_SIZE);
    check!(known;
        IPSET_ERR_NAME, IPSET_ERR_LOOP, IPSET_ERR_BEFORE, IPSET_ERR_NAMEREF, IPSET_ERR_LIST_FULL, IPSET_ERR_REF_EXIST,
    );
    check!(known; NFNL_SUBSYS_IPSET);
}

#[test]
fn attributes_are_those_of_the_header() {
    let known = known();
    let tables: [&AttrTable; 4] = [CmdAttr::TABLE, AddressAttr::TABLE, CreateAttr::TABLE, EntryAttr::TABLE];
    for table in tables {
        for row in table.rows {
            let name = format!("{}{}", table.prefix, row.name);
            match known.get(&name) {
                Some(value) => assert_eq!(i64::from(row.kind), *value, "{name}"),
                // Newer than some distributions' headers.
                None => assert_eq!((name.as_str(), row.kind), ("IPSET_ATTR_BITMASK", 12)),
            }
        }
    }
}

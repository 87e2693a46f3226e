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

#[test]
fn numbers_are_those_of_the_header() {
    let known = known();
    for (name, number) in uapi::ALL {
        // Newer than some distributions' headers.
        let younger = *name == "IPSET_ERR_BITMASK_NETMASK_EXCL" && !known.contains_key(*name);
        assert!(younger || known.get(*name) == Some(number), "{name}: {:?}", known.get(*name));
    }
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

//! Numbers against the C headers of this machine (package linux-libc-dev).

use std::collections::BTreeMap;

use netlink_batch::{AttrTable, Attribute};

use crate::attrs;
use crate::uapi;

fn known() -> BTreeMap<String, i64> {
    netlink_batch::testing::header_numbers(&[
        "netlink.h",
        "netfilter.h",
        "netfilter/nfnetlink.h",
        "netfilter/nf_tables.h",
    ])
    .unwrap()
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
        NFT_MSG_NEWTABLE, NFT_MSG_GETTABLE, NFT_MSG_DELTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_GETCHAIN, NFT_MSG_DELCHAIN,
        NFT_MSG_NEWRULE, NFT_MSG_GETRULE, NFT_MSG_DELRULE, NFT_MSG_NEWSET, NFT_MSG_GETSET, NFT_MSG_DELSET,
        NFT_MSG_NEWSETELEM, NFT_MSG_GETSETELEM, NFT_MSG_DELSETELEM, NFT_MSG_NEWGEN, NFT_MSG_GETGEN, NFT_MSG_NEWOBJ,
        NFT_MSG_GETOBJ, NFT_MSG_DELOBJ, NFT_NAME_MAXLEN, NFT_USERDATA_MAXLEN, NFT_DATA_VALUE_MAXLEN, NFT_DATA_VERDICT,
        NFT_SET_ELEM_INTERVAL_END, NFT_SET_ELEM_CATCHALL, NFT_DYNSET_F_INV, NFT_DYNSET_F_EXPR,
        NFNL_SUBSYS_NFTABLES, NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFNL_BATCH_GENID, NFNLGRP_NFTABLES, NFT_REG_SIZE,
        NFT_REG32_SIZE, NFT_LOOKUP_F_INV, NFT_LIMIT_F_INV, NFT_CHAIN_BASE,
        NFT_RETURN, NFT_GOTO, NFT_JUMP, NFT_BREAK, NFT_CONTINUE, NFT_OBJECT_COUNTER,
    );
}

fn table_of<'a, A: Attribute<'a>>() -> &'static AttrTable {
    A::TABLE
}

#[test]
fn attributes_are_those_of_the_header() {
    let known = known();
    let tables = [
        table_of::<attrs::BatchAttr<'_>>(),
        table_of::<attrs::GenAttr<'_>>(),
        table_of::<attrs::TableAttr<'_>>(),
        table_of::<attrs::ChainAttr<'_>>(),
        table_of::<attrs::HookAttr<'_>>(),
        table_of::<attrs::RuleAttr<'_>>(),
        table_of::<attrs::ListAttr<'_>>(),
        table_of::<attrs::ExprAttr<'_>>(),
        table_of::<attrs::SetAttr<'_>>(),
        table_of::<attrs::SetDescAttr<'_>>(),
        table_of::<attrs::SetFieldAttr<'_>>(),
        table_of::<attrs::ElemListAttr<'_>>(),
        table_of::<attrs::ElemAttr<'_>>(),
        table_of::<attrs::DataAttr<'_>>(),
        table_of::<attrs::VerdictAttr<'_>>(),
        table_of::<attrs::ObjAttr<'_>>(),
        table_of::<attrs::PayloadAttr<'_>>(),
        table_of::<attrs::MetaAttr<'_>>(),
        table_of::<attrs::CtAttr<'_>>(),
        table_of::<attrs::FibAttr<'_>>(),
        table_of::<attrs::CmpAttr<'_>>(),
        table_of::<attrs::BitwiseAttr<'_>>(),
        table_of::<attrs::RangeAttr<'_>>(),
        table_of::<attrs::LookupAttr<'_>>(),
        table_of::<attrs::ImmediateAttr<'_>>(),
        table_of::<attrs::NatAttr<'_>>(),
        table_of::<attrs::MasqAttr<'_>>(),
        table_of::<attrs::RedirAttr<'_>>(),
        table_of::<attrs::RejectAttr<'_>>(),
        table_of::<attrs::NgAttr<'_>>(),
        table_of::<attrs::HashAttr<'_>>(),
        table_of::<attrs::DynsetAttr<'_>>(),
        table_of::<attrs::CounterAttr<'_>>(),
        table_of::<attrs::LimitAttr<'_>>(),
        table_of::<attrs::LogAttr<'_>>(),
        table_of::<attrs::ObjrefAttr<'_>>(),
    ];
    for table in tables {
        for row in table.rows {
            let name = format!("{}{}", table.prefix, row.name);
            // Attributes that some distributions' headers do not have yet.
            let younger = ["NFTA_SET_TYPE", "NFTA_SET_COUNT"].contains(&name.as_str()) && !known.contains_key(&name);
            assert!(younger || known.get(&name) == Some(&i64::from(row.kind)), "{name}: {:?}", known.get(&name));
        }
    }
}

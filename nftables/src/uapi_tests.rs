//! Compares the numbers with this machine's C headers (package linux-libc-dev).

use std::collections::BTreeMap;

use netlink_batch::{AttrTable, Attribute};

use crate::attrs;
use crate::expr::{
    ByteOrderOp, CmpOp, CtKey, DynSetOp, ExthdrOp, FibFlags, FibResult, HeaderBase, LogFlags, MetaKey, NatFlags,
    NatKind, NumgenKind, QueueFlags, RtKey, ShiftOp, SocketKey, SynproxyFlags, XfrmKey,
};
use crate::model::{FlowtableFlags, ObjectType, SetFlags, TableFlags};
use crate::uapi;

fn known() -> BTreeMap<String, i64> {
    netlink_batch::testing::header_numbers(&[
        "netlink.h",
        "netfilter.h",
        "netfilter/nfnetlink.h",
        "netfilter/nf_tables.h",
        "netfilter/nf_nat.h",
        "netfilter/nf_log.h",
        "netfilter/nf_synproxy.h",
    ])
    .unwrap()
}

#[test]
fn numbers_are_those_of_the_header() {
    let known = known();
    for (name, number) in uapi::ALL {
        // Newer than some distributions' headers.
        let younger = name.ends_with("_RESET") && !known.contains_key(*name);
        assert!(younger || known.get(*name) == Some(number), "{name}: {:?}", known.get(*name));
    }
}

/// The tables of these attributes.
macro_rules! tables {
    ($($name:ident)*) => { [$(<attrs::$name<'_> as Attribute<'_>>::TABLE),*] };
}

#[test]
fn attributes_are_those_of_the_header() {
    let known = known();
    let tables: [&AttrTable; 58] = tables! {
        BatchAttr GenAttr TraceAttr TableAttr ChainAttr HookAttr RuleAttr ListAttr ExprAttr SetAttr
        SetDescAttr SetFieldAttr ElemListAttr ElemAttr DataAttr VerdictAttr ObjAttr PayloadAttr MetaAttr
        CtAttr FibAttr CmpAttr BitwiseAttr ByteorderAttr RangeAttr LookupAttr ImmediateAttr NatAttr MasqAttr
        RedirAttr RejectAttr NgAttr HashAttr DynsetAttr CounterAttr LimitAttr LogAttr ObjrefAttr ExthdrAttr
        RtAttr SocketAttr OsfAttr XfrmAttr SynproxyAttr QuotaAttr ConnlimitAttr QueueAttr DupAttr FwdAttr
        TproxyAttr DeviceAttr FlowAttr FlowtableAttr FlowtableHookAttr CtHelperAttr CtTimeoutAttr
        CtExpectAttr SecmarkAttr
    };
    for table in tables {
        for row in table.rows {
            let name = format!("{}{}", table.prefix, row.name);
            // Attributes that are newer than some distributions' headers.
            let younger = ["NFTA_SET_TYPE", "NFTA_SET_COUNT", "NFTA_DEVICE_PREFIX"].contains(&name.as_str())
                && !known.contains_key(&name);
            assert!(younger || known.get(&name) == Some(&i64::from(row.kind)), "{name}: {:?}", known.get(&name));
        }
    }
}

#[test]
fn keys_and_kinds_are_those_of_the_header() {
    let known = known();
    for (prefix, constants) in [
        ("NFT_PAYLOAD_", HeaderBase::CONSTANTS),
        ("NFT_META_", MetaKey::CONSTANTS),
        ("NFT_CT_", CtKey::CONSTANTS),
        ("NFT_FIB_RESULT_", FibResult::CONSTANTS),
        ("NFT_CMP_", CmpOp::CONSTANTS),
        ("NFT_BYTEORDER_", ByteOrderOp::CONSTANTS),
        ("NFT_NAT_", NatKind::CONSTANTS),
        ("NFT_NG_", NumgenKind::CONSTANTS),
        ("NFT_DYNSET_OP_", DynSetOp::CONSTANTS),
        ("NFT_BITWISE_", ShiftOp::CONSTANTS),
        ("NFT_EXTHDR_OP_", ExthdrOp::CONSTANTS),
        ("NFT_RT_", RtKey::CONSTANTS),
        ("NFT_SOCKET_", SocketKey::CONSTANTS),
        ("NFT_XFRM_KEY_", XfrmKey::CONSTANTS),
        ("NFT_OBJECT_", ObjectType::CONSTANTS),
    ] {
        for (name, number) in constants {
            // Newer than some distributions' headers.
            let younger = *name == "NFT_PAYLOAD_INNER_HEADER" && !known.contains_key(*name);
            assert!(younger || known.get(*name) == Some(&i64::from(*number)), "{name}: {:?}", known.get(*name));
            assert!(name.starts_with(prefix), "{name}");
        }
    }
    let flags: [(&str, Vec<(&str, u32)>); 8] = [
        ("NFT_FLOWTABLE_", names::<FlowtableFlags>()),
        ("NFTA_FIB_F_", names::<FibFlags>()),
        ("NF_NAT_RANGE_", names::<NatFlags>()),
        ("NFT_TABLE_F_", names::<TableFlags>()),
        ("NFT_SET_", names::<SetFlags>()),
        ("NF_LOG_", names::<LogFlags>()),
        ("NF_SYNPROXY_OPT_", names::<SynproxyFlags>()),
        ("NFT_QUEUE_FLAG_", names::<QueueFlags>()),
    ];
    for (prefix, flags) in flags {
        for (name, bit) in flags {
            let name = match (prefix, name) {
                ("NF_NAT_RANGE_", "RANDOM") => "PROTO_RANDOM",
                ("NF_NAT_RANGE_", "FULLY_RANDOM") => "PROTO_RANDOM_FULLY",
                ("NFT_SET_", "DYNAMIC") => "EVAL",
                ("NFT_SET_", "CONCATENATION") => "CONCAT",
                ("NFT_SET_", "EXPRESSION") => "EXPR",
                (_, name) => name,
            };
            let name = format!("{prefix}{name}");
            let younger = name == "NFT_TABLE_F_PERSIST" && !known.contains_key(&name);
            assert!(younger || known.get(&name) == Some(&i64::from(bit)), "{name}: {:?}", known.get(&name));
        }
    }
}

fn names<F: bitflags::Flags<Bits = u32>>() -> Vec<(&'static str, u32)> {
    F::FLAGS.iter().filter(|flag| flag.is_named()).map(|flag| (flag.name(), flag.value().bits())).collect()
}

//! Values outside of requests: serialised and back, and errors as people see them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::sync::Arc;

use nftables::expr::{CmpOp, HeaderBase, MetaKey, Reject};
use nftables::fake::FakeNftables;
use nftables::{
    Chain, Client, DataType, Element, ElementData, ElementKey, ElementList, Expression, Family, Field, Hook,
    L4Protocol, Name, Object, ObjectData, ObjectType, Operand, Policy, Register, Rule, Set, SetPolicy, SetReference,
    Table, TableKey, TableSpec, Transaction, Value, Verdict, rule,
};
use testkit::cost::{compare, cost};

#[allow(dead_code, unused_imports, unused_macros, reason = "only some of its tables are needed here")]
mod suite;

/// Tables with everything that the fake kernel can hold.
fn tables() -> Vec<nftables::TableSnapshot> {
    let cases: [fn(&mut Client); 8] = [
        suite::objects_of_every_kind_come_back,
        suite::flow_tables_come_back_as_they_were_written,
        suite::chains_come_back_as_they_were_written,
        suite::expressions_come_back_as_they_were_written,
        suite::sets_come_back_as_they_were_written,
        suite::elements_come_back_as_they_were_written,
        suite::ranges_come_back_as_ranges,
        suite::a_proxy_fits_in_one_transaction,
    ];
    let snapshots = cases.into_iter().flat_map(|case| {
        let mut client = Client::with_transport(FakeNftables::new().transport());
        case(&mut client);
        let tables = client.list_tables(None).unwrap();
        tables.into_iter().map(move |found| client.snapshot(&found.table.key).unwrap()).collect::<Vec<_>>()
    });
    snapshots.collect()
}

#[test]
fn debug_prints_what_display_prints() {
    let invalid = Name::new("").unwrap_err();
    assert_eq!(format!("{invalid:?}"), "name \"\": it is empty");
    let error = nftables::Error::from(invalid.clone());
    assert_eq!(format!("{error:?}"), error.to_string());
    assert_eq!(format!("{invalid:?}"), invalid.to_string());
}

#[test]
fn policies_have_an_order() {
    assert!(Policy::Accept < Policy::Drop && SetPolicy::Performance < SetPolicy::Memory);
}

#[test]
fn what_cannot_be_is_said_when_it_is_made() {
    let inet = || rule(Family::Inet);
    let mixed = inet().saddr("192.0.2.1".parse().unwrap()).daddr("2001:db8::1".parse().unwrap());
    assert_eq!(mixed.build().unwrap_err().to_string(), "a rule: no packet is of IPv4 and IPv6 at once");
    // The first mistake.
    let long = inet().iifname("more-than-15-bytes").saddr_in("10.0.0.0".parse().unwrap(), 33);
    let words = "interface \"more-than-15-bytes\": names have at most 15 bytes";
    assert_eq!(long.build().unwrap_err().to_string(), words);
    let empty = inet().dport_in(std::ops::RangeInclusive::new(2, 1)).build().unwrap_err().to_string();
    assert_eq!(empty, "a range from 0x0002 to 0x0001: its first value is the greater one");
    let hashes = Set::typeof_set("inet t s".parse().unwrap(), &[Operand::hash([Operand::IP_SADDR], 3)]);
    assert!(hashes.is_err(), "nft keeps no notes of hashes");
    assert!(Name::new("KUBE-SVC.web").unwrap().is_plain() && !Name::new("10.96.0.10:80").unwrap().is_plain());
    assert_eq!((Hook::Input.number(Family::Inet), Hook::Input.number(Family::Arp)), (Some(1), Some(0)));
    assert_eq!(Hook::Ingress.number(Family::Ip), None);
    let port = Register::FIRST.behind(4);
    assert_eq!((port, port.and_then(|port| port.behind(2))), (Register::slot(1), Register::slot(2)));
    let last = Register::slot(15).unwrap();
    assert!(last.has_room(4) && !last.has_room(16) && last.behind(4).is_none() && Register::slot(16).is_none());
}

#[test]
fn a_match_that_nft_would_not_add_is_said() {
    let is_ethernet = |family| {
        let kind = Value::new(&1_u16.to_ne_bytes()).unwrap();
        let rule = rule(family).matches(&Operand::Meta(MetaKey::IifType), CmpOp::Eq, kind);
        let rule = rule.matches(&Operand::ETHER_SADDR, CmpOp::Eq, Value::new(&[2, 0, 0, 0, 0, 1]).unwrap()).build();
        rule.unwrap().to_nft(family).unwrap()
    };
    assert_eq!(is_ethernet(Family::Inet), "ether saddr 02:00:00:00:00:01");
    assert_eq!(is_ethernet(Family::Bridge), "meta iiftype ether ether saddr 02:00:00:00:00:01");
    let byte = |base, offset, data_type| Operand::Payload { base, offset, field: Field { data_type, length: 1 } };
    let protocol = byte(HeaderBase::Network, 9, DataType::INET_PROTO);
    let kind = byte(HeaderBase::Transport, 0, DataType::ICMPV6_TYPE);
    let twice = rule(Family::Ip).matches(&protocol, CmpOp::Eq, Value::byte(58)).meta_l4proto(L4Protocol::ICMPV6);
    let twice = twice.matches(&kind, CmpOp::Eq, Value::byte(128)).build().unwrap().to_nft(Family::Ip);
    let words = "ip protocol ipv6-icmp meta l4proto ipv6-icmp icmpv6 type echo-request";
    assert_eq!(twice.as_deref(), Some(words));
    let reset = Rule::new(vec![Expression::Reject(Reject::TcpReset)]);
    assert_eq!(reset.to_nft(Family::Ip), None, "nft would add a match on TCP");
}

/// Other bytes of the header that are 6, as TCP's number is, do not limit a rule to TCP.
#[test]
fn a_reset_is_only_for_tcp() {
    for (family, offset, words) in [
        (Family::Ip, 9, "ip protocol tcp"),
        (Family::Ip, 8, "ip ttl 6 meta l4proto tcp"),
        (Family::Ip6, 6, "ip6 nexthdr tcp"),
        (Family::Ip6, 7, "ip6 hoplimit 6 meta l4proto tcp"),
    ] {
        let field = Field { data_type: DataType::INTEGER, length: 1 };
        let byte = Operand::Payload { base: HeaderBase::Network, offset, field };
        let reset = rule(family).matches(&byte, CmpOp::Eq, Value::byte(6)).reject(Reject::TcpReset).build().unwrap();
        assert_eq!(reset.to_nft(family), Some(format!("{words} reject with tcp reset")));
    }
}

/// 16,000 chains took 3 s when it was quadratic.
#[test]
fn tables_cost_what_they_are_long() {
    const FEW: u32 = 200;
    let key = TableKey::new(Family::Inet, "t").unwrap();
    let costs = |count: u32| {
        let mut spec = TableSpec::new(Table::new(key.clone()));
        let mut anonymous = Transaction::new();
        for number in 0..count {
            let port = Value::port(u16::try_from(number).unwrap());
            let open = Set::typeof_set(key.set(&format!("s{number}")).unwrap(), &[Operand::DPORT]).unwrap();
            let rule = |set: SetReference| rule(Family::Inet).in_set(&[Operand::DPORT], set).accept().build().unwrap();
            let chain = Chain::regular(key.chain(&format!("c{number}")).unwrap());
            let ports = anonymous.add_anonymous_set(open.clone(), vec![Element::value(port.clone())]).unwrap();
            anonymous.add_rule(&chain.key, rule(ports));
            let rules = [rule((&open.key).into()), rule((&open.key).into())];
            let counter = key.object(ObjectType::Counter, &format!("o{number}")).unwrap();
            let counter = Object::new(counter, ObjectData::Counter { packets: 0, bytes: 0 });
            spec = spec.chain(chain, rules).set(open, [Element::value(port)]).object(counter);
        }
        let mut client = Client::with_transport(FakeNftables::new().transport());
        let written = client.sync(&spec).unwrap();
        let found = client.snapshot(&key).unwrap();
        [
            cost(5, || assert!(spec.diff(Some(&found)).unwrap().is_empty())),
            cost(5, || assert_eq!(written.to_string().matches("dport @").count(), 2 * spec.chains.len())),
            cost(5, || assert_eq!(anonymous.to_string().matches("dport {").count(), spec.chains.len())),
            cost(5, || assert_eq!(found.to_string().matches("dport @").count(), 2 * spec.chains.len())),
        ]
    };
    for (what, (small, large)) in ["a difference", "its text", "anonymous sets", "a table"]
        .into_iter()
        .zip(costs(FEW).into_iter().zip(costs(8 * FEW)))
    {
        compare(what, FEW.try_into().unwrap(), small, large);
    }
}

#[test]
fn shared_elements_are_not_copied() {
    let ports = Arc::new([22, 443].map(|port| Element::value(Value::port(port))).into_iter().collect());
    let open = Arc::new(Set::typeof_set("inet t open".parse().unwrap(), &[Operand::DPORT]).unwrap());
    let mut transaction = Transaction::new();
    transaction.add_shared_elements(Arc::clone(&open), Arc::clone(&ports));
    assert_eq!(
        (transaction.to_string().as_str(), Arc::strong_count(&ports), Arc::strong_count(&open)),
        ("add element inet t open { 22, 443 }\n", 2, 2)
    );
}

#[test]
fn a_list_has_elements_of_every_kind() {
    let port = |port| Element::value(Value::port(port));
    let (mut empty, mut dropped) = (port(3), port(4));
    empty.data = Some(ElementData::Value(Value::EMPTY));
    dropped.data = Some(ElementData::Verdict(Verdict::Drop));
    let all = [
        port(1),
        port(2).maps_to(Value::byte(7)),
        empty,
        dropped,
        Element::range(Value::port(5), Value::port(9)),
        port(10).comment("DNS"),
        Element::value(Value::new(&[7; 64]).unwrap()),
        Element::new(ElementKey::CatchAll),
    ];
    let list: ElementList = all.iter().cloned().collect();
    assert_eq!(list.iter().collect::<Vec<_>>(), all);
    assert_eq!((list.get(4), list.get(all.len())), (Some(all[4].clone()), None));
}

/// A table that is read has one of these for every endpoint of every Service.
#[test]
#[cfg(target_pointer_width = "64")]
fn an_element_takes_80_bytes() {
    assert_eq!(size_of::<nftables::Element>(), 80);
}

#[cfg(feature = "serde")]
mod serialised {
    use nftables::{
        BaseChain, Chain, ChainType, ErrorKind, FieldTypes, Priority, SetFlags, Table, TableSnapshot, Verdict,
    };
    use serde_json::{from_str, json, to_string, to_value};

    use super::*;

    #[test]
    fn whole_tables_come_back() {
        let tables = tables();
        assert!(tables.len() >= 6, "{}", tables.len());
        for table in tables {
            let text = to_string(&table).unwrap();
            assert!(from_str::<TableSnapshot>(&text).unwrap() == table, "{text}\n{table}");
        }
    }

    #[test]
    fn words_are_those_of_nft() {
        let table = TableKey::new(Family::Inet, "filter").unwrap();
        let base = BaseChain::new(ChainType::Filter, Hook::Input, Priority::FILTER);
        let chain = Chain::base(table.chain("input").unwrap(), base).policy(Policy::Drop);
        assert_eq!(
            to_value(&chain).unwrap(),
            json!({
                "key": {"table": {"family": "inet", "name": "filter"}, "name": "input"},
                "base": {"kind": "filter", "hook": "input", "priority": 0, "policy": "drop", "devices": []},
                "comment": null, "bound": false,
            })
        );
        let element = Element::value(Value::port(80)).verdict(Verdict::Goto(Name::new("web").unwrap()));
        let element = to_value(element).unwrap();
        assert_eq!(
            (&element["key"], &element["data"]),
            (&json!({"value": "0x0050"}), &json!({"verdict": {"goto": "web"}}))
        );
        assert_eq!(to_value(Family::Other(42)).unwrap(), json!("42"));
        assert_eq!(to_value(SetFlags::INTERVAL | SetFlags::TIMEOUT).unwrap(), json!("INTERVAL | TIMEOUT"));
        assert_eq!(to_value((Register::VERDICT, Register::FIRST)).unwrap(), json!(["verdict", {"slot": 0}]));
        assert_eq!(to_value(ErrorKind::NotFound).unwrap(), json!("NotFound"));
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let key = json!({"table": {"family": "ip", "name": "t"}, "name": "n"});
        let table: Table = from_str(r#"{"key": {"family": "ip", "name": "t"}}"#).unwrap();
        assert_eq!(table, Table::new("ip t".parse().unwrap()));
        let chain: Chain =
            from_str(&json!({"key": key, "base": {"kind": "nat", "hook": "output", "priority": -100}}).to_string())
                .unwrap();
        let base = BaseChain::new(ChainType::Nat, Hook::Output, Priority::DSTNAT);
        assert_eq!(chain, Chain::base("ip t n".parse().unwrap(), base));
        let set: Set = from_str(&json!({"key": key, "key_type": [{"data_type": 7, "length": 4}]}).to_string()).unwrap();
        assert_eq!(set, Set::new("ip t n".parse().unwrap(), FieldTypes::of(&[DataType::IPV4_ADDR]).unwrap()));
        let element: Element = from_str(r#"{"key": {"value": "0x0050"}}"#).unwrap();
        assert_eq!(element, Element::value(Value::port(80)));
        assert_eq!(from_str::<Rule>("{}").unwrap(), Rule::default());
    }

    #[test]
    fn what_no_constructor_makes_is_refused() {
        for text in ["\"\"", "\"a\\nb\"", "7"] {
            assert!(from_str::<Name>(text).is_err(), "{text}");
        }
        let long = format!("\"0x{}\"", "00".repeat(65));
        for text in ["\"0050\"", "\"0x005\"", "\"0x00g0\"", "\"0x+1\"", "\"0x\u{fc}\"", long.as_str()] {
            assert!(from_str::<Value>(text).is_err(), "{text}");
        }
        assert_eq!(from_str::<Value>("\"0x\"").unwrap(), Value::EMPTY);
        assert!(from_str::<Register>("{\"slot\": 16}").is_err() && from_str::<Family>("\"ipx\"").is_err());
        let error = from_str::<FieldTypes>("[]").unwrap_err().to_string();
        assert!(error.contains("each field needs a length"), "{error}");
    }
}

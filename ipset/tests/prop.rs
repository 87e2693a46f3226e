//! Printed text reads the same, and sync arrives from any state at any other. Arbitrary and mutilated input: `corpus.rs`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::net::{IpAddr, Ipv4Addr};

use ipset::fake::FakeIpset;
use ipset::{
    Client, Element, Entry, IfPresent, Interface, IpSpan, MacAddr, PortRange, Ports, Protocol, SetSpec, SetType,
    parse_save,
};
use proptest::prelude::*;

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

fn span() -> impl Strategy<Value = IpSpan> {
    prop_oneof![
        address().prop_map(IpSpan::host),
        (address(), 0_u8..=128).prop_map(|(address, prefix)| {
            IpSpan::network(address, if address.is_ipv4() { prefix.min(32) } else { prefix }).unwrap()
        }),
        (any::<u32>(), any::<u32>()).prop_map(|(a, b)| IpSpan::range(
            Ipv4Addr::from(a).into(),
            Ipv4Addr::from(b).into()
        )
        .unwrap()),
    ]
}

fn ports() -> impl Strategy<Value = Ports> {
    (1_u8..=255, any::<u16>(), any::<u16>())
        .prop_map(|(number, a, b)| Ports::range(Protocol::from_number(number).unwrap(), PortRange::new(a, b)))
}

fn element() -> impl Strategy<Value = (SetType, Element)> {
    let interface = "[a-z]{1,8}[0-9]{0,3}".prop_map(|name| Interface::new(&name).unwrap());
    prop_oneof![
        span().prop_map(|span| (SetType::HashNet, Element::Ip(span))),
        (span(), any::<u32>()).prop_map(|(span, mark)| (SetType::HashIpMark, Element::IpMark(span, mark))),
        (span(), ports()).prop_map(|(span, ports)| (SetType::HashIpPort, Element::IpPort(span, ports))),
        (span(), ports(), span()).prop_map(|(a, ports, b)| (SetType::HashIpPortNet, Element::IpPortIp(a, ports, b))),
        (span(), any::<[u8; 6]>())
            .prop_map(|(span, mac)| (SetType::HashIpMac, Element::IpMac(span, Some(MacAddr(mac))))),
        span().prop_map(|span| (SetType::BitmapIpMac, Element::IpMac(span, None))),
        any::<[u8; 6]>().prop_map(|mac| (SetType::HashMac, Element::Mac(MacAddr(mac)))),
        (span(), span()).prop_map(|(a, b)| (SetType::HashNetNet, Element::IpIp(a, b))),
        (span(), interface, any::<bool>()).prop_map(|(network, interface, physdev)| {
            (SetType::HashNetIface, Element::IpInterface { network, interface, physdev })
        }),
        (any::<u16>(), any::<u16>()).prop_map(|(a, b)| (SetType::BitmapPort, Element::Port(PortRange::new(a, b)))),
    ]
}

fn small() -> impl Strategy<Value = Vec<(u8, bool)>> {
    proptest::collection::vec((0_u8..40, any::<bool>()), 0..40)
}

proptest! {
    #[test]
    fn an_element_is_read_as_it_was_printed((set_type, element) in element()) {
        let text = element.to_string();
        prop_assert_eq!(Element::parse(set_type, &text).unwrap(), element, "{}", text);
    }

    #[test]
    fn networks_make_up_their_range(a in any::<u32>(), length in 0_u32..100_000) {
        let last = a.saturating_add(length);
        let span = IpSpan::range(Ipv4Addr::from(last).into(), Ipv4Addr::from(a).into()).unwrap();
        let mut next = u64::from(a);
        for network in span.networks() {
            prop_assert!(network.prefix().is_some(), "{} is no network", network);
            let IpAddr::V4(first) = network.first() else { panic!("not IPv4") };
            prop_assert_eq!(u64::from(first.to_bits()), next);
            next += u64::try_from(network.addresses()).unwrap();
        }
        prop_assert_eq!(next, u64::from(last) + 1);
        prop_assert_eq!(span.addresses(), u128::from(last - a) + 1);
    }

    #[test]
    fn a_sync_arrives_at_the_wanted_entries(before in small(), after in small(), maxelem in 30_u32..80) {
        let kernel = FakeIpset::new();
        let mut client = Client::with_transport(kernel.transport()).unwrap();
        let set: SetSpec = format!("create a hash:net comment maxelem {maxelem}").parse().unwrap();
        let entries = |numbers: &[(u8, bool)]| -> Vec<Entry> {
            let text = |(number, nomatch): &(u8, bool)| format!("10.{number}.0.1/16{}", if *nomatch { " nomatch" } else { "" });
            numbers.iter().map(|number| Entry::parse(set.set_type, &text(number)).unwrap()).collect()
        };
        client.create_set(&set).unwrap();
        let first = client.add_entries(&set.name, &entries(&before), IfPresent::Update);
        prop_assert!(first.is_done() || before.len() > 30, "{:?}", first);
        let report = client.sync(&set, &entries(&after)).unwrap();
        let wanted: std::collections::BTreeMap<u8, bool> = after.iter().copied().collect();
        let found: Vec<String> = client.get_set(&set.name).unwrap().entries.iter().map(ToString::to_string).collect();
        let mut expected: Vec<String> = wanted
            .iter()
            .map(|(number, nomatch)| format!("10.{number}.0.0/16{}", if *nomatch { " nomatch" } else { "" }))
            .collect();
        let mut sorted = found.clone();
        sorted.sort();
        expected.sort();
        prop_assert_eq!(sorted, expected);
        prop_assert_eq!(report.added + report.updated + report.unchanged, wanted.len());
        prop_assert!(!client.sync(&set, &entries(&after)).unwrap().is_changed());
    }
}

#[test]
fn text_beyond_its_range_is_refused() {
    for text in ["10.0.0.0/33", "::/129", "10.0.0.1-::1", "10.0.0", "10.0.0.0/+8", "10.0.0.0/", "::1-::2", ""] {
        assert!(text.parse::<IpSpan>().is_err(), "{text}");
    }
    for text in ["65536", "-1", "1-", "-1-2", "+1", "", "1-65536", "http"] {
        assert!(text.parse::<PortRange>().is_err(), "{text}");
    }
    assert_eq!("0-65535".parse::<PortRange>().unwrap(), PortRange::ALL);
    for text in ["tcp:", "nosuch:1", "0:1", "256:0", "icmp:8", "icmp:256/0"] {
        assert!(text.parse::<Ports>().is_err(), "{text}");
    }
}

#[test]
fn a_broken_line_is_named() {
    let error = parse_save("create a hash:ip\nadd a 10.0.0.1\nadd a 10.0.0.256\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "reading saved sets: line 3: \"10.0.0.256\" is not an address, a network or a range of addresses"
    );
}

#[test]
fn names_that_look_like_something_else() {
    let text = "create create hash:ip family inet\nadd create 10.0.0.1\ncreate hash:ip hash:ip family inet\n\
                create a,b list:set\nadd a,b create\nadd a,b hash:ip\ncreate #c list:set\nadd #c a,b before create\n";
    let sets = parse_save(text).unwrap();
    assert_eq!(ipset::save(&sets), text);
    for set in &sets {
        assert_eq!(set.spec.to_string().parse::<SetSpec>().unwrap(), set.spec);
    }
    let named_create: SetSpec = "create hash:ip".parse().unwrap();
    assert_eq!(named_create, "create create hash:ip".parse().unwrap());
    assert_eq!("create create".parse::<SetSpec>().unwrap_err().to_string(), "option \"type\" needs a value");
    // Options come in any order.
    let six: SetSpec = "a hash:ip netmask 64 family inet6".parse().unwrap();
    assert_eq!(six.to_string(), "create a hash:ip family inet6 netmask 64");
    assert!("a hash:ip netmask 64 family inet".parse::<SetSpec>().is_err());
}

//! Sync arrives from any state at any other, and ranges are made up of networks. Arbitrary and mutilated input: `corpus.rs`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::net::{IpAddr, Ipv4Addr};

use ipset::fake::FakeIpset;
use ipset::{Client, Entry, IfPresent, IpSpan, SetSpec, parse_save};
use proptest::prelude::*;

fn small() -> impl Strategy<Value = Vec<(u8, bool)>> {
    proptest::collection::vec((0_u8..40, any::<bool>()), 0..40)
}

proptest! {
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

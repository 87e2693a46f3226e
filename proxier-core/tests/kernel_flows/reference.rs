//! The flows of the corpus (`oracle/iptables-corpus.jsonl.gz`) as packets through real kernels that a proxy mode has programmed.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use testkit::oracle::Backend;
use testkit::{Need, kernel_test};

use crate::flows::corpus::size;
use crate::flows::flow::{Destination, Verdict};
use crate::flows::objects::{Objects, objects};
use crate::flows::programmed::Programmed;
use crate::flows::restored::Restored;
use crate::flows::{Flow, NEEDS, Reference, broken, check, hold, scenarios, scenarios_of};

#[test]
fn the_references_rules_do_as_it_says() {
    kernel_test(&[NEEDS, &[Need::IptablesNft]].concat(), || {
        hold(&mut Restored::new(Backend::Nft), 10);
    });
}

#[test]
fn the_references_rules_do_as_it_says_in_the_legacy_back_end() {
    kernel_test(&[NEEDS, &[Need::IptablesLegacy]].concat(), || {
        hold(&mut Restored::new(Backend::Legacy), 40);
    });
}

#[test]
fn each_mistake_in_the_rules_is_noticed() {
    kernel_test(&[NEEDS, &[Need::IptablesNft]].concat(), || broken::are_all_noticed(Backend::Nft));
}

#[test]
fn without_rules_every_flow_is_left_alone() {
    kernel_test(NEEDS, || {
        let mut nothing = Programmed::new(|_, _| Ok(()), |_, _| None);
        for scenario in scenarios(|number| number.is_multiple_of(120)) {
            let differences = check(&scenario, &scenario.flows, &mut nothing);
            let found: Vec<String> = differences.iter().map(|difference| difference.flow.to_string()).collect();
            let served = |flow: &&Flow| flow.dest != Destination::Verdict(Verdict::LeftAlone);
            let wanted: Vec<String> = scenario.flows.iter().filter(served).map(ToString::to_string).collect();
            assert_eq!(found, wanted, "{}", scenario.name());
        }
    });
}

/// A shortened corpus would pass all tests above.
#[test]
fn the_corpus_is_whole_and_has_the_objects_of_its_flows() {
    assert_eq!(size(), (616, 22_748));
    for references in [&[Reference::Iptables36], &[Reference::Nftables36]] {
        let mut after = 0;
        let all = scenarios_of(references, |number| number % 20 == 0 || number >= 663);
        let flows: Vec<usize> = all
            .map(|scenario| {
                after += usize::from(!scenario.before.is_empty());
                assert_eq!(objects(&scenario).before.len(), scenario.before.len());
                scenario.flows.len()
            })
            .collect();
        assert!(after > 50 && flows.iter().all(|flows| *flows > 0), "{references:?}: {after} after others, {flows:?}");
    }
    for scenario in scenarios(|number| number.is_multiple_of(5)) {
        let Objects { services, slices, host, .. } = objects(&scenario);
        let services: BTreeSet<String> = services
            .iter()
            .map(|service| format!("{}/{}", service.metadata.namespace, service.metadata.name))
            .collect();
        assert!(scenario.flows.iter().all(|flow| services.contains(&flow.service)), "{}", scenario.name());
        let in_slices = slices.iter().flat_map(|slice| slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses));
        let in_slices: BTreeSet<IpAddr> = in_slices.map(|address| address.parse().unwrap()).collect();
        let reached = scenario.flows.iter().flat_map(Flow::endpoints).map(SocketAddr::ip);
        assert_eq!(reached.collect::<BTreeSet<IpAddr>>().difference(&in_slices).next(), None, "{}", scenario.name());
        let node_ports = scenario.flows.iter().filter(|flow| flow.via == "nodePort" && !flow.to.ip().is_loopback());
        let own: BTreeSet<IpAddr> = host.interfaces.values().flatten().copied().collect();
        assert!(node_ports.map(|flow| flow.to.ip()).all(|address| own.contains(&address)), "{}", scenario.name());
    }
}

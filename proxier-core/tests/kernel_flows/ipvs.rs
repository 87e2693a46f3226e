//! The flows of the corpus as packets through virtual servers, sets and rules that IPVS mode has written, with both rule back ends.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::SocketAddr;

use proxier_core::config::RulesBy;
use proxier_core::engine::Options;
use proxier_core::kernel::KernelOptions;
use proxier_core::modes;
use testkit::{Need, Netns, PROXY, kernel_test};

use crate::flows::difference::{Kind, judge};
use crate::flows::flow::{Destination, Verdict};
use crate::flows::objects::Objects;
use crate::flows::probe::{Fate, Source};
use crate::flows::programmed::{self, Programmed};
use crate::flows::traced::{World, meant};
use crate::flows::{Difference, Mode, NEEDS, Reference, Scenario, hold};

/// The schedulers that scenarios ask for besides `rr`.
const SCHEDULERS: &[Need] =
    &[Need::Scheduler("wlc"), Need::Scheduler("lc"), Need::Scheduler("sh"), Need::Scheduler("mh")];

fn program(rules: RulesBy, objects: &Objects) -> Result<(), Box<dyn Error>> {
    let mut options = Options::default();
    options.config = objects.config.clone();
    options.config.ipvs.rules = rules;
    options.mode = modes::Kind::Ipvs;
    programmed::program(&options, &KernelOptions::default(), objects)
}

/// Meant differences to the reference, by name. Each is one of the trace's too (`plain/trace.rs`): packets do as it says.
fn explain(scenario: &Scenario, difference: &Difference) -> Option<&'static str> {
    let Difference { flow, kind, seen, .. } = difference;
    let by_source = matches!(scenario.input["config"]["scheduler"].as_str(), Some("sh" | "mh"));
    if by_source && matches!(kind, Kind::Unreached(_)) {
        return Some("sh and mh send one source to one endpoint");
    }
    let (_, ours) = World::new(modes::Kind::Ipvs, scenario).trace(flow);
    // The sets of node ports hold ports without addresses.
    let marked = |fate: &Fate| matches!(fate, Fate::Delivered { port, .. } if *port == flow.to.port());
    let is_left_alone = ours.dest == Destination::Verdict(Verdict::LeftAlone);
    if flow.via == "nodePort" && flow.is_nodes() && is_left_alone && seen.keys().all(marked) {
        return Some("the node gets another port of its own to node ports at addresses that serve none");
    }
    let mut seen = seen.clone();
    // A packet that has the uplink's address gets another port where a masqueraded connection has its own by chance.
    if scenario.interfaces["eth0"].contains(&flow.source) {
        let is_kept = |fate: &Fate| matches!(fate, Fate::Sent { source: Source::Kept, .. });
        let kept: BTreeSet<SocketAddr> =
            seen.keys().filter(|fate| is_kept(fate)).filter_map(|fate| fate.endpoint(&ours)).collect();
        seen.retain(|fate, _| {
            let by_chance = matches!(fate, Fate::Sent { to, source: Source::Masqueraded } if kept.contains(to) && !ours.masquerades(to));
            !by_chance
        });
    }
    match judge(scenario, &ours, seen, Vec::new()).map(|other| other.kind) {
        None => {}
        // Two packets are sent where the reference has no endpoints, and one source keeps one endpoint.
        Some(Kind::Unreached(_)) if flow.endpoints().is_empty() || by_source || flow.is_sticky() => {}
        Some(_) => return None,
    }
    // A new client gets the endpoint whose turn it is, and the clients of a Service come in the same order again and again.
    if matches!(kind, Kind::Unreached(_)) && flow.is_sticky() && ours.dest == flow.dest {
        return Some("endpoints are used in rotation, in step with the clients of this test");
    }
    meant(modes::Kind::Ipvs, scenario, flow, &ours)
}

/// One scenario in this many, the same ones for both rule back ends, so that differences between them show in the same flows.
const ONE_IN: usize = 11;
const REFERENCES: &[Reference] = &[Reference::Iptables28, Reference::Iptables36];

#[test]
fn packets_go_where_the_reference_sends_them() {
    kernel_test(&[NEEDS, PROXY, SCHEDULERS].concat(), || {
        let program = |_: &Netns, objects: &Objects| program(RulesBy::Iptables, objects);
        hold(&mut Programmed::new(program, explain).held_to(Mode::Ipvs, REFERENCES), ONE_IN);
    });
}

#[test]
fn packets_go_where_the_reference_sends_them_without_iptables() {
    kernel_test(&[NEEDS, PROXY, SCHEDULERS, &[Need::Nftables]].concat(), || {
        let program = |_: &Netns, objects: &Objects| program(RulesBy::Nftables, objects);
        hold(&mut Programmed::new(program, explain).held_to(Mode::Ipvs, REFERENCES), ONE_IN);
    });
}

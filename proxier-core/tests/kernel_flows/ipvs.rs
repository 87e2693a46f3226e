//! The flows of the corpus as packets through virtual servers, sets and rules that IPVS mode has written, with both rule back ends.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::SocketAddr;

use proxier_core::config::RulesBy;
use proxier_core::engine::Options;
use proxier_core::inspect::trace;
use proxier_core::kernel::Options as KernelOptions;
use proxier_core::modes::{self, iptables};
use proxier_core::net::{FrontendKey, Protocol};
use proxier_core::service::{Indexed, NodeFacts, Packet, Reached, Verdict as Traced};
use proxier_core::snapshot::{Node, Store};
use testkit::witness::Transport;
use testkit::{Need, Netns, PROXY, kernel_test};

use crate::flows::difference::{Kind, judge};
use crate::flows::flow::{Destination, Verdict};
use crate::flows::objects::{Objects, objects};
use crate::flows::probe::{Fate, Source};
use crate::flows::programmed::{self, Programmed};
use crate::flows::{Difference, Flow, Mode, NEEDS, Reference, Sampled, Scenario, hold};

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

/// Expected flow by a trace of IPVS mode.
fn traced(scenario: &Scenario, flow: &Flow) -> Flow {
    let Objects { config, services, slices, node, host, .. } = objects(scenario);
    let mut store = Store::new(&node.metadata.name);
    for slice in &slices {
        store.upsert_slice(slice);
    }
    for service in &services {
        store.upsert_service(service);
    }
    let facts = NodeFacts::new(&config, &Node::check(&node, &mut Vec::new()), &host);
    let desired = Indexed::build(&store, &facts, ()).desired;
    let protocol = match flow.protocol {
        Transport::Tcp => Protocol::Tcp,
        Transport::Udp => Protocol::Udp,
        Transport::Sctp => Protocol::Sctp,
    };
    let to = FrontendKey::new(protocol, flow.to.ip(), flow.to.port());
    let packet = if flow.is_nodes() { Packet::from_node(flow.source, to) } else { Packet::new(flow.source, to) };
    let known = (&desired, &facts);
    let verdict = trace(modes::Kind::Ipvs, &store, known, &packet, iptables::Options::default()).verdict;
    let (mut dest, mut masqueraded) = (Destination::Verdict(Verdict::LeftAlone), BTreeSet::new());
    match verdict {
        Traced::LeftAlone => {}
        Traced::Dropped => dest = Destination::Verdict(Verdict::Drop),
        Traced::Rejected => dest = Destination::Verdict(Verdict::Reject),
        Traced::Endpoints(reached) => {
            let address = |one: &Reached| SocketAddr::new(one.endpoint.address, one.endpoint.port);
            dest = Destination::Endpoints(reached.iter().map(address).collect());
            masqueraded = reached.iter().filter(|one| one.masqueraded).map(address).collect();
        }
        other => panic!("{other:?}"),
    }
    Flow { dest, masquerade: false, masquerade_to: Some(masqueraded), ..flow.clone() }
}

fn is_local(scenario: &Scenario, flow: &Flow, policy: &str) -> bool {
    let services = scenario.input["services"].as_array().unwrap();
    let name = |metadata: &serde_json::Value| {
        format!("{}/{}", metadata["namespace"].as_str().unwrap(), metadata["name"].as_str().unwrap())
    };
    let service = services.iter().find(|service| name(&service["metadata"]) == flow.service).unwrap();
    service["spec"][policy] == "Local"
}

/// Meant differences to the reference, by name. Each is one of the trace's too (`plain/trace.rs`): packets do as it says.
fn explain(scenario: &Scenario, difference: &Difference) -> Option<&'static str> {
    let Difference { flow, kind, seen, .. } = difference;
    let by_source = matches!(scenario.input["config"]["scheduler"].as_str(), Some("sh" | "mh"));
    if by_source && matches!(kind, Kind::Unreached(_)) {
        return Some("sh and mh send one source to one endpoint");
    }
    let ours = traced(scenario, flow);
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
    let goes = |theirs: Verdict, here: Verdict| {
        flow.dest == Destination::Verdict(theirs) && ours.dest == Destination::Verdict(here)
    };
    let (is_served, was_served) = (!ours.endpoints().is_empty(), !flow.endpoints().is_empty());
    let via = |kind: &str| flow.via == kind;
    let is_external_local = !via("clusterIP") && is_local(scenario, flow, "externalTrafficPolicy");
    let is_limited = scenario.input["config"].get("nodePortAddresses").is_some();
    let is_dropped = flow.dest == Destination::Verdict(Verdict::Drop);
    let is_refused = is_dropped || flow.dest == Destination::Verdict(Verdict::Reject);
    let itself = |endpoint: &SocketAddr| endpoint.ip() == flow.source;
    let kept = flow.endpoints().iter().filter(|to| flow.masquerades(to) && !ours.masquerades(to));
    if via("badPort") && goes(Verdict::LeftAlone, Verdict::Reject) {
        Some("a port of a cluster IP that no Service has is refused")
    } else if via("nodePort") && flow.to.ip().is_loopback() && is_left_alone {
        Some("node ports are not served on loopback addresses unless nodePortAddresses names them")
    } else if via("nodePort") && is_limited && is_refused && is_left_alone {
        Some("node ports without endpoints are left alone on addresses that serve no node ports")
    } else if goes(Verdict::LeftAlone, Verdict::Reject) && flow.is_nodes() && !scenario.is_local(flow.to.ip()) {
        Some("the node itself is told that there is no endpoint")
    } else if is_external_local && is_dropped && is_served {
        Some("external policy Local without local endpoints falls back to all")
    } else if is_external_local && was_served && is_served {
        Some("external policy Local gives pods and the node what others get, with their source")
    } else if via("clusterIP")
        && is_local(scenario, flow, "internalTrafficPolicy")
        && goes(Verdict::Drop, Verdict::Reject)
    {
        Some("internal policy Local without local endpoints rejects")
    } else if goes(Verdict::Reject, Verdict::Drop) && via("loadBalancerIP") {
        Some("source ranges apply before missing endpoints")
    } else if is_dropped && flow.is_nodes() && via("loadBalancerIP") {
        Some("source ranges do not apply to the node's own address")
    } else if flow.from == "hairpin-remote" && *kind == Kind::Source && kept.clone().all(itself) {
        Some("an endpoint on another node that reaches itself here is not masqueraded")
    } else {
        None
    }
}

/// One scenario in this many, the same ones for both rule back ends, so that differences between them show in the same flows.
const SAMPLED: Sampled = Sampled::AsAsked(11);
const REFERENCES: &[Reference] = &[Reference::Iptables28, Reference::Iptables36];

#[test]
fn packets_go_where_the_reference_sends_them() {
    kernel_test(&[NEEDS, PROXY, SCHEDULERS].concat(), || {
        let program = |_: &Netns, objects: &Objects| program(RulesBy::Iptables, objects);
        hold(&mut Programmed::new(program, explain).held_to(Mode::Ipvs, REFERENCES), SAMPLED);
    });
}

#[test]
fn packets_go_where_the_reference_sends_them_without_iptables() {
    kernel_test(&[NEEDS, PROXY, SCHEDULERS, &[Need::Nftables]].concat(), || {
        let program = |_: &Netns, objects: &Objects| program(RulesBy::Nftables, objects);
        hold(&mut Programmed::new(program, explain).held_to(Mode::Ipvs, REFERENCES), SAMPLED);
    });
}

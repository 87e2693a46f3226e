//! What a trace says of a flow, and the differences from the reference that are meant.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proxier_core::inspect::trace;
use proxier_core::modes::{Kind, iptables};
use proxier_core::net::{FrontendKey, Protocol};
use proxier_core::service::{Desired, Indexed, NodeFacts, Packet, Reached, Trace, Verdict as Traced};
use proxier_core::snapshot::{Node, Store};
use testkit::witness::Transport;

use super::corpus::Scenario;
use super::flow::{Destination, Flow, Verdict};
use super::objects::{Objects, objects};

/// A scenario, compiled for a mode.
pub(crate) struct World {
    mode: Kind,
    store: Store,
    facts: NodeFacts,
    desired: Desired,
}

impl World {
    pub(crate) fn new(mode: Kind, scenario: &Scenario) -> Self {
        let Objects { config, services, slices, node, host, .. } = objects(scenario);
        let mut store = Store::new(&node.metadata.name);
        for slice in &slices {
            store.upsert_slice(slice);
        }
        for service in &services {
            store.upsert_service(service);
        }
        let mut facts = NodeFacts::new(&config, &Node::check(&node, &mut Vec::new()), &host);
        facts.serve_localhost(mode.localhost(&iptables::IptablesOptions::default()));
        let desired = Indexed::build(&store, &facts, ()).desired;
        World { mode, store, facts, desired }
    }

    /// The trace of a flow, and the flow as the trace says that it goes.
    pub(crate) fn trace(&self, flow: &Flow) -> (Trace, Flow) {
        let protocol = match flow.protocol {
            Transport::Tcp => Protocol::Tcp,
            Transport::Udp => Protocol::Udp,
            Transport::Sctp => Protocol::Sctp,
        };
        let to = FrontendKey::new(protocol, flow.to.ip(), flow.to.port());
        let packet = if flow.is_nodes() { Packet::from_node(flow.source, to) } else { Packet::new(flow.source, to) };
        let known = (&self.desired, &self.facts);
        let traced = trace(self.mode, &self.store, known, &packet, iptables::IptablesOptions::default());
        let mut masqueraded = BTreeSet::new();
        let dest = match &traced.verdict {
            Traced::LeftAlone => Destination::Verdict(Verdict::LeftAlone),
            Traced::Dropped => Destination::Verdict(Verdict::Drop),
            Traced::Rejected => Destination::Verdict(Verdict::Reject),
            Traced::Endpoints(reached) => {
                let address = |one: &Reached| SocketAddr::new(one.endpoint.address, one.endpoint.port);
                masqueraded = reached.iter().filter(|one| one.masqueraded).map(address).collect();
                Destination::Endpoints(reached.iter().map(address).collect())
            }
            other => panic!("{other:?}"),
        };
        (traced, Flow { dest, masquerade: false, masquerade_to: Some(masqueraded), ..flow.clone() })
    }
}

/// Whether the Service of a flow has this policy `Local`.
fn is_local(scenario: &Scenario, flow: &Flow, policy: &str) -> bool {
    let name = |metadata: &serde_json::Value| {
        format!("{}/{}", metadata["namespace"].as_str().unwrap(), metadata["name"].as_str().unwrap())
    };
    let mut services = scenario.input["services"].as_array().unwrap().iter();
    services.find(|service| name(&service["metadata"]) == flow.service).unwrap()["spec"][policy] == "Local"
}

/// The name of the meant difference between a flow of the reference and what a mode's trace says of it.
pub(crate) fn meant(mode: Kind, scenario: &Scenario, theirs: &Flow, ours: &Flow) -> Option<&'static str> {
    let verdict = |flow: &Flow, verdict: Verdict| flow.dest == Destination::Verdict(verdict);
    let goes = |from: Verdict, to: Verdict| verdict(theirs, from) && verdict(ours, to);
    let via = |kind: &str| theirs.via == kind;
    let [is_ipvs, is_userspace] = [Kind::Ipvs, Kind::Userspace].map(|of| of == mode);
    let is_left_alone = verdict(ours, Verdict::LeftAlone);
    let is_dropped = verdict(theirs, Verdict::Drop);
    let is_refused = is_dropped || verdict(theirs, Verdict::Reject);
    let [was_served, is_served] = [theirs, ours].map(|flow| !flow.endpoints().is_empty());
    let is_about_the_source = was_served && theirs.dest == ours.dest;
    let is_limited = scenario.input["config"].get("nodePortAddresses").is_some();
    // The node sends to an address elsewhere that no Service serves.
    let refuses_the_node = goes(Verdict::LeftAlone, Verdict::Reject)
        && (via("externalIP") || via("loadBalancerIP"))
        && theirs.is_nodes()
        && !scenario.is_local(theirs.to.ip());
    let is_external_local = is_ipvs && !via("clusterIP") && is_local(scenario, theirs, "externalTrafficPolicy");
    let is_internal_local = is_ipvs && via("clusterIP") && is_local(scenario, theirs, "internalTrafficPolicy");
    // Only an endpoint elsewhere, reached by itself, keeps its source.
    let kept = || theirs.endpoints().iter().filter(|to| theirs.masquerades(to) && !ours.masquerades(to));
    let is_remote_hairpin = is_about_the_source
        && theirs.from == "hairpin-remote"
        && kept().next().is_some()
        && kept().all(|endpoint| endpoint.ip() == theirs.source);
    let names = [
        (is_userspace && theirs.protocol == Transport::Sctp && is_left_alone, "SCTP is not served"),
        (
            is_ipvs && via("badPort") && goes(Verdict::LeftAlone, Verdict::Reject),
            "a port of a cluster IP that no Service has is refused",
        ),
        (
            via("nodePort") && theirs.to.ip().is_loopback() && is_left_alone,
            "node ports are not served on loopback addresses unless nodePortAddresses names them",
        ),
        (
            via("nodePort") && is_limited && is_refused && is_left_alone,
            "node ports without endpoints are left alone on addresses that serve no node ports",
        ),
        (
            is_userspace && is_about_the_source && ours.endpoints().iter().all(|to| ours.masquerades(to)),
            "endpoints see the node's address",
        ),
        (is_userspace && refuses_the_node, "an address that is local here, and forwarded in the reference"),
        (refuses_the_node, "the node itself is told that there is no endpoint"),
        (
            is_userspace && goes(Verdict::Drop, Verdict::Reject) && theirs.protocol == Transport::Tcp,
            "reset where the reference drops",
        ),
        (
            is_external_local && is_dropped && is_served,
            "external policy Local without local endpoints falls back to all",
        ),
        (
            is_external_local && was_served && is_served,
            "external policy Local gives pods and the node what others get, with their source",
        ),
        (
            is_internal_local && goes(Verdict::Drop, Verdict::Reject),
            "internal policy Local without local endpoints rejects",
        ),
        (
            is_ipvs && goes(Verdict::Reject, Verdict::Drop) && via("loadBalancerIP"),
            "source ranges apply before missing endpoints",
        ),
        (
            is_ipvs && is_dropped && theirs.is_nodes() && via("loadBalancerIP"),
            "source ranges do not apply to the node's own address",
        ),
        (!is_userspace && is_remote_hairpin, "an endpoint on another node that reaches itself here is not masqueraded"),
    ];
    names.into_iter().find(|(holds, _)| *holds && mode != Kind::Iptables).map(|(_, name)| name)
}

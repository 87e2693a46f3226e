//! Decides what happens to the first packet of a connection, from Frontends, without a kernel.
//!
//! Assumes a node that has programmed everything; this node's kernel is not read.

use bitflags::bitflags;
use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use super::sharing::weight_of;
use super::{
    Desired, Frontend, NO_ROOM_TO_STAY, NodeFacts, PodTraffic, Port, TOO_MANY_TO_STAY, compile_from, why_left_out,
};
use crate::config::LocalTraffic;
use crate::net::{EndpointKey, FrontendKey, Network, Protocol};
use crate::snapshot::{Balancing, ObjectKey, Roles, Sharing, Store, TrafficPolicy};

bitflags! {
    /// How modes differ in handling packets; [`inspect::trace`](crate::inspect::trace) has the rules of each.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct PacketRules: u16 {
        /// Node ports are served on IPv4 loopback addresses.
        const LOCALHOST_NODE_PORTS = 1;
        /// With external policy `Local`, this node and its pods get the endpoints of all nodes.
        const SPLITS_LOCAL = 1 << 1;
        /// The addresses of Services are local to this node.
        const OWNS_ADDRESSES = 1 << 2;
        /// A remote endpoint that reaches itself is masqueraded too.
        const REMOTE_HAIRPINS = 1 << 3;
        /// Node ports without endpoints are refused on every address of this node, even where they are not served.
        const REFUSES_ON_EVERY_ADDRESS = 1 << 4;
        /// This node itself, not only other clients, is refused by an address elsewhere without endpoints.
        const REFUSES_NODE = 1 << 5;
        /// Source ranges count even without an endpoint.
        const RANGES_FIRST = 1 << 6;
        /// Source ranges do not apply to this node if it sends from its own address rather than the Service's.
        const TRUSTS_NODE = 1 << 7;
        /// Clients are refused if only other nodes have endpoints; otherwise their packets are dropped.
        const NEVER_DROPS = 1 << 8;
        /// Connections end on this node, and new ones are opened to the endpoints. SCTP is not served.
        const RELAYS = 1 << 9;
        /// Unused ports of cluster IPs are refused.
        const CLOSES_CLUSTER_IPS = 1 << 10;
        /// The same for all addresses of Services that are not on another interface.
        const CLOSES_ADDRESSES = 1 << 11;
        /// Like `SPLITS_LOCAL`, but only without session affinity ([`Frontend::can_split`]); clients inside are
        /// masqueraded.
        const SPLITS_LOCAL_BY_MARK = 1 << 12;
        /// An IPVS scheduler chooses, and hairpins are detected by protocol, address and port.
        const BALANCES = 1 << 13;
        /// At an interface's address, pods of other nodes are clients outside ([`NodeFacts::other_pods`]).
        const OTHER_PODS_ARE_OUTSIDE = 1 << 14;
    }
}

/// How a mode handles packets.
#[derive(Default)]
pub(crate) struct Treatment {
    /// The differences between modes.
    pub rules: PacketRules,
    /// Networks of which all addresses are this node's own: ports that no Service has are refused.
    pub closed: BTreeSet<Network>,
    /// Addresses of Services become this node's own by routes, which decide the source address of programs on this
    /// node. Otherwise they connect from the Service's address.
    pub by_routes: bool,
}

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Packet {
    /// Source address.
    pub source: IpAddr,
    /// Destination.
    pub to: FrontendKey,
    /// Whether a program of this node sent the packet, rather than a pod with its own network or a client outside.
    pub from_node: bool,
    /// The input device, for `detectLocalMode` by devices; `None`: some other.
    pub(crate) device: Option<Box<str>>,
}

impl Packet {
    /// A packet that arrives at this node.
    pub fn new(source: IpAddr, to: FrontendKey) -> Self {
        Packet { source, to, from_node: false, device: None }
    }

    /// A packet that this node sends.
    pub fn from_node(source: IpAddr, to: FrontendKey) -> Self {
        Packet { source, to, from_node: true, device: None }
    }

    /// Sets the input device.
    #[must_use]
    pub fn by(mut self, device: &str) -> Self {
        self.device = Some(device.into());
        self
    }

    fn is_this_node(&self, facts: &NodeFacts, rules: PacketRules) -> bool {
        is_here(facts, self.source) || (rules.contains(PacketRules::OWNS_ADDRESSES) && self.source == self.to.address)
    }

    /// Whether it comes from this node or from a pod, which get the endpoints of all nodes if a policy `Local` is
    /// split.
    pub(crate) fn is_inside(&self, facts: &NodeFacts, rules: PacketRules) -> bool {
        let is_outside = self.counts_as_outside(facts, rules) || self.is_of_unseen_device(facts, rules);
        self.is_this_node(facts, rules) || (self.is_pods(facts) == Some(true) && !is_outside)
    }

    /// Whether only the device would tell that it comes from a pod, which a socket does not show.
    fn is_of_unseen_device(&self, facts: &NodeFacts, rules: PacketRules) -> bool {
        let by_device =
            matches!(PodTraffic::from_facts(facts, self.to.family()), PodTraffic::Interface(_) | PodTraffic::Prefix(_));
        rules.contains(PacketRules::RELAYS) && by_device && self.is_pods(facts) == Some(true)
    }

    /// Whether it comes from a pod of another node, which counts as a client outside.
    fn counts_as_outside(&self, facts: &NodeFacts, rules: PacketRules) -> bool {
        rules.contains(PacketRules::OTHER_PODS_ARE_OUTSIDE)
            && is_here(facts, self.to.address)
            && self.is_other_pods(facts) == Some(true)
    }

    /// Whether it comes from a pod of another node; `None`: from a pod on an unknown node.
    fn is_other_pods(&self, facts: &NodeFacts) -> Option<bool> {
        match &facts.config().local_traffic {
            LocalTraffic::ClusterCidrs(_) if self.is_pods(facts) == Some(true) => {
                facts.other_pods(self.to.family()).map(|(_, own)| !own.contains(&self.source))
            }
            _ => Some(false),
        }
    }

    /// Whether it comes from a pod, if that can be determined.
    fn is_pods(&self, facts: &NodeFacts) -> Option<bool> {
        let device = self.device.as_deref();
        match PodTraffic::from_facts(facts, self.to.family()) {
            PodTraffic::Unknown => None,
            PodTraffic::Network(network) => Some(network.contains(&self.source)),
            PodTraffic::Interface(name) => Some(device == Some(name.as_str())),
            PodTraffic::Prefix(name) => Some(device.is_some_and(|device| device.starts_with(name.as_str()))),
        }
    }
}

fn is_here(facts: &NodeFacts, address: IpAddr) -> bool {
    address.is_loopback() || facts.is_on_interface(address)
}

/// An endpoint that a packet may reach.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Reached {
    /// The endpoint.
    pub endpoint: EndpointKey,
    /// Whether the endpoint sees an address of this node as the source.
    pub masqueraded: bool,
    /// Weight of the endpoint, from 1; 1 if weights are not used.
    pub weight: u16,
}

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// No Service has the destination: the packet continues to it.
    LeftAlone,
    /// The packet is dropped, and the client waits until it times out.
    Dropped,
    /// The packet is refused: the client is notified at once.
    Rejected,
    /// The packet goes to one of these endpoints; sorted, never empty.
    Endpoints(Vec<Reached>),
}

/// `left alone`, `dropped`, `rejected`, or the endpoints.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::LeftAlone => f.write_str("left alone"),
            Verdict::Dropped => f.write_str("dropped"),
            Verdict::Rejected => f.write_str("rejected"),
            Verdict::Endpoints(reached) => {
                for (index, one) in reached.iter().enumerate() {
                    let between = if index == 0 { "" } else { " or " };
                    let source = if one.masqueraded { "masqueraded" } else { "source kept" };
                    write!(f, "{between}{} ({source}", one.endpoint)?;
                    if one.weight == 1 {
                        f.write_str(")")?;
                    } else {
                        write!(f, ", weight {})", one.weight)?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// What happens to a packet, and why.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Trace {
    /// The reasons, one sentence each, in the order in which they apply.
    pub steps: Vec<String>,
    /// The outcome.
    pub verdict: Verdict,
    /// The Service concerned.
    pub service: Option<ObjectKey>,
    /// Seconds for which later connections of this client go to the same endpoint; `None` without session affinity.
    pub affinity_secs: Option<u32>,
    /// How packets reach endpoints that reply to the client directly: `direct-route`, `ipip`
    /// ([`Balancing::forwarding_name`]).
    pub forwarding: Option<String>,
}

/// Determines what happens to a packet in a mode with these rules.
///
/// O(endpoints of the Frontend); O(Services) for an address and port without a Frontend.
pub(crate) fn trace(
    store: &Store,
    desired: &Desired,
    facts: &NodeFacts,
    packet: &Packet,
    treatment: &Treatment,
) -> Trace {
    let mut tracer = Tracer { store, desired, facts, packet, treatment, steps: Vec::new() };
    let frontend = desired.frontend(&packet.to).filter(|_| !tracer.is_left_to_others());
    let (verdict, service, affinity_secs) = match frontend {
        Some(frontend) => {
            let owner = desired.owner(&packet.to).cloned();
            tracer.describe_frontend(frontend, owner.as_ref());
            (tracer.at(frontend), owner, frontend.affinity_secs)
        }
        None => tracer.elsewhere(),
    };
    let affinity_secs = affinity_secs.filter(|_| matches!(verdict, Verdict::Endpoints(_)));
    let refused = service.as_ref().and_then(|key| desired.compiled(key)).map(|compiled| &compiled.extras().refused);
    let has_no_room = desired.without_affinity.contains(&packet.to);
    if has_no_room {
        tracer.step(format!("Session affinity: {NO_ROOM_TO_STAY}."));
    } else if refused.is_some_and(|all| all.iter().any(|one| one.reason == TOO_MANY_TO_STAY)) {
        tracer.step(format!("Session affinity: {TOO_MANY_TO_STAY}."));
    }
    let affinity_secs = affinity_secs.filter(|_| !has_no_room);
    if let Some(secs) = affinity_secs {
        tracer.step(format!("Session affinity: for {secs} s this client stays with the endpoint that it gets."));
    }
    let reached = frontend.filter(|_| matches!(verdict, Verdict::Endpoints(_)));
    if let Some(frontend) = reached {
        tracer.details(frontend);
    }
    let forwarding = reached.and_then(|frontend| tracer.forwarding(frontend));
    Trace { steps: tracer.steps, verdict, service, affinity_secs, forwarding }
}

struct Tracer<'a> {
    store: &'a Store,
    desired: &'a Desired,
    facts: &'a NodeFacts,
    packet: &'a Packet,
    treatment: &'a Treatment,
    steps: Vec<String>,
}

impl Tracer<'_> {
    fn step(&mut self, text: impl Into<String>) {
        self.steps.push(text.into());
    }

    fn has(&self, rules: PacketRules) -> bool {
        self.treatment.rules.contains(rules)
    }

    /// The node port of a Service port, at an address without a Frontend.
    fn of_node_port(&self, port: &Port) -> Frontend {
        Frontend {
            key: self.packet.to,
            roles: Roles::NODE_PORT,
            policy: port.external_policy,
            cluster: port.cluster.clone(),
            local: port.local.clone(),
            unselected: None,
            falls_back: false,
            affinity_secs: port.affinity_secs,
            balancing: None,
            weights: None,
            returns_directly: false,
            on_interface: true,
            source_ranges: None,
            node_may_use: false,
            port: None,
        }
    }

    fn weight(&self, frontend: &Frontend, endpoint: &EndpointKey) -> u16 {
        let weight = weight_of(frontend.weights.as_deref().unwrap_or_default(), endpoint);
        let balancing = frontend.balancing.as_deref();
        let counts = self.balances() || balancing.is_none_or(Balancing::knows_weights);
        if counts { weight } else { weight.min(1) }
    }

    fn balances(&self) -> bool {
        self.has(PacketRules::BALANCES)
    }

    fn returns_directly(&self, frontend: &Frontend) -> bool {
        self.balances() && frontend.returns_directly
    }

    fn forwarding(&self, frontend: &Frontend) -> Option<String> {
        frontend.balancing.as_ref().filter(|_| self.returns_directly(frontend))?.forwarding_name()
    }

    fn is_left_to_others(&self) -> bool {
        self.has(PacketRules::RELAYS) && self.packet.to.protocol == Protocol::Sctp
    }

    fn describe_frontend(&mut self, frontend: &Frontend, owner: Option<&ObjectKey>) {
        let names = [
            (Roles::CLUSTER_IP, "cluster IP"),
            (Roles::EXTERNAL_IP, "external IP"),
            (Roles::LOAD_BALANCER, "load balancer's address"),
            (Roles::NODE_PORT, "node port"),
        ];
        let kinds: Vec<&str> =
            names.into_iter().filter(|(role, _)| frontend.roles.contains(*role)).map(|(_, name)| name).collect();
        let owner = owner.map(ToString::to_string).unwrap_or_default();
        self.step(format!("{} is a Frontend of Service {owner}: {}.", frontend.key, kinds.join(" and ")));
    }

    /// Decides about a packet to an address and port without a Frontend.
    fn elsewhere(&mut self) -> (Verdict, Option<ObjectKey>, Option<u32>) {
        let to = self.packet.to;
        if self.is_left_to_others() {
            self.step("SCTP is not served in this mode: a program of this node may answer.");
            return (Verdict::LeftAlone, None, None);
        }
        if is_here(self.facts, to.address)
            && let Some((service, port)) = self.node_port()
        {
            if to.address.is_loopback() && to.address.is_ipv4() && self.has(PacketRules::LOCALHOST_NODE_PORTS) {
                self.step(format!("{to} is the node port of {} on a loopback address.", port.name));
                return (self.at(&self.of_node_port(&port)), Some(service), port.affinity_secs);
            }
            self.step(format!("{} is the node port of {}, which is not served on {}.", to.port, port.name, to.address));
            let frontend = self.of_node_port(&port);
            if frontend.endpoints().is_empty() && self.has(PacketRules::REFUSES_ON_EVERY_ADDRESS) {
                self.step("This mode refuses node ports without endpoints on every address of this node.");
                return (self.nowhere(&frontend), Some(service), None);
            }
        }
        (self.unowned(), None, None)
    }

    fn node_port(&self) -> Option<(ObjectKey, Arc<Port>)> {
        let FrontendKey { protocol, port: number, .. } = self.packet.to;
        let has_it = |service: &&crate::snapshot::Service| {
            service.ports.iter().any(|port| port.protocol == protocol && port.node_port == Some(number))
        };
        let services = self.store.services().filter(has_it);
        let service = services.min_by(|a, b| (a.created, &a.key).cmp(&(b.created, &b.key)))?;
        let compiled = compile_from(self.store, &service.key, self.facts, true)?;
        let mut ports = compiled.ports.into_iter();
        let port = ports.find(|port| {
            (port.protocol, port.family, port.node_port) == (protocol, self.packet.to.family(), Some(number))
        })?;
        Some((service.key.clone(), port))
    }

    fn unowned(&mut self) -> Verdict {
        let to = self.packet.to;
        if let Some(why) = why_left_out(self.store, self.facts, &to) {
            self.step(format!("{why}."));
        }
        let is_closed =
            self.desired.frontends().filter(|frontend| frontend.key.address == to.address).any(|frontend| {
                self.has(PacketRules::CLOSES_ADDRESSES) && frontend.is_virtual()
                    || self.has(PacketRules::CLOSES_CLUSTER_IPS) && frontend.roles.contains(Roles::CLUSTER_IP)
            });
        if is_closed {
            self.step(format!(
                "{} is a Service's address, and no Service has {} {}.",
                to.address, to.protocol, to.port
            ));
            return Verdict::Rejected;
        }
        if let Some(network) = self.treatment.closed.iter().find(|network| network.contains(&to.address)) {
            self.step(format!(
                "No Service has {to}, and {} is in {network}, whose addresses are all this node's: what no Service serves there is \
                 refused.",
                to.address
            ));
            return Verdict::Rejected;
        }
        self.step(format!("No Service has {to}."));
        Verdict::LeftAlone
    }

    /// Decides about a packet to an address and port that is served.
    fn at(&mut self, frontend: &Frontend) -> Verdict {
        if let Some(ranges) = frontend.source_ranges.as_deref()
            && (takes_connections(frontend) || self.has(PacketRules::RANGES_FIRST))
            && !self.is_admitted(frontend, ranges)
        {
            return self.turned_away();
        }
        let (list, is_inside) = self.choose(frontend);
        let list = self.weighed(frontend, list);
        if list.is_empty() {
            return self.nowhere(frontend);
        }
        let list = self.without_loops(list);
        if list.is_empty() {
            return self.turned_away();
        }
        let masquerade = self.masquerades(frontend, is_inside);
        let is_external_local = !is_internal(frontend) && frontend.policy == TrafficPolicy::Local;
        let is_kept = !masquerade && is_external_local && !self.returns_directly(frontend);
        if is_kept && list.iter().any(|(endpoint, _)| !frontend.local.contains(endpoint)) {
            self.past_this_node();
        }
        let is_hairpin = |endpoint: &EndpointKey| {
            !self.returns_directly(frontend) && endpoint.address == self.packet.source && self.is_hairpin(endpoint)
        };
        let reached: Vec<Reached> = list
            .iter()
            .map(|(endpoint, weight)| Reached {
                endpoint: *endpoint,
                masqueraded: masquerade || is_hairpin(endpoint),
                weight: *weight,
            })
            .collect();
        if !masquerade && reached.iter().any(|one| one.masqueraded) {
            self.step("The client is itself one of the endpoints: when it gets itself, its source is rewritten.");
        }
        Verdict::Endpoints(reached)
    }

    /// The endpoints that accept new connections, with their weights.
    fn weighed(&mut self, frontend: &Frontend, list: &[EndpointKey]) -> Vec<(EndpointKey, u16)> {
        let most = if self.has(PacketRules::RELAYS) { 1 } else { u16::MAX };
        let all = list.iter().map(|endpoint| (*endpoint, self.weight(frontend, endpoint).min(most)));
        let (rest, taking): (Vec<_>, Vec<_>) = all.partition(|(_, weight)| *weight == 0);
        if !rest.is_empty() {
            let rest: Vec<String> = rest.iter().map(|(endpoint, _)| endpoint.to_string()).collect();
            self.step(format!("Weight 0, so no new connections: {}.", rest.join(", ")));
        }
        if taking.iter().any(|(_, weight)| *weight != 1) {
            let shown: Vec<String> = taking.iter().map(|(endpoint, weight)| format!("{endpoint} {weight}")).collect();
            let count = if self.balances() { "Weights, for schedulers that share out by weight" } else { "Weights" };
            self.step(format!("{count}: {}.", shown.join(", ")));
        }
        taking
    }

    /// The endpoints without those on which the relaying process itself listens.
    fn without_loops(&mut self, list: Vec<(EndpointKey, u16)>) -> Vec<(EndpointKey, u16)> {
        if !self.has(PacketRules::RELAYS) {
            return list;
        }
        let (protocol, desired) = (self.packet.to.protocol, self.desired);
        let (loops, rest): (Vec<_>, Vec<_>) =
            list.into_iter().partition(|(endpoint, _)| desired.frontend_at(protocol, endpoint).is_some());
        for (endpoint, _) in loops {
            self.step(format!("{endpoint} gets nothing: this process listens there itself."));
        }
        rest
    }

    fn details(&mut self, frontend: &Frontend) {
        if self.has(PacketRules::RELAYS) {
            return;
        }
        if let (false, Sharing::ByClient { port }) = (self.balances(), frontend.sharing()) {
            let of = if port { "address and port" } else { "address" };
            self.step(format!("The client's {of} decides which: the same one on every node with the same endpoints."));
        }
        if let Some(most) = frontend.balancing.as_ref().and_then(|asked| asked.max_connections) {
            self.step(format!("An endpoint with {most} connections gets no new ones."));
        }
    }

    fn is_admitted(&mut self, frontend: &Frontend, ranges: &[Network]) -> bool {
        let source = self.packet.source;
        let is_itself = source == self.packet.to.address;
        // Rules match the sender, not the address.
        let is_of_node = is_itself || (self.packet.from_node && self.treatment.by_routes);
        if self.packet.from_node && !self.treatment.by_routes && self.has(PacketRules::TRUSTS_NODE) && !is_itself {
            self.step("Source ranges do not count for this node's own address.");
            return true;
        }
        let admitted = ranges.iter().any(|range| range.contains(&source)) || (is_of_node && frontend.node_may_use);
        let list: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        let what = if admitted { "include" } else { "exclude" };
        self.step(format!("Source ranges ({}) {what} {source}.", list.join(", ")));
        admitted
    }

    fn turned_away(&mut self) -> Verdict {
        if self.has(PacketRules::RELAYS) && self.packet.to.protocol == Protocol::Tcp {
            self.step("Its connection is reset.");
            return Verdict::Rejected;
        }
        Verdict::Dropped
    }

    /// Whether clients outside and inside get different endpoints if the policy is `Local`.
    fn splits(&self, frontend: &Frontend) -> bool {
        self.has(PacketRules::SPLITS_LOCAL) || (self.has(PacketRules::SPLITS_LOCAL_BY_MARK) && frontend.can_split())
    }

    /// The endpoints by policy, and whether the client counts as inside if the policy is split.
    fn choose<'p>(&mut self, frontend: &'p Frontend) -> (&'p [EndpointKey], bool) {
        if frontend.policy == TrafficPolicy::Cluster {
            self.step(format!("Traffic policy Cluster: {}.", everywhere(&frontend.cluster)));
            return (&frontend.cluster, false);
        }
        let is_here_only = self.has(PacketRules::SPLITS_LOCAL)
            && frontend.takes(&frontend.local)
            && !frontend.takes(&frontend.cluster);
        if !is_internal(frontend)
            && self.splits(frontend)
            && self.packet.is_inside(self.facts, self.treatment.rules)
            && !is_here_only
        {
            let who = if self.is_this_node() { "this node" } else { "a pod" };
            self.step(format!(
                "Traffic policy Local applies to clients outside; {who} gets {}.",
                everywhere(&frontend.cluster)
            ));
            return (&frontend.cluster, true);
        }
        if !is_internal(frontend)
            && self.splits(frontend)
            && self.packet.counts_as_outside(self.facts, self.treatment.rules)
        {
            self.step("It comes from a pod of another node, which counts as a client outside.");
        }
        if !is_internal(frontend) && self.packet.is_of_unseen_device(self.facts, self.treatment.rules) {
            self.step("This mode does not see devices, so a pod counts as a client outside.");
        }
        if frontend.local.is_empty() && frontend.falls_back && !self.splits(frontend) {
            self.step(format!(
                "Traffic policy Local, and none on this node: falls back to {}.",
                everywhere(&frontend.cluster)
            ));
            return (&frontend.cluster, false);
        }
        self.step(format!("Traffic policy Local: {} on this node.", counted(&frontend.local)));
        (&frontend.local, false)
    }

    /// Decides about a packet without an endpoint.
    fn nowhere(&mut self, frontend: &Frontend) -> Verdict {
        if !is_internal(frontend)
            && self.packet.from_node
            && !self.has(PacketRules::REFUSES_NODE)
            && !is_here(self.facts, self.packet.to.address)
        {
            self.step(
                "This node's own packets to addresses elsewhere are not refused in this mode: it leaves the node.",
            );
            return Verdict::LeftAlone;
        }
        let only_elsewhere = takes_connections(frontend) && frontend.policy == TrafficPolicy::Local;
        if !only_elsewhere {
            self.step(if frontend.has_endpoints() {
                "No endpoint takes new connections."
            } else {
                "There is no endpoint."
            });
            return Verdict::Rejected;
        }
        self.step(if frontend.local.is_empty() {
            "There are endpoints on other nodes only."
        } else {
            "Only endpoints on other nodes take new connections."
        });
        if self.has(PacketRules::NEVER_DROPS) { Verdict::Rejected } else { self.turned_away() }
    }

    fn is_this_node(&self) -> bool {
        self.packet.is_this_node(self.facts, self.treatment.rules)
    }

    /// Whether every endpoint sees an address of this node as the source.
    fn masquerades(&mut self, frontend: &Frontend, is_inside: bool) -> bool {
        if self.has(PacketRules::RELAYS) {
            self.step("This node connects to the endpoint itself, from its own address.");
            return true;
        }
        if let Some(method) = self.forwarding(frontend) {
            self.step(format!("Forwarding {method}: the source stays, and the endpoint answers the client by itself."));
            if self.is_this_node() {
                self.step(
                    "This node has the address too, so answers do not return: its programs have to use the cluster IP.",
                );
            }
            return false;
        }
        let (masquerades, why) = match (is_internal(frontend), frontend.policy) {
            (true, _) if self.facts.config().masquerade_all => (true, "masqueradeAll"),
            (true, _) => match self.packet.is_pods(self.facts) {
                Some(true) => (false, "it comes from a pod"),
                Some(false) => (true, "it does not come from a pod"),
                None if self.treatment.by_routes && self.packet.from_node => (true, "this node sends it"),
                None if !self.treatment.by_routes && self.has_cluster_ip_as_source() => {
                    (true, "its source is a cluster IP")
                }
                None => (false, "how to recognize pods is not configured"),
            },
            (false, TrafficPolicy::Cluster) => {
                (true, "its endpoint may be on another node, and answers have to come back here")
            }
            (false, TrafficPolicy::Local) if is_inside && self.is_this_node() => (true, "this node sends it"),
            (false, TrafficPolicy::Local) if is_inside && self.has(PacketRules::SPLITS_LOCAL_BY_MARK) => {
                (true, "its endpoint may be on another node, and answers have to come back here")
            }
            (false, TrafficPolicy::Local) => (false, "traffic policy Local keeps it"),
        };
        let what = if masquerades { "becomes an address of this node" } else { "stays" };
        self.step(format!("The source {what}: {why}."));
        masquerades
    }

    /// Explains what happens to replies from endpoints on other nodes to a pod whose source they see.
    fn past_this_node(&mut self) {
        match self.packet.is_other_pods(self.facts) {
            Some(false) => {}
            Some(true) => self.step(
                "It comes from a pod of another node: endpoints on a third node answer it directly, from their own address, and the \
                 connection fails.",
            ),
            None => self.step(
                "If the pod is on another node, endpoints on a third one answer it directly, from their own address, and the connection \
                 fails.",
            ),
        }
    }

    /// Whether a program of this node has a Service's address as its source.
    fn has_cluster_ip_as_source(&self) -> bool {
        let as_source = FrontendKey { address: self.packet.source, ..self.packet.to };
        let frontend = self.desired.frontend(&as_source).filter(|_| self.has(PacketRules::OWNS_ADDRESSES));
        frontend.is_some_and(|frontend| frontend.roles.contains(Roles::CLUSTER_IP))
    }

    /// Whether the endpoint would receive its own packet, which must be masqueraded.
    fn is_hairpin(&self, endpoint: &EndpointKey) -> bool {
        // IPVS mode detects hairpins by protocol, address and port, other modes by address: one may be here for one
        // Service and not for another.
        let is_whole = self.has(PacketRules::BALANCES);
        let is_local = || {
            let mut hairpins = self.desired.all_compiled().flat_map(|compiled| &compiled.extras().hairpins);
            hairpins.any(|(protocol, local)| {
                let is_same = *protocol == self.packet.to.protocol && local.port == endpoint.port;
                local.address == endpoint.address && (is_same || !is_whole)
            })
        };
        self.has(PacketRules::REMOTE_HAIRPINS) || is_local()
    }
}

fn takes_connections(frontend: &Frontend) -> bool {
    frontend.takes(&frontend.cluster) || frontend.takes(&frontend.local)
}

fn is_internal(frontend: &Frontend) -> bool {
    frontend.roles.contains(Roles::CLUSTER_IP) && frontend.source_ranges.is_none()
}

fn counted(endpoints: &[EndpointKey]) -> String {
    match endpoints.len() {
        0 => "no endpoint".to_owned(),
        1 => "the only endpoint".to_owned(),
        count => format!("any of {count} endpoints"),
    }
}

fn everywhere(endpoints: &[EndpointKey]) -> String {
    if endpoints.is_empty() {
        "no endpoint on any node".to_owned()
    } else {
        format!("{} on all nodes", counted(endpoints))
    }
}

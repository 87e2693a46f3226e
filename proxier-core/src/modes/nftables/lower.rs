//! A Frontend as elements of the table's sets and maps.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nftables::{Element, ElementData, ElementKey, Name, Value, Verdict};

use super::layout::chain;
use super::pick::{Affinity, Marks, Pick, SharedChain, Split, place, ticket};
use super::slots::{Slots, draws, is_sticky};
use crate::net::{EndpointKey, Family, FrontendKey, Network, Protocol};
use crate::service::{Frontend, Roles};
use crate::snapshot::TrafficPolicy;

/// A set or map of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName {
    /// Frontend → the chain that chooses an endpoint.
    Services,
    /// Frontend, slot → endpoint.
    Endpoints,
    /// Frontend with affinity, slot and draw: which draw of a new client means which slot.
    Draws,
    /// Frontend without endpoints → what becomes of its packets.
    NoEndpoints,
    /// Frontends with source ranges.
    Guarded,
    /// Frontend with source ranges, source.
    Allowed,
    /// Cluster IPs: their other ports are rejected.
    ClusterIps,
    /// Endpoint on this node, twice: its connection to itself.
    Hairpins,
}

impl SetName {
    /// All sets and maps.
    pub const ALL: [SetName; 8] = [
        SetName::Services,
        SetName::Endpoints,
        SetName::Draws,
        SetName::NoEndpoints,
        SetName::Guarded,
        SetName::Allowed,
        SetName::ClusterIps,
        SetName::Hairpins,
    ];

    /// The name in the kernel.
    pub fn as_str(self) -> &'static str {
        match self {
            SetName::Services => "services",
            SetName::Endpoints => "endpoints",
            SetName::Draws => "draws",
            SetName::NoEndpoints => "no-endpoints",
            SetName::Guarded => "guarded",
            SetName::Allowed => "allowed",
            SetName::ClusterIps => "cluster-ips",
            SetName::Hairpins => "hairpins",
        }
    }
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Item {
    /// Set or map of the element.
    pub set: SetName,
    /// Key of the element.
    pub key: ElementKey,
    /// Value, in a map.
    pub data: Option<ElementData>,
}

impl Item {
    pub(super) fn new(set: SetName, key: Value) -> Self {
        Item { set, key: ElementKey::Value(key), data: None }
    }

    fn goes_to(self, chain: Name) -> Self {
        Item { data: Some(ElementData::Verdict(Verdict::Goto(chain))), ..self }
    }

    /// The element in the kernel's form.
    pub(super) fn into_element(self) -> Element {
        let mut element = Element::new(self.key);
        element.data = self.data;
        element
    }
}

/// The number of a transport protocol.
fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
        Protocol::Sctp => 132,
    }
}

/// Fields one behind the other. Never too long: the longest are two IPv6 addresses, a protocol and two ports.
pub(super) fn concat(fields: &[Value]) -> Value {
    Value::concat(fields).unwrap_or(Value::EMPTY)
}

fn fields(key: &FrontendKey) -> [Value; 3] {
    [key.address.into(), Value::byte(number(key.protocol)), Value::port(key.port)]
}

fn with(key: &FrontendKey, more: &[Value]) -> Value {
    let [address, protocol, port] = fields(key);
    match more {
        [] => concat(&[address, protocol, port]),
        [one] => concat(&[address, protocol, port, one.clone()]),
        more => concat(&[&[address, protocol, port], more].concat()),
    }
}

fn endpoint(key: &EndpointKey) -> [Value; 2] {
    [key.address.into(), Value::port(key.port)]
}

/// Fate of connections to a Frontend without an endpoint to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nowhere {
    /// No endpoint at all: clients are refused.
    Reject,
    /// Endpoints on other nodes only: a load balancer shall try those.
    Drop,
}

/// The chains for a Frontend's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Treatment {
    /// Chain for all clients.
    everybody: Option<Pick>,
    /// Chain for the node and its pods, where the policy is `Local`.
    anywhere: Option<Pick>,
    /// Chain for clients outside, where the policy is `Local`.
    only_here: Option<Pick>,
    nowhere: Option<Nowhere>,
}

impl Treatment {
    pub(super) fn of(frontend: &Frontend, slots: &Slots) -> Self {
        let pick = |marks, is_local: bool| {
            let endpoints = if is_local { &frontend.local } else { &frontend.cluster };
            let count = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
            let secs = frontend.affinity_secs.filter(|_| is_sticky(frontend, count));
            let affinity = secs.map(|secs| Affinity { secs, width: slots.width(frontend, is_local) });
            let most = if affinity.is_some() { count } else { slots.most(frontend, is_local) };
            (count > 0).then_some(Pick { marks, is_local, most, affinity })
        };
        let is_internal = frontend.roles.contains(Roles::CLUSTER_IP);
        let mut treatment = Treatment::default();
        match (is_internal, frontend.policy) {
            (true, policy) => treatment.everybody = pick(Marks::Internal, policy == TrafficPolicy::Local),
            (false, TrafficPolicy::Cluster) => treatment.everybody = pick(Marks::Everything, false),
            (false, _) => {
                treatment.anywhere = pick(Marks::Nothing, false);
                treatment.only_here = pick(Marks::Nothing, true);
            }
        }
        let is_empty = frontend.cluster.is_empty() && (frontend.local.is_empty() || !treatment.uses_local());
        if is_empty {
            treatment.nowhere = Some(Nowhere::Reject);
        } else if treatment.everybody.is_none() && treatment.only_here.is_none() {
            treatment.nowhere = Some(Nowhere::Drop);
        }
        treatment
    }

    fn uses_local(&self) -> bool {
        self.picks().any(|pick| pick.is_local)
    }

    /// The chains it needs, each once.
    pub(super) fn chains(&self) -> BTreeSet<SharedChain> {
        let slots = self.picks().flat_map(|pick| pick.slots()).map(SharedChain::Slot);
        self.first().into_iter().chain(self.picks().map(SharedChain::Pick)).chain(slots).collect()
    }

    /// The chains that choose its endpoints.
    pub(super) fn picks(&self) -> impl Iterator<Item = Pick> {
        [self.everybody, self.anywhere, self.only_here].into_iter().flatten()
    }

    /// The chain that its connections go to first; `None` when there is no endpoint to choose.
    fn first(&self) -> Option<SharedChain> {
        let Treatment { anywhere, only_here, .. } = *self;
        let is_split = anywhere.is_some() || only_here.is_some();
        let split = is_split.then_some(SharedChain::Split(Split { anywhere, only_here }));
        split.or(self.everybody.map(SharedChain::Pick))
    }
}

/// The elements of a Frontend whose endpoints have these slots, each once.
///
/// ```
/// use proxier_core::config::Config;
/// use proxier_core::modes::nftables::{Slots, lower};
/// use proxier_core::net::EndpointKey;
/// use proxier_core::service::{NodeFacts, compile_frontends};
/// use proxier_core::snapshot::{FrontendSpec, HostAddresses, Node, ObjectKey};
///
/// let endpoints = [7, 8].map(|last| EndpointKey::new([10, 244, 1, last].into(), 8080));
/// let web = FrontendSpec::new("TCP 10.96.0.10:80".parse()?, endpoints);
/// let facts = NodeFacts::new(&Config::default(), &Node::new("node-a"), &HostAddresses::default());
/// let compiled = compile_frontends(&ObjectKey::new("agent", "web"), &[web], &facts, false);
/// // One element that chooses, and one for each endpoint.
/// let sets: Vec<&str> = lower(&compiled.frontends[0], &Slots::default()).iter().map(|item| item.set.as_str()).collect();
/// assert_eq!(sets, ["services", "endpoints", "endpoints"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn lower(frontend: &Frontend, slots: &Slots) -> Vec<Item> {
    let key = &frontend.key;
    let treatment = Treatment::of(frontend, slots);
    let mut items = Vec::new();
    let first = treatment.first();
    items.extend(first.map(|first| Item::new(SetName::Services, with(key, &[])).goes_to(first.name())));
    for pick in treatment.picks() {
        let is_local = pick.is_local;
        for (slot, to) in slots.of(frontend, is_local) {
            let mut item = Item::new(SetName::Endpoints, with(key, &[Value::mark(place(is_local, slot))]));
            item.data = Some(ElementData::Value(concat(&endpoint(to))));
            items.push(item);
        }
        if pick.affinity.is_some() {
            let taken = slots.of(frontend, is_local).map(|(slot, _)| slot).collect();
            items.extend(draws(&taken).map(|(draw, slot)| {
                Item::new(SetName::Draws, with(key, &[Value::mark(ticket(is_local, slot, draw))]))
            }));
        }
    }
    if let Some(nowhere) = treatment.nowhere {
        let item = Item::new(SetName::NoEndpoints, with(key, &[]));
        items.push(match nowhere {
            Nowhere::Reject => item.goes_to(chain(super::layout::REJECT)),
            Nowhere::Drop => Item { data: Some(ElementData::Verdict(Verdict::Drop)), ..item },
        });
    }
    // Without any endpoint all clients are rejected, from any source.
    if let Some(ranges) = frontend.source_ranges.as_deref().filter(|_| treatment.nowhere != Some(Nowhere::Reject)) {
        items.push(Item::new(SetName::Guarded, with(key, &[])));
        items.extend(allowed(frontend, ranges));
    }
    items
}

/// The sources that may connect, without overlaps: the kernel takes none.
fn allowed(frontend: &Frontend, ranges: &[Network]) -> impl Iterator<Item = Item> {
    let key = frontend.key;
    let mut networks = ranges.to_vec();
    if frontend.node_may_use {
        // Where the address is local, it is the source of this node's own connections.
        networks.push(Network::from(key.address));
    }
    let of_family = networks.into_iter().filter(|range| Family::of(range.addr()) == key.family()).collect();
    Network::aggregate(&of_family).into_iter().map(move |range| {
        let at = |source: IpAddr| with(&key, &[source.into()]);
        let (first, last) = (range.network(), range.broadcast());
        // As the kernel gives it back.
        let key = if first == last { ElementKey::Value(at(first)) } else { ElementKey::Range(at(first), at(last)) };
        Item { set: SetName::Allowed, key, data: None }
    })
}

//! Converts a Frontend to elements of the table's sets and maps.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;

use nftables::{Element, ElementKey, L4Protocol, Value, Verdict};

use super::pick::{Affinity, Draw, Marks, Pick, SharedChain, Split, slot_number, ticket};
use super::slots::{Slots, by_client};
use crate::modes::localhost_relay::is_relayed;
use crate::modes::shared::nft::name;
use crate::net::{EndpointKey, Family, FrontendKey, Network, Protocol};
use crate::pack::Gather as _;
use crate::service::{Frontend, Roles};
use crate::snapshot::TrafficPolicy;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SetName {
    /// Frontends whose connections go to the chain with the set's name ([`Pick::has_set`]).
    Picked(Pick),
    /// Frontend → the chain that selects an endpoint, for chains without such a set.
    Services,
    /// Frontend, slot → endpoint.
    Endpoints,
    /// Frontend with affinity, slot and draw: which draw of a new client selects which slot.
    Draws,
    /// Frontends without endpoints, where clients are refused.
    Rejected,
    /// Frontends with endpoints on other nodes only: a load balancer should try those.
    Dropped,
    Guarded,
    /// Frontend with source ranges, source.
    Allowed,
    /// Cluster IPs, whose other ports are rejected.
    ClusterIps,
    /// Endpoint on this node, twice: its connection to itself.
    Hairpins,
}

impl SetName {
    /// Of every table.
    pub(crate) const FIXED: [SetName; 9] = [
        SetName::Services,
        SetName::Endpoints,
        SetName::Draws,
        SetName::Rejected,
        SetName::Dropped,
        SetName::Guarded,
        SetName::Allowed,
        SetName::ClusterIps,
        SetName::Hairpins,
    ];

    /// Whether each element sends the connections of a Frontend to an endpoint.
    pub(crate) fn leads_on(self) -> bool {
        matches!(self, SetName::Picked(_) | SetName::Services)
    }

    pub(crate) fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            SetName::Picked(pick) => return Cow::Owned(pick.to_string()),
            SetName::Services => "services",
            SetName::Endpoints => "endpoints",
            SetName::Draws => "draws",
            SetName::Rejected => "rejected",
            SetName::Dropped => "dropped",
            SetName::Guarded => "guarded",
            SetName::Allowed => "allowed",
            SetName::ClusterIps => "cluster-ips",
            SetName::Hairpins => "hairpins",
        })
    }

    pub(crate) fn by_name(name: &str) -> Option<Self> {
        let is_it = |set: &SetName| set.name() == name;
        SetName::FIXED
            .into_iter()
            .find(is_it)
            .or_else(|| Pick::by_name(name).filter(Pick::has_set).map(SetName::Picked))
    }
}

/// An element, and its set or map.
pub(crate) type Item = (SetName, Element);

/// The elements of a set, sorted by key.
pub(super) fn sorted(mut elements: Vec<Element>) -> Vec<Element> {
    elements.sort_unstable_by(|one, other| one.key.cmp(&other.key));
    elements
}

pub(super) fn place(sorted: &[Element], key: &ElementKey) -> Option<usize> {
    sorted.binary_search_by(|element| element.key.cmp(key)).ok()
}

/// Concatenates fields. Never too long: the longest are two IPv6 addresses, a protocol and two ports.
pub(super) fn concat(fields: &[Value]) -> Value {
    Value::concat(fields).unwrap_or(Value::EMPTY)
}

pub(super) fn number(protocol: Protocol) -> L4Protocol {
    match protocol {
        Protocol::Tcp => L4Protocol::TCP,
        Protocol::Udp => L4Protocol::UDP,
        Protocol::Sctp => L4Protocol::SCTP,
    }
}

fn fields(key: &FrontendKey) -> [Value; 3] {
    [key.address.into(), Value::byte(number(key.protocol).0), Value::port(key.port)]
}

pub(super) fn with(key: &FrontendKey, more: &[Value]) -> Value {
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

/// What happens to connections to a Frontend without an endpoint to select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nowhere {
    Reject,
    Drop,
}

/// The chains for a Frontend's connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Treatment {
    /// Chain for all clients.
    everybody: Option<Pick>,
    /// Chain for the node and its pods, if the policy is `Local`.
    anywhere: Option<Pick>,
    /// Chain for clients outside, if the policy is `Local`.
    only_here: Option<Pick>,
    nowhere: Option<Nowhere>,
}

impl Treatment {
    pub(super) fn from_frontend(frontend: &Frontend, slots: &Slots) -> Self {
        if frontend.key.address.is_loopback() {
            // This process listens there for TCP.
            let nowhere = (!is_relayed(&frontend.key)).then_some(Nowhere::Reject);
            return Treatment { nowhere, ..Treatment::default() };
        }
        let pick = |marks, is_local: bool| {
            let slots = slots.of(frontend, is_local);
            let secs = frontend.affinity_secs.filter(|_| slots.is_sticky);
            let sticky = secs.map(|secs| Draw::Sticky(Affinity { secs, width: slots.width() }));
            let draw = by_client(frontend).map(|port| Draw::Client { port }).or(sticky).unwrap_or(Draw::Random);
            let most = match draw {
                Draw::Random => slots.most(),
                Draw::Sticky(_) => slots.draw_count(),
                Draw::Client { .. } => slots.count(),
            };
            (slots.count() > 0).then_some(Pick { marks, is_local, most, draw })
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
        let has = |is_local| slots.of(frontend, is_local).count() > 0;
        let is_empty = !has(false) && (!has(true) || !treatment.uses_local());
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

    pub(super) fn chains(&self) -> BTreeSet<SharedChain> {
        let slots = self.picks().flat_map(|pick| pick.slots()).map(SharedChain::Slot);
        self.first().into_iter().chain(self.picks().map(SharedChain::Pick)).chain(slots).gather()
    }

    pub(super) fn picks(&self) -> impl Iterator<Item = Pick> {
        [self.everybody, self.anywhere, self.only_here].into_iter().flatten()
    }

    /// The chain where its connections go first; `None` without an endpoint to select.
    fn first(&self) -> Option<SharedChain> {
        let Treatment { anywhere, only_here, .. } = *self;
        let is_split = anywhere.is_some() || only_here.is_some();
        let split = is_split.then_some(SharedChain::Split(Split { anywhere, only_here }));
        split.or(self.everybody.map(SharedChain::Pick))
    }
}

/// The elements of a Frontend whose endpoints have these slots, each once.
pub(crate) fn lower(frontend: &Frontend, slots: &Slots) -> Vec<Item> {
    let key = &frontend.key;
    let treatment = Treatment::from_frontend(frontend, slots);
    let mut items = Vec::new();
    let element = |more: &[Value]| Element::value(with(key, more));
    items.extend(treatment.first().map(|first| match first {
        SharedChain::Pick(pick) if pick.has_set() => (SetName::Picked(pick), element(&[])),
        first => (SetName::Services, element(&[]).verdict(Verdict::Goto(name(first)))),
    }));
    for pick in treatment.picks() {
        let (is_local, slots) = (pick.is_local, slots.of(frontend, pick.is_local));
        for (slot, to) in slots.with_endpoints() {
            let slot = element(&[Value::mark(slot_number(is_local, slot))]);
            items.push((SetName::Endpoints, slot.maps_to(concat(&endpoint(to)))));
        }
        if let Draw::Sticky(_) = pick.draw {
            let draw = |(draw, slot)| (SetName::Draws, element(&[Value::mark(ticket(is_local, slot, draw))]));
            items.extend(slots.draws().into_iter().map(draw));
        }
    }
    items.extend(treatment.nowhere.map(|nowhere| match nowhere {
        Nowhere::Reject => (SetName::Rejected, element(&[])),
        Nowhere::Drop => (SetName::Dropped, element(&[])),
    }));
    // Without any endpoint all clients are rejected, from any source.
    if let Some(ranges) = frontend.source_ranges.as_deref().filter(|_| treatment.nowhere != Some(Nowhere::Reject)) {
        items.push((SetName::Guarded, element(&[])));
        items.extend(allowed(frontend, ranges));
    }
    items
}

/// The sources that may connect, without overlaps, which the kernel does not accept.
fn allowed(frontend: &Frontend, ranges: &[Network]) -> impl Iterator<Item = Item> {
    let key = frontend.key;
    let mut networks = ranges.to_vec();
    if frontend.node_may_use {
        // If the address is local, it is the source of this node's own connections.
        networks.push(Network::from(key.address));
    }
    let of_family = networks.into_iter().filter(|range| Family::of(range.addr()) == key.family()).collect();
    Network::aggregate(&of_family).into_iter().map(move |range| {
        let at = |source: IpAddr| with(&key, &[source.into()]);
        (SetName::Allowed, Element::range(at(range.network()), at(range.broadcast())))
    })
}

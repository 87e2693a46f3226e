//! Selects the endpoints of each kind of traffic, and weighs them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::NodeFacts;
use super::sharing::weight_of;
use crate::config::{MayAskFor, Topology};
use crate::net::{EndpointKey, Family, Protocol};
use crate::snapshot::{Balancing, EndpointFlags, EndpointSlice, Service, ServicePort};

/// An endpoint of one Service port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) flags: EndpointFlags,
    pub(super) zones: Option<&'a [Box<str>]>,
}

impl Candidate<'_> {
    pub(super) fn key(&self) -> EndpointKey {
        EndpointKey::new(self.address, self.port)
    }

    fn is(&self, flags: EndpointFlags) -> bool {
        self.flags.contains(flags)
    }

    pub(super) fn is_local(&self) -> bool {
        self.is(EndpointFlags::LOCAL)
    }

    fn is_ready(&self) -> bool {
        self.is(EndpointFlags::READY)
    }

    /// Whether it still answers, even if it gets no new traffic.
    fn is_serving(&self) -> bool {
        self.flags.intersects(EndpointFlags::READY | EndpointFlags::SERVING)
    }

    /// Terminating but still answering: used if all others are worse.
    fn is_last_resort(&self) -> bool {
        self.is(EndpointFlags::SERVING | EndpointFlags::TERMINATING)
    }

    fn is_for_zone(&self, zone: &str) -> bool {
        self.zones.is_some_and(|zones| zones.iter().any(|hinted| **hinted == *zone))
    }
}

/// The endpoints of a Service port, each address and port once, sorted.
///
/// An endpoint that moves between slices is briefly in both. The one that is not terminating wins, then the ready one,
/// the serving one, the local one. Names of slices do not matter.
pub(super) fn gather<'a>(slices: &[&'a EndpointSlice], port: &ServicePort, family: Family) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for slice in slices.iter().filter(|slice| slice.family == family) {
        for number in slice.numbers_of(&port.name, port.protocol) {
            candidates.extend(slice.endpoints.iter().map(|endpoint| Candidate {
                address: endpoint.address,
                port: number,
                flags: endpoint.flags,
                zones: slice.zones_of(endpoint),
            }));
        }
    }
    candidates.sort_by(|a, b| {
        let by_place = (a.address, a.port).cmp(&(b.address, b.port));
        by_place.then_with(|| rank(a.flags).cmp(&rank(b.flags))).then_with(|| a.zones.cmp(&b.zones))
    });
    candidates.dedup_by_key(|candidate| (candidate.address, candidate.port));
    candidates
}

/// Rank of an endpoint among those with its address; the least wins.
fn rank(flags: EndpointFlags) -> impl Ord {
    let lacks = |flag| !flags.contains(flag);
    let state = (lacks(EndpointFlags::READY), lacks(EndpointFlags::SERVING), lacks(EndpointFlags::LOCAL));
    (flags.contains(EndpointFlags::TERMINATING), state)
}

#[derive(Debug)]
pub(super) struct Choice {
    pub(super) cluster: Arc<[EndpointKey]>,
    pub(super) local: Arc<[EndpointKey]>,
    /// Other serving endpoints, if the mode ends connections to removed endpoints: connections to these continue.
    pub(super) unselected: Option<Arc<[EndpointKey]>>,
}

impl Choice {
    pub(super) fn is_elsewhere_only(&self, candidates: &[Candidate<'_>]) -> bool {
        let usable = |candidate: &Candidate<'_>| candidate.is_ready() || candidate.is_last_resort();
        self.local.is_empty() && candidates.iter().any(usable)
    }
}

/// Selects the ready endpoints according to the hints; if there are none, terminating ones that still serve. Traffic
/// that must stay on this node ignores hints. `drains`: the Service has its own drain time.
pub(super) fn choose(
    candidates: &[Candidate<'_>],
    service: &Service,
    protocol: Protocol,
    drains: bool,
    facts: &NodeFacts,
) -> Choice {
    let ready: Vec<&Candidate<'_>> = candidates.iter().filter(|candidate| candidate.is_ready()).collect();
    let near = match facts.config.topology {
        Topology::AnnotatedHints if !service.topology_annotation => None,
        Topology::AnnotatedHints => in_zone(&ready, facts),
        Topology::Hints => on_node(&ready).or_else(|| in_zone(&ready, facts)),
    };
    let cluster = match near {
        Some(near) => keys(near.into_iter()),
        None if !ready.is_empty() => keys(ready.iter().copied()),
        None => keys(candidates.iter().filter(|candidate| candidate.is_last_resort())),
    };
    let local = keys(ready.iter().copied().filter(|candidate| candidate.is_local()));
    let local = if local.is_empty() {
        keys(candidates.iter().filter(|candidate| candidate.is_local() && candidate.is_last_resort()))
    } else {
        local
    };
    let serving = || candidates.iter().filter(|candidate| candidate.is_serving());
    let is_in = |list: &[EndpointKey], key: &EndpointKey| list.binary_search(key).is_ok();
    let mut unselected = Vec::new();
    // Selected endpoints serve, too.
    let ends = match protocol {
        Protocol::Udp => true,
        Protocol::Tcp => drains || facts.ends_connections,
        Protocol::Sctp => false,
    };
    if ends && serving().count() > cluster.len() {
        let rest = serving().map(Candidate::key).filter(|key| !is_in(&cluster, key) && !is_in(&local, key));
        unselected.extend(rest);
    }
    Choice { cluster, local, unselected: (!unselected.is_empty()).then(|| unselected.into()) }
}

/// Endpoints hinted for this node. Only if every ready one has node hints, and some include this node.
fn on_node<'a, 'b>(ready: &[&'b Candidate<'a>]) -> Option<Vec<&'b Candidate<'a>>> {
    let here = keep(ready, |candidate| candidate.is(EndpointFlags::HINTED_HERE));
    let all = ready.iter().all(|candidate| candidate.is(EndpointFlags::NODE_HINTS));
    (all && !here.is_empty()).then_some(here)
}

/// Endpoints hinted for this node's zone. Only if every ready one has zone hints, and some include this zone.
fn in_zone<'a, 'b>(ready: &[&'b Candidate<'a>], facts: &NodeFacts) -> Option<Vec<&'b Candidate<'a>>> {
    let zone = facts.zone.as_deref()?;
    if ready.iter().any(|candidate| candidate.zones.is_none()) {
        return None;
    }
    let here = keep(ready, |candidate| candidate.is_for_zone(zone));
    (!here.is_empty()).then_some(here)
}

fn keep<'a, 'b>(ready: &[&'b Candidate<'a>], wanted: impl Fn(&Candidate<'a>) -> bool) -> Vec<&'b Candidate<'a>> {
    ready.iter().copied().filter(|candidate| wanted(candidate)).collect()
}

fn keys<'a, 'b: 'a>(candidates: impl Iterator<Item = &'a Candidate<'b>>) -> Arc<[EndpointKey]> {
    let mut keys = candidates.map(Candidate::key).peekable();
    if keys.peek().is_some() { keys.collect() } else { Arc::default() }
}

/// Number of ready endpoints of a family on this node, each address once, as [`gather`] has it.
pub(super) fn count_ready_local(slices: &[&EndpointSlice], family: Family, takes: impl Fn(&IpAddr) -> bool) -> usize {
    let mut at: BTreeMap<IpAddr, EndpointFlags> = BTreeMap::new();
    let slices = slices.iter().filter(|slice| slice.family == family && !slice.ports().is_empty());
    for endpoint in slices.flat_map(|slice| &slice.endpoints) {
        let flags = at.entry(endpoint.address).or_insert(endpoint.flags);
        if rank(endpoint.flags) < rank(*flags) {
            *flags = endpoint.flags;
        }
    }
    let wanted = EndpointFlags::READY | EndpointFlags::LOCAL;
    at.into_iter().filter(|(address, flags)| flags.contains(wanted) && takes(address)).count()
}

/// Weights of the endpoints of a Service port, sorted by endpoint; `None` if nothing sets weights, which costs nothing
/// per endpoint.
///
/// A weight is the product of the endpoint's own, its zone's and its node's, at most 65,535. An endpoint in two slices
/// has the larger one.
pub(super) fn weigh(
    slices: &[&EndpointSlice],
    balancing: Option<&Balancing>,
    port: &ServicePort,
    family: Family,
    facts: &NodeFacts,
) -> Option<Arc<[(EndpointKey, u16)]>> {
    let by_zone = balancing.and_then(|balancing| balancing.zone_weights.as_ref());
    let by_slice = slices.iter().any(|slice| slice.has_weights()) && facts.config.lets(MayAskFor::WEIGHTS);
    let by_node = facts.node_weights();
    if by_zone.is_none() && !by_slice && by_node.is_empty() {
        return None;
    }
    let mut weights = Vec::new();
    for slice in slices.iter().filter(|slice| slice.family == family) {
        for number in slice.numbers_of(&port.name, port.protocol) {
            weights.extend(slice.endpoints.iter().filter_map(|endpoint| {
                let own = slice.weight_of(endpoint).filter(|_| by_slice);
                let zone = by_zone.map(|zones| zones.of(slice.zone_of(endpoint)));
                let node = slice.node_of(endpoint).and_then(|node| by_node.get(node).copied());
                let asked = [own, zone, node].into_iter().flatten();
                let weight = asked.reduce(u16::saturating_mul)?;
                Some((EndpointKey::new(endpoint.address, number), weight))
            }));
        }
    }
    // The largest weight of an endpoint comes first and is kept.
    weights.sort_unstable_by(|(a, less), (b, more)| a.cmp(b).then(more.cmp(less)));
    weights.dedup_by_key(|(endpoint, _)| *endpoint);
    (!weights.is_empty()).then(|| weights.into())
}

/// The endpoints of a Service that get no connections at any of its ports, because their weight is 0.
#[derive(Debug, Default)]
pub(super) struct Resting(BTreeMap<IpAddr, bool>);

impl Resting {
    /// Notes the endpoints of a port. Those without a weight count too: only some slices may set weights.
    pub(super) fn note(&mut self, candidates: &[Candidate<'_>], weights: Option<&[(EndpointKey, u16)]>) {
        for candidate in candidates {
            let rests = weights.is_some_and(|weights| weight_of(weights, &candidate.key()) == 0);
            *self.0.entry(candidate.address).or_insert(true) &= rests;
        }
    }

    pub(super) fn has(&self, address: &IpAddr) -> bool {
        self.0.get(address).copied().unwrap_or(false)
    }
}

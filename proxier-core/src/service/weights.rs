//! Weights of endpoints, if Services, slices or nodes set any.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::NodeFacts;
use crate::config::MayAskFor;
use crate::net::{EndpointKey, Family};
use crate::snapshot::{Balancing, EndpointSlice, ServicePort};

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
    let lets = facts.config.lets(MayAskFor::WEIGHTS);
    let by_zone = balancing.and_then(|balancing| balancing.zone_weights.as_ref());
    let by_slice = lets && slices.iter().any(|slice| slice.has_weights());
    let by_node = facts.node_weights();
    if by_zone.is_none() && !by_slice && by_node.is_empty() {
        return None;
    }
    let mut weights = Vec::new();
    for slice in slices.iter().filter(|slice| slice.family == family) {
        let ports = slice.ports().iter().filter(|of| *of.name == *port.name && of.protocol == port.protocol);
        for number in ports.map(|of| of.port) {
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
    /// Records the weights of a port.
    pub(super) fn note(&mut self, weights: Option<&[(EndpointKey, u16)]>) {
        for (endpoint, weight) in weights.into_iter().flatten() {
            *self.0.entry(endpoint.address).or_insert(true) &= *weight == 0;
        }
    }

    pub(super) fn has(&self, address: &IpAddr) -> bool {
        self.0.get(address).copied().unwrap_or(false)
    }
}

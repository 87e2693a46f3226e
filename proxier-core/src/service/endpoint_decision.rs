//! Explains why an endpoint gets the traffic of a Service port, or does not.

use super::endpoints::{choose, gather};
use super::{EndpointSlice, Family, NodeFacts, Service, ServicePort};
use crate::config::Topology;
use crate::net::EndpointKey;
use crate::snapshot::EndpointFlags;

/// An endpoint of a Service port, and the decision whether it gets traffic on this node.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointDecision {
    /// Address and port of the endpoint.
    pub endpoint: EndpointKey,
    pub(super) flags: EndpointFlags,
    /// The zones for which it is meant, if it has such hints.
    pub zones: Option<Vec<Box<str>>>,
    /// Whether the endpoint gets traffic that may go to any node.
    pub cluster: bool,
    /// Whether the endpoint gets traffic that must stay on this node.
    pub local: bool,
}

impl EndpointDecision {
    /// Whether it is ready for new connections.
    pub fn is_ready(&self) -> bool {
        self.flags.contains(EndpointFlags::READY)
    }

    /// Whether it answers: it is ready, or terminating but serving.
    pub fn is_serving(&self) -> bool {
        self.flags.contains(EndpointFlags::SERVING)
    }

    /// Whether it is terminating.
    pub fn is_terminating(&self) -> bool {
        self.flags.contains(EndpointFlags::TERMINATING)
    }

    /// Whether it is on this node.
    pub fn is_here(&self) -> bool {
        self.flags.contains(EndpointFlags::LOCAL)
    }

    fn is_for_zone_of(&self, facts: &NodeFacts) -> bool {
        let zones = self.zones.as_deref().unwrap_or_default();
        facts.zone.as_deref().is_some_and(|here| zones.iter().any(|zone| **zone == *here))
    }

    /// State of the endpoint in a word or two.
    pub fn condition(&self) -> &'static str {
        let is = |flags| self.flags.contains(flags);
        match (is(EndpointFlags::READY), is(EndpointFlags::TERMINATING), is(EndpointFlags::SERVING)) {
            (true, false, _) => "ready",
            (true, true, _) => "ready and stopping",
            (false, true, true) => "stopping, still serving",
            (false, true, false) => "stopping, not serving",
            (false, false, _) => "not ready",
        }
    }

    /// Why it gets traffic that may go to any node, or does not; `facts` and `service` as for [`endpoint_decisions`].
    pub fn reason(&self, service: &Service, facts: &NodeFacts) -> String {
        let is = |flags| self.flags.contains(flags);
        let is_last_resort = is(EndpointFlags::SERVING | EndpointFlags::TERMINATING) && !is(EndpointFlags::READY);
        match (self.cluster, is(EndpointFlags::READY)) {
            (true, true) => "it is ready".to_owned(),
            (true, false) => "no endpoint is ready, and it still serves".to_owned(),
            // Hints for nodes decide first, and each endpoint has both kinds with `PreferSameNode`.
            (false, true) if self.is_for_zone_of(facts) => {
                "hints: others are meant for this node, this one for another".to_owned()
            }
            (false, true) => {
                let zones = self.zones.as_deref().unwrap_or_default().join(", ");
                let here = facts.zone.as_deref().unwrap_or("none");
                let by_annotation = match facts.config.topology {
                    Topology::AnnotatedHints if service.topology_annotation => ", and the Service asks for hints",
                    _ => "",
                };
                format!(
                    "hints: others are meant for this node or its zone ({here}), this one for {}{by_annotation}",
                    shown(&zones)
                )
            }
            (false, false) if is_last_resort => "it is stopping, and others are ready".to_owned(),
            (false, false) => "it is not ready".to_owned(),
        }
    }
}

fn shown(zones: &str) -> String {
    if zones.is_empty() { "others".to_owned() } else { format!("zone {zones}") }
}

/// All endpoints of a Service port in a family, sorted, in any state.
pub fn endpoint_decisions<'a>(
    service: &Service,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
    port: &ServicePort,
    family: Family,
    facts: &NodeFacts,
) -> Vec<EndpointDecision> {
    let slices: Vec<&EndpointSlice> = slices.into_iter().collect();
    let candidates = gather(&slices, port, family);
    let choice = choose(&candidates, service, port.protocol, false, facts);
    let decisions = candidates.iter().map(|candidate| {
        let endpoint = EndpointKey::new(candidate.address, candidate.port);
        EndpointDecision {
            endpoint,
            flags: candidate.flags,
            zones: candidate.zones.map(<[_]>::to_vec),
            cluster: choice.cluster.binary_search(&endpoint).is_ok(),
            local: choice.local.binary_search(&endpoint).is_ok(),
        }
    });
    decisions.collect()
}

//! A Frontend as a listener.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::net::{EndpointKey, Protocol};
use crate::ports::{Limit, Listener, Turn};
use crate::service::{Frontend, Roles};
use crate::snapshot::{Sharing, TrafficPolicy};

/// Reason why SCTP is not served.
pub const NO_SCTP: &str = "userspace mode serves TCP and UDP; SCTP needs a mode of the kernel (ipvs, nftables)";

/// Listener of a Frontend, with the endpoints to which it leads. `None` for SCTP, see [`NO_SCTP`].
///
/// A policy `Local` is that of the iptables mode of kube-proxy: for cluster IPs, only endpoints on this node; for
/// all else, endpoints on this node for clients outside, and any for this node and its pods.
pub(crate) fn lower(frontend: &Frontend) -> Option<Listener> {
    if frontend.key.protocol == Protocol::Sctp {
        return None;
    }
    let is_local = frontend.policy == TrafficPolicy::Local;
    let is_internal = frontend.roles.contains(Roles::CLUSTER_IP);
    let (cluster, local) = (frontend.taking(&frontend.cluster), frontend.taking(&frontend.local));
    let outside = if is_local { &local } else { &cluster };
    let inside = if is_internal { outside } else { &cluster };
    let port = frontend.port.as_ref();
    let group = port.map_or_else(|| Arc::from(frontend.key.to_string()), |port| group_of(&port.name, frontend));
    Some(Listener {
        key: frontend.key,
        group,
        inside: Arc::clone(inside),
        outside: Arc::clone(outside),
        turn: match frontend.sharing() {
            Sharing::Evenly => Turn::Next,
            Sharing::ByClient { port } => Turn::Client { port },
            Sharing::LeastConnections => Turn::Fewest,
        },
        inside_slots: frontend.slots_of(inside).map(Into::into),
        outside_slots: frontend.slots_of(outside).map(Into::into),
        unselected: unselected(frontend, [inside, outside]),
        has_endpoints: !cluster.is_empty() || !outside.is_empty(),
        affinity: frontend.affinity_secs.map(|secs| Duration::from_secs(secs.into())),
        affinity_prefix: frontend.affinity_prefix().filter(|_| frontend.affinity_secs.is_some()),
        limit: limit(frontend),
        drain: frontend.drain_secs().map(|secs| Duration::from_secs(secs.into())),
        sources: frontend.source_ranges.clone(),
        node_may_use: frontend.node_may_use,
        proxy_protocol: frontend.proxy_protocol,
    })
}

/// The limit of an endpoint's connections; three quarters of it where nothing says when it gets new ones again, as in IPVS.
fn limit(frontend: &Frontend) -> Option<Limit> {
    let thresholds = frontend.balancing.as_ref()?.thresholds;
    let (most, lower) = (thresholds.upper(), thresholds.lower());
    let quarters = most.saturating_sub(most.checked_div(4)?);
    (most > 0).then_some(Limit { most, again_below: if lower > 0 { lower } else { quarters } })
}

/// The endpoints that serve and are in none of these lists, of UDP; of TCP those with weight 0.
fn unselected(frontend: &Frontend, selected: [&Arc<[EndpointKey]>; 2]) -> Option<Arc<[EndpointKey]>> {
    if frontend.key.protocol == Protocol::Tcp && frontend.weights.is_none() {
        return None;
    }
    let is_selected = |key: &&EndpointKey| selected.iter().any(|list| list.binary_search(key).is_ok());
    let rest: BTreeSet<EndpointKey> = frontend.serving().filter(|key| !is_selected(key)).copied().collect();
    (!rest.is_empty()).then(|| rest.into_iter().collect())
}

/// A port has one name in both families, and endpoints of its own in each.
fn group_of(name: &str, frontend: &Frontend) -> Arc<str> {
    format!("{name} {} {}", frontend.key.protocol, frontend.key.family()).into()
}

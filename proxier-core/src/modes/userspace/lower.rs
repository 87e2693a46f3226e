//! A Frontend as a listener.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::net::{EndpointKey, Protocol};
use crate::ports::Listener;
use crate::service::{Frontend, Roles};
use crate::snapshot::TrafficPolicy;

/// Why SCTP is not served.
pub const NO_SCTP: &str = "userspace mode serves TCP and UDP; SCTP needs a mode of the kernel (ipvs, nftables)";

/// Listener of a Frontend, with the endpoints to which it leads. `None` for SCTP, see [`NO_SCTP`].
///
/// A policy `Local` is that of the iptables mode of kube-proxy: for cluster IPs, only endpoints on this node; for
/// all else, endpoints on this node for clients outside, and any for this node and its pods.
///
/// ```
/// use proxier_core::config::Config;
/// use proxier_core::modes::userspace::{Settings, Turned, lower};
/// use proxier_core::net::EndpointKey;
/// use proxier_core::service::{NodeFacts, Roles, compile_frontends};
/// use proxier_core::snapshot::{FrontendSpec, HostAddresses, Node, ObjectKey, TrafficPolicy};
///
/// let endpoint = EndpointKey::new([10, 244, 2, 9].into(), 80);
/// let mut web = FrontendSpec::new("TCP 203.0.113.7:80".parse()?, [endpoint]);
/// (web.roles, web.policy) = (Roles::EXTERNAL_IP, TrafficPolicy::Local);
/// let facts = NodeFacts::new(&Config::default(), &Node::new("node-a"), &HostAddresses::default());
/// let compiled = compile_frontends(&ObjectKey::new("agent", "web"), &[web], &facts, false);
/// let listener = lower(&compiled.frontends[0]).ok_or("SCTP")?;
/// assert!(listener.serves_anybody() && listener.has(&endpoint));
///
/// // The only endpoint is on another node: pods get it, clients outside do not.
/// let mut settings = Settings::default();
/// settings.pods = ["10.244.1.0/24".parse()?].into();
/// assert_eq!(listener.endpoints_for("10.244.1.7".parse()?, &settings).map(|list| list.len()), Ok(1));
/// assert_eq!(listener.endpoints_for("198.51.100.7".parse()?, &settings), Err(Turned::Away));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn lower(frontend: &Frontend) -> Option<Listener> {
    if frontend.key.protocol == Protocol::Sctp {
        return None;
    }
    let is_local = frontend.policy == TrafficPolicy::Local;
    let is_internal = frontend.roles.contains(Roles::CLUSTER_IP);
    let outside = if is_local { &frontend.local } else { &frontend.cluster };
    let inside = if is_internal { outside } else { &frontend.cluster };
    let port = frontend.port.as_ref();
    let group = port.map_or_else(|| Arc::from(frontend.key.to_string()), |port| group_of(&port.name, frontend));
    Some(Listener {
        key: frontend.key,
        group,
        inside: Arc::clone(inside),
        outside: Arc::clone(outside),
        unselected: unselected(frontend, [inside, outside]),
        has_endpoints: !frontend.cluster.is_empty() || !outside.is_empty(),
        affinity: frontend.affinity_secs.map(|secs| Duration::from_secs(secs.into())),
        sources: frontend.source_ranges.clone(),
        node_may_use: frontend.node_may_use,
        proxy_protocol: frontend.proxy_protocol,
    })
}

/// The endpoints of UDP that serve and are in none of these lists.
fn unselected(frontend: &Frontend, selected: [&Arc<[EndpointKey]>; 2]) -> Option<Arc<[EndpointKey]>> {
    frontend.key.udp()?;
    let is_selected = |key: &&EndpointKey| selected.iter().any(|list| list.binary_search(key).is_ok());
    let rest: BTreeSet<EndpointKey> = frontend.serving().filter(|key| !is_selected(key)).copied().collect();
    (!rest.is_empty()).then(|| rest.into_iter().collect())
}

/// A port has one name in both families, and endpoints of its own in each.
fn group_of(name: &str, frontend: &Frontend) -> Arc<str> {
    format!("{name} {} {}", frontend.key.protocol, frontend.key.family()).into()
}

//! Converts a Frontend to a listener, and the changes of listeners.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::net::{EndpointKey, FrontendKey, Protocol};
use crate::pack::Gather as _;
use crate::plan::operation::Operation;
use crate::plan::step::Action;
use crate::ports::Listener;
use crate::service::{Frontend, Roles};
use crate::snapshot::TrafficPolicy;

/// A change of a listener: its new value, or its end.
#[derive(Clone, Debug)]
pub(crate) struct ListenerChange {
    action: Action,
    pub(crate) key: FrontendKey,
    pub(crate) listener: Option<Listener>,
}

impl ListenerChange {
    /// The change that leads to this listener, or to none; `None` if there is none already.
    pub(crate) fn new(key: FrontendKey, listener: Option<Listener>, is_there: bool) -> Option<Self> {
        let action = match (&listener, is_there) {
            (Some(_), true) => Action::Change,
            (Some(_), false) => Action::Add,
            (None, true) => Action::Delete,
            (None, false) => return None,
        };
        Some(ListenerChange { action, key, listener })
    }

    pub(crate) fn operation(&self) -> Operation<'_> {
        Operation::Listener(self.action, self.key, self.listener.as_ref())
    }
}

/// The listener of a Frontend with its endpoints. `None` for SCTP.
///
/// Policy `Local` has the meaning of kube-proxy's iptables mode. For cluster IPs: only endpoints on this node. For all
/// other addresses: endpoints on this node for outside clients, and any for this node and its pods.
pub(crate) fn lower(frontend: &Frontend) -> Option<Listener> {
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
    })
}

/// The serving UDP endpoints in none of these lists.
fn unselected(frontend: &Frontend, selected: [&Arc<[EndpointKey]>; 2]) -> Option<Arc<[EndpointKey]>> {
    if frontend.key.protocol != Protocol::Udp {
        return None;
    }
    let is_selected = |key: &&EndpointKey| selected.iter().any(|list| list.binary_search(key).is_ok());
    let rest: BTreeSet<EndpointKey> = frontend.serving().filter(|key| !is_selected(key)).copied().gather();
    (!rest.is_empty()).then(|| rest.into_iter().collect())
}

/// A port has one name in both families, and separate endpoints in each.
fn group_of(name: &str, frontend: &Frontend) -> Arc<str> {
    format!("{name} {} {}", frontend.key.protocol, frontend.key.family()).into()
}

//! Frontends: each protocol, address and port on which a Service answers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use super::Port;
use crate::net::{EndpointKey, FrontendKey, Network};
use crate::pack::Gather as _;
use crate::snapshot::{Balancing, Roles, Sharing, TrafficPolicy};

/// Protocol, address and port on which a Service answers, with its endpoints.
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Protocol, address and port.
    pub key: FrontendKey,
    /// Roles of this address; several if the Service lists it more than once.
    pub roles: Roles,
    /// The policy for its traffic: the internal one for a cluster IP, otherwise the external one.
    pub policy: TrafficPolicy,
    /// The endpoints for traffic that may go to any node.
    pub cluster: Arc<[EndpointKey]>,
    /// The endpoints for traffic that must stay on this node.
    pub local: Arc<[EndpointKey]>,
    /// Serving endpoints that are in neither list, because of hints or because they terminate: their UDP flows and TCP
    /// connections continue. Sorted; `None` if there are none, and if the mode does not end connections.
    #[doc(hidden)]
    pub unselected: Option<Arc<[EndpointKey]>>,
    /// Whether `cluster` is used if the policy is `Local` and `local` is empty, as for external addresses in
    /// kube-proxy, so that pods on this node can use them. A client outside then gets replies from an address to which
    /// it did not connect.
    pub falls_back: bool,
    /// Session affinity: seconds that a client stays with its endpoint; `None` without affinity.
    pub affinity_secs: Option<u32>,
    /// Load-balancing settings, if there are any that the mode supports: the Service's annotations, as far as the
    /// configuration lets them decide, otherwise the configuration
    /// ([`IpvsConfig::defaults`](crate::config::IpvsConfig::defaults)).
    pub(crate) balancing: Option<Arc<Balancing>>,
    /// The weights of endpoints, if any are set, sorted by endpoint; missing ones have 1.
    pub weights: Option<Arc<[(EndpointKey, u16)]>>,
    /// Whether endpoints reply to clients directly, as requested by [`Balancing::forwarding`]: their packets are not
    /// masqueraded. Used by IPVS mode.
    pub returns_directly: bool,
    /// Whether an interface of this host, other than the dummy device, has the address.
    pub(crate) on_interface: bool,
    /// The networks that may connect; `None` for all clients. Only for load-balancer addresses.
    pub source_ranges: Option<Arc<[Network]>>,
    /// Whether this node itself is in the source ranges.
    #[doc(hidden)]
    pub node_may_use: bool,
    /// The Service port to which it belongs, the first one if there are several. Only if ports are requested
    /// ([`FrontendObserver::needs_ports`](super::FrontendObserver::needs_ports)).
    pub(crate) port: Option<Arc<Port>>,
}

impl Frontend {
    /// The endpoints that get its traffic according to the policy; sorted.
    pub fn endpoints(&self) -> &Arc<[EndpointKey]> {
        let local = self.policy == TrafficPolicy::Local && !(self.falls_back && self.local.is_empty());
        if local { &self.local } else { &self.cluster }
    }

    /// Whether an endpoint serves, even if it is not selected: its flows and connections continue.
    #[doc(hidden)]
    pub fn keeps_flows_of(&self, key: &EndpointKey) -> bool {
        self.serving_lists().any(|list| list.binary_search(key).is_ok())
    }

    pub(crate) fn has_endpoints(&self) -> bool {
        !self.cluster.is_empty() || !self.local.is_empty()
    }

    /// Addresses and ports from which replies of UDP flows may come.
    pub(crate) fn answering(&self) -> BTreeSet<SocketAddr> {
        self.serving().map(|endpoint| SocketAddr::from(*endpoint)).gather()
    }

    /// The serving endpoints, possibly with duplicates.
    pub(crate) fn serving(&self) -> impl Iterator<Item = &EndpointKey> {
        self.serving_lists().flat_map(|list| list.iter())
    }

    fn serving_lists(&self) -> impl Iterator<Item = &Arc<[EndpointKey]>> {
        [&self.cluster, &self.local].into_iter().chain(&self.unselected)
    }

    /// Whether clients outside may get a separate list of endpoints ([`local`](Frontend::local)) while this node and
    /// pods get another one ([`cluster`](Frontend::cluster)). The policy must keep outside traffic on this node,
    /// without session affinity, and replies must come back through this node.
    pub fn can_split(&self) -> bool {
        self.would_split() && !self.keeps_clients() && !self.returns_directly
    }

    pub(crate) fn would_split(&self) -> bool {
        !self.roles.contains(Roles::CLUSTER_IP) && self.policy == TrafficPolicy::Local
    }

    pub(crate) fn keeps_clients(&self) -> bool {
        self.affinity_secs.is_some()
            || self.balancing.as_ref().is_some_and(|balancing| balancing.persistence_secs.is_some())
    }

    pub(crate) fn sharing(&self) -> Sharing {
        self.balancing.as_ref().map_or(Sharing::Evenly, |asked| asked.sharing())
    }

    pub(crate) fn drain_secs(&self) -> Option<u32> {
        self.balancing.as_ref()?.drain_secs
    }

    /// Whether the address is not this host's own: it has a role other than node port.
    pub(crate) fn is_virtual(&self) -> bool {
        self.roles != Roles::NODE_PORT && !self.on_interface
    }

    /// Whether another interface has the address, so that it is not bound. Never true for an address that is only used
    /// for node ports.
    #[doc(hidden)]
    pub fn is_elsewhere(&self) -> bool {
        self.roles != Roles::NODE_PORT && self.on_interface
    }

    /// Whether this node's own traffic to it must be dropped. The load balancer's address is local here, so such
    /// traffic would have that address as its source and pass every source range.
    #[doc(hidden)]
    pub fn is_barred_from_node(&self) -> bool {
        self.source_ranges.is_some() && !self.node_may_use
    }
}

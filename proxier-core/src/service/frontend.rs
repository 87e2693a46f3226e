//! Frontends: each protocol, address and port that a Service answers on.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use super::Port;
use crate::net::Network;
use crate::net::{EndpointKey, FrontendKey};
use crate::snapshot::{Balancing, Roles, TrafficPolicy};

/// Protocol, address and port on which a Service answers, with the endpoints that answer there.
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frontend {
    /// Protocol, address and port.
    pub key: FrontendKey,
    /// Kinds of this address; several when the Service lists it as several.
    pub roles: Roles,
    /// The policy for its traffic: the internal one for a cluster IP, else the external one.
    pub policy: TrafficPolicy,
    /// The endpoints for traffic that may go to any node.
    pub cluster: Arc<[EndpointKey]>,
    /// The endpoints for traffic that has to stay on this node.
    pub local: Arc<[EndpointKey]>,
    /// The endpoints that serve and are in neither list, since hints send this node elsewhere or they are being stopped: flows of UDP and
    /// connections of TCP that they have go on. Sorted; `None` for none, and where nothing ends connections.
    #[doc(hidden)]
    pub unselected: Option<Arc<[EndpointKey]>>,
    /// Whether `cluster` answers where the policy says `Local` and `local` is empty.
    pub falls_back: bool,
    /// Session affinity: seconds for which a client stays with its endpoint; `None` without affinity.
    pub affinity_secs: Option<u32>,
    /// Settings of load balancing, where there are any: the Service's annotations, as far as the configuration lets them decide, else
    /// the configuration ([`IpvsConfig::defaults`](crate::config::IpvsConfig::defaults)), and the mode can do it.
    pub balancing: Option<Arc<Balancing>>,
    /// The weights of endpoints where any are asked for, sorted by endpoint; 1 for those that are not here.
    pub weights: Option<Arc<[(EndpointKey, u16)]>>,
    /// Whether endpoints answer clients by themselves, as [`Balancing::forwarding`] asks: their packets are not masqueraded. Used by
    /// IPVS mode.
    pub returns_directly: bool,
    /// Whether an interface of this host, other than the dummy device, has the address.
    pub(crate) on_interface: bool,
    /// The networks that may connect; `None` for all clients. Load-balancer addresses only.
    pub source_ranges: Option<Arc<[Network]>>,
    /// Whether this node itself is in the source ranges.
    #[doc(hidden)]
    pub node_may_use: bool,
    /// The port of the Service that it belongs to, the first one that names it; if ports were asked for
    /// ([`FrontendObserver::needs_ports`](super::FrontendObserver::needs_ports)).
    pub(crate) port: Option<Arc<Port>>,
}

impl Frontend {
    /// The endpoints that get its traffic, as its policy says; sorted.
    pub fn endpoints(&self) -> &Arc<[EndpointKey]> {
        let local = self.policy == TrafficPolicy::Local && !(self.falls_back && self.local.is_empty());
        if local { &self.local } else { &self.cluster }
    }

    /// Whether an endpoint serves, also one that the policy does not select: its flows and connections go on.
    #[doc(hidden)]
    pub fn keeps_flows_of(&self, key: &EndpointKey) -> bool {
        self.serving_lists().any(|list| list.binary_search(key).is_ok())
    }

    /// Whether any node has an endpoint that new connections may get.
    pub(crate) fn has_endpoints(&self) -> bool {
        !self.cluster.is_empty() || !self.local.is_empty()
    }

    /// Addresses and ports from which answers of UDP flows may come.
    pub(crate) fn answering(&self) -> BTreeSet<SocketAddr> {
        self.serving().map(|endpoint| SocketAddr::from(*endpoint)).collect()
    }

    /// The endpoints that serve, some of them twice.
    pub(crate) fn serving(&self) -> impl Iterator<Item = &EndpointKey> {
        self.serving_lists().flat_map(|list| list.iter())
    }

    fn serving_lists(&self) -> impl Iterator<Item = &Arc<[EndpointKey]>> {
        [&self.cluster, &self.local].into_iter().chain(&self.unselected)
    }

    /// Whether clients outside may have a list of endpoints of their own ([`local`](Frontend::local)), and this node and pods another one
    /// ([`cluster`](Frontend::cluster)): the policy keeps the traffic of clients outside on this node, each connection is for itself, and
    /// answers come back through this node.
    pub fn can_split(&self) -> bool {
        self.would_split() && !self.keeps_clients() && !self.returns_directly
    }

    /// Whether its policy asks for a split.
    pub(crate) fn would_split(&self) -> bool {
        !self.roles.contains(Roles::CLUSTER_IP) && self.policy == TrafficPolicy::Local
    }

    /// Whether a client's connections are to reach one endpoint.
    pub(crate) fn keeps_clients(&self) -> bool {
        self.affinity_secs.is_some()
            || self.balancing.as_ref().is_some_and(|balancing| balancing.persistence_secs.is_some())
    }

    /// Seconds for which an endpoint that leaves keeps its connections, where that is asked for.
    pub(crate) fn drain_secs(&self) -> Option<u32> {
        self.balancing.as_ref()?.drain_secs
    }

    /// Whether the address is not this host's own: it is only a node port's when it has no other role.
    pub(crate) fn is_virtual(&self) -> bool {
        self.roles != Roles::NODE_PORT && !self.on_interface
    }

    /// Whether another interface has the address, so that it is not bound. Never true for an address that is only a
    /// node port's.
    #[doc(hidden)]
    pub fn is_elsewhere(&self) -> bool {
        self.roles != Roles::NODE_PORT && self.on_interface
    }

    /// Whether this node's own traffic to it has to be dropped: the load balancer's address is local here, so such traffic
    /// would have that address as its source and pass every source range.
    #[doc(hidden)]
    pub fn is_barred_from_node(&self) -> bool {
        self.source_ranges.is_some() && !self.node_may_use
    }
}

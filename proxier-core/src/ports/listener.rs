//! Listeners and their endpoints as values.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::net::{EndpointKey, FrontendKey, Network, Protocol};

/// Protocol, address and port on which this process listens, with the endpoints of its connections and datagrams.
#[derive(Clone, Debug, PartialEq)]
#[doc(hidden)]
pub struct Listener {
    /// Protocol, address and port. TCP or UDP.
    pub key: FrontendKey,
    /// The Service port to which it belongs, such as `shop/web:http`. Listeners of one group share the rotation, and a
    /// client with affinity stays with its endpoint on all of them.
    pub group: Arc<str>,
    /// The endpoints for this node and its pods, sorted.
    pub inside: Arc<[EndpointKey]>,
    /// The endpoints for all other clients, sorted.
    pub outside: Arc<[EndpointKey]>,
    /// Endpoints that get no new connections, and keep their UDP flows; sorted.
    pub unselected: Option<Arc<[EndpointKey]>>,
    /// Whether there are endpoints, even if a policy excludes some or all clients. If so, UDP datagrams without an
    /// endpoint are dropped; otherwise they are refused.
    pub has_endpoints: bool,
    /// Session affinity: how long a client stays with its endpoint after its last connection or flow began; `None`
    /// without affinity.
    pub affinity: Option<Duration>,
    /// The networks that may connect; `None` for all clients.
    pub sources: Option<Arc<[Network]>>,
    /// Whether this node itself may connect if there are `sources`. Its source is then the listener's address.
    pub node_may_use: bool,
}

impl Listener {
    pub fn new(key: FrontendKey, group: impl Into<Arc<str>>) -> Self {
        Listener {
            key,
            group: group.into(),
            inside: Arc::new([]),
            outside: Arc::new([]),
            unselected: None,
            has_endpoints: false,
            affinity: None,
            sources: None,
            node_may_use: false,
        }
    }

    #[must_use]
    pub fn with_endpoints(mut self, endpoints: impl IntoIterator<Item = EndpointKey>) -> Self {
        let sorted: BTreeSet<EndpointKey> = endpoints.into_iter().collect();
        self.inside = sorted.into_iter().collect();
        self.outside = Arc::clone(&self.inside);
        self.has_endpoints = !self.inside.is_empty();
        self
    }

    /// Whether it has an open socket: for TCP if any client gets an endpoint, for UDP if there are endpoints at all.
    pub fn is_open(&self) -> bool {
        match self.key.protocol {
            Protocol::Udp => self.has_endpoints,
            Protocol::Tcp | Protocol::Sctp => self.serves_anybody(),
        }
    }

    pub fn serves_anybody(&self) -> bool {
        !self.inside.is_empty() || !self.outside.is_empty()
    }

    pub(crate) fn has(&self, endpoint: &EndpointKey) -> bool {
        [&self.inside, &self.outside].into_iter().any(|list| list.binary_search(endpoint).is_ok())
    }

    /// Whether connections and flows to an endpoint continue: it is used, or keeps its existing ones.
    #[doc(hidden)]
    pub fn keeps_flows_of(&self, endpoint: &EndpointKey) -> bool {
        self.has(endpoint) || self.unselected.as_ref().is_some_and(|list| list.binary_search(endpoint).is_ok())
    }

    /// The endpoints for a client, sorted; `None` if there are none for it: its address is not in the networks that may
    /// connect, or a policy excludes it.
    #[cfg(feature = "kernel")]
    pub(crate) fn endpoints_for(&self, client: IpAddr, settings: &Settings) -> Option<&[EndpointKey]> {
        let list = if settings.is_inside(client, self.key.address) { &self.inside } else { &self.outside };
        (self.has_endpoints && !list.is_empty() && self.admits(client)).then_some(&**list)
    }

    #[cfg(feature = "kernel")]
    fn admits(&self, client: IpAddr) -> bool {
        let Some(sources) = &self.sources else { return true };
        if client == self.key.address {
            return self.node_may_use;
        }
        sources.iter().any(|network| network.contains(&client))
    }
}

/// Settings of all listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct Settings {
    /// This host's own addresses. Clients with such an address are this node.
    pub own: Arc<BTreeSet<IpAddr>>,
    /// The pod networks that count as this node's.
    pub pods: Arc<[Network]>,
    /// The networks of all pods, each with this node's own part. Other pods count as clients outside at this host's own
    /// addresses.
    pub other_pods: Arc<[(Network, Network)]>,
    /// How long a UDP flow lives without a datagram in either direction. Default 250 ms.
    pub udp_idle: Duration,
    /// Most file descriptors in use: one for a listener or a flow, two for a connection. Listeners get at most half of
    /// them, and the clients of one Service port three times what is left. Pipes, two each, are opened while half are
    /// free. By default the process's limit, minus a quarter or 256, whichever is more, but at least half.
    pub max_descriptors: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            own: Arc::default(),
            pods: Arc::new([]),
            other_pods: Arc::new([]),
            udp_idle: Duration::from_millis(250),
            max_descriptors: None,
        }
    }
}

#[cfg(feature = "kernel")]
impl Settings {
    /// Whether a client of a listener at `address` is this node or one of its pods.
    fn is_inside(&self, client: IpAddr, address: IpAddr) -> bool {
        // When this node connects to one of its own addresses, that address is also the source.
        client == address
            || client.is_loopback()
            || self.own.contains(&client)
            || (self.pods.iter().any(|network| network.contains(&client)) && !self.is_other_pods(client, address))
    }

    fn is_other_pods(&self, client: IpAddr, address: IpAddr) -> bool {
        let is_others = |(all, own): &(Network, Network)| all.contains(&client) && !own.contains(&client);
        self.own.contains(&address) && self.other_pods.iter().any(is_others)
    }
}

/// Counters and gauges of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[doc(hidden)]
pub struct Counts {
    /// Open TCP connections, including those being established.
    pub connections: usize,
    /// UDP flows that live now.
    pub flows: usize,
    /// Connections and flows started.
    pub begun: u64,
    /// Connections and datagrams turned away by source ranges, by a policy, or because there are no endpoints.
    pub turned_away: u64,
    /// Connections and flows refused because of a limit.
    pub limited: u64,
    /// Failed attempts to connect to an endpoint.
    pub failed_dials: u64,
    /// Connections reset because no endpoint answered.
    pub unanswered: u64,
}

//! Listeners, and the endpoints to which they lead: values only.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::net::{EndpointKey, FrontendKey, Network};

/// How the endpoints of a listener share clients that do not stay with one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[doc(hidden)]
pub enum Turn {
    /// One slot after the other. Default.
    #[default]
    Next,
    /// By a hash of the client's address, of its port too with `port`: one client, one slot.
    Client {
        /// Ports are part of the hash.
        port: bool,
    },
    /// The endpoint with the fewest connections of the group, for each of its slots.
    Fewest,
}

/// Limit of an endpoint's connections.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "a limit is these two numbers")]
#[doc(hidden)]
pub struct Limit {
    /// The number with which it gets no new ones.
    pub most: u32,
    /// The number below which it gets new ones again.
    pub again_below: u32,
}

/// Protocol, address and port on which this process listens, with the endpoints that connections and datagrams go to.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[doc(hidden)]
pub struct Listener {
    /// Protocol, address and port. TCP or UDP.
    pub key: FrontendKey,
    /// The port of a Service that it belongs to, such as `shop/web:http`. Listeners of one group take turns together, and a
    /// client with affinity stays with its endpoint on all of them.
    pub group: Arc<str>,
    /// The endpoints for this node and its pods, sorted.
    pub inside: Arc<[EndpointKey]>,
    /// The endpoints for all other clients, sorted.
    pub outside: Arc<[EndpointKey]>,
    /// How endpoints share clients.
    pub turn: Turn,
    /// The endpoint of each slot, by its place in `inside`: an endpoint has as many as its weight says. `None`: one each, in order.
    pub inside_slots: Option<Arc<[u32]>>,
    /// The same for `outside`.
    pub outside_slots: Option<Arc<[u32]>>,
    /// Endpoints that get nothing new, and keep the connections and UDP flows that they have; sorted.
    pub unselected: Option<Arc<[EndpointKey]>>,
    /// Whether there are endpoints, though a policy may keep them from some or all clients. UDP datagrams that have nowhere to go are
    /// dropped then; without it they are refused.
    pub has_endpoints: bool,
    /// Session affinity: time for which a client stays with its endpoint after its last connection or flow began; `None` without affinity.
    pub affinity: Option<Duration>,
    /// Length of the prefix by which clients with affinity count as one; `None` for each by itself.
    pub affinity_prefix: Option<u8>,
    /// Numbers of connections of each endpoint, over all listeners of the group. `None`: no limit.
    pub limit: Option<Limit>,
    /// Time for which connections to endpoints that are gone may go on. `None`: [`Settings::drain`].
    pub drain: Option<Duration>,
    /// The networks that may connect; `None` for all clients.
    pub sources: Option<Arc<[Network]>>,
    /// Whether this node itself may connect where there are `sources`: its source is the listener's address then.
    pub node_may_use: bool,
    /// Endpoints get the client's address in a header of the PROXY protocol, version 2, in front of each connection's
    /// data. TCP only. Default no.
    pub proxy_protocol: bool,
}

/// The endpoints for a client, and their slots.
#[cfg(feature = "kernel")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slots<'a> {
    /// Sorted; not empty.
    pub(crate) endpoints: &'a [EndpointKey],
    slots: Option<&'a [u32]>,
}

#[cfg(feature = "kernel")]
impl Slots<'_> {
    /// One slot for each of these endpoints.
    #[cfg(test)]
    pub(crate) fn each(endpoints: &[EndpointKey]) -> Slots<'_> {
        Slots { endpoints, slots: None }
    }

    /// Number of slots.
    pub(crate) fn count(&self) -> usize {
        self.slots.map_or(self.endpoints.len(), <[u32]>::len)
    }

    /// The endpoint of a slot below [`Slots::count`].
    pub(crate) fn get(&self, slot: usize) -> Option<EndpointKey> {
        let place = match self.slots {
            Some(slots) => usize::try_from(*slots.get(slot)?).ok()?,
            None => slot,
        };
        self.endpoints.get(place).copied()
    }
}

/// Reason why a client gets no endpoint.
#[cfg(feature = "kernel")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turned {
    /// Its address is not in the networks that may connect, or a policy keeps the endpoints from it.
    Away,
    /// There is no endpoint.
    Empty,
}

impl Listener {
    /// Makes a listener without endpoints, for all clients.
    pub fn new(key: FrontendKey, group: impl Into<Arc<str>>) -> Self {
        Listener {
            key,
            group: group.into(),
            inside: Arc::new([]),
            outside: Arc::new([]),
            turn: Turn::Next,
            inside_slots: None,
            outside_slots: None,
            unselected: None,
            has_endpoints: false,
            affinity: None,
            affinity_prefix: None,
            limit: None,
            drain: None,
            sources: None,
            node_may_use: false,
            proxy_protocol: false,
        }
    }

    /// Sets these endpoints for all clients, in any order.
    #[must_use]
    pub fn with_endpoints(mut self, endpoints: impl IntoIterator<Item = EndpointKey>) -> Self {
        let sorted: BTreeSet<EndpointKey> = endpoints.into_iter().collect();
        self.inside = sorted.into_iter().collect();
        self.outside = Arc::clone(&self.inside);
        (self.inside_slots, self.outside_slots) = (None, None);
        self.has_endpoints = !self.inside.is_empty();
        self
    }

    /// Whether any client gets an endpoint.
    pub fn serves_anybody(&self) -> bool {
        !self.inside.is_empty() || !self.outside.is_empty()
    }

    /// The address by which a client with affinity is remembered.
    #[cfg(feature = "kernel")]
    pub(crate) fn counted_as(&self, client: IpAddr) -> IpAddr {
        let network = self.affinity_prefix.and_then(|prefix| Network::new(client, prefix).ok());
        network.map_or(client, |network| network.network())
    }

    /// Whether an endpoint may still be used by some client.
    pub(crate) fn has(&self, endpoint: &EndpointKey) -> bool {
        [&self.inside, &self.outside].into_iter().any(|list| list.binary_search(endpoint).is_ok())
    }

    /// Whether connections and flows to an endpoint go on: it is used, or keeps those that it has.
    #[doc(hidden)]
    pub fn keeps_flows_of(&self, endpoint: &EndpointKey) -> bool {
        self.has(endpoint) || self.unselected.as_ref().is_some_and(|list| list.binary_search(endpoint).is_ok())
    }

    #[cfg(feature = "kernel")]
    /// The endpoints for a client; not empty.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) fn endpoints_for(&self, client: IpAddr, settings: &Settings) -> Result<Slots<'_>, Turned> {
        let (list, slots) = if settings.is_inside(client, self.key.address) {
            (&self.inside, &self.inside_slots)
        } else {
            (&self.outside, &self.outside_slots)
        };
        if !self.has_endpoints {
            return Err(Turned::Empty);
        }
        if list.is_empty() || !self.admits(client) {
            return Err(Turned::Away);
        }
        Ok(Slots { endpoints: list, slots: slots.as_deref() })
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
#[non_exhaustive]
#[doc(hidden)]
pub struct Settings {
    /// This host's own addresses: clients with such an address are this node.
    pub own: Arc<BTreeSet<IpAddr>>,
    /// The networks of pods that count as this node's.
    pub pods: Arc<[Network]>,
    /// Time for which a UDP flow lives without a datagram in either direction. Default 250 ms.
    pub udp_idle: Duration,
    /// Time for which connections to an endpoint that is gone may go on; `None`: until they end. Default 15 min.
    pub drain: Option<Duration>,
    /// Largest number of connections and UDP flows of one Service port at once. Default: no limit of its own.
    pub max_of_service: Option<usize>,
    /// Largest number of file descriptors in use: one for a listener or a flow, two for a connection. Listeners get half of them at most;
    /// pipes, two each, are opened while half are free. Default: the process's limit when the relay starts, less a quarter, or less 256
    /// where that is more, but half at least.
    pub max_descriptors: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            own: Arc::default(),
            pods: Arc::new([]),
            udp_idle: Duration::from_millis(250),
            drain: Some(Duration::from_secs(15 * 60)),
            max_of_service: None,
            max_descriptors: None,
        }
    }
}

#[cfg(feature = "kernel")]
impl Settings {
    /// Whether a client of a listener at `address` is this node or one of its pods.
    fn is_inside(&self, client: IpAddr, address: IpAddr) -> bool {
        // A connection of this node to one of its own addresses has that address as its source.
        client == address
            || client.is_loopback()
            || self.own.contains(&client)
            || self.pods.iter().any(|network| network.contains(&client))
    }
}

/// Counters and gauges of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
#[doc(hidden)]
pub struct Counts {
    /// TCP connections that are open now, those to be connected included.
    pub connections: usize,
    /// UDP flows that live now.
    pub flows: usize,
    /// Connections and flows that were begun.
    pub begun: u64,
    /// Connections and datagrams that were turned away: by source ranges, by a policy, or for want of endpoints.
    pub turned_away: u64,
    /// Connections and flows that were refused for a limit.
    pub limited: u64,
    /// Attempts to connect to an endpoint that failed.
    pub failed_dials: u64,
    /// Connections that were reset since no endpoint answered.
    pub unanswered: u64,
    /// Connections that were ended since their endpoint had been gone for [`Settings::drain`].
    pub drained: u64,
}

//! Addresses and ports that the node needs itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::net::{FrontendKey, Protocol};
use crate::pack::Gather as _;
use crate::snapshot::is_usable_by_service;

/// The program or host that answers at a reserved address and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum User {
    /// The API server to which this program is configured to connect.
    ApiServer,
    /// An API server, from the endpoints of `default/kubernetes`.
    ApiServerEndpoint,
    /// A gateway of the node's default routes.
    Gateway,
    /// A name server that the node uses.
    NameServer,
    /// The node's kubelet.
    Kubelet,
    /// This program's health checks.
    Health,
    /// This program's metrics.
    Metrics,
    /// Another Node of the cluster, by name.
    Node(Box<str>),
    /// Another user, with its name.
    Other(Box<str>),
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            User::ApiServer | User::ApiServerEndpoint => "the API server",
            User::Gateway => "the gateway of this node's default route",
            User::NameServer => "a name server of this node",
            User::Kubelet => "the kubelet",
            User::Health => "this proxy's health checks",
            User::Metrics => "this proxy's metrics",
            User::Node(name) => return write!(f, "Node {name}"),
            User::Other(name) => name,
        })
    }
}

/// An address and port that no virtual server may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReservedPort {
    /// The address; `None` for every address of this node: those of its interfaces except the dummy device, and those
    /// of its Node object.
    pub address: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl ReservedPort {
    /// Reserves a TCP port at one address.
    pub fn tcp(address: IpAddr, port: u16) -> Self {
        ReservedPort { address: Some(address.to_canonical()), protocol: Protocol::Tcp, port }
    }

    /// Reserves a TCP port at every address of this node.
    pub fn tcp_here(port: u16) -> Self {
        ReservedPort { address: None, protocol: Protocol::Tcp, port }
    }
}

/// A host that this node must be able to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Neighbour {
    /// The address.
    pub address: IpAddr,
    /// The TCP port on which it answers, if known. If the address is this node's own, only this port is reserved.
    pub tcp_port: Option<u16>,
}

impl Neighbour {
    /// Creates a host with this address.
    pub fn new(address: IpAddr) -> Self {
        Neighbour { address: address.to_canonical(), tcp_port: None }
    }

    /// Creates a host that answers on this TCP port.
    pub fn tcp(address: IpAddr, port: u16) -> Self {
        Neighbour { address: address.to_canonical(), tcp_port: Some(port) }
    }
}

/// What other proxies in this network namespace serve, each with the proxy in words.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct OtherProxies {
    pub(crate) addresses: BTreeMap<IpAddr, Arc<str>>,
    pub(crate) frontends: BTreeMap<FrontendKey, Arc<str>>,
}

impl OtherProxies {
    /// Addresses at which these two differ.
    pub(crate) fn changed(&self, other: &OtherProxies) -> BTreeSet<IpAddr> {
        let of = |one: &Self, two: &Self| -> Vec<IpAddr> {
            let addresses = one.addresses.iter().filter(|(address, by)| two.addresses.get(*address) != Some(by));
            let frontends = one.frontends.iter().filter(|(key, by)| two.frontends.get(*key) != Some(by));
            addresses.map(|(address, _)| *address).chain(frontends.map(|(key, _)| key.address)).collect()
        };
        of(self, other).into_iter().chain(of(other, self)).collect()
    }
}

/// Addresses and ports that no virtual server may use. A Service with such an external or load-balancer address, or
/// with such a node port, would cut the node off from its cluster, or the cluster from its node.
///
/// **Reserved ports**, each an address, protocol and port. By default the kubelet (TCP 10250), this proxy's health
/// checks (TCP 10256) and metrics (TCP 10249), on every address of this node. Add other ports in use.
///
/// **Neighbours**, which this node reaches over the network. If their addresses were bound to the dummy device, all
/// their ports would be local to this node, and the node could not recover. A
/// [`Reconciler`](crate::engine::Reconciler) adds the gateways of the default routes and the endpoints of
/// `default/kubernetes` itself. Its caller must add name servers and other addresses of the API server
/// ([`Reserved::set_neighbours`]). External and load-balancer addresses are rejected, except:
///
/// * Cluster IPs. The API server allocates them, so a Service cannot choose an address in use, and programs reach the
///   API server and cluster DNS by theirs.
/// * An address of this node itself (of an interface other than the dummy device), such as an API server's on its own
///   node, which is not bound. If the neighbour has a TCP port, only that port is reserved.
/// * A name server's address as a load-balancer address on port 53 (TCP or UDP), which is cluster DNS for the nodes.
///   Other ports there are rejected. Load-balancer addresses are allocated by a controller, while anyone who may write
///   a Service can choose external IPs.
/// * The API server's address as a load-balancer address, as long as all endpoints are endpoints of
///   `default/kubernetes`, so traffic reaches it. Without endpoints it is rejected and left to the network.
///
/// **Other Nodes**. A load balancer that runs on the nodes may publish the addresses of all of them; each Node must
/// only serve its own. External and load-balancer addresses are rejected on every port.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserved {
    pub(crate) places: BTreeMap<ReservedPort, User>,
    pub(crate) neighbours: BTreeMap<User, BTreeSet<Neighbour>>,
    pub(crate) nodes: Arc<BTreeMap<IpAddr, Arc<str>>>,
    pub(crate) other_proxies: Arc<OtherProxies>,
}

impl Default for Reserved {
    fn default() -> Self {
        let mut reserved = Reserved::none();
        reserved.reserve(ReservedPort::tcp_here(Reserved::KUBELET), User::Kubelet);
        reserved.reserve(ReservedPort::tcp_here(Reserved::HEALTH), User::Health);
        reserved.reserve(ReservedPort::tcp_here(Reserved::METRICS), User::Metrics);
        reserved
    }
}

impl Reserved {
    /// The kubelet's port.
    pub const KUBELET: u16 = 10250;
    /// The default port of kube-proxy's health checks (`healthzBindAddress`).
    pub const HEALTH: u16 = 10256;
    /// The default port of kube-proxy's metrics (`metricsBindAddress`).
    pub const METRICS: u16 = 10249;

    /// Creates a value without reservations.
    pub fn none() -> Self {
        Reserved {
            places: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            nodes: Arc::default(),
            other_proxies: Arc::default(),
        }
    }

    /// Replaces the neighbours of a kind. Ignores addresses that no Service can have, such as loopback ones. Returns
    /// whether anything changed.
    pub fn set_neighbours(&mut self, user: User, neighbours: impl IntoIterator<Item = Neighbour>) -> bool {
        let new: BTreeSet<Neighbour> =
            neighbours.into_iter().filter(|neighbour| is_usable_by_service(neighbour.address)).gather();
        if self.neighbours.get(&user).is_none_or(BTreeSet::is_empty) && new.is_empty() {
            return false;
        }
        self.neighbours.insert(user, new.clone()) != Some(new)
    }

    /// All neighbours with their kinds.
    pub fn neighbours(&self) -> impl Iterator<Item = (&User, &Neighbour)> {
        self.neighbours.iter().flat_map(|(user, all)| all.iter().map(move |neighbour| (user, neighbour)))
    }

    /// Reserves an address and port. If it is already reserved, its user is replaced.
    pub fn reserve(&mut self, place: ReservedPort, user: User) {
        self.places.insert(place, user);
    }

    /// The reserved addresses and ports, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&ReservedPort, &User)> {
        self.places.iter()
    }
}

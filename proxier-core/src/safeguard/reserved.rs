//! Addresses and ports that the node itself cannot do without.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipvs::model::Protocol;
use ipvs::{RealServer, VirtualServerKey};

use crate::compile::{NodeFacts, Roles};
use crate::snapshot::is_usable_by_service;

/// Who answers at a reserved place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum User {
    /// The API server, as this program is told to reach it.
    ApiServer,
    /// An API server, as the endpoints of `default/kubernetes` have it.
    ApiServerEndpoint,
    /// A gateway of this node's default routes.
    Gateway,
    /// A name server of this node.
    NameServer,
    /// The kubelet of this node.
    Kubelet,
    /// This program's health checks.
    Health,
    /// This program's metrics.
    Metrics,
    /// Something else, by name.
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
            User::Other(name) => name,
        })
    }
}

/// A place that no virtual server may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservedPort {
    /// The address; `None` for every address of this node: those of its interfaces but the dummy device, and those of
    /// its Node object.
    pub address: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl ReservedPort {
    /// TCP at one address.
    pub fn tcp(address: IpAddr, port: u16) -> Self {
        ReservedPort { address: Some(address.to_canonical()), protocol: Protocol::Tcp, port }
    }

    /// TCP at every address of this node.
    pub fn tcp_here(port: u16) -> Self {
        ReservedPort { address: None, protocol: Protocol::Tcp, port }
    }
}

/// Somebody whom this node has to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Neighbour {
    /// The address.
    pub address: IpAddr,
    /// The TCP port on which it answers, where that counts: when the address is this node's own, only this port is
    /// reserved.
    pub tcp_port: Option<u16>,
}

impl Neighbour {
    /// Somebody with an address.
    pub fn new(address: IpAddr) -> Self {
        Neighbour { address: address.to_canonical(), tcp_port: None }
    }

    /// Somebody who answers on a TCP port.
    pub fn tcp(address: IpAddr, port: u16) -> Self {
        Neighbour { address: address.to_canonical(), tcp_port: Some(port) }
    }
}

/// What is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Extent {
    /// This address, protocol and port.
    ReservedPort,
    /// The address with all its ports: bound to the dummy device it would be this node itself.
    Address,
}

/// A virtual server that is not made because its place is reserved. Prints on one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Rejected {
    /// The virtual server.
    pub key: VirtualServerKey,
    /// Who answers there.
    pub user: User,
    /// What is reserved.
    pub extent: Extent,
}

impl Rejected {
    /// Why, without the place.
    pub fn reason(&self) -> String {
        match self.extent {
            Extent::ReservedPort => format!("{} answers there; not served unless allowed", self.user),
            Extent::Address => {
                format!(
                    "{} has that address, and this node could not reach it any more; not served unless allowed",
                    self.user
                )
            }
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.reason())
    }
}

/// What no virtual server may take. A Service with such an external or load-balancer address, or with such a node port,
/// would cut the node off from its cluster, or the cluster from its node.
///
/// **Places**, each an address and port. Default: the kubelet (TCP 10250), this proxy's health checks (TCP 10256) and
/// metrics (TCP 10249), on every address of this node. What listens on other ports has to be named.
///
/// **Neighbours**, whom this node reaches over the network: bound to the dummy device, their addresses would lead to this
/// node itself, whatever the port, and nothing could take that back any more. A [`Proxier`](crate::proxier::Proxier) keeps
/// the gateways of the default routes and the endpoints of `default/kubernetes` here by itself; where the API server is
/// otherwise, and the name servers, its caller has to say ([`Reserved::set_neighbours`]). Refused are external and
/// load-balancer addresses; these are not:
///
/// * Cluster IPs. The API server gives them out, so a Service cannot choose one that is somebody's; and programs reach
///   the API server and cluster DNS by theirs.
/// * An address of this node itself (of an interface other than the dummy device), such as an API server's on its own node:
///   it is not bound. Of a neighbour with a TCP port, that port is reserved then.
/// * A load-balancer address that is a name server's: DNS that the cluster serves to its own nodes. Load balancers'
///   addresses are given out by a controller, external IPs by whoever may write a Service.
/// * A load-balancer address that is the API server's, while all endpoints are endpoints of `default/kubernetes`: it leads
///   there. Without endpoints it is refused, and the network decides.
///
/// [`Reserved::allow`] and [`Reserved::allow_address`] make exceptions.
///
/// ```
/// use proxier_core::safeguard::{ReservedPort, Reserved, User};
///
/// let mut reserved = Reserved::default();
/// reserved.reserve(ReservedPort::tcp([192, 168, 0, 1].into(), 6443), User::ApiServer);
/// // The operator knows better: nothing answers on the metrics port here.
/// assert_eq!(reserved.allow(&ReservedPort::tcp_here(Reserved::METRICS)), Some(User::Metrics));
/// assert_eq!(reserved.iter().count(), 3);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    places: BTreeMap<ReservedPort, User>,
    neighbours: BTreeMap<User, BTreeSet<Neighbour>>,
    allowed: BTreeSet<IpAddr>,
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

    /// Every place is free.
    pub fn none() -> Self {
        Reserved { places: BTreeMap::new(), neighbours: BTreeMap::new(), allowed: BTreeSet::new() }
    }

    /// These are the neighbours of a kind from now on, in place of those before. Addresses that no Service can have, such
    /// as loopback ones, are left out. Says whether anything changed.
    pub fn set_neighbours(&mut self, user: User, neighbours: impl IntoIterator<Item = Neighbour>) -> bool {
        let new: BTreeSet<Neighbour> =
            neighbours.into_iter().filter(|neighbour| is_usable_by_service(neighbour.address)).collect();
        if self.neighbours.get(&user).is_none_or(BTreeSet::is_empty) && new.is_empty() {
            return false;
        }
        self.neighbours.insert(user, new.clone()) != Some(new)
    }

    /// An address may be taken, whosever it is and will be.
    pub fn allow_address(&mut self, address: IpAddr) {
        self.allowed.insert(address.to_canonical());
    }

    /// The neighbours, by kind.
    pub fn neighbours(&self) -> impl Iterator<Item = (&User, &Neighbour)> {
        self.neighbours.iter().flat_map(|(user, all)| all.iter().map(move |neighbour| (user, neighbour)))
    }

    /// Reserves a place; one that is reserved gets this user.
    pub fn reserve(&mut self, place: ReservedPort, user: User) {
        self.places.insert(place, user);
    }

    /// A place is free. Says for whom it was reserved. One that is reserved on every address of the node can only be
    /// freed as a whole.
    pub fn allow(&mut self, place: &ReservedPort) -> Option<User> {
        self.places.remove(place)
    }

    /// The reserved places, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&ReservedPort, &User)> {
        self.places.iter()
    }

    /// Whether a virtual server must not be made because of its place, and for whose sake.
    pub fn refuses(&self, key: &VirtualServerKey, facts: &NodeFacts) -> Option<Rejected> {
        let VirtualServerKey::Address { protocol, addr, port } = *key else { return None };
        let at = |address| self.places.get(&ReservedPort { address, protocol, port });
        // Ports are compared first: an address of this node is looked for only when one fits.
        let user = at(Some(addr))
            .or_else(|| at(None).filter(|_| facts.is_own_address(addr)))
            .or_else(|| self.neighbour_here(*key).filter(|_| facts.is_own_address(addr)))?;
        Some(Rejected { key: *key, user: user.clone(), extent: Extent::ReservedPort })
    }

    /// Who answers at this address and port, if the address is this node's.
    fn neighbour_here(&self, key: VirtualServerKey) -> Option<&User> {
        let VirtualServerKey::Address { protocol: Protocol::Tcp, addr, port } = key else { return None };
        let here = Neighbour::tcp(addr, port);
        let mut users = self.neighbours.iter().filter(|(_, all)| all.contains(&here) && !self.allowed.contains(&addr));
        users.next().map(|(user, _)| user)
    }

    /// Whether a virtual server must not be made because of its address, and for whose sake. `real_servers` are those that
    /// traffic to it would get.
    pub fn refuses_address(
        &self,
        key: &VirtualServerKey,
        role: Roles,
        real_servers: &[RealServer],
        facts: &NodeFacts,
    ) -> Option<Rejected> {
        let VirtualServerKey::Address { addr, .. } = *key else { return None };
        if !role.intersects(Roles::EXTERNAL_IP | Roles::LOAD_BALANCER) {
            return None;
        }
        let balanced = role.contains(Roles::LOAD_BALANCER);
        let user = self.neighbours.iter().find(|(user, all)| {
            let is_free = match user {
                User::NameServer => balanced,
                User::ApiServer | User::ApiServerEndpoint => balanced && self.leads_to_api_server(real_servers),
                _ => false,
            };
            !is_free && has_address(all, addr)
        });
        let (user, _) = user.filter(|_| !self.allowed.contains(&addr) && !facts.is_here(addr))?;
        Some(Rejected { key: *key, user: user.clone(), extent: Extent::Address })
    }

    fn leads_to_api_server(&self, real_servers: &[RealServer]) -> bool {
        let Some(endpoints) = self.neighbours.get(&User::ApiServerEndpoint) else { return false };
        let is_one = |real: &RealServer| endpoints.contains(&Neighbour::tcp(real.key.addr, real.key.port));
        !real_servers.is_empty() && real_servers.iter().all(is_one)
    }
}

fn has_address(neighbours: &BTreeSet<Neighbour>, address: IpAddr) -> bool {
    neighbours.range(Neighbour::new(address)..).next().is_some_and(|neighbour| neighbour.address == address)
}

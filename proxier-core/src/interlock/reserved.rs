//! Addresses and ports that the node itself cannot do without.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipvs::VirtualServerKey;
use ipvs::model::Protocol;

use crate::compile::Facts;

/// Who answers at a reserved place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum User {
    /// The API server.
    ApiServer,
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
            User::ApiServer => "the API server",
            User::Kubelet => "the kubelet",
            User::Health => "this proxy's health checks",
            User::Metrics => "this proxy's metrics",
            User::Other(name) => name,
        })
    }
}

/// A place that no virtual server may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The address; `None` for every address of this node: those of its interfaces but the dummy device, and those of
    /// its Node object.
    pub address: Option<IpAddr>,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

impl Place {
    /// TCP at one address.
    pub fn tcp(address: IpAddr, port: u16) -> Self {
        Place { address: Some(address.to_canonical()), protocol: Protocol::Tcp, port }
    }

    /// TCP at every address of this node.
    pub fn tcp_here(port: u16) -> Self {
        Place { address: None, protocol: Protocol::Tcp, port }
    }
}

/// A virtual server that is not made because its place is reserved. Prints on one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Refusal {
    /// The virtual server.
    pub key: VirtualServerKey,
    /// Who answers there.
    pub user: User,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} answers there; not served unless allowed", self.key, self.user)
    }
}

/// Places that no virtual server may take. A Service with such an external or load-balancer address and port, or with
/// such a node port, would cut the node off from its cluster, or the cluster from its node.
///
/// Default: the kubelet (TCP 10250), this proxy's health checks (TCP 10256) and metrics (TCP 10249), on every address of
/// this node. What listens on other ports has to be named, and where the API server is has to be said: reserve the
/// addresses it listens on, as in a kubeconfig or in the endpoints of `default/kubernetes`. The cluster IP of that
/// Service is never refused, reserved or not: programs in pods reach the API server by it.
///
/// ```
/// use proxier_core::interlock::{Place, Reserved, User};
///
/// let mut reserved = Reserved::default();
/// reserved.reserve(Place::tcp([192, 168, 0, 1].into(), 6443), User::ApiServer);
/// // The operator knows better: nothing answers on the metrics port here.
/// assert_eq!(reserved.allow(&Place::tcp_here(Reserved::METRICS)), Some(User::Metrics));
/// assert_eq!(reserved.iter().count(), 3);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    places: BTreeMap<Place, User>,
}

impl Default for Reserved {
    fn default() -> Self {
        let mut reserved = Reserved::none();
        reserved.reserve(Place::tcp_here(Reserved::KUBELET), User::Kubelet);
        reserved.reserve(Place::tcp_here(Reserved::HEALTH), User::Health);
        reserved.reserve(Place::tcp_here(Reserved::METRICS), User::Metrics);
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
        Reserved { places: BTreeMap::new() }
    }

    /// Reserves a place; one that is reserved gets this user.
    pub fn reserve(&mut self, place: Place, user: User) {
        self.places.insert(place, user);
    }

    /// A place is free. Says for whom it was reserved. One that is reserved on every address of the node can only be
    /// freed as a whole.
    pub fn allow(&mut self, place: &Place) -> Option<User> {
        self.places.remove(place)
    }

    /// The reserved places, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&Place, &User)> {
        self.places.iter()
    }

    /// Whether a virtual server must not be made, and for whose sake.
    pub fn refuses(&self, key: &VirtualServerKey, facts: &Facts) -> Option<Refusal> {
        let VirtualServerKey::Address { protocol, addr, port } = *key else { return None };
        let at = |address| self.places.get(&Place { address, protocol, port });
        // Ports are compared first: an address of this node is looked for only when one fits.
        let user = at(Some(addr)).or_else(|| at(None).filter(|_| facts.is_own_address(addr)))?;
        Some(Refusal { key: *key, user: user.clone() })
    }
}

//! Routes that make networks local.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::{ItemFailures, PortError};
use crate::net::Network;

/// The mode that created a local route. Each has its own number in the kernel (`proto` and `metric` of `ip route`),
/// which outlives the process. So neither mode mistakes the other's routes for its own, and both may have one for the
/// same network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteOwner {
    /// Userspace mode.
    Userspace,
    /// IPVS mode, when it binds addresses with routes.
    Ipvs,
}

impl RouteOwner {
    /// Both owners.
    pub const ALL: [RouteOwner; 2] = [RouteOwner::Userspace, RouteOwner::Ipvs];

    /// The number: 118 or 119, which no program registered in iproute2's `rt_protos` has. As a metric it distinguishes
    /// the route from the kernel's own for a bound address, which has metric 0 and is preferred.
    pub const fn number(self) -> u8 {
        match self {
            RouteOwner::Userspace => 118,
            RouteOwner::Ipvs => 119,
        }
    }
}

/// A route that makes a network, or a single address, local.
///
/// Prints in `ip route`'s format: `local 10.96.0.0/12 dev lo src 192.0.2.10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalRoute {
    /// The network.
    pub network: Network,
    /// The source of this host's own packets to these addresses, if the program has not chosen one. It must be an
    /// address of this host. `None`: with IPv4 the destination itself, with IPv6 one that the kernel chooses.
    pub source: Option<IpAddr>,
}

impl LocalRoute {
    /// Creates a route without a source.
    pub fn new(network: Network) -> Self {
        LocalRoute { network: network.trunc(), source: None }
    }
}

impl fmt::Display for LocalRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "local {} dev lo", self.network)?;
        self.source.map_or(Ok(()), |source| write!(f, " src {source}"))
    }
}

/// Our own local routes: `ip route add local 10.96.0.0/12 dev lo proto 118 metric 118`. Packets to every address of
/// such a network end on this host, without binding any address.
pub trait LocalNetworks {
    /// Networks of this owner's routes, with the source address of each. Other programs' routes are not listed.
    ///
    /// # Errors
    /// If the routes could not be read completely.
    fn networks(&mut self, owner: RouteOwner) -> Result<BTreeMap<Network, Option<IpAddr>>, PortError>;

    /// Makes networks local. A network that this owner already has gets this source, without an interruption.
    ///
    /// A source that is not an address of this host fails ([`Invalid`](super::PortErrorKind::Invalid)). With IPv4 the
    /// kernel deletes the route when the host loses the source.
    fn add(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures;

    /// Deletes routes of this owner. A missing one counts as deleted.
    fn delete(&mut self, owner: RouteOwner, networks: &[Network]) -> ItemFailures;
}

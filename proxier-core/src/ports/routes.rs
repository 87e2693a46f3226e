//! Routes that make networks local.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::{ItemFailures, PortError};
use crate::net::Network;

/// Mode that made a local route. Each has a number of its own in the kernel (`proto` and `metric` of `ip route`), which stays
/// when the process is killed: neither mode takes the other's routes for its own, and both may have one for the same network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteOwner {
    /// Userspace mode.
    Userspace,
    /// IPVS mode, where it binds addresses by routes.
    Ipvs,
}

impl RouteOwner {
    /// Both.
    pub const ALL: [RouteOwner; 2] = [RouteOwner::Userspace, RouteOwner::Ipvs];

    /// The number: 118 or 119. No program that is registered in iproute2's `rt_protos` has either. As metric it keeps such a
    /// route apart from the one that the kernel makes for a bound address, which has metric 0 and is preferred.
    pub const fn number(self) -> u8 {
        match self {
            RouteOwner::Userspace => 118,
            RouteOwner::Ipvs => 119,
        }
    }
}

/// A route that makes a network, or a single address, local.
///
/// Prints as `ip route` has it: `local 10.96.0.0/12 dev lo src 192.0.2.10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalRoute {
    /// The network.
    pub network: Network,
    /// The source that this host's own packets to these addresses get, if the program has not chosen one. `None`: with IPv4
    /// the address that is connected to, with IPv6 one that the kernel chooses. It has to be an address of this host.
    pub source: Option<IpAddr>,
}

impl LocalRoute {
    /// A route without a source.
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

/// Local routes of our own: `ip route add local 10.96.0.0/12 dev lo proto 118 metric 118`. Packets to every address of such a
/// network end on this host, without any address being bound.
pub trait LocalNetworks {
    /// Networks of this owner's routes, with the source address of each; foreign routes are not listed.
    ///
    /// # Errors
    /// When the routes could not be read as a whole.
    fn networks(&mut self, owner: RouteOwner) -> Result<BTreeMap<Network, Option<IpAddr>>, PortError>;

    /// Makes networks local. One that this owner has already gets this source, without being away for a moment.
    ///
    /// A source that is no address of this host fails ([`Invalid`](super::PortErrorKind::Invalid)). With IPv4 the kernel
    /// deletes the route when the host loses the source.
    fn add(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures;

    /// Deletes routes of this owner; one that is not there counts as deleted.
    fn delete(&mut self, owner: RouteOwner, networks: &[Network]) -> ItemFailures;
}

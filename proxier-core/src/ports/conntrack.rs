//! Connection tracking.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::PortError;
use crate::net::{ByFamily, Family, Protocol};

/// Flows to forget, by destination of the client's packets.
///
/// A flow is forgotten when its original destination is one of the keys, with the protocol asked for, and the
/// endpoint that answers it is not among the value's addresses.
pub type UdpServices = BTreeMap<SocketAddr, BTreeSet<SocketAddr>>;

/// A number of flows, by family.
pub type Flows = ByFamily<usize>;

impl Flows {
    /// Number of both families together.
    pub fn total(self) -> usize {
        self.v4.saturating_add(self.v6)
    }

    /// Adds these.
    pub fn add(&mut self, more: Flows) {
        self.v4 = self.v4.saturating_add(more.v4);
        self.v6 = self.v6.saturating_add(more.v6);
    }
}

/// Tracked connections.
///
/// ```
/// use std::net::SocketAddr;
/// use proxier_core::fake::{FakeKernel, Flow};
/// use proxier_core::net::{Family, Protocol};
/// use proxier_core::ports::UdpServices;
///
/// let dns: SocketAddr = "10.96.0.10:53".parse()?;
/// let (old, new) = ("10.244.1.7:53".parse()?, "10.244.1.8:53".parse()?);
/// let mut kernel = FakeKernel::new();
/// for (client, endpoint) in [("192.0.2.7:4001", old), ("192.0.2.7:4002", new)] {
///     kernel.add_flow(Flow::udp(client.parse()?, dns, endpoint));
/// }
/// // Only the new endpoint answers from now on: the other client has to connect again.
/// let services = UdpServices::from([(dns, [new].into())]);
/// assert_eq!(kernel.ports().conntrack.find_udp(&services)?, [dns].into());
/// assert_eq!(kernel.ports().conntrack.forget_flows(Protocol::Udp, Family::V4, &services)?, 1);
/// assert_eq!(kernel.ports().conntrack.forget_flows(Protocol::Tcp, Family::V4, &services)?, 0); // there is none
/// assert_eq!(kernel.state().flows.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Conntrack {
    /// Deletes a family's flows of a protocol to these addresses and ports that none of the endpoints listed there answers; returns how
    /// many. After that, the next packet of a connection of TCP is one of a new connection to the kernel. Lists the kernel's table once for any number of addresses, and not at all if none is of the family.
    ///
    /// # Errors
    /// [`Unavailable`](super::PortErrorKind::Unavailable) without the module; when the table could not be listed.
    fn forget_flows(&mut self, protocol: Protocol, family: Family, services: &UdpServices) -> Result<usize, PortError>;

    /// The addresses and ports of those that have flows of UDP which [`forget_flows`](Conntrack::forget_flows) would delete. Only reads.
    ///
    /// # Errors
    /// As there.
    fn find_udp(&mut self, services: &UdpServices) -> Result<BTreeSet<SocketAddr>, PortError>;
}

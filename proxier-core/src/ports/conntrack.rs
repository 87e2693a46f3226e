//! Connection tracking.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::PortError;
use crate::net::{ByFamily, Family, Protocol};

/// Flows to forget, by destination of the client's packets, with the endpoints whose flows continue.
///
/// A flow is forgotten if its original destination is one of the keys, with the given protocol, and its endpoint is not
/// among the value's addresses.
pub type UdpServices = BTreeMap<SocketAddr, BTreeSet<SocketAddr>>;

/// A number of flows, by family.
pub type Flows = ByFamily<usize>;

impl Flows {
    /// The number of both families together.
    pub fn total(self) -> usize {
        self.v4.saturating_add(self.v6)
    }

    /// Adds these numbers.
    pub fn add(&mut self, more: Flows) {
        self.v4 = self.v4.saturating_add(more.v4);
        self.v6 = self.v6.saturating_add(more.v6);
    }
}

/// Tracked connections.
pub trait Conntrack {
    /// Deletes a family's flows of a protocol to these addresses and ports that none of the listed endpoints answers.
    /// Returns their number. For TCP, the kernel then treats the next packet of a connection as the first of a new one.
    /// Lists the kernel's table once for any number of addresses, and not at all if none is of the family.
    ///
    /// # Errors
    /// [`Unavailable`](super::PortErrorKind::Unavailable) without the module; also if the table could not be listed.
    fn forget_flows(&mut self, protocol: Protocol, family: Family, services: &UdpServices) -> Result<usize, PortError>;

    /// The addresses and ports with UDP flows that [`forget_flows`](Conntrack::forget_flows) would delete. Read-only.
    ///
    /// # Errors
    /// As [`forget_flows`](Conntrack::forget_flows).
    fn find_udp(&mut self, services: &UdpServices) -> Result<BTreeSet<SocketAddr>, PortError>;
}

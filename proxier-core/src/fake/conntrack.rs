//! Tracked connections.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ipvs::model::Protocol;

use crate::net::Family;
use crate::ports::UdpServices;

/// A tracked connection, seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Protocol of the flow.
    pub protocol: Protocol,
    /// The client.
    pub client: SocketAddr,
    /// Destination of the client's packets.
    pub destination: SocketAddr,
    /// Address and port that answers: an endpoint, or the destination itself if nothing was translated.
    pub endpoint: SocketAddr,
}

impl Flow {
    /// Creates a UDP flow.
    pub fn udp(client: SocketAddr, destination: SocketAddr, endpoint: SocketAddr) -> Self {
        Flow { protocol: Protocol::Udp, client, destination, endpoint }
    }

    /// Creates a TCP connection.
    pub fn tcp(client: SocketAddr, destination: SocketAddr, endpoint: SocketAddr) -> Self {
        Flow { protocol: Protocol::Tcp, client, destination, endpoint }
    }
}

/// Whether it has this protocol and is not answered by any of the listed endpoints.
fn is_stale(flow: &Flow, protocol: Protocol, services: &UdpServices) -> bool {
    flow.protocol == protocol
        && services.get(&flow.destination).is_some_and(|endpoints| !endpoints.contains(&flow.endpoint))
}

pub(super) fn find_udp(flows: &BTreeSet<Flow>, services: &UdpServices) -> BTreeSet<SocketAddr> {
    flows.iter().filter(|flow| is_stale(flow, Protocol::Udp, services)).map(|flow| flow.destination).collect()
}

pub(super) fn forget(flows: &mut BTreeSet<Flow>, protocol: Protocol, family: Family, services: &UdpServices) -> usize {
    let before = flows.len();
    flows.retain(|flow| Family::of(flow.destination.ip()) != family || !is_stale(flow, protocol, services));
    before.saturating_sub(flows.len())
}

//! Tracked connections.

use std::net::SocketAddr;

use ipvs::model::Protocol;

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

    /// Whether it has this protocol, and none of the endpoints listed for its destination answers it.
    pub(super) fn is_stale(&self, protocol: Protocol, services: &UdpServices) -> bool {
        self.protocol == protocol
            && services.get(&self.destination).is_some_and(|endpoints| !endpoints.contains(&self.endpoint))
    }
}

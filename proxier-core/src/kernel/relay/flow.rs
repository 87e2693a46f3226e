//! UDP: one socket per client of a listener, on which its endpoint replies.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::server::{Kind, Server, Shared, Ticket};
use super::socket::{is_exhausted, talk_to};
use crate::net::{EndpointKey, Protocol};
use crate::time::Moment;

/// A UDP listener and the flows of its clients.
#[derive(Debug)]
pub(super) struct UdpServer {
    pub(super) server: Arc<Server>,
    pub(super) socket: Arc<UdpSocket>,
    /// The flow of each client.
    pub(super) flows: BTreeMap<SocketAddr, u64>,
}

/// The datagrams between one client and one endpoint.
#[derive(Debug)]
pub(super) struct Flow {
    ticket: Ticket,
    /// Replies leave from the listener's address and port.
    listener: Arc<UdpSocket>,
    pub(super) socket: UdpSocket,
    pub(super) client: SocketAddr,
    pub(super) endpoint: EndpointKey,
    used: Moment,
    pub(super) timer: Option<Moment>,
}

impl Flow {
    /// A flow to the next endpoint in rotation. `Err(None)`: there is none for this client.
    pub(super) fn begin(
        ticket: Ticket,
        server: &UdpServer,
        client: SocketAddr,
        shared: &Shared,
        now: Moment,
    ) -> Result<Self, Option<Kind>> {
        let settings = shared.settings();
        let mut avoid = Vec::new();
        loop {
            let chosen = ticket.choose(client.ip(), &avoid, &settings, now);
            let Ok(endpoint) = chosen else {
                return Err((!avoid.is_empty()).then_some(Kind::Unanswered));
            };
            if shared.is_own(Protocol::Udp, endpoint) {
                avoid.push(endpoint);
                continue;
            }
            match talk_to(endpoint.into()) {
                Ok(socket) => {
                    let listener = Arc::clone(&server.socket);
                    return Ok(Flow { ticket, listener, socket, client, endpoint, used: now, timer: None });
                }
                Err(error) if is_exhausted(&error) => return Err(Some(Kind::Exhausted)),
                // It has no route.
                Err(_) => {
                    shared.failed_dials.fetch_add(1, Relaxed);
                    avoid.push(endpoint);
                }
            }
        }
    }

    pub(super) fn server_id(&self) -> u64 {
        self.ticket.server.id
    }

    /// When the flow ends if no more datagrams come.
    pub(super) fn end(&self, idle: Duration) -> Moment {
        self.used.saturating_add(idle)
    }

    /// The endpoint refused or cannot be reached. A client with affinity gets another one.
    pub(super) fn failed(&self) {
        self.ticket.server.leave(self.client.ip().to_canonical(), self.endpoint);
    }

    /// # Errors
    /// If the endpoint has refused an earlier datagram, or has no route. A datagram without room is dropped, as in a
    /// network.
    pub(super) fn send(&mut self, datagram: &[u8], now: Moment) -> io::Result<()> {
        self.used = now;
        match self.socket.send(datagram) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock && !is_exhausted(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Forwards one datagram from the endpoint to the client.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; otherwise the endpoint has refused.
    pub(super) fn answer(&mut self, buffer: &mut [u8], now: Moment) -> io::Result<()> {
        let length = self.socket.recv(buffer)?;
        self.used = now;
        // What the client does not accept is lost, as in a network.
        drop(self.listener.send_to(buffer.get(..length).unwrap_or_default(), self.client));
        Ok(())
    }
}

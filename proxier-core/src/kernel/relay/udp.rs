//! UDP: one socket per client of a listener, on which its endpoint replies.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::{Arc, Weak};

use nix::sys::socket::{MsgFlags, SockaddrStorage, recv, send, sendto};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::server::{Refusal, Server, Shared, Ticket, lock};
use super::socket::{is_exhausted, talk_to};
use super::splice::with_buffer;
use crate::net::EndpointKey;
use crate::time::Moment;

/// The datagrams between one client and one endpoint.
#[derive(Debug)]
pub(super) struct Flow {
    socket: Arc<UdpSocket>,
    pub(super) endpoint: EndpointKey,
    used: Moment,
    ticket: Ticket,
    /// Forwards the endpoint's datagrams.
    task: AbortHandle,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A listener with its socket, from which replies leave.
pub(super) struct UdpServer {
    pub(super) socket: UdpSocket,
    pub(super) server: Arc<Server>,
    pub(super) shared: Arc<Shared>,
}

impl UdpServer {
    /// Forwards clients' datagrams.
    pub(super) async fn serve(self: &Arc<Self>) -> Infallible {
        let receive = || {
            with_buffer(|buffer| {
                let (length, client) = self.socket.try_recv_from(buffer)?;
                self.ask(client, buffer.get(..length).unwrap_or_default());
                io::Result::Ok(())
            })
        };
        loop {
            // It only fails if an answer did not reach its client, which has closed its socket.
            drop(self.socket.async_io(Interest::READABLE, receive).await);
        }
    }

    /// Forwards a client's datagram. If the endpoint refused an earlier one, the flow ends and another starts.
    fn ask(self: &Arc<Self>, client: SocketAddr, datagram: &[u8]) {
        for _ in 0..2 {
            let socket = match self.socket_for(client) {
                Ok(socket) => socket,
                Err(refusal) => return self.shared.refuse(self.server.key, refusal),
            };
            match send(socket.as_raw_fd(), datagram, MsgFlags::empty()).map_err(io::Error::from) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock && !is_exhausted(&error) => {
                    self.end_failed(client, &socket);
                }
                // A datagram without room is dropped, as in a network.
                _ => return,
            }
        }
    }

    /// The socket of a client's flow, which is started if necessary.
    fn socket_for(self: &Arc<Self>, client: SocketAddr) -> Result<Arc<UdpSocket>, Refusal> {
        let mut flows = lock(&self.server.flows);
        if let Some(flow) = flows.get_mut(&client) {
            flow.used = self.shared.now();
            return Ok(Arc::clone(&flow.socket));
        }
        let ticket = Ticket::take(&self.shared, &self.server)?;
        let mut refused = Vec::new();
        loop {
            let endpoint = ticket.choose(client.ip(), &mut refused, &[])?;
            match talk_to(endpoint.into()).map(Arc::new) {
                Ok(socket) => {
                    let task = tokio::spawn(answer(Arc::downgrade(self), Arc::clone(&socket), client)).abort_handle();
                    let used = self.shared.now();
                    flows.insert(client, Flow { socket: Arc::clone(&socket), endpoint, used, ticket, task });
                    return Ok(socket);
                }
                Err(error) if is_exhausted(&error) => return Err(Refusal::Exhausted),
                // It has no route.
                Err(_) => {
                    self.shared.count_failed_dial();
                    refused.push(endpoint);
                }
            }
        }
    }

    /// Ends a flow whose endpoint has refused or cannot be reached. A client with affinity gets another one.
    fn end_failed(&self, client: SocketAddr, socket: &Arc<UdpSocket>) {
        let mut flows = lock(&self.server.flows);
        if let Some(flow) = flows.get(&client).filter(|flow| Arc::ptr_eq(&flow.socket, socket)) {
            flow.ticket.leave(client.ip(), flow.endpoint);
            flows.remove(&client);
        }
    }
}

/// Forwards the endpoint's datagrams to a client, until there was none in either direction for a while.
async fn answer(udp: Weak<UdpServer>, socket: Arc<UdpSocket>, client: SocketAddr) {
    let pass_on = || {
        with_buffer(|buffer| {
            let length = recv(socket.as_raw_fd(), buffer, MsgFlags::empty())?;
            let datagram = buffer.get(..length).unwrap_or_default();
            // What the client does not accept is lost, as in a network.
            if let Some(udp) = udp.upgrade() {
                let to = SockaddrStorage::from(client);
                let _is_sent = sendto(udp.socket.as_raw_fd(), datagram, &to, MsgFlags::empty());
            }
            io::Result::Ok(())
        })
    };
    let Some(idle) = udp.upgrade().map(|udp| udp.shared.settings().udp_idle) else { return };
    let mut left = idle;
    loop {
        let answered = timeout(left, socket.async_io(Interest::READABLE, pass_on)).await;
        let Some(udp) = udp.upgrade() else { return };
        if let Ok(Err(_)) = answered {
            return udp.end_failed(client, &socket);
        }
        let now = udp.shared.now();
        let mut flows = lock(&udp.server.flows);
        // Another flow of the client may have replaced this one.
        let Some(flow) = flows.get_mut(&client).filter(|flow| Arc::ptr_eq(&flow.socket, &socket)) else { return };
        if answered.is_ok() {
            flow.used = now;
        }
        left = flow.used.saturating_add(idle).saturating_sub(now);
        if left.is_zero() {
            flows.remove(&client);
            return;
        }
    }
}

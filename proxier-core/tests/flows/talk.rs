//! TCP connections that go on after their first packet, for modes that end them on the node and open new ones to endpoints.
//!
//! The mark of the packet follows as the connection's first data, by which the new connection is recognised. The world keeps no state: its answer
//! follows from the segment it sees. The node's own connections are those of ordinary sockets, since its stack would reset any other.

use std::cell::RefCell;
use std::io::{ErrorKind, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, socket};
use testkit::Netns;

use super::packet::{Packet, What, mark, recognize};
use super::wire::{ACK, Ip, PSH, SYN, TCP, tcp, word16, word32};

/// Ports for the connections of the mode only.
pub(crate) const MODES_PORTS: std::ops::RangeInclusive<u16> = 61_000..=65_535;

/// The world's first number in each connection.
const WORLDS_FIRST: u32 = 1;

/// The world's answer to an IP packet that has left the node.
pub(crate) fn answer(bytes: &[u8]) -> Option<Vec<u8>> {
    let ip = Ip::parse(bytes).filter(|ip| ip.protocol == TCP)?;
    let from = SocketAddr::new(ip.source, word16(ip.payload, 0)?);
    let to = SocketAddr::new(ip.to, word16(ip.payload, 2)?);
    let (number, acknowledged) = (word32(ip.payload, 4)?, word32(ip.payload, 8)?);
    match *ip.payload.get(13)? & (SYN | ACK) {
        // A packet with a mark has arrived already.
        SYN if !matches!(recognize(bytes)?.what, What::Packet { .. }) => {
            Some(tcp(to, from, SYN | ACK, (WORLDS_FIRST, number.wrapping_add(1)), &[]))
        }
        flags if flags == SYN | ACK => {
            let data = mark(to.port()).to_be_bytes();
            Some(tcp(to, from, PSH | ACK, (acknowledged, number.wrapping_add(1)), &data))
        }
        _ => None,
    }
}

/// The node's own connections.
#[derive(Default)]
pub(crate) struct Conversations {
    /// Connections that have not sent their mark.
    silent: RefCell<Vec<(u16, TcpStream)>>,
    /// Connections that have sent their mark; their end would be seen as a refusal.
    open: RefCell<Vec<TcpStream>>,
}

impl Conversations {
    /// Opens a connection from the node.
    pub(crate) fn open(&self, node: &Netns, packet: &Packet) {
        let family = if packet.source.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = node.run_in(|| socket(family, SockType::Stream, flags, SockProtocol::Tcp)).unwrap().unwrap();
        bind(fd.as_raw_fd(), &SockaddrStorage::from(packet.from())).unwrap();
        // The connection's packets show its fate.
        connect(fd.as_raw_fd(), &SockaddrStorage::from(packet.to)).unwrap_or_default();
        self.silent.borrow_mut().push((packet.number, fd.into()));
    }

    /// Sends the marks of connections that have been accepted.
    pub(crate) fn go_on(&self) {
        let silent = self.silent.take();
        for (number, mut stream) in silent {
            match stream.write_all(&mark(number).to_be_bytes()) {
                Ok(()) => self.open.borrow_mut().push(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.silent.borrow_mut().push((number, stream));
                }
                // Refused.
                Err(_) => {}
            }
        }
    }
}

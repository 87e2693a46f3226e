//! Small servers that answer with their own name, and clients: which server answers shows what a load balancer decided.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::netns::Netns;
use crate::witness::{Conversation, Transport, Witness, ask};

/// How long a client waits for a connection and for each answer. QEMU without KVM is slow.
pub const TIME_LIMIT: Duration = Duration::from_secs(10);

/// A [`Witness`] at one address, for clients that only need its name.
#[derive(Debug)]
pub struct NameServer {
    address: SocketAddr,
    _witness: Witness,
}

impl NameServer {
    /// Listens on a TCP address; port 0 takes a free one.
    pub fn tcp(namespace: &Netns, address: SocketAddr, name: &str) -> io::Result<Self> {
        Self::start(namespace, (Transport::Tcp, address), name)
    }

    /// Listens on a UDP address; port 0 takes a free one.
    pub fn udp(namespace: &Netns, address: SocketAddr, name: &str) -> io::Result<Self> {
        Self::start(namespace, (Transport::Udp, address), name)
    }

    fn start(namespace: &Netns, place: (Transport, SocketAddr), name: &str) -> io::Result<Self> {
        let witness = Witness::start(namespace, name, &[place])?;
        Ok(Self { address: witness.addresses().first().copied().unwrap_or(place.1), _witness: witness })
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Connects by TCP from the current thread's namespace, asks once and disconnects. Returns the name of the server that
/// answered.
pub fn connect_and_ask(address: SocketAddr) -> io::Result<String> {
    Ok(ask(Transport::Tcp, None, address, TIME_LIMIT)?.name)
}

/// Asks by UDP from a new port in the current thread's namespace. Returns the name of the server that answered.
pub fn ask_udp(address: SocketAddr) -> io::Result<String> {
    Ok(ask(Transport::Udp, None, address, TIME_LIMIT)?.name)
}

/// A TCP connection that stays open.
#[derive(Debug)]
pub struct Connection(Conversation);

impl Connection {
    /// Connects from the current thread's namespace, in which the connection stays.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        Conversation::open(Transport::Tcp, None, address, TIME_LIMIT).map(Self)
    }

    /// The name of the server at the other end.
    pub fn ask(&mut self) -> io::Result<String> {
        Ok(self.0.ask()?.name)
    }
}

//! Servers that answer with their own name and the client address that they see, and clients, over TCP, UDP and SCTP.
//! The answers show what a load balancer does to a packet.
//!
//! One-to-one SCTP associations use the same system calls as TCP connections, so std's TCP types hold them.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{KeepAlive, ReuseAddr, TcpKeepCount, TcpKeepIdle, TcpKeepInterval};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect, listen, setsockopt,
    socket,
};

use crate::netns::Netns;

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP. The kernel loads its module for the first socket.
    Sctp,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 3] = [Transport::Tcp, Transport::Udp, Transport::Sctp];
}

/// Answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// The name of the server.
    pub name: String,
    /// The client's address as the server saw it, after all translations.
    pub peer: SocketAddr,
    /// The client's own address, before translation.
    pub own: SocketAddr,
}

/// A server in a thread. It answers each line of a connection, and each datagram, with its name and the sender's
/// address. Dropping it stops it and closes its connections.
#[derive(Debug)]
pub struct Witness {
    addresses: Vec<SocketAddr>,
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// Listens on these addresses of a namespace; port 0 takes a free one. An unspecified IPv6 address also accepts
    /// IPv4.
    ///
    /// # Errors
    /// If an address does not exist, a port is taken, or the kernel has no SCTP.
    pub fn start(namespace: &Netns, name: &str, places: &[(Transport, SocketAddr)]) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        let (mut sources, mut addresses) = (vec![Source::Wake(woken)], Vec::new());
        namespace.run_in(|| {
            for (transport, address) in places {
                let (source, address) = Source::open(*transport, *address)?;
                sources.push(source);
                addresses.push(address);
            }
            io::Result::Ok(())
        })??;
        let name = name.to_owned();
        // The sockets already belong to the namespace, so the thread may run anywhere.
        let thread = thread::Builder::new().spawn(move || serve(sources, &name))?;
        Ok(Self { addresses, wake, thread: Some(thread) })
    }

    /// The addresses on which it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // The thread may have ended already.
        self.wake.write_all(b".").unwrap_or_default();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default();
        }
    }
}

enum Source {
    Wake(UnixStream),
    Listener(TcpListener),
    Connection(TcpStream, SocketAddr),
    Datagrams(UdpSocket),
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Source::Wake(socket) => socket.as_fd(),
            Source::Listener(socket) => socket.as_fd(),
            Source::Connection(socket, _) => socket.as_fd(),
            Source::Datagrams(socket) => socket.as_fd(),
        }
    }
}

impl Source {
    fn open(transport: Transport, address: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        if transport == Transport::Udp {
            let socket = UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            return Ok((Source::Datagrams(socket), address));
        }
        let fd = stream_socket(transport, address)?;
        setsockopt(&fd, ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
        listen(&fd, Backlog::new(1024)?)?;
        let listener = TcpListener::from(fd);
        let address = listener.local_addr()?;
        Ok((Source::Listener(listener), address))
    }
}

/// Does not block.
fn stream_socket(transport: Transport, address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let protocol = if transport == Transport::Sctp { SockProtocol::Sctp } else { SockProtocol::Tcp };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(socket(family, SockType::Stream, flags, protocol)?)
}

fn serve(mut sources: Vec<Source>, name: &str) {
    loop {
        let mut waiting: Vec<PollFd<'_>> =
            sources.iter().map(|source| PollFd::new(source.as_fd(), PollFlags::POLLIN)).collect();
        match poll(&mut waiting, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return,
        }
        let ready: Vec<bool> = waiting.iter().map(|waiting| waiting.any().unwrap_or(false)).collect();
        let mut kept = Vec::with_capacity(sources.len());
        for (source, ready) in sources.into_iter().zip(ready) {
            match source {
                source if !ready => kept.push(source),
                Source::Wake(_) => return,
                Source::Listener(listener) => {
                    while let Ok((stream, peer)) = listener.accept() {
                        end_with_client(&stream);
                        kept.extend(stream.set_nonblocking(true).ok().map(|()| Source::Connection(stream, peer)));
                    }
                    kept.push(Source::Listener(listener));
                }
                Source::Connection(stream, peer) => {
                    // An error means that the client is gone.
                    if let Ok(true) = answer(&stream, name, peer) {
                        kept.push(Source::Connection(stream, peer));
                    }
                }
                Source::Datagrams(socket) => {
                    let mut buffer = [0; 2048];
                    while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
                        socket.send_to(statement(name, peer).as_bytes(), peer).map_or_else(drop, drop);
                    }
                    kept.push(Source::Datagrams(socket));
                }
            }
        }
        sources = kept;
    }
}

/// Closes a connection half a minute after its client has vanished. Otherwise open files would accumulate.
fn end_with_client(stream: &TcpStream) {
    let set = || {
        setsockopt(stream, KeepAlive, &true)?;
        setsockopt(stream, TcpKeepIdle, &20)?;
        setsockopt(stream, TcpKeepInterval, &5)?;
        setsockopt(stream, TcpKeepCount, &2)
    };
    // SCTP has its own heartbeats and does not support these options.
    set().unwrap_or_default();
}

fn statement(name: &str, peer: SocketAddr) -> String {
    format!("{name} {}\n", SocketAddr::new(peer.ip().to_canonical(), peer.port()))
}

/// Whether the connection continues.
fn answer(mut stream: &TcpStream, name: &str, peer: SocketAddr) -> io::Result<bool> {
    let mut buffer = [0; 2048];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(false),
            Ok(length) => {
                let questions = buffer.iter().take(length).filter(|byte| **byte == b'\n').count();
                stream.write_all(statement(name, peer).repeat(questions).as_bytes())?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

/// The client's end of a connection, or a UDP socket that sends to one address.
#[derive(Debug)]
pub struct Conversation {
    socket: Socket,
    own: SocketAddr,
}

#[derive(Debug)]
enum Socket {
    Stream(TcpStream),
    Datagrams(UdpSocket),
}

impl Conversation {
    /// Connects from the current thread's namespace, from a new port of `from` or of an address that the kernel
    /// chooses. The connection stays in that namespace. `limit` is the time limit of each step.
    ///
    /// An SCTP association uses only this address; the kernel would otherwise offer all of the host's.
    ///
    /// # Errors
    /// If the connection is refused, or not established in time ([`io::ErrorKind::TimedOut`]).
    pub fn open(transport: Transport, from: Option<IpAddr>, to: SocketAddr, limit: Duration) -> io::Result<Self> {
        Self::open_from_port(transport, from, 0, to, limit)
    }

    /// Opens like [`Conversation::open`], from this port; 0 lets the kernel choose one.
    ///
    /// # Errors
    /// As [`Conversation::open`], and if the port is taken.
    pub fn open_from_port(
        transport: Transport,
        from: Option<IpAddr>,
        port: u16,
        to: SocketAddr,
        limit: Duration,
    ) -> io::Result<Self> {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
        let datagrams = || {
            let socket = UdpSocket::bind(SocketAddr::new(from.unwrap_or(any), port))?;
            socket.connect(to)?;
            io::Result::Ok(socket)
        };
        if transport == Transport::Udp {
            let socket = datagrams()?;
            socket.set_read_timeout(Some(limit))?;
            return Ok(Self { own: socket.local_addr()?, socket: Socket::Datagrams(socket) });
        }
        let from = match (transport, from) {
            (Transport::Sctp, None) => Some(datagrams()?.local_addr()?.ip()),
            (Transport::Tcp, None) if port != 0 => Some(any),
            _ => from,
        };
        let fd = stream_socket(transport, to)?;
        if let Some(from) = from {
            // Allow a port on which a closed connection still lingers.
            setsockopt(&fd, ReuseAddr, &true)?;
            bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(from, port)))?;
        }
        match connect(fd.as_raw_fd(), &SockaddrStorage::from(to)) {
            Ok(()) => {}
            Err(Errno::EINPROGRESS) => wait_for_connection(&fd, limit)?,
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(fd);
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { own: stream.local_addr()?, socket: Socket::Stream(stream) })
    }

    /// Asks the server for its name and the address that it sees.
    ///
    /// # Errors
    /// If the connection is broken, or no answer comes in time ([`io::ErrorKind::TimedOut`]).
    pub fn ask(&mut self) -> io::Result<Answer> {
        let answered = match &mut self.socket {
            Socket::Stream(stream) => stream.write_all(b"who\n").and_then(|()| read_line(stream)),
            Socket::Datagrams(socket) => socket.send(b"who\n").and_then(|_| {
                let mut buffer = [0; 2048];
                let length = socket.recv(&mut buffer)?;
                Ok(String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned())
            }),
        };
        let line = answered.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "no answer"),
            _ => error,
        })?;
        let parsed = line.trim_end().split_once(' ').and_then(|(name, peer)| Some((name, peer.parse().ok()?)));
        let Some((name, peer)) = parsed else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("not an answer: {line:?}")));
        };
        Ok(Answer { name: name.to_owned(), peer, own: self.own })
    }
}

fn wait_for_connection(fd: &OwnedFd, limit: Duration) -> io::Result<()> {
    let limit = PollTimeout::try_from(limit).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    loop {
        match poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)], limit) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "no connection")),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn read_line(stream: &mut TcpStream) -> io::Result<String> {
    let mut line = Vec::new();
    let mut buffer = [0; 256];
    while !line.ends_with(b"\n") {
        match stream.read(&mut buffer) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
            Ok(length) => line.extend_from_slice(buffer.get(..length).unwrap_or_default()),
            // A read with a time limit is not restarted after a signal (signal(7)).
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Connects, asks once and disconnects: see [`Conversation::open`].
///
/// # Errors
/// As [`Conversation::open`] and [`Conversation::ask`].
pub fn ask(transport: Transport, from: Option<IpAddr>, to: SocketAddr, limit: Duration) -> io::Result<Answer> {
    Conversation::open(transport, from, to, limit)?.ask()
}

/// Sends one echo request (ICMP, or ICMPv6) from the current thread's namespace and waits for the answer.
///
/// The namespace's `net.ipv4.ping_group_range` must include the caller's group. By default it includes none.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`] if the answer is "port unreachable", [`io::ErrorKind::TimedOut`] without an
/// answer.
pub fn ping(to: IpAddr, limit: Duration) -> io::Result<()> {
    let (family, protocol, request, reply) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, 8, 0),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128, 129),
    };
    let socket = UdpSocket::from(socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)?);
    socket.connect(SocketAddr::new(to, 0))?;
    socket.set_read_timeout(Some(limit))?;
    // The kernel fills in checksum and identifier.
    socket.send(&[request, 0, 0, 0, 0, 0, 0, 1])?;
    let mut answer = [0; 64];
    match socket.recv(&mut answer) {
        Ok(_) if answer.first() == Some(&reply) => Ok(()),
        Ok(_) => Err(io::Error::new(io::ErrorKind::InvalidData, format!("not an echo: {:?}", answer.first()))),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

    use super::{Conversation, Transport, Witness, ask, ping};
    use crate::netns::Netns;
    use crate::traffic::TIME_LIMIT;

    #[test]
    fn both_ends_report_what_they_see() {
        crate::kernel_test(&[crate::Need::Root], || {
            let here = Netns::current().unwrap();
            let places: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, 7001).into(), (Ipv6Addr::LOCALHOST, 7001).into()];
            for transport in [Transport::Tcp, Transport::Udp] {
                let blue = Witness::start(&here, "blue", &places.map(|place| (transport, place))).unwrap();
                for place in places {
                    let answer = ask(transport, None, place, TIME_LIMIT).unwrap();
                    assert_eq!((&*answer.name, answer.peer), ("blue", answer.own));
                }
                let from = Ipv4Addr::new(127, 0, 0, 9).into();
                let mut long = Conversation::open(transport, Some(from), places[0], TIME_LIMIT).unwrap();
                assert_eq!(long.ask().unwrap().peer.ip(), from);
                assert_eq!(long.ask().unwrap(), long.ask().unwrap());
                drop(blue);
                assert!(long.ask().is_err(), "a stopped server closes its connections");
                assert!(ask(transport, None, places[0], TIME_LIMIT).is_err());
            }
            here.write_sysctl("net/ipv4/ping_group_range", "0 0").unwrap();
            for place in places {
                ping(place.ip(), TIME_LIMIT).unwrap();
            }
        });
    }
}

//! The relay's sockets and pipes.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, SpliceFFlags, splice};
use nix::libc;
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, SockaddrStorage, bind, connect, listen, setsockopt, shutdown,
    socket, sockopt,
};
use nix::unistd::pipe2;

use super::descriptors::{Descriptors, Use};
use super::server::Shared;
use crate::net::Family;

/// Idle seconds before the kernel sends keepalives; seconds between them; their number.
const KEEP_IDLE: u32 = 60;
const KEEP_INTERVAL: u32 = 15;
const KEEP_COUNT: u32 = 4;

fn open(family: Family, kind: SockType) -> Result<OwnedFd, Errno> {
    let family = match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    socket(family, kind, SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC, None)
}

/// Options of every connection. Urgent data stays in sequence, as RFC 6093 recommends, so nothing is lost or reordered.
fn connection(fd: &OwnedFd) -> Result<(), Errno> {
    setsockopt(fd, sockopt::TcpNoDelay, &true)?;
    setsockopt(fd, sockopt::OobInline, &true)?;
    setsockopt(fd, sockopt::KeepAlive, &true)?;
    setsockopt(fd, sockopt::TcpKeepIdle, &KEEP_IDLE)
}

/// Binds to an address that may become local only later.
fn bind_to(fd: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
    setsockopt(fd, sockopt::IpFreebind, &true)?;
    if address.is_ipv6() {
        setsockopt(fd, sockopt::Ipv6V6Only, &true)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))
}

/// Binds a TCP port, without listening yet. Accepted connections inherit the options.
pub(super) fn take_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let fd = open(Family::of(address.ip()), SockType::Stream)?;
    // Connections of an earlier process may be in TIME_WAIT. Two listening sockets still exclude each other.
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    connection(&fd)?;
    setsockopt(&fd, sockopt::TcpKeepInterval, &KEEP_INTERVAL)?;
    setsockopt(&fd, sockopt::TcpKeepCount, &KEEP_COUNT)?;
    bind_to(&fd, address)?;
    // While nothing listens, another program could bind a reusable port.
    setsockopt(&fd, sockopt::ReuseAddr, &false)?;
    Ok(TcpListener::from(fd))
}

/// Starts to accept connections. The backlog is `net.core.somaxconn`.
pub(super) fn start_listening(listener: &TcpListener) -> io::Result<()> {
    // Earlier connections may still be open.
    setsockopt(listener, sockopt::ReuseAddr, &true)?;
    Ok(listen(listener, Backlog::MAXALLOWABLE)?)
}

/// Refuses new connections but keeps the port. Connections not yet accepted are reset. Kernel: net/ipv4/af_inet.c,
/// `inet_shutdown` of a listening socket.
pub(super) fn stop_listening(listener: &TcpListener) -> io::Result<()> {
    shutdown(listener.as_raw_fd(), Shutdown::Read)?;
    Ok(setsockopt(listener, sockopt::ReuseAddr, &false)?)
}

/// Takes a UDP port.
pub(super) fn take_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let fd = open(Family::of(address.ip()), SockType::Datagram)?;
    bind_to(&fd, address)?;
    Ok(UdpSocket::from(fd))
}

/// Starts to connect to an endpoint. The attempt has ended when the socket becomes writable.
pub(super) fn dial(endpoint: SocketAddr) -> io::Result<TcpStream> {
    let fd = open(Family::of(endpoint.ip()), SockType::Stream)?;
    connection(&fd)?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(endpoint)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(fd)),
        Err(errno) => Err(errno.into()),
    }
}

/// A UDP socket connected to one endpoint.
pub(super) fn talk_to(endpoint: SocketAddr) -> io::Result<UdpSocket> {
    let fd = open(Family::of(endpoint.ip()), SockType::Datagram)?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(endpoint))?;
    Ok(UdpSocket::from(fd))
}

/// Closes a connection with a reset.
pub(super) fn reset(stream: TcpStream) {
    // If it cannot be reset, it is closed.
    if setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).is_err() {
        drop(stream.shutdown(std::net::Shutdown::Both));
    }
    drop(stream);
}

/// Whether opening failed because of missing descriptors or memory.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM))
}

/// A pipe, through which data moves between sockets without being copied.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    _descriptors: Descriptors,
}

/// The most data moved at once: a pipe holds sixteen parts of up to 64 KiB.
const AT_ONCE: usize = 1 << 20;

impl Pipe {
    /// `None`: no descriptors are available.
    pub(super) fn new(shared: &Shared) -> Option<Self> {
        let descriptors = shared.reserve(Use::Pipe)?;
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).ok()?;
        Some(Pipe { read, write, _descriptors: descriptors })
    }

    /// Moves received data from a socket into the empty pipe. 0: the other end has finished, or only urgent data
    /// follows.
    pub(super) fn fill(&self, from: impl AsFd) -> io::Result<usize> {
        Ok(splice(from, None, &self.write, None, AT_ONCE, flags())?)
    }

    /// Moves up to `length` bytes out of the pipe.
    pub(super) fn empty(&self, to: impl AsFd, length: usize) -> io::Result<usize> {
        Ok(splice(&self.read, None, to, None, length, flags())?)
    }
}

fn flags() -> SpliceFFlags {
    SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK
}

//! Sockets and pipes, as the relay opens them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::Arc;

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

/// Seconds for which a connection is idle before the kernel asks the other end whether it still lives; then seconds between questions, and
/// their number.
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

/// Options of every connection. Urgent data stays in its place among the rest, as RFC 6093 recommends: nothing is lost, and nothing is
/// passed on before its turn.
fn connection(fd: &OwnedFd) -> Result<(), Errno> {
    setsockopt(fd, sockopt::TcpNoDelay, &true)?;
    setsockopt(fd, sockopt::OobInline, &true)?;
    setsockopt(fd, sockopt::KeepAlive, &true)?;
    setsockopt(fd, sockopt::TcpKeepIdle, &KEEP_IDLE)
}

/// Binds to an address that may become local later.
fn bind_to(fd: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
    setsockopt(fd, sockopt::IpFreebind, &true)?;
    if address.is_ipv6() {
        setsockopt(fd, sockopt::Ipv6V6Only, &true)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address))
}

/// Takes a TCP port, without listening yet. The options hold for accepted connections too.
pub(super) fn take_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let fd = open(Family::of(address.ip()), SockType::Stream)?;
    // Connections of an earlier process may still be in TIME_WAIT. Two that listen exclude each other all the same.
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    connection(&fd)?;
    setsockopt(&fd, sockopt::TcpKeepInterval, &KEEP_INTERVAL)?;
    setsockopt(&fd, sockopt::TcpKeepCount, &KEEP_COUNT)?;
    bind_to(&fd, address)?;
    // While nothing is listened on, another program could take a port that is reused.
    setsockopt(&fd, sockopt::ReuseAddr, &false)?;
    Ok(TcpListener::from(fd))
}

/// Begins to accept connections. As many may wait as `net.core.somaxconn` says.
pub(super) fn start_listening(listener: &TcpListener) -> io::Result<()> {
    // Connections of an earlier time may be open.
    setsockopt(listener, sockopt::ReuseAddr, &true)?;
    Ok(listen(listener, Backlog::MAXALLOWABLE)?)
}

/// Refuses connections from now on, and keeps the port. Connections not yet accepted are reset. Kernel: net/ipv4/af_inet.c,
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

/// Begins a connection to an endpoint. It is made, or has failed, when it becomes writable.
pub(super) fn dial(endpoint: SocketAddr) -> io::Result<TcpStream> {
    let fd = open(Family::of(endpoint.ip()), SockType::Stream)?;
    connection(&fd)?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(endpoint)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(fd)),
        Err(errno) => Err(errno.into()),
    }
}

/// A UDP socket that speaks to one endpoint only.
pub(super) fn talk_to(endpoint: SocketAddr) -> io::Result<UdpSocket> {
    let fd = open(Family::of(endpoint.ip()), SockType::Datagram)?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(endpoint))?;
    Ok(UdpSocket::from(fd))
}

/// Closes a connection so that the other end sees a reset.
pub(super) fn reset(stream: TcpStream) {
    // What cannot be reset is closed.
    if setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 }).is_err() {
        drop(stream.shutdown(std::net::Shutdown::Both));
    }
    drop(stream);
}

/// Whether opening failed for want of descriptors or memory.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM))
}

/// A pipe, through which data goes from one socket to another without being copied.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    _descriptors: Descriptors,
}

/// The most data moved at once: sixteen parts of up to 64 KiB fit into a pipe.
const AT_ONCE: usize = 1 << 20;

impl Pipe {
    /// `None`: there are no descriptors for it.
    pub(super) fn new(shared: &Arc<Shared>) -> Option<Self> {
        let descriptors = Descriptors::reserve(shared, Use::Pipe)?;
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).ok()?;
        Some(Pipe { read, write, _descriptors: descriptors })
    }

    /// Moves what a socket has received into the empty pipe. 0: the other end will send no more, or nothing before urgent data.
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

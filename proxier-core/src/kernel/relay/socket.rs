//! The relay's sockets.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, SockaddrStorage, bind, connect, listen, setsockopt, shutdown,
    socket, sockopt,
};
use tokio::net::{TcpSocket, TcpStream};

/// Idle seconds before the kernel sends keepalives; seconds between them; their number.
const KEEP_IDLE: u32 = 60;
const KEEP_INTERVAL: u32 = 15;
const KEEP_COUNT: u32 = 4;

fn open(address: SocketAddr, kind: SockType) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
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
    let fd = open(address, SockType::Stream)?;
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
pub(super) fn stop_listening(listener: &(impl AsFd + AsRawFd)) -> io::Result<()> {
    shutdown(listener.as_raw_fd(), Shutdown::Read)?;
    Ok(setsockopt(listener, sockopt::ReuseAddr, &false)?)
}

/// Takes a UDP port.
pub(super) fn take_udp(address: SocketAddr) -> io::Result<UdpSocket> {
    let fd = open(address, SockType::Datagram)?;
    bind_to(&fd, address)?;
    Ok(UdpSocket::from(fd))
}

/// Connects to an endpoint.
pub(super) async fn dial(endpoint: SocketAddr) -> io::Result<TcpStream> {
    let fd = open(endpoint, SockType::Stream)?;
    connection(&fd)?;
    TcpSocket::from_std_stream(fd.into()).connect(endpoint).await
}

/// A UDP socket connected to one endpoint.
pub(super) fn talk_to(endpoint: SocketAddr) -> io::Result<tokio::net::UdpSocket> {
    let fd = open(endpoint, SockType::Datagram)?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(endpoint))?;
    tokio::net::UdpSocket::from_std(fd.into())
}

/// Closes a connection with a reset.
pub(super) fn reset(stream: TcpStream) {
    // If it cannot be reset, it is closed.
    let _is_reset = setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 });
    drop(stream);
}

/// Whether opening failed because of missing descriptors or memory, or because epoll waits for too many.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM | Errno::ENOSPC))
}

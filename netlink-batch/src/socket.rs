//! The real transport: one netlink socket. The only file with system calls.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use neli::consts::socket::{Msg, NlFamily};
use neli::socket::NlSocket;
use neli::utils::Groups;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::connection::Transport;
use crate::error::Error;

/// The netlink protocol of a socket (`NETLINK_*`, linux/netlink.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// Links, addresses, routes, rules: `NETLINK_ROUTE`.
    Route,
    /// ipset, conntrack, nftables: `NETLINK_NETFILTER`.
    Netfilter,
    /// Generic netlink: families that are looked up by name, such as IPVS: `NETLINK_GENERIC`.
    Generic,
}

/// Maps to neli's protocol. Not a `From`, which would make neli's type public.
fn family(protocol: Protocol) -> NlFamily {
    match protocol {
        Protocol::Route => NlFamily::Route,
        Protocol::Netfilter => NlFamily::Netfilter,
        Protocol::Generic => NlFamily::Generic,
    }
}

/// Requested size of the receive buffer. With `CAP_NET_ADMIN` the system's limit does not apply (`SO_RCVBUFFORCE`).
const RECEIVE_BUFFER: usize = 1 << 20;

/// Bytes of the send buffer that the kernel reserves (net/netlink/af_netlink.c, `netlink_sendmsg`).
const SEND_OVERHEAD: usize = 32;

/// The largest size to request: the kernel doubles it in a signed 32-bit integer.
const BUFFER_MOST: usize = (1 << 30) - 1;

/// Most bytes of the receive buffer that one queued error answer takes. The kernel charges the memory of the whole
/// `sk_buff`, which holds the request's header and the message text, rounded up to a power of two
/// (net/netlink/af_netlink.c, `netlink_ack`).
const ANSWER_COST: usize = 2048;

/// The longest single wait; longer waits repeat it. The kernel's time type cannot hold much larger values.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// A bound netlink socket with extended errors enabled. Answers do not repeat the request.
///
/// [`Socket::open_in`] opens one in another network namespace, such as a pod's. That needs `CAP_SYS_ADMIN`.
pub struct Socket {
    inner: NlSocket,
    port: u32,
    in_flight: usize,
    timeout: Duration,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("port", &self.port).field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// `Io` if the kernel refuses the socket or its options.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        Self::open_groups(protocol, &[])
    }

    /// Opens a socket that also receives these multicast groups.
    ///
    /// # Errors
    /// `Io` if the kernel refuses the socket, its options or a group.
    pub fn open_groups(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        let socket = NlSocket::connect(family(protocol), None, Groups::new_groups(groups))
            .map_err(|error| Error::io("opening a netlink socket", error))?;
        configure(&socket).map_err(|error| Error::io("setting netlink socket options", error))?;
        let port = socket.pid().map_err(|error| Error::io("reading the netlink port id", error))?;
        let mut socket = Socket { inner: socket, port, in_flight: 1, timeout: Duration::ZERO };
        socket.set_receive_buffer(RECEIVE_BUFFER)?;
        Ok(socket)
    }

    /// Sets how many unread bytes the kernel keeps, at most 2^30. Returns the size granted, which includes the kernel's
    /// bookkeeping and is about twice the request. Without `CAP_NET_ADMIN` in the initial user namespace,
    /// `net.core.rmem_max` limits the size.
    ///
    /// The default is 1 MiB, which is plenty for answers. Raise it for events that arrive faster than you read them.
    ///
    /// # Errors
    /// `Io`.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<usize, Error> {
        let fd = borrow(&self.inner);
        let bytes = bytes.min(BUFFER_MOST);
        let failed = |error: nix::errno::Errno| Error::io("setting the size of the receive buffer", error.into());
        if setsockopt(&fd, sockopt::RcvBufForce, &bytes).is_err() {
            // Without CAP_NET_ADMIN the kernel clamps the size to net.core.rmem_max.
            setsockopt(&fd, sockopt::RcvBuf, &bytes).map_err(failed)?;
        }
        let granted = getsockopt(&fd, sockopt::RcvBuf).map_err(failed)?;
        self.in_flight = (granted / ANSWER_COST).max(1);
        Ok(granted)
    }

    /// Opens a socket in another network namespace, given by an open file such as `/proc/<pid>/ns/net` or
    /// `/run/netns/<name>`. The calling thread's namespace is unchanged when this returns.
    ///
    /// # Errors
    /// `Io` if the namespace cannot be entered (this needs `CAP_SYS_ADMIN`) or the socket cannot be opened.
    pub fn open_in(protocol: Protocol, namespace: BorrowedFd<'_>) -> Result<Self, Error> {
        Self::open_groups_in(protocol, &[], namespace)
    }

    /// Opens a socket in another network namespace that also receives these multicast groups.
    ///
    /// # Errors
    /// As [`Socket::open_in`] and [`Socket::open_groups`].
    pub fn open_groups_in(protocol: Protocol, groups: &[u32], namespace: BorrowedFd<'_>) -> Result<Self, Error> {
        // Use a separate thread: if switching back failed, the caller would stay in the wrong namespace.
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                setns(namespace, CloneFlags::CLONE_NEWNET)
                    .map_err(|error| Error::io("entering the network namespace", error.into()))?;
                Self::open_groups(protocol, groups)
            });
            opened.join().unwrap_or_else(|_| {
                Err(Error::io(
                    "opening a netlink socket",
                    io::Error::other("the thread in that network namespace ended early"),
                ))
            })
        })
    }
}

/// Lends the descriptor to a `nix` call.
fn borrow(socket: &NlSocket) -> BorrowedFd<'_> {
    // SAFETY: the descriptor stays open while `socket` lives, and the returned borrow cannot outlive `socket`.
    #[expect(unsafe_code, reason = "neli's socket lends its descriptor only as a number")]
    unsafe {
        BorrowedFd::borrow_raw(socket.as_raw_fd())
    }
}

fn configure(socket: &NlSocket) -> io::Result<()> {
    socket.enable_ext_ack(true)?;
    // Since Linux 4.3. Without it answers repeat the request, which only costs space.
    netlink_option(socket, libc::NETLINK_CAP_ACK)
}

fn netlink_option(socket: &NlSocket, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of_val(&on)).unwrap_or_default();
    // SAFETY: the pointer and the length describe `on`, which outlives the call; the descriptor is open.
    #[expect(unsafe_code, reason = "nix has no NETLINK_CAP_ACK")]
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_NETLINK, option, std::ptr::from_ref(&on).cast(), size)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        borrow(&self.inner)
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl Transport for Socket {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        loop {
            return match self.inner.send(datagram, Msg::empty()) {
                Ok(sent) if sent == datagram.len() => Ok(()),
                Ok(sent) => Err(io::Error::other(format!("only {sent} of {} bytes were sent", datagram.len()))),
                // After an interruption the kernel has not processed the datagram yet.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }

    fn receive(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        // MSG_TRUNC makes the kernel return the full length even if the datagram does not fit.
        let mut flags = Msg::TRUNC;
        let timeout = timeout.min(LONGEST_WAIT);
        if timeout.is_zero() {
            flags |= Msg::DONTWAIT;
        } else if timeout != self.timeout {
            // Zero would mean no timeout.
            let micros = i64::try_from(timeout.as_micros().max(1)).unwrap_or(i64::MAX);
            setsockopt(&borrow(&self.inner), sockopt::ReceiveTimeout, &TimeVal::microseconds(micros))?;
            self.timeout = timeout;
        }
        self.inner.recv(buffer, flags).map(|(length, _)| length)
    }

    fn port(&self) -> u32 {
        self.port
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn reserve(&mut self, bytes: usize) -> io::Result<usize> {
        let fd = borrow(&self.inner);
        let limit = |size: usize| size.saturating_sub(SEND_OVERHEAD);
        let size = limit(getsockopt(&fd, sockopt::SndBuf)?);
        if bytes <= size {
            return Ok(size);
        }
        // The kernel doubles the size for its bookkeeping and allocates memory only when something is sent.
        let wanted = bytes.saturating_add(SEND_OVERHEAD).min(BUFFER_MOST);
        if setsockopt(&fd, sockopt::SndBufForce, &wanted).is_err() {
            // Without CAP_NET_ADMIN the kernel clamps the size to net.core.wmem_max.
            setsockopt(&fd, sockopt::SndBuf, &wanted)?;
        }
        Ok(limit(getsockopt(&fd, sockopt::SndBuf)?))
    }
}

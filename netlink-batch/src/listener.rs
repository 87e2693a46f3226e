//! Multicast messages: what the kernel tells without being asked.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use crate::connection::Transport;
use crate::error::{Errno, Error, ErrorKind, WireError};
use crate::message::{Content, Messages};
use crate::socket::{Protocol, Socket};

const CONTEXT: &str = "waiting for netlink events";

/// Room for one datagram. It grows when a longer one came.
const RECEIVE: usize = 64 << 10;

/// A socket that hears what the kernel tells some multicast groups.
///
/// The socket sends no requests: answers and events on one socket would hold each other up. Listen first and read the state afterwards,
/// over a [`Connection`](crate::Connection), so that nothing is missed between.
///
/// [`AsFd`] gives the descriptor to wait on in a loop of one's own (`poll`, `epoll`, an async runtime): when it is readable,
/// [`wait`](Listener::wait) with a timeout of zero until that gives `None`. With tokio:
///
/// ```no_run
/// use std::time::Duration;
/// use netlink_batch::{ErrorKind, Listener, Protocol};
/// use tokio::io::{Interest, unix::AsyncFd};
///
/// # #[allow(deprecated)]
/// # async fn follow() -> Result<(), Box<dyn std::error::Error>> {
/// // Or, since tokio 1.54, the unsafe `register_with_interest`: this descriptor stays open, and the same, for as long as it has to.
/// let mut listener = AsyncFd::with_interest(Listener::open(Protocol::Route, &[1])?, Interest::READABLE)?;
/// loop {
///     let mut ready = listener.readable_mut().await?;
///     match ready.get_inner_mut().wait(Duration::ZERO, |kind, _payload| Ok(kind)) {
///         Ok(Some(kinds)) => println!("{kinds:?}"),
///         Ok(None) => ready.clear_ready(),
///         Err(error) if *error.kind() == ErrorKind::StateUnknown => println!("read everything again"),
///         Err(error) => return Err(error.into()),
///     }
/// }
/// # }
/// ```
pub struct Listener<T = Socket> {
    transport: T,
    buffer: Vec<u8>,
}

impl<T: fmt::Debug> fmt::Debug for Listener<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("transport", &self.transport).finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens in the calling thread's network namespace. Groups are numbers (`RTNLGRP_*`, `NFNLGRP_*`), not bits of a mask; those of
    /// a generic-netlink family have names, which [`Genl::group`](crate::Genl::group) looks up.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] when the kernel refuses the socket or a group. Some groups take `CAP_NET_ADMIN`.
    pub fn open(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        Socket::open_groups(protocol, groups).map(Self::with_transport)
    }

    /// Listens in another network namespace; see [`Socket::open_in`].
    ///
    /// # Errors
    /// As [`Listener::open`] and [`Socket::open_in`].
    pub fn open_in(protocol: Protocol, groups: &[u32], namespace: BorrowedFd<'_>) -> Result<Self, Error> {
        Socket::open_groups_in(protocol, groups, namespace).map(Self::with_transport)
    }

    /// Sets how many bytes of events the kernel keeps until they are read; see [`Socket::set_receive_buffer`]. Default: 1 MiB.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<usize, Error> {
        self.transport.set_receive_buffer(bytes)
    }
}

impl<T: Transport> Listener<T> {
    /// Listens on any transport.
    pub fn with_transport(transport: T) -> Self {
        Listener { transport, buffer: vec![0; RECEIVE] }
    }

    /// Waits for one datagram of events and gives what `read` makes of each of its messages; `None` when none came within `timeout`.
    /// With a timeout of zero it does not wait.
    ///
    /// `read` sees each message's type and what follows the message header.
    ///
    /// # Errors
    /// [`ErrorKind::StateUnknown`] when events were lost, because they were not read fast enough: read the state again; later events
    /// will come. [`ErrorKind::Malformed`] with the first error of `read`, which loses the datagram; [`ErrorKind::Io`].
    pub fn wait<E>(
        &mut self,
        timeout: Duration,
        mut read: impl FnMut(u16, &[u8]) -> Result<E, WireError>,
    ) -> Result<Option<Vec<E>>, Error> {
        let Some(length) = self.receive(timeout)? else { return Ok(None) };
        let Some(datagram) = self.buffer.get(..length) else {
            // Cut off. The next one of that length will fit.
            self.buffer.resize(length, 0);
            return Err(Error::new(ErrorKind::StateUnknown, CONTEXT));
        };
        let malformed = |error| Error::new(ErrorKind::Malformed(error), CONTEXT);
        let mut events = Vec::new();
        for message in Messages::new(datagram) {
            let message = message.map_err(malformed)?;
            match message.content().map_err(malformed)? {
                Content::Data(payload) => events.push(read(message.header.kind, payload).map_err(malformed)?),
                Content::Overrun => return Err(Error::new(ErrorKind::StateUnknown, CONTEXT)),
                _ => {}
            }
        }
        Ok(Some(events))
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<usize>, Error> {
        // `None`: later than the clock can tell.
        let deadline = Instant::now().checked_add(timeout);
        let mut left = timeout;
        loop {
            let error = match self.transport.receive(&mut self.buffer, left) {
                Ok(length) => return Ok(Some(length)),
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {}
                _ if error.raw_os_error() == Some(Errno::ENOBUFS.0) => {
                    return Err(Error::new(ErrorKind::StateUnknown, CONTEXT));
                }
                _ => return Err(Error::io(CONTEXT, error)),
            }
            left = deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            // A signal is no reason to give up what can be had without waiting.
            if left.is_zero() && error.kind() != io::ErrorKind::Interrupted {
                return Ok(None);
            }
        }
    }
}

impl<T: AsFd> AsFd for Listener<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

/// Descriptor for tokio's `AsyncFd`, which needs this trait.
impl<T: AsFd> AsRawFd for Listener<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.transport.as_fd().as_raw_fd()
    }
}

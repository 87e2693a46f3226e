//! Multicast messages: events that the kernel sends without a request.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use crate::connection::Transport;
use crate::error::{Errno, Error, ErrorKind, WireError};
use crate::message::{Content, Messages};
use crate::socket::{Protocol, Socket};

const CONTEXT: &str = "waiting for netlink events";

/// Initial room for one datagram. It grows when a longer one arrives.
const RECEIVE: usize = 64 << 10;

/// A socket that receives multicast groups of the kernel.
///
/// The socket sends no requests, because answers and events on one socket would delay each other. Start to listen first
/// and then read the state over a [`Connection`](crate::Connection), so that no change is missed in between.
///
/// [`AsFd`] lends the descriptor to your event loop (`poll`, `epoll`, an async runtime). When it is readable, call
/// [`wait`](Listener::wait) with a timeout of zero until it returns `None`. With tokio:
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
    /// Listens in the calling thread's network namespace. Groups are numbers (`RTNLGRP_*`, `NFNLGRP_*`), not bits of a
    /// mask. [`Genl::group`](crate::Genl::group) looks up the groups of a generic-netlink family by name.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the kernel refuses the socket or a group. Some groups need `CAP_NET_ADMIN`.
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

    /// Sets how many bytes of unread events the kernel keeps; see [`Socket::set_receive_buffer`]. Default: 1 MiB.
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

    /// Waits for one datagram of events and returns what `read` makes of each message. `None` if no datagram came
    /// within `timeout`. A timeout of zero does not wait.
    ///
    /// `read` gets each message's type and the bytes behind the message header.
    ///
    /// # Errors
    /// [`ErrorKind::StateUnknown`] if events were lost because they were not read fast enough: read the state again;
    /// the listener stays usable. [`ErrorKind::Malformed`] with the first error of `read`, which discards the datagram.
    /// [`ErrorKind::Io`].
    pub fn wait<E>(
        &mut self,
        timeout: Duration,
        mut read: impl FnMut(u16, &[u8]) -> Result<E, WireError>,
    ) -> Result<Option<Vec<E>>, Error> {
        let Some(length) = self.receive(timeout)? else { return Ok(None) };
        let Some(datagram) = self.buffer.get(..length) else {
            // Truncated. The next datagram of this length will fit.
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
        // `None`: beyond what the clock can represent; wait indefinitely.
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
            // A signal must not prevent reading what is queued already.
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

/// tokio's `AsyncFd` needs this trait.
impl<T: AsFd> AsRawFd for Listener<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.transport.as_fd().as_raw_fd()
    }
}

//! Places for connections, and who loses one when all are taken. Does not read or write HTTP.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// A limit on connections, shared by all servers that have a clone.
///
/// When all places are taken, a new connection replaces the least valuable one ([`Worth`]). In addition, at most as many
/// may be ending.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    taken: Mutex<Vec<Arc<Connection>>>,
    /// A connection ended.
    left: Notify,
}

/// The value of a connection when its place is needed, least first; of equals, the one longest in that state goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Idle between two requests.
    Idle,
    /// The request head has been incomplete for a while.
    Silent,
    /// Answered once, and more bytes have come since.
    Answered,
    /// A client that does not receive its answer.
    Stalled,
    /// First request arriving, or answer being written: ended last.
    Busy,
}

/// Time that a connection has to send its request before another may replace it.
const GRACE: Duration = Duration::from_millis(20);
/// An answer that the client does not receive for this long is stalled.
const STALLED: Duration = Duration::from_millis(200);
/// Time without a connection to spare after which a busy one is ended.
const PATIENCE: Duration = Duration::from_millis(200);
/// Pause between two searches for a connection to spare.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between two requests: the answer is written, no byte of another request has come.
    Idle,
    /// The head of a request has not arrived completely.
    Head,
    /// A request is being answered. `taken`: the HTTP layer has the whole answer, and still has to write it.
    Answer { taken: bool },
}

/// A connection and its phase.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// The phase, and since when.
    phase: Mutex<(Phase, Instant)>,
    answered: AtomicBool,
    ends: AtomicBool,
    end: Notify,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        let phase = Mutex::new((Phase::Head, Instant::now()));
        let [answered, ends] = [false; 2].map(AtomicBool::new);
        Connection { stream, phase, answered, ends, end: Notify::new() }
    }

    fn phase(&self) -> MutexGuard<'_, (Phase, Instant)> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Address of the client; `None`: it is already gone.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        self.stream.peer_addr().ok().map(|peer| peer.ip())
    }

    /// A whole request head has arrived.
    pub(super) fn asked(&self) {
        *self.phase() = (Phase::Answer { taken: false }, Instant::now());
    }

    /// The HTTP layer has the whole answer.
    pub(super) fn taken(&self) {
        if let (Phase::Answer { taken }, _) = &mut *self.phase() {
            *taken = true;
        }
    }

    /// The HTTP layer has written everything it had.
    fn flushed(&self) {
        let mut phase = self.phase();
        if phase.0 == (Phase::Answer { taken: true }) {
            *phase = (Phase::Idle, Instant::now());
            self.answered.store(true, Ordering::Relaxed);
        }
    }

    fn received(&self) {
        let mut phase = self.phase();
        if phase.0 == Phase::Idle {
            *phase = (Phase::Head, Instant::now());
        }
    }

    /// Time since which its answer is being written.
    pub(super) fn answering_since(&self) -> Option<Instant> {
        let (phase, since) = *self.phase();
        matches!(phase, Phase::Answer { .. }).then_some(since)
    }

    /// Waits until it has to give up its place.
    pub(super) async fn ended(&self) {
        self.end.notified().await;
    }

    fn is_ending(&self) -> bool {
        self.ends.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
        self.end.notify_one();
    }

    /// Value of the connection, and since when.
    fn worth(&self, now: Instant) -> (Worth, Instant) {
        let (phase, since) = *self.phase();
        let age = now.saturating_duration_since(since);
        let worth = match phase {
            Phase::Idle if !self.has_bytes() => Worth::Idle,
            Phase::Head if age >= GRACE && !self.has_bytes() => Worth::Silent,
            Phase::Idle | Phase::Head if self.answered.load(Ordering::Relaxed) => Worth::Answered,
            Phase::Answer { .. } if age >= STALLED => Worth::Stalled,
            _ => Worth::Busy,
        };
        (worth, since)
    }

    /// Whether received bytes have not been read yet.
    fn has_bytes(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.stream.as_raw_fd(), &mut [0; 1], flags).is_ok_and(|bytes| bytes > 0)
    }
}

/// A place that is taken. Dropping it frees it.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    pub(super) connection: Arc<Connection>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().retain(|taken| !Arc::ptr_eq(taken, &self.connection));
        self.places.0.left.notify_waiters();
    }
}

impl Places {
    /// A limit of this many places.
    pub(crate) fn new(limit: usize) -> Self {
        Places(Arc::new(Inner { limit, taken: Mutex::default(), left: Notify::new() }))
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection; when all are taken, another connection's.
    pub(super) async fn enter(&self, stream: TcpStream) -> Place {
        let connection = Arc::new(Connection::new(stream));
        let begun = Instant::now();
        loop {
            let left = self.0.left.notified();
            {
                let mut taken = self.taken();
                let ending = taken.iter().filter(|other| other.is_ending()).count();
                let is_free = taken.len().saturating_sub(ending) < self.0.limit;
                if ending < self.0.limit && (is_free || end_one(&taken, begun.elapsed() >= PATIENCE)) {
                    taken.push(connection.clone());
                    return Place { places: self.clone(), connection };
                }
            }
            // Either a connection ended, or there may be one to spare by now.
            let _either = tokio::time::timeout(LOOK_AGAIN, left).await;
        }
    }

    /// Ends a connection, because descriptors are short.
    pub(super) fn spare_one(&self) {
        let _nobody_is_there = end_one(&self.taken(), true);
    }
}

/// Ends the least valuable connection, and returns whether there was one. `any`: even a busy one.
fn end_one(taken: &[Arc<Connection>], any: bool) -> bool {
    let now = Instant::now();
    let there = taken.iter().filter(|connection| !connection.is_ending());
    let ranked = there.map(|connection| (connection.worth(now), connection));
    let candidates = ranked.filter(|((worth, _), _)| any || *worth < Worth::Busy);
    let least = candidates.min_by_key(|(worth, _)| *worth);
    if let Some((_, connection)) = least {
        connection.end();
    }
    least.is_some()
}

/// Records reads and writes of a connection.
#[derive(Debug)]
pub(super) struct RecordedStream(pub(super) Arc<Connection>);

impl AsyncRead for RecordedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.stream.poll_read_ready(cx))?;
            match self.0.stream.try_read(buffer.initialize_unfilled()) {
                Ok(bytes) => {
                    buffer.advance(bytes);
                    if bytes > 0 {
                        self.0.received();
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for RecordedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.stream.poll_write_ready(cx))?;
            match self.0.stream.try_write_vectored(pieces) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(self.0.stream.as_raw_fd(), Shutdown::Write).map_err(io::Error::from))
    }
}

//! Room for connections: who gets it when there is none left. Does not read or write HTTP.

use std::io;
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

/// Room for so many connections, shared by all servers that have a clone.
///
/// When it is full, a new connection takes the place of the one that is missed least ([`Worth`]). Besides, at most as many
/// may be ending.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: usize,
    taken: Mutex<Vec<Arc<Connection>>>,
    /// Somebody left.
    left: Notify,
}

/// What a connection is worth when its place is needed, least first; of equals, the one that has been so for longest goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Idle between two requests.
    Idle,
    /// It has not sent a whole request head for a while.
    Silent,
    /// It has had an answer, and has sent some more.
    Answered,
    /// Its client does not take its answer.
    Stalled,
    /// Its first request is on its way, or an answer is being written: missed.
    Busy,
}

/// A connection has this long to send its request before another may take its place.
const GRACE: Duration = Duration::from_millis(20);
/// An answer that is not taken after so long is not being taken.
const STALLED: Duration = Duration::from_millis(200);
/// After so long without a connection that can be spared, one is ended that cannot.
const PATIENCE: Duration = Duration::from_millis(200);
/// Between two looks for a connection that can be spared.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What a connection is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Between two requests: the answer is written, nothing of another request has come.
    Idle,
    /// The head of a request has not come, or not all of it.
    Head,
    /// A request is answered. `taken`: the whole answer is with the HTTP layer, which still has to write it.
    Answer { taken: bool },
}

/// A connection and what it is at.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// And since when.
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

    /// A whole request head has come.
    pub(super) fn asked(&self) {
        *self.phase() = (Phase::Answer { taken: false }, Instant::now());
    }

    /// The HTTP layer has the whole answer.
    pub(super) fn taken(&self) {
        if let (Phase::Answer { taken }, _) = &mut *self.phase() {
            *taken = true;
        }
    }

    /// All that the HTTP layer had is written.
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

    /// Since when its answer is being written.
    pub(super) fn answering_since(&self) -> Option<Instant> {
        let (phase, since) = *self.phase();
        matches!(phase, Phase::Answer { .. }).then_some(since)
    }

    /// Waits until its place is needed.
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

    /// What it is worth, and since when.
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

    /// Whether something was received and not read.
    fn has_bytes(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.stream.as_raw_fd(), &mut [0; 1], flags).is_ok_and(|bytes| bytes > 0)
    }
}

/// A place that is taken. Dropped: free.
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
    /// Room for so many.
    pub(crate) fn new(limit: usize) -> Self {
        Places(Arc::new(Inner { limit, taken: Mutex::default(), left: Notify::new() }))
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection; another connection's when all are taken.
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
            // Either somebody left, or there may be somebody to spare by now.
            let _either = tokio::time::timeout(LOOK_AGAIN, left).await;
        }
    }

    /// Gives up a connection, because files are short.
    pub(super) fn spare_one(&self) {
        let _nobody_is_there = end_one(&self.taken(), true);
    }
}

/// Ends the connection that is worth least, and says whether there was one. `any`: also a busy one.
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

/// A connection's bytes, watched.
#[derive(Debug)]
pub(super) struct Watched(pub(super) Arc<Connection>);

impl AsyncRead for Watched {
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

impl AsyncWrite for Watched {
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

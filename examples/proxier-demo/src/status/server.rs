//! A small HTTP server: short answers to short requests.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, listen, setsockopt, socket, sockopt,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Most connections of a server, or of several that share [`Slots`].
pub(crate) const CONNECTIONS: usize = 64;
/// Longest time for a request's head, and between two requests.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time for a client to take an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// Time that a new connection has for its first request before another may get its slot.
const REQUEST_GRACE: Duration = Duration::from_millis(20);
/// Time from a request on that a connection has to take the answer before another may get its slot.
const ANSWER_GRACE: Duration = Duration::from_millis(200);

/// A limit on connections, shared by all servers that have a clone. When all slots are in use, the connection whose last request is the oldest
/// gives way to a new one, so that clients that stay or stall keep nobody out. As many more may be ending: a new one does not wait for them.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    limit: usize,
    free: Arc<Semaphore>,
    /// Wakes the connection that has waited longest. It may wake one for a need that has passed.
    needed: Arc<Notify>,
    /// Whether the last attempt to accept a connection found no descriptor or memory.
    is_short: Arc<AtomicBool>,
}

/// A slot that is in use. Dropping it frees it.
struct Slot {
    _permit: Option<OwnedSemaphorePermit>,
    slots: Slots,
}

impl Slots {
    pub(crate) fn new(limit: usize) -> Self {
        let free = Arc::new(Semaphore::new(limit.saturating_mul(2)));
        Slots { limit, free, needed: Arc::default(), is_short: Arc::default() }
    }

    /// Whether another connection has to give way.
    fn are_needed(&self) -> bool {
        self.free.available_permits() <= self.limit || self.is_short.load(Ordering::Relaxed)
    }

    /// A slot for a new connection; when all are in use, another connection gives way.
    async fn enter(&self) -> Slot {
        if self.are_needed() {
            self.needed.notify_one();
        }
        // The semaphore is never closed.
        let permit = self.free.clone().acquire_owned().await.ok();
        Slot { _permit: permit, slots: self.clone() }
    }
}

pub(crate) type Answer = Response<String>;

/// An answer with content of this kind.
pub(crate) fn answer(status: StatusCode, kind: &'static str, body: impl Into<String>) -> Answer {
    let mut answer = Answer::new(body.into());
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

pub(crate) fn json(status: StatusCode, body: impl Into<String>) -> Answer {
    answer(status, "application/json", body)
}

pub(crate) fn text(status: StatusCode, body: impl Into<String>) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

pub(crate) fn not_found() -> Answer {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// The head of a request, and the address of the client; `None`: the client is already gone.
#[derive(Clone, Debug)]
pub(crate) struct HttpRequest(pub(crate) http::request::Parts, pub(crate) Option<IpAddr>);

impl HttpRequest {
    pub(crate) fn path(&self) -> &str {
        self.0.uri.path()
    }

    /// A header; empty without one.
    pub(crate) fn header(&self, name: HeaderName) -> &str {
        self.0.headers.get(name).and_then(|text| text.to_str().ok()).unwrap_or_default()
    }
}

pub(crate) trait Answers: Send + Sync + 'static {
    fn answer(&self, asked: HttpRequest) -> impl Future<Output = Answer> + Send;
}

/// Answers that depend on the path alone.
impl<F: Fn(&str) -> Answer + Send + Sync + 'static> Answers for F {
    fn answer(&self, asked: HttpRequest) -> impl Future<Output = Answer> + Send {
        ready(self(asked.path()))
    }
}

/// The families that a listener on `[::]` accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    /// Only IPv6: IPv4 has its own listener.
    Own,
    Both,
}

/// Listens. As many clients as `net.core.somaxconn` allows may connect before the first is answered.
pub(crate) fn bind(address: SocketAddr, families: Families) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let opened = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&opened, sockopt::ReuseAddr, &true)?;
    if address.is_ipv6() {
        setsockopt(&opened, sockopt::Ipv6V6Only, &(families == Families::Own))?;
    }
    socket::bind(opened.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen(&opened, Backlog::MAXCONN)?;
    TcpListener::from_std(std::net::TcpListener::from(opened))
}

/// Answers every request on a listener. When dropped, it ends with all connections: the listener is closed, its address
/// is free, and no connection gets another answer.
pub(crate) async fn serve(listener: TcpListener, slots: Slots, answers: impl Answers) {
    let answers = Arc::new(answers);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ended = connections.join_next(), if !connections.is_empty() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                slots.is_short.store(false, Ordering::Relaxed);
                let slot = slots.enter().await;
                connections.spawn(converse(stream, slot, answers.clone()));
            }
            // The client is already gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::debug!("a connection was not accepted: {error}");
                if is_short_of_room(&error) {
                    slots.is_short.store(true, Ordering::Relaxed);
                    slots.needed.notify_one();
                }
                // The next attempt may fail in the same way.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Whether descriptors or memory have run out.
fn is_short_of_room(error: &io::Error) -> bool {
    let short = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|number| short.contains(&Errno::from_raw(number)))
}

/// Answers the requests of one connection, until it ends or another connection needs its slot.
async fn converse(stream: TcpStream, slot: Slot, answers: Arc<impl Answers>) {
    let peer = stream.peer_addr().ok().map(|peer| peer.ip().to_canonical());
    let begun = Instant::now();
    let (asked, mut last_asked) = watch::channel(None);
    let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
        asked.send_replace(Some(Instant::now()));
        let (answers, request) = (answers.clone(), HttpRequest(request.into_parts().0, peer));
        async move { Ok::<_, Infallible>(answers.answer(request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(16 * 1024);
    let mut conversation = pin!(http.serve_connection(TokioIo::new(stream), service));
    loop {
        let last = *last_asked.borrow_and_update();
        tokio::select! {
            biased;
            outcome = conversation.as_mut() => {
                if let Err(error) = outcome {
                    tracing::trace!("a connection ended: {error}");
                }
                return;
            }
            // Connections give way in the order in which they begin to wait: one that asks goes to the end of the queue.
            _asked = last_asked.changed() => {}
            () = slot.slots.needed.notified() => {
                if !slot.slots.are_needed() {
                    continue;
                }
                let grace = if last.is_some() { ANSWER_GRACE } else { REQUEST_GRACE };
                if last.is_some() {
                    conversation.as_mut().graceful_shutdown();
                }
                let _either = timeout_at(last.unwrap_or(begun) + grace, conversation).await;
                tracing::trace!("a connection gave its slot to another");
                return;
            }
            // An idle connection ends earlier by itself: this client does not take its answer.
            () = sleep_until(last.unwrap_or(begun) + ANSWER_PATIENCE) => return,
        }
    }
}

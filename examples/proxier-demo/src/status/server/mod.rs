//! A small HTTP server: short answers to short requests.

mod places;

use std::convert::Infallible;
use std::future::{Future, ready};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::errno::Errno;
use nix::sys::socket::{
    self, AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, listen, setsockopt, socket, sockopt,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub(crate) use self::places::Places;
use self::places::{Connection, Place, RecordedStream};

/// Most connections of a server, or of several that share [`Places`].
pub(crate) const CONNECTIONS: usize = 64;
/// Longest time for a request's head, and between two requests.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time for a client to take an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(status: StatusCode, body: String) -> Self {
        Answer { status, kind: "application/json", headers: Vec::new(), body }
    }

    pub(crate) fn text(body: &str) -> Self {
        Answer { status: StatusCode::OK, kind: "text/plain; charset=utf-8", headers: Vec::new(), body: body.to_owned() }
    }

    pub(crate) fn not_found() -> Self {
        Answer { status: StatusCode::NOT_FOUND, ..Answer::text("404 page not found\n") }
    }

    fn response(self, connection: Arc<Connection>) -> Response<NotifyingBody> {
        let text = (!self.body.is_empty()).then(|| Bytes::from(self.body));
        let mut response = Response::new(NotifyingBody { text, connection });
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.extend(self.headers);
        response
    }
}

/// A request, as far as answers depend on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpRequest {
    pub(crate) path: String,
    /// Query: the text behind the question mark, still encoded; empty without one.
    pub(crate) query: String,
    /// The header `Host`; empty without one.
    pub(crate) host: String,
    /// The header `Accept`; empty without one.
    pub(crate) accept: String,
    /// Address of the client; `None`: the client is already gone.
    pub(crate) peer: Option<IpAddr>,
}

impl HttpRequest {
    fn new<T>(request: &http::Request<T>, peer: Option<IpAddr>) -> Self {
        let header =
            |name| request.headers().get(name).and_then(|text| text.to_str().ok()).unwrap_or_default().to_owned();
        HttpRequest {
            path: request.uri().path().to_owned(),
            query: request.uri().query().unwrap_or_default().to_owned(),
            host: header(header::HOST),
            accept: header(header::ACCEPT),
            peer: peer.map(|peer| peer.to_canonical()),
        }
    }
}

/// Answers of a server.
pub(crate) trait Answers: Send + Sync + 'static {
    /// Answer to a request of any method.
    fn answer(&self, asked: HttpRequest) -> impl Future<Output = Answer> + Send;
}

/// Answers that depend on the path alone.
struct ByPath<F>(F);

impl<F: Fn(&str) -> Answer + Send + Sync + 'static> Answers for ByPath<F> {
    fn answer(&self, asked: HttpRequest) -> impl Future<Output = Answer> + Send {
        ready((self.0)(&asked.path))
    }
}

/// Answers that depend on the path alone.
pub(crate) fn by_path(answer: impl Fn(&str) -> Answer + Send + Sync + 'static) -> impl Answers {
    ByPath(answer)
}

/// The families that a listener on `[::]` accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Families {
    /// Only IPv6: IPv4 has its own listener.
    Own,
    /// Both.
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

/// The body of an answer, which notifies its connection when it has been taken as a whole.
struct NotifyingBody {
    text: Option<Bytes>,
    connection: Arc<Connection>,
}

impl Body for NotifyingBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Poll::Ready(self.text.take().map(|text| Ok(Frame::data(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let bytes = self.text.as_ref().map_or(0, Bytes::len);
        SizeHint::with_exact(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

impl Drop for NotifyingBody {
    fn drop(&mut self) {
        self.connection.taken();
    }
}

/// A running server. When dropped, it ends soon, with all its connections.
#[derive(Debug)]
pub(crate) struct Server(JoinSet<()>);

impl Server {
    /// Starts to serve; see [`serve`]. Must be called within a tokio runtime.
    pub(crate) fn start(listener: TcpListener, places: Places, answers: impl Answers) -> Self {
        let mut task = JoinSet::new();
        task.spawn(serve(listener, places, answers));
        Server(task)
    }

    /// Ends it. Afterwards the listener is closed, its address is free, and no connection gets another answer.
    pub(crate) async fn end(mut self) {
        self.0.shutdown().await;
    }
}

/// Answers every request on a listener. When dropped, it ends with all connections.
pub(crate) async fn serve(listener: TcpListener, places: Places, answers: impl Answers) {
    let answers = Arc::new(answers);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ended = connections.join_next(), if !connections.is_empty() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let place = places.enter(stream).await;
                connections.spawn(converse(place, answers.clone()));
            }
            Err(error) if is_short_of_room(&error) => {
                tracing::debug!("a connection was not accepted: {error}");
                places.spare_one();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            // The client is already gone.
            Err(error) => tracing::trace!("a connection was not accepted: {error}"),
        }
    }
}

/// Whether descriptors or memory have run out.
fn is_short_of_room(error: &io::Error) -> bool {
    let short = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    error.raw_os_error().is_some_and(|number| short.contains(&Errno::from_raw(number)))
}

/// Answers the requests of one connection, until it ends or has to give up its place.
async fn converse(place: Place, answers: Arc<impl Answers>) {
    let connection = &place.connection;
    let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
        connection.asked();
        let asked = HttpRequest::new(&request, connection.peer());
        let (answers, connection) = (answers.clone(), connection.clone());
        async move { Ok::<_, Infallible>(answers.answer(asked).await.response(connection)) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(16 * 1024);
    let conversation = http.serve_connection(TokioIo::new(RecordedStream(connection.clone())), service);
    tokio::select! {
        biased;
        () = connection.ended() => tracing::trace!("a connection gave its place to another"),
        () = stalled(connection) => tracing::trace!("a client did not take its answer"),
        outcome = conversation => {
            if let Err(error) = outcome {
                tracing::trace!("a connection ended: {error}");
            }
        }
    }
}

/// Waits until the client has taken too long to receive an answer.
async fn stalled(connection: &Connection) {
    loop {
        let since = connection.answering_since();
        let left = since.map_or(ANSWER_PATIENCE, |since| ANSWER_PATIENCE.saturating_sub(since.elapsed()));
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}

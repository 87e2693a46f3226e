//! Requests to an API server, one at a time, each with a time limit. The kind of a failure decides what to do next.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::request::Builder;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::InClusterError;
use kube::{Client, Config};
use proxier_core::snapshot::ObjectKey;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tower::BoxError;
use tower::util::{MapErrLayer, option_layer};

use super::encoding::Encoding;
use super::{credentials, kubeconfig, protobuf, requests};
use crate::message::Closed;
use crate::problem::{OneLine, Problem, causes};
use crate::settings::cli::Connection;
use crate::sources::files::NotedFiles;

impl Connection {
    /// Server's address as configured, without any request; `None` if no client is possible.
    pub async fn server(&self) -> Option<http::Uri> {
        Some(self.config(&mut NotedFiles::default()).await.ok()?.cluster_url)
    }

    /// The server's port, and its addresses with it, which are empty if the name is not resolved within two seconds.
    pub async fn server_addresses(&self) -> Option<(u16, Vec<SocketAddr>)> {
        let url = self.server().await?;
        let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("http") { 80 } else { 443 });
        let lookup = tokio::net::lookup_host((url.host()?.trim_matches(['[', ']']), port));
        let found = tokio::time::timeout(Duration::from_secs(2), lookup).await;
        Some((port, found.ok().and_then(Result::ok).map(Iterator::collect).unwrap_or_default()))
    }

    /// What a client needs, from the current content of files. Starts no program. `files`: those that were read, even
    /// after a failure.
    async fn config(&self, files: &mut NotedFiles) -> Result<Config, Problem> {
        let mut config = match (&self.kubeconfig, &self.master) {
            (Some(path), _) => kubeconfig::config(path, files).await?,
            (None, Some(_)) => Config::new(http::Uri::from_static("http://localhost")),
            (None, None) => in_pod(files).map_err(|error| {
                let why = match error {
                    InClusterError::ReadEnvironmentVariable(_) => {
                        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set".to_owned()
                    }
                    error => causes(&error),
                };
                let advice = "give --kubeconfig, --master or --manifests";
                Problem::new("", format!("this is not a pod of a cluster ({why}); {advice}"))
            })?,
        };
        if let Some(url) = &self.master {
            let uri = url.parse::<http::Uri>().ok().filter(kubeconfig::is_server);
            config.cluster_url = uri.ok_or_else(|| {
                Problem::new("--master", format!("{url:?} is not a URL such as https://10.0.0.1:6443"))
            })?;
        }
        Ok(config)
    }

    /// A client, with credentials from files and programs.
    async fn build(&self, files: &mut NotedFiles) -> Result<Made, Problem> {
        let mut config = self.config(files).await?;
        if config.cluster_url.scheme_str() == Some("http") {
            // Keeps the client from reading the system's certificates, which takes longer than everything else here.
            config.root_cert.get_or_insert_default();
        }
        let origin = config.cluster_url.to_string();
        config.auth_info.token_file.iter().for_each(|path| files.note(path));
        let until = credentials::settle(&mut config.auth_info).await;
        let until = until.map_err(|reason| Problem::new(&origin, reason))?;
        let authority = config.cluster_url.authority().map_or("", |authority| authority.as_str());
        // Without a user.
        let host = authority.rsplit('@').next().unwrap_or_default().into();
        let client = client(&config).map_err(|error| Problem::new(origin, causes(&error)))?;
        let current = Current { client, number: 0, host };
        Ok(Made { current, files: std::mem::take(files), until, is_accepted: None })
    }
}

/// kube's client, without what is decided elsewhere here: retries, time limits, the log. Its connections send at once
/// (`TCP_NODELAY`), which kube's own do not: the first request would wait 40 ms for the server's delayed acknowledgement
/// of the end of the TLS handshake.
fn client(config: &Config) -> Result<Client, kube::Error> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(config.connect_timeout);
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let service = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let builder = ClientBuilder::new(service, &*config.default_namespace)
        .with_layer(&MapErrLayer::new(BoxError::from))
        .with_layer(&config.extra_headers_layer()?)
        .with_layer(&option_layer(config.auth_layer()?))
        .with_layer(&config.base_uri_layer());
    Ok(builder.build())
}

fn in_pod(files: &mut NotedFiles) -> Result<Config, InClusterError> {
    // The first read finds out where the account's files are.
    Config::incluster()?.root_cert_file.iter().for_each(|path| files.note(path));
    let mut config = Config::incluster()?;
    // A new client reads the new certificate, so the file need not be read elsewhere.
    config.root_cert_file = None;
    Ok(config)
}

struct Made {
    current: Current,
    files: NotedFiles,
    /// When its credentials expire.
    until: Option<Instant>,
    /// Whether the server and this client accept each other; `None`: not known yet.
    is_accepted: Option<bool>,
}

impl Made {
    fn is_as_new(&self) -> bool {
        self.is_accepted != Some(false)
            && self.until.is_none_or(|until| Instant::now() < until)
            && self.files.are_as_noted()
    }
}

#[derive(Clone)]
pub(crate) struct Current {
    client: Client,
    pub(crate) number: u64,
    /// The server, with its port.
    host: Arc<str>,
}

/// The client of a connection. It is replaced when one of its files has changed, when its credentials expire, and after
/// a rejection. It is kept if it cannot be replaced.
pub(crate) struct Session {
    pub(super) connection: Connection,
    made: Mutex<Option<Made>>,
}

impl Session {
    pub(crate) fn new(connection: Connection) -> Self {
        Session { connection, made: Mutex::new(None) }
    }

    /// The client for a request.
    /// Errors: no client could be made yet: the kubeconfig or the credentials cannot be read, or nothing is configured
    /// outside of a pod.
    pub(crate) async fn current(&self) -> Result<Current, Problem> {
        let mut made = self.made.lock().await;
        if let Some(made) = made.as_ref().filter(|made| made.is_as_new()) {
            return Ok(made.current.clone());
        }
        let mut files = NotedFiles::default();
        let made = match (self.connection.build(&mut files).await, &mut *made) {
            (Ok(mut new), old) => {
                new.current.number = old.as_ref().map_or(0, |old| old.current.number.saturating_add(1));
                old.insert(new)
            }
            (Err(problem), None) => return Err(problem),
            (Err(problem), Some(old)) => {
                tracing::error!("{problem}; what was read before stays in use");
                old.files = files;
                old
            }
        };
        Ok(made.current.clone())
    }

    /// Records whether the server and this client accept each other. After a rejection the next request builds another.
    pub(crate) async fn judge(&self, current: &Current, is_accepted: bool) {
        let mut made = self.made.lock().await;
        if let Some(made) = made.as_mut().filter(|made| made.current.number == current.number) {
            made.is_accepted = Some(is_accepted);
        }
    }

    /// Sleeps, but returns early when a client with another number was accepted, or when a changed file allows a new
    /// one. A client that is merely new ends no pause: each watch would wake the others with another rejected client.
    pub(crate) async fn pause(&self, pause: Duration, number: u64) {
        const LOOK: Duration = Duration::from_secs(1);
        let end = Instant::now().checked_add(pause);
        loop {
            let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
            tokio::time::sleep(left.min(LOOK)).await;
            let made = self.made.lock().await;
            let is_news = |made: &Made| {
                (made.current.number != number && made.is_accepted == Some(true)) || !made.files.are_as_noted()
            };
            if left <= LOOK || made.as_ref().is_some_and(is_news) {
                return;
            }
        }
    }
}

/// The kind of a failed request, by what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The version or the continue token is too old: list from the start.
    Expired,
    /// The version is newer than the server's: list the current objects.
    TooNew,
    /// The server does not support such a request: ask in another way.
    Invalid,
    /// Credentials are wrong or expired: read them again.
    Unauthorized,
    /// The server does not have this resource.
    Missing,
    /// The account lacks a permission that an administrator must grant.
    Forbidden,
    /// The namespace is being deleted, and takes nothing new.
    Ending,
    /// The answer is too large: ask for less.
    TooLarge,
    /// The connection could not be made, or broke.
    Unreachable,
    /// The connection broke in the middle of an answer.
    Cut,
    /// One side rejects the other's certificate: read the certificates again.
    Untrusted,
    /// Nobody takes changes any more: stop.
    Closed,
    /// Anything else: try again later.
    Other,
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
    pub(super) retry_after: Option<Duration>,
    /// Status of the answer; `None`: there was none.
    pub(crate) code: Option<StatusCode>,
}

impl From<Closed> for Failure {
    fn from(Closed: Closed) -> Self {
        Failure { kind: FailureKind::Closed, ..Failure::other("") }
    }
}

/// The causes of a failed request, without the text of libraries that only pass them on.
fn plain(error: &dyn std::error::Error) -> String {
    let mut text = causes(error);
    for words in [
        "ServiceError: ",
        "HyperError: ",
        "client error (Connect): ",
        "client error (SendRequest): ",
        "error reading a body from connection: ",
        "connection error: ",
    ] {
        text = text.replace(words, "");
    }
    match text.to_lowercase() {
        // An API server that is stopped says goodbye neither in HTTP nor in TLS.
        cut if cut.contains("unexpected eof during chunk") || cut.contains("close_notify") => {
            "the server closed the connection".to_owned()
        }
        of_chunks if of_chunks.contains("invalid chunk") => "it is not HTTP".to_owned(),
        _ => text,
    }
}

impl Failure {
    pub(crate) fn other(message: impl Into<String>) -> Self {
        Failure { kind: FailureKind::Other, message: message.into(), retry_after: None, code: None }
    }

    /// An answer of which more than these bytes would have to be kept.
    pub(super) fn too_large(room: usize) -> Self {
        Failure { kind: FailureKind::TooLarge, ..Failure::other(format!("the answer is larger than {room} bytes")) }
    }

    /// Nothing arrived for this time.
    pub(super) fn silent(time: Duration) -> Self {
        Failure::other(format!("silent for {} s", time.as_secs_f32()))
    }

    fn unreachable(error: &kube::Error) -> Self {
        let message = plain(error);
        let is_of_certificates = kubeconfig::is_of_certificates(&message);
        let kind = if is_of_certificates { FailureKind::Untrusted } else { FailureKind::Unreachable };
        Failure { kind, ..Failure::other(format!("{}{}", OneLine(&message), kubeconfig::advice(&message))) }
    }

    /// The failure of an answer with this code and [`STATUS`](protobuf::STATUS).
    pub(super) fn of_status(code: u16, status: &Value) -> Self {
        let text = |name: &str| status[name].as_str().unwrap_or_default();
        let causes = status["details"]["causes"].as_array();
        let is_because_of = |reason: &str| causes.into_iter().flatten().any(|cause| cause["reason"] == reason);
        let kind = match code {
            400 | 422 => FailureKind::Invalid,
            401 => FailureKind::Unauthorized,
            403 if is_because_of("NamespaceTerminating") => FailureKind::Ending,
            403 => FailureKind::Forbidden,
            404 => FailureKind::Missing,
            410 => FailureKind::Expired,
            504 if is_because_of("ResourceVersionTooLarge") => FailureKind::TooNew,
            // The server's reason for a version that it has not seen yet, or no longer keeps.
            _ if matches!(text("reason"), "Expired" | "Gone") => FailureKind::Expired,
            _ => FailureKind::Other,
        };
        let status_code = StatusCode::from_u16(code).ok();
        let said = match text("message") {
            "" => status_code.and_then(|code| code.canonical_reason()).unwrap_or("without a message"),
            said => said,
        };
        Failure {
            kind,
            message: format!("HTTP {code}: {}", OneLine(said)),
            retry_after: status["details"]["retryAfterSeconds"].as_u64().map(Duration::from_secs),
            code: status_code,
        }
    }
}

/// An answer whose body is read in pieces.
pub(super) struct Answer {
    body: Body,
    pub(super) encoding: Encoding,
    patience: Duration,
    host: Arc<str>,
    method: Method,
    begun: Instant,
    /// Bytes received so far.
    length: u64,
}

/// Lowest speed of a list, in bytes per second, once `patience` is over.
const LEAST_SPEED: u64 = 1024;

/// Limit of the text of a failure.
const FAILURE_BYTES: usize = 64 * 1024;

/// Limit of a list of one Service; etcd takes no object of more than 1.5 MiB.
const SERVICE_BYTES: usize = 4 << 20;

pub(super) async fn get(current: &Current, target: &str, accepts: &str, patience: Duration) -> Result<Answer, Failure> {
    send(current, Request::get(target).header(header::ACCEPT, accepts), Body::empty(), patience).await
}

/// Creates an object. `before`: why the previous attempt failed, if this is not the first.
pub(crate) async fn post(
    current: &Current,
    target: &str,
    object: &Value,
    before: Option<&Failure>,
    patience: Duration,
) -> Result<(), Failure> {
    if let Some(before) = before {
        requests::again(&current.host, &Method::POST, before.code);
    }
    let request = Request::post(target).header(header::CONTENT_TYPE, Encoding::Json.media_type());
    send(current, request, Body::from(object.to_string().into_bytes()), patience).await.map(drop)
}

/// Sends a request, waits for the head of the answer, and counts both.
async fn send(current: &Current, request: Builder, body: Body, patience: Duration) -> Result<Answer, Failure> {
    let request = request.header(header::USER_AGENT, concat!("proxier-demo/", env!("CARGO_PKG_VERSION"))).body(body);
    let request = request.map_err(|error| Failure::other(error.to_string()))?;
    let (method, begun, size) = (request.method().clone(), Instant::now(), request.body().size_hint().exact());
    let answer = tokio::time::timeout(patience, current.client.send(request)).await;
    let status = answer.as_ref().ok().and_then(|answer| Some(answer.as_ref().ok()?.status()));
    requests::count(&current.host, &method, size, status, begun.elapsed());
    let answer = answer.map_err(|_elapsed| Failure::other(format!("no answer within {} s", patience.as_secs_f32())))?;
    let answer = answer.map_err(|error| Failure::unreachable(&error))?;
    let code = answer.status();
    let (retry_after, encoding) = {
        let text_of = |name| answer.headers().get(name).and_then(|value| value.to_str().ok());
        let retry_after = text_of(header::RETRY_AFTER).and_then(|text| text.parse().ok());
        (retry_after, Encoding::of_answer(text_of(header::CONTENT_TYPE)))
    };
    let (body, host) = (answer.into_body(), current.host.clone());
    let mut answer = Answer { body, encoding, patience, host, method, begun: Instant::now(), length: 0 };
    if code.is_success() {
        return Ok(answer);
    }
    let body = answer.read_body(FAILURE_BYTES).await.unwrap_or_default();
    let status = encoding.object(&body).and_then(|object| object.read(protobuf::STATUS).map_err(|(_, reason)| reason));
    let status = status.ok().filter(Value::is_object);
    let status = status.unwrap_or_else(|| json!({"message": String::from_utf8_lossy(&body)}));
    let mut failure = Failure::of_status(code.as_u16(), &status);
    failure.retry_after = retry_after.map(Duration::from_secs).or(failure.retry_after);
    Err(failure)
}

/// The UID of a Service, by which `kubectl describe` finds its Events. `None` if it is gone, or if the server does not say.
pub(crate) async fn uid_of(service: &ObjectKey, current: &Current, patience: Duration) -> Option<String> {
    let (namespace, name) = (service.namespace(), service.name());
    // A list, since the proxy need not be allowed to get single Services; version 0: from the server's cache.
    let one = format!("fieldSelector=metadata.name%3D{name}&resourceVersion=0");
    let target = format!("/api/v1/namespaces/{namespace}/services?{one}");
    let mut answer = get(current, &target, "application/json", patience).await.ok()?;
    let list: Value = serde_json::from_slice(&answer.read_body(SERVICE_BYTES).await.ok()?).ok()?;
    Some(list["items"][0]["metadata"]["uid"].as_str()?.to_owned())
}

impl Answer {
    /// The next piece; `None` at the end. `patience` applies to this piece.
    pub(super) async fn piece(&mut self, patience: Duration) -> Result<Option<impl AsRef<[u8]> + use<>>, Failure> {
        loop {
            let frame = tokio::time::timeout(patience, self.body.frame()).await;
            let frame = frame.map_err(|_elapsed| Failure::silent(patience))?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => {
                    let message = format!("the answer broke off: {}", OneLine(&plain(&error)));
                    return Err(Failure { kind: FailureKind::Cut, ..Failure::other(message) });
                }
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        self.length = self.length.saturating_add(piece.len().try_into().unwrap_or(u64::MAX));
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }

    /// The next piece of a body that ends.
    pub(super) async fn piece_of_whole(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>, Failure> {
        let piece = self.piece(self.patience).await?;
        let time = self.begun.elapsed();
        if piece.is_none() {
            requests::received(&self.host, &self.method, self.length);
        } else if time > self.patience.saturating_add(Duration::from_secs(self.length / LEAST_SPEED)) {
            let time = time.as_secs_f32();
            return Err(Failure::other(format!("the answer comes too slowly: {} bytes in {time:.1} s", self.length)));
        }
        Ok(piece)
    }

    /// The whole body, limited to `room` bytes.
    pub(super) async fn read_body(&mut self, room: usize) -> Result<Vec<u8>, Failure> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece_of_whole().await? {
            whole.extend_from_slice(piece.as_ref());
            if whole.len() > room {
                return Err(Failure::too_large(room));
            }
        }
        Ok(whole)
    }
}

#[cfg(test)]
mod tests {
    use testkit::apiserver::ApiServer;
    use testkit::apiserver::tls::{Authority, Relay};

    use super::*;

    #[tokio::test]
    async fn a_server_that_stops_within_an_answer_is_reported_without_a_librarys_words() {
        let (server, authority) = (ApiServer::start(), Authority::new("cluster"));
        let relay = Relay::start(&authority, server.address(), None);
        let mut config = Config::new(relay.url().parse().unwrap());
        config.accept_invalid_certs = true;
        let current = Current { client: Client::try_from(config).unwrap(), number: 0, host: "host".into() };
        let patience = Duration::from_secs(20);
        let watch = "/api/v1/services?watch=1&resourceVersion=0&allowWatchBookmarks=true";
        let mut answer =
            get(&current, watch, "application/json", patience).await.map_err(|failure| failure.message).unwrap();
        drop(relay);
        let message = loop {
            match answer.piece(patience).await {
                Ok(piece) => assert!(piece.is_some(), "an end that is no failure"),
                Err(failure) => break failure.message,
            }
        };
        assert_eq!(message, "the answer broke off: the server closed the connection");
    }
    #[tokio::test]
    async fn a_pause_ends_early_for_an_accepted_client_not_for_a_new_one() {
        let session = Session::new(Connection { master: Some("http://127.0.0.1:1".to_owned()), kubeconfig: None });
        let first = session.current().await.unwrap();
        session.judge(&first, false).await;
        let second = session.current().await.unwrap();
        assert_ne!(first.number, second.number);
        let pause = session.pause(Duration::from_secs(60), first.number);
        tokio::pin!(pause);
        let short = Duration::from_millis(1500);
        assert!(tokio::time::timeout(short, &mut pause).await.is_err(), "nothing is known of the new client");
        session.judge(&first, true).await;
        assert!(tokio::time::timeout(short, &mut pause).await.is_err(), "that answer was for an earlier client");
        session.judge(&second, true).await;
        assert!(tokio::time::timeout(short, &mut pause).await.is_ok());
    }
}

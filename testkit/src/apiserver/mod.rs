//! A simulated API server: lists, watches, watches that begin with all objects, and their failures.
//!
//! The server speaks plain HTTP on a loopback address. It has Services, EndpointSlices and Nodes, optionally
//! ServiceCIDRs, and accepts Events. Its answers are compared with the answers of a real server in [`recorded`]. A test
//! requests failures: [`ApiServer::fail_next`], [`ApiServer::cut_watches`], [`ApiServer::compact`],
//! [`ApiServer::outage`], [`ApiServer::send_raw`].
//!
//! With the feature `tls`, `tls::Relay` adds TLS, with certificate authorities and client certificates.
//!
//! Limits: objects and parameters are not validated, paths have no namespaces (except for Events), and clients can only
//! write Events.

#![expect(
    clippy::panic,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a test's own mistake ends the test"
)]

mod http;
mod protobuf;
mod resource;
#[cfg(feature = "tls")]
pub mod tls;

use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use self::http::Request;
use self::resource::{
    Encoding, KINDS, Kind, Object, Resource, Revision, Selector, Sent, bookmark, ending, forbidden, status, too_large,
    with_version,
};

/// Answers recorded from a kube-apiserver v1.23, with the selector
/// `!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless`.
pub mod recorded {
    /// The first of two pages of Services, with `limit=3`.
    pub const SERVICES_PAGE_1: &str = include_str!("recorded/services-page1.json");
    /// The second.
    pub const SERVICES_PAGE_2: &str = include_str!("recorded/services-page2.json");
    /// The Services of a small shop.
    pub const SERVICES: &str = include_str!("recorded/services-shop.json");
    /// Their EndpointSlices.
    pub const ENDPOINT_SLICES: &str = include_str!("recorded/endpointslices-shop.json");
    /// A list with one Node, `n1`.
    pub const NODE: &str = include_str!("recorded/node-n1.json");
    /// A body, and its HTTP status on the last line.
    pub const NOT_FOUND: &str = include_str!("recorded/not-found.json");
    /// A body, and its HTTP status on the last line.
    pub const UNAUTHORIZED: &str = include_str!("recorded/unauthorized.json");
    /// Events of Services, one per line: a change, another proxy's label added (DELETED) and removed (ADDED), a
    /// deletion, a bookmark.
    pub const WATCH_SERVICES: &str = include_str!("recorded/watch-services.jsonl");

    /// Answers recorded from a kube-apiserver v1.36.2, each in JSON and in protobuf.
    pub mod both {
        macro_rules! both {
            ($($(#[$doc:meta])* $name:ident = $json:literal, $protobuf:literal;)*) => {$(
                $(#[$doc])*
                pub const $name: (&[u8], &[u8]) = (
                    include_bytes!(concat!("recorded/1.36/", $json)),
                    include_bytes!(concat!("recorded/1.36/", $protobuf)),
                );
            )*};
        }

        both! {
            /// Services with every field that a proxy reads.
            SERVICES = "services.json", "services.pb";
            /// EndpointSlices with every field that a proxy reads.
            ENDPOINT_SLICES = "endpointslices.json", "endpointslices.pb";
            /// A Node that is being deleted.
            NODES = "nodes.json", "nodes.pb";
            /// The same Node in JSON, and its metadata in protobuf, as `PartialObjectMetadataList`.
            NODES_METADATA = "nodes.json", "nodes-metadata.pb";
            /// ServiceCIDRs.
            SERVICE_CIDRS = "servicecidrs.json", "servicecidrs.pb";
            /// A watch that begins with all Services, up to the bookmark that follows them.
            WATCH_ALL_SERVICES = "watch-services.jsonl", "watch-services.pb";
            /// A watch of Services from an earlier version.
            WATCH_SERVICES = "watch-changes.jsonl", "watch-changes.pb";
            /// The failure for a Service that does not exist.
            NOT_FOUND = "missing.json", "missing.pb";
        }
    }
}

/// A failure of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This status, with a `Status` object as the body, and `Retry-After` in seconds.
    Status(u16, Option<u32>),
    /// Delay the answer by this time.
    Late(Duration),
    /// Send the answer 64 bytes at a time, with this pause before each.
    Slow(Duration),
    /// Close the connection after this many bytes of the answer.
    Cut(usize),
    /// Send this text instead of the answer, with status 200.
    Text(String),
    /// No objects, as of version 1.
    Empty,
    /// This many blanks before the answer.
    Padded(usize),
    /// No answer; the connection stays open.
    Silence,
}

#[derive(Debug)]
enum ToWatch {
    Event(Vec<u8>),
    /// Only the first half of an event.
    HalfAnEvent(Vec<u8>),
    End,
}

#[derive(Debug)]
struct Watch {
    kind: Kind,
    selector: Selector,
    encoding: Encoding,
    to: Sender<ToWatch>,
}

#[derive(Debug, Default)]
struct Store {
    version: u64,
    compacted: u64,
    resources: BTreeMap<&'static str, Resource>,
    /// Bodies to send instead of lists.
    bodies: BTreeMap<&'static str, Vec<u8>>,
    /// The rest of each paged list, by continue token.
    pages: BTreeMap<String, (u64, Vec<Sent>)>,
    watches: Vec<Watch>,
    faults: Vec<(&'static str, bool, Fault)>,
    forbidden: Vec<&'static str>,
    events_forbidden: bool,
    service_cidrs: ServiceCidrs,
    /// The only encoding that the server supports; `None` for both.
    only: Option<Encoding>,
    latency: Duration,
    /// Accepted tokens; if empty, any.
    tokens: Vec<String>,
    requests: Vec<Request>,
    sent: usize,
    events: Vec<Value>,
    away: bool,
    stopped: bool,
}

/// A running server. Dropping it stops it.
#[derive(Debug)]
pub struct ApiServer {
    address: SocketAddr,
    state: Arc<Mutex<Store>>,
}

/// Whether a server has ServiceCIDRs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceCidrs {
    /// None, as before Kubernetes 1.31: 404. Default.
    #[default]
    None,
    /// ServiceCIDRs of `networking.k8s.io/v1beta1` only.
    V1beta1,
    /// ServiceCIDRs of `networking.k8s.io/v1`.
    V1,
}

/// The requests to which a fault applies: lists or watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Lists.
    List,
    /// Watches.
    Watch,
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bind(address: SocketAddr) -> TcpListener {
    let started = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && started.elapsed() < Duration::from_secs(10) => {
                thread::sleep(Duration::from_millis(20));
            }
            Err(error) => panic!("cannot listen on {address}: {error}"),
        }
    }
}

fn kind_of(object: &Value) -> Kind {
    let kind = object["kind"].as_str().unwrap_or_default();
    *KINDS.iter().find(|known| known.name == kind).unwrap_or_else(|| panic!("no such kind here: {kind:?}"))
}

fn plural(plural: &str) -> Kind {
    *KINDS.iter().find(|known| known.plural == plural).unwrap_or_else(|| panic!("no such resource here: {plural:?}"))
}

fn key_of(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// A kubeconfig for a server with this URL, and with more fields of its cluster and its user.
pub fn kubeconfig(server: &str, cluster: &Value, user: &Value) -> String {
    let mut cluster = cluster.clone();
    cluster["server"] = server.into();
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
    .to_string()
}

impl ApiServer {
    /// Starts a server on a free port of 127.0.0.1.
    pub fn start() -> Self {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Starts a server on this address. Waits for the address to become free for up to ten seconds.
    pub fn start_on(address: SocketAddr) -> Self {
        let listener = bind(address);
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(Store { version: 1000, ..Store::default() }));
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stopped, away) = {
                    let state = lock(&shared);
                    (state.stopped, state.away)
                };
                if stopped {
                    return;
                }
                if away {
                    continue;
                }
                let (Ok(stream), shared) = (stream, shared.clone()) else { continue };
                thread::spawn(move || drop(serve(stream, &shared)));
            }
        });
        ApiServer { address, state }
    }

    /// Address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// URL of the server.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A kubeconfig for it, with the token of this file, if any.
    pub fn kubeconfig(&self, token_file: Option<&std::path::Path>) -> String {
        kubeconfig(&self.url(), &json!({}), &token_file.map_or_else(|| json!({}), |path| json!({"tokenFile": path})))
    }

    /// Creates or replaces an object and notifies the watches. Returns its new version.
    pub fn put(&self, object: &Value) -> u64 {
        let kind = kind_of(object);
        let mut object = object.clone();
        if let Some(fields) = object.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let key = key_of(&text("namespace"), &text("name"));
        lock(&self.state).change(kind, key, Some(object))
    }

    /// Puts all items of a list in the server's format, such as `ServiceList`.
    pub fn put_list(&self, text: &str) {
        let list: Value = serde_json::from_str(text).expect("JSON");
        let kind = list["kind"].as_str().unwrap_or_default().trim_end_matches("List").to_owned();
        for item in list["items"].as_array().expect("items") {
            let mut item = item.clone();
            item["kind"] = kind.clone().into();
            self.put(&item);
        }
    }

    /// Deletes an object and notifies the watches. `namespace` is empty for Nodes.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) {
        lock(&self.state).change(plural(resource), key_of(namespace, name), None);
    }

    /// Deletes an object without notifying the watches, as if a broken watch had missed it.
    pub fn delete_silently(&self, resource: &str, namespace: &str, name: &str) {
        let mut state = lock(&self.state);
        state.version += 1;
        let resource = state.resources.entry(plural(resource).plural).or_default();
        resource.objects.remove(&key_of(namespace, name));
    }

    /// Sends a bookmark to every watch.
    pub fn bookmark(&self) {
        let mut state = lock(&self.state);
        let version = state.version;
        let event = |watch: &Watch| watch.encoding.event(watch.kind, &bookmark(watch.kind, version));
        state.watches.retain(|watch| watch.to.send(ToWatch::Event(event(watch))).is_ok());
    }

    /// Discards the history: watches and paged lists from before now get 410.
    pub fn compact(&self) {
        let mut state = lock(&self.state);
        state.compacted = state.version;
        state.version += 1;
        state.pages.clear();
        state.resources.values_mut().for_each(|resource| resource.history.clear());
    }

    /// Discards the history and numbers the next change after this version, like a server restarted on the same data.
    /// With a smaller version than before, like one restored from a backup.
    pub fn start_from(&self, version: u64) {
        lock(&self.state).version = version;
        self.compact();
    }

    /// Ends every watch in the middle of an event, as a broken connection does.
    pub fn cut_watches(&self) {
        for watch in lock(&self.state).watches.drain(..) {
            let event = watch.encoding.event(watch.kind, &json!({"type": "MODIFIED", "object": {"metadata": {}}}));
            drop(watch.to.send(ToWatch::HalfAnEvent(event)));
        }
    }

    /// Ends every watch properly, as a server does after a while.
    pub fn end_watches(&self) {
        for watch in lock(&self.state).watches.drain(..) {
            drop(watch.to.send(ToWatch::End));
        }
    }

    /// Sends an event in JSON to the watches of a resource, in the encoding of each. Other text is sent unchanged.
    pub fn send_raw(&self, resource: &str, text: &str) {
        let mut state = lock(&self.state);
        let event = |watch: &Watch| match (watch.encoding, serde_json::from_str::<Value>(text)) {
            (Encoding::Protobuf, Ok(event)) if event["object"]["metadata"].is_object() => {
                watch.encoding.event(watch.kind, &event)
            }
            (Encoding::Protobuf, _) => protobuf::framed(text.as_bytes()),
            (Encoding::Json, _) => format!("{text}\n").into(),
        };
        let send = |watch: &Watch| watch.to.send(ToWatch::Event(event(watch))).is_ok();
        state.watches.retain(|watch| watch.kind.plural != resource || send(watch));
    }

    /// Lets the next request of this kind fail. Several faults apply in order.
    pub fn fail_next(&self, resource: &str, verb: Verb, fault: Fault) {
        lock(&self.state).faults.push((plural(resource).plural, verb == Verb::Watch, fault));
    }

    /// Answers each request for a list of a resource with this body, in the encoding that the client asks for.
    pub fn answer_lists_with(&self, resource: &str, body: &[u8]) {
        lock(&self.state).bodies.insert(plural(resource).plural, body.to_vec());
    }

    /// Removes the pending faults of [`ApiServer::fail_next`].
    pub fn clear_faults(&self) {
        lock(&self.state).faults.clear();
    }

    /// Makes the server unavailable (`true`) or available. While it is unavailable, every new connection is closed, the
    /// watches end, and no request gets an answer.
    pub fn outage(&self, away: bool) {
        lock(&self.state).away = away;
        if away {
            self.cut_watches();
        }
    }

    /// Forbids a resource, or allows it again.
    pub fn forbid(&self, resource: &str, forbidden: bool) {
        let resource = plural(resource).plural;
        let mut state = lock(&self.state);
        state.forbidden.retain(|other| *other != resource);
        if forbidden {
            state.forbidden.push(resource);
        }
    }

    /// Adds or removes the resource ServiceCIDRs.
    pub fn serve_service_cidrs(&self, service_cidrs: ServiceCidrs) {
        lock(&self.state).service_cidrs = service_cidrs;
    }

    /// Always answers in JSON.
    pub fn serve_only_json(&self) {
        lock(&self.state).only = Some(Encoding::Json);
    }

    /// Delays every answer by this time.
    pub fn set_latency(&self, latency: Duration) {
        lock(&self.state).latency = latency;
    }

    /// Forbids to send Events, or allows it again.
    pub fn forbid_events(&self, forbidden: bool) {
        lock(&self.state).events_forbidden = forbidden;
    }

    /// Requires this token from now on.
    pub fn demand_token(&self, token: &str) {
        lock(&self.state).tokens = vec![token.to_owned()];
    }

    /// Accepts this token too, since requests under way still have the earlier one.
    pub fn accept_token(&self, token: &str) {
        lock(&self.state).tokens.push(token.to_owned());
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.state).requests.clone()
    }

    /// Bytes of all lists so far, including the initial objects of watches.
    pub fn sent(&self) -> usize {
        lock(&self.state).sent
    }

    /// Number of watches of a resource.
    pub fn watches(&self, resource: &str) -> usize {
        lock(&self.state).watches.iter().filter(|watch| watch.kind.plural == resource).count()
    }

    /// All Events (of `events.k8s.io/v1`) so far.
    pub fn events(&self) -> Vec<Value> {
        lock(&self.state).events.clone()
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        lock(&self.state).version
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        lock(&self.state).stopped = true;
        self.end_watches();
        // Wakes the thread that accepts connections.
        drop(TcpStream::connect(self.address));
    }
}

impl Store {
    fn change(&mut self, kind: Kind, key: String, object: Option<Value>) -> u64 {
        self.version += 1;
        let version = self.version;
        let resource = self.resources.entry(kind.plural).or_default();
        let after = object.map(|object| with_version(object, version));
        let before = match &after {
            Some(object) => resource.objects.insert(key, Object::new(kind, object.clone())),
            None => resource.objects.remove(&key),
        };
        let before = before.map(|object| object.value);
        let change = Revision { version, before, after };
        self.watches.retain(|watch| {
            let event = Some(watch).filter(|watch| watch.kind.plural == kind.plural);
            let event = event.and_then(|watch| change.event(kind, &watch.selector));
            event.is_none_or(|event| watch.to.send(ToWatch::Event(watch.encoding.event(kind, &event))).is_ok())
        });
        resource.history.push(change);
        version
    }

    /// The kind with this path, if the server has it.
    fn kind(&self, path: &str) -> Option<Kind> {
        let path = match (self.service_cidrs, path) {
            (ServiceCidrs::V1beta1, "/apis/networking.k8s.io/v1beta1/servicecidrs") => {
                "/apis/networking.k8s.io/v1/servicecidrs"
            }
            (ServiceCidrs::V1beta1 | ServiceCidrs::None, "/apis/networking.k8s.io/v1/servicecidrs") => return None,
            (_, path) => path,
        };
        KINDS.iter().copied().find(|kind| kind.path == path)
    }

    fn encoding(&self, request: &Request) -> Encoding {
        let accepts_protobuf = request.accepts.contains(Encoding::Protobuf.content_type(false));
        self.only.unwrap_or(if accepts_protobuf { Encoding::Protobuf } else { Encoding::Json })
    }

    /// The kind that is asked for, and the fault that the request meets; a refusal, or the answer to an Event, with its
    /// code.
    fn route(&mut self, request: &Request) -> Result<(Kind, Option<Fault>), (u16, Value)> {
        if !self.tokens.is_empty() && !request.token.as_ref().is_some_and(|token| self.tokens.contains(token)) {
            return Err((401, status(401)));
        }
        if request.method == "POST" && request.path.ends_with("/events") {
            if request.path.contains("/namespaces/ending/") {
                return Err((403, ending()));
            }
            if self.events_forbidden {
                return Err((403, forbidden("events", "create")));
            }
            self.events.extend(serde_json::from_str::<Value>(&request.body));
            return Err((201, json!({})));
        }
        let kind = self.kind(&request.path).ok_or_else(|| (404, status(404)))?;
        if self.forbidden.contains(&kind.plural) {
            let verb = if request.is_watch() { "watch" } else { "list" };
            return Err((403, forbidden(kind.plural, verb)));
        }
        Ok((kind, self.fault(kind, request.is_watch())))
    }

    fn fault(&mut self, kind: Kind, watch: bool) -> Option<Fault> {
        let at = self.faults.iter().position(|(plural, of_watch, _)| *plural == kind.plural && *of_watch == watch)?;
        Some(self.faults.remove(at).2)
    }

    /// The failure of a request for a version that does not exist yet.
    fn too_large(&self, request: &Request) -> Option<Value> {
        let wanted = request.parameter("resourceVersion")?.parse().ok().filter(|wanted| *wanted > self.version)?;
        Some(too_large(wanted, self.version))
    }

    /// A list or a page of one. Version 0 means "any version"; a limit is then ignored.
    fn list(&mut self, kind: Kind, request: &Request, encoding: Encoding) -> Result<Vec<u8>, Value> {
        if let Some(body) = self.bodies.get(kind.plural) {
            return Ok(body.clone());
        }
        if let Some(failure) = self.too_large(request) {
            return Err(failure);
        }
        let selector = selector(request);
        let limit = request.parameter("limit").and_then(|text| text.parse::<usize>().ok()).filter(|limit| *limit > 0);
        let limit = limit.filter(|_| request.parameter("resourceVersion") != Some("0"));
        let token = request.parameter("continue").filter(|token| !token.is_empty());
        let (version, mut items) = if let Some(token) = token {
            self.pages.remove(token).ok_or_else(|| status(410))?
        } else {
            let objects = self.resources.entry(kind.plural).or_default().objects.values();
            let chosen = objects.filter(|object| selector.matches(&object.value));
            (self.version, chosen.map(|object| object.sent.clone()).collect::<Vec<_>>())
        };
        let rest = items.split_off(limit.unwrap_or(items.len()).min(items.len()));
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if !rest.is_empty() {
            let token = format!("page-{}-{version}-{}", kind.plural, rest.len());
            metadata["continue"] = token.clone().into();
            if selector.is_empty() {
                metadata["remainingItemCount"] = rest.len().into();
            }
            self.pages.insert(token, (version, rest));
        }
        Ok(encoding.list(kind, &metadata, &items))
    }

    /// The list of a namespace's Services with one name, in JSON.
    fn one_service(&self, request: &Request) -> Option<Value> {
        let namespace = request.path.strip_prefix("/api/v1/namespaces/")?.strip_suffix("/services")?;
        let name = request.parameter("fieldSelector")?.strip_prefix("metadata.name=")?;
        let service = self.resources.get("services").and_then(|all| all.objects.get(&key_of(namespace, name)));
        let items: Vec<&Value> = service.map(|service| &service.value).into_iter().collect();
        Some(json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": {}, "items": items}))
    }

    /// A watch, with the events since the requested version.
    fn watch(&mut self, kind: Kind, request: &Request, encoding: Encoding) -> (Receiver<ToWatch>, Vec<u8>) {
        let (to, from) = channel();
        let selector = selector(request);
        let version: u64 = request.parameter("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
        if version != 0 && version < self.compacted {
            drop(to.send(ToWatch::End));
            return (from, encoding.event(kind, &json!({"type": "ERROR", "object": status(410)})));
        }
        let mut missed = Vec::new();
        let resource = self.resources.entry(kind.plural).or_default();
        if version == 0 {
            let all = resource.objects.values().map(|object| Revision {
                version: 0,
                before: None,
                after: Some(object.value.clone()),
            });
            missed.extend(
                all.filter_map(|change| change.event(kind, &selector)).flat_map(|event| encoding.event(kind, &event)),
            );
        } else {
            let since = resource.history.iter().filter(|change| change.version > version);
            let events = since.filter_map(|change| change.event(kind, &selector));
            missed.extend(events.flat_map(|event| encoding.event(kind, &event)));
        }
        self.watches.push(Watch { kind, selector, encoding, to });
        (from, missed)
    }
}

fn selector(request: &Request) -> Selector {
    let parameter = |name| request.parameter(name).unwrap_or_default();
    Selector::new(parameter("labelSelector"), parameter("fieldSelector"))
}

/// Serves one connection until it ends.
fn serve(stream: TcpStream, state: &Mutex<Store>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(request) = Request::read(&mut reader)? {
        respond(&mut stream, &request, state)?;
    }
    Ok(())
}

fn respond(stream: &mut TcpStream, request: &Request, shared: &Mutex<Store>) -> io::Result<()> {
    let type_of = |encoding: Encoding| ("Content-Type", encoding.content_type(request.is_watch()).to_owned());
    let encoding = lock(shared).encoding(request);
    let fail = |stream: &mut TcpStream, code: u16, body: &Value| {
        let headers = [("Content-Type", encoding.content_type(false).to_owned())];
        http::answer(stream, code, &headers, &encoding.status(body), None, None)
    };
    let (routed, latency) = {
        let mut state = lock(shared);
        if state.stopped || state.away {
            return Err(io::Error::other("stopped"));
        }
        // About one Service, for an Event; not among the requests, whose lists tests count, and without faults.
        if let Some(list) = state.one_service(request) {
            drop(state);
            return http::answer(stream, 200, &[type_of(Encoding::Json)], list.to_string().as_bytes(), None, None);
        }
        state.requests.push(request.clone());
        (state.route(request), state.latency)
    };
    let (kind, fault) = match routed {
        Ok(found) => found,
        Err((code, body)) => return fail(stream, code, &body),
    };
    thread::sleep(latency);
    let (mut cut, mut pause, mut padding) = (None, None, 0);
    match fault {
        Some(Fault::Status(code, retry_after)) => {
            let mut headers = vec![("Content-Type", encoding.content_type(false).to_owned())];
            headers.extend(retry_after.map(|secs| ("Retry-After", secs.to_string())));
            return http::answer(stream, code, &headers, &encoding.status(&status(code)), None, None);
        }
        Some(Fault::Text(text)) => {
            return http::answer(stream, 200, &[type_of(Encoding::Json)], text.as_bytes(), None, None);
        }
        Some(Fault::Empty) => {
            let bytes = encoding.list(kind, &json!({"resourceVersion": "1"}), &[]);
            return http::answer(stream, 200, &[type_of(encoding)], &bytes, None, None);
        }
        Some(Fault::Silence) => {
            let started = Instant::now();
            while !lock(shared).stopped && started.elapsed() < Duration::from_secs(60) {
                thread::sleep(Duration::from_millis(20));
            }
            return Err(io::Error::other("silent"));
        }
        Some(Fault::Late(time)) => thread::sleep(time),
        Some(Fault::Slow(time)) => pause = Some(time),
        Some(Fault::Cut(bytes)) => cut = Some(bytes),
        Some(Fault::Padded(blanks)) => padding = blanks,
        None => {}
    }
    // Only JSON may have blanks.
    let encoding = if padding > 0 { Encoding::Json } else { encoding };
    let padding = vec![b' '; padding];
    if request.is_watch() {
        let (from, missed) = {
            let mut state = lock(shared);
            let (from, missed) = state.watch(kind, request, encoding);
            state.sent += missed.len();
            (from, missed)
        };
        http::start_chunks(stream, encoding.content_type(true))?;
        return serve_watch(stream, request, &from, &[padding, missed].concat(), cut, pause);
    }
    let list = lock(shared).list(kind, request, encoding);
    match list {
        Ok(list) => {
            lock(shared).sent += list.len();
            http::answer(stream, 200, &[type_of(encoding)], &[padding, list].concat(), cut, pause)
        }
        Err(failure) => {
            fail(stream, failure["code"].as_u64().and_then(|code| code.try_into().ok()).unwrap_or(500), &failure)
        }
    }
}

/// Serves a watch that begins with these events.
fn serve_watch(
    stream: &mut TcpStream,
    request: &Request,
    from: &Receiver<ToWatch>,
    first: &[u8],
    cut: Option<usize>,
    pause: Option<Duration>,
) -> io::Result<()> {
    if let Some(bytes) = cut.filter(|bytes| *bytes < first.len()) {
        http::chunk(stream, first.get(..bytes).unwrap_or_default())?;
    }
    if cut.is_some() {
        http::half_a_chunk(stream, b"{\"type\":\"ADDED\",\"object\":{}}\n")?;
        return Err(io::Error::other("cut"));
    }
    for piece in first.chunks(if pause.is_some() { 64 } else { 1 << 16 }) {
        thread::sleep(pause.unwrap_or_default());
        http::chunk(stream, piece)?;
    }
    let seconds = request.parameter("timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(1800);
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        match from.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(ToWatch::Event(event)) => http::chunk(stream, &event)?,
            Ok(ToWatch::HalfAnEvent(event)) => {
                http::half_a_chunk(stream, &event)?;
                return Err(io::Error::other("cut"));
            }
            Ok(ToWatch::End) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return http::end_chunks(stream);
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! Lists and watches one kind, and handles failures of both.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

use super::client::{Answer, Failure, FailureKind, Session, get};
use super::known::{Known, number};
use super::objects::{CidrVersion, Identity, Line, Page, Resource, Status};
use super::{Counters, Gate, Options};
use crate::proxier_demo::message::change::{Change, unannounced};
use crate::proxier_demo::message::{Changes, Closed};
use crate::proxier_demo::problem::Problem;

/// Lists and watches one kind until it is dropped.
pub(super) struct Watcher {
    pub(super) resource: Resource,
    pub(super) session: Arc<Session>,
    /// The number of the client that the last request had.
    pub(super) used: AtomicU64,
    pub(super) options: Arc<Options>,
    pub(super) changes: Changes,
    pub(super) gate: Arc<Gate>,
    pub(super) counters: Arc<Counters>,
}

/// Why a request ended early.
enum Stop {
    Failed(Failure),
    Closed,
}

impl From<Closed> for Stop {
    fn from(Closed: Closed) -> Self {
        Stop::Closed
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failed(failure)
    }
}

/// Next question to the server.
#[derive(Default)]
enum State {
    /// All objects: at the start, when the server no longer has the version, and after several watches that broke.
    #[default]
    List,
    /// Changes from the version of a list that was empty, which counts once the server accepts this watch.
    Unconfirmed(String),
    /// Changes from a version on.
    Watch(String),
}

/// Progress of the list or watch of a kind.
#[derive(Default)]
struct Place {
    state: State,
    known: Known,
    /// Objects in a page, if pages were too large.
    page: Option<usize>,
    /// Consecutive watches that broke without bringing anything.
    broken: u32,
    /// Consecutive failures because the version was too old.
    expired: u32,
    /// Whether it was logged that the server lacks or forbids an optional kind.
    said_absent: bool,
}

/// Number of watches in a row that broke without bringing anything, after which all objects are listed again.
const BROKEN_BEFORE_LIST: u32 = 5;
/// Time after which a watch without a refusal is accepted.
const CONFIRMED_AFTER: Duration = Duration::from_secs(1);
/// Longest line of a watch, in bytes: an object of an API server has at most 3 MiB.
const LINE_BYTES: usize = 16 << 20;

impl Watcher {
    pub(super) async fn run(mut self) {
        let mut place = Place::default();
        let mut pause = Pauses::new(&self.options);
        loop {
            let started = Instant::now();
            let (outcome, is_list) = match &place.state {
                State::List => (self.list(&mut place).await, true),
                State::Unconfirmed(version) | State::Watch(version) => {
                    let version = version.clone();
                    (self.watch(&mut place, version).await, false)
                }
            };
            match outcome {
                Err(Stop::Closed) => return,
                // A list was too old at once: keep the growing pause, or the server would get list requests without end.
                Ok(_) if is_list && place.expired > 1 => {}
                Ok(brought) => {
                    // A pause keeps servers that end watches at once from getting watches without end.
                    if brought || started.elapsed() > Duration::from_secs(1) {
                        pause.reset();
                    } else {
                        sleep(pause.next(None)).await;
                    }
                }
                Err(Stop::Failed(failure)) => {
                    // After a watch that brought something, or lasted, a break counts as the first failure again.
                    let was_of_use = !is_list && !matches!(place.state, State::List) && place.broken == 0;
                    if was_of_use || (!is_list && started.elapsed() > pause.next) {
                        pause.reset();
                    }
                    if self.is_absent(&failure) {
                        if self.do_without(&failure, &mut place).await == Err(Closed) {
                            return;
                        }
                        continue;
                    }
                    self.counters.failed(self.resource.awaited(), SystemTime::now());
                    self.recover(&failure, &mut place, &mut pause).await;
                }
            }
        }
    }

    /// Whether the server lacks or forbids this kind, and serving works without it.
    fn is_absent(&self, failure: &Failure) -> bool {
        let is_optional = matches!(self.resource, Resource::ServiceCidrs(_) | Resource::AllNodes { .. });
        is_optional && matches!(failure.kind, FailureKind::Missing | FailureKind::Forbidden)
    }

    /// Goes on without this kind, says so once, and waits before the next try: a person may upgrade the server or grant the right. Objects that were
    /// read before stay.
    async fn do_without(&mut self, failure: &Failure, place: &mut Place) -> Result<(), Closed> {
        place.state = State::List;
        let (what, otherwise) = if let Resource::ServiceCidrs(version) = &mut self.resource {
            if failure.kind == FailureKind::Missing && *version == CidrVersion::V1 {
                *version = CidrVersion::V1beta1;
                return Ok(());
            }
            *version = CidrVersion::V1;
            (
                "servicecidrs.networking.k8s.io, if there are any",
                "the networks of cluster IPs are those of the configuration (ipvs.serviceCIDRs, userspace.serviceCIDRs)",
            )
        } else {
            (
                "nodes",
                "nodes have no weights, and a Service that has the address of another Node takes it from this node",
            )
        };
        if !std::mem::replace(&mut place.said_absent, true) {
            let (message, kind) = (&failure.message, self.resource.kind());
            if failure.kind == FailureKind::Missing {
                tracing::info!("the server has no {kind}s ({message}): {otherwise}");
            } else {
                tracing::warn!("{message}; allow list and watch of {what}; until then {otherwise}");
            }
        }
        self.gate.listed(self.resource.awaited()).await?;
        sleep(jittered(self.options.absent_pause)).await;
        Ok(())
    }

    async fn recover(&mut self, failure: &Failure, place: &mut Place, pauses: &mut Pauses) {
        let plural = self.resource.plural();
        if failure.kind == FailureKind::TooLarge {
            let page = place.page.unwrap_or(self.options.page);
            place.page = Some((page / 4).max(1));
            tracing::warn!(resource = plural, "{}; asking for {} objects a page", failure.message, page / 4);
            // Smaller pages need no pause; a single object that is too large is a failure like any other.
            if page > 1 {
                return;
            }
        }
        // An expired version is normal; only one straight after a list is a failure.
        if failure.kind == FailureKind::Expired {
            place.expired = place.expired.saturating_add(1);
            if place.expired == 1 {
                tracing::info!(resource = plural, "{}; listing again", failure.message);
                return;
            }
        }
        let pause = pauses.next(failure.retry_after);
        let again = pause.as_secs_f32();
        match failure.kind {
            FailureKind::Expired => {
                tracing::info!(resource = plural, "{}; listing again in {again:.1} s", failure.message);
            }
            FailureKind::Forbidden => tracing::error!(
                resource = plural,
                "{}; allow get, list and watch of {plural} (ClusterRole system:node-proxier does); \
                 trying again in {again:.1} s",
                failure.message
            ),
            FailureKind::Unauthorized => tracing::error!(
                resource = plural,
                "{}: the server does not know these credentials; reading them again in {again:.1} s",
                failure.message
            ),
            FailureKind::Unreachable | FailureKind::Untrusted => {
                let server = self.session.connection().server().map(|url| url.to_string()).unwrap_or_default();
                let message = &failure.message;
                tracing::warn!(resource = plural, "no answer from {server} ({message}); trying again in {again:.1} s");
            }
            _ => tracing::warn!(resource = plural, "{}; trying again in {again:.1} s", failure.message),
        }
        match failure.retry_after {
            Some(_) => sleep(pause).await,
            None => self.session.pause(pause, self.used.load(Ordering::Relaxed)).await,
        }
    }

    /// Sends a request with the present client. A client that the server does not accept, or that does not accept the server, is not used again.
    async fn get(&self, target: &str) -> Result<Answer, Failure> {
        let current = self.session.current().await.map_err(|problem| Failure::other(problem.to_string()))?;
        self.used.store(current.number, Ordering::Relaxed);
        let answer = get(&current, target, self.resource.accepts(), self.options.patience).await;
        if let Err(Failure { kind: FailureKind::Unauthorized | FailureKind::Untrusted, .. }) = &answer {
            self.session.doubt(&current).await;
        }
        answer
    }

    /// Lists all objects, and reports those that are new, changed or missing.
    async fn list(&self, place: &mut Place) -> Result<bool, Stop> {
        let mut version: Option<String> = None;
        let mut next: Option<String> = None;
        let mut is_empty = true;
        place.known.begin_list();
        if let Some(kind) = self.resource.object_kind() {
            self.changes.send(Change::Listing(kind)).await?;
        }
        loop {
            let limit = place.page.unwrap_or(self.options.page);
            let mut target = format!("{}&limit={limit}", self.resource.target());
            if let Some(token) = &next {
                target.push_str("&continue=");
                target.extend(token.bytes().map(encoded));
            }
            let body = self.get(&target).await?.whole(self.options.page_bytes).await?;
            let page: Page<'_> = serde_json::from_slice(&body).map_err(|error| {
                Failure::other(format!("the list of {} is not one: {error}", self.resource.plural()))
            })?;
            if page.metadata.resource_version.is_empty() {
                return Err(Failure::other(format!("the list of {} has no version", self.resource.plural())).into());
            }
            // All pages of a list show one moment. A page of another moment may lack objects that the first pages did not have yet, or is an empty
            // answer that came from somewhere else.
            let found = page.metadata.resource_version;
            let first = version.get_or_insert_with(|| found.clone());
            if *first != found {
                let plural = self.resource.plural();
                let message = format!("the list of {plural} began at version {first} and went on at version {found}");
                return Err(Failure::other(message).into());
            }
            for item in page.items {
                is_empty = false;
                self.take_item(&mut place.known, item.get()).await?;
            }
            next = page.metadata.next.filter(|token| !token.is_empty());
            if next.is_none() {
                break;
            }
        }
        let gone: Vec<Change> = place.known.end_list().iter().map(|key| self.resource.gone(key)).collect();
        for change in unannounced(gone) {
            self.changes.send(change).await?;
        }
        place.broken = 0;
        Counters::count(&self.counters.lists);
        self.counters.worked(self.resource.awaited());
        // The API server itself has a Service and an EndpointSlice. A list without any may come from a server that is just starting, or from
        // something else at its address: a process that believes its first list would then compare the kernel with the part of the next list that has
        // arrived. So an empty list counts once its version can be watched.
        let version = version.unwrap_or_default();
        if is_empty && !matches!(self.resource, Resource::Node(_) | Resource::AllNodes { .. }) {
            place.state = State::Unconfirmed(version);
        } else {
            place.state = State::Watch(version);
            self.listed().await?;
        }
        Ok(true)
    }

    /// The list counts.
    async fn listed(&self) -> Result<(), Closed> {
        if let Some(kind) = self.resource.object_kind() {
            self.changes.send(Change::Listed(kind)).await?;
        }
        self.gate.listed(self.resource.awaited()).await
    }

    /// A watch from the version of the list was accepted.
    async fn confirm(&self, place: &mut Place) -> Result<(), Closed> {
        let State::Unconfirmed(version) = &mut place.state else { return Ok(()) };
        place.state = State::Watch(std::mem::take(version));
        self.listed().await
    }

    async fn take_item(&self, known: &mut Known, text: &str) -> Result<(), Closed> {
        let Some(identity) = Identity::of(text).filter(Identity::is_named) else {
            return self.unreadable("", String::new(), "an object without a name".to_owned()).await;
        };
        if known.list_item(&identity.key, number(&identity.version)) {
            self.report(&identity.key, text).await
        } else {
            Ok(())
        }
    }

    /// Reports an object, or that it cannot be read: then its last readable content stays.
    async fn report(&self, key: &str, text: &str) -> Result<(), Closed> {
        match self.resource.read(text) {
            Ok(change) => {
                let spec = if let Change::Node(node) = &change { Some(&node.object.spec) } else { None };
                let has_pods = spec.is_some_and(|spec| spec.pod_cidr.is_some() || !spec.pod_cidrs.is_empty());
                self.changes.send(change).await?;
                if has_pods { self.gate.pod_cidr().await } else { Ok(()) }
            }
            Err((field, reason)) => self.unreadable(key, field, reason).await,
        }
    }

    async fn unreadable(&self, key: &str, field: String, reason: String) -> Result<(), Closed> {
        Counters::count(&self.counters.unreadable);
        let problem = Problem::new("API server", reason).of(format!("{} {key}", self.resource.kind())).at(field);
        self.changes.send(Change::Unreadable(problem)).await
    }

    /// Watches from a version on until the server ends it; returns whether it brought anything.
    async fn watch(&self, place: &mut Place, version: String) -> Result<bool, Stop> {
        let target = format!(
            "{}&watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={}",
            self.resource.target(),
            // So that the nodes do not all reconnect at once.
            jittered(self.options.watch).as_secs().max(1),
        );
        let mut stream = Stream { buffer: Vec::new(), version, brought: false };
        let outcome = self.follow(&target, place, &mut stream).await;
        place.broken = if stream.brought { 0 } else { place.broken + u32::from(outcome.is_err()) };
        let is_expired = matches!(&outcome, Err(Stop::Failed(Failure { kind: FailureKind::Expired, .. })));
        if !is_expired {
            place.expired = 0;
        }
        let resume = outcome.is_ok() || (!is_expired && place.broken < BROKEN_BEFORE_LIST);
        place.state = match place.state {
            _ if !resume => State::List,
            State::Unconfirmed(_) => State::Unconfirmed(stream.version),
            State::List | State::Watch(_) => State::Watch(stream.version),
        };
        outcome.map(|()| stream.brought)
    }

    async fn follow(&self, target: &str, place: &mut Place, stream: &mut Stream) -> Result<(), Stop> {
        let mut answer = self.get(target).await?;
        Counters::count(&self.counters.watches);
        self.counters.worked(self.resource.awaited());
        loop {
            let piece = answer.piece(self.options.silence);
            let piece = if matches!(place.state, State::Unconfirmed(_)) {
                // A refusal comes at once.
                match tokio::time::timeout(CONFIRMED_AFTER.min(self.options.silence / 2), piece).await {
                    Ok(piece) => piece?,
                    Err(_elapsed) => {
                        self.confirm(place).await?;
                        continue;
                    }
                }
            } else {
                piece.await?
            };
            let Some(piece) = piece else { break };
            let mut rest = piece.as_ref();
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let (line, after) = rest.split_at(end);
                rest = after.get(1..).unwrap_or_default();
                if stream.buffer.is_empty() {
                    self.take_line(line, place, stream).await?;
                } else {
                    let mut whole = std::mem::take(&mut stream.buffer);
                    whole.extend_from_slice(line);
                    self.take_line(&whole, place, stream).await?;
                }
            }
            if stream.buffer.len() + rest.len() > LINE_BYTES {
                return Err(Failure::other(format!("a line of the watch is longer than {LINE_BYTES} bytes")).into());
            }
            stream.buffer.extend_from_slice(rest);
            if stream.brought {
                self.confirm(place).await?;
            }
        }
        self.confirm(place).await?;
        if stream.buffer.iter().all(u8::is_ascii_whitespace) {
            Ok(())
        } else {
            Err(Failure::other("the watch broke off in the middle of a line").into())
        }
    }

    async fn take_line(&self, line: &[u8], place: &mut Place, stream: &mut Stream) -> Result<(), Stop> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let event: Line<'_> = serde_json::from_slice(line)
            .map_err(|error| Failure::other(format!("a line of the watch is not an event: {error}")))?;
        let text = event.object.get();
        if event.what == "ERROR" {
            let status: Status = serde_json::from_str(text).unwrap_or_default();
            return Err(Failure::of_status(status.code, &status).into());
        }
        let Some(identity) = Identity::of(text) else {
            return Ok(self.unreadable("", String::new(), "an event about no object".to_owned()).await?);
        };
        stream.brought = true;
        let version = number(&identity.version);
        match &*event.what {
            // Events may come late, bookmarks do not: the server went back in time, and this watch would miss later events,
            // perhaps for hours.
            "BOOKMARK" if version != 0 && version < number(&stream.version) => {
                let message = format!(
                    "the server is at version {version}, and was at {} before: restored from a backup",
                    stream.version
                );
                return Err(Failure { kind: FailureKind::Expired, message, retry_after: None }.into());
            }
            "BOOKMARK" => {}
            _ if !identity.is_named() => {
                self.unreadable("", String::new(), "an event about an object without a name".to_owned()).await?;
            }
            "ADDED" | "MODIFIED" => {
                if place.known.upsert(&identity.key, version) {
                    self.report(&identity.key, text).await?;
                }
            }
            "DELETED" => {
                if place.known.delete(&identity.key, version) {
                    self.changes.send(self.resource.gone(&identity.key)).await?;
                }
            }
            other => {
                let reason = format!("an event of the unknown type {other:?}");
                self.unreadable(&identity.key, String::new(), reason).await?;
            }
        }
        // Late events must not move the watch back.
        if !identity.version.is_empty() && (version == 0 || version > number(&stream.version)) {
            stream.version = identity.version;
        }
        Ok(())
    }
}

struct Stream {
    /// The beginning of a line that is not complete yet.
    buffer: Vec<u8>,
    version: String,
    brought: bool,
}

/// A byte of a query's value.
fn encoded(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

/// Randomly from `time` to 1.5 times that.
fn jittered(time: Duration) -> Duration {
    // Randomness from the standard library: every RandomState has its own keys.
    let chance = RandomState::new().hash_one(0_u8) % 1000;
    time + time * u32::try_from(chance).unwrap_or(0) / 2000
}

/// Pauses that double.
struct Pauses {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pauses {
    /// Longest pause that a server may ask for: no server makes all nodes wait longer.
    const LONGEST_ASKED: Duration = Duration::from_secs(120);

    fn new(options: &Options) -> Self {
        Pauses { first: options.first_pause, longest: options.longest_pause, next: options.first_pause }
    }

    fn reset(&mut self) {
        self.next = self.first;
    }

    /// Next pause: at least as long as the server asked for.
    fn next(&mut self, asked: Option<Duration>) -> Duration {
        let pause = jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        pause.max(asked.unwrap_or_default().min(Self::LONGEST_ASKED))
    }
}

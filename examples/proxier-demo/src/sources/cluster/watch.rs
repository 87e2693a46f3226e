//! Lists and watches one kind, and handles failures.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use proxier_core::snapshot::ObjectKey;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::client::{Answer, Failure, FailureKind, Session, get};
use super::encoding::{Encoding, List, Object, Part};
use super::objects::{CidrVersion, Identity, Resource};
use super::versions::{Versions, number};
use super::{Counters, Gate, Options, protobuf};
use crate::message::change::{Change, Unreadable, unannounced};
use crate::message::{Changes, Closed};
use crate::problem::{OneLine, Problem};

/// Lists and watches one kind until it is dropped.
pub(super) struct Watcher {
    pub(super) resource: Resource,
    pub(super) session: Arc<Session>,
    /// The number of the client that made the last request.
    pub(super) used: AtomicU64,
    pub(super) options: Arc<Options>,
    pub(super) changes: Changes,
    pub(super) gate: Arc<Gate>,
    pub(super) counters: Arc<Counters>,
}

/// Next request to the server, and its version.
enum NextRequest {
    /// All objects: at the start, when the server no longer has the version, and after several broken watches. They are
    /// at least as new as the version; without one, they are the current ones, regardless of what was known before.
    List(String),
    /// Changes from the version of an empty list, which counts once the server accepts this watch.
    Unconfirmed(String),
    /// Changes from a version on.
    Watch(String),
}

impl Default for NextRequest {
    fn default() -> Self {
        NextRequest::List(ANY.to_owned())
    }
}

impl NextRequest {
    fn asks_for_all(&self) -> bool {
        matches!(self, NextRequest::List(_))
    }
}

/// Allows a list that is as old as what the server has in memory.
const ANY: &str = "0";

/// The progress of a kind's list or watch.
#[derive(Default)]
struct Progress {
    next: NextRequest,
    known: Versions,
    /// Objects in a page, if larger pages were too large.
    page: Option<usize>,
    /// Consecutive watches that broke without new data.
    broken: u32,
    /// Consecutive failures because the version was too old.
    expired: u32,
    /// Whether it was logged that the server lacks or forbids an optional kind.
    said_absent: bool,
    /// Since when the server has refused these requests.
    refused_since: Option<Instant>,
    /// Whether the last watch ended at once, without anything new. Once is normal: the server stops.
    ended_at_once: bool,
    /// Whether the current watch has brought something new, or lasts.
    is_accepted: bool,
}

/// How long a starting server refuses what it allows afterwards, because it has not read the roles yet.
const SETTLING: Duration = Duration::from_secs(3);

impl Progress {
    fn note_refusal(&mut self, failure: &Failure) {
        let is_refused = matches!(failure.kind, FailureKind::Forbidden | FailureKind::Unauthorized);
        self.refused_since = is_refused.then(|| self.refused_since.unwrap_or_else(Instant::now));
    }

    /// Whether the server has refused these requests only briefly, so that it may just be starting.
    fn may_settle(&self) -> bool {
        self.refused_since.is_some_and(|since| since.elapsed() < SETTLING)
    }

    /// The request after a watch. `lasted`: it was open for long.
    fn go_on(&mut self, stream: Stream, lasted: bool, failure: Option<&Failure>) {
        let Stream { version, brought, is_damaged, .. } = stream;
        let kind = failure.map(|failure| failure.kind);
        let is_expired = matches!(kind, Some(FailureKind::Expired | FailureKind::TooNew));
        // Load balancers in front of API servers cut connections that are quiet for a minute.
        let was_quiet = lasted && kind == Some(FailureKind::Cut);
        self.broken = if brought || was_quiet { 0 } else { self.broken + u32::from(failure.is_some()) };
        if !is_expired {
            self.expired = 0;
        }
        self.next = match self.next {
            _ if kind == Some(FailureKind::TooNew) => NextRequest::List(String::new()),
            _ if is_expired || is_damaged || self.broken >= BROKEN_BEFORE_LIST => NextRequest::List(version),
            NextRequest::Unconfirmed(_) => NextRequest::Unconfirmed(version),
            NextRequest::List(_) | NextRequest::Watch(_) => NextRequest::Watch(version),
        };
        if self.next.asks_for_all() {
            self.broken = 0;
        }
    }
}

/// Number of consecutive watches that broke without new data, after which all objects are listed again.
const BROKEN_BEFORE_LIST: u32 = 5;
/// How long a watch must last without a refusal, or an end, to be accepted.
const ACCEPTED_AFTER: Duration = Duration::from_secs(1);

impl Watcher {
    pub(super) async fn run(mut self) {
        let mut progress = Progress::default();
        let mut pause = Pauses { next: self.options.first_pause, options: self.options.clone() };
        loop {
            let started = Instant::now();
            let asks_for_all = progress.next.asks_for_all();
            let outcome = if asks_for_all { self.list(&mut progress).await } else { self.watch(&mut progress).await };
            match outcome {
                Err(failure) if failure.kind == FailureKind::Closed => return,
                // A list was too old at once: keep the growing pause, or the server would get list requests endlessly.
                Ok(_) if asks_for_all && progress.expired > 1 => {}
                Ok(brought) => {
                    progress.refused_since = None;
                    // A pause prevents endless watches on servers that end them at once.
                    if (brought || started.elapsed() > ACCEPTED_AFTER) && !progress.ended_at_once {
                        pause.reset();
                    } else if !brought {
                        sleep(pause.next(None)).await;
                    }
                }
                Err(failure) => {
                    // After a watch with new data, or a long one, a break counts as the first failure again.
                    let was_of_use = !progress.next.asks_for_all() && progress.broken == 0;
                    if was_of_use || (!asks_for_all && started.elapsed() > pause.next) {
                        pause.reset();
                    }
                    progress.note_refusal(&failure);
                    if self.is_absent(&failure) {
                        // The server answers.
                        self.counters.worked(self.resource.awaited());
                        if self.do_without(&failure, &mut progress).await == Err(Closed) {
                            return;
                        }
                        continue;
                    }
                    let now = (SystemTime::now(), Instant::now());
                    self.counters.failed(self.resource.awaited(), now, &failure.message);
                    self.recover(&failure, &mut progress, &mut pause).await;
                }
            }
        }
    }

    /// Whether the server does not have or forbids this kind, and serving works without it.
    fn is_absent(&self, failure: &Failure) -> bool {
        let is_optional = matches!(self.resource, Resource::ServiceCidrs(_) | Resource::AllNodes { .. });
        is_optional && matches!(failure.kind, FailureKind::Missing | FailureKind::Forbidden)
    }

    /// Continues without this kind, logs that once, and waits before the next attempt: a person may upgrade the server
    /// or grant the permission. Objects that were read before are kept.
    async fn do_without(&mut self, failure: &Failure, progress: &mut Progress) -> Result<(), Closed> {
        progress.next = NextRequest::default();
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
        if !std::mem::replace(&mut progress.said_absent, true) {
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

    async fn recover(&mut self, failure: &Failure, progress: &mut Progress, pauses: &mut Pauses) {
        let plural = self.resource.plural();
        if progress.may_settle() {
            let pause = pauses.next(failure.retry_after);
            tracing::debug!(resource = plural, "{}; trying again in {:.1} s", failure.message, pause.as_secs_f32());
            return self.session.pause(pause, self.used.load(Ordering::Relaxed)).await;
        }
        if failure.kind == FailureKind::TooLarge {
            let page = progress.page.map_or(self.options.page, |page| page / 4).max(1);
            tracing::warn!(resource = plural, "{}; asking for {page} objects a page", failure.message);
            // Smaller pages need no pause. A single object that is too large is a failure like any other.
            if progress.page.replace(page) != Some(1) {
                return;
            }
        }
        // An expired version is normal. Only one directly after a list is a failure.
        if matches!(failure.kind, FailureKind::Expired | FailureKind::TooNew) {
            progress.expired = progress.expired.saturating_add(1);
            if progress.expired == 1 {
                tracing::info!(resource = plural, "{}; listing again", failure.message);
                return;
            }
        }
        // The next request differs.
        let asked = failure.retry_after.filter(|_| failure.kind != FailureKind::TooNew);
        let pause = pauses.next(asked);
        let again = pause.as_secs_f32();
        match failure.kind {
            FailureKind::Expired | FailureKind::TooNew => {
                tracing::info!(resource = plural, "{}; listing again in {again:.1} s", failure.message);
            }
            FailureKind::Forbidden => tracing::warn!(
                resource = plural,
                "{}; allow list and watch of {plural} (ClusterRole system:node-proxier does); \
                 trying again in {again:.1} s",
                failure.message
            ),
            FailureKind::Unauthorized => tracing::warn!(
                resource = plural,
                "{}: the server does not know these credentials; reading them again in {again:.1} s",
                failure.message
            ),
            FailureKind::Unreachable | FailureKind::Untrusted => {
                let server = self.session.connection.server().await.map(|url| url.to_string()).unwrap_or_default();
                let message = &failure.message;
                let server = OneLine(&server);
                tracing::warn!(resource = plural, "no answer from {server} ({message}); trying again in {again:.1} s");
            }
            _ => tracing::warn!(resource = plural, "{}; trying again in {again:.1} s", failure.message),
        }
        match asked {
            Some(_) => sleep(pause).await,
            None => self.session.pause(pause, self.used.load(Ordering::Relaxed)).await,
        }
    }

    /// Sends a request with the current client. A client that is rejected, or rejects the server, is not used again.
    async fn get(&self, target: &str) -> Result<Answer, Failure> {
        let current = self.session.current().await.map_err(|problem| Failure::other(problem.to_string()))?;
        self.used.store(current.number, Ordering::Relaxed);
        let accepts = self.resource.accepts(self.options.protobuf);
        let answer = get(&current, target, &accepts, self.options.patience).await;
        match answer.as_ref().map_err(|failure| failure.kind) {
            Ok(_) | Err(FailureKind::Forbidden) => self.session.judge(&current, true).await,
            Err(FailureKind::Unauthorized | FailureKind::Untrusted) => self.session.judge(&current, false).await,
            Err(_) => {}
        }
        answer
    }

    /// Lists all objects, and reports new, changed and missing ones. Page by page only if the whole was too large,
    /// since the server reads pages from its database.
    async fn list(&self, progress: &mut Progress) -> Result<bool, Failure> {
        let NextRequest::List(since) = &progress.next else { return Ok(false) };
        let since = since.clone();
        let outcome = self.list_since(progress, if progress.page.is_some() { "" } else { &since }).await;
        if let Err(failure) = &outcome {
            // An unknown version may be damaged.
            let is_unknown = [FailureKind::Expired, FailureKind::TooNew, FailureKind::Invalid].contains(&failure.kind);
            progress.next = NextRequest::List(if is_unknown { String::new() } else { since });
        }
        outcome.map(|()| true)
    }

    async fn list_since(&self, progress: &mut Progress, since: &str) -> Result<(), Failure> {
        let mut list = ListSoFar::default();
        progress.known.begin_list(since.is_empty());
        if let Some(kind) = self.resource.stored_kind() {
            self.changes.send(Change::Listing(kind)).await?;
        }
        loop {
            let mut target = self.resource.target();
            if let Some(limit) = progress.page {
                target.extend(["&limit=", &limit.to_string()]);
            }
            if let Some(token) = list.next.take() {
                target.push_str("&continue=");
                target.extend(form_urlencoded::byte_serialize(token.as_bytes()));
            } else if !since.is_empty() {
                target.extend(["&resourceVersion=", since]);
            }
            let before = progress.known.listed;
            let mut answer = self.get(&target).await?;
            self.read_page(&mut answer, since, progress, &mut list).await?;
            if list.next.is_none() {
                break;
            }
            // A server, or a cache in front of it, that repeats a page would be asked endlessly.
            if progress.known.listed == before {
                let plural = self.resource.plural();
                return Err(Failure::other(format!("a page of the list of {plural} brought nothing new")));
            }
        }
        Ok(self.end_list(progress, list.version, !list.has_items).await?)
    }

    /// Reads a list, or a page of one, while it arrives.
    async fn read_page(
        &self,
        answer: &mut Answer,
        since: &str,
        progress: &mut Progress,
        list: &mut ListSoFar,
    ) -> Result<(), Failure> {
        let plural = self.resource.plural();
        let (mut page, mut is_whole) = (List::new(answer.encoding), false);
        while !is_whole {
            let piece = answer.piece_of_whole().await?;
            is_whole = piece.is_none();
            if page.push(piece.as_ref().map(AsRef::as_ref)) > self.options.page_bytes {
                return Err(Failure::too_large(self.options.page_bytes));
            }
            let is_no_list = |error| Failure::other(format!("the list of {plural} is not one: {error}"));
            while let Some(part) = page.next().map_err(is_no_list)? {
                match part {
                    // Without the objects of another kind's list, all that are known would seem to be deleted.
                    Part::Metadata(metadata) if !self.resource.is_listed_in(&metadata.kind) => {
                        let kind = OneLine(&metadata.kind);
                        return Err(Failure::other(format!("the list of {plural} is one of another kind, {kind}")));
                    }
                    Part::Metadata(metadata) => {
                        list.note(plural, since, metadata.resource_version)?;
                        progress.known.list_is_of(number(&list.version));
                        list.next = metadata.next.filter(|token| !token.is_empty());
                    }
                    Part::Item(item) => {
                        list.has_items = true;
                        match Identity::of(item).filter(Identity::is_named) {
                            Some(identity) => self.apply_event(&mut progress.known, &identity, item).await?,
                            None if progress.known.record_unnamed() => self.unreadable(None, NO_NAME).await?,
                            None => {}
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// All objects have arrived, as of this version.
    async fn end_list(&self, progress: &mut Progress, version: String, is_empty: bool) -> Result<(), Closed> {
        progress.broken = 0;
        self.counters.worked(self.resource.awaited());
        // The API server itself has a Service and an EndpointSlice. A list without any may come from a server that is
        // just starting, or from something else at its address. A process that believed its first list would then
        // compare the kernel with the part of the next list that has arrived. So an empty list counts once its version
        // can be watched. There may be no Nodes, but those that are known do not go unnoticed.
        let is_of_nodes = matches!(self.resource, Resource::Node(_) | Resource::AllNodes { .. });
        if is_empty && !(is_of_nodes && progress.known.is_empty()) {
            progress.next = NextRequest::Unconfirmed(version);
            return Ok(());
        }
        if let Resource::Node(name) = &self.resource
            && is_empty
        {
            tracing::warn!(
                "the server has no Node {name}: no endpoint counts as this node's, and /healthz is 503; its name is \
                 --hostname-override, else this host's"
            );
        }
        progress.next = NextRequest::Watch(version);
        self.listed(&mut progress.known).await
    }

    /// The list is accepted; objects that it lacks were deleted.
    async fn listed(&self, known: &mut Versions) -> Result<(), Closed> {
        let gone: Vec<Change> = known.end_list().iter().map(|key| self.resource.gone(key)).collect();
        for change in unannounced(gone) {
            self.changes.send(change).await?;
        }
        if let Some(kind) = self.resource.stored_kind() {
            self.changes.send(Change::Listed(kind)).await?;
        }
        self.gate.listed(self.resource.awaited()).await
    }

    /// The server goes on with a watch from a known version, or has sent news in it.
    async fn accept(&self, progress: &mut Progress) -> Result<(), Closed> {
        if !std::mem::replace(&mut progress.is_accepted, true) {
            progress.ended_at_once = false;
            self.counters.worked(self.resource.awaited());
        }
        self.confirm(progress).await
    }

    /// A watch from the list's version was accepted.
    async fn confirm(&self, progress: &mut Progress) -> Result<(), Closed> {
        let NextRequest::Unconfirmed(version) = &mut progress.next else { return Ok(()) };
        progress.next = NextRequest::Watch(std::mem::take(version));
        self.listed(&mut progress.known).await
    }

    /// Records an object of a list or an event, and reports it if it is new or changed. Passes over other Nodes than the
    /// one that is asked for: not every server knows selectors of fields.
    async fn apply_event(&self, known: &mut Versions, identity: &Identity, object: Object<'_>) -> Result<(), Closed> {
        let is_other = |name: &String| identity.key.strip_prefix('/') != Some(name);
        let is_asked_for = !matches!(&self.resource, Resource::Node(name) if is_other(name));
        if is_asked_for && known.record(&identity.key, number(&identity.version)) {
            self.report(&identity.key, object).await
        } else {
            Ok(())
        }
    }

    /// Reports an object. If it cannot be read, reports that, and its last readable content stays.
    async fn report(&self, key: &str, object: Object<'_>) -> Result<(), Closed> {
        match self.resource.read(object) {
            Ok(change) => {
                let spec = if let Change::Node(node) = &change { Some(&node.object.spec) } else { None };
                let has_pods = spec.is_some_and(|spec| spec.pod_cidr.is_some() || !spec.pod_cidrs.is_empty());
                self.changes.send(change).await?;
                if has_pods { self.gate.listed(super::POD_CIDR).await } else { Ok(()) }
            }
            Err((field, reason)) => {
                self.unreadable(Some((key, field, self.resource.service_of(key, object))), &reason).await
            }
        }
    }

    /// Reports an unreadable object: its key, the wrong field, and the Service of a slice, if it has a name.
    async fn unreadable(&self, object: Option<(&str, String, Option<ObjectKey>)>, reason: &str) -> Result<(), Closed> {
        let (key, field, service) = object.unwrap_or_default();
        let (kind, key) = (self.resource.kind(), Resource::object_key(key));
        let problem = Problem::new("API server", reason).about(format!("{kind} {key}").trim_end()).at(field);
        let object = Some((kind, key));
        self.changes.send(Change::Unreadable(Box::new(Unreadable { object, service, problem }))).await
    }

    /// Watches until the server ends it; returns whether it brought new data.
    async fn watch(&self, progress: &mut Progress) -> Result<bool, Failure> {
        let (NextRequest::List(since) | NextRequest::Unconfirmed(since) | NextRequest::Watch(since)) = &progress.next;
        let mut stream = Stream { version: since.clone(), ..Stream::default() };
        let target = format!(
            "{}&watch=1&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={since}",
            self.resource.target(),
            // Prevents all nodes from reconnecting at the same time.
            jittered(self.options.watch).as_secs().max(1),
        );
        let started = Instant::now();
        let outcome = self.follow(&target, progress, &mut stream).await;
        let (brought, lasted) = (stream.brought, started.elapsed() > self.options.longest_pause);
        progress.go_on(stream, lasted, outcome.as_ref().err());
        outcome.map(|()| brought)
    }

    async fn follow(&self, target: &str, progress: &mut Progress, stream: &mut Stream) -> Result<(), Failure> {
        progress.is_accepted = false;
        let mut answer = self.get(target).await?;
        let encoding = answer.encoding;
        loop {
            let silence = self.options.silence;
            // A refusal arrives at once.
            let wait = if progress.is_accepted { silence } else { ACCEPTED_AFTER.min(silence / 2) };
            let piece = match tokio::time::timeout(wait, answer.piece(silence)).await {
                Ok(piece) => piece?,
                Err(_elapsed) if !progress.is_accepted => {
                    self.accept(progress).await?;
                    continue;
                }
                Err(_elapsed) => return Err(Failure::silent(silence)),
            };
            let Some(piece) = piece else { break };
            let searched = stream.buffer.len();
            let mut whole = std::mem::take(&mut stream.buffer);
            let mut rest = piece.as_ref();
            if searched > 0 {
                whole.extend_from_slice(rest);
                rest = &whole;
            }
            let mut is_part = true;
            while let Some((event, after)) =
                encoding.split_event(rest, if is_part { searched } else { 0 }).map_err(Failure::other)?
            {
                (rest, is_part) = (after, false);
                self.take_event(encoding, &encoding.readable(event), progress, stream).await?;
            }
            if is_part && searched > 0 {
                stream.buffer = whole;
            } else {
                stream.buffer.extend_from_slice(rest);
            }
            if stream.brought {
                self.accept(progress).await?;
            }
        }
        if !encoding.is_blank(&stream.buffer) {
            return Err(Failure::other("the watch broke off in the middle of an event"));
        }
        self.confirm(progress).await?;
        // The server, or something in front of it, does not watch: without new lists, nothing would ever change here.
        if !progress.is_accepted && std::mem::replace(&mut progress.ended_at_once, true) {
            let plural = self.resource.plural();
            return Err(Failure::other(format!("the server ends watches of {plural} at once, without an error")));
        }
        Ok(())
    }

    async fn take_event(
        &self,
        encoding: Encoding,
        bytes: &[u8],
        progress: &mut Progress,
        stream: &mut Stream,
    ) -> Result<(), Failure> {
        if encoding.is_blank(bytes) {
            return Ok(());
        }
        let (what, object) = match encoding.event(bytes) {
            Ok(event) => event,
            Err(error) if encoding.begins_as_event(bytes) => {
                return Ok(self.damaged(progress, stream, &format!("an event that cannot be read: {error}")).await?);
            }
            Err(error) => return Err(Failure::other(format!("a part of the watch is not an event: {error}"))),
        };
        if what == "ERROR" {
            let status: Value = object.read(protobuf::STATUS).unwrap_or_default();
            let code = status["code"].as_u64().and_then(|code| code.try_into().ok()).unwrap_or_default();
            return Err(Failure::of_status(code, &status));
        }
        let Some(identity) = Identity::of(object).filter(|identity| what == "BOOKMARK" || identity.is_named()) else {
            return Ok(self.damaged(progress, stream, NO_NAME).await?);
        };
        stream.brought = true;
        let version = number(&identity.version);
        match &*what {
            // Events may arrive late; bookmarks do not.
            "BOOKMARK" => check_not_before(&identity.version, &stream.version)?,
            "ADDED" | "MODIFIED" => self.apply_event(&mut progress.known, &identity, object).await?,
            "DELETED" => {
                if progress.known.delete(&identity.key, version) {
                    self.changes.send(self.resource.gone(&identity.key)).await?;
                }
            }
            other => self.damaged(progress, stream, &format!("an event of the unknown type {other:?}")).await?,
        }
        // Late events must not move the watch back.
        let before = number(&stream.version);
        if !identity.version.is_empty() && (before == 0 || version > before) {
            stream.version = identity.version;
        }
        Ok(())
    }

    /// Skips an event whose object is unknown. All objects are requested again after this watch.
    async fn damaged(&self, progress: &mut Progress, stream: &mut Stream, reason: &str) -> Result<(), Closed> {
        stream.is_damaged = true;
        progress.known.record_unnamed();
        self.unreadable(None, reason).await
    }
}

const NO_NAME: &str = "it has no name that can be read";

/// Checks that the server's version is not older than a version that it had before. Otherwise it was restored from a
/// backup, or is another server that lags behind, and a watch would miss changes, perhaps for hours.
fn check_not_before(version: &str, since: &str) -> Result<(), Failure> {
    if (1..number(since)).contains(&number(version)) {
        let message =
            format!("the server is at version {version}, and was at {since} before: restored from a backup, or behind");
        return Err(Failure { kind: FailureKind::TooNew, ..Failure::other(message) });
    }
    Ok(())
}

/// What the pages of a list have said so far.
#[derive(Default)]
struct ListSoFar {
    version: String,
    /// Token of the next page.
    next: Option<String>,
    has_items: bool,
}

impl ListSoFar {
    /// Checks the version of a page. All pages of a list show one moment. A page of another moment may lack objects that
    /// the first pages did not have yet, or is an empty answer from somewhere else.
    fn note(&mut self, plural: &str, since: &str, found: String) -> Result<(), Failure> {
        if found.is_empty() {
            return Err(Failure::other(format!("the list of {plural} has no version")));
        }
        check_not_before(&found, since)?;
        if !self.version.is_empty() && self.version != found {
            let first = &self.version;
            return Err(Failure::other(format!(
                "the list of {plural} began at version {first} and went on at version {found}"
            )));
        }
        self.version = found;
        Ok(())
    }
}

#[derive(Default)]
struct Stream {
    /// The start of an incomplete event.
    buffer: Vec<u8>,
    version: String,
    brought: bool,
    /// Whether an event could not be read, so that any object may be outdated.
    is_damaged: bool,
}

/// A random time from `time` to 1.5 times that.
fn jittered(time: Duration) -> Duration {
    // Randomness from the standard library: every RandomState has its own keys.
    let chance = RandomState::new().hash_one(0_u8) % 1000;
    time + time * u32::try_from(chance).unwrap_or(0) / 2000
}

struct Pauses {
    options: Arc<Options>,
    next: Duration,
}

impl Pauses {
    /// Longest pause that a server may request, so that no server makes all nodes wait longer.
    const LONGEST_ASKED: Duration = Duration::from_secs(120);

    fn reset(&mut self) {
        self.next = self.options.first_pause;
    }

    /// The next pause, at least as long as the server requested.
    fn next(&mut self, asked: Option<Duration>) -> Duration {
        let pause = jittered(self.next);
        self.next = (self.next * 2).min(self.options.longest_pause);
        pause.max(asked.unwrap_or_default().min(Self::LONGEST_ASKED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_starting_server_may_refuse_for_a_moment() {
        let mut progress = Progress::default();
        let refused = |kind| Failure { kind, ..Failure::other("HTTP 403") };
        assert!(!progress.may_settle());
        progress.note_refusal(&refused(FailureKind::Forbidden));
        assert!(progress.may_settle());
        let since = progress.refused_since;
        progress.note_refusal(&refused(FailureKind::Unauthorized));
        assert_eq!(progress.refused_since, since, "the time counts from the first");
        progress.refused_since = Instant::now().checked_sub(SETTLING);
        assert!(!progress.may_settle());
        progress.note_refusal(&refused(FailureKind::Other));
        progress.note_refusal(&refused(FailureKind::Forbidden));
        assert!(progress.may_settle(), "it began anew");
    }
}

//! State that the threads of a relay share: listeners with their endpoints, limits, counters and messages.

#![expect(clippy::disallowed_types, reason = "the threads of a relay share what they serve")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::balance::Balance;
use super::descriptors::{Descriptors, InUse, Use, add};
use crate::net::{EndpointKey, FrontendKey, Protocol};
use crate::ports::{Counts, Listener, Settings, Turn, Turned};
use crate::time::Moment;

/// Shortest pause between two messages of one kind about one listener.
const PERIOD: Duration = Duration::from_secs(60);
/// Messages that are kept at most.
const MOST_NOTICES: usize = 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a thread that panicked has left is still a value.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Trouble with connections or datagrams of a listener, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Descriptors,
    ServiceLimit,
    Exhausted,
    Unanswered,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    count: u64,
    told: Option<Moment>,
}

/// State that all listeners share.
#[derive(Debug)]
pub(super) struct Shared {
    origin: Instant,
    settings: Mutex<Arc<Settings>>,
    /// [`share`](super::descriptors::share).
    default_descriptors: usize,
    pub(super) in_use: InUse,
    /// Addresses and ports on which this process listens for Services.
    own: Mutex<BTreeSet<FrontendKey>>,
    notices: Mutex<BTreeMap<(FrontendKey, Kind), Tally>>,
    pub(super) connections: AtomicUsize,
    pub(super) flows: AtomicUsize,
    pub(super) begun: AtomicU64,
    pub(super) turned_away: AtomicU64,
    pub(super) limited: AtomicU64,
    pub(super) failed_dials: AtomicU64,
    pub(super) unanswered: AtomicU64,
    pub(super) drained: AtomicU64,
}

impl Shared {
    #[expect(clippy::disallowed_methods, reason = "a relay waits in real time, at the edge where it does so")]
    pub(super) fn new(settings: Settings, default_descriptors: usize) -> Self {
        Shared {
            origin: Instant::now(),
            settings: Mutex::new(Arc::new(settings)),
            default_descriptors,
            in_use: InUse::default(),
            own: Mutex::default(),
            notices: Mutex::default(),
            connections: AtomicUsize::new(0),
            flows: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            failed_dials: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
            drained: AtomicU64::new(0),
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&lock(&self.settings))
    }

    pub(super) fn set_settings(&self, settings: Settings) {
        *lock(&self.settings) = Arc::new(settings);
    }

    /// Number of descriptors that the relay may have.
    pub(super) fn most_descriptors(&self) -> usize {
        self.settings().max_descriptors.unwrap_or(self.default_descriptors)
    }

    /// A listener comes or goes.
    pub(super) fn set_own(&self, key: FrontendKey, is_own: bool) {
        let mut own = lock(&self.own);
        if is_own {
            own.insert(key)
        } else {
            own.remove(&key)
        };
    }

    /// Whether an endpoint is a listener of this process. Traffic to it comes back here, and may go on doing so without end.
    pub(super) fn is_own(&self, protocol: Protocol, endpoint: EndpointKey) -> bool {
        lock(&self.own).contains(&FrontendKey::new(protocol, endpoint.address.to_canonical(), endpoint.port))
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            connections: self.connections.load(Relaxed),
            flows: self.flows.load(Relaxed),
            begun: self.begun.load(Relaxed),
            turned_away: self.turned_away.load(Relaxed),
            limited: self.limited.load(Relaxed),
            failed_dials: self.failed_dials.load(Relaxed),
            unanswered: self.unanswered.load(Relaxed),
            drained: self.drained.load(Relaxed),
        }
    }

    /// Notes something to be told; it is counted until then.
    pub(super) fn notice(&self, key: FrontendKey, kind: Kind) {
        let mut notices = lock(&self.notices);
        if notices.len() < MOST_NOTICES || notices.contains_key(&(key, kind)) {
            let tally = notices.entry((key, kind)).or_default();
            tally.count = tally.count.saturating_add(1);
        }
    }

    /// Notices that are due now: one for each listener and kind in a period.
    pub(super) fn take_notices(&self, now: Moment) -> Vec<String> {
        let mut told = Vec::new();
        let (settings, limit) = (self.settings(), self.most_descriptors());
        lock(&self.notices).retain(|(key, kind), tally| {
            let is_due = tally.told.is_none_or(|told| told.saturating_add(PERIOD) <= now);
            if is_due && tally.count > 0 {
                told.push(text(*key, *kind, tally.count, limit, settings.max_of_service));
                *tally = Tally { count: 0, told: Some(now) };
            }
            // What has not happened for a whole period is forgotten.
            !is_due || tally.told == Some(now)
        });
        told
    }
}

fn text(key: FrontendKey, kind: Kind, count: u64, descriptors: usize, of_service: Option<usize>) -> String {
    let why = match kind {
        Kind::Descriptors => format!(
            "listeners and clients use all {descriptors} file descriptors that they may: raise the limit of open files"
        ),
        Kind::ServiceLimit => format!("the Service has {} connections, its limit", of_service.unwrap_or_default()),
        Kind::Exhausted => "the kernel gave no socket: too many open files, or no memory".to_owned(),
        Kind::Unanswered => "no endpoint answered in time, or all refused".to_owned(),
    };
    format!("{key}: {count} connections or flows reset or dropped: {why}")
}

/// The port of a Service: its turns, clients with affinity, and open connections.
#[derive(Debug, Default)]
pub(super) struct Group {
    balance: Mutex<Balance>,
    open: AtomicUsize,
}

/// A listener as the threads see it. It lives as long as one of its connections.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) id: u64,
    state: Mutex<State>,
    pub(super) key: FrontendKey,
    /// Connections and flows.
    open: AtomicUsize,
    /// Connections and flows that were begun.
    begun: AtomicU64,
}

#[derive(Debug)]
struct State {
    listener: Arc<Listener>,
    group: Arc<Group>,
    /// Endpoints that are gone, and when connections to them are ended.
    leaving: BTreeMap<EndpointKey, Moment>,
}

/// Reason why a client is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Turned(Turned),
    /// All endpoints were tried.
    NobodyLeft,
}

impl Server {
    pub(super) fn new(id: u64, listener: Listener, group: Arc<Group>) -> Self {
        let key = listener.key;
        let state = State { listener: Arc::new(listener), group, leaving: BTreeMap::new() };
        Server { id, state: Mutex::new(state), key, open: AtomicUsize::new(0), begun: AtomicU64::new(0) }
    }

    pub(super) fn listener(&self) -> Arc<Listener> {
        Arc::clone(&lock(&self.state).listener)
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.key.address, self.key.port)
    }

    /// Connections and flows that are open.
    pub(super) fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Connections and flows that were begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Relaxed)
    }

    /// Takes other endpoints. Those that are gone may be used until `until`. Returns whether one is gone.
    pub(super) fn update(&self, listener: Listener, group: Arc<Group>, until: Option<Moment>) -> bool {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.listener, Arc::new(listener));
        state.group = group;
        let State { listener, leaving, .. } = &mut *state;
        leaving.retain(|endpoint, _| !listener.keeps_flows_of(endpoint));
        let mut is_gone = false;
        let unselected = before.unselected.iter().flat_map(|list| list.iter());
        for endpoint in before.inside.iter().chain(before.outside.iter()).chain(unselected) {
            if !listener.keeps_flows_of(endpoint) {
                is_gone = true;
                if let Some(until) = until {
                    leaving.entry(*endpoint).or_insert(until);
                }
            }
        }
        is_gone
    }

    /// Endpoints that are gone and may still have connections.
    pub(super) fn leaving(&self) -> usize {
        lock(&self.state).leaving.len()
    }

    /// Whether connections to an endpoint have had their time.
    pub(super) fn is_over(&self, endpoint: &EndpointKey, now: Moment) -> bool {
        lock(&self.state).leaving.get(endpoint).is_some_and(|until| *until <= now)
    }

    /// Forgets endpoints whose time is over.
    pub(super) fn forget(&self, now: Moment) {
        lock(&self.state).leaving.retain(|_, until| *until > now);
    }

    /// A client does not stay with an endpoint that failed.
    pub(super) fn leave(&self, client: IpAddr, endpoint: EndpointKey) {
        let group = Arc::clone(&lock(&self.state).group);
        let client = self.listener().counted_as(client);
        lock(&group.balance).leave(client, endpoint);
    }
}

/// The right to one connection or flow. Given back when dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    shared: Arc<Shared>,
    pub(super) server: Arc<Server>,
    group: Arc<Group>,
    is_flow: bool,
    /// The endpoint that it is counted for, where numbers of connections decide.
    counted: Option<EndpointKey>,
    _descriptors: Descriptors,
}

impl Ticket {
    /// A ticket, or why there is none.
    pub(super) fn take(shared: &Arc<Shared>, server: &Arc<Server>, is_flow: bool) -> Result<Self, Kind> {
        let group = Arc::clone(&lock(&server.state).group);
        if !add(&group.open, 1, shared.settings().max_of_service.unwrap_or(usize::MAX)) {
            return Err(Kind::ServiceLimit);
        }
        let Some(descriptors) = Descriptors::reserve(shared, if is_flow { Use::Flow } else { Use::Connection }) else {
            group.open.fetch_sub(1, Relaxed);
            return Err(Kind::Descriptors);
        };
        server.open.fetch_add(1, Relaxed);
        server.begun.fetch_add(1, Relaxed);
        let now_open = if is_flow { &shared.flows } else { &shared.connections };
        now_open.fetch_add(1, Relaxed);
        shared.begun.fetch_add(1, Relaxed);
        let (shared, server) = (Arc::clone(shared), Arc::clone(server));
        Ok(Ticket { shared, server, group, is_flow, counted: None, _descriptors: descriptors })
    }

    /// The endpoint for a client, which has not been tried in vain.
    pub(super) fn choose(
        &mut self,
        client: SocketAddr,
        avoid: &[EndpointKey],
        settings: &Settings,
        now: Moment,
    ) -> Result<EndpointKey, Refusal> {
        let listener = self.server.listener();
        let address = client.ip().to_canonical();
        let slots = listener.endpoints_for(address, settings).map_err(Refusal::Turned)?;
        let client = SocketAddr::new(listener.counted_as(address), client.port());
        let mut balance = lock(&self.group.balance);
        if let Some(before) = self.counted.take() {
            balance.end(before);
        }
        balance.limit(listener.limit, slots.endpoints);
        let how = (listener.turn, listener.affinity);
        let endpoint = balance.choose(client, slots, how, avoid, now).ok_or(Refusal::NobodyLeft)?;
        if listener.turn == Turn::Fewest || listener.limit.is_some() {
            balance.begin(endpoint);
            self.counted = Some(endpoint);
        }
        Ok(endpoint)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(endpoint) = self.counted {
            lock(&self.group.balance).end(endpoint);
        }
        self.group.open.fetch_sub(1, Relaxed);
        self.server.open.fetch_sub(1, Relaxed);
        let open = if self.is_flow { &self.shared.flows } else { &self.shared.connections };
        open.fetch_sub(1, Relaxed);
    }
}

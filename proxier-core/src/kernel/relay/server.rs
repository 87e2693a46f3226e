//! State shared by a relay's threads: listeners with their endpoints, limits, counters and messages.

#![expect(clippy::disallowed_types, reason = "the threads of a relay share what they serve")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::balance::Balance;
use super::descriptors::{Descriptors, InUse, Use};
use crate::net::{EndpointKey, FrontendKey, Protocol};
use crate::ports::{Counts, Listener, Settings};
use crate::time::Moment;

/// Shortest interval between two notices of one kind about one listener.
const PERIOD: Duration = Duration::from_secs(60);
/// Most messages to keep.
const MOST_NOTICES: usize = 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked leaves a valid value.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A problem with connections or datagrams of a listener, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Descriptors,
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
    /// As computed by [`share`](super::descriptors::share).
    default_descriptors: usize,
    in_use: Arc<InUse>,
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
}

impl Shared {
    #[expect(clippy::disallowed_methods, reason = "a relay waits in real time, at the edge where it does so")]
    pub(super) fn new(settings: Settings, default_descriptors: usize) -> Self {
        Shared {
            origin: Instant::now(),
            settings: Mutex::new(Arc::new(settings)),
            default_descriptors,
            in_use: Arc::default(),
            own: Mutex::default(),
            notices: Mutex::default(),
            connections: AtomicUsize::new(0),
            flows: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            failed_dials: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
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

    /// Number of descriptors for the relay.
    pub(super) fn most_descriptors(&self) -> usize {
        self.settings().max_descriptors.unwrap_or(self.default_descriptors)
    }

    /// Descriptors for this use; `None` if no more are available for it.
    pub(super) fn reserve(&self, of: Use) -> Option<Descriptors> {
        Descriptors::reserve(&self.in_use, self.most_descriptors(), of)
    }

    /// A listener is added or removed.
    pub(super) fn set_own(&self, key: FrontendKey, is_own: bool) {
        let mut own = lock(&self.own);
        if is_own {
            own.insert(key)
        } else {
            own.remove(&key)
        };
    }

    /// Whether an endpoint is a listener of this process. Traffic to it would return here, possibly endlessly.
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
        }
    }

    /// Records a message; repetitions are counted until it is reported.
    pub(super) fn notice(&self, key: FrontendKey, kind: Kind) {
        let mut notices = lock(&self.notices);
        if notices.len() < MOST_NOTICES || notices.contains_key(&(key, kind)) {
            let tally = notices.entry((key, kind)).or_default();
            tally.count = tally.count.saturating_add(1);
        }
    }

    /// Messages that are due now: at most one per listener and kind in a period.
    pub(super) fn take_notices(&self, now: Moment) -> Vec<String> {
        let mut told = Vec::new();
        let limit = self.most_descriptors();
        lock(&self.notices).retain(|(key, kind), tally| {
            let is_due = tally.told.is_none_or(|told| told.saturating_add(PERIOD) <= now);
            if is_due && tally.count > 0 {
                told.push(text(*key, *kind, tally.count, limit));
                *tally = Tally { count: 0, told: Some(now) };
            }
            // Forget what has not happened for a whole period.
            !is_due || tally.told == Some(now)
        });
        told
    }
}

fn text(key: FrontendKey, kind: Kind, count: u64, descriptors: usize) -> String {
    let why = match kind {
        Kind::Descriptors => format!(
            "its clients have three times as many file descriptors as are left of {descriptors} for all Services: raise the limit of open files"
        ),
        Kind::Exhausted => "the kernel gave no socket: too many open files, or no memory".to_owned(),
        Kind::Unanswered => "no endpoint answered in time, or all refused".to_owned(),
    };
    format!("{key}: {count} connections or flows reset or dropped: {why}")
}

/// A Service port: rotation, clients with affinity, and its clients' file descriptors.
#[derive(Debug, Default)]
pub(super) struct Group {
    balance: Mutex<Balance>,
    descriptors: Arc<AtomicUsize>,
}

/// A listener as seen by the threads. It lives as long as its connections.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) id: u64,
    state: Mutex<Served>,
    pub(super) key: FrontendKey,
    /// Open connections and flows.
    open: AtomicUsize,
    /// Connections and flows started.
    begun: AtomicU64,
}

#[derive(Debug)]
struct Served {
    listener: Arc<Listener>,
    group: Arc<Group>,
}

/// Why a client is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The Service has no endpoint.
    TurnedAway,
    /// All endpoints were tried.
    NobodyLeft,
}

impl Server {
    pub(super) fn new(id: u64, listener: Listener, group: Arc<Group>) -> Self {
        let key = listener.key;
        let state = Served { listener: Arc::new(listener), group };
        Server { id, state: Mutex::new(state), key, open: AtomicUsize::new(0), begun: AtomicU64::new(0) }
    }

    pub(super) fn listener(&self) -> Arc<Listener> {
        Arc::clone(&lock(&self.state).listener)
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.key.address, self.key.port)
    }

    pub(super) fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    /// Connections and flows started.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Relaxed)
    }

    /// Changes the endpoints. Connections to removed ones continue.
    pub(super) fn update(&self, listener: Listener, group: Arc<Group>) {
        *lock(&self.state) = Served { listener: Arc::new(listener), group };
    }

    /// Drops a client's affinity to a failed endpoint.
    pub(super) fn leave(&self, client: IpAddr, endpoint: EndpointKey) {
        let group = Arc::clone(&lock(&self.state).group);
        lock(&group.balance).leave(client, endpoint);
    }
}

/// Permission for one connection or flow. Returned on drop.
#[derive(Debug)]
pub(super) struct Ticket {
    shared: Arc<Shared>,
    pub(super) server: Arc<Server>,
    group: Arc<Group>,
    is_flow: bool,
    _descriptors: Descriptors,
}

impl Ticket {
    /// Takes a ticket, or returns why there is none.
    pub(super) fn take(shared: &Arc<Shared>, server: &Arc<Server>, is_flow: bool) -> Result<Self, Kind> {
        let group = Arc::clone(&lock(&server.state).group);
        let of_group = Arc::clone(&group.descriptors);
        let of = if is_flow { Use::Flow(of_group) } else { Use::Connection(of_group) };
        let descriptors = shared.reserve(of).ok_or(Kind::Descriptors)?;
        server.open.fetch_add(1, Relaxed);
        server.begun.fetch_add(1, Relaxed);
        let now_open = if is_flow { &shared.flows } else { &shared.connections };
        now_open.fetch_add(1, Relaxed);
        shared.begun.fetch_add(1, Relaxed);
        let (shared, server) = (Arc::clone(shared), Arc::clone(server));
        Ok(Ticket { shared, server, group, is_flow, _descriptors: descriptors })
    }

    /// The endpoint for a client, except those that were tried without success.
    pub(super) fn choose(
        &self,
        client: IpAddr,
        avoid: &[EndpointKey],
        settings: &Settings,
        now: Moment,
    ) -> Result<EndpointKey, Refusal> {
        let listener = self.server.listener();
        let client = client.to_canonical();
        let endpoints = listener.endpoints_for(client, settings).ok_or(Refusal::TurnedAway)?;
        let mut balance = lock(&self.group.balance);
        balance.choose(client, endpoints, listener.affinity, avoid, now).ok_or(Refusal::NobodyLeft)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.server.open.fetch_sub(1, Relaxed);
        let open = if self.is_flow { &self.shared.flows } else { &self.shared.connections };
        open.fetch_sub(1, Relaxed);
    }
}

//! State shared by a relay's tasks: listeners with their endpoints, limits, counters and messages.

#![expect(clippy::disallowed_types, reason = "the tasks of a relay share what they serve")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::balance::Balance;
use super::descriptors::{Descriptors, InUse, Use, own_share};
use super::splice::Pipe;
use super::udp::Flow;
use crate::net::{EndpointKey, FrontendKey, Protocol};
use crate::ports::{Counts, Listener, Settings};
use crate::time::Moment;

/// Shortest interval between two notices of one kind about one listener.
const PERIOD: Duration = Duration::from_secs(60);
/// Most messages to keep.
const MOST_NOTICES: usize = 1024;
/// Most pipes to keep for reuse, and how many of the relay's descriptors there are for each.
const KEPT_PIPES: usize = 1024;
const DESCRIPTORS_FOR_A_KEPT_PIPE: usize = 32;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked leaves a valid value.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a client is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refusal {
    /// There is no endpoint for it, by the Service or its policy. Nobody needs to be told.
    TurnedAway,
    /// The limit of descriptors of its Service port.
    Descriptors,
    /// The kernel provides no socket.
    Exhausted,
    /// All endpoints were tried.
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
    pub(super) settings: Mutex<Arc<Settings>>,
    in_use: Arc<InUse>,
    /// Addresses and ports on which this process listens for Services.
    pub(super) own: Mutex<BTreeSet<FrontendKey>>,
    notices: Mutex<BTreeMap<(FrontendKey, Refusal), Tally>>,
    pub(super) counts: Mutex<Counts>,
    /// Empty pipes for reuse.
    pipes: Mutex<Vec<Pipe>>,
    /// A descriptor to give up when none is left, so that a connection can be accepted and reset.
    pub(super) spare: Mutex<Option<File>>,
}

#[expect(clippy::disallowed_methods, reason = "any file that always exists")]
pub(super) fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

impl Shared {
    #[expect(clippy::disallowed_methods, reason = "a relay waits in real time, at the edge where it does so")]
    pub(super) fn new(settings: Settings) -> Self {
        Shared {
            origin: Instant::now(),
            settings: Mutex::new(Arc::new(settings)),
            in_use: Arc::default(),
            own: Mutex::default(),
            notices: Mutex::default(),
            counts: Mutex::default(),
            pipes: Mutex::default(),
            spare: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.origin.elapsed()
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&lock(&self.settings))
    }

    /// Number of descriptors for the relay.
    fn most_descriptors(&self) -> usize {
        self.settings().max_descriptors.unwrap_or_else(own_share)
    }

    /// Descriptors for this use; `None` if no more are available for it.
    pub(super) fn reserve(&self, of: Use) -> Option<Descriptors> {
        Descriptors::reserve(&self.in_use, self.most_descriptors(), of)
    }

    /// An empty pipe; `None` if no descriptors are available for it.
    pub(super) fn take_pipe(&self) -> Option<Pipe> {
        let kept = lock(&self.pipes).pop();
        kept.or_else(|| Pipe::new(self))
    }

    /// Keeps an empty pipe for reuse.
    pub(super) fn give_back(&self, pipe: Pipe) {
        let most = KEPT_PIPES.min(self.most_descriptors().wrapping_div(DESCRIPTORS_FOR_A_KEPT_PIPE));
        let mut pipes = lock(&self.pipes);
        if pipes.len() < most {
            pipes.push(pipe);
        }
    }

    /// Whether an endpoint is a listener of this process. Traffic to it would return here, possibly endlessly.
    fn is_own(&self, protocol: Protocol, endpoint: EndpointKey) -> bool {
        lock(&self.own).contains(&FrontendKey::new(protocol, endpoint.address.to_canonical(), endpoint.port))
    }

    pub(super) fn count_failed_dial(&self) {
        let dials = &mut lock(&self.counts).failed_dials;
        *dials = dials.saturating_add(1);
    }

    /// A client is not served. Counts it, and records a message; repetitions are counted until it is reported.
    pub(super) fn refuse(&self, key: FrontendKey, refusal: Refusal) {
        let mut counts = lock(&self.counts);
        let counter = match refusal {
            Refusal::TurnedAway => &mut counts.turned_away,
            Refusal::Descriptors | Refusal::Exhausted => &mut counts.limited,
            Refusal::Unanswered => &mut counts.unanswered,
        };
        *counter = counter.saturating_add(1);
        drop(counts);
        let mut notices = lock(&self.notices);
        if refusal != Refusal::TurnedAway && (notices.len() < MOST_NOTICES || notices.contains_key(&(key, refusal))) {
            let tally = notices.entry((key, refusal)).or_default();
            tally.count = tally.count.saturating_add(1);
        }
    }

    /// Messages that are due now: at most one per listener and kind in a period.
    pub(super) fn take_notices(&self) -> Vec<String> {
        let (mut told, now, limit) = (Vec::new(), self.now(), self.most_descriptors());
        lock(&self.notices).retain(|(key, refusal), tally| {
            let is_due = tally.told.is_none_or(|told| told.saturating_add(PERIOD) <= now);
            if is_due && tally.count > 0 {
                told.push(text(*key, *refusal, tally.count, limit));
                *tally = Tally { count: 0, told: Some(now) };
            }
            // Forget what has not happened for a whole period.
            !is_due || tally.told == Some(now)
        });
        told
    }
}

fn text(key: FrontendKey, refusal: Refusal, count: u64, descriptors: usize) -> String {
    let why = match refusal {
        Refusal::Descriptors => format!(
            "its clients have three times as many file descriptors as are left of {descriptors} for all Services: raise the limit of open files"
        ),
        Refusal::Exhausted => "the kernel gave no socket: too many open files, or no memory".to_owned(),
        Refusal::TurnedAway | Refusal::Unanswered => "no endpoint answered in time, or all refused".to_owned(),
    };
    format!("{key}: {count} connections or flows reset or dropped: {why}")
}

/// A Service port: rotation, clients with affinity, and its clients' file descriptors.
#[derive(Debug, Default)]
pub(super) struct Group {
    balance: Mutex<Balance>,
    descriptors: Arc<AtomicUsize>,
}

/// A listener as seen by the tasks. It lives as long as its connections.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) key: FrontendKey,
    pub(super) state: Mutex<Served>,
    /// The flow of each UDP client. Locked before anything else.
    pub(super) flows: Mutex<BTreeMap<SocketAddr, Flow>>,
}

#[derive(Debug)]
pub(super) struct Served {
    listener: Arc<Listener>,
    group: Arc<Group>,
    /// Open connections and flows.
    pub(super) open: usize,
    /// Connections and flows started.
    pub(super) begun: u64,
}

impl Server {
    pub(super) fn new(listener: Listener, group: Arc<Group>) -> Self {
        let key = listener.key;
        let state = Mutex::new(Served { listener: Arc::new(listener), group, open: 0, begun: 0 });
        Server { key, state, flows: Mutex::default() }
    }

    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.key.address, self.key.port)
    }

    /// Changes the endpoints. Connections to removed ones continue, UDP flows end.
    pub(super) fn update(&self, listener: Listener, group: Arc<Group>) {
        let listener = Arc::new(listener);
        let mut state = lock(&self.state);
        (state.listener, state.group) = (Arc::clone(&listener), group);
        drop(state);
        lock(&self.flows).retain(|_, flow| listener.keeps_flows_of(&flow.endpoint));
    }
}

/// Permission for one connection or flow. Returned on drop.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) shared: Arc<Shared>,
    pub(super) server: Arc<Server>,
    group: Arc<Group>,
    _descriptors: Descriptors,
}

impl Ticket {
    /// Takes a ticket, or returns why there is none.
    pub(super) fn take(shared: &Arc<Shared>, server: &Arc<Server>) -> Result<Self, Refusal> {
        let group = Arc::clone(&lock(&server.state).group);
        let of_group = Arc::clone(&group.descriptors);
        let is_flow = server.key.protocol == Protocol::Udp;
        let of = if is_flow { Use::Flow(of_group) } else { Use::Connection(of_group) };
        let descriptors = shared.reserve(of).ok_or(Refusal::Descriptors)?;
        let ticket =
            Ticket { shared: Arc::clone(shared), server: Arc::clone(server), group, _descriptors: descriptors };
        ticket.count(1);
        Ok(ticket)
    }

    /// Counts the begin (1) or end (-1).
    fn count(&self, change: isize) {
        let begun = u64::from(change > 0);
        let mut state = lock(&self.server.state);
        state.open = state.open.saturating_add_signed(change);
        state.begun = state.begun.saturating_add(begun);
        drop(state);
        let mut counts = lock(&self.shared.counts);
        counts.begun = counts.begun.saturating_add(begun);
        let is_flow = self.server.key.protocol == Protocol::Udp;
        let open = if is_flow { &mut counts.flows } else { &mut counts.connections };
        *open = open.saturating_add_signed(change);
    }

    /// The next endpoint for a client, except those that refused. Those that were slow come last. Adds listeners of
    /// this process to `refused`.
    pub(super) fn choose(
        &self,
        client: IpAddr,
        refused: &mut Vec<EndpointKey>,
        slow: &[EndpointKey],
    ) -> Result<EndpointKey, Refusal> {
        let (settings, now) = (self.shared.settings(), self.shared.now());
        let listener = lock(&self.server.state).listener.clone();
        let client = client.to_canonical();
        let endpoints = listener.endpoints_for(client, &settings).ok_or(Refusal::TurnedAway)?;
        let mut balance = lock(&self.group.balance);
        let mut choose = |avoid: &[EndpointKey]| balance.choose(client, endpoints, listener.affinity, avoid, now);
        loop {
            let fresh = choose(&[refused.as_slice(), slow].concat());
            let chosen = if fresh.is_none() && !slow.is_empty() { choose(refused) } else { fresh };
            let endpoint = chosen.ok_or(Refusal::Unanswered)?;
            if !self.shared.is_own(self.server.key.protocol, endpoint) {
                return Ok(endpoint);
            }
            refused.push(endpoint);
        }
    }

    /// Drops a client's affinity to a failed endpoint.
    pub(super) fn leave(&self, client: IpAddr, endpoint: EndpointKey) {
        lock(&self.group.balance).leave(client.to_canonical(), endpoint);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.count(-1);
    }
}

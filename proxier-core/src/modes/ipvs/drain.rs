//! Drains real servers: they get no new connections and are deleted once they have none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipvs::model::{ObservedRealServer, Protocol, Weight};
use ipvs::{RealServerKey, VirtualServerKey};

use crate::pack::Gather as _;
use crate::time::Moment;

/// How real servers drain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// Time after which a real server is deleted even if it has connections; `None` to wait without limit, as
    /// kube-proxy does. Default 15 min, IPVS's default timeout of idle TCP connections.
    ///
    /// A new process does not know how long a real server has drained, and waits the full time again.
    pub deadline: Option<Duration>,
    /// Protocols whose real servers drain; those of other protocols are deleted at once. Default TCP, as with
    /// kube-proxy. In any case, a real server of TCP or UDP keeps its connections, without a deadline, as long as its
    /// endpoint serves. This holds even if hints or policies select other endpoints or the endpoint is being stopped.
    ///
    /// A client that keeps sending over UDP from one port would keep its real server indefinitely, deleted or not; SCTP
    /// associations have other paths.
    pub protocols: BTreeSet<Protocol>,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { deadline: Some(Duration::from_secs(15 * 60)), protocols: BTreeSet::from([Protocol::Tcp]) }
    }
}

/// Time from weight 0 to the first check of connections. The pause doubles with each check that finds some, and restarts
/// when another real server of the same virtual server starts to drain.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause between two checks: kube-proxy's only one.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The draining real servers of a virtual server after a check. Each list is sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Without connections, or past their deadline: to be deleted. Returned again until [`Drains::forget`] is called.
    pub finished: Vec<RealServerKey>,
    /// With connections.
    pub waiting: Vec<RealServerKey>,
    /// No longer in the kernel, and forgotten.
    pub vanished: Vec<RealServerKey>,
    /// Members of `waiting` with a weight above 0: another program raised it, and it must be set to 0 again.
    pub takes_connections: Vec<RealServerKey>,
}

/// A draining real server.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Draining {
    /// The virtual server.
    pub virtual_server: VirtualServerKey,
    /// The real server.
    pub real: RealServerKey,
    /// Start of draining.
    pub since: Moment,
    /// When it is deleted even if it has connections.
    pub deadline: Option<Moment>,
    /// Connections at the last check; `None` before the first.
    pub connections: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Drain {
    since: Moment,
    /// The endpoint serves although it is not selected, so its connections continue.
    serves: bool,
    deadline: Option<Moment>,
    is_over: bool,
    connections: Option<u64>,
}

/// The draining real servers of one virtual server. They share the pauses, because one listing returns the connections
/// of all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Watch {
    servers: BTreeMap<RealServerKey, Drain>,
    check_at: Moment,
    pause: Duration,
}

impl Watch {
    fn due_at(&self) -> Moment {
        let deadlines = self.servers.values().filter(|drain| !drain.is_over).filter_map(|drain| drain.deadline);
        deadlines.fold(self.check_at, Moment::min)
    }
}

/// The draining real servers, and when to check them.
///
/// An undesired real server gets weight 0: the scheduler skips it, and its connections continue. When it is due, the
/// caller lists the real servers of its virtual server and passes them to [`Drains::observe`]. If one is desired again,
/// it gets its weight back in place. Deleting and adding it, as kube-proxy does, cuts connections.
///
/// Active and inactive connections count, as with kube-proxy: an inactive TCP connection is half closed or still being
/// opened. What the kernel calls persistent connections (`persistconns`) does not. These are templates of session
/// affinity, which outlive the last connection by three hours by default. They have no effect on a real server with
/// weight 0, because this proxy sets `net.ipv4.vs.expire_quiescent_template` (`ip_vs_check_template`).
///
/// Nothing is stored on disk: after a restart, an undesired real server with weight 0 drains with a new deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drains {
    policy: Policy,
    watches: BTreeMap<VirtualServerKey, Watch>,
}

impl Drains {
    pub fn new(policy: Policy) -> Self {
        Drains { policy, ..Drains::default() }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Records that a real server has weight 0 now. Returns whether this is new; one that is already draining keeps its
    /// deadline. [`Drains::follow`] applies a drain time that differs from the policy.
    pub fn begin(&mut self, key: VirtualServerKey, real: RealServerKey, now: Moment) -> bool {
        if self.is_draining(&key, &real) {
            return false;
        }
        let deadline = self.policy.deadline.and_then(|deadline| now.checked_add(deadline));
        let check_at = now.saturating_add(FIRST_PAUSE);
        let new = || Watch { servers: BTreeMap::new(), check_at, pause: FIRST_PAUSE };
        let watch = self.watches.entry(key).or_insert_with(new);
        watch.servers.insert(real, Drain { since: now, serves: false, deadline, is_over: false, connections: None });
        watch.pause = FIRST_PAUSE;
        watch.check_at = watch.check_at.min(check_at);
        true
    }

    /// Updates the drain time of a virtual server, and which of its endpoints serve. Those that serve have no deadline;
    /// the time of one that stopped serving starts now. `own`: the drain time, if it differs from the policy.
    pub fn follow(
        &mut self,
        key: &VirtualServerKey,
        own: impl FnOnce() -> Option<Duration>,
        serves: impl Fn(&RealServerKey) -> bool,
        now: Moment,
    ) {
        let Some(watch) = self.watches.get_mut(key) else { return };
        let time = own().or(self.policy.deadline);
        for (real, drain) in &mut watch.servers {
            let served = std::mem::replace(&mut drain.serves, serves(real));
            if served && !drain.serves {
                drain.since = now;
            }
            let deadline = time.filter(|_| !drain.serves).and_then(|time| drain.since.checked_add(time));
            if deadline != drain.deadline {
                (drain.deadline, drain.is_over) = (deadline, false);
            }
        }
    }

    pub(crate) fn virtual_servers(&self) -> impl Iterator<Item = VirtualServerKey> {
        self.watches.keys().copied()
    }

    /// Returns whether it was draining.
    pub fn forget(&mut self, key: &VirtualServerKey, real: &RealServerKey) -> bool {
        let Some(watch) = self.watches.get_mut(key) else { return false };
        let was_draining = watch.servers.remove(real).is_some();
        if watch.servers.is_empty() {
            self.watches.remove(key);
        }
        was_draining
    }

    pub fn forget_virtual_server(&mut self, key: &VirtualServerKey) {
        self.watches.remove(key);
    }

    pub fn is_draining(&self, key: &VirtualServerKey, real: &RealServerKey) -> bool {
        self.watches.get(key).is_some_and(|watch| watch.servers.contains_key(real))
    }

    pub fn draining(&self, key: &VirtualServerKey) -> impl Iterator<Item = RealServerKey> {
        self.watches.get(key).into_iter().flat_map(|watch| watch.servers.keys().copied())
    }

    pub fn next_check(&self) -> Option<Moment> {
        self.watches.values().map(Watch::due_at).min()
    }

    /// The virtual servers whose real servers must be listed. Each stays due until [`Drains::observe`] is called for it.
    pub fn due(&self, now: Moment) -> BTreeSet<VirtualServerKey> {
        self.watches.iter().filter(|(_, watch)| watch.due_at() <= now).map(|(key, _)| *key).gather()
    }

    /// Records the complete list of real servers of a virtual server; `None` if they could not be listed. Those past
    /// their deadline are finished in any case.
    pub fn observe(&mut self, key: &VirtualServerKey, listed: Option<&[ObservedRealServer]>, now: Moment) -> Verdicts {
        let listed: Option<BTreeMap<_, _>> = listed.map(|all| all.iter().map(|of| (of.server.key, of)).gather());
        let mut verdicts = Verdicts::default();
        let Some(watch) = self.watches.get_mut(key) else { return verdicts };
        for (real, drain) in &mut watch.servers {
            let mut weight = Weight::DRAIN;
            if let Some(listed) = &listed {
                let Some(observed) = listed.get(real) else {
                    verdicts.vanished.push(*real);
                    continue;
                };
                let active = u64::from(observed.active_connections);
                drain.connections = Some(active.saturating_add(observed.inactive_connections.into()));
                weight = observed.server.config.weight;
            }
            // From now on every check returns it, so that a failed deletion is retried.
            drain.is_over = drain.deadline.is_some_and(|deadline| deadline <= now);
            if drain.is_over || listed.is_some() && drain.connections == Some(0) {
                verdicts.finished.push(*real);
            } else {
                verdicts.waiting.push(*real);
                verdicts.takes_connections.extend((weight != Weight::DRAIN).then_some(*real));
            }
        }
        watch.pause = watch.pause.saturating_mul(2).min(LONGEST_PAUSE);
        watch.check_at = now.saturating_add(watch.pause);
        for real in &verdicts.vanished {
            self.forget(key, real);
        }
        verdicts
    }

    pub fn len(&self) -> usize {
        self.watches.values().map(|watch| watch.servers.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = Draining> {
        self.watches.iter().flat_map(|(key, watch)| {
            watch.servers.iter().map(|(real, drain)| Draining {
                virtual_server: *key,
                real: *real,
                since: drain.since,
                deadline: drain.deadline,
                connections: drain.connections,
            })
        })
    }
}

//! Deleting much at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipset::Element;
use ipvs::VirtualServerKey;
use ipvs::model::{Family, Protocol};

use crate::diff::{Changes, VirtualServerChange};
use crate::observed::Observed;
use crate::schedule::Moment;
use crate::sets::SetKey;
use crate::state::Desired;

/// When a pass deletes too much to be believed.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MassRemoval {
    /// More than this share of our virtual servers, 0 to 1. Default 0.5. With 1 nothing is ever held back; what is not
    /// a number counts as 0.
    pub share: f64,
    /// And only when what is still wanted is at most this share of what is there, 0 to 1: the input became empty, or
    /// nearly so, and not just another. Default 0.5; with 0 only when nothing at all is wanted any more.
    pub remains: f64,
    /// And at least this many. Default 10: fewer are deleted without question, so that a small cluster can lose its
    /// last Service.
    pub at_least: usize,
    /// How long the input has to stay as it is to be believed; `None` for as long as nobody confirms. Default 5 min.
    pub patience: Option<Duration>,
}

impl Default for MassRemoval {
    fn default() -> Self {
        MassRemoval { share: 0.5, remains: 0.5, at_least: 10, patience: Some(Duration::from_secs(5 * 60)) }
    }
}

impl MassRemoval {
    fn is_too_much(&self, delete: usize, of: usize, wanted: usize) -> bool {
        let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let share = if self.share.is_nan() { 0.0 } else { self.share };
        let remains = if self.remains.is_nan() { 1.0 } else { self.remains };
        let many = delete >= self.at_least.max(1) && number(delete) > share * number(of);
        many && number(wanted) <= remains * number(of)
    }
}

/// What a pass does not do.
///
/// Prints on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// How many virtual servers would be deleted and are not.
    pub would_delete: usize,
    /// Of how many that are ours.
    pub of: usize,
    /// When the last of them is deleted, if nothing changes until then.
    pub until: Option<Moment>,
    held: BTreeSet<VirtualServerKey>,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stopped { would_delete, of, .. } = self;
        write!(
            f,
            "{would_delete} of {of} virtual servers are not wanted any more, all at once, and are left as they are"
        )?;
        let end = if self.until.is_some() { "for a while, or until" } else { "until" };
        write!(f, " {end} this is confirmed: check where the Services are read from")
    }
}

impl Stopped {
    /// The virtual servers that are left as they are, sorted.
    pub fn held(&self) -> impl Iterator<Item = VirtualServerKey> {
        self.held.iter().copied()
    }

    /// Takes out of the changes what is not to be done: deleting the virtual servers, and the addresses and entries
    /// they need. The rest stays: virtual servers that are wanted follow their endpoints as always.
    ///
    /// Rules of iptables are no part of these changes. Those that guard what is held back have to stay too:
    /// [`Kept`](crate::rules::Kept) tells which.
    pub fn hold(&self, changes: &mut Changes, observed: &Observed) {
        changes.virtual_servers.retain(|key, _| !self.held.contains(key));
        let mut needs = Needs::default();
        for key in &self.held {
            needs.add(key, observed);
        }
        changes.delete_addresses.retain(|address| !needs.addresses.contains(address));
        changes.delete_entries.retain(|(set, element)| !needs.entry(*set, element));
    }
}

/// What virtual servers need besides themselves.
#[derive(Default)]
struct Needs {
    addresses: BTreeSet<IpAddr>,
    /// Of virtual servers, and of their real servers (hairpin).
    places: BTreeSet<(u8, IpAddr, u16)>,
    node_ports: BTreeSet<(Family, u16)>,
}

impl Needs {
    fn add(&mut self, key: &VirtualServerKey, observed: &Observed) {
        let VirtualServerKey::Address { protocol, addr, port } = *key else { return };
        self.addresses.insert(addr);
        self.node_ports.insert((Family::of(addr), port));
        self.places.insert((protocol.number(), addr, port));
        let server = observed.virtual_servers.get(key);
        for real in server.into_iter().flat_map(|server| server.real_servers.iter()) {
            self.places.insert((protocol.number(), real.key.addr, real.key.port));
        }
    }

    fn entry(&self, set: SetKey, element: &Element) -> bool {
        match element {
            Element::Ip(span) => self.addresses.contains(&span.first()),
            Element::IpPort(span, ports) | Element::IpPortIp(span, ports, _) => {
                let protocol = Protocol::from(ports.protocol().number());
                self.places.contains(&(protocol.number(), span.first(), ports.ports().first()))
            }
            Element::Port(ports) => self.node_ports.contains(&(set.family, ports.first())),
            _ => false,
        }
    }
}

/// Holds back deletions of virtual servers when there are suddenly too many of them.
///
/// # What "suddenly" means
///
/// Services that are deleted go one by one, each with an event, and a pass works off the few that came since the last.
/// Services that are merely missing go together: the API server was restored from an empty backup, the configuration
/// points to an empty cluster, a directory of manifests is not mounted, or all of that happened while this program was
/// not running. So what counts is what **one pass** would delete, of what the kernel holds: more than a share of our
/// virtual servers ([`MassRemoval::share`]) and more than a few ([`MassRemoval::at_least`]), with little left that is
/// wanted ([`MassRemoval::remains`]): other Services in their place are another input, not a missing one.
///
/// A deletion that somebody has announced does not count: whoever sees the event of a single Service calls
/// [`Guard::believe`] with its virtual servers before they are gone from [`Desired`]. With this, deleting a namespace of
/// any size goes through at once; without, it does as long as the passes keep up.
///
/// Virtual servers that only lose their last endpoint do not count. When nodes fail, many do at once, rightly: their
/// addresses answer no more, or soon belong to another pod.
///
/// # How it ends
///
/// * The input comes back: what is wanted again is not held back any more. What is not yet, stays held back, however
///   little that is: lists that come back in parts are no deletions of the rest.
/// * An operator confirms: [`Guard::confirm`] lets through what is held back then, and nothing later.
/// * The input stays as it is for [`MassRemoval::patience`]: each virtual server that was missing all the time is
///   deleted then.
///
/// Meanwhile the virtual servers that are held back keep their real servers and entries ([`Stopped::hold`]), and
/// everything else goes on.
///
/// ```
/// use std::time::Duration;
/// use ipvs::{Scheduler, VirtualServer};
/// use proxier_core::config::Config;
/// use proxier_core::diff::diff;
/// use proxier_core::interlock::{Guard, MassRemoval};
/// use proxier_core::observed::Observed;
/// use proxier_core::state::Desired;
///
/// // The kernel has twenty virtual servers, and the list of Services is empty.
/// let mut observed = Observed::new();
/// for number in 1..=20 {
///     observed.addresses.insert([10, 96, 0, number].into());
///     let key = format!("TCP 10.96.0.{number}:80").parse()?;
///     observed.insert(&VirtualServer::new(key, Scheduler::RoundRobin), []);
/// }
/// let desired = Desired::new();
/// let mut changes = diff(&desired, &observed, &Config::default());
///
/// let mut guard = Guard::new(MassRemoval::default());
/// let now = Duration::from_secs(1);
/// let stopped = guard.check(&changes, &observed, &desired, now).ok_or("not stopped")?;
/// assert_eq!((stopped.would_delete, stopped.of), (20, 20));
/// stopped.hold(&mut changes, &observed);
/// assert!(changes.virtual_servers.is_empty() && changes.delete_addresses.is_empty());
///
/// guard.confirm();
/// let changes = diff(&desired, &observed, &Config::default());
/// assert_eq!(guard.check(&changes, &observed, &desired, now), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guard {
    settings: MassRemoval,
    /// Deletions that are meant, until they are made.
    believed: BTreeSet<VirtualServerKey>,
    /// Deletions that are held back, with when that began.
    held: BTreeMap<VirtualServerKey, Moment>,
}

impl Guard {
    /// Nothing is held back.
    pub fn new(settings: MassRemoval) -> Self {
        Guard { settings, ..Guard::default() }
    }

    /// These virtual servers are going to be deleted because somebody deleted or changed their Service: that was an
    /// event of its own, not a list it is missing from. Forgotten when they are gone, or wanted again at the next check.
    pub fn believe(&mut self, keys: impl IntoIterator<Item = VirtualServerKey>) {
        self.believed.extend(keys);
    }

    /// What is held back now is meant. Says how many virtual servers that are.
    pub fn confirm(&mut self) -> usize {
        let confirmed = std::mem::take(&mut self.held);
        let count = confirmed.len();
        self.believed.extend(confirmed.into_keys());
        count
    }

    /// The virtual servers that are held back, with when that began.
    pub fn held(&self) -> impl Iterator<Item = (VirtualServerKey, Moment)> {
        self.held.iter().map(|(key, since)| (*key, *since))
    }

    /// Says what of these changes must not be made; [`Stopped::hold`] takes it out. `Some` as long as anything is held
    /// back, also when the changes have nothing to do with it: they may take away what it needs.
    ///
    /// The cost is that of the changes; with many deletions, or as long as something is held back, that of everything.
    pub fn check(&mut self, changes: &Changes, observed: &Observed, desired: &Desired, now: Moment) -> Option<Stopped> {
        let is_lost =
            |key: &VirtualServerKey| observed.virtual_servers.contains_key(key) && desired.frontend(key).is_none();
        self.believed.retain(is_lost);
        let patience = self.settings.patience;
        let is_over = |since: Moment| patience.is_some_and(|patience| since.saturating_add(patience) <= now);
        self.held.retain(|key, since| {
            if is_over(*since) && is_lost(key) {
                self.believed.insert(*key);
            }
            is_lost(key) && !self.believed.contains(key)
        });
        let deleted = changes.virtual_servers.iter().filter(|(_, change)| **change == VirtualServerChange::Delete);
        let new: BTreeSet<VirtualServerKey> = deleted
            .map(|(key, _)| *key)
            .filter(|key| !self.held.contains_key(key) && !self.believed.contains(key))
            .collect();
        if self.held.is_empty() && new.len() < self.settings.at_least.max(1) {
            return None;
        }
        let kept = desired.frontends().filter(|of| observed.virtual_servers.contains_key(&of.key())).count();
        // What is held back already counts too: else what comes on top of it would be few.
        let lost = self.held.len().saturating_add(new.len());
        let all = kept.saturating_add(lost).saturating_add(self.believed.len());
        if self.settings.is_too_much(lost, all, desired.frontends().count()) {
            self.held.extend(new.into_iter().map(|key| (key, now)));
        }
        let since = self.held.values().max()?;
        let until = patience.map(|patience| since.saturating_add(patience));
        let of = kept.saturating_add(self.held.len());
        Some(Stopped { would_delete: self.held.len(), of, until, held: self.held.keys().copied().collect() })
    }
}

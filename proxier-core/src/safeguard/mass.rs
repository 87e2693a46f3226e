//! The safeguard against losing much at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ipvs::VirtualServerKey;

use super::lost::Lost;
use super::needs::Needs;
use crate::compile::NodeFacts;
use crate::diff::{Changes, VirtualServerChange};
use crate::observed::Observed;
use crate::schedule::Moment;
use crate::snapshot::{ObjectKey, ObjectKind, Store};
use crate::state::Desired;

/// When a pass would delete too much to be believed: virtual servers, or their last endpoints.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MassRemoval {
    /// More than this share of our virtual servers, or of those that have endpoints, 0 to 1. Default 0.5. With 1 nothing is
    /// ever held back; NaN counts as 0.
    pub share: f64,
    /// And only if at most this share of what is there is left, 0 to 1: the input became empty, or nearly so, and not just
    /// different. Default 0.5; with 0 only when nothing at all is left.
    pub remains: f64,
    /// And at least this many. Default 10: fewer go at once, so that a small cluster can lose its last Service.
    pub at_least: usize,
    /// How long the input has to stay as it is to be believed; `None`: until confirmed. Default 5 min.
    pub patience: Option<Duration>,
}

impl Default for MassRemoval {
    fn default() -> Self {
        MassRemoval { share: 0.5, remains: 0.5, at_least: 10, patience: Some(Duration::from_secs(5 * 60)) }
    }
}

impl MassRemoval {
    pub(super) fn is_too_much(&self, delete: usize, of: usize, wanted: usize) -> bool {
        let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let share = if self.share.is_nan() { 0.0 } else { self.share };
        let remains = if self.remains.is_nan() { 1.0 } else { self.remains };
        let many = delete >= self.at_least.max(1) && number(delete) > share * number(of);
        many && number(wanted) <= remains * number(of)
    }
}

/// Deletions that a pass does not do.
///
/// Prints on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stopped {
    /// How many virtual servers would go or lose their last endpoint, but are kept.
    pub would_lose: usize,
    /// How many virtual servers are ours.
    pub of: usize,
    /// When the last of them follows the input, if nothing changes until then.
    pub until: Option<Moment>,
    held: BTreeSet<VirtualServerKey>,
    /// Those of them that only the kernel has.
    inherited: BTreeSet<VirtualServerKey>,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stopped { would_lose, of, .. } = self;
        write!(
            f,
            "{would_lose} of {of} virtual servers would go or lose their last endpoint, all at once; they stay as they are"
        )?;
        let end = if self.until.is_some() { "for a while, or until" } else { "until" };
        write!(f, " {end} this is confirmed: check where the Services and EndpointSlices are read from")
    }
}

impl Stopped {
    /// The virtual servers that stay as they are, sorted.
    pub fn held(&self) -> impl Iterator<Item = VirtualServerKey> {
        self.held.iter().copied()
    }

    /// Removes held-back deletions from the changes: of the virtual servers, their real servers, and the addresses and
    /// entries they need. The rest stays: wanted virtual servers follow their endpoints as always.
    ///
    /// Rules of iptables are no part of these changes. Those that guard what is held back have to stay too:
    /// [`Kept`](crate::rules::Kept) names them.
    pub fn hold(&self, changes: &mut Changes, observed: &Observed) {
        let mut needs = Needs::default();
        for key in &self.inherited {
            needs.add(key, observed);
            match changes.virtual_servers.get_mut(key) {
                Some(VirtualServerChange::Delete) => drop(changes.virtual_servers.remove(key)),
                Some(VirtualServerChange::Update { config, add, set, remove }) => {
                    remove.clear();
                    if config.is_none() && add.is_empty() && set.is_empty() {
                        changes.virtual_servers.remove(key);
                    }
                }
                _ => {}
            }
        }
        changes.delete_addresses.retain(|address| !needs.address(address));
        changes.delete_entries.retain(|(set, element)| !needs.entry(*set, element));
    }
}

/// Keeps what is served when too much of it would go at once: virtual servers, and the last endpoints of virtual servers.
///
/// # What "at once" means
///
/// Objects that are deleted go one by one, each with an event, and a pass handles the few that came since the last. Objects
/// that are merely missing go together: the API server was restored from an empty backup, the configuration points to an
/// empty cluster, a directory of manifests is not mounted, or all of that happened while this program was not running. So
/// the limit applies to what **one pass** would delete: more than a share of our virtual servers, or of those with
/// endpoints ([`MassRemoval::share`]), and more than a few ([`MassRemoval::at_least`]), with little left
/// ([`MassRemoval::remains`]): if other Services replace them, the input is different, not missing.
///
/// Services and EndpointSlices come in separate lists, in any order. The safeguard judges them together:
///
/// * Objects that a list lacks ([`Safeguard::lose`]). While they are doubted the [`Store`] keeps them, so everything
///   follows from them as before: virtual servers, endpoints, entries, rules, health checks. A Service that is held back
///   gets the endpoints of a new slice.
/// * What the kernel has from before this process started and the first lists do not explain ([`Safeguard::check`]):
///   virtual servers of no Service, and virtual servers with real servers whose Service has no EndpointSlice at all.
///
/// What objects and events say is believed: an object that an event deletes ([`Safeguard::found`]), or one that says itself
/// that it has no endpoints. When nodes fail, many Services rightly lose their endpoints at once: the addresses no longer
/// answer, or soon belong to another pod.
///
/// # How it ends
///
/// * The input comes back: what is named again is not held back any more. The rest stays held back, however little it is: a
///   list that comes back in parts does not delete the rest.
/// * An operator confirms: [`Safeguard::confirm`] releases what is held back then, and nothing later.
/// * The input stays as it is for [`MassRemoval::patience`]: what was missing all the time is believed then.
///
/// ```
/// use std::time::Duration;
/// use ipvs::{Scheduler, VirtualServer};
/// use proxier_core::config::Config;
/// use proxier_core::diff::diff;
/// use proxier_core::safeguard::{Safeguard, MassRemoval};
/// use proxier_core::observed::Observed;
/// use proxier_core::snapshot::Store;
/// use proxier_core::state::Desired;
///
/// // The kernel has twenty virtual servers, and the list of Services is empty.
/// let mut observed = Observed::new();
/// for number in 1..=20 {
///     observed.addresses.insert([10, 96, 0, number].into());
///     let key = format!("TCP 10.96.0.{number}:80").parse()?;
///     observed.insert(&VirtualServer::new(key, Scheduler::RoundRobin), []);
/// }
/// let (store, desired) = (Store::new("node-a"), Desired::new());
/// let mut changes = diff(&desired, &observed, &Config::default());
///
/// let mut safeguard = Safeguard::new(MassRemoval::default());
/// let now = Duration::from_secs(1);
/// let stopped = safeguard.check(&changes, &observed, &store, &desired, now).ok_or("not stopped")?;
/// assert_eq!((stopped.would_lose, stopped.of), (20, 20));
/// stopped.hold(&mut changes, &observed);
/// assert!(changes.virtual_servers.is_empty() && changes.delete_addresses.is_empty());
///
/// safeguard.confirm();
/// let changes = diff(&desired, &observed, &Config::default());
/// assert_eq!(safeguard.check(&changes, &observed, &store, &desired, now), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Safeguard {
    settings: MassRemoval,
    lost: Lost,
    /// Virtual servers that may lose what they have, until they have lost it.
    believed: BTreeSet<VirtualServerKey>,
    /// Held-back virtual servers that only the kernel has, and since when.
    inherited: BTreeMap<VirtualServerKey, Moment>,
    /// The first complete reading of the kernel has been compared: endpoints that go later go because objects say so.
    has_compared: bool,
}

impl Safeguard {
    /// Nothing is held back.
    pub fn new(settings: MassRemoval) -> Self {
        Safeguard { settings, ..Safeguard::default() }
    }

    /// A list lacks this object, and nobody reported it as deleted. It stays in the store until [`Safeguard::judge`]
    /// returns it.
    pub fn lose(&mut self, kind: ObjectKind, key: ObjectKey) {
        self.lost.lose((kind, key));
    }

    /// This object was reported as there, or as deleted. Returns whether it was missing before.
    pub fn found(&mut self, kind: ObjectKind, key: &ObjectKey) -> bool {
        self.lost.found(&(kind, key.clone()))
    }

    /// Whether this object is missing from a list, and still counts as there.
    pub fn is_lost(&self, kind: ObjectKind, key: &ObjectKey) -> bool {
        self.lost.is_lost(&(kind, key.clone()))
    }

    /// Returns the missing objects to delete from the store now. `desired` is compiled from the store as it is.
    ///
    /// Costs nothing while no object is missing, else O(missing objects), and O(all virtual servers) for new ones.
    pub fn judge(
        &mut self,
        store: &Store,
        desired: &Desired,
        facts: &NodeFacts,
        now: Moment,
    ) -> BTreeSet<(ObjectKind, ObjectKey)> {
        self.lost.judge(&self.settings, store, desired, facts, now)
    }

    /// Objects say that these virtual servers lose what they have. Forgotten when they have lost it, or when they have
    /// endpoints again at the next check.
    pub fn believe(&mut self, keys: impl IntoIterator<Item = VirtualServerKey>) {
        self.believed.extend(keys);
    }

    /// Whether the kernel was compared with what is wanted before.
    pub(crate) fn has_compared(&self) -> bool {
        self.has_compared
    }

    /// Confirms what is held back now. Returns how many virtual servers that is.
    pub fn confirm(&mut self) -> usize {
        let count = self.held().count();
        self.lost.confirm();
        self.believed.extend(std::mem::take(&mut self.inherited).into_keys());
        count
    }

    /// The virtual servers that are held back, and since when.
    pub fn held(&self) -> impl Iterator<Item = (VirtualServerKey, Moment)> {
        let lost = self.lost.held();
        let inherited = self.inherited.iter().filter(|(key, _)| !lost.contains_key(key));
        lost.iter().chain(inherited).map(|(key, since)| (*key, *since))
    }

    /// Returns the changes that must not be made; [`Stopped::hold`] removes them. `Some` as long as anything is held back,
    /// even if these changes are about something else: they may delete what it needs.
    ///
    /// Costs O(changes); with many deletions, or while something is held back, O(everything).
    pub fn check(
        &mut self,
        changes: &Changes,
        observed: &Observed,
        store: &Store,
        desired: &Desired,
        now: Moment,
    ) -> Option<Stopped> {
        let is_unexplained = |key: &VirtualServerKey| is_unexplained(key, observed, store, desired);
        self.believed.retain(is_unexplained);
        let patience = self.settings.patience;
        let is_over = |since: Moment| patience.is_some_and(|patience| since.saturating_add(patience) <= now);
        self.inherited.retain(|key, since| {
            if is_over(*since) && is_unexplained(key) {
                self.believed.insert(*key);
            }
            is_unexplained(key) && !self.believed.contains(key)
        });
        let is_first = !std::mem::replace(&mut self.has_compared, true);
        let new: BTreeSet<VirtualServerKey> = changes
            .virtual_servers
            .iter()
            .filter(|(key, change)| match change {
                VirtualServerChange::Delete => true,
                VirtualServerChange::Update { remove, .. } => is_first && !remove.is_empty() && is_unexplained(key),
                VirtualServerChange::Add { .. } => false,
            })
            .map(|(key, _)| *key)
            .filter(|key| !self.inherited.contains_key(key) && !self.believed.contains(key))
            .collect();
        let nothing_new = self.inherited.is_empty() && new.len() < self.settings.at_least.max(1);
        if !nothing_new {
            self.compare(&new, observed, desired, now);
        }
        self.stopped(observed, desired)
    }

    /// Holds back what is new, if it is too much together with what is held back already: otherwise the deletions added
    /// later would be few.
    fn compare(&mut self, new: &BTreeSet<VirtualServerKey>, observed: &Observed, desired: &Desired, now: Moment) {
        let is_there = |key: &VirtualServerKey| observed.virtual_servers.contains_key(key);
        let lost = || self.inherited.keys().chain(new);
        let gone = lost().filter(|key| desired.frontend(key).is_none()).count();
        let kept = desired.frontends().filter(|of| is_there(&of.key())).count();
        let all = kept.saturating_add(gone).saturating_add(self.believed.len());
        let has_real_servers = |key: &&VirtualServerKey| {
            observed.virtual_servers.get(key).is_some_and(|there| !there.real_servers.is_empty())
        };
        let unserved = lost().filter(has_real_servers).count();
        let left = desired.frontends().filter(|of| !of.real_servers.is_empty()).count();
        let served = left.saturating_add(unserved);
        if self.settings.is_too_much(gone, all, desired.frontends().count())
            || self.settings.is_too_much(unserved, served, left)
        {
            self.inherited.extend(new.iter().map(|key| (*key, now)));
        }
    }

    fn stopped(&self, observed: &Observed, desired: &Desired) -> Option<Stopped> {
        let since = self.held().map(|(_, since)| since).max()?;
        let until = self.settings.patience.map(|patience| since.saturating_add(patience));
        let held: BTreeSet<VirtualServerKey> = self.held().map(|(key, _)| key).collect();
        let inherited: BTreeSet<VirtualServerKey> = self.inherited.keys().copied().collect();
        let wanted = desired.frontends().filter(|of| observed.virtual_servers.contains_key(&of.key())).count();
        let unwanted = inherited.iter().filter(|key| desired.frontend(key).is_none()).count();
        Some(Stopped { would_lose: held.len(), of: wanted.saturating_add(unwanted), until, held, inherited })
    }
}

/// Whether the kernel has a virtual server that is not wanted, or one with real servers that is wanted without any because
/// no EndpointSlice mentions it.
fn is_unexplained(key: &VirtualServerKey, observed: &Observed, store: &Store, desired: &Desired) -> bool {
    let Some(there) = observed.virtual_servers.get(key) else { return false };
    let (Some(frontend), Some(service)) = (desired.frontend(key), desired.owner(key)) else { return true };
    let is_silent = || store.slices_of(service).all(|slice| slice.family != crate::net::Family::from(key.family()));
    frontend.real_servers.is_empty() && !there.real_servers.is_empty() && is_silent()
}

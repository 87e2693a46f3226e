//! The safeguard against losing much at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::missing::MissingObjects;
use crate::net::FrontendKey;
use crate::service::Desired;
use crate::service::NodeFacts;
use crate::snapshot::{ObjectKey, ObjectKind, Store};
use crate::time::Moment;

/// Limits above which a pass would take away too much to be believed: Frontends, or their last endpoints.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MassRemoval {
    /// Largest share of own Frontends, or of those with endpoints, that may go in one pass, 0 to 1. Default 0.5. With 1 nothing is
    /// ever held back; NaN counts as 0.
    pub share: f64,
    /// Largest share that is left when deletions are held back, 0 to 1: with more left, the input is different, not missing. Default 0.5;
    /// with 0 only when nothing at all is left.
    pub remains: f64,
    /// Smallest number that is held back. Default 10: fewer go at once, so that a small cluster can lose its last Service.
    pub at_least: usize,
    /// Time for which the input has to stay as it is to be believed; `None`: until confirmed. Default 5 min.
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
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stopped {
    /// Number of Frontends that would go or lose their last endpoint, but are kept.
    pub would_lose: usize,
    /// Number of own Frontends that are served.
    pub of: usize,
    /// Time at which the last of them follows the input, if nothing changes until then.
    pub until: Option<Moment>,
    /// Number of those that may belong to objects that cannot be read.
    pub unreadable: usize,
    held: BTreeSet<FrontendKey>,
    /// Held Frontends that only the kernel has.
    inherited: BTreeSet<FrontendKey>,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stopped { would_lose, of, unreadable, .. } = self;
        if *unreadable > 0 {
            write!(
                f,
                "{unreadable} of {of} virtual servers may belong to Services or EndpointSlices that cannot be read; they stay as they are until these can, \
                 or until this is confirmed"
            )?;
            if would_lose <= unreadable {
                return Ok(());
            }
            f.write_str("; ")?;
        }
        let would_lose = would_lose.saturating_sub(*unreadable);
        write!(
            f,
            "{would_lose} of {of} virtual servers would go or lose their last endpoint, all at once; they stay as they are"
        )?;
        let end = if self.until.is_some() { "for a while, or until" } else { "until" };
        write!(f, " {end} this is confirmed: check where the Services and EndpointSlices are read from")
    }
}

impl Stopped {
    /// Whether this is too much by these settings, by default more than half.
    pub(crate) fn is_most(&self, settings: &MassRemoval) -> bool {
        let left = self.of.saturating_sub(self.would_lose);
        self.would_lose > left || settings.is_too_much(self.would_lose, self.of, left)
    }

    /// Frontends that stay as they are, sorted.
    pub fn held(&self) -> impl Iterator<Item = FrontendKey> {
        self.held.iter().copied()
    }

    /// Held Frontends that only the kernel has, sorted. The rest is still wanted, since the [`Store`] keeps their objects.
    #[doc(hidden)]
    pub fn inherited(&self) -> impl Iterator<Item = FrontendKey> {
        self.inherited.iter().copied()
    }
}

/// Loss of a Frontend in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The whole Frontend.
    Everything,
    /// Some of its endpoints.
    Endpoints,
}

/// Frontends that a kernel serves, in any mode.
pub trait Kernel {
    /// Whether it serves a Frontend: `None` if not, else whether there are endpoints.
    fn serves(&self, key: &FrontendKey) -> Option<bool>;
}

impl Kernel for BTreeMap<FrontendKey, bool> {
    fn serves(&self, key: &FrontendKey) -> Option<bool> {
        self.get(key).copied()
    }
}

/// Holds back deletions when too much would go at once: Frontends, and their last endpoints.
///
/// # What "at once" means
///
/// Objects that are deleted go one by one, each with an event, and a pass handles the few that came since the last. Objects
/// that are merely missing go together: the API server was restored from an empty backup, the configuration points to an
/// empty cluster, a directory of manifests is not mounted, or all of that happened while this program was not running. So
/// the limit applies to the deletions of **one pass**: more than a share of our Frontends, or of those with
/// endpoints ([`MassRemoval::share`]), and more than a few ([`MassRemoval::at_least`]), with little left
/// ([`MassRemoval::remains`]): if other Services replace them, the input is different, not missing.
///
/// Services and EndpointSlices come in separate lists, in any order. The safeguard judges them together:
///
/// * Objects that a list lacks ([`Safeguard::lose`]). While they are doubted the [`Store`] keeps them, so everything
///   follows from them as before: Frontends, endpoints, health checks, what guards them. A Service that is held back
///   gets the endpoints of a new slice.
/// * Frontends that the kernel has from before this process started and the first lists do not explain ([`Safeguard::check`]):
///   those of no Service, and those with endpoints whose Service has no EndpointSlice at all.
///
/// Objects and events are believed: an object that an event deletes ([`Safeguard::note_found`]), or one that says itself
/// that it has no endpoints. When nodes fail, many Services rightly lose their endpoints at once: the addresses no longer
/// answer, or soon belong to another pod.
///
/// An object that cannot be read is not missing. If nothing was read of it before, what the kernel has from before this process started and no
/// other object explains may be its own: that stays, however little it is, until the object can be read or is deleted.
///
/// # How it ends
///
/// * The input comes back: objects that are named again are not held back any more. The rest stays held back, however little it is: a
///   list that comes back in parts does not delete the rest.
/// * A Service has the cluster IP or a node port of one that is missing: the API server gives each to one Service, so that one
///   is gone, and goes at once.
/// * An operator confirms: [`Safeguard::confirm`] releases the deletions held back then, and none later.
/// * The input stays as it is for [`MassRemoval::patience`]: objects that were missing all the time are believed to be gone then. Not while
///   they are listed again ([`Safeguard::list_begins`]): a list that fails again and again says nothing about its last page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Safeguard {
    settings: MassRemoval,
    lost: MissingObjects,
    /// Frontends that lose something because objects say so, or because it has lasted, until they have lost it.
    believed: BTreeSet<FrontendKey>,
    /// Frontends held back because only the kernel has them, each with the time since when.
    inherited: BTreeMap<FrontendKey, Moment>,
    /// Frontends held back because they may belong to objects that cannot be read, each with the time since when.
    unreadable: BTreeMap<FrontendKey, Moment>,
    /// The first complete reading of the kernel has been compared: endpoints that go later go because objects say so.
    has_compared: bool,
}

impl Safeguard {
    /// Holds nothing back yet.
    pub fn new(settings: MassRemoval) -> Self {
        Safeguard { settings, ..Safeguard::default() }
    }

    /// Time for which the input has to stay as it is to be believed ([`MassRemoval::patience`]).
    pub fn patience(&self) -> Option<Duration> {
        self.settings.patience
    }

    /// Notes that a list lacks this object, whose deletion was not reported. It stays in the store until [`Safeguard::judge`]
    /// returns it.
    pub fn lose(&mut self, kind: ObjectKind, key: ObjectKey) {
        self.lost.lose((kind, key));
    }

    /// Notes that this object was reported as there, or as deleted. Returns whether it was missing before.
    pub fn note_found(&mut self, kind: ObjectKind, key: &ObjectKey) -> bool {
        self.lost.note_found(&(kind, key.clone()))
    }

    /// A new list of this kind begins: until it ends, what is doubted stays doubted, however long that takes. What is missing
    /// may be in the part that has not come yet.
    pub fn list_begins(&mut self, kind: ObjectKind) {
        self.lost.set_listing(kind, true);
    }

    /// The list of this kind is complete.
    pub fn list_ends(&mut self, kind: ObjectKind) {
        self.lost.set_listing(kind, false);
    }

    /// Whether this object is missing from a list, and still counts as there.
    pub fn is_lost(&self, kind: ObjectKind, key: &ObjectKey) -> bool {
        self.lost.is_lost(&(kind, key.clone()))
    }

    /// Returns the missing objects to delete from the store now. `desired` is compiled from the store as it is.
    ///
    /// Costs nothing while no object is missing, else O(missing objects), and O(all Frontends) for new ones.
    pub fn judge(
        &mut self,
        store: &Store,
        desired: &Desired,
        facts: &NodeFacts,
        now: Moment,
    ) -> BTreeSet<(ObjectKind, ObjectKey)> {
        self.lost.judge(&self.settings, store, desired, facts, now)
    }

    /// Objects say that these Frontends lose what they have. Forgotten when they have lost it, or when they have
    /// endpoints again at the next check.
    pub fn believe(&mut self, keys: impl IntoIterator<Item = FrontendKey>) {
        self.believed.extend(keys);
    }

    /// Whether the kernel was compared with what is wanted before.
    pub(crate) fn has_compared(&self) -> bool {
        self.has_compared
    }

    /// Confirms the deletions that are held back now. Returns the number of their Frontends.
    pub fn confirm(&mut self) -> usize {
        let count = self.held().count();
        self.lost.confirm();
        self.believed.extend(std::mem::take(&mut self.inherited).into_keys());
        self.believed.extend(std::mem::take(&mut self.unreadable).into_keys());
        count
    }

    /// The Frontends that are held back, and since when.
    pub fn held(&self) -> impl Iterator<Item = (FrontendKey, Moment)> {
        let lost = self.lost.held();
        let unreadable = self.unreadable.iter().filter(|(key, _)| !lost.contains_key(key));
        let is_other = |key| !lost.contains_key(key) && !self.unreadable.contains_key(key);
        let inherited = self.inherited.iter().filter(move |(key, _)| is_other(*key));
        lost.iter().chain(unreadable).chain(inherited).map(|(key, since)| (*key, *since))
    }

    /// The time at which a held Frontend follows the input if nothing changes; `None`: only when confirmed, or when an object can be read.
    pub fn until(&self, key: &FrontendKey, since: Moment) -> Option<Moment> {
        self.patience().filter(|_| !self.unreadable.contains_key(key)).map(|patience| since.saturating_add(patience))
    }

    /// Returns what this pass must leave in the kernel. `losing`: what it would take away. `Some` as long as anything
    /// is held back, even if this pass would take none of it away: other changes may delete what it needs.
    ///
    /// Costs O(`losing`); with many, or while something is held back, O(everything).
    pub fn check(
        &mut self,
        losing: impl IntoIterator<Item = (FrontendKey, Loss)>,
        kernel: &dyn Kernel,
        store: &Store,
        desired: &Desired,
        now: Moment,
    ) -> Option<Stopped> {
        let is_unexplained = |key: &FrontendKey| is_unexplained(key, kernel, store, desired);
        // Endpoints that go because the rest of a Service's slices lacks them are explained, but confirmed all the same.
        let unreadable = Unreadable::of(store);
        let may_be_unreadable = |key: &FrontendKey| unreadable.may_have(key, kernel, desired);
        self.believed.retain(|key| is_unexplained(key) || may_be_unreadable(key));
        let patience = self.settings.patience;
        let is_over = |since: Moment| patience.is_some_and(|patience| since.saturating_add(patience) <= now);
        self.unreadable.retain(|key, _| may_be_unreadable(key));
        self.inherited.retain(|key, since| {
            if is_over(*since) && is_unexplained(key) && !self.unreadable.contains_key(key) {
                self.believed.insert(*key);
            }
            is_unexplained(key) && !self.believed.contains(key)
        });
        let is_first = !std::mem::replace(&mut self.has_compared, true);
        let losing: Vec<(FrontendKey, Loss)> = losing.into_iter().collect();
        let mut new: BTreeSet<FrontendKey> = losing
            .iter()
            .filter(|(key, loss)| *loss == Loss::Everything || (is_first && is_unexplained(key)))
            .map(|(key, _)| *key)
            .filter(|key| !self.inherited.contains_key(key) && !self.believed.contains(key))
            .collect();
        if is_first && self.settings.share < 1.0 {
            let of_slices = unreadable.slices.iter().flatten().filter_map(|service| desired.compiled(service));
            let of_slices = of_slices.flat_map(|compiled| &compiled.frontends).map(|frontend| frontend.key);
            for key in losing.iter().map(|(key, _)| *key).chain(of_slices) {
                if may_be_unreadable(&key) && !self.believed.contains(&key) {
                    self.unreadable.entry(key).or_insert(now);
                }
            }
        }
        new.retain(|key| !self.unreadable.contains_key(key));
        let nothing_new = self.inherited.is_empty() && new.len() < self.settings.at_least.max(1);
        if !nothing_new {
            self.compare(&new, kernel, desired, now);
        }
        self.stopped(kernel, desired)
    }

    /// As [`Safeguard::check`], of a kernel that is read as a whole each time: like the first comparison.
    pub(crate) fn check_anew(
        &mut self,
        losing: impl IntoIterator<Item = (FrontendKey, Loss)>,
        kernel: &dyn Kernel,
        store: &Store,
        desired: &Desired,
        now: Moment,
    ) -> Option<Stopped> {
        self.has_compared = false;
        self.check(losing, kernel, store, desired, now)
    }

    /// Holds back what is new, if it is too much together with what is held back already: otherwise the deletions added
    /// later would be few.
    fn compare(&mut self, new: &BTreeSet<FrontendKey>, kernel: &dyn Kernel, desired: &Desired, now: Moment) {
        let lost = || self.inherited.keys().chain(new);
        let gone = lost().filter(|key| desired.frontend(key).is_none()).count();
        let kept = desired.frontends().filter(|of| kernel.serves(&of.key).is_some()).count();
        let all = kept.saturating_add(gone).saturating_add(self.believed.len());
        let unserved = lost().filter(|key| kernel.serves(key) == Some(true)).count();
        let left = desired.frontends().filter(|of| !of.endpoints().is_empty()).count();
        let served = left.saturating_add(unserved);
        if self.settings.is_too_much(gone, all, desired.frontends().count())
            || self.settings.is_too_much(unserved, served, left)
        {
            self.inherited.extend(new.iter().map(|key| (*key, now)));
        }
    }

    fn stopped(&self, kernel: &dyn Kernel, desired: &Desired) -> Option<Stopped> {
        let since = self.held().map(|(_, since)| since).max()?;
        let until = self.settings.patience.map(|patience| since.saturating_add(patience));
        let held: BTreeSet<FrontendKey> = self.held().map(|(key, _)| key).collect();
        let inherited: BTreeSet<FrontendKey> = self.inherited.keys().chain(self.unreadable.keys()).copied().collect();
        let wanted = desired.frontends().filter(|of| kernel.serves(&of.key).is_some()).count();
        let unwanted = inherited.iter().filter(|key| desired.frontend(key).is_none()).count();
        let (would_lose, of) = (held.len(), wanted.saturating_add(unwanted));
        Some(Stopped { would_lose, of, until, unreadable: self.unreadable.len(), held, inherited })
    }
}

/// Objects of which nothing could be read.
struct Unreadable<'a> {
    /// Whether there is a Service among them.
    service: bool,
    /// The Services of slices; `None`: any Service.
    slices: BTreeSet<Option<&'a ObjectKey>>,
}

impl<'a> Unreadable<'a> {
    fn of(store: &'a Store) -> Self {
        Unreadable { service: store.lacks_service(), slices: store.services_lacking_slices().collect() }
    }

    /// Whether one of them may be the reason why the kernel serves a Frontend, or has endpoints for it.
    fn may_have(&self, key: &FrontendKey, kernel: &dyn Kernel, desired: &Desired) -> bool {
        let Some(has_endpoints) = kernel.serves(key) else { return false };
        let (Some(frontend), Some(owner)) = (desired.frontend(key), desired.owner(key)) else { return self.service };
        let loses_last = || self.slices.contains(&None) && frontend.endpoints().is_empty();
        has_endpoints && (self.slices.contains(&Some(owner)) || loses_last())
    }
}

/// Whether the kernel serves a Frontend that is not wanted, or one with endpoints that is wanted without any because no
/// EndpointSlice mentions it.
fn is_unexplained(key: &FrontendKey, kernel: &dyn Kernel, store: &Store, desired: &Desired) -> bool {
    let Some(has_endpoints) = kernel.serves(key) else { return false };
    let (Some(frontend), Some(service)) = (desired.frontend(key), desired.owner(key)) else { return true };
    let is_silent =
        || store.frontends_of(service).is_none() && store.slices_of(service).all(|slice| slice.family != key.family());
    frontend.endpoints().is_empty() && has_endpoints && is_silent()
}

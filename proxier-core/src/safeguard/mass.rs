//! The safeguard against mass removal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::missing::MissingObjects;
use crate::net::FrontendKey;
use crate::pack::Gather as _;
use crate::service::Desired;
use crate::snapshot::{ObjectKey, Store};
use crate::time::Moment;

/// Limits above which the removals of a pass are not believed: of Frontends, or of their last endpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MassRemoval {
    /// Largest share of our Frontends, or of those with endpoints, that one pass may remove, 0 to 1. Default 0.5. With
    /// 1 nothing is ever held back; NaN counts as 0.
    pub share: f64,
    /// Largest share left for deletions to be held back, 0 to 1. If more is left, the input is different rather than
    /// missing. Default 0.5; with 0 only if nothing is left.
    pub remains: f64,
    /// Smallest number that is held back. Default 10: fewer are removed at once, so that a small cluster can lose its
    /// last Service.
    pub at_least: usize,
    /// How long the input must stay unchanged to be believed; `None`: until confirmed. Default 5 min.
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

/// Deletions that a pass does not carry out. Prints on one line.
#[derive(Clone, Debug, PartialEq)]
pub struct Stopped {
    /// Number of our Frontends that are served.
    of: usize,
    /// Whether they follow the input after a while, if nothing changes until then.
    has_end: bool,
    /// Number of those that may belong to unreadable objects.
    pub(crate) unreadable: usize,
    /// Frontends that would be removed or lose their last endpoint, but are kept.
    pub(crate) held: BTreeSet<FrontendKey>,
    /// Held Frontends that only the kernel has. The others are still desired, since the [`Store`] keeps their objects.
    pub(crate) inherited: BTreeSet<FrontendKey>,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stopped { of, unreadable, .. } = self;
        if *unreadable > 0 {
            write!(
                f,
                "{unreadable} of {of} virtual servers may belong to Services or EndpointSlices that cannot be read; they stay as they are until these can, \
                 or until this is confirmed"
            )?;
            if self.held.len() <= *unreadable {
                return Ok(());
            }
            f.write_str("; ")?;
        }
        let would_lose = self.held.len().saturating_sub(*unreadable);
        write!(
            f,
            "{would_lose} of {of} virtual servers would go or lose their last endpoint, all at once; they stay as they are"
        )?;
        let end = if self.has_end { "for a while, or until" } else { "until" };
        write!(f, " {end} this is confirmed: check where the Services and EndpointSlices are read from")
    }
}

impl Stopped {
    /// Whether this exceeds the limits, by default more than half.
    pub(crate) fn is_most(&self, settings: &MassRemoval) -> bool {
        let would_lose = self.held.len();
        let left = self.of.saturating_sub(would_lose);
        would_lose > left || settings.is_too_much(would_lose, self.of, left)
    }
}

/// What a Frontend loses in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The whole Frontend.
    Everything,
    /// Some of its endpoints.
    Endpoints,
}

/// Frontends served by a kernel, in any mode.
pub(crate) trait Kernel {
    /// Whether it serves a Frontend: `None` if not, otherwise whether there are endpoints.
    fn serves(&self, key: &FrontendKey) -> Option<bool>;
}

impl Kernel for BTreeMap<FrontendKey, bool> {
    fn serves(&self, key: &FrontendKey) -> Option<bool> {
        self.get(key).copied()
    }
}

/// Holds back deletions if one pass would remove too many Frontends, or their last endpoints.
///
/// # What "at once" means
///
/// Deleted objects arrive one by one, each with an event, and a pass handles the few since the last. Missing objects
/// arrive together. For example, the API server was restored from an empty backup, the configuration points to an empty
/// cluster, or a directory of manifests is not mounted. The same may happen while the program is not running. So the
/// limit applies to the deletions of **one pass**. They must be more than a share of our Frontends, or of those with
/// endpoints ([`MassRemoval::share`]), and more than a few ([`MassRemoval::at_least`]). They must also leave little
/// ([`MassRemoval::remains`]): if other Services replace them, the input is different rather than missing.
///
/// Services and EndpointSlices come in separate lists, in any order. The safeguard judges them together:
///
/// * Objects that are missing from a list (`lost`). While they are in doubt the [`Store`] keeps them,
///   and with them their Frontends, endpoints, health checks and guards. A Service that is held back gets the endpoints
///   of a new slice.
/// * Frontends that were in the kernel before this process started, and that the first lists do not explain
///   ([`Safeguard::check`]). These are those of no Service, and those with endpoints whose Service has no
///   EndpointSlice.
///
/// Objects and events are believed: an object that an event deletes, or one without endpoints. When nodes fail, many
/// Services rightly lose their endpoints at once, because the addresses no longer answer or soon belong to other pods.
///
/// An unreadable object is not missing. If it was never read, it may explain Frontends that were in the kernel before
/// this process started and that no other object explains. These are kept, however few, until the object can be read or
/// is deleted.
///
/// # How it ends
///
/// * The input returns: objects that are listed again are no longer held back. The rest stays held back, however
///   little it is, so that a list that returns in parts does not delete the rest.
/// * Another Service has the cluster IP or a node port of a missing one. The API server gives each to one Service, so
///   the missing one was deleted, and is removed at once.
/// * An operator confirms: [`Safeguard::confirm`] releases the deletions held back at that time, but no later ones.
/// * The input stays unchanged for [`MassRemoval::patience`]: objects that were missing all the time are then
///   believed to be deleted. Not while they are being listed again, since a list that
///   keeps failing tells nothing about its last page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Safeguard {
    settings: MassRemoval,
    pub(crate) lost: MissingObjects,
    /// Frontends whose loss is believed, because of objects or after the patience, until it has happened.
    believed: BTreeSet<FrontendKey>,
    /// Frontends held back because only the kernel has them, and since when.
    inherited: BTreeMap<FrontendKey, Moment>,
    /// Frontends held back because they may belong to unreadable objects, and since when.
    unreadable: BTreeMap<FrontendKey, Moment>,
    /// Whether the first complete read of the kernel was compared. Endpoints that are removed later are removed because
    /// of objects.
    pub(crate) has_compared: bool,
}

impl Safeguard {
    /// Creates a safeguard that holds nothing back.
    pub(crate) fn new(settings: MassRemoval) -> Self {
        Safeguard { settings, ..Safeguard::default() }
    }

    /// How long the input must stay unchanged to be believed ([`MassRemoval::patience`]).
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.settings.patience
    }

    /// Records that objects cause these Frontends to lose what they have. Forgotten when that has happened, or when
    /// they have endpoints again at the next check.
    pub(crate) fn believe(&mut self, keys: impl IntoIterator<Item = FrontendKey>) {
        self.believed.extend(keys);
    }

    /// Confirms the deletions that are currently held back. Returns the number of their Frontends.
    pub(crate) fn confirm(&mut self) -> usize {
        let count = self.held().count();
        self.lost.confirm();
        self.believed.extend(std::mem::take(&mut self.inherited).into_keys());
        self.believed.extend(std::mem::take(&mut self.unreadable).into_keys());
        count
    }

    /// The Frontends that are held back, each with its start.
    pub(crate) fn held(&self) -> impl Iterator<Item = (FrontendKey, Moment)> {
        let lost = self.lost.held();
        let unreadable = self.unreadable.iter().filter(|(key, _)| !lost.contains_key(key));
        let is_other = |key| !lost.contains_key(key) && !self.unreadable.contains_key(key);
        let inherited = self.inherited.iter().filter(move |(key, _)| is_other(*key));
        lost.iter().chain(unreadable).chain(inherited).map(|(key, since)| (*key, *since))
    }

    /// When a held Frontend follows the input if nothing changes; `None`: only when confirmed, or when an object can be
    /// read.
    pub(crate) fn until(&self, key: &FrontendKey, since: Moment) -> Option<Moment> {
        self.patience().filter(|_| !self.unreadable.contains_key(key)).map(|patience| since.saturating_add(patience))
    }

    /// Returns what this pass must leave in the kernel. `losing`: what it would remove. `Some` while anything is held
    /// back, even if this pass would not remove it, since other changes may delete what it needs.
    ///
    /// O(`losing`); with many, or while something is held back, O(everything).
    pub(crate) fn check(
        &mut self,
        losing: impl IntoIterator<Item = (FrontendKey, Loss)>,
        kernel: &dyn Kernel,
        store: &Store,
        desired: &Desired,
        now: Moment,
    ) -> Option<Stopped> {
        let is_unexplained = |key: &FrontendKey| is_unexplained(key, kernel, store, desired);
        // Endpoints removed because other slices of a Service are missing are explained, but must be confirmed too.
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
            .gather();
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

    /// Holds back new losses if they are too many together with those held back already; otherwise later deletions
    /// would each seem few.
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
        let held: BTreeSet<FrontendKey> = self.held().map(|(key, _)| key).gather();
        if held.is_empty() {
            return None;
        }
        let inherited: BTreeSet<FrontendKey> = self.inherited.keys().chain(self.unreadable.keys()).copied().gather();
        let wanted = desired.frontends().filter(|of| kernel.serves(&of.key).is_some()).count();
        let unwanted = inherited.iter().filter(|key| desired.frontend(key).is_none()).count();
        let (of, has_end) = (wanted.saturating_add(unwanted), self.settings.patience.is_some());
        Some(Stopped { of, has_end, unreadable: self.unreadable.len(), held, inherited })
    }
}

struct Unreadable<'a> {
    service: bool,
    /// The Services of slices; `None` stands for any Service.
    slices: BTreeSet<Option<&'a ObjectKey>>,
}

impl<'a> Unreadable<'a> {
    fn of(store: &'a Store) -> Self {
        Unreadable { service: store.lacks_service(), slices: store.services_lacking_slices().gather() }
    }

    /// Whether one of them may explain that the kernel serves a Frontend, or has endpoints for it.
    fn may_have(&self, key: &FrontendKey, kernel: &dyn Kernel, desired: &Desired) -> bool {
        if !self.service && self.slices.is_empty() {
            return false;
        }
        let Some(has_endpoints) = kernel.serves(key) else { return false };
        let (Some(frontend), Some(owner)) = (desired.frontend(key), desired.owner(key)) else { return self.service };
        let loses_last = || self.slices.contains(&None) && frontend.endpoints().is_empty();
        has_endpoints && (self.slices.contains(&Some(owner)) || loses_last())
    }
}

/// Whether the kernel serves a Frontend that is not desired, or has endpoints for one that is desired without any
/// because no EndpointSlice mentions it.
fn is_unexplained(key: &FrontendKey, kernel: &dyn Kernel, store: &Store, desired: &Desired) -> bool {
    let Some(has_endpoints) = kernel.serves(key) else { return false };
    let Some(frontend) = desired.frontend(key) else { return true };
    let is_silent = |service| {
        store.frontends_of(service).is_none() && store.slices_of(service).all(|slice| slice.family != key.family())
    };
    frontend.endpoints().is_empty() && has_endpoints && desired.owner(key).is_some_and(is_silent)
}

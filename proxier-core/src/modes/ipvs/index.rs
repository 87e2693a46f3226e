//! Counts objects that Frontends and Services share, and tracks changes since the last write.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipset::Element;
use ipvs::VirtualServerKey;
use ipvs::model::{Persistence, Scheduler, SchedulerFlags, VirtualServerConfig};

use super::lower::{entries_of_mark, frontend_entries, needs_entries, real_servers, service_entries};
use super::observed::Observed;
use super::servers::Server;
use super::sets::SetKey;
use super::split::{self, Marks};
use crate::config::{Config, RulesBy, usual_flags};
use crate::modes::shared::frontends::{count, uncount};
use crate::net::{EndpointKey, FrontendKey};
use crate::pack::pack;
use crate::service::{Compiled, Desired, Frontend, FrontendObserver};

/// Objects that Frontends and Services share. An update costs O(changed Services).
///
/// Services share objects: two may use one load-balancer address with different ports, and one pod may be in many.
/// Shared objects are counted and removed with their last user.
///
/// Two values with the same Services compare equal, regardless of how they were built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// The configuration of a virtual server without affinity.
    server: VirtualServerConfig,
    pub(super) addresses: BTreeMap<IpAddr, usize>,
    pub(super) elsewhere: BTreeMap<IpAddr, usize>,
    pub(super) sets: BTreeMap<SetKey, BTreeMap<Element, usize>>,
    pub(super) barred: BTreeSet<VirtualServerKey>,
    by_table: bool,
    /// Whether Frontends that need no entry have none.
    only_needed: bool,
    /// Whether Frontends are split where possible ([`split`]).
    pub(super) splits: bool,
    pub(super) marks: Marks,
    /// Frontends that should be split, and are not.
    pub(super) unmarked: BTreeSet<FrontendKey>,
}

/// Changes of an update: the objects for which the kernel may have to change.
///
/// An object that an update left unchanged is not in here, even if its Service was compiled again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed {
    /// Virtual servers that are new, removed, or have another configuration or other real servers. One that several
    /// Services claim may be in here unchanged when more than one of them was refreshed at once.
    pub virtual_servers: BTreeSet<VirtualServerKey>,
    /// Addresses on the dummy device that are new or removed.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses that another interface got or lost, or that Services started or stopped requesting.
    pub elsewhere: BTreeSet<IpAddr>,
    /// Entries that were added or removed.
    pub entries: BTreeSet<(SetKey, Element)>,
    /// Anything may have changed, and nothing is recorded: before the first comparison, which is of everything.
    is_all: bool,
}

impl Changed {
    /// Whether anything may have changed.
    pub fn is_all(&self) -> bool {
        self.is_all
    }
}

/// Objects to compare.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// Everything.
    All,
    /// Only what changed: costs O(changed). A missing set is created if it gets an entry.
    Changed(&'a Changed),
}

/// Records a change. What changes twice has not changed.
fn toggle<T: Ord>(set: &mut BTreeSet<T>, value: T) {
    if !set.remove(&value) {
        set.insert(value);
    }
}

/// An index with a record of its changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The index.
    pub index: Index,
    /// Its changes since the last comparison.
    pub changed: Changed,
}

impl Recorded {
    /// Creates an index without Services.
    pub fn new(config: &Config) -> Self {
        Recorded { index: Index::new(config), changed: Changed { is_all: true, ..Changed::default() } }
    }
}

impl FrontendObserver for Recorded {
    /// Applies a change of a Service's entries that belong to no Frontend.
    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        let Recorded { index, changed } = self;
        let entries = |compiled: &Compiled| service_entries(compiled, index.only_needed);
        let (before, after) = (before.map(entries), after.map(entries));
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        for (entries, adds) in [(after.difference(&before), true), (before.difference(&after), false)] {
            for (set, element) in entries {
                if index.count_entry(*set, element, adds) && !changed.is_all {
                    toggle(&mut changed.entries, (*set, element.clone()));
                }
            }
        }
    }

    /// Applies a change of a Frontend. What stays is added before it is removed, so that its count never reaches zero.
    fn frontend(&mut self, before: Option<&Arc<Frontend>>, after: Option<&Arc<Frontend>>) {
        let Recorded { index, changed } = self;
        let [before, after] = [before, after].map(|of| of.map(|frontend| &**frontend));
        let Some(frontend) = after.or(before).map(|frontend| frontend.key) else { return };
        let key = VirtualServerKey::from(frontend);
        let is_all = changed.is_all;
        let servers = |index: &Index, of: Option<&Frontend>| {
            let (mark, of) = (index.marks.server(&frontend), of.filter(|_| !is_all));
            let servers = [Some(key), mark].map(|key| index.lower(key?, of?));
            // Endpoints that are not selected may be among the real servers until their flows end.
            (servers, of.and_then(|of| of.unselected.clone()))
        };
        let mark_before = before.and_then(|before| index.mark_of(before));
        let servers_before = servers(index, before);
        if after.is_some_and(|after| index.splits(after)) {
            index.marks.give(frontend);
        }
        let mark_after = after.and_then(|after| index.mark_of(after));
        index.note_unmarked(&frontend, after);
        if servers_before != servers(index, after) {
            // Also one that drains.
            let mark = index.marks.server(&frontend);
            changed.virtual_servers.extend(mark.into_iter().chain([key]));
        }
        let is_barred = |frontend: Option<&Frontend>| frontend.is_some_and(Frontend::is_barred_from_node);
        match (is_barred(before), is_barred(after)) {
            (false, true) => drop(index.barred.insert(key)),
            (true, false) => drop(index.barred.remove(&key)),
            _ => {}
        }
        for (frontend, mark, adds) in [(after, mark_after, true), (before, mark_before, false)] {
            let Some(frontend) = frontend else { continue };
            let address = frontend.key.address;
            let follow = |counts: &mut BTreeMap<IpAddr, usize>| {
                if adds { count(counts, address) } else { uncount(counts, &address) }
            };
            if frontend.is_virtual() && follow(&mut index.addresses) && !is_all {
                toggle(&mut changed.addresses, address);
            }
            if frontend.is_elsewhere() && follow(&mut index.elsewhere) && !is_all {
                toggle(&mut changed.elsewhere, address);
            }
            for (set, element) in index.entries_of(frontend, mark) {
                if index.count_entry(set, &element, adds) && !is_all {
                    toggle(&mut changed.entries, (set, element));
                }
            }
        }
    }
}

impl Index {
    /// Creates an index without Services.
    pub fn new(config: &Config) -> Self {
        Index {
            server: VirtualServerConfig::new(config.ipvs.scheduler)
                .with_scheduler_flags(usual_flags(config.ipvs.scheduler)),
            addresses: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            sets: BTreeMap::new(),
            barred: BTreeSet::new(),
            by_table: config.ipvs.rules == RulesBy::Nftables,
            only_needed: config.makes_only_needed_rules(),
            splits: config.splits_local(),
            marks: Marks::new(config.ipvs.mark_range),
            unmarked: BTreeSet::new(),
        }
    }

    /// Rebuilds everything to release memory. Call it after a large change.
    pub fn compact(&mut self) {
        pack(&mut self.addresses);
        pack(&mut self.elsewhere);
        self.sets.values_mut().for_each(pack);
    }

    /// Takes over the marks that Frontends have in the kernel. Call it before a comparison of everything.
    pub(crate) fn settle_marks(&mut self, desired: &Desired, observed: &Observed) {
        let recorded: Vec<_> = observed.records().filter_map(split::recorded).collect();
        if recorded.is_empty() && !self.splits {
            return;
        }
        let ours: BTreeSet<_> = observed.records().filter_map(split::server_of).collect();
        let of_marks = observed.virtual_servers.keys().filter(|key| key.addr().is_none());
        let others = of_marks.filter(|key| !ours.contains(key)).copied().collect();
        let marked: Vec<&Frontend> = desired.frontends().filter(|frontend| self.splits(frontend)).collect();
        let before: Vec<_> = marked.iter().map(|frontend| self.marks.server(&frontend.key)).collect();
        let places: Vec<FrontendKey> = marked.iter().map(|frontend| frontend.key).collect();
        self.marks.settle(recorded, others, &places);
        for (frontend, before) in marked.iter().zip(before) {
            let after = self.marks.server(&frontend.key);
            if before == after {
                continue;
            }
            for (server, adds) in [(after, true), (before, false)] {
                let Some(VirtualServerKey::Fwmark { mark, .. }) = server else { continue };
                for (set, element) in entries_of_mark(frontend, mark) {
                    self.count_entry(set, &element, adds);
                }
            }
        }
        for frontend in &marked {
            self.note_unmarked(&frontend.key, Some(frontend));
        }
    }

    fn entries_of(&self, frontend: &Frontend, mark: Option<VirtualServerKey>) -> Vec<(SetKey, Element)> {
        if self.only_needed && !needs_entries(frontend) {
            return Vec::new();
        }
        frontend_entries(frontend, self.by_table, mark)
    }

    /// Counts or uncounts an entry. Returns whether it is the first, or was the last.
    fn count_entry(&mut self, set: SetKey, element: &Element, adds: bool) -> bool {
        if adds {
            return count(self.sets.entry(set).or_default(), element.clone());
        }
        let Some(elements) = self.sets.get_mut(&set) else { return false };
        let was_last = uncount(elements, element);
        if elements.is_empty() {
            self.sets.remove(&set);
        }
        was_last
    }

    /// One of a Frontend's virtual servers, if it has that one.
    pub(super) fn lower(&self, key: VirtualServerKey, frontend: &Frontend) -> Option<Server> {
        let real_servers = real_servers(frontend, self.endpoints(&key, frontend)?.clone());
        Some(Server { config: self.config(frontend), real_servers })
    }

    fn config(&self, frontend: &Frontend) -> VirtualServerConfig {
        let mut config = self.server;
        config.persistence = frontend.affinity_secs.map(Persistence::new);
        if let Some(weights) = &frontend.weights {
            let asked = frontend.balancing.as_ref();
            let is_free = asked.is_none_or(|asked| asked.scheduler.is_none() && asked.scheduler_flags.is_none());
            if is_free && weights.iter().any(|(_, weight)| *weight > 1) {
                config.scheduler = weighted(config.scheduler);
            }
        }
        let Some(asked) = &frontend.balancing else { return config };
        if let Some(scheduler) = asked.scheduler {
            config.scheduler = scheduler;
            config.scheduler_flags = usual_flags(scheduler);
        }
        if let Some(flags) = asked.scheduler_flags {
            // Without its fallback, this scheduler loses new connections while a real server drains.
            let needed = usual_flags(config.scheduler) & SchedulerFlags::MH_FALLBACK;
            config.scheduler_flags = flags | needed;
        }
        config.persistence = asked.persistence_secs.map(Persistence::new).or(config.persistence);
        config
    }

    /// Whether a Frontend should have a mark.
    fn splits(&self, frontend: &Frontend) -> bool {
        self.splits && frontend.can_split()
    }

    /// Records whether a Frontend lacks a mark that it should have.
    fn note_unmarked(&mut self, key: &FrontendKey, frontend: Option<&Frontend>) {
        if !self.splits {
            return;
        }
        if frontend.is_some_and(|frontend| self.why_unmarked(frontend).is_some()) {
            self.unmarked.insert(*key);
        } else {
            self.unmarked.remove(key);
        }
    }

    /// Reason why a Frontend that the configuration asks to split is not split.
    pub(super) fn why_unmarked(&self, frontend: &Frontend) -> Option<&'static str> {
        if !self.splits || !frontend.would_split() || self.mark_of(frontend).is_some() {
            return None;
        }
        Some(if frontend.keeps_clients() {
            "clients stay with their endpoints, and such a virtual server of a firewall mark does not translate ports"
        } else if frontend.returns_directly {
            "endpoints answer clients by themselves"
        } else {
            "ipvs.markRange has no mark left"
        })
    }

    /// The virtual server of a Frontend's mark, if it is split.
    pub(super) fn mark_of(&self, frontend: &Frontend) -> Option<VirtualServerKey> {
        self.marks.server(&frontend.key).filter(|_| self.splits(frontend))
    }

    /// The endpoints of one of a Frontend's virtual servers, if it has that one.
    pub(super) fn endpoints<'a>(
        &self,
        key: &VirtualServerKey,
        frontend: &'a Frontend,
    ) -> Option<&'a Arc<[EndpointKey]>> {
        // The usual case, asked for each virtual server of each full pass.
        if !self.splits {
            return key.addr().is_some().then(|| frontend.endpoints());
        }
        match (key, self.mark_of(frontend)) {
            (VirtualServerKey::Fwmark { .. }, mark) if mark != Some(*key) => None,
            (VirtualServerKey::Fwmark { .. }, _) => Some(&frontend.local),
            (_, Some(_)) => Some(&frontend.cluster),
            (_, None) => Some(frontend.endpoints()),
        }
    }
}

/// The same scheduler with weights, if it supports only weight 0.
fn weighted(scheduler: Scheduler) -> Scheduler {
    match scheduler {
        Scheduler::RoundRobin => Scheduler::WeightedRoundRobin,
        Scheduler::LeastConnection => Scheduler::WeightedLeastConnection,
        other => other,
    }
}

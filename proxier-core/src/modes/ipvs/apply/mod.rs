//! Carries out a plan.

mod local;
mod operations;
mod tables;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipset::Element;
use ipvs::{RealServerKey, VirtualServerKey};

use crate::modes::ipvs::guards;
use crate::modes::ipvs::hold_back::Needs;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::plan::{Phase, Plan, RulesChange, Stage};
use crate::modes::ipvs::rules::Capabilities;
use crate::modes::ipvs::sets::{NamedSet, SetKey, SetKind};
use crate::modes::ipvs::split as marks;
use crate::modes::ipvs::wanted::Wanted;
use crate::modes::shared::names::Names;
use crate::net::Family;
use crate::plan::report::{Applied, Lack};
use crate::plan::step::{Action, Part, Step};
use crate::ports::{ItemFailure, ItemFailures, PortError, PortErrorKind, Ports, Rules, Sets};
use crate::service::Frontend;
use crate::snapshot::is_usable_by_service;

/// Effects of carrying out a plan that only IPVS mode needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effects {
    /// Real servers that drain from now on.
    pub drained: Vec<(VirtualServerKey, RealServerKey)>,
    /// Real servers that do not drain any more: they are served again, or gone.
    pub settled: Vec<(VirtualServerKey, RealServerKey)>,
    /// Families whose rules the kernel took only without some matches ([`RulesChange::without`]), with what it took.
    pub reduced: Vec<(Family, Capabilities)>,
    /// Families whose tables could not be written.
    pub unwritten: BTreeSet<Family>,
    /// Virtual servers that the kernel was asked to make, with any answer.
    pub tried: Vec<VirtualServerKey>,
    /// Virtual servers that were deleted.
    pub deleted: Vec<VirtualServerKey>,
    /// Number of times that the kernel contradicted the known state: an object to add was there, one to change or delete was not.
    /// All of these were brought to the wanted state, but there may be more.
    pub surprises: usize,
}

/// Applies a plan, stage by stage, and records in `observed` what the kernel confirmed.
///
/// Every operation has an outcome. After a failure, operations that do not depend on it go on; those that do are skipped
/// and say why ([`PortErrorKind::Skipped`]). An addition that finds the object there updates it; a change that finds it gone
/// adds it; a deletion that finds it gone is done. A full set is replaced by a larger one.
///
/// A virtual server that cannot be deleted keeps its entries and its address: they show that it is this proxy's, and guard it.
/// Without them it would count as foreign and stay, open to all clients.
///
/// A virtual server of a mark is made only once its mark is recorded, and packets get the mark only once it is made; they lose it
/// before it goes.
///
/// A virtual server with source ranges is made only once they hold: the kernel has its entry in [`SetKind::LoadBalancerFirewall`] and
/// the rules it needs ([`Plan::guarded`]). A whole network is made local only once the rules that guard it are there
/// ([`Plan::guarded_networks`]).
///
/// Every address of a Service always reaches this host: the new binding comes before the old one goes.
///
/// After a failure or a surprise ([`Effects::surprises`]) `observed` may be out of date: read it again.
pub fn apply(
    plan: &Plan,
    wanted: &Wanted<'_>,
    observed: &mut Observed,
    names: &Names<'_>,
    ports: &mut Ports<'_>,
) -> (Applied, Effects) {
    let mut run = Run {
        plan,
        wanted,
        observed,
        names,
        applied: Applied::default(),
        effects: Effects::default(),
        has_device: true,
        missing: BTreeSet::new(),
        unguarded: plan.rules_put_off.clone(),
        unserved: BTreeSet::new(),
        left: Vec::new(),
        needs: Needs::default(),
    };
    for (phase, stage) in &plan.stages {
        run.carry_out(*phase, stage, ports);
    }
    run.observed.basis = guards::nft::Basis::default();
    (run.applied, run.effects)
}

struct Run<'a, 'n> {
    plan: &'a Plan,
    wanted: &'a Wanted<'a>,
    observed: &'a mut Observed,
    names: &'a Names<'n>,
    applied: Applied,
    effects: Effects,
    /// The device could be created, if it had to be.
    has_device: bool,
    /// Sets that could not be created.
    missing: BTreeSet<SetKey>,
    /// Families whose rules or tables were put off, or could not be written.
    unguarded: BTreeSet<Family>,
    /// Addresses without any virtual server, although one was to be made.
    unserved: BTreeSet<IpAddr>,
    /// Virtual servers that could not be deleted.
    left: Vec<VirtualServerKey>,
    /// Addresses and entries that these need.
    needs: Needs,
}

/// Whether a set is created with its entries.
fn is_filled(stage: &Stage, set: SetKey) -> bool {
    set.kind == SetKind::NodePortServed && stage.sets.contains(&set) && stage.entries.contains_key(&set)
}

/// Reason why an operation was not tried: something it depends on failed.
fn skipped(message: impl fmt::Display) -> PortError {
    PortError::new(PortErrorKind::Skipped, message)
}

fn needed() -> PortError {
    skipped("stays, because it marks or guards a virtual server that could not be deleted")
}

fn not_without_set(set: NamedSet) -> PortError {
    skipped(format_args!("not tried, because set {set} could not be created"))
}

fn not_without_virtual_server(key: &VirtualServerKey) -> PortError {
    skipped(format_args!("not tried, because virtual server {key} could not be made"))
}

/// Tries items; returns those that are done, and those that were refused.
fn divide<T>(items: Vec<T>, try_all: impl FnOnce(&[T]) -> ItemFailures) -> (Vec<T>, Vec<(T, PortError)>) {
    let mut failures = try_all(&items);
    failures.sort_by_key(|failure| failure.index);
    let mut failures = failures.into_iter().peekable();
    let (mut done, mut refused) = (Vec::with_capacity(items.len()), Vec::new());
    for (index, item) in items.into_iter().enumerate() {
        match failures.next_if(|failure| failure.index == index) {
            Some(ItemFailure { error, .. }) => refused.push((item, error)),
            None => done.push(item),
        }
    }
    (done, refused)
}

impl<'a> Run<'a, '_> {
    /// Carries out a stage.
    fn carry_out(&mut self, phase: Phase, stage: &'a Stage, ports: &mut Ports<'_>) {
        let device = &self.plan.names.device;
        if stage.device && phase.adds() {
            let outcome = ports.links.create_device(device.as_str());
            self.has_device = self.applied.note(|| Step::device(device), outcome);
        }
        if let Some(timeouts) = &stage.timeouts {
            let outcome = ports.ipvs.set_timeouts(timeouts);
            self.applied.note(|| Step::timeouts(timeouts), outcome);
        }
        self.create_sets(stage, ports.sets);
        match self.plan.guards {
            guards::Kind::Nft => self.write_tables(phase, stage, ports.tables),
            guards::Kind::Programs => {
                for (set, elements) in stage.ordered_entries(phase) {
                    if !phase.adds() {
                        self.delete_entries(*set, elements, ports.sets);
                    } else if !is_filled(stage, *set) {
                        self.add_entries(*set, elements, ports.sets);
                    }
                }
            }
        }
        self.restore(&stage.rules, ports);
        self.operations(&stage.servers, ports.ipvs);
        if phase.adds() {
            self.bind(&stage.addresses, ports);
            self.add_routes(&stage.routes, ports);
        } else {
            self.unbind(&stage.addresses, ports);
            self.delete_routes(&stage.routes, ports);
        }
        let is_in_use = || self.observed.addresses.iter().any(|address| is_usable_by_service(*address));
        if stage.device && !phase.adds() && !is_in_use() {
            let outcome = ports.links.delete_device(device.as_str());
            if self.applied.note(|| Step::delete_device(device), outcome) {
                self.observed.addresses.clear();
            }
        }
    }

    fn named(&self, set: SetKey) -> NamedSet {
        set.named(self.plan.names.prefix)
    }

    /// Tries the items that nothing stands against (`why_not`) and notes the outcomes. Returns the items that are done, and those that were
    /// refused.
    fn try_items<T>(
        &mut self,
        items: Vec<T>,
        why_not: impl Fn(&Self, &T) -> Option<PortError>,
        try_all: impl FnOnce(&mut Self, &[T]) -> ItemFailures,
        step: impl Fn(&T) -> Step,
    ) -> (Vec<T>, Vec<T>) {
        let mut possible = Vec::with_capacity(items.len());
        for item in items {
            match why_not(self, &item) {
                Some(why) => self.applied.fail(step(&item), why),
                None => possible.push(item),
            }
        }
        if possible.is_empty() {
            return (Vec::new(), Vec::new());
        }
        let (done, refused) = divide(possible, |items| try_all(self, items));
        if let Some(Step { part, action, .. }) = done.first().map(&step) {
            self.applied.count(part, action, done.len());
        }
        let refused = refused.into_iter().map(|(item, error)| {
            self.applied.fail(step(&item), error);
            item
        });
        (done, refused.collect())
    }

    /// Restores rules, except those that still guard a virtual server that could not be deleted.
    fn restore(&mut self, rules: &'a [RulesChange], ports: &mut Ports<'_>) {
        let why_not = |run: &Self, change: &&RulesChange| {
            // No rule refers to this proxy's own set.
            let is_referred = |set: &&SetKey| set.family == change.family && set.kind.is_of_kube_proxy();
            let is_guarded = |key: &&VirtualServerKey| {
                Family::from(key.family()) == change.family && run.observed.firewall_entry(key).is_some()
            };
            if let Some(set) = run.missing.iter().find(is_referred) {
                return Some(not_without_set(run.named(*set)));
            }
            let key = run.left.iter().find(is_guarded)?;
            Some(skipped(format_args!("stay, because they guard virtual server {key}, which could not be deleted")))
        };
        let restore = |run: &mut Self, changes: &[&RulesChange]| {
            let transactions: Vec<_> =
                changes.iter().map(|change| (change.family, change.changes.transaction())).collect();
            let outcomes = changes.iter().zip(ports.rules.restore_families(&transactions)).enumerate();
            let failures = outcomes.filter_map(|(index, (change, outcome))| {
                let outcome = outcome.or_else(|error| run.restore_without(change, error, ports.rules));
                Some(ItemFailure { index, error: outcome.err()? })
            });
            failures.collect()
        };
        self.unguarded.extend(rules.iter().map(|change| change.family));
        let (done, _) = self.try_items(rules.iter().collect(), why_not, restore, |change| Step::rules(change));
        for change in done {
            self.applied.restored.push(change.family);
            self.unguarded.remove(&change.family);
        }
    }

    /// Tries rules that the kernel refused without optional matches that it may lack.
    fn restore_without(
        &mut self,
        change: &RulesChange,
        refused: PortError,
        rules: &mut dyn Rules,
    ) -> Result<(), PortError> {
        // Errors of other kinds do not mean that the kernel would refuse the same again.
        let lacks =
            matches!(refused.kind(), PortErrorKind::NotFound | PortErrorKind::Unavailable | PortErrorKind::Invalid);
        let mut others = change.without.iter().filter(|_| lacks);
        let taken = others.find(|(_, changes)| rules.restore(change.family, changes.transaction()).is_ok());
        let Some((capabilities, _)) = taken else { return Err(refused) };
        self.effects.reduced.push((change.family, *capabilities));
        self.applied.lacks.push(Lack::new(capabilities.lost(), refused));
        Ok(())
    }

    /// Reason why a virtual server must not be made: its source ranges would not hold.
    fn not_guarded(&self, key: &VirtualServerKey) -> Option<PortError> {
        let frontend = self.wanted.frontend(key);
        let has_ranges = frontend.is_some_and(|frontend| frontend.source_ranges.is_some());
        if self.plan.guarded.contains(key) && self.unguarded.contains(&key.family().into()) {
            return Some(skipped(format_args!(
                "{key} is not served, because the rules for its loadBalancerSourceRanges are not in place"
            )));
        }
        // Guards know addresses, not marks.
        let mut at = *key;
        if let VirtualServerKey::Fwmark { mark, .. } = *key {
            let (set, record) = marks::record(&self.wanted.frontend_key(key)?, mark);
            if !self.observed.has_entry(set, &record) {
                return Some(skipped(format_args!(
                    "{key} is not made, because nothing would show that it is ours: its mark could not be recorded"
                )));
            }
            at = frontend?.key.into();
        }
        let key = &at;
        let is_barred = self.plan.guards == guards::Kind::Nft && frontend.is_some_and(Frontend::is_barred_from_node);
        let lacks = if self.observed.firewall_entry(key).is_none() {
            has_ranges.then_some(SetKind::LoadBalancerFirewall)
        } else {
            (is_barred && !self.observed.is_barred_from_node(key)).then_some(SetKind::LoadBalancerNotNode)
        };
        let set = SetKey::new(key.family().into(), lacks?);
        let set = self.plan.guards.name_of(set, &self.plan.names);
        Some(skipped(format_args!(
            "{key} is not served, because its loadBalancerSourceRanges could not be put into set {set}"
        )))
    }

    fn create_sets(&mut self, stage: &Stage, sets: &mut dyn Sets) {
        for set in &stage.sets {
            match stage.entries.get(set).filter(|_| is_filled(stage, *set)) {
                Some(elements) => self.create_filled(*set, elements, sets),
                None => self.create_set(*set, sets),
            }
        }
    }

    fn create_set(&mut self, set: SetKey, sets: &mut dyn Sets) {
        let named = self.named(set);
        let outcome = sets.create(named, self.wanted.entries(set).count());
        if self.applied.note(|| Step::create_set(named), outcome) {
            self.observed.sets.entry(set).or_default();
        } else {
            self.missing.insert(set);
        }
    }

    /// Creates a set with its entries in one step. A set that lacked some of them for a moment would show those virtual
    /// servers as foreign ([`Observed::owns`]).
    fn create_filled(&mut self, set: SetKey, elements: &[Element], sets: &mut dyn Sets) {
        let named = self.named(set);
        let outcome = self.replace(set, elements, sets);
        let count = outcome.as_ref().copied().unwrap_or_default();
        if self.applied.note(|| Step::create_set(named), outcome.map(drop)) {
            self.applied.count(Part::Entry, Action::Add, count);
        } else {
            self.missing.insert(set);
        }
    }

    /// Writes a set at once, with what it has, what is wanted, and these entries. Returns the number of its entries.
    fn replace(&mut self, set: SetKey, elements: &[Element], sets: &mut dyn Sets) -> Result<usize, PortError> {
        // Entries to delete stay for now: virtual servers may still need them.
        let there = self.observed.sets.get(&set).into_iter().flatten();
        let all: BTreeSet<&Element> = there.chain(self.wanted.entries(set)).chain(elements).collect();
        sets.replace(self.named(set), &all.iter().copied().collect::<Vec<_>>())?;
        let all: BTreeSet<Element> = all.into_iter().cloned().collect();
        let count = all.len();
        self.observed.sets.insert(set, all);
        Ok(count)
    }

    /// Adds entries. A full set is replaced by a larger one.
    fn add_entries(&mut self, set: SetKey, elements: &[Element], sets: &mut dyn Sets) {
        let named = self.named(set);
        let why_not = |run: &Self, _: &&Element| run.missing.contains(&set).then(|| not_without_set(named));
        let add = |run: &mut Self, possible: &[&Element]| {
            let mut failures = sets.add(named, possible);
            if failures.iter().any(|failure| failure.error.kind() == PortErrorKind::Full) {
                match run.replace(set, elements, sets) {
                    Ok(_) => failures.clear(),
                    Err(error) => failures.iter_mut().for_each(|failure| failure.error = error.clone()),
                }
            }
            failures
        };
        let (done, _) =
            self.try_items(elements.iter().collect(), why_not, add, |element| Step::entry(Action::Add, named, element));
        if !done.is_empty() {
            self.observed.sets.entry(set).or_default().extend(done.into_iter().cloned());
        }
    }

    fn delete_entries(&mut self, set: SetKey, elements: &[Element], sets: &mut dyn Sets) {
        let named = self.named(set);
        let why_not = |run: &Self, element: &&Element| run.needs.entry(set, element).then(needed);
        let delete = |_: &mut Self, elements: &[&Element]| sets.delete(named, elements);
        let (done, _) = self.try_items(elements.iter().collect(), why_not, delete, |element| {
            Step::entry(Action::Delete, named, element)
        });
        if let Some(entries) = self.observed.sets.get_mut(&set) {
            for element in done {
                entries.remove(element);
            }
        }
    }
}

//! Carries out a plan.

mod local;
mod operations;
mod skipped;
mod tables;

use std::collections::BTreeSet;

use ipset::Element;
use ipvs::{RealServerKey, VirtualServerKey};

use crate::config::KernelNames;
use crate::modes::ipvs::guards;
use crate::modes::ipvs::held::Needs;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::plan::{Plan, RulesChange};
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

/// Carries out a plan, stage by stage, and notes in `observed` what the kernel confirmed.
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
        wanted,
        observed,
        names,
        kernel: &plan.names,
        applied: Applied::default(),
        effects: Effects::default(),
        missing: BTreeSet::new(),
        unguarded: plan.rules_put_off.clone(),
        guarded: &plan.guarded,
        by: plan.guards,
    };
    let mut device = true;
    if plan.create_device {
        let outcome = ports.links.create_device(plan.names.device.as_str());
        device = run.applied.note(|| Step::device(&plan.names.device), outcome);
    }
    if let Some(timeouts) = &plan.timeouts {
        let outcome = ports.ipvs.set_timeouts(timeouts);
        run.applied.note(|| Step::timeouts(timeouts), outcome);
    }
    let mut filled = BTreeSet::new();
    for set in &plan.create_sets {
        match plan.add_entries.get(set).filter(|_| set.kind == SetKind::NodePortServed) {
            Some(elements) => {
                filled.insert(*set);
                run.create_filled(*set, elements, ports.sets);
            }
            None => run.create_set(*set, ports.sets),
        }
    }
    match plan.guards {
        guards::Kind::Programs => {
            for (set, elements) in plan.add_entries.iter().filter(|(set, _)| !filled.contains(set)) {
                run.add_entries(*set, elements, ports.sets);
            }
        }
        guards::Kind::Nft => run.add_to_tables(plan, ports.tables),
    }
    run.operations(&plan.serve_split, ports.ipvs);
    if plan.guards == guards::Kind::Nft {
        run.start_splitting(plan, ports.tables);
    }
    let unserved_first = run.operations(&plan.serve_first, ports.ipvs).unserved;
    run.bind(&plan.bind_first, device, &unserved_first, ports);
    run.operations(&plan.retire_first, ports.ipvs);
    let refused = run.restore(&plan.rules, ports);
    run.unguarded.extend(refused);
    let mut unserved = run.operations(&plan.serve, ports.ipvs).unserved;
    run.bind(&plan.bind, device, &unserved, ports);
    unserved.extend(unserved_first.into_iter().filter(|address| !run.serves(*address)));
    run.add_routes(plan, &unserved, ports);
    run.write_last(&plan.last_tables, ports.tables);
    let mut left = run.operations(&plan.retire, ports.ipvs).left;
    let mut needs = Needs::default();
    for key in &left {
        needs.add(key, run.observed);
    }
    if plan.guards == guards::Kind::Nft {
        run.stop_splitting(plan, &needs, ports.tables);
    }
    left.extend(run.operations(&plan.retire_split, ports.ipvs).left);
    for key in &left {
        needs.add(key, run.observed);
    }
    match plan.guards {
        guards::Kind::Programs => {
            for (set, elements) in plan.delete_entries.iter().rev() {
                run.delete_entries(*set, elements, &needs, ports.sets);
            }
        }
        guards::Kind::Nft => run.delete_from_tables(plan, &needs, ports.tables),
    }
    run.relax(&plan.relax, &left, ports);
    run.unbind(&plan.unbind, &needs, ports);
    run.delete_routes(&plan.delete_routes, &needs, ports);
    if plan.delete_device && run.observed.addresses.iter().all(|address| !is_usable_by_service(*address)) {
        let outcome = ports.links.delete_device(plan.names.device.as_str());
        if run.applied.note(|| Step::delete_device(&plan.names.device), outcome) {
            run.observed.addresses.clear();
        }
    }
    run.observed.basis = guards::nft::Basis::default();
    (run.applied, run.effects)
}

struct Run<'a, 'n> {
    wanted: &'a Wanted<'a>,
    observed: &'a mut Observed,
    names: &'a Names<'n>,
    /// Names of the device and the sets.
    kernel: &'a KernelNames,
    applied: Applied,
    effects: Effects,
    /// Sets that could not be created.
    missing: BTreeSet<SetKey>,
    /// Families whose rules were put off, or could not be restored.
    unguarded: BTreeSet<Family>,
    /// Virtual servers that need those rules ([`Plan::guarded`]).
    guarded: &'a BTreeSet<VirtualServerKey>,
    /// Variant that has the sets.
    by: guards::Kind,
}

/// Splits items into done and failed; sorts the failures by index.
fn split<T>(items: &[T], mut failures: ItemFailures) -> (Vec<&T>, Vec<(&T, PortError)>) {
    failures.sort_by_key(|failure| failure.index);
    let mut failures = failures.into_iter().peekable();
    let (mut done, mut failed) = (Vec::with_capacity(items.len()), Vec::new());
    for (index, item) in items.iter().enumerate() {
        match failures.next_if(|failure| failure.index == index) {
            Some(ItemFailure { error, .. }) => failed.push((item, error)),
            None => done.push(item),
        }
    }
    (done, failed)
}

impl Run<'_, '_> {
    fn named(&self, set: SetKey) -> NamedSet {
        set.named(self.kernel.prefix)
    }

    /// Restores rules; returns the families whose rules could not be restored.
    fn restore(&mut self, rules: &[RulesChange], ports: &mut Ports<'_>) -> BTreeSet<Family> {
        let mut possible = Vec::with_capacity(rules.len());
        for change in rules {
            // No rule refers to this proxy's own set.
            let referred = |set: &&SetKey| set.family == change.family && set.kind.is_of_kube_proxy();
            match self.missing.iter().find(referred) {
                Some(set) => self.applied.fail(Step::rules(change), skipped::not_without_set(self.named(*set))),
                None => possible.push(change),
            }
        }
        let transactions: Vec<_> =
            possible.iter().map(|change| (change.family, change.changes.transaction())).collect();
        let mut failed: BTreeSet<Family> = rules.iter().map(|change| change.family).collect();
        for (change, outcome) in possible.into_iter().zip(ports.rules.restore_families(&transactions)) {
            let outcome = outcome.or_else(|error| self.restore_without(change, error, ports.rules));
            if self.applied.note(|| Step::rules(change), outcome) {
                self.applied.restored.push(change.family);
                failed.remove(&change.family);
            }
        }
        failed
    }

    /// Restores rules that only lose something, except those that still guard one of the virtual servers `left`.
    fn relax(&mut self, rules: &[RulesChange], left: &[VirtualServerKey], ports: &mut Ports<'_>) {
        let guarded = |change: &RulesChange| {
            left.iter()
                .find(|key| Family::from(key.family()) == change.family && self.observed.firewall_entry(key).is_some())
                .copied()
        };
        let (mut possible, mut stay) = (Vec::new(), Vec::new());
        for change in rules {
            match guarded(change) {
                Some(key) => stay.push((change, key)),
                None => possible.push(change.clone()),
            }
        }
        for (change, key) in stay {
            self.applied.fail(Step::rules(change), skipped::guards(&key));
        }
        self.restore(&possible, ports);
    }

    /// Reason why a virtual server must not be made: its source ranges would not hold.
    fn not_guarded(&self, key: &VirtualServerKey) -> Option<PortError> {
        let frontend = self.wanted.frontend(key);
        let has_ranges = frontend.is_some_and(|frontend| frontend.source_ranges.is_some());
        if self.guarded.contains(key) && self.unguarded.contains(&key.family().into()) {
            return Some(skipped::not_without_rules(key));
        }
        // Guards know addresses, not marks.
        let mut at = *key;
        if let VirtualServerKey::Fwmark { mark, .. } = *key {
            let (set, record) = marks::record(&self.wanted.frontend_key(key)?, mark);
            if !self.observed.has_entry(set, &record) {
                return Some(skipped::not_without_record(key));
            }
            at = frontend?.key.into();
        }
        let key = &at;
        let is_barred = self.by == guards::Kind::Nft && frontend.is_some_and(Frontend::is_barred_from_node);
        let lacks = if self.observed.firewall_entry(key).is_none() {
            has_ranges.then_some(SetKind::LoadBalancerFirewall)
        } else {
            (is_barred && !self.observed.is_barred_from_node(key)).then_some(SetKind::LoadBalancerNotNode)
        };
        let set = SetKey::new(key.family().into(), lacks?);
        Some(skipped::not_without_entry(key, &self.by.name_of(set, self.kernel)))
    }

    /// After the kernel refused rules, tries them without optional matches that it may lack.
    fn restore_without(
        &mut self,
        change: &RulesChange,
        refused: PortError,
        rules: &mut dyn Rules,
    ) -> Result<(), PortError> {
        // Errors of other kinds do not mean that the kernel would refuse the same again.
        if !matches!(refused.kind(), PortErrorKind::NotFound | PortErrorKind::Unavailable | PortErrorKind::Invalid) {
            return Err(refused);
        }
        for (capabilities, changes) in &change.without {
            if rules.restore(change.family, changes.transaction()).is_ok() {
                self.effects.reduced.push((change.family, *capabilities));
                self.applied.lacks.push(Lack::new(capabilities.lost(), refused));
                return Ok(());
            }
        }
        Err(refused)
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
        let all: BTreeSet<&Element> = elements.iter().chain(self.wanted.entries(set)).collect();
        let refs: Vec<&Element> = all.iter().copied().collect();
        let named = self.named(set);
        let outcome = sets.replace(named, &refs);
        if self.applied.note(|| Step::create_set(named), outcome) {
            self.applied.count(Part::Entry, Action::Add, all.len());
            self.observed.sets.insert(set, all.into_iter().cloned().collect());
        } else {
            self.missing.insert(set);
        }
    }

    fn add_entries(&mut self, set: SetKey, elements: &[Element], sets: &mut dyn Sets) {
        let named = self.named(set);
        if self.missing.contains(&set) {
            for element in elements {
                self.applied.fail(Step::entry(Action::Add, named, element), skipped::not_without_set(named));
            }
            return;
        }
        let refs: Vec<&Element> = elements.iter().collect();
        let (done, mut failed) = split(&refs, sets.add(named, &refs));
        if failed.iter().any(|(_, error)| error.kind() == PortErrorKind::Full) {
            // Entries to delete stay for now: virtual servers may still need them.
            let there: BTreeSet<&Element> = self.observed.sets.get(&set).into_iter().flatten().collect();
            let all: Vec<&Element> =
                there.into_iter().chain(self.wanted.entries(set)).collect::<BTreeSet<_>>().into_iter().collect();
            match sets.replace(named, &all) {
                Ok(()) => {
                    self.applied.count(Part::Entry, Action::Add, elements.len());
                    let all = all.into_iter().cloned().collect();
                    self.observed.sets.insert(set, all);
                    return;
                }
                Err(error) => failed.iter_mut().for_each(|(_, why)| *why = error.clone()),
            }
        }
        self.applied.count(Part::Entry, Action::Add, done.len());
        if !done.is_empty() {
            let done = done.into_iter().map(|element| (*element).clone());
            self.observed.sets.entry(set).or_default().extend(done);
        }
        for (element, error) in failed {
            self.applied.fail(Step::entry(Action::Add, named, element), error);
        }
    }

    fn delete_entries(&mut self, set: SetKey, elements: &[Element], needs: &Needs, sets: &mut dyn Sets) {
        let named = self.named(set);
        let mut refs: Vec<&Element> = Vec::with_capacity(elements.len());
        for element in elements {
            if needs.entry(set, element) {
                self.applied.fail(Step::entry(Action::Delete, named, element), skipped::needed());
            } else {
                refs.push(element);
            }
        }
        let (done, failed) = split(&refs, sets.delete(named, &refs));
        self.applied.count(Part::Entry, Action::Delete, done.len());
        if let Some(entries) = self.observed.sets.get_mut(&set) {
            for element in done {
                entries.remove(*element);
            }
        }
        for (element, error) in failed {
            self.applied.fail(Step::entry(Action::Delete, named, element), error);
        }
    }
}

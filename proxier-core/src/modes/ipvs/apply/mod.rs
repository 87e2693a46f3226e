//! Carries out a plan.

mod operations;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipset::Element;
use ipvs::VirtualServerKey;

use crate::modes::ipvs::diff::Needs;
use crate::modes::ipvs::drain::Drains;
use crate::modes::ipvs::guards::nft::Basis;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::plan::{Phase, Plan, RulesChange, Stage};
use crate::modes::ipvs::rules::Capabilities;
use crate::modes::ipvs::sets::{NamedSet, SetKey, SetKind};
use crate::modes::ipvs::split as marks;
use crate::modes::ipvs::state::Mode;
use crate::modes::ipvs::wanted::Wanted;
use crate::net::{Family, Network};
use crate::plan::execute::call;
use crate::plan::names::Names;
use crate::plan::operation::{Operation, SetIn, Whole, items};
use crate::plan::report::{Applied, Lack};
use crate::plan::step::{Action, Part};
use crate::ports::{ItemFailure, ItemFailures, LocalRoute, PortError, PortErrorKind, Ports, Rules, Sets};
use crate::service::{Desired, Frontend};
use crate::snapshot::is_usable_by_service;
use crate::time::Moment;

/// Effects of carrying out a plan that only IPVS mode needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Effects {
    /// Families whose rules or tables could not be written or were not tried, with the kind of error.
    pub unwritten: BTreeMap<Family, PortErrorKind>,
    /// Families whose rules the kernel accepted only without some matches ([`RulesChange::without`]), with what it
    /// accepted.
    pub reduced: Vec<(Family, Capabilities)>,
    /// Number of times that the kernel contradicted the tracked state: an object to add existed, or one to change or
    /// delete did not. All of these were brought to the desired state, but there may be more.
    pub surprises: usize,
}

/// Applies a plan stage by stage, and records in the mode what the kernel confirmed. `None`: the kernel's state is
/// unknown.
///
/// Every operation has an outcome. After a failure, operations that do not depend on it continue, and those that do are
/// skipped with the reason ([`PortErrorKind::Skipped`]). An addition updates an existing object, a change adds a
/// missing one, and a deletion of a missing one is done. A full set is replaced by a larger one.
///
/// A virtual server that cannot be deleted keeps its entries and its address, which identify it as this proxy's and
/// guard it. Without them it would count as another program's and stay, open to all clients.
///
/// A virtual server of a mark is created only once its mark is recorded, and packets get the mark only once it exists.
/// They lose the mark before it is deleted.
///
/// A virtual server with source ranges is created only once they apply: the kernel has its entry in
/// [`SetKind::LoadBalancerFirewall`] and the rules it needs ([`Plan::guarded`]). A whole network is made local only
/// once the rules that guard it exist ([`Plan::guarded_networks`]).
///
/// Every address of a Service always reaches this host: the new binding is made before the old one is removed.
///
/// After a failure or a surprise ([`Effects::surprises`]) the tracked state may be out of date: read it again.
pub(crate) fn apply(
    mode: &mut Mode,
    plan: &Plan,
    desired: &Desired,
    (names, now): (&Names<'_>, Moment),
    ports: &mut Ports<'_>,
) -> Option<(Applied, Effects)> {
    let Mode { recorded, observed, drains, leaving, unmade, guards, .. } = mode;
    let (wanted, observed) = (&recorded.index.wanted(desired), observed.as_mut()?);
    for (key, real) in &plan.adopt_drains {
        drains.begin(*key, *real, wanted.drain_time(key), now);
        wanted.time_drains(key, drains, now);
    }
    let mut run = Run {
        plan,
        wanted,
        observed,
        basis: guards.basis(),
        drains,
        leaving,
        unmade,
        now,
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
    Some((run.applied, run.effects))
}

struct Run<'a, 'n> {
    plan: &'a Plan,
    wanted: &'a Wanted<'a>,
    observed: &'a mut Observed,
    basis: Basis,
    drains: &'a mut Drains,
    leaving: &'a mut BTreeSet<VirtualServerKey>,
    unmade: &'a mut BTreeSet<VirtualServerKey>,
    now: Moment,
    names: &'a Names<'n>,
    applied: Applied,
    effects: Effects,
    /// Whether the device exists or could be created, if needed.
    has_device: bool,
    /// Sets that could not be created.
    missing: BTreeSet<SetKey>,
    /// Families whose rules or tables were postponed or could not be written.
    unguarded: BTreeSet<Family>,
    /// Addresses without any virtual server, although one should have been created.
    unserved: BTreeSet<IpAddr>,
    /// Virtual servers that could not be deleted.
    left: Vec<VirtualServerKey>,
    /// Addresses and entries that these need.
    needs: Needs,
}

/// Why an operation was skipped: something it depends on failed.
fn skipped(message: impl fmt::Display) -> PortError {
    PortError::new(PortErrorKind::Skipped, message)
}

/// Why an address is not made local: it has no virtual server.
fn too_early(address: IpAddr) -> PortError {
    skipped(format_args!("{address} is not bound, because none of its virtual servers could be made"))
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

impl<'a> Run<'a, '_> {
    fn carry_out(&mut self, phase: Phase, stage: &'a Stage, ports: &mut Ports<'_>) {
        let by_table = !self.plan.layouts.is_empty();
        let first = stage.first_operations(phase, self.plan);
        // A table is written with its entries.
        let is_of_whole = |of: &Operation<'_>| match of {
            Operation::Whole(_) => true,
            Operation::Entry(..) => by_table,
            _ => false,
        };
        self.try_all(first.filter(|of| !is_of_whole(of)), ports);
        if by_table {
            self.write_tables(phase, stage, ports.tables);
        }
        self.restore(&stage.rules, ports.rules);
        self.operations(&stage.servers, ports.ipvs);
        self.try_all(stage.last_operations(phase, self.plan), ports);
    }

    /// Tries the operations that nothing prevents, those of one kind together, and records the outcomes.
    fn try_all(&mut self, operations: impl Iterator<Item = Operation<'a>>, ports: &mut Ports<'_>) {
        let operations: Vec<_> = operations.collect();
        for run in operations.chunk_by(Operation::is_one_call) {
            let mut possible = Vec::with_capacity(run.len());
            for operation in run {
                match self.why_not(operation) {
                    _ if !self.is_needed(operation) => {}
                    Some(why) => self.applied.fail(operation.step(self.names), why),
                    None => possible.push(*operation),
                }
            }
            if possible.is_empty() {
                continue;
            }
            let failures = self.call(&possible, ports);
            for (operation, is_done) in self.applied.record(&possible, failures, self.names) {
                if is_done { self.note_done(operation) } else { self.note_refused(operation, ports) }
            }
        }
    }

    /// Whether an operation must be carried out by itself. It need not if the set is created with its entries, or if
    /// the device is in use.
    fn is_needed(&self, operation: &Operation<'_>) -> bool {
        match operation {
            Operation::Entry(Action::Add, set, _) => self.entries_of_new(set.0.key).is_none(),
            Operation::Device(Action::Delete, _) => {
                !self.observed.addresses.iter().any(|address| is_usable_by_service(*address))
            }
            _ => true,
        }
    }

    /// The entries with which a set is created, in one step. A set that lacked some for a moment would make those
    /// virtual servers look like another program's ([`Observed::owns`]).
    fn entries_of_new(&self, set: SetKey) -> Option<&'a Vec<Element>> {
        let stage = self.plan.stages.get(&Phase::Prepare).filter(|_| set.kind == SetKind::NodePortServed)?;
        stage.entries.get(&set).filter(|_| stage.sets.contains(&set))
    }

    /// Why an operation is not tried, if so.
    fn why_not(&self, operation: &Operation<'_>) -> Option<PortError> {
        let (observed, wanted) = (&*self.observed, self.wanted);
        match *operation {
            Operation::Entry(Action::Add, SetIn(set, _), _) => {
                self.missing.contains(&set.key).then(|| not_without_set(set))
            }
            Operation::Entry(_, SetIn(set, _), element) => self.needs.entry(set.key, element).then(needed),
            Operation::Address(Action::Add, address, device) if !self.has_device => {
                Some(skipped(format_args!("{address} is not bound, because there is no device {device}")))
            }
            Operation::Address(Action::Add, address, _) => self.unserved.contains(&address).then(|| too_early(address)),
            Operation::Address(_, address, _) if self.needs.address(&address) => Some(needed()),
            Operation::Address(_, address, _) => {
                let lacks_route = wanted.has_address(address) && !observed.routes.cover(address, None);
                lacks_route.then(|| skipped(format_args!("{address} stays bound, because no route makes it local yet")))
            }
            Operation::Route(Action::Add, _, LocalRoute { network, .. }) => {
                let address = network.addr();
                if self.plan.guarded_networks.contains(&network) && self.unguarded.contains(&Family::of(address)) {
                    return Some(skipped(format_args!(
                        "{network} is not made local, because the rules that reject its unserved addresses are missing"
                    )));
                }
                let is_single = network == Network::from(address);
                let is_early = is_single && !observed.routes.has(&network) && self.unserved.contains(&address);
                is_early.then(|| too_early(address))
            }
            Operation::Route(_, _, LocalRoute { network, .. }) if self.needs.any_in(&network) => Some(needed()),
            Operation::Route(_, _, LocalRoute { network, .. }) => {
                let is_bound = |address: &IpAddr| {
                    observed.addresses.contains(address) || observed.routes.cover(*address, Some(&network))
                };
                let unbound = wanted.addresses_in(&network).find(|address| !is_bound(address))?;
                Some(skipped(format_args!("stays, because {unbound} is not bound in any other way yet")))
            }
            _ => None,
        }
    }

    /// Carries out operations of one kind. A full set is replaced by a larger one.
    fn call(&mut self, operations: &[Operation<'a>], ports: &mut Ports<'_>) -> ItemFailures {
        if let [Operation::Set(..), ..] = operations {
            let sets = items!(operations, Operation::Set(_, set) => set).into_iter().enumerate();
            let create = |(index, set)| Some(ItemFailure { index, error: self.create(set, ports.sets).err()? });
            return sets.filter_map(create).collect();
        }
        let mut failures = call(operations, ports);
        let is_full = |failure: &ItemFailure| failure.error.kind() == PortErrorKind::Full;
        if let (Some(Operation::Entry(Action::Add, set, _)), true) = (operations.first(), failures.iter().any(is_full))
        {
            let elements = items!(operations, Operation::Entry(_, _, element) => element);
            match self.replace(set.0, &elements, ports.sets) {
                Ok(_) => failures.clear(),
                Err(error) => failures.iter_mut().for_each(|failure| failure.error = error.clone()),
            }
        }
        failures
    }

    fn note_done(&mut self, operation: Operation<'a>) {
        let Observed { addresses, routes, sets, .. } = self.observed;
        match operation {
            Operation::Device(Action::Delete, _) => addresses.clear(),
            Operation::Set(_, set) => drop(sets.entry(set.key).or_default()),
            Operation::Entry(Action::Add, set, element) => {
                sets.entry(set.0.key).or_default().insert(element.clone());
            }
            Operation::Entry(_, set, element) => {
                if let Some(entries) = sets.get_mut(&set.0.key) {
                    entries.remove(element);
                }
            }
            Operation::Address(Action::Add, address, _) => drop(addresses.insert(address)),
            Operation::Address(_, address, _) => drop(addresses.remove(&address)),
            Operation::Route(Action::Add, _, route) => routes.insert(route.network, route.source),
            Operation::Route(_, _, route) => routes.remove(&route.network),
            _ => {}
        }
    }

    /// Drops a source that the kernel refuses, because another source is better than no Service.
    fn note_refused(&mut self, operation: Operation<'a>, ports: &mut Ports<'_>) {
        match operation {
            Operation::Device(..) => self.has_device = false,
            Operation::Set(_, set) => drop(self.missing.insert(set.key)),
            Operation::Route(Action::Add, owner, LocalRoute { network, source: Some(_) }) => {
                let without = Operation::Route(Action::Add, owner, LocalRoute::new(network));
                if call(&[without], ports).is_empty() {
                    self.note_done(without);
                }
            }
            _ => {}
        }
    }

    /// Restores rules, except those that still guard a virtual server that could not be deleted.
    fn restore(&mut self, changes: &'a [RulesChange], rules: &mut dyn Rules) {
        self.unguarded.extend(changes.iter().map(|change| change.family));
        let mut possible = Vec::new();
        for change in changes {
            // No rule refers to this proxy's own set.
            let is_referred = |set: &&SetKey| set.family == change.family && set.kind.is_of_kube_proxy();
            let is_guarded = |key: &&VirtualServerKey| {
                Family::from(key.family()) == change.family
                    && self.observed.entry(key, SetKind::LoadBalancerFirewall).is_some()
            };
            let why = if let Some(set) = self.missing.iter().find(is_referred) {
                not_without_set(set.named(self.plan.names.prefix))
            } else if let Some(key) = self.left.iter().find(is_guarded) {
                skipped(format_args!("stay, because they guard virtual server {key}, which could not be deleted"))
            } else {
                possible.push(change);
                continue;
            };
            self.effects.unwritten.insert(change.family, why.kind());
            self.applied.fail(change.step(), why);
        }
        if possible.is_empty() {
            return;
        }
        let transactions: Vec<_> =
            possible.iter().map(|change| (change.family, change.changes.transaction())).collect();
        for (change, outcome) in possible.into_iter().zip(rules.restore_families(&transactions)) {
            let outcome = outcome.or_else(|error| self.restore_without(change, error, rules));
            match &outcome {
                Ok(()) => {
                    self.applied.restored.push(change.family);
                    self.unguarded.remove(&change.family);
                }
                Err(error) => drop(self.effects.unwritten.insert(change.family, error.kind())),
            }
            self.applied.note(|| change.step(), outcome);
        }
    }

    /// Retries refused rules without optional matches that the kernel may lack.
    fn restore_without(
        &mut self,
        change: &RulesChange,
        refused: PortError,
        rules: &mut dyn Rules,
    ) -> Result<(), PortError> {
        // Errors of other kinds do not mean that the kernel would refuse the same again.
        let lacks =
            matches!(refused.kind(), PortErrorKind::NotFound | PortErrorKind::Unavailable | PortErrorKind::Invalid);
        // What somebody else was changing just then, such as a chain, is no lack: the same once more.
        if refused.kind() == PortErrorKind::NotFound
            && rules.restore(change.family, change.changes.transaction()).is_ok()
        {
            return Ok(());
        }
        let mut others = change.without.iter().filter(|_| lacks);
        let taken = others.find(|(_, changes)| rules.restore(change.family, changes.transaction()).is_ok());
        let Some((capabilities, _)) = taken else { return Err(refused) };
        self.effects.reduced.push((change.family, *capabilities));
        self.applied.lacks.push(Lack::new(capabilities.lost(), refused));
        Ok(())
    }

    /// Why a virtual server must not be created, if its source ranges would not be enforced.
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
                    "{key} is not made, because its mark could not be recorded: nothing would show that this proxy made it"
                )));
            }
            at = frontend?.key.into();
        }
        let key = &at;
        let is_barred = !self.plan.layouts.is_empty() && frontend.is_some_and(Frontend::is_barred_from_node);
        let lacks = if self.observed.entry(key, SetKind::LoadBalancerFirewall).is_none() {
            has_ranges.then_some(SetKind::LoadBalancerFirewall)
        } else {
            Some(SetKind::LoadBalancerNotNode).filter(|kind| is_barred && self.observed.entry(key, *kind).is_none())
        };
        let set = self.plan.set_in(SetKey::new(key.family().into(), lacks?));
        Some(skipped(format_args!(
            "{key} is not served, because its loadBalancerSourceRanges could not be put into set {set}"
        )))
    }

    /// Creates a set, with entries that must exist from the start.
    fn create(&mut self, set: NamedSet, sets: &mut dyn Sets) -> Result<(), PortError> {
        let Some(elements) = self.entries_of_new(set.key) else {
            return sets.create(set, self.wanted.entries(set.key).count());
        };
        let count = self.replace(set, &elements.iter().collect::<Vec<_>>(), sets)?;
        self.applied.count(Part::Entry, Action::Add, count);
        Ok(())
    }

    /// Writes a set at once, with its present, desired and these entries. Returns the number of its entries.
    fn replace(&mut self, set: NamedSet, elements: &[&Element], sets: &mut dyn Sets) -> Result<usize, PortError> {
        // Entries to delete stay for now, because virtual servers may still need them.
        let there = self.observed.sets.get(&set.key).into_iter().flatten();
        let all: BTreeSet<&Element> =
            there.chain(self.wanted.entries(set.key)).chain(elements.iter().copied()).collect();
        sets.replace(set, &all.iter().copied().collect::<Vec<_>>())?;
        let all: BTreeSet<Element> = all.into_iter().cloned().collect();
        let count = all.len();
        self.observed.sets.insert(set.key, all);
        Ok(count)
    }
}

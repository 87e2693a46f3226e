//! Carries out a plan.

mod guards;
mod servers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipset::Element;
use ipvs::{Operation as ServerOperation, VirtualServerKey};

use crate::modes::ipvs::diff::Needs;
use crate::modes::ipvs::drain::Drains;
use crate::modes::ipvs::guards::Guards;
use crate::modes::ipvs::guards::nft::Basis;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::plan::{Phase, Plan, Stage};
use crate::modes::ipvs::rules::Capabilities;
use crate::modes::ipvs::split as marks;
use crate::modes::ipvs::state::Mode;
use crate::modes::ipvs::wanted::Wanted;
use crate::net::{Family, Network};
use crate::pack::Gather as _;
use crate::plan::execute::{call, next_call};
use crate::plan::operation::{Operation, SetIn, items};
use crate::plan::report::Applied;
use crate::plan::step::{Action, Names, Part};
use crate::ports::{
    ItemFailures, LocalRoute, NamedSet, PortError, PortErrorKind, Ports, Result, SetKey, SetKind, Sets,
};
use crate::service::Desired;
use crate::snapshot::is_usable_by_service;
use crate::time::Moment;

/// Outcomes that only IPVS mode needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Families whose rules or tables could not be written or were not tried, with the kind of error.
    pub unwritten: BTreeMap<Family, PortErrorKind>,
    /// Families whose rules the kernel accepted only without some matches, with what it accepted.
    pub reduced: Vec<(Family, Capabilities)>,
    /// Whether the kernel contradicted the tracked state: an object to add existed, or one to change or delete did not.
    pub is_surprised: bool,
}

/// Applies a plan stage by stage, and records in the mode what the kernel confirmed. `None`: the kernel's state is
/// unknown.
///
/// Every operation has an outcome. After a failure, operations that do not depend on it continue, and those that do are
/// skipped with the reason ([`PortErrorKind::Skipped`]). An addition updates an existing object, a change adds a
/// missing one, and a deletion of a missing one is done.
///
/// A virtual server that cannot be deleted keeps its entries and its address, which identify it as this proxy's and
/// guard it. Without them it would count as another program's and stay, open to all clients.
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
        drains.begin(*key, *real, now);
        wanted.time_drains(key, drains, now);
    }
    let mut run = Run {
        plan,
        wanted,
        observed,
        basis: if let Guards::Nft(tables) = guards { tables.basis.take() } else { None },
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
        lacking: BTreeMap::new(),
        unserved: BTreeSet::new(),
        left: Vec::new(),
        needs: Needs::default(),
    };
    for (phase, stage) in &plan.stages {
        run.carry_out(*phase, stage, ports);
    }
    Some((run.applied, run.effects))
}

impl Observed {
    /// Records the operations of a plan as carried out.
    #[cfg(feature = "testing")]
    pub fn apply(&mut self, plan: &Plan, wanted: &Wanted<'_>) {
        self.note(&crate::modes::Work::operations(plan).collect::<Vec<_>>(), wanted);
    }

    /// The same, except operations of transactions.
    fn note(&mut self, operations: &[Operation<'_>], wanted: &Wanted<'_>) {
        for of_server in operations.chunk_by(Operation::is_of_one_server) {
            match *of_server {
                [Operation::Server(first, _), ..] => self.note_server(first.virtual_server(), of_server, wanted),
                [Operation::Device(Action::Delete, _)] => self.addresses.clear(),
                [Operation::Set(_, set)] => drop(self.sets.entry(set.key).or_default()),
                [Operation::Entry(Action::Add, set, element)] => {
                    self.sets.entry(set.0.key).or_default().insert(element.clone());
                }
                [Operation::Entry(_, set, element)] => self.remove_entry(set.0.key, element),
                [Operation::Address(Action::Add, address, _)] => drop(self.addresses.insert(address)),
                [Operation::Address(_, address, _)] => drop(self.addresses.remove(&address)),
                [Operation::Route(Action::Add, _, route)] => self.routes.insert(route.network, route.source),
                [Operation::Route(_, _, route)] => self.routes.remove(&route.network),
                _ => {}
            }
        }
    }
}

struct Run<'a, 'n> {
    plan: &'a Plan,
    wanted: &'a Wanted<'a>,
    observed: &'a mut Observed,
    basis: Option<Basis>,
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
    /// Virtual servers that could not be created, and why their real servers were not.
    lacking: BTreeMap<VirtualServerKey, PortError>,
    /// Addresses without any virtual server, although one should have been created.
    unserved: BTreeSet<IpAddr>,
    /// Virtual servers that could not be deleted, and what they need.
    left: Vec<VirtualServerKey>,
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
        if by_table && !(stage.tables.is_empty() && stage.entries.is_empty()) {
            self.write_tables(phase, stage, ports.tables);
        }
        if !stage.rules.is_empty() {
            self.restore(&stage.rules, ports.rules);
        }
        self.try_all(stage.servers.iter().map(|operation| self.plan.server(operation)), ports);
        if !self.unserved.is_empty() {
            // An address with another virtual server is served.
            let served = self.observed.virtual_servers.keys().filter_map(VirtualServerKey::addr);
            let served: BTreeSet<IpAddr> = served.collect();
            self.unserved.retain(|address| !served.contains(address));
        }
        self.try_all(stage.last_operations(phase, self.plan), ports);
    }

    /// Tries the operations that nothing prevents, those of one kind together, and records the outcomes.
    fn try_all(&mut self, operations: impl Iterator<Item = Operation<'a>>, ports: &mut Ports<'_>) {
        let mut operations = operations.peekable();
        while let Some(mut possible) = next_call(&mut operations) {
            possible.retain(|operation| self.is_possible(operation));
            if possible.is_empty() {
                continue;
            }
            let failures = self.call(&possible, ports);
            let refused = self.applied.record(&mut possible, failures, self.names);
            self.observed.note(&possible, self.wanted);
            self.note_drains(&possible);
            for operation in refused {
                self.note_refused(operation, ports);
            }
        }
    }

    /// Whether an operation is tried. Otherwise it is not needed, or records what prevents it.
    fn is_possible(&mut self, operation: &Operation<'_>) -> bool {
        if !self.is_needed(operation) {
            return false;
        }
        let Some(why) = self.why_not(operation) else { return true };
        if let Operation::Server(ServerOperation::AddVirtualServer(server), _) = operation {
            self.note_lacking(server.key, why.clone());
        }
        self.applied.fail(operation.step(self.names), why);
        false
    }

    /// Whether an operation must be carried out by itself. It need not if the set is created with its entries, if the
    /// entry stood in the way of another and was deleted with that one, or if the device is in use.
    fn is_needed(&self, operation: &Operation<'_>) -> bool {
        match operation {
            Operation::Entry(Action::Add, set, element) if set.0.key.kind.gives_marks() => {
                marks::frontend_of(element).is_some_and(|frontend| self.wanted.split(&frontend).is_some())
            }
            Operation::Entry(Action::Add, set, _) => self.entries_of_new(set.0.key).is_none(),
            Operation::Entry(Action::Delete, set, element) => self.observed.has_entry(set.0.key, element),
            Operation::Device(Action::Delete, _) => {
                !self.observed.addresses.iter().any(|address| is_usable_by_service(*address))
            }
            _ => true,
        }
    }

    /// The entries with which a set is created, in one step. A set that lacked some for a moment would make those
    /// virtual servers look like another program's ([`Observed::owns`]). Without entries too, because that step removes
    /// what a process left over that died in it.
    fn entries_of_new(&self, set: SetKey) -> Option<&'a BTreeSet<Element>> {
        const NONE: &BTreeSet<Element> = &BTreeSet::new();
        let stage = self.plan.stages.get(&Phase::Prepare).filter(|_| set.kind == SetKind::NodePortServed)?;
        stage.sets.contains(&set).then(|| stage.entries.get(&set).unwrap_or(NONE))
    }

    fn why_not(&self, operation: &Operation<'_>) -> Option<PortError> {
        let (observed, wanted) = (&*self.observed, self.wanted);
        match *operation {
            Operation::Server(ServerOperation::AddVirtualServer(server), _) => self.not_guarded(&server.key),
            Operation::Server(operation, _) => self.lacking.get(&operation.virtual_server()).cloned(),
            Operation::Entry(Action::Add, SetIn(set, _), element) if set.key.kind.gives_marks() => {
                let server = marks::frontend_of(element).and_then(|frontend| wanted.split(&frontend))?;
                (!observed.virtual_servers.contains_key(&server)).then(|| not_without_virtual_server(&server))
            }
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

    /// A full set is replaced by a larger one.
    fn call(&mut self, operations: &[Operation<'a>], ports: &mut Ports<'_>) -> ItemFailures {
        if let [Operation::Server(..), ..] = operations {
            return self.call_servers(operations, ports.ipvs);
        }
        if let [Operation::Set(..), ..] = operations {
            let sets = items!(operations, Operation::Set(_, set) => set).into_iter().enumerate();
            let create = |(index, set)| Some((index, self.create(set, ports.sets).err()?));
            return sets.filter_map(create).collect();
        }
        let mut failures = call(operations, ports);
        let is_full = failures.values().any(|error| error.kind() == PortErrorKind::Full);
        if let (Some(Operation::Entry(Action::Add, set, _)), true) = (operations.first(), is_full) {
            let elements = items!(operations, Operation::Entry(_, _, element) => element);
            match self.replace(set.0, &elements, ports.sets) {
                Ok(_) => failures.clear(),
                Err(error) => failures.values_mut().for_each(|failure| *failure = error.clone()),
            }
        }
        failures
    }

    /// Drops a source that the kernel refuses, because another source is better than no Service.
    fn note_refused(&mut self, operation: Operation<'a>, ports: &mut Ports<'_>) {
        match operation {
            Operation::Server(ServerOperation::DeleteVirtualServer(key), _) => {
                self.left.push(*key);
                self.needs.add(key, self.observed);
            }
            Operation::Device(..) => self.has_device = false,
            Operation::Set(_, set) => drop(self.missing.insert(set.key)),
            Operation::Route(Action::Add, owner, LocalRoute { network, source: Some(_) }) => {
                let without = Operation::Route(Action::Add, owner, LocalRoute::new(network));
                if call(&[without], ports).is_empty() {
                    self.observed.note(&[without], self.wanted);
                }
            }
            _ => {}
        }
    }

    /// Creates a set, with entries that must exist from the start.
    fn create(&mut self, set: NamedSet, sets: &mut dyn Sets) -> Result<()> {
        let Some(elements) = self.entries_of_new(set.key) else {
            return sets.create(set, self.wanted.entries(set.key).count());
        };
        let count = self.replace(set, &elements.iter().collect::<Vec<_>>(), sets)?;
        self.applied.count(Part::Entry, Action::Add, count);
        Ok(())
    }

    /// Writes a set at once, with its present, desired and these entries. Returns the number of its entries.
    fn replace(&mut self, set: NamedSet, elements: &[&Element], sets: &mut dyn Sets) -> Result<usize> {
        // Entries to delete stay for now, because virtual servers may still need them.
        let there = self.observed.sets.get(&set.key).into_iter().flatten();
        let all: BTreeSet<&Element> =
            there.chain(self.wanted.entries(set.key)).chain(elements.iter().copied()).gather();
        sets.replace(set, &all.iter().copied().collect::<Vec<_>>())?;
        let all: BTreeSet<Element> = all.into_iter().cloned().collect();
        let count = all.len();
        self.observed.sets.insert(set.key, all);
        Ok(count)
    }
}

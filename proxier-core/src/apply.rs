//! Carrying out a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipset::Element;
use ipvs::model::Weight;
use ipvs::{Operation, RealServer, VirtualServerKey};

use crate::config::Config;
use crate::observed::{Observed, ObservedServer};
use crate::plan::{Plan, RulesChange};
use crate::ports::{ItemFailure, ItemFailures, PortError, PortErrorKind, Ports, Sets};
use crate::report::{Applied, bound_too_early};
use crate::sets::SetKey;
use crate::state::Desired;
use crate::step::{Action, Names, Part, Step};

/// Carries out a plan, stage by stage, and notes in `observed` what the kernel confirmed.
///
/// Every operation has an outcome. One that fails does not stop those that do not depend on it. What is there when it
/// is to be added is brought to what is wanted; what is gone when it is to be changed is made; what is gone when it is to
/// be deleted is done. A set that is full is replaced by a larger one.
///
/// After a failure `observed` may be behind the kernel: it should be read again.
pub fn apply(
    plan: &Plan,
    desired: &Desired,
    observed: &mut Observed,
    names: &Names<'_>,
    ports: &mut Ports<'_>,
) -> Applied {
    let mut run = Run { desired, observed, names, applied: Applied::default() };
    if plan.create_device {
        let outcome = ports.links.create_device(Config::DUMMY_DEVICE);
        run.applied.note(Step::device, outcome);
    }
    for change in &plan.sysctls {
        let outcome = ports.sysctls.set(&change.path, &change.to);
        run.applied.note(|| Step::sysctl(change), outcome);
    }
    if let Some(timeouts) = &plan.timeouts {
        let outcome = ports.ipvs.set_timeouts(timeouts);
        run.applied.note(|| Step::timeouts(timeouts), outcome);
    }
    for set in &plan.create_sets {
        run.create_set(*set, ports.sets);
    }
    for (set, elements) in &plan.add_entries {
        run.add_entries(*set, elements, ports.sets);
    }
    run.restore(&plan.rules, ports);
    let unserved = run.operations(&plan.serve, ports);
    run.bind(&plan.bind, &unserved, ports);
    run.operations(&plan.retire, ports);
    for (set, elements) in &plan.delete_entries {
        run.delete_entries(*set, elements, ports.sets);
    }
    run.restore(&plan.relax, ports);
    run.unbind(&plan.unbind, ports);
    if !plan.forget.is_empty() {
        match ports.conntrack.forget_udp(&plan.forget) {
            Ok(flows) => {
                run.applied.flows = flows;
                run.applied.count(Part::Flows, Action::Delete, flows);
            }
            Err(error) => run.applied.fail(Step::flows(&plan.forget), error),
        }
    }
    run.applied
}

struct Run<'a, 'n> {
    desired: &'a Desired,
    observed: &'a mut Observed,
    names: &'a Names<'n>,
    applied: Applied,
}

/// Splits items by whether their place is among the failures, which are sorted by it here.
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
    fn restore(&mut self, rules: &[RulesChange], ports: &mut Ports<'_>) {
        for change in rules {
            let outcome = ports.rules.restore(change.family, change.changes.transaction());
            if self.applied.note(|| Step::rules(change), outcome) {
                self.applied.restored.push(change.family);
            }
        }
    }

    fn create_set(&mut self, set: SetKey, sets: &mut dyn Sets) {
        let outcome = sets.create(set, self.desired.entries(set).count());
        if self.applied.note(|| Step::create_set(set), outcome) {
            self.observed.sets.entry(set).or_default();
        }
    }

    fn add_entries(&mut self, set: SetKey, elements: &[Element], sets: &mut dyn Sets) {
        let refs: Vec<&Element> = elements.iter().collect();
        let (done, failed) = split(&refs, sets.add(set, &refs));
        let full = failed.iter().any(|(_, error)| error.kind() == PortErrorKind::Full);
        if full {
            let wanted: Vec<&Element> = self.desired.entries(set).collect();
            if let Ok(()) = sets.replace(set, &wanted) {
                self.applied.count(Part::Entry, Action::Add, elements.len());
                self.observed.sets.insert(set, wanted.into_iter().cloned().collect());
                return;
            }
        }
        self.applied.count(Part::Entry, Action::Add, done.len());
        self.observed.sets.entry(set).or_default().extend(done.into_iter().map(|element| (*element).clone()));
        for (element, error) in failed {
            self.applied.fail(Step::entry(Action::Add, set, element), error);
        }
    }

    fn delete_entries(&mut self, set: SetKey, elements: &[Element], sets: &mut dyn Sets) {
        // A replaced set has lost them already.
        let there = |element: &&Element| self.observed.has_entry(set, element);
        let refs: Vec<&Element> = elements.iter().filter(there).collect();
        let (done, failed) = split(&refs, sets.delete(set, &refs));
        self.applied.count(Part::Entry, Action::Delete, done.len());
        if let Some(entries) = self.observed.sets.get_mut(&set) {
            for element in done {
                entries.remove(*element);
            }
        }
        for (element, error) in failed {
            self.applied.fail(Step::entry(Action::Delete, set, element), error);
        }
    }

    fn bind(&mut self, addresses: &[IpAddr], unserved: &BTreeSet<IpAddr>, ports: &mut Ports<'_>) {
        let (skipped, wanted): (Vec<IpAddr>, Vec<IpAddr>) =
            addresses.iter().partition(|address| unserved.contains(address));
        if !wanted.is_empty() {
            let (done, failed) = split(&wanted, ports.links.bind(Config::DUMMY_DEVICE, &wanted));
            self.applied.count(Part::Address, Action::Add, done.len());
            self.observed.addresses.extend(done);
            for (address, error) in failed {
                self.applied.fail(Step::address(Action::Add, *address), error);
            }
        }
        for address in skipped {
            self.applied.fail(Step::address(Action::Add, address), bound_too_early(address));
        }
    }

    fn unbind(&mut self, addresses: &[IpAddr], ports: &mut Ports<'_>) {
        if addresses.is_empty() {
            return;
        }
        let (done, failed) = split(addresses, ports.links.unbind(Config::DUMMY_DEVICE, addresses));
        self.applied.count(Part::Address, Action::Delete, done.len());
        for address in done {
            self.observed.addresses.remove(address);
        }
        for (address, error) in failed {
            self.applied.fail(Step::address(Action::Delete, *address), error);
        }
    }

    /// Returns the addresses of which no virtual server exists after this.
    fn operations(&mut self, operations: &[Operation], ports: &mut Ports<'_>) -> BTreeSet<IpAddr> {
        if operations.is_empty() {
            return BTreeSet::new();
        }
        let failures = ports.ipvs.run(operations);
        let (mut again, mut failed) = (Vec::new(), BTreeMap::new());
        for ItemFailure { index, error } in failures {
            let Some(operation) = operations.get(index) else { continue };
            match self.second_try(operation, &error) {
                SecondTry::Settled => {}
                SecondTry::Run(more) => again.extend(more.into_iter().map(|more| (index, more))),
                SecondTry::No => {
                    failed.insert(index, error);
                }
            }
        }
        if !again.is_empty() {
            let list: Vec<Operation> = again.iter().map(|(_, operation)| *operation).collect();
            for ItemFailure { index, error } in ports.ipvs.run(&list) {
                if let Some((original, _)) = again.get(index) {
                    failed.entry(*original).or_insert(error);
                }
            }
        }
        self.note_operations(operations, failed)
    }

    /// What to do when the kernel holds something else than was thought.
    fn second_try(&self, operation: &Operation, error: &PortError) -> SecondTry {
        match (operation, error.kind()) {
            (Operation::AddVirtualServer(server), PortErrorKind::AlreadyExists) => {
                SecondTry::Run(vec![Operation::UpdateVirtualServer(*server)])
            }
            (Operation::AddRealServer(key, server), PortErrorKind::AlreadyExists) => {
                SecondTry::Run(vec![Operation::UpdateRealServer(*key, *server)])
            }
            (Operation::UpdateVirtualServer(server), PortErrorKind::NotFound) => {
                // Somebody deleted it: its other real servers are missing as well.
                let mut all = vec![Operation::AddVirtualServer(*server)];
                let frontend = self.desired.frontend(&server.key);
                let servers = frontend.map_or(&[][..], |frontend| &frontend.real_servers);
                all.extend(servers.iter().map(|real| Operation::AddRealServer(server.key, *real)));
                SecondTry::Run(all)
            }
            (Operation::UpdateRealServer(_, server), PortErrorKind::NotFound)
                if server.config.weight == Weight::DRAIN =>
            {
                SecondTry::Settled
            }
            (Operation::UpdateRealServer(key, server), PortErrorKind::NotFound) => {
                SecondTry::Run(vec![Operation::AddRealServer(*key, *server)])
            }
            (Operation::DeleteVirtualServer(_) | Operation::DeleteRealServer(..), PortErrorKind::NotFound) => {
                SecondTry::Settled
            }
            _ => SecondTry::No,
        }
    }

    /// Counts outcomes and notes what the kernel holds now, one virtual server at a time.
    fn note_operations(
        &mut self,
        operations: &[Operation],
        mut failed: BTreeMap<usize, PortError>,
    ) -> BTreeSet<IpAddr> {
        let (mut served, mut unserved) = (BTreeSet::new(), BTreeSet::new());
        let mut current: Option<Edited> = None;
        for (index, operation) in operations.iter().enumerate() {
            let key = operation.virtual_server();
            if current.as_ref().is_none_or(|edited| edited.key != key) {
                if let Some(edited) = current.take() {
                    edited.close(self.observed, self.desired);
                }
                current = Some(Edited::open(key, self.observed));
            }
            let error = if failed.is_empty() { None } else { failed.remove(&index) };
            let adds = matches!(operation, Operation::AddVirtualServer(_));
            if let (true, VirtualServerKey::Address { addr, .. }) = (adds, key) {
                if error.is_none() {
                    served.insert(addr)
                } else {
                    unserved.insert(addr)
                };
            }
            if let Some(error) = error {
                self.applied.fail(Step::operation(operation, self.names), error);
                continue;
            }
            if let Some(edited) = &mut current {
                edited.take(operation);
            }
            self.done(operation);
        }
        if let Some(edited) = current.take() {
            edited.close(self.observed, self.desired);
        }
        // An address with another virtual server, made now or earlier, is served.
        let before: BTreeSet<IpAddr> = if unserved.is_empty() {
            BTreeSet::new()
        } else {
            let address = |key: &VirtualServerKey| match key {
                VirtualServerKey::Address { addr, .. } => Some(*addr),
                VirtualServerKey::Fwmark { .. } => None,
            };
            self.observed.virtual_servers.keys().filter_map(address).collect()
        };
        unserved.retain(|address| !served.contains(address) && !before.contains(address));
        unserved
    }

    fn done(&mut self, operation: &Operation) {
        let (part, action) = match operation {
            Operation::AddVirtualServer(_) => (Part::VirtualServer, Action::Add),
            Operation::DeleteVirtualServer(key) => {
                self.applied.deleted.push(*key);
                (Part::VirtualServer, Action::Delete)
            }
            Operation::AddRealServer(..) => (Part::RealServer, Action::Add),
            Operation::UpdateRealServer(key, server) if server.config.weight == Weight::DRAIN => {
                self.applied.drained.push((*key, server.key));
                (Part::RealServer, Action::Drain)
            }
            Operation::UpdateRealServer(key, server) => {
                self.applied.settled.push((*key, server.key));
                (Part::RealServer, Action::Change)
            }
            Operation::DeleteRealServer(key, real) => {
                self.applied.settled.push((*key, *real));
                (Part::RealServer, Action::Delete)
            }
            _ => (Part::VirtualServer, Action::Change),
        };
        self.applied.count(part, action, 1);
    }
}

enum SecondTry {
    /// The kernel is as it has to be.
    Settled,
    /// These instead.
    Run(Vec<Operation>),
    /// It has failed.
    No,
}

/// A virtual server while operations on it are noted.
struct Edited {
    key: VirtualServerKey,
    server: Option<ObservedServer>,
    real_servers: Vec<RealServer>,
}

impl Edited {
    fn open(key: VirtualServerKey, observed: &mut Observed) -> Self {
        let server = observed.virtual_servers.remove(&key);
        let real_servers = server.as_ref().map_or_else(Vec::new, |server| server.real_servers.to_vec());
        Edited { key, server, real_servers }
    }

    fn take(&mut self, operation: &Operation) {
        let place = |servers: &[RealServer], key| servers.binary_search_by(|server| server.key.cmp(key));
        match operation {
            Operation::AddVirtualServer(new) | Operation::UpdateVirtualServer(new) => match &mut self.server {
                Some(server) => server.config = new.config,
                None => self.server = Some(ObservedServer { config: new.config, real_servers: Arc::default() }),
            },
            Operation::DeleteVirtualServer(_) => {
                self.server = None;
                self.real_servers.clear();
            }
            Operation::AddRealServer(_, new) | Operation::UpdateRealServer(_, new) => {
                match place(&self.real_servers, &new.key) {
                    Ok(found) => {
                        if let Some(server) = self.real_servers.get_mut(found) {
                            *server = *new;
                        }
                    }
                    Err(gap) => self.real_servers.insert(gap, *new),
                }
            }
            Operation::DeleteRealServer(_, key) => {
                if let Ok(found) = place(&self.real_servers, key) {
                    self.real_servers.remove(found);
                }
            }
            _ => {}
        }
    }

    fn close(self, observed: &mut Observed, desired: &Desired) {
        let Some(mut server) = self.server else { return };
        let wanted = desired.frontend(&self.key).map(|frontend| &frontend.real_servers);
        // What is as wanted is kept once.
        server.real_servers = match wanted {
            Some(wanted) if **wanted == *self.real_servers => wanted.clone(),
            _ => self.real_servers.into(),
        };
        observed.virtual_servers.insert(self.key, server);
    }
}

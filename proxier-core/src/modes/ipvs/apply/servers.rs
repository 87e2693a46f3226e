//! Runs batches of operations on virtual and real servers, retries what EEXIST, ENOENT or ESRCH contradicts, and
//! records outcomes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipvs::model::Weight;
use ipvs::{Operation, RealServer, RealServerKey, VirtualServer, VirtualServerKey};

use super::{Run, not_without_virtual_server, skipped};
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::servers::{RealServers, Server};
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::ipvs::split as marks;
use crate::modes::ipvs::wanted::Wanted;
use crate::plan::operation::Operation as PlanOperation;
use crate::plan::step::{Action, Step};
use crate::ports::{Ipvs, ItemFailure, PortError, PortErrorKind};
use crate::service::Frontend;

/// Retries after the first attempt. Changing a real server may need three: add it; add its virtual server first; find
/// that one present by then.
const MORE_WAYS: usize = 3;

/// Outcomes, by index of the operation.
#[derive(Default)]
struct Trial {
    failed: BTreeMap<usize, PortError>,
    /// Real servers that should drain but do not exist.
    gone: BTreeSet<usize>,
    /// Virtual servers that could not be created.
    dead: BTreeSet<VirtualServerKey>,
    /// Virtual servers that another program had deleted, and that were recreated completely.
    remade: BTreeSet<VirtualServerKey>,
    surprises: usize,
}

impl Trial {
    /// The operations to try in place of refused ones, in order, each with the index of the original.
    fn other_ways(
        &mut self,
        refused: Vec<(usize, Operation, PortError)>,
        wanted: &Wanted<'_>,
    ) -> Vec<(usize, Operation)> {
        let (mut first, mut then) = (Vec::new(), Vec::new());
        let real_server = |operation: &Operation| match operation {
            Operation::AddRealServer(key, server) | Operation::UpdateRealServer(key, server) => {
                Some((*key, server.key))
            }
            _ => None,
        };
        let own: BTreeSet<(VirtualServerKey, RealServerKey)> =
            refused.iter().filter_map(|(_, operation, _)| real_server(operation)).collect();
        let mut remade = BTreeSet::new();
        for (place, operation, error) in refused {
            let key = operation.virtual_server();
            let instead = match (operation, error.kind()) {
                (Operation::AddVirtualServer(server), PortErrorKind::AlreadyExists) => {
                    Some(Operation::UpdateVirtualServer(server))
                }
                (Operation::AddRealServer(key, server), PortErrorKind::AlreadyExists) => {
                    Some(Operation::UpdateRealServer(key, server))
                }
                (Operation::DeleteVirtualServer(_) | Operation::DeleteRealServer(..), PortErrorKind::NotFound) => None,
                (Operation::UpdateRealServer(_, server), PortErrorKind::NotFound)
                    if is_drained(&key, &server, wanted) =>
                {
                    self.gone.insert(place);
                    None
                }
                (_, PortErrorKind::NotFound) if self.dead.contains(&key) => {
                    self.failed.insert(place, not_without_virtual_server(&key));
                    continue;
                }
                (Operation::UpdateRealServer(key, server), PortErrorKind::NotFound) => {
                    Some(Operation::AddRealServer(key, server))
                }
                (Operation::UpdateVirtualServer(_) | Operation::AddRealServer(..), PortErrorKind::NotFound)
                    if wanted.has_server(&key) =>
                {
                    // Another program deleted the virtual server, so all its real servers are missing.
                    if remade.insert(key)
                        && let Some(server) = wanted.server(&key)
                    {
                        first.push((place, Operation::AddVirtualServer(VirtualServer { key, config: server.config })));
                        let others = server.real_servers.iter().filter(|real| !own.contains(&(key, real.key)));
                        first.extend(others.map(|real| (place, Operation::AddRealServer(key, real))));
                    }
                    real_server(&operation).map(|_| operation)
                }
                _ => {
                    if matches!(operation, Operation::AddVirtualServer(_)) {
                        self.dead.insert(key);
                    }
                    self.failed.entry(place).or_insert(error);
                    continue;
                }
            };
            self.surprises = self.surprises.saturating_add(1);
            then.extend(instead.map(|operation| (place, operation)));
        }
        self.remade.append(&mut remade);
        first.append(&mut then);
        first
    }

    fn run(operations: &[Operation], wanted: &Wanted<'_>, ipvs: &mut dyn Ipvs) -> Self {
        let mut trial = Trial::default();
        let (mut list, mut places) = (Cow::Borrowed(operations), (0..operations.len()).collect::<Vec<_>>());
        for ways in (0..=MORE_WAYS).rev() {
            let mut failures = ipvs.run(&list);
            failures.sort_by_key(|failure| failure.index);
            let at = |ItemFailure { index, error }| Some((*places.get(index)?, *list.get(index)?, error));
            let refused: Vec<(usize, Operation, PortError)> = failures.into_iter().filter_map(at).collect();
            if ways == 0 {
                for (place, _, error) in refused {
                    trial.failed.entry(place).or_insert(error);
                }
                break;
            }
            let others = trial.other_ways(refused, wanted);
            if others.is_empty() {
                break;
            }
            let (of, operations): (Vec<_>, Vec<_>) = others.into_iter().unzip();
            (places, list) = (of, Cow::Owned(operations));
        }
        trial
    }
}

/// Whether an update lets a real server drain. A desired one may have weight 0 on purpose.
fn is_drained(key: &VirtualServerKey, server: &RealServer, wanted: &Wanted<'_>) -> bool {
    server.config.weight == Weight::DRAIN && !wanted.has_real_server(key, &server.key)
}

impl Run<'_, '_> {
    pub(super) fn operations(&mut self, operations: &[Operation], ipvs: &mut dyn Ipvs) {
        if operations.is_empty() {
            return;
        }
        let allowed = self.allowed(operations);
        for operation in &*allowed {
            // Nothing existed when it was read, so a virtual server that is tried there is this proxy's, with any
            // answer.
            if let Operation::AddVirtualServer(server) = operation {
                self.unmade.remove(&server.key);
            }
        }
        let trial = Trial::run(&allowed, self.wanted, ipvs);
        self.effects.surprises = self.effects.surprises.saturating_add(trial.surprises);
        self.note_operations(&allowed, trial);
        if !self.unserved.is_empty() {
            // An address with another virtual server is served.
            let served = self.observed.virtual_servers.keys().filter_map(VirtualServerKey::addr);
            let served: BTreeSet<IpAddr> = served.collect();
            self.unserved.retain(|address| !served.contains(address));
        }
        for key in &self.left {
            self.needs.add(key, self.observed);
        }
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

    /// Leaves out virtual servers that may not be created yet, and those that may not be deleted yet, with their real
    /// servers.
    fn allowed<'o>(&mut self, operations: &'o [Operation]) -> Cow<'o, [Operation]> {
        let mut reasons: BTreeMap<VirtualServerKey, PortError> = BTreeMap::new();
        for operation in operations {
            if let Operation::AddVirtualServer(VirtualServer { key, .. }) = operation {
                reasons.extend(self.not_guarded(key).map(|why| (*key, why)));
            }
        }
        if reasons.is_empty() {
            return Cow::Borrowed(operations);
        }
        let mut allowed = Vec::with_capacity(operations.len());
        for operation in operations {
            match reasons.get(&operation.virtual_server()) {
                Some(why) => {
                    let step = self.step(operation);
                    self.applied.fail(step, why.clone());
                }
                None => allowed.push(*operation),
            }
        }
        self.unserved.extend(reasons.keys().filter_map(VirtualServerKey::addr));
        Cow::Owned(allowed)
    }

    /// Counts outcomes and records what the kernel has now, one virtual server at a time.
    fn note_operations(&mut self, operations: &[Operation], mut trial: Trial) {
        let mut place = 0..;
        for of_server in operations.chunk_by(|one, other| one.virtual_server() == other.virtual_server()) {
            let Some(key) = of_server.first().map(Operation::virtual_server) else { continue };
            let remade = trial.remade.contains(&key) && !trial.dead.contains(&key);
            let mut edit = ServerEdit::open(key, self.observed, remade.then_some(self.wanted));
            for (operation, place) in of_server.iter().zip(&mut place) {
                if let Some(error) = trial.failed.remove(&place) {
                    match operation {
                        Operation::AddVirtualServer(_) => self.unserved.extend(key.addr()),
                        Operation::DeleteVirtualServer(_) => self.left.push(key),
                        _ => {}
                    }
                    let step = self.step(operation);
                    self.applied.fail(step, error);
                    continue;
                }
                let gone = trial.gone.contains(&place);
                edit.apply(operation, gone);
                self.done(operation, gone);
            }
            edit.close(self.observed, self.wanted);
        }
    }

    fn step(&self, operation: &Operation) -> Step {
        self.plan.server(operation).step(self.names)
    }

    fn done(&mut self, operation: &Operation, gone: bool) {
        let (part, mut action) = PlanOperation::Server(operation, None).kind();
        match operation {
            Operation::DeleteVirtualServer(key) => {
                self.drains.forget_virtual_server(key);
                self.leaving.remove(key);
            }
            Operation::UpdateRealServer(key, server) if is_drained(key, server, self.wanted) => {
                action = Action::Drain;
                if gone {
                    self.drains.forget(key, &server.key);
                } else {
                    self.drains.begin(*key, server.key, self.now);
                    self.wanted.time_drains(key, self.drains, self.now);
                }
            }
            Operation::UpdateRealServer(key, RealServer { key: real, .. }) | Operation::DeleteRealServer(key, real) => {
                self.drains.forget(key, real);
            }
            _ => {}
        }
        self.applied.count(part, action, 1);
    }
}

/// A virtual server while operations on it are recorded.
pub(super) struct ServerEdit {
    key: VirtualServerKey,
    server: Option<Server>,
    real_servers: Vec<RealServer>,
}

impl ServerEdit {
    /// Records operations on one virtual server as carried out.
    #[cfg(feature = "testing")]
    pub(super) fn record(operations: &[Operation], observed: &mut Observed, wanted: &Wanted<'_>) {
        let Some(key) = operations.first().map(Operation::virtual_server) else { return };
        let mut edit = ServerEdit::open(key, observed, None);
        for operation in operations {
            edit.apply(operation, false);
        }
        edit.close(observed, wanted);
    }

    /// `remade`: everything desired, if the virtual server was recreated completely.
    fn open(key: VirtualServerKey, observed: &mut Observed, remade: Option<&Wanted<'_>>) -> Self {
        let there = observed.virtual_servers.remove(&key);
        let server = remade.and_then(|wanted| wanted.server(&key)).or(there);
        let real_servers = server.as_ref().map_or_else(Vec::new, |server| server.real_servers.iter().collect());
        ServerEdit { key, server, real_servers }
    }

    /// Records an operation; `gone` if the real server that should drain does not exist.
    fn apply(&mut self, operation: &Operation, gone: bool) {
        let place = |servers: &[RealServer], key| servers.binary_search_by(|server| server.key.cmp(key));
        match operation {
            Operation::AddVirtualServer(new) | Operation::UpdateVirtualServer(new) => match &mut self.server {
                Some(server) => server.config = new.config,
                None => self.server = Some(Server { config: new.config, real_servers: RealServers::default() }),
            },
            Operation::DeleteVirtualServer(_) => {
                self.server = None;
                self.real_servers.clear();
            }
            Operation::UpdateRealServer(_, RealServer { key, .. }) | Operation::DeleteRealServer(_, key)
                if gone || matches!(operation, Operation::DeleteRealServer(..)) =>
            {
                if let Ok(found) = place(&self.real_servers, key) {
                    self.real_servers.remove(found);
                }
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
            _ => {}
        }
    }

    fn close(self, observed: &mut Observed, wanted: &Wanted<'_>) {
        let Some(mut server) = self.server else { return };
        // Share the list with `wanted` if both are equal.
        server.real_servers = RealServers::sorted(&self.real_servers, wanted.endpoints(&self.key));
        observed.virtual_servers.insert(self.key, server);
    }
}

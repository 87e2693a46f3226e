//! Runs operations on virtual and real servers, writes anew what EEXIST, ENOENT or ESRCH contradicts, and records what
//! was done.

use std::collections::BTreeMap;
use std::iter;

use ipvs::model::Weight;
use ipvs::{Operation, RealServer, Subject, VirtualServer, VirtualServerKey};

use super::{Run, not_without_virtual_server, skipped};
use crate::modes::ipvs::lower::{RealServers, Server};
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::split as marks;
use crate::modes::ipvs::wanted::Wanted;
use crate::pack::Gather as _;
use crate::plan::operation::{Operation as PlanOperation, items};
use crate::ports::{Ipvs, ItemFailures, PortError, PortErrorKind, SetKey, SetKind};
use crate::service::Frontend;

impl Run<'_, '_> {
    /// Runs operations as one batch. Nothing existed when it was read, so a virtual server that is tried is this
    /// proxy's from then on, with any answer.
    pub(super) fn call_servers(&mut self, operations: &[PlanOperation<'_>], ipvs: &mut dyn Ipvs) -> ItemFailures {
        let operations = items!(operations, PlanOperation::Server(operation, _) => operation);
        for operation in &operations {
            if let Operation::AddVirtualServer(server) = operation {
                self.unmade.remove(&server.key);
            }
        }
        let mut failures = ipvs.run(&operations);
        let mut wholes = BTreeMap::new();
        failures.retain(|index, failure| {
            let Some(operation) = operations.get(*index) else { return true };
            let (key, kind) = (operation.virtual_server(), failure.kind());
            let is_contradiction = matches!(kind, PortErrorKind::AlreadyExists | PortErrorKind::NotFound);
            if is_contradiction && self.lacking.contains_key(&key) {
                *failure = not_without_virtual_server(&key);
                return true;
            }
            self.effects.is_surprised |= is_contradiction && !wholes.contains_key(&key);
            // Better served without an annotation than not at all, or as before.
            let usual = match operation {
                Operation::AddVirtualServer(server) | Operation::UpdateVirtualServer(server)
                    if kind == PortErrorKind::Unavailable =>
                {
                    self.wanted.with_usual_scheduler(server)
                }
                _ => None,
            };
            match (operation, usual) {
                (Operation::AddVirtualServer(asked), Some(_)) => {
                    let refused = wholes.entry(key).or_insert_with(|| self.write_whole(key, ipvs));
                    let there = self.observed.virtual_servers.get(&key);
                    if refused.iter().any(|(of, _)| *of == Subject::VirtualServer(key)) {
                        self.note_lacking(key, not_without_virtual_server(&key));
                    } else if there.is_some_and(|there| there.config.scheduler == asked.config.scheduler) {
                        // By now the kernel takes it.
                        return false;
                    } else {
                        *failure = until_then(failure);
                    }
                }
                (_, Some(usual)) if ipvs.run(&[&Operation::UpdateVirtualServer(usual)]).is_empty() => {
                    *failure = until_then(failure);
                }
                (Operation::DeleteVirtualServer(_) | Operation::DeleteRealServer(..), _) => {}
                _ if is_contradiction && self.wanted.has_server(&key) => {
                    let refused = wholes.entry(key).or_insert_with(|| self.write_whole(key, ipvs));
                    let of = |subject| refused.iter().find(|(of, _)| *of == subject);
                    if let Some((_, error)) = of(Subject::VirtualServer(key)).or_else(|| of(operation.subject())) {
                        *failure = error.clone();
                        return true;
                    }
                }
                (Operation::AddVirtualServer(_), _) => self.note_lacking(key, not_without_virtual_server(&key)),
                _ => {}
            }
            !is_contradiction
        });
        failures
    }

    /// Writes a desired virtual server with all its real servers, whether they exist or not; with the configured
    /// scheduler if this kernel lacks the one that annotations request. Returns what is refused of them.
    fn write_whole(&mut self, key: VirtualServerKey, ipvs: &mut dyn Ipvs) -> Vec<(Subject, PortError)> {
        let Some(mut server) = self.wanted.server(&key) else { return Vec::new() };
        let mut refused = write_all(key, &server, ipvs);
        let is_missing = |(of, error): &(Subject, PortError)| {
            *of == Subject::VirtualServer(key) && error.kind() == PortErrorKind::Unavailable
        };
        if refused.iter().any(is_missing)
            && let Some(usual) = self.wanted.with_usual_scheduler(&VirtualServer { key, config: server.config })
        {
            server.config = usual.config;
            refused = write_all(key, &server, ipvs);
        }
        let is_refused = |subject| refused.iter().any(|(of, _)| *of == subject);
        if is_refused(Subject::VirtualServer(key)) {
            self.unserved.extend(key.addr());
            self.observed.virtual_servers.remove(&key);
            return refused;
        }
        let reals = server.real_servers.iter().filter(|real| !is_refused(Subject::RealServer(key, real.key)));
        let real_servers = RealServers::sorted(&reals.collect::<Vec<_>>(), self.wanted.endpoints(&key));
        self.observed.virtual_servers.insert(key, Server { real_servers, ..server });
        refused
    }

    pub(super) fn note_lacking(&mut self, key: VirtualServerKey, why: PortError) {
        self.unserved.extend(key.addr());
        self.lacking.insert(key, why);
    }

    /// Why a virtual server must not be created, if its source ranges would not be enforced.
    pub(super) fn not_guarded(&self, key: &VirtualServerKey) -> Option<PortError> {
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

    pub(super) fn note_drains(&mut self, operations: &[PlanOperation<'_>]) {
        for operation in operations {
            let PlanOperation::Server(operation, _) = operation else { continue };
            match operation {
                Operation::DeleteVirtualServer(key) => {
                    self.drains.forget_virtual_server(key);
                    self.leaving.remove(key);
                }
                // A desired real server may have weight 0 on purpose.
                Operation::UpdateRealServer(key, server)
                    if server.config.weight == Weight::DRAIN && !self.wanted.has_real_server(key, &server.key) =>
                {
                    self.drains.begin(*key, server.key, self.now);
                    self.wanted.time_drains(key, self.drains, self.now);
                }
                Operation::UpdateRealServer(key, RealServer { key: real, .. })
                | Operation::DeleteRealServer(key, real) => {
                    self.drains.forget(key, real);
                }
                _ => {}
            }
        }
    }
}

/// The failure to set a scheduler that this kernel lacks.
fn until_then(error: &PortError) -> PortError {
    PortError::new(error.kind(), format!("{error}; the configured scheduler is used until then"))
}

/// Adds a virtual server with its real servers, or changes those that exist. Returns what is refused of them.
fn write_all(key: VirtualServerKey, server: &Server, ipvs: &mut dyn Ipvs) -> Vec<(Subject, PortError)> {
    let reals = server.real_servers.iter().map(|real| Operation::AddRealServer(key, real));
    let add = Operation::AddVirtualServer(VirtualServer { key, config: server.config });
    let add: Vec<Operation> = iter::once(add).chain(reals).collect();
    let (mut change, mut refused) = (Vec::new(), Vec::new());
    for (index, error) in ipvs.run(&add.iter().collect::<Vec<_>>()) {
        match (add.get(index), error.kind()) {
            (Some(Operation::AddVirtualServer(server)), PortErrorKind::AlreadyExists) => {
                change.push(Operation::UpdateVirtualServer(*server));
            }
            (Some(Operation::AddRealServer(key, real)), PortErrorKind::AlreadyExists) => {
                change.push(Operation::UpdateRealServer(*key, *real));
            }
            (operation, _) => refused.extend(operation.map(|operation| (operation.subject(), error))),
        }
    }
    for (index, error) in ipvs.run(&change.iter().collect::<Vec<_>>()) {
        refused.extend(change.get(index).map(|operation| (operation.subject(), error)));
    }
    refused
}

impl Observed {
    pub(super) fn note_server(&mut self, key: VirtualServerKey, operations: &[PlanOperation<'_>], wanted: &Wanted<'_>) {
        let there = self.virtual_servers.get(&key);
        let mut config = there.map(|server| server.config);
        let reals = there.into_iter().flat_map(|server| server.real_servers.iter());
        let mut reals: BTreeMap<_, _> = reals.map(|real| (real.key, real)).gather();
        for operation in operations {
            let PlanOperation::Server(operation, _) = operation else { continue };
            match operation {
                Operation::AddVirtualServer(new) | Operation::UpdateVirtualServer(new) => config = Some(new.config),
                Operation::DeleteVirtualServer(_) => (config, reals) = (None, BTreeMap::new()),
                Operation::AddRealServer(_, real) | Operation::UpdateRealServer(_, real) => {
                    reals.insert(real.key, *real);
                }
                Operation::DeleteRealServer(_, real) => drop(reals.remove(real)),
                _ => {}
            }
        }
        let Some(config) = config else {
            self.virtual_servers.remove(&key);
            return;
        };
        // Share the list with `wanted` if both are equal.
        let reals: Vec<RealServer> = reals.into_values().collect();
        let real_servers = RealServers::sorted(&reals, wanted.endpoints(&key));
        self.virtual_servers.insert(key, Server { config, real_servers });
    }
}

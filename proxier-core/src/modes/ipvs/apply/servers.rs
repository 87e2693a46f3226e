//! Runs operations on virtual and real servers, and records them.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use ipvs::model::Weight;
use ipvs::{Operation, RealServer, RealServerKey, VirtualServer, VirtualServerKey};

use super::{Run, not_without_virtual_server, skipped};
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::servers::{RealServers, Server};
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::ipvs::split as marks;
use crate::modes::ipvs::wanted::Wanted;
use crate::plan::operation::{Operation as PlanOperation, items};
use crate::ports::{Ipvs, ItemFailure, ItemFailures, PortError, PortErrorKind};
use crate::service::Frontend;

impl Run<'_, '_> {
    /// Runs operations as one batch. Nothing existed when it was read, so a virtual server that is tried is this
    /// proxy's from then on, with any answer.
    pub(super) fn call_servers(&mut self, operations: &[PlanOperation<'_>], ipvs: &mut dyn Ipvs) -> ItemFailures {
        let operations = items!(operations, PlanOperation::Server(operation, _) => *operation);
        for operation in &operations {
            if let Operation::AddVirtualServer(server) = operation {
                self.unmade.remove(&server.key);
            }
        }
        let mut failures = ipvs.run(&operations);
        failures.sort_by_key(|failure| failure.index);
        let mut wholes = BTreeMap::new();
        failures.retain_mut(|failure| {
            let Some(operation) = operations.get(failure.index) else { return true };
            let (key, kind) = (operation.virtual_server(), failure.error.kind());
            let is_contradiction = matches!(kind, PortErrorKind::AlreadyExists | PortErrorKind::NotFound);
            match operation {
                _ if is_contradiction && self.lacking.contains_key(&key) => {
                    failure.error = not_without_virtual_server(&key);
                    return true;
                }
                Operation::DeleteVirtualServer(_) | Operation::DeleteRealServer(..) => {}
                _ if is_contradiction && self.wanted.has_server(&key) => {
                    let whole = wholes.entry(key).or_insert_with(|| self.write_whole(key, ipvs));
                    if let Err(error) = whole {
                        self.unserved.extend(key.addr());
                        failure.error = error.clone();
                        return true;
                    }
                }
                Operation::AddVirtualServer(_) => self.note_lacking(key, not_without_virtual_server(&key)),
                _ => {}
            }
            self.effects.is_surprised |= is_contradiction;
            !is_contradiction
        });
        failures
    }

    /// Writes a desired virtual server with all its real servers, whether they exist or not.
    fn write_whole(&mut self, key: VirtualServerKey, ipvs: &mut dyn Ipvs) -> Result<(), PortError> {
        let Some(server) = self.wanted.server(&key) else { return Ok(()) };
        let reals: Vec<RealServer> = server.real_servers.iter().collect();
        let virtual_server = VirtualServer { key, config: server.config };
        let add = Operation::AddVirtualServer(virtual_server);
        let add: Vec<_> =
            iter::once(add).chain(reals.iter().map(|real| Operation::AddRealServer(key, *real))).collect();
        let change = Operation::UpdateVirtualServer(virtual_server);
        let change = iter::once(change).chain(reals.iter().map(|real| Operation::UpdateRealServer(key, *real)));
        let failures = ipvs.run(&add);
        let is_there = |failure: &&ItemFailure| failure.error.kind() == PortErrorKind::AlreadyExists;
        let there: BTreeSet<usize> = failures.iter().filter(is_there).map(|failure| failure.index).collect();
        let change: Vec<_> = change.enumerate().filter(|(place, _)| there.contains(place)).map(|(_, of)| of).collect();
        let failed = failures.into_iter().filter(|failure| !is_there(&failure));
        if let Some(ItemFailure { error, .. }) = failed.chain(ipvs.run(&change)).next() {
            return Err(error);
        }
        self.observed.virtual_servers.insert(key, server);
        Ok(())
    }

    /// Records that a virtual server could not be created, and why its real servers are not.
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

    /// Records what operations on virtual and real servers, which were carried out, mean for draining ones.
    pub(super) fn note_drains(&mut self, operations: &[PlanOperation<'_>]) {
        for operation in items!(operations, PlanOperation::Server(operation, _) => operation) {
            match operation {
                Operation::DeleteVirtualServer(key) => {
                    self.drains.forget_virtual_server(key);
                    self.leaving.remove(key);
                }
                Operation::UpdateRealServer(key, server) if is_drained(key, server, self.wanted) => {
                    self.drains.begin(*key, server.key, self.wanted.drain_time(key), self.now);
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

/// Whether an update lets a real server drain. A desired one may have weight 0 on purpose.
fn is_drained(key: &VirtualServerKey, server: &RealServer, wanted: &Wanted<'_>) -> bool {
    server.config.weight == Weight::DRAIN && !wanted.has_real_server(key, &server.key)
}

impl Observed {
    /// Records operations on one virtual server as carried out.
    pub(super) fn note_server(&mut self, operations: &[&Operation], wanted: &Wanted<'_>) {
        let Some(key) = operations.first().map(|operation| operation.virtual_server()) else { return };
        let there = self.virtual_servers.remove(&key);
        let mut config = there.as_ref().map(|server| server.config);
        let reals = there.iter().flat_map(|server| server.real_servers.iter());
        let mut reals: BTreeMap<RealServerKey, RealServer> = reals.map(|real| (real.key, real)).collect();
        for operation in operations {
            match **operation {
                Operation::AddVirtualServer(new) | Operation::UpdateVirtualServer(new) => config = Some(new.config),
                Operation::DeleteVirtualServer(_) => {
                    config = None;
                    reals.clear();
                }
                Operation::AddRealServer(_, real) | Operation::UpdateRealServer(_, real) => {
                    reals.insert(real.key, real);
                }
                Operation::DeleteRealServer(_, real) => drop(reals.remove(&real)),
                _ => {}
            }
        }
        let Some(config) = config else { return };
        // Share the list with `wanted` if both are equal.
        let real_servers = RealServers::sorted(&reals.into_values().collect::<Vec<_>>(), wanted.endpoints(&key));
        self.virtual_servers.insert(key, Server { config, real_servers });
    }
}

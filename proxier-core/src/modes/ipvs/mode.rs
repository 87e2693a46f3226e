//! IPVS mode from pass to pass: tracked state, and the order in which a pass reads, compares, plans and carries out.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipvs::model::Weight;
use ipvs::{Operation, RealServerKey, VirtualServerKey};

use super::apply::{Effects, apply};
use super::binding::Routes;
use super::diff::{diff, foreign, hold, losing};
use super::guards::{Guards, migrate_backend, read_ipsets};
use super::observed::{BoundRoutes, Contents, Observed};
use super::pass_plan::{complete, flows_to_forget};
use super::plan::{Phase, Plan};
use super::reading::{self, Listed};
use super::state::{Mode, Servers};
use super::wanted::{Changed, EVERYTHING};
use crate::backoff::RulesRetry;
use crate::config::{Binding, Config, Families};
use crate::modes::{self, CarryOut, FrontendRef, Hold, Kind, Outcome, Pass, Plan as PassPlan, Reading, Work};
use crate::net::Family;
use crate::plan::report::{Report, Unread};
use crate::plan::step::Part;
use crate::ports::{LocalNetworks, PortErrorKind, Ports, RouteOwner, Tables as TablesPort};
use crate::safeguard::Kernel;
use crate::service::{Compiled, Desired, Frontend, FrontendObserver, NodeFacts};
use crate::snapshot::HostAddresses;
use crate::time::Moment;

impl Mode {
    fn note_leaving(&mut self, pass: &Pass<'_>) {
        let Some(observed) = &mut self.observed else { return };
        let wanted = self.recorded.index.wanted(pass.desired);
        if pass.full {
            // One of a mark may be desired again.
            self.leaving.retain(|key| observed.virtual_servers.contains_key(key) && !wanted.has_server(key));
            let unwanted = observed.virtual_servers.keys().filter(|key| !wanted.has_server(key));
            self.leaving.extend(unwanted.filter(|key| observed.owns(key)));
        }
        observed.ours.clone_from(&self.leaving);
    }

    /// Settings without effect, and networks that cannot be local as a whole, and why; empty if already reported.
    fn limited(&mut self, routes: Option<&Routes>, config: &Config) -> Vec<String> {
        let unusable = routes.into_iter().flat_map(|routes| &routes.unusable);
        let mut limited: Vec<String> = unusable.map(ToString::to_string).collect();
        if !self.by_routes && config.ipvs.binding == Binding::Routes {
            limited.push(format!(
                "ipvs.binding: routes do not tell proxies apart, so this one, which has names of its own, binds addresses to {}",
                self.names.device
            ));
        }
        if config.ipvs.mark_split && !config.splits_local() {
            limited.push(
                "ipvs.markSplit: only a table of nf_tables can set firewall marks (ipvs.rules: nftables); with rules of iptables, pods and \
                 this node get local endpoints too where a policy says Local"
                    .to_owned(),
            );
        }
        if limited == self.told {
            return Vec::new();
        }
        self.told.clone_from(&limited);
        limited
    }

    fn compare(
        &self,
        pass: Pass<'_>,
        routes: Option<&Routes>,
        hold_back: Hold<'_>,
        report: &mut Report,
    ) -> Option<Plan> {
        let observed = self.observed.as_ref()?;
        let wanted = &self.wanted(pass.desired);
        let config = pass.config();
        let changed = |all| if all { &*EVERYTHING } else { &self.recorded.changed };
        if pass.full {
            report.foreign = foreign(wanted, observed, config).map(|key| key.to_string()).collect();
        }
        let mut plan = diff(wanted, observed, &self.drains, changed(pass.full), config);
        if let Some(routes) = routes {
            let all_routes = pass.full || self.new_facts || routes.differ_in_whole(observed);
            let [add, delete] = routes.diff(wanted, observed, changed(all_routes), config);
            plan.stage(Phase::Serve).routes = add;
            plan.stage(Phase::Clean).routes = delete;
        }
        let held = hold_back(losing(&plan).collect(), observed);
        if !held.is_empty() {
            hold(&held, &mut plan, observed);
        }
        if !observed.before.is_empty() {
            migrate_backend::carry_over(self.guards.by_table(), wanted, observed, &mut plan);
        }
        Some(plan)
    }

    fn time_drains(&mut self, pass: &Pass<'_>) {
        let wanted = self.recorded.index.wanted(pass.desired);
        let changed = pass.changes.frontends().map(|(key, _)| key);
        let marks = &self.recorded.index.marks;
        let of_changed = changed.flat_map(|key| marks.server(key).into_iter().chain([VirtualServerKey::from(*key)]));
        let of_all = self.drains.virtual_servers().filter(|_| pass.full);
        let keys: Vec<VirtualServerKey> = of_changed.chain(of_all).collect();
        for key in keys {
            wanted.time_drains(&key, &mut self.drains, pass.now);
        }
    }

    /// Evaluates the draining real servers that were listed, and returns the operations for them. Those of a mark that
    /// is not used any more drain, too.
    fn judge_drains(&mut self, pass: &Pass<'_>, listed: &[Listed]) -> Vec<Operation> {
        let wanted = self.recorded.index.wanted(pass.desired);
        let mut operations = Vec::new();
        for (key, listed) in listed {
            if listed.as_ref().is_err_and(|error| error.kind() == PortErrorKind::NotFound) {
                // Another program deleted the virtual server with all its real servers.
                self.drains.forget_virtual_server(key);
                continue;
            }
            let verdicts = self.drains.observe(key, listed.as_deref().ok(), pass.now);
            let is_wanted = |real: &RealServerKey| wanted.has_real_server(key, real);
            for real in verdicts.finished.iter().chain(&verdicts.waiting).filter(|real| is_wanted(real)) {
                self.drains.forget(key, real);
            }
            // Connections through it continue only while its Frontend is served.
            if wanted.frontend(key).is_none() {
                continue;
            }
            let finished = verdicts.finished.iter().filter(|real| !is_wanted(real));
            operations.extend(finished.map(|real| Operation::DeleteRealServer(*key, *real)));
            // A full pass has already compared the weights.
            let listed = listed.iter().flatten().filter(|_| !pass.full).map(|listed| listed.server);
            let takes = |real: &RealServerKey| verdicts.takes_connections.contains(real) && !is_wanted(real);
            let raised = listed.filter(|server| takes(&server.key));
            operations
                .extend(raised.map(|server| Operation::UpdateRealServer(*key, server.with_weight(Weight::DRAIN))));
        }
        operations
    }

    /// Whether routes were removed that rules still allow for, since a guard is removed after the routes that it
    /// guards.
    fn lost_guarded(&self, plan: &Plan) -> bool {
        let Some(observed) = &self.observed else { return false };
        let deleted = plan.stages.get(&Phase::Clean).into_iter().flat_map(|clean| &clean.routes);
        let mut went = deleted.map(|route| &route.network).filter(|network| !observed.routes.has(network));
        went.any(|network| {
            let guarded = self.guards.guarded_networks(Family::of(network.addr()));
            guarded.is_some_and(|guarded| !self.by_routes || guarded.contains(network))
        })
    }

    pub(super) fn note_virtual_servers(&mut self, plan: &Plan) {
        self.recorded.changed = Changed::default();
        let Some(observed) = &self.observed else { return };
        self.unmade.retain(|key| !observed.virtual_servers.contains_key(key));
        // Virtual servers that wait for rules or entries are served by the pass that writes those.
        for key in plan.guarded.iter().filter(|key| !observed.virtual_servers.contains_key(key)) {
            self.recorded.changed.virtual_servers.insert(*key);
            self.recorded.changed.addresses.extend(key.addr());
        }
    }

    /// Records which rules or layouts the kernel has, what it turned out to lack, and when to retry. `skipped`:
    /// families that are not in the plan may have changed.
    pub(super) fn note_guards(
        &mut self,
        plan: &mut Plan,
        effects: &Effects,
        skipped: bool,
        clock: &dyn Fn() -> Moment,
    ) {
        let programs = match &mut self.guards {
            Guards::Programs(programs) => programs,
            Guards::Nft(tables) => {
                tables.written = std::mem::take(&mut plan.layouts);
                tables.written.retain(|family, _| !effects.unwritten.contains_key(family));
                return;
            }
        };
        programs.rules.retain(|family, _| !skipped || plan.inputs.contains_key(family));
        // Do not retry what this kernel turned out to lack.
        for (family, capabilities) in &effects.reduced {
            programs.capabilities.physdev &= capabilities.physdev;
            programs.capabilities.ipvs &= capabilities.ipvs;
            if let Some(taken) = plan.inputs.get_mut(family) {
                taken.capabilities = *capabilities;
            }
        }
        for (family, inputs) in std::mem::take(&mut plan.inputs) {
            let Some(kind) = effects.unwritten.get(&family) else {
                programs.rules.insert(family, inputs);
                programs.retry.remove(&family);
                continue;
            };
            // If the lock was not available, or it was skipped, nothing changed. After another failure one table may be
            // as desired and another not.
            if !matches!(kind, PortErrorKind::Busy | PortErrorKind::Skipped) {
                programs.rules.remove(&family);
            }
            let seed = self.seed;
            let retry = programs.retry.entry(family).or_insert_with(|| RulesRetry::new(seed));
            retry.failed(clock());
        }
    }
}

impl modes::Mode for Mode {
    fn index_service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        self.recorded.service(before, after);
    }

    fn index_frontend(&mut self, _written: FrontendRef<'_>, before: FrontendRef<'_>, after: FrontendRef<'_>) {
        let Some(key) = after.or(before).map(|frontend| VirtualServerKey::from(frontend.key)) else { return };
        let has_server = |mode: &Mode, frontend: Option<&Arc<Frontend>>| {
            frontend.is_some_and(|frontend| mode.recorded.index.endpoints(&key, frontend).is_some())
        };
        let had = has_server(self, before);
        self.recorded.frontend(before, after);
        // Records identify this proxy's virtual servers with marks.
        match (had, has_server(self, after)) {
            (false, true) if !self.leaving.remove(&key) => drop(self.unmade.insert(key)),
            // A virtual server that no pass has created may be another program's.
            (true, false) if !self.unmade.remove(&key) => drop(self.leaving.insert(key)),
            _ => {}
        }
    }

    fn compact(&mut self) {
        self.recorded.index.compact();
        if let Some(observed) = &mut self.observed {
            observed.compact();
        }
    }

    fn kernel(&self) -> Option<&dyn Kernel> {
        Some(self.observed.as_ref()?)
    }

    fn forget_kernel(&mut self) {
        self.remember();
    }

    fn read(&mut self, desired: &Desired, host: &HostAddresses, facts: &NodeFacts, ports: &mut Ports<'_>) -> Reading {
        let wanted = &self.recorded.index.wanted(desired);
        let config = facts.config();
        let Ports { ipvs, sets, rules, links, routes, tables, .. } = ports;
        let families: Vec<Family> = config.families.iter().collect();
        let is_settled = self.observed.is_some() && self.leaving.is_empty();
        let (mut observed, mut unread) = (Observed::default(), Vec::new());
        let mut read = |found: (Contents, Vec<Unread>)| {
            let routes = (!self.knows_no_routes).then_some(&mut **routes);
            (observed, unread) =
                reading::read(found, (&mut **ipvs, &mut **links, routes), (host, config), wanted, is_settled);
        };
        match &mut self.guards {
            Guards::Programs(_) => rules.list_meanwhile(&families, &mut || read(read_ipsets(config, *sets))),
            Guards::Nft(known) => read(known.read(config, *tables)),
        }
        if !self.has_taken_over {
            let (before, more) = migrate_backend::read(self.guards.by_table(), config, *sets, *tables);
            observed.before = before;
            unread.extend(more);
        }
        self.remember();
        if !unread.is_empty() {
            return Err(unread);
        }
        self.knows_no_routes |= !self.by_routes && observed.routes.is_empty();
        self.restore_into(&mut observed);
        observed.is_first = !self.has_taken_over;
        if observed.is_first {
            observed.recall_marks(config);
        }
        self.recorded.index.settle_marks(desired, &observed);
        self.observed = Some(observed);
        Ok(())
    }

    fn plan(&mut self, pass: Pass<'_>, hold: Hold<'_>, report: &mut Report, ports: &mut Ports<'_>) -> Option<PassPlan> {
        self.note_leaving(&pass);
        let is_wanted = |address| self.wanted(pass.desired).has_address(address);
        let routes = (!self.knows_no_routes).then(|| Routes::new(&is_wanted, pass.facts));
        let mut plan = self.compare(pass, routes.as_ref(), hold, report)?;
        let before = pass.is_preview.then(|| self.drains.clone());
        self.time_drains(&pass);
        // Between full passes only networks change.
        if pass.full || routes.is_some() {
            report.limited = self.limited(routes.as_ref(), pass.config());
        }
        let draining = reading::read_rest(self, pass, &mut plan, report, ports);
        let drained = self.judge_drains(&pass, &draining);
        let forget = flows_to_forget(self, &pass, &plan);
        for operation in drained {
            plan.retire_from(&operation.virtual_server()).push(operation);
        }
        if let (Guards::Nft(tables), Some(observed)) = (&mut self.guards, &self.observed) {
            let is_new = pass.full || self.new_facts || plan.stages.values().any(|stage| !stage.routes.is_empty());
            plan.layouts = tables.layouts(&pass, routes.as_ref(), observed, is_new);
        }
        complete(self, pass, routes.as_ref(), &mut plan, report);
        if let Some(before) = before {
            self.drains = before;
        }
        if pass.full {
            report.drift.append(&mut self.restored);
        }
        Some(PassPlan::of_mode(plan, forget))
    }

    fn carry_out(&mut self, work: Box<dyn Work>, arguments: CarryOut<'_>, ports: &mut Ports<'_>) -> Outcome {
        let CarryOut { names, desired, changes, report, clock } = arguments;
        let mut plan: Plan = work.into_plan();
        let applied = apply(self, &plan, desired, (&names, clock()), ports);
        let Some((applied, effects)) = applied else { return Outcome::default() };
        changes.confirm_all_but(|_| false);
        self.note_virtual_servers(&plan);
        self.note_guards(&mut plan, &effects, !report.unread.is_empty(), clock);
        self.has_taken_over |= report.full && report.unread.is_empty() && applied.failures.is_empty();
        self.new_facts = false;
        // Without its table, nothing that changes can be written.
        let lacks_table = applied.failures.iter().any(|failure| failure.step.part == Part::Table);
        if lacks_table || applied.failures.iter().any(|failure| failure.error.kind() == PortErrorKind::Unknown) {
            self.forget_kernel();
        }
        if let Some(observed) = self.observed.as_mut().filter(|_| self.has_taken_over) {
            observed.before.clear();
        }
        report.draining = self.drains.len();
        let (surprised, read_again) = (effects.is_surprised, self.lost_guarded(&plan));
        Outcome { applied, surprised, read_again, ..Outcome::default() }
    }

    fn next_wake(&self) -> Option<Moment> {
        self.observed.as_ref()?;
        let retries = match &self.guards {
            Guards::Programs(programs) => Some(programs.retry.values().map(|retry| retry.at)),
            Guards::Nft(_) => None,
        };
        self.drains.next_check().into_iter().chain(retries.into_iter().flatten()).min()
    }

    fn facts_changed(&mut self) {
        self.new_facts = true;
    }

    fn has_read_tables(&self) -> bool {
        self.guards.by_table() && self.observed.is_some()
    }

    fn restore_tables(&mut self, tables: &mut dyn TablesPort) {
        if let (Guards::Nft(known), Some(observed)) = (&self.guards, &mut self.observed) {
            self.restored.extend(known.restore(observed, tables));
        }
    }

    fn device_differs(&self, host: &HostAddresses) -> bool {
        let Some(observed) = &self.observed else { return true };
        let there: BTreeSet<_> = reading::device_addresses(host, &self.names).collect();
        let is_gone = !self.by_routes && !reading::has_device(host, &self.names);
        is_gone || there != observed.addresses
    }

    fn routes_differ(&self, routes: &mut dyn LocalNetworks) -> bool {
        let Some(observed) = self.observed.as_ref().filter(|_| self.by_routes) else { return false };
        let there = routes.networks(RouteOwner::Ipvs).map(BoundRoutes::from_iter);
        there.is_ok_and(|there| there != observed.routes)
    }

    /// Addresses at which the kernel, as last observed, serves node ports.
    fn served_node_addresses(&self, families: Families) -> Vec<IpAddr> {
        let observed = self.observed.iter();
        observed.flat_map(|observed| families.iter().flat_map(|family| observed.node_port_addresses(family))).collect()
    }

    fn retry_at_once(&mut self) {
        if let Guards::Programs(programs) = &mut self.guards {
            programs.retry.clear();
        }
    }

    /// Addresses of the device and entries of sets are an earlier process's.
    fn may_serve_first(&self, host: &HostAddresses) -> bool {
        let entries = self.observed.iter().flat_map(|observed| observed.sets.values());
        reading::device_addresses(host, &self.names).next().is_none() && entries.into_iter().all(BTreeSet::is_empty)
    }

    fn servers<'a>(&'a self, desired: &'a Desired) -> Option<Servers<'a>> {
        Some(Servers { wanted: self.wanted(desired), observed: self.observed.as_ref(), drains: &self.drains })
    }

    fn knows_kernel(&self) -> bool {
        self.observed.is_some()
    }

    fn kind(&self) -> Kind {
        Kind::Ipvs
    }
}

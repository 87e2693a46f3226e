//! IPVS mode from pass to pass: what it wants, what it knows of the kernel, and what it has begun.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipvs::model::{ObservedRealServer, TimeoutsUpdate, Weight};
use ipvs::{Operation, VirtualServerKey};

use super::apply::apply;
use super::diff::{Changes, diff, diff_changed, foreign};
use super::drain::{self, Drains, Verdicts};
use super::held;
use super::observed::Observed;
use super::plan::{Plan, RulesChange, plan};
use super::reading;
use super::rules;
use super::udp;
use super::wanted::{Changed, Wanted};
use crate::config::{Config, Families};
use crate::modes::shared::names::Names;
use crate::modes::shared::retry::RulesRetry;
use crate::modes::shared::sysctls::SysctlChange;
use crate::modes::{Pass, Refreshed};
use crate::net::{Family, FrontendKey};
use crate::ports::{PortError, PortErrorKind, Ports, Rules};
use crate::reconciler::report::{Report, Unread};
use crate::reconciler::safeguard::{Kernel as _, Safeguard};
use crate::reconciler::schedule::Moment;
use crate::reconciler::step::{Action, Part, Step};
use crate::service::NodeFacts;
use crate::snapshot::{HostAddresses, ObjectKey, Store};

/// Settings of IPVS mode.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Timeouts of IPVS. Default: left alone.
    pub timeouts: TimeoutsUpdate,
    /// How real servers drain.
    pub drain: drain::Policy,
    /// What iptables and the kernel can do; restricted further by what the iptables program reports.
    pub capabilities: rules::Capabilities,
}

/// IPVS mode of one node.
#[derive(Debug)]
pub(crate) struct Mode {
    /// Timeouts of IPVS.
    timeouts: TimeoutsUpdate,
    /// What iptables and the kernel can do, as far as known.
    capabilities: rules::Capabilities,
    seed: u64,
    wanted: Wanted,
    /// What compiling changed since the last plan that was carried out.
    changed: Changed,
    /// Our virtual servers that are not wanted any more, until they are gone: this process wanted them, or found them
    /// marked as ours. Somebody may remove the marks before they are deleted.
    leaving: BTreeSet<VirtualServerKey>,
    /// Wanted virtual servers that no pass has made yet: somebody else's may have their address and port.
    unmade: BTreeSet<VirtualServerKey>,
    /// Addresses and ports whose UDP flows could not be forgotten yet.
    unforgotten: BTreeSet<SocketAddr>,
    /// The node facts differ from those of the last plan that was carried out.
    new_facts: bool,
    /// The last pass found something unexpected in the kernel.
    surprised: bool,
    /// What the kernel holds, as far as known; `None` before it was read.
    observed: Option<Observed>,
    /// The inputs of the rules that the kernel holds.
    rules: BTreeMap<Family, rules::Inputs>,
    /// Families whose rules could not be restored.
    rules_retry: BTreeMap<Family, RulesRetry>,
    /// Steps that failed in the last full pass and since. The next full pass finds them again; they are not drift.
    unfinished: BTreeSet<(Part, String, String)>,
    drains: Drains,
}

/// A plan, and what follows from carrying it out.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    /// Inputs of the rules that the kernel has after this plan.
    inputs: BTreeMap<Family, rules::Inputs>,
}

/// The differences to the kernel.
struct Compared {
    changes: Changes,
    kept: rules::Kept,
}

/// What was read besides the tables, once the differences were known.
#[derive(Default)]
struct Readings {
    sysctls: Vec<SysctlChange>,
    timeouts: Option<TimeoutsUpdate>,
    /// Draining real servers that were due.
    draining: Vec<(VirtualServerKey, Result<Vec<ObservedRealServer>, PortError>)>,
    /// Families whose rules may have to change, with what the kernel has.
    rules: Vec<(Family, rules::Inputs, iptables::Dump)>,
    /// Families whose rules do not have to change.
    rules_stay: Vec<Family>,
    /// Families whose rules could not be read, or are not tried now.
    rules_put_off: BTreeSet<Family>,
}

impl Mode {
    pub(crate) fn new(config: &Config, options: &Options, seed: u64) -> Self {
        Mode {
            timeouts: options.timeouts,
            capabilities: options.capabilities,
            seed,
            wanted: Wanted::new(config),
            changed: Changed::default(),
            leaving: BTreeSet::new(),
            unmade: BTreeSet::new(),
            unforgotten: BTreeSet::new(),
            new_facts: true,
            surprised: false,
            observed: None,
            rules: BTreeMap::new(),
            rules_retry: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            drains: Drains::new(options.drain.clone()),
        }
    }

    pub(crate) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    pub(crate) fn observed(&self) -> Option<&Observed> {
        self.observed.as_ref()
    }

    pub(crate) fn drains(&self) -> &Drains {
        &self.drains
    }

    /// For a plan that is not carried out: what planning changes is set back by [`Mode::set_drains`].
    pub(crate) fn set_drains(&mut self, drains: Drains) {
        self.drains = drains;
    }

    pub(crate) fn facts_changed(&mut self) {
        self.new_facts = true;
    }

    /// The next pass reads the kernel.
    pub(crate) fn forget_kernel(&mut self) {
        self.observed = None;
    }

    /// The next pass reads the rules too.
    pub(crate) fn forget_rules(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn compact(&mut self) {
        self.wanted.compact();
        if let Some(observed) = &mut self.observed {
            observed.compact();
        }
    }

    /// When to try again to restore rules, or to check real servers that drain. `None` while the kernel could not be read:
    /// the next full pass does both.
    pub(crate) fn next_wake(&self) -> Option<Moment> {
        self.observed.as_ref()?;
        self.drains.next_check().into_iter().chain(self.rules_retry.values().map(|retry| retry.at)).min()
    }

    /// Compiles Services again, and notes which virtual servers are newly wanted or no longer wanted.
    pub(crate) fn refresh(&mut self, store: &Store, facts: &NodeFacts, services: &BTreeSet<ObjectKey>) -> Refreshed {
        let compiled = services.iter().filter_map(|service| self.wanted.desired().compiled(service));
        let before: BTreeSet<VirtualServerKey> =
            compiled.flat_map(|compiled| &compiled.frontends).map(|frontend| frontend.key.into()).collect();
        let changed = self.wanted.refresh(store, facts, services);
        for key in &changed.virtual_servers {
            match (before.contains(key), self.wanted.has_server(key)) {
                (false, true) if !self.leaving.remove(key) => {
                    self.unmade.insert(*key);
                }
                // A virtual server that no pass has made may be somebody else's.
                (true, false) if !self.unmade.remove(key) => {
                    self.leaving.insert(*key);
                }
                _ => {}
            }
        }
        let keys = changed.virtual_servers.iter().filter_map(|key| FrontendKey::try_from(*key).ok());
        let refreshed = Refreshed { frontends: keys.collect(), health_checks: !changed.health_checks.is_empty() };
        self.changed.extend(changed);
        refreshed
    }

    /// Whether the dummy device has other addresses than known, or is gone.
    pub(crate) fn device_differs(&self, host: &HostAddresses) -> bool {
        let Some(observed) = &self.observed else { return true };
        let there: BTreeSet<_> = reading::device_addresses(host).collect();
        !reading::has_device(host) || there != observed.addresses
    }

    /// The addresses on which an earlier process served node ports, and this one as far as known.
    pub(crate) fn served_node_addresses(&self, families: Families) -> impl Iterator<Item = IpAddr> {
        let observed = self.observed.iter();
        observed.flat_map(move |observed| families.iter().flat_map(|family| observed.node_port_addresses(family)))
    }

    /// Reads the kernel's tables.
    ///
    /// # Errors
    /// What could not be read. The kernel is unknown then.
    pub(crate) fn read(
        &mut self,
        host: &HostAddresses,
        config: &Config,
        ports: &mut Ports<'_>,
    ) -> Result<(), Vec<Unread>> {
        let Ports { ipvs, sets, rules, .. } = ports;
        let families: Vec<Family> = config.families.iter().collect();
        let is_settled = self.observed.is_some() && self.leaving.is_empty();
        let mut read = Ok(Observed::new());
        rules.list_meanwhile(&families, &mut || {
            read = reading::read(*ipvs, *sets, host, config, &self.wanted, is_settled);
        });
        match read {
            Ok(observed) => {
                self.observed = Some(observed);
                Ok(())
            }
            Err(errors) => {
                self.observed = None;
                Err(errors)
            }
        }
    }

    /// Compares, reads what else has to be read, and makes the plan. `None` when the kernel is unknown.
    pub(crate) fn prepare(
        &mut self,
        pass: Pass<'_>,
        safeguard: &mut Safeguard,
        report: &mut Report,
        ports: &mut Ports<'_>,
    ) -> Option<Prepared> {
        self.note_leaving(pass.full);
        let compared = self.compare(pass, safeguard, report)?;
        let readings = self.read_rest(pass, &compared, report, ports);
        for family in &readings.rules_stay {
            self.rules_retry.remove(family);
        }
        let verdicts = self.judge_drains(&readings, pass.now);
        self.plan(pass, compared, &readings, &verdicts, report)
    }

    fn note_leaving(&mut self, full: bool) {
        let Some(observed) = &mut self.observed else { return };
        if full {
            self.leaving.retain(|key| observed.virtual_servers.contains_key(key));
            let unwanted = observed.virtual_servers.keys().filter(|key| !self.wanted.has_server(key));
            self.leaving.extend(unwanted.filter(|key| observed.owns(key)));
        }
        observed.ours.clone_from(&self.leaving);
    }

    fn compare(&self, pass: Pass<'_>, safeguard: &mut Safeguard, report: &mut Report) -> Option<Compared> {
        let observed = self.observed.as_ref()?;
        let config = pass.config();
        let mut changes = if pass.full {
            report.foreign = foreign(&self.wanted, observed, config).map(|key| key.to_string()).collect();
            diff(&self.wanted, observed, config)
        } else {
            diff_changed(&self.wanted, observed, &self.changed, config)
        };
        if let Some(stopped) =
            safeguard.check(held::losing(&changes), observed, pass.store, self.wanted.desired(), pass.now)
        {
            held::hold(&stopped, &mut changes, observed);
            report.stopped = Some(stopped.to_string().into());
        }
        let kept = rules::Kept::new(&self.leaving, &changes, observed);
        Some(Compared { changes, kept })
    }

    /// Reads what the plan needs besides the tables. What cannot be read is reported and put off.
    fn read_rest(&self, pass: Pass<'_>, compared: &Compared, report: &mut Report, ports: &mut Ports<'_>) -> Readings {
        let due = self.drains.due(pass.now).into_iter();
        let draining = due.map(|key| (key, ports.ipvs.real_servers(&key))).collect();
        let mut readings = Readings { draining, ..Readings::default() };
        if pass.full {
            (readings.sysctls, report.unmet) = reading::sysctl_changes(ports.sysctls, pass.settings);
            match reading::timeout_changes(ports.ipvs, &self.timeouts) {
                Ok(timeouts) => readings.timeouts = timeouts,
                Err(error) => report.unread.push(error),
            }
        }
        for family in pass.families() {
            if !pass.full && self.has_same_rules(family) {
                continue;
            }
            if self.rules_retry.get(&family).is_some_and(|retry| retry.at > pass.now) {
                readings.rules_put_off.insert(family);
                report.rules_put_off.insert(family);
                continue;
            }
            match self.read_rules(pass, family, &compared.kept, ports.rules) {
                Ok(None) => readings.rules_stay.push(family),
                Ok(Some((inputs, dump))) => readings.rules.push((family, inputs, dump)),
                Err(error) => {
                    readings.rules_put_off.insert(family);
                    report.unread.push(error);
                }
            }
        }
        readings
    }

    /// Reads a family's rules, with the inputs of those that it has to have; `None` when the kernel is known to have them.
    fn read_rules(
        &self,
        pass: Pass<'_>,
        family: Family,
        kept: &rules::Kept,
        port: &mut dyn Rules,
    ) -> Result<Option<(rules::Inputs, iptables::Dump)>, Unread> {
        let unread = |error| Unread::new(format_args!("rules of {}", family.name()), error);
        let mut capabilities = self.capabilities;
        let written = self.rules.get(&family);
        if let (false, Some(written)) = (pass.full, written) {
            capabilities = written.capabilities();
        } else {
            capabilities.random_fully &= port.has_random_fully(family).map_err(unread)?;
        }
        let inputs = rules::Inputs::new(family, &self.wanted, pass.facts, capabilities).with_kept(kept);
        if !pass.full && written == Some(&inputs) {
            return Ok(None);
        }
        Ok(Some((inputs, port.dump(family).map_err(unread)?)))
    }

    /// Judges the draining real servers that were listed.
    fn judge_drains(&mut self, readings: &Readings, now: Moment) -> Vec<(VirtualServerKey, Verdicts)> {
        let mut all = Vec::new();
        for (key, listed) in &readings.draining {
            let verdicts = match listed {
                Ok(listed) => self.drains.observe(key, listed, now),
                Err(error) if error.kind() == PortErrorKind::NotFound => {
                    // Somebody deleted the virtual server with all its real servers.
                    self.drains.forget_virtual_server(key);
                    continue;
                }
                Err(_) => self.drains.observe_failed(key, now),
            };
            let watched = verdicts.finished.iter().map(|finished| finished.real);
            for real in watched.chain(verdicts.waiting.iter().map(|waiting| waiting.real)) {
                if self.wanted.has_real_server(key, &real) {
                    self.drains.cancel(key, &real);
                }
            }
            all.push((*key, verdicts));
        }
        all
    }

    /// Makes the whole plan, from what is known: nothing is read and nothing is changed.
    fn plan(
        &self,
        pass: Pass<'_>,
        compared: Compared,
        readings: &Readings,
        verdicts: &[(VirtualServerKey, Verdicts)],
        report: &mut Report,
    ) -> Option<Prepared> {
        let observed = self.observed.as_ref()?;
        let Compared { changes, kept } = compared;
        let forget = self.flows_to_forget(pass, &changes);
        let mut plan = plan(changes, &self.wanted, observed, &self.drains);
        plan.forget = forget;
        plan.create_device = pass.full && !reading::has_device(pass.host);
        plan.sysctls.clone_from(&readings.sysctls);
        plan.timeouts = readings.timeouts;
        plan.rules_put_off.clone_from(&readings.rules_put_off);
        self.plan_drains(pass.full, &mut plan, readings, verdicts);
        let mut inputs = BTreeMap::new();
        for (family, new, dump) in &readings.rules {
            match self.plan_rules(*family, new, dump, &mut plan) {
                Ok(()) => drop(inputs.insert(*family, new.clone())),
                Err(error) => {
                    plan.rules_put_off.insert(*family);
                    report.unread.push(error);
                }
            }
        }
        self.order_by_rules(pass, &mut plan, &kept, &inputs);
        if pass.full && pass.settled && !pass.failing {
            report.drift = self.drift(pass, &plan, &inputs);
        }
        Some(Prepared { plan, inputs })
    }

    fn flows_to_forget(&self, pass: Pass<'_>, changes: &Changes) -> crate::ports::UdpServices {
        let mut flows = udp::stale(changes, &self.wanted, &self.drains);
        if pass.full && !pass.settled {
            for (place, answering) in udp::all(&self.wanted, &self.drains) {
                flows.entry(place).or_insert(answering);
            }
        }
        for place in &self.unforgotten {
            let key = udp::virtual_server(*place);
            flows.entry(*place).or_insert_with(|| udp::answering(&key, &self.wanted, &self.drains));
        }
        flows
    }

    /// Adds what draining real servers need.
    fn plan_drains(&self, full: bool, plan: &mut Plan, readings: &Readings, verdicts: &[(VirtualServerKey, Verdicts)]) {
        let listed: BTreeMap<_, _> = readings.draining.iter().map(|(key, listed)| (*key, listed)).collect();
        for (key, verdicts) in verdicts.iter().filter(|(key, _)| self.wanted.has_server(key)) {
            let key = *key;
            let finished =
                verdicts.finished.iter().filter(|finished| !self.wanted.has_real_server(&key, &finished.real));
            plan.retire.extend(finished.map(|finished| Operation::DeleteRealServer(key, finished.real)));
            // A full pass has already compared the weights.
            let listed = listed.get(&key).into_iter().flat_map(|listed| listed.iter().flatten());
            for server in listed.filter(|_| !full).map(|listed| listed.server) {
                if verdicts.takes_connections.contains(&server.key) && !self.wanted.has_real_server(&key, &server.key) {
                    let drained = server.with_weight(Weight::DRAIN);
                    plan.retire.push(Operation::UpdateRealServer(key, drained));
                }
            }
        }
    }

    /// Adds the change of a family's rules, if any.
    fn plan_rules(
        &self,
        family: Family,
        inputs: &rules::Inputs,
        dump: &iptables::Dump,
        plan: &mut Plan,
    ) -> Result<(), Unread> {
        let invalid = |error: &(dyn std::error::Error + 'static)| {
            let error = PortError::from_error(PortErrorKind::Invalid, error);
            Unread::new(format_args!("rules of {}", family.name()), error)
        };
        let rules = rules::compile(inputs).map_err(|error| invalid(&error))?;
        let changes = rules.changes(dump).map_err(|error| invalid(&error))?;
        if changes.is_empty() {
            return Ok(());
        }
        let mut change = RulesChange::new(family, changes);
        for capabilities in inputs.capabilities().reduced() {
            let rules = rules::compile(&inputs.clone().with_capabilities(capabilities));
            let changes = rules.map_err(|error| invalid(&error))?.changes(dump).map_err(|error| invalid(&error))?;
            // Skip it if the reduced rules are the same: the kernel would refuse them again.
            if changes != change.changes {
                change.without.push((capabilities, changes));
            }
        }
        let late = self.rules.get(&family).is_some_and(|written| inputs.only_relaxes(written));
        if late { &mut plan.relax } else { &mut plan.rules }.push(change);
        Ok(())
    }

    /// Moves operations that need no rules before them, and records which virtual servers must not be served without rules.
    fn order_by_rules(
        &self,
        pass: Pass<'_>,
        plan: &mut Plan,
        kept: &rules::Kept,
        inputs: &BTreeMap<Family, rules::Inputs>,
    ) {
        let changing = |family: &Family| plan.rules.iter().any(|change| change.family == *family);
        let waiting: BTreeMap<Family, rules::Inputs> = pass
            .families()
            .filter(|family| plan.rules_put_off.contains(family) || changing(family))
            .map(|family| {
                let new = inputs.get(&family).cloned();
                let capabilities = self.capabilities;
                let made = || rules::Inputs::new(family, &self.wanted, pass.facts, capabilities).with_kept(kept);
                (family, new.unwrap_or_else(made))
            })
            .collect();
        // Once for each family: the inputs hold every guarded load balancer.
        let compared: BTreeMap<Family, (rules::Inputs, Option<&rules::Inputs>)> = waiting
            .into_iter()
            .map(|(family, new)| {
                // Rules that differ although their inputs do not were changed by somebody else, nobody knows how.
                let before = self.rules.get(&family).filter(|before| **before != new);
                // The programs are asked for their capabilities only when rules are made.
                let new = match before {
                    Some(before) => new.with_capabilities(before.capabilities()),
                    None => new,
                };
                (family, (new, before))
            })
            .collect();
        let needs = |key: &VirtualServerKey| {
            let (Some(frontend), Some((new, before))) = (self.wanted.frontend(key), compared.get(&key.family().into()))
            else {
                return false;
            };
            new.are_needed_by(frontend, *before)
        };
        let is_there = |key: &VirtualServerKey| {
            self.observed.as_ref().is_some_and(|observed| observed.virtual_servers.contains_key(key))
        };
        plan.put_rules_last(needs, is_there);
        if compared.is_empty() {
            return;
        }
        let added = plan.serve.iter().filter_map(|operation| match operation {
            Operation::AddVirtualServer(server) => Some(server.key),
            _ => None,
        });
        let has_ranges =
            |key: &VirtualServerKey| self.wanted.frontend(key).is_some_and(|frontend| frontend.source_ranges.is_some());
        plan.guarded = added.filter(|key| compared.contains_key(&key.family().into()) && has_ranges(key)).collect();
    }

    /// Whether the rules of a family cannot have changed. Costs O(changed entries); building `Inputs` costs O(guarded load
    /// balancers). Rules depend only on node facts and on entries in sets.
    fn has_same_rules(&self, family: Family) -> bool {
        let changed = self.changed.entries.iter().any(|(set, _)| set.family == family);
        let is_known = self.rules.contains_key(&family) && !self.rules_retry.contains_key(&family);
        !changed && !self.new_facts && is_known
    }

    /// What somebody else changed: operations on things that the input did not change.
    fn drift(&self, pass: Pass<'_>, plan: &Plan, inputs: &BTreeMap<Family, rules::Inputs>) -> Vec<Step> {
        let changed = &self.changed;
        let names = Names::new(pass.store, self.wanted.desired());
        let mut drift = Vec::new();
        drift.extend(plan.create_device.then(Step::device));
        drift.extend(plan.sysctls.iter().map(Step::sysctl));
        drift.extend(plan.timeouts.iter().map(Step::timeouts));
        drift.extend(plan.create_sets.iter().copied().map(Step::create_set));
        for (action, entries) in [(Action::Add, &plan.add_entries), (Action::Delete, &plan.delete_entries)] {
            for (set, elements) in entries {
                let others = elements.iter().filter(|element| !changed.entries.contains(&(*set, (*element).clone())));
                drift.extend(others.map(|element| Step::entry(action, *set, element)));
            }
        }
        let unfinished = |step: &Step| self.unfinished.contains(&(step.part, step.name.clone(), step.detail.clone()));
        for change in plan.rules.iter().chain(&plan.relax) {
            let same = self.rules.get(&change.family) == inputs.get(&change.family);
            drift.extend(same.then(|| Step::rules(change)));
        }
        for (action, addresses) in
            [(Action::Add, &plan.bind_first), (Action::Add, &plan.bind), (Action::Delete, &plan.unbind)]
        {
            let others = addresses
                .iter()
                .filter(|address| !changed.addresses.contains(address) && !changed.elsewhere.contains(address));
            drift.extend(others.map(|address| Step::address(action, *address)));
        }
        for operation in [&plan.serve_first, &plan.retire_first, &plan.serve, &plan.retire].into_iter().flatten() {
            let key = operation.virtual_server();
            let ended =
                matches!(operation, Operation::DeleteRealServer(key, real) if self.drains.is_draining(key, real));
            if !ended && !changed.virtual_servers.contains(&key) {
                drift.push(Step::operation(operation, &names));
            }
        }
        drift.retain(|step| !unfinished(step));
        drift
    }

    /// Carries out a plan. Returns whether the kernel surprised, so that it has to be read again: at once after a surprise,
    /// but not twice in a row, or a contradictory kernel would loop us.
    pub(crate) fn carry_out(
        &mut self,
        prepared: Prepared,
        store: &Store,
        report: &mut Report,
        clock: &dyn Fn() -> Moment,
        ports: &mut Ports<'_>,
    ) -> bool {
        let Prepared { plan, mut inputs } = prepared;
        let now = clock();
        let Some(observed) = &mut self.observed else { return false };
        let names = Names::new(store, self.wanted.desired());
        let (applied, effects) = apply(&plan, &self.wanted, observed, &names, ports);
        if !self.unmade.is_empty() {
            // Nothing was there when it was read, so a virtual server that was tried there is ours, whatever the answer.
            // One that waits for rules or entries may not have been tried.
            let waits = |key: &VirtualServerKey| {
                plan.guarded.contains(key) || self.wanted.frontend(key).is_some_and(|of| of.source_ranges.is_some())
            };
            let operations = plan.serve_first.iter().chain(&plan.serve);
            let tried: BTreeSet<VirtualServerKey> =
                operations.map(Operation::virtual_server).filter(|key| !waits(key)).collect();
            self.unmade.retain(|key| !tried.contains(key) && !observed.virtual_servers.contains_key(key));
        }
        self.changed = Changed::default();
        // Virtual servers that wait for rules or entries are served by the pass that writes those.
        for key in plan.guarded.iter().filter(|key| !observed.virtual_servers.contains_key(key)) {
            self.changed.virtual_servers.insert(*key);
            if let VirtualServerKey::Address { addr, .. } = key {
                self.changed.addresses.insert(*addr);
            }
        }
        self.new_facts = false;
        for (key, real) in effects.drained.iter().chain(&plan.adopt_drains) {
            self.drains.begin(*key, *real, now);
        }
        for (key, real) in &effects.settled {
            self.drains.deleted(key, real);
        }
        for key in &effects.deleted {
            self.drains.forget_virtual_server(key);
            self.leaving.remove(key);
        }
        let failed_to_forget = applied.failures.iter().any(|failure| failure.step.part == Part::Flows);
        self.unforgotten = if failed_to_forget { plan.forget.keys().copied().collect() } else { BTreeSet::new() };
        let surprised = effects.surprises > 0;
        let read_again = surprised && !self.surprised;
        self.surprised = surprised;
        // Families that were not planned although they may have changed: forget their rules.
        let skipped = !report.unread.is_empty();
        self.rules.retain(|family, _| !skipped || inputs.contains_key(family));
        let failed: BTreeMap<&str, PortErrorKind> = applied
            .failures
            .iter()
            .filter(|failure| failure.step.part == Part::Rules)
            .map(|failure| (&*failure.step.name, failure.error.kind()))
            .collect();
        // Do not try again what this kernel has shown to lack.
        for (family, capabilities) in &effects.reduced {
            let known = self.capabilities;
            self.capabilities = known.both(rules::Capabilities { random_fully: known.random_fully, ..*capabilities });
            if let Some(taken) = inputs.remove(family) {
                inputs.insert(*family, taken.with_capabilities(*capabilities));
            }
        }
        for (family, inputs) in inputs {
            let Some(kind) = failed.get(family.name()) else {
                self.rules.insert(family, inputs);
                self.rules_retry.remove(&family);
                continue;
            };
            // Without the lock, or when skipped, nothing changed. After another failure one table may be as wanted and
            // another not.
            if !matches!(kind, PortErrorKind::Busy | PortErrorKind::Skipped) {
                self.rules.remove(&family);
            }
            let seed = self.seed;
            let retry = self.rules_retry.entry(family).or_insert_with(|| RulesRetry::new(seed));
            retry.failed(clock());
        }
        // A pass for changes retries only what changed.
        if report.full {
            self.unfinished.clear();
        }
        let failed_steps = applied.failures.iter().map(|failure| &failure.step);
        self.unfinished.extend(failed_steps.map(|step| (step.part, step.name.clone(), step.detail.clone())));
        if applied.failures.iter().any(|failure| failure.error.kind() == PortErrorKind::Unknown) {
            self.observed = None;
        }
        report.serves_nothing = !applied.failures.is_empty() && self.serves_nothing();
        report.draining = self.drains.len();
        report.applied = applied;
        read_again
    }

    /// Whether none of the wanted virtual servers exists.
    fn serves_nothing(&self) -> bool {
        let is_there =
            |key: FrontendKey| self.observed.as_ref().is_some_and(|observed| observed.serves(&key).is_some());
        let mut wanted = self.wanted.desired().frontends().peekable();
        wanted.peek().is_some() && !wanted.any(|frontend| is_there(frontend.key))
    }
}

//! The steps of a pass, in order.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::pass::Run;
use super::state::{Reconciler, Trust};
use crate::modes::shared::{flows, localhost, sysctls};
use crate::modes::{CarryOut, Mode, Pass, Plan, sysctl_changes};
use crate::net::{Family, FrontendKey, Protocol};
use crate::pack::Gather as _;
use crate::plan::operation::Operation;
use crate::plan::report::{Applied, Refused, Report};
use crate::plan::step::{Action, Names, Part};
use crate::ports::{PortError, PortErrorKind, Ports, SysctlChange, UdpServices};
use crate::safeguard::{Kernel, Stopped};
use crate::service::{Changes, Compiled, Frontend, FrontendObserver};
use crate::snapshot::{ObjectKey, ObjectKind};
use crate::time::Moment;

/// What the reconciler must know about the result of compiling.
#[derive(Debug, Default)]
pub(super) struct RefreshOutcome {
    /// Frontends that are new, removed or different.
    frontends: Vec<FrontendKey>,
    /// Whether a health check is new, removed or different.
    health_checks: bool,
}

/// Passes the changes of a refresh to the mode, and records them.
struct IndexUpdate<'a> {
    mode: &'a mut dyn Mode,
    changes: &'a mut Changes,
    /// Whether all Frontends are new: then `changes` records them at the end, which takes less memory.
    is_first: bool,
    refreshed: &'a mut RefreshOutcome,
}

impl FrontendObserver for IndexUpdate<'_> {
    fn needs_ports(&self) -> bool {
        self.mode.needs_ports()
    }

    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        let [old, new] = [before, after].map(|of| of.and_then(Compiled::health_check));
        self.refreshed.health_checks |= old != new;
        self.changes.service(before, after);
        self.mode.index_service(before, after);
    }

    fn frontend(&mut self, before: Option<&Arc<Frontend>>, after: Option<&Arc<Frontend>>) {
        let Some(key) = after.or(before).map(|frontend| frontend.key) else { return };
        self.refreshed.frontends.push(key);
        if self.is_first {
            return self.mode.index_frontend(None, before, after);
        }
        self.changes.frontend(before, after);
        self.mode.index_frontend(self.changes.written(&key, before), before, after);
    }
}

impl Reconciler {
    /// Compiles changed objects, and removes missing objects that the safeguard takes for deleted.
    pub(super) fn refresh_desired(&mut self, now: Moment) -> RefreshOutcome {
        let changed = std::mem::take(&mut self.backlog.services);
        let mut refreshed = RefreshOutcome::default();
        let is_starting = !self.is_settled() && !changed.is_empty();
        if is_starting {
            // What is compiled takes the memory that this frees.
            self.store.compact();
        }
        self.refresh(&changed, &mut refreshed);
        let mut services = BTreeSet::new();
        let (settings, lost) = (&self.options.mass_removal, &mut self.safeguards.own.lost);
        for (kind, key) in lost.judge(settings, &self.store, &self.desired, &self.facts, now) {
            services.extend(match kind {
                ObjectKind::Service => self.store.delete_service(&key),
                _ => self.store.delete_slice(&key),
            });
        }
        if !services.is_empty() {
            self.refresh(&services, &mut refreshed);
        }
        if is_starting {
            // A first plan takes most memory: before it, what the objects took without need goes.
            self.desired.compact();
            self.mode.compact();
        }
        refreshed
    }

    pub(super) fn refresh(&mut self, services: &BTreeSet<ObjectKey>, refreshed: &mut RefreshOutcome) {
        let (mode, changes) = (&mut *self.mode, &mut self.backlog.changes);
        let is_first = changes.is_empty() && self.desired.frontends().next().is_none();
        let mut indexing = IndexUpdate { mode, changes, is_first, refreshed };
        self.desired.refresh(&self.store, &self.facts, services, &mut indexing);
        if is_first {
            self.backlog.changes.note_new(&self.desired);
        }
    }

    /// Tells the safeguards which Frontends were removed on purpose: missing objects have been evaluated, and
    /// everything else was deleted by events. Before the first comparison, nothing is known to be removed.
    pub(super) fn believe(&mut self, refreshed: RefreshOutcome, run: &mut Run<'_, '_>) {
        run.report.health_checks_changed = run.report.full || refreshed.health_checks;
        if self.safeguards.others.has_compared {
            // A returning Service may arrive before its endpoints.
            let gone = refreshed.frontends.iter().filter(|key| self.desired.frontend(key).is_none());
            self.safeguards.others.believe(gone.copied());
        }
        if self.safeguards.own.has_compared {
            self.safeguards.own.believe(refreshed.frontends);
        }
    }

    /// Reads the kernel in a full pass, unless nothing can be written anyway.
    pub(super) fn read_kernel(&mut self, run: &mut Run<'_, '_>) {
        if run.report.full && run.report.unread.is_empty() {
            let read = self.mode.read(&self.desired, &self.host.addresses, &self.facts, run.ports);
            run.report.unread.extend(read.err().into_iter().flatten());
        }
    }

    /// Whether other modes serve, and this mode waits for an operator. Nothing of it may get in the way of what serves,
    /// unless it serves most of that itself and replaces none of the rest.
    pub(super) fn gives_way(&mut self, run: &mut Run<'_, '_>) -> bool {
        if !run.report.full || self.is_settled() {
            return false;
        }
        let judged = self.judge_others(run.now, run.ports);
        let waits = |stopped: &Stopped| judged.would_replace || stopped.is_most(&self.options.mass_removal);
        let Some(stopped) = judged.stopped.filter(waits) else { return false };
        (run.report.waits, run.report.is_doubted) = (true, true);
        let why = format!("objects of other proxy modes serve, and this mode waits: {stopped}");
        run.report.stopped = Some(why.into());
        true
    }

    /// Lets the mode make its plan, and adds the rest. `None` if the mode cannot.
    pub(super) fn plan(&mut self, run: &mut Run<'_, '_>) -> Option<Plan> {
        let Run { now, is_preview, ref mut report, ref mut ports, .. } = *run;
        if report.full {
            self.host.tcp_is_liberal = sysctls::is_tcp_liberal(&self.options.host, ports.sysctls);
            self.backlog.refused = self.mode.refused(&self.desired);
        }
        // The mode checks these again, and changed Frontends.
        report.refused = std::mem::take(&mut self.backlog.refused);
        let settled = self.is_settled();
        let pass = Pass {
            names: Names::new(&self.store, &self.desired),
            desired: &self.desired,
            changes: &self.backlog.changes,
            facts: &self.facts,
            host: &self.host.addresses,
            tcp_is_liberal: self.host.tcp_is_liberal,
            full: report.full,
            is_preview,
            tells_drift: report.full && settled && !self.schedule.is_failing(),
            sweep: (report.full && (self.flows.sweep || !settled)).then_some(&self.flows.left),
            unforgotten: &self.flows.unforgotten,
            now,
        };
        let (mut of_host, mut unmet) = (Vec::new(), Vec::new());
        if report.full {
            (of_host, unmet) = sysctl_changes(self.mode.kind(), &self.options.host, ports.sysctls);
        }
        report.unmet = unmet;
        let mut stopped = None;
        let mut hold = |losing: Vec<_>, kernel: &dyn Kernel| {
            stopped = self.safeguards.own.check(losing, kernel, &self.store, &self.desired, now);
            stopped.as_ref().map(|stopped| stopped.inherited.clone()).unwrap_or_default()
        };
        let plan = self.mode.plan(pass, &mut hold, report, ports);
        self.backlog.refused.clone_from(&report.refused);
        report.refused.splice(0..0, self.refused_by_claim().collect::<Vec<_>>());
        let mut plan = plan?;
        plan.sysctls = of_host;
        report.is_doubted = stopped.as_ref().is_some_and(|stopped| stopped.held.len() > stopped.unreadable);
        report.stopped = stopped.map(|stopped| stopped.to_string().into());
        if pass.full && plan.routes_localhost {
            let (changes, unmet) = localhost::open(ports.sysctls);
            plan.guarded = changes;
            report.unmet.extend(unmet);
        } else if pass.full {
            let (changes, unmet) = localhost::close(ports);
            plan.sysctls.extend(changes);
            report.unmet.extend(unmet);
        }
        if let Some(localhost) = &mut self.add_ons.localhost {
            plan.listeners = localhost.plan(&pass, report, ports);
        }
        if let Some(fast_path) = &mut self.add_ons.fast_path {
            let of = (self.options.mode, &self.options.config, &self.host.addresses);
            plan.fast_path = fast_path.plan(of, report, ports.tables).map(Box::new);
        }
        if pass.tells_drift {
            let of_host = plan.sysctls.iter().chain(&plan.guarded).map(Operation::Sysctl);
            report.drift.splice(0..0, of_host.map(|operation| operation.step(&Names::NONE)));
            report.drift.retain(|step| !self.backlog.is_unfinished(step));
        }
        self.desired.without_affinity = self.mode.without_affinity();
        Some(plan)
    }

    /// Carries out a plan. Returns whether the kernel must be read again at once.
    pub(super) fn execute(&mut self, plan: Plan, run: &mut Run<'_, '_>) -> bool {
        let Run { clock, ref mut report, ref mut ports, .. } = *run;
        let mut applied = Applied { lacks: std::mem::take(&mut report.applied.lacks), ..Applied::default() };
        if !plan.sysctls.is_empty() {
            applied.carry_out(plan.sysctls.iter().map(Operation::Sysctl), &Names::NONE, ports);
        }
        let (now, facts) = (clock(), self.mode.kind().facts());
        if facts.translates_packets && self.store.has_drains() {
            let is_first = !self.is_settled();
            let drains = self.add_ons.drains.get_or_insert_default();
            drains.follow(self.backlog.changes.frontends(), &self.desired, is_first, now);
        }
        let (names, desired) = (Names::new(&self.store, &self.desired), &self.desired);
        let arguments = CarryOut { names, desired, changes: &mut self.backlog.changes, report, clock };
        let outcome = plan.work.map(|work| self.mode.carry_out(work, arguments, ports)).unwrap_or_default();
        applied.add(outcome.applied);
        if !plan.guarded.is_empty() {
            write_guarded(&plan.guarded, &outcome.unwritten, &mut applied, ports);
        }
        if let Some(localhost) = &mut self.add_ons.localhost {
            localhost.apply(&plan.listeners, &names, &mut applied, ports);
        }
        if let (Some(fast_path), Some(change)) = (&mut self.add_ons.fast_path, plan.fast_path) {
            fast_path.apply(&self.options.config, *change, &mut applied, ports.tables);
        }
        // For a family that is not written, the kernel still translates these flows as before.
        let (wait, forget): (UdpServices, UdpServices) =
            plan.forget.into_iter().partition(|(place, _)| outcome.unwritten.contains(&Family::of(place.ip())));
        let lack = (!facts.is_process).then_some(flows::STAY);
        let is_done =
            forget.is_empty() || flows::forget(Protocol::Udp, &forget, lack, (ports.conntrack, clock), &mut applied);
        self.flows.unforgotten = wait.into_keys().chain(forget.into_keys().filter(|_| !is_done)).gather();
        if let Some(drains) = &mut self.add_ons.drains {
            drains.cut(desired, &outcome.unwritten, now, (ports.conntrack, clock), &mut applied);
        }
        applied.count(Part::Flows, Action::Delete, applied.flows.total());
        self.backlog.note_failed(report.full, applied.failures.iter().map(|failure| &failure.step));
        report.serves_nothing = !applied.failures.is_empty() && self.serves_nothing();
        report.applied = applied;
        let was_surprised = std::mem::replace(&mut self.backlog.surprised, outcome.surprised);
        outcome.read_again || (outcome.surprised && !was_surprised)
    }

    /// Those that no mode would serve. Costs O(such Frontends).
    pub(super) fn refused_by_claim(&self) -> impl Iterator<Item = Refused> {
        let reserved = self.desired.rejected().map(|(service, refusal)| Refused {
            service: service.to_string(),
            key: refusal.key,
            endpoint: None,
            reason: refusal.reason(),
            user: Some(refusal.user.clone()),
        });
        let claimed = self.desired.conflicts().map(|conflict| Refused {
            service: conflict.refused.to_string(),
            key: conflict.key,
            endpoint: None,
            reason: conflict.reason(),
            user: None,
        });
        reserved.chain(claimed)
    }

    /// Whether the kernel, as far as known, serves none of the desired Frontends.
    fn serves_nothing(&self) -> bool {
        let Some(kernel) = self.mode.kernel() else { return false };
        let mut wanted = self.desired.frontends().peekable();
        wanted.peek().is_some() && !wanted.any(|frontend| kernel.serves(&frontend.key).is_some())
    }

    /// Ends a pass: decides when the next one runs, and counts this one.
    pub(super) fn conclude(&mut self, run: Run<'_, '_>) -> Report {
        let Run { clock, report, ports, .. } = run;
        let (end, has_failed) = (clock(), report.has_failed());
        if report.full && !has_failed && !report.is_doubted {
            self.trust = Trust::Settled;
            // A running process retries soon, and must not delay anything else meanwhile.
            ports.rules.set_lock_wait(Self::SHORT_LOCK_WAIT);
        }
        // What the iptables lock held up is done. Only a full pass shows that nothing else is missing.
        let put_off = std::mem::replace(&mut self.backlog.put_off, !report.rules_put_off.is_empty());
        if put_off && !report.full && !has_failed {
            self.schedule.request_full(end);
        }
        self.flows.sweep &= !report.full || has_failed;
        let (mode, config) = (self.options.mode, &self.options.config);
        self.add_ons.fast_path.take_if(|fast_path| fast_path.is_done(mode, config));
        if has_failed || report.applied.failures.is_empty() {
            self.schedule.done(end, !has_failed);
        } else {
            self.schedule.done_but_for_objects(end);
        }
        self.totals.add(&report);
        report
    }
}

/// Writes the values below `/proc/sys` that IPv4 rules guard, unless these rules were not written.
fn write_guarded(changes: &[SysctlChange], unwritten: &BTreeSet<Family>, applied: &mut Applied, ports: &mut Ports<'_>) {
    let operations = changes.iter().map(Operation::Sysctl);
    if unwritten.contains(&Family::V4) {
        let why = "not written: the rules of IPv4 that have to be there first are not";
        let why = PortError::new(PortErrorKind::Skipped, why);
        operations.for_each(|operation| applied.fail(operation.step(&Names::NONE), why.clone()));
    } else {
        applied.carry_out(operations, &Names::NONE, ports);
    }
}

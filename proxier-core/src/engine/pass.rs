//! A pass: its steps, in order.

use super::own_transactions::RecordingTables;
use super::schedule::Pass as Scope;
use super::state::{Reconciler, Trust};
use crate::modes::Plan;
use crate::plan::report::{Report, Unread};
use crate::ports::Ports;
use crate::snapshot::ObjectKey;
use crate::time::Moment;

pub(super) struct Run<'a, 'p> {
    pub(super) now: Moment,
    pub(super) clock: &'a dyn Fn() -> Moment,
    /// The plan is only shown.
    pub(super) is_preview: bool,
    pub(super) report: Report,
    pub(super) ports: &'a mut Ports<'p>,
}

impl Reconciler {
    /// Runs the pass that is due. `None` if none is.
    ///
    /// `clock` returns the time on the scale of the other methods. It is read again when the pass ends, because pauses
    /// count from there.
    pub fn pass(&mut self, clock: &dyn Fn() -> Moment, ports: &mut Ports<'_>) -> Option<Report> {
        if self.trust == Trust::Waiting {
            return None;
        }
        let now = clock();
        if self.next_look().is_some_and(|at| at <= now) {
            self.schedule.request(now);
        }
        let scope = self.schedule.start(now)?;
        if scope == Scope::Changes && self.mode.knows_kernel() && !self.mode.has_read_tables() {
            // It has no tables, so nobody asks which transactions are its own.
            let run = Run { now, clock, is_preview: false, report: Report::default(), ports };
            return Some(self.run(scope, run));
        }
        let mut transactions = std::mem::take(&mut self.tables.transactions);
        let mut ports = ports.lend();
        let mut tables = RecordingTables::new(ports.tables, &mut transactions);
        ports.tables = &mut tables;
        let run = Run { now, clock, is_preview: false, report: Report::default(), ports: &mut ports };
        let report = self.run(scope, run);
        self.tables.transactions = transactions;
        Some(report)
    }

    fn run(&mut self, scope: Scope, mut run: Run<'_, '_>) -> Report {
        let first = if self.trust == Trust::Complete { self.serve_first(&mut run) } else { None };
        let plan = self.prepare(scope, &mut run);
        if run.report.full {
            self.schedule.became_full();
        }
        if let Some(plan) = plan {
            if !self.is_settled() {
                run.ports.rules.set_lock_wait(Self::FIRST_LOCK_WAIT);
            }
            if self.execute(plan, &mut run) {
                self.schedule.request_full(run.now);
            }
        }
        if let Some((first, before)) = first {
            run.report.applied.add(before);
            run.report.served_first = Some(first);
        }
        self.conclude(run)
    }

    /// Compiles changed objects, reads the required parts of the kernel, and makes the plan. `None` if the kernel could
    /// not be read, or other modes serve.
    fn prepare(&mut self, scope: Scope, run: &mut Run<'_, '_>) -> Option<Plan> {
        run.report.full = scope == Scope::Full || !self.mode.knows_kernel();
        if self.backlog.nodes_changed {
            self.take_cluster_nodes();
        }
        if run.report.full || self.host.is_stale {
            self.read_host(run);
        }
        if self.host.next_loss().is_some_and(|at| at <= run.now) {
            // These addresses have been lost for long enough.
            self.host.absent.retain(|_, until| *until > run.now);
            self.refresh_facts();
        }
        if run.report.full || self.backlog.services.iter().any(ObjectKey::is_kubernetes) {
            self.find_api_servers();
        }
        let refreshed = self.refresh_desired(run.now);
        self.believe(refreshed, run);
        self.read_kernel(run);
        if !self.host.knows_served {
            self.adopt(run);
        }
        if !run.report.unread.is_empty() || self.gives_way(run) {
            // The next pass that can write compares everything.
            self.mode.forget_kernel();
            return None;
        }
        self.plan(run)
    }

    /// Plans a full pass now, without carrying it out.
    pub fn preview(&mut self, now: Moment, ports: &mut Ports<'_>) -> (Plan, Report) {
        let before = self.safeguards.clone();
        let mut run = Run { now, clock: &|| now, is_preview: true, report: Report::default(), ports };
        let mut plan = self.prepare(Scope::Full, &mut run).unwrap_or_default();
        self.mode.forget_kernel();
        self.safeguards = before;
        self.schedule.request_full(now);
        let looked = plan.look_for_flows(run.ports.conntrack);
        run.report.unread.extend(looked.err().map(|error| Unread::new("tracked UDP connections", error)));
        (plan, run.report)
    }
}

//! Carries out a plan.

use std::borrow::Cow;

use super::plan::{Fate, Plan, TablePlan};
use crate::modes::shared::names::Names;
use crate::net::{Family, FrontendKey};
use crate::ports::{NotCommitted, PortErrorKind, Ports, Tables};
use crate::reconciler::report::{Applied, Lack};
use crate::reconciler::step::{Action, Part, Step};

/// How many Frontends of one plan may be refused before the whole is given up.
const PATIENCE: usize = 16;

/// What became of a table.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) family: Family,
    /// The kernel took it, but for the Frontends that it refused.
    pub(super) is_done: bool,
    /// Frontends that the kernel refused.
    pub(super) refused: Vec<FrontendKey>,
    /// The kernel has something else than was thought.
    pub(super) is_surprise: bool,
}

/// Carries out a plan, with an outcome for everything in it.
pub(super) fn apply(plan: &Plan, names: &Names<'_>, ports: &mut Ports<'_>) -> (Applied, Vec<Written>) {
    let mut applied = Applied::default();
    for change in &plan.sysctls {
        let outcome = ports.sysctls.set(&change.path, &change.to);
        applied.note(|| Step::sysctl(change), outcome);
    }
    let tables = plan.tables.iter().filter(|table| !table.is_empty());
    let written: Vec<Written> = tables.map(|table| write(table, names, ports.tables, &mut applied)).collect();
    if !plan.forget.is_empty() {
        match ports.conntrack.forget_udp(&plan.forget) {
            Ok(flows) => applied.flows = flows,
            Err(error) if error.kind() == PortErrorKind::Unavailable => {
                let what = "flows of UDP stay as they are when endpoints change";
                applied.lacks.push(Lack::new(what, error));
            }
            Err(error) => applied.fail(Step::flows(&plan.forget), error),
        }
    }
    (applied, written)
}

/// Writes a table. What the kernel refuses of a Frontend is left out, and the rest written without it.
fn write(plan: &TablePlan, names: &Names<'_>, tables: &mut dyn Tables, applied: &mut Applied) -> Written {
    let mut plan = Cow::Borrowed(plan);
    let mut written = Written { family: plan.layout.family(), is_done: false, refused: Vec::new(), is_surprise: false };
    loop {
        let outgoing = plan.transaction();
        let NotCommitted { error, refused } = match tables.commit(&outgoing.transaction) {
            Ok(()) => break,
            Err(refused) => refused,
        };
        let element = refused.and_then(|(operation, element)| plan.frontend_at(&outgoing, operation, element?));
        let Some(frontend) = element.filter(|_| written.refused.len() < PATIENCE) else {
            // Nothing was changed: the transaction is one.
            let step = plan.table_step().unwrap_or_else(|| Step::new(Action::Change, Part::Table, plan.layout.table()));
            let of_the_state = [PortErrorKind::NotFound, PortErrorKind::AlreadyExists, PortErrorKind::Unknown];
            written.is_surprise = of_the_state.contains(&error.kind());
            applied.fail(step.with(format_args!("{} frontends", plan.frontends.len())), error);
            return written;
        };
        applied.fail(plan.frontend_step(&frontend, names), error);
        plan.to_mut().leave_out(&frontend);
        written.refused.push(frontend);
    }
    written.is_done = true;
    if let Some(step) = plan.table_step() {
        applied.count(step.part, step.action, 1);
    }
    if plan.fate != Fate::Delete {
        for action in [Action::Add, Action::Change, Action::Delete] {
            let count = plan.frontends.values().filter(|(of, _)| *of == action).count();
            applied.count(Part::Frontend, action, count);
        }
    }
    written
}

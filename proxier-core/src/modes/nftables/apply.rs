//! Carries out a plan.

use std::borrow::Cow;

use super::layout::Layout;
use super::mode::read;
use super::observed::Observed;
use super::plan::{Plan, TablePlan};
use crate::modes::shared::table::{Basis, Fate, write};
use crate::net::{Family, FrontendKey};
use crate::plan::names::Names;
use crate::plan::operation::Whole;
use crate::plan::report::Applied;
use crate::plan::step::{Action, Part, Step};
use crate::ports::Tables;

/// Result of writing a table.
#[derive(Debug)]
pub(super) struct WriteOutcome {
    pub(super) family: Family,
    /// The kernel took it, but for the Frontends that it refused.
    pub(super) is_done: bool,
    /// Frontends that the kernel refused.
    pub(super) refused: Vec<FrontendKey>,
    /// The kernel contradicted its known state.
    pub(super) is_surprise: bool,
}

/// Carries out a plan, with an outcome for everything in it. Tables that were read are changed only as they were read.
pub(super) fn apply(
    plan: &Plan,
    basis: &mut Basis<Observed>,
    names: &Names<'_>,
    tables: &mut dyn Tables,
) -> (Applied, Vec<WriteOutcome>) {
    let mut applied = Applied::default();
    let changed = plan.tables.iter().filter(|table| !table.is_empty());
    let written = changed.map(|table| write_table(table, basis, names, tables, &mut applied)).collect();
    (applied, written)
}

/// Writes a table. What the kernel refuses of a Frontend is left out, and the rest written without it.
fn write_table(
    plan: &TablePlan,
    basis: &mut Basis<Observed>,
    names: &Names<'_>,
    tables: &mut dyn Tables,
    applied: &mut Applied,
) -> WriteOutcome {
    let (family, layout): (Family, &Layout) = (plan.layout.family(), &plan.layout);
    let again = |tables: &mut dyn Tables| read(tables, layout).ok();
    let (left, written) = write(Cow::Borrowed(plan), family, (basis, &again), tables);
    let refused = written.refused.iter().map(|(key, ..)| *key).collect();
    for (key, _, error) in written.refused {
        applied.fail(plan.frontends.operation(&key).step(names), error);
    }
    let is_done = written.failed.is_none();
    let table_step = left.changes_rules().then(|| left.step());
    if let Some(error) = written.failed {
        let step = table_step.unwrap_or_else(|| Step::new(Action::Change, Part::Table, layout.table()));
        applied.fail(step.with(format_args!("{} frontends", left.frontends.len())), error);
    } else {
        if let Some(step) = table_step {
            applied.count(step.part, step.action, 1);
        }
        left.frontends.count(|_| left.fate != Fate::Delete, applied);
    }
    WriteOutcome { family, is_done, refused, is_surprise: written.is_surprise }
}

//! Writes a table.

use std::borrow::Cow;

use super::layout::Layout;
use super::mode::read;
use super::observed::Observed;
use super::plan::TablePlan;
use crate::modes::shared::table::{Basis, Fate, WriteOutcome, write};
use crate::net::{Family, FrontendKey};
use crate::plan::names::Names;
use crate::plan::operation::Whole;
use crate::plan::report::Applied;
use crate::plan::step::{Action, Part, Step};
use crate::ports::Tables;

/// Writes a table. What the kernel refuses of a Frontend is left out, and the rest written without it.
pub(super) fn write_table(
    plan: &TablePlan,
    basis: &mut Basis<Observed>,
    names: &Names<'_>,
    tables: &mut dyn Tables,
    applied: &mut Applied,
) -> (Family, WriteOutcome<FrontendKey>) {
    let (family, layout): (Family, &Layout) = (plan.layout.family(), &plan.layout);
    let again = |tables: &mut dyn Tables| read(tables, layout).ok();
    let (left, written) = write(Cow::Borrowed(plan), family, (basis, &again), tables);
    for (key, _, error) in &written.refused {
        applied.fail(plan.frontends.operation(key).step(names), error.clone());
    }
    let table_step = left.changes_rules().then(|| left.step());
    if let Some(error) = &written.failed {
        let step = table_step.unwrap_or_else(|| Step::new(Action::Change, Part::Table, layout.table()));
        applied.fail(step.with(format_args!("{} frontends", left.frontends.0.len())), error.clone());
    } else {
        if let Some(step) = table_step {
            applied.count(step.part, step.action, 1);
        }
        left.frontends.count(|_| left.fate != Fate::Delete, applied);
    }
    (family, written)
}

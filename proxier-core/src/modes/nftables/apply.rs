//! Carries out a plan.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::layout::Layout;
use super::lower::SetName;
use super::mode::read;
use super::observed::Observed;
use super::plan::{Fate, Outgoing, Plan, TablePlan};
use crate::modes::shared::names::Names;
use crate::modes::shared::nft::{CHECKS, is_of_an_element, is_of_the_state, search};
use crate::net::{Family, FrontendKey};
use crate::plan::report::Applied;
use crate::plan::step::{Action, Part, Step};
use crate::ports::{NotCommitted, PortErrorKind, Tables};

/// Number of Frontends of one plan that may be refused before the whole is given up.
const PATIENCE: usize = 16;

/// Number of times that a table is compared again because another program changed something between reading and writing.
const ATTEMPTS: usize = 4;

/// State that the tables were planned from.
#[derive(Debug, Default)]
pub(super) struct Basis {
    /// The generation at which they were read; `None` where they were not: the last write is known then.
    pub(super) generation: Option<u32>,
    pub(super) read: BTreeMap<Family, Option<Observed>>,
}

/// Reason why a transaction that was to be of one generation was refused.
enum Meanwhile {
    /// Another program changed something else.
    Others,
    /// Another program changed this table.
    This,
    /// The reason is another one.
    Nothing,
}

impl Basis {
    /// Looks at a table again, whose generation is not the expected one.
    fn look_again(&mut self, layout: &Layout, tables: &mut dyn Tables) -> Meanwhile {
        let now = match tables.generation() {
            Ok(now) if self.generation.is_some_and(|expected| expected != now) => now,
            _ => return Meanwhile::Nothing,
        };
        let observed = read(tables, layout);
        if observed.is_ok_and(|observed| self.read.get(&layout.family()) == Some(&observed)) {
            self.generation = Some(now);
            Meanwhile::Others
        } else {
            Meanwhile::This
        }
    }
}

/// Result of writing a table.
#[derive(Debug)]
pub(super) struct Written {
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
    basis: &mut Basis,
    names: &Names<'_>,
    tables: &mut dyn Tables,
) -> (Applied, Vec<Written>) {
    let mut applied = Applied::default();
    let changed = plan.tables.iter().filter(|table| !table.is_empty());
    let written = changed.map(|table| write(table, basis, names, tables, &mut applied)).collect();
    (applied, written)
}

/// Writes a table. What the kernel refuses of a Frontend is left out, and the rest written without it.
fn write(
    plan: &TablePlan,
    basis: &mut Basis,
    names: &Names<'_>,
    tables: &mut dyn Tables,
    applied: &mut Applied,
) -> Written {
    let mut plan = Cow::Borrowed(plan);
    let mut written = Written { family: plan.layout.family(), is_done: false, refused: Vec::new(), is_surprise: false };
    let (mut checks, mut attempts) = (CHECKS, ATTEMPTS);
    loop {
        let mut outgoing = plan.transaction();
        if let Some(generation) = basis.generation {
            outgoing.transaction.expect_generation(generation);
        }
        let NotCommitted { error, refused } = match tables.commit(&outgoing.transaction) {
            Ok(()) => break,
            Err(refused) => refused,
        };
        if error.kind() == PortErrorKind::Busy && refused.is_none() {
            match basis.look_again(&plan.layout, tables) {
                Meanwhile::Others if attempts > 0 => {
                    attempts = attempts.saturating_sub(1);
                    continue;
                }
                Meanwhile::Others | Meanwhile::This => written.is_surprise = true,
                Meanwhile::Nothing => {}
            }
        }
        let found =
            refused.filter(|_| written.refused.len() < PATIENCE).and_then(|(operation, element)| match element {
                Some(element) => plan.frontend_at(&outgoing, operation, element),
                None if is_of_an_element(&error) => {
                    frontend_in(&plan, outgoing.set_of(operation)?, tables, &mut checks)
                }
                None => None,
            });
        let Some(frontend) = found else {
            // Nothing was changed: the transaction is one.
            let step = plan.table_step().unwrap_or_else(|| Step::new(Action::Change, Part::Table, plan.layout.table()));
            written.is_surprise |= is_of_the_state(&error);
            applied.fail(step.with(format_args!("{} frontends", plan.frontends.len())), error);
            return written;
        };
        applied.fail(plan.frontend_step(&frontend, names), error);
        plan.to_mut().leave_out(&[frontend]);
        written.refused.push(frontend);
    }
    written.is_done = true;
    basis.generation = basis.generation.map(|generation| generation.wrapping_add(1));
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

/// The Frontend of which the kernel refuses an element of this set.
fn frontend_in(plan: &TablePlan, set: SetName, tables: &mut dyn Tables, checks: &mut usize) -> Option<FrontendKey> {
    search(plan.frontends_in(set), checks, |without| {
        let mut tried = plan.clone();
        tried.leave_out(without);
        let Outgoing { transaction, added } = tried.transaction();
        match tables.check(&transaction) {
            Ok(()) => Some(true),
            // The kernel goes on after a refusal, and the first one counts: of another set it says that this one passed.
            Err(NotCommitted { refused: Some((operation, _)), .. }) => Some(added.get(&operation) != Some(&set)),
            Err(_) => None,
        }
    })
}

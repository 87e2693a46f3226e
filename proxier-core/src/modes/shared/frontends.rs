//! Frontends that change, where one operation writes many of them: a table's elements, a family's rules.

use std::collections::BTreeMap;

use crate::net::FrontendKey;
use crate::plan::operation::Operation;
use crate::plan::report::Applied;
use crate::plan::step::{Action, Part};
use crate::service::Frontend;

/// Action for each Frontend that changes, with the number of its endpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrontendChanges(pub(crate) BTreeMap<FrontendKey, (Action, usize)>);

impl FrontendChanges {
    /// Notes a change of a Frontend that was there or not, and is to be as in `after`.
    pub(crate) fn note(&mut self, key: FrontendKey, was_there: bool, after: Option<&Frontend>) {
        let action = match (was_there, after) {
            (_, None) => Action::Delete,
            (false, Some(_)) => Action::Add,
            (true, Some(_)) => Action::Change,
        };
        self.0.insert(key, (action, after.map_or(0, |frontend| frontend.endpoints().len())));
    }

    /// The operation on a Frontend.
    pub(crate) fn operation(&self, key: &FrontendKey) -> Operation<'static> {
        let (action, endpoints) = self.0.get(key).copied().unwrap_or((Action::Change, 0));
        Operation::Frontend(action, *key, endpoints)
    }

    /// The operations.
    pub(crate) fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        self.0.iter().map(|(key, (action, endpoints))| Operation::Frontend(*action, *key, *endpoints))
    }

    /// Counts those that were written.
    pub(crate) fn count(&self, is_written: impl Fn(&FrontendKey) -> bool, applied: &mut Applied) {
        for action in [Action::Add, Action::Change, Action::Delete] {
            let of_action = self.0.iter().filter(|(key, (of, _))| *of == action && is_written(key));
            applied.count(Part::Frontend, action, of_action.count());
        }
    }
}

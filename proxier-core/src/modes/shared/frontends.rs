//! Frontends that one operation writes together, the search for what the kernel refuses, and counts of objects that
//! Frontends share.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::FrontendKey;
use crate::plan::operation::Operation;
use crate::plan::report::Applied;
use crate::plan::step::{Action, Part};
use crate::safeguard::Loss;
use crate::service::{Desired, Frontend};

/// The action for each changed Frontend, with the number of its endpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrontendChanges(pub(crate) BTreeMap<FrontendKey, (Action, usize)>);

impl FrontendChanges {
    pub(crate) fn note(&mut self, key: FrontendKey, was_there: bool, after: Option<&Frontend>) {
        self.0.insert(key, change(was_there, after));
    }

    pub(crate) fn operation(&self, key: &FrontendKey) -> Operation<'static> {
        let (action, endpoints) = self.0.get(key).copied().unwrap_or((Action::Change, 0));
        Operation::Frontend(action, *key, endpoints)
    }

    pub(crate) fn operations(&self) -> impl Iterator<Item = Operation<'_>> {
        self.0.iter().map(|(key, (action, endpoints))| Operation::Frontend(*action, *key, *endpoints))
    }

    pub(crate) fn count(&self, is_written: impl Fn(&FrontendKey) -> bool, applied: &mut Applied) {
        for (_, (action, _)) in self.0.iter().filter(|(key, _)| is_written(key)) {
            applied.count(Part::Frontend, *action, 1);
        }
    }
}

/// The change of a Frontend that existed or not, and should be as in `after`, with the number of its endpoints.
pub(crate) fn change(was_there: bool, after: Option<&Frontend>) -> (Action, usize) {
    let action = match (was_there, after) {
        (_, None) => Action::Delete,
        (false, Some(_)) => Action::Add,
        (true, Some(_)) => Action::Change,
    };
    (action, after.map_or(0, |frontend| frontend.endpoints().len()))
}

/// Counts one more user of an object, or one less. Returns whether it is the first, or was the last.
pub(crate) fn count<K: Ord + Clone>(counts: &mut BTreeMap<K, usize>, key: &K, adds: bool) -> bool {
    if adds {
        let count = counts.entry(key.clone()).or_default();
        *count = count.saturating_add(1);
        return *count == 1;
    }
    let Some(count) = counts.get_mut(key) else { return false };
    *count = count.saturating_sub(1);
    let was_last = *count == 0;
    if was_last {
        counts.remove(key);
    }
    was_last
}

/// Records a change. What changes twice has not changed.
pub(crate) fn toggle<T: Ord>(set: &mut BTreeSet<T>, value: T) {
    if !set.remove(&value) {
        set.insert(value);
    }
}

/// The Frontends among these that the kernel serves and that would be deleted, or lose their last endpoint.
pub(crate) fn losing<'a>(
    keys: impl Iterator<Item = &'a FrontendKey>,
    served: &BTreeMap<FrontendKey, bool>,
    desired: &Desired,
) -> Vec<(FrontendKey, Loss)> {
    let loss = |key: &FrontendKey| match (served.get(key)?, desired.frontend(key)) {
        (_, None) => Some((*key, Loss::Everything)),
        (true, Some(after)) if after.endpoints().is_empty() => Some((*key, Loss::Endpoints)),
        _ => None,
    };
    keys.filter_map(loss).collect()
}

/// Finds one part of a write that the kernel refuses without naming it, by halving the suspects until one is left.
///
/// `passes` tries everything except these, and returns whether the kernel accepts the rest; `None` if it fails for
/// another reason. `left`: number of remaining tries.
pub(crate) fn search<T>(
    mut suspects: Vec<T>,
    left: &mut usize,
    mut passes: impl FnMut(&[T]) -> Option<bool>,
) -> Option<T> {
    // More than one may be refused. Those already excluded by the search stay out of later tries.
    let mut away = Vec::new();
    while suspects.len() > 1 {
        *left = left.checked_sub(1)?;
        let place = away.len();
        away.append(&mut suspects.split_off(suspects.len().div_ceil(2)));
        if passes(&away)? {
            suspects = away.split_off(place);
        }
    }
    suspects.pop()
}

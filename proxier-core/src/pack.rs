//! Collections: rebuilds them to save memory, and adds to sets or removes.

use std::collections::BTreeSet;

/// Rebuilds a collection from its items.
///
/// A map or set that was filled in key order has half-empty nodes; one built from a list has full ones.
pub(crate) fn pack<C: Default + IntoIterator + FromIterator<C::Item>>(collection: &mut C) {
    *collection = std::mem::take(collection).into_iter().collect();
}

/// Makes a value belong to a set, or not.
pub(crate) fn put<T: Ord>(set: &mut BTreeSet<T>, value: T, belongs: bool) {
    if belongs {
        set.insert(value);
    } else {
        set.remove(&value);
    }
}

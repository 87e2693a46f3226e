//! Collections: builds them in little code, rebuilds them to save memory, and adds to sets or removes.

use std::collections::BTreeSet;

/// `collect` for sets and maps, by one insertion each.
///
/// `collect` sorts a list first, with 8 kB of code for each type of item. It is still better for a large collection that
/// stays, whose nodes it fills.
pub(crate) trait Gather: Iterator + Sized {
    fn gather<C: Default + Extend<Self::Item>>(self) -> C {
        let mut collection = C::default();
        collection.extend(self);
        collection
    }
}

impl<I: Iterator> Gather for I {}

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

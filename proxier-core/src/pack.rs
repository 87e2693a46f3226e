//! Rebuilds collections to save memory.

/// Rebuilds a collection from its items.
///
/// A map or set that was filled in key order has half-empty nodes; one built from a list has full ones.
pub(crate) fn pack<C: Default + IntoIterator + FromIterator<C::Item>>(collection: &mut C) {
    *collection = std::mem::take(collection).into_iter().collect();
}

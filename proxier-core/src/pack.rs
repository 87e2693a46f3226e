//! Collections in as little memory as they can take.

/// Makes a collection again of all it has.
///
/// A map or set whose keys came in order has nodes that are half empty; one that is made of a whole list has full ones.
pub(crate) fn pack<C: Default + IntoIterator + FromIterator<C::Item>>(collection: &mut C) {
    *collection = std::mem::take(collection).into_iter().collect();
}

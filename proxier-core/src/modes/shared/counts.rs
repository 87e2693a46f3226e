//! Numbers of users of objects that several Frontends have in common.

use std::collections::BTreeMap;

/// Increments a count, and returns whether it is the first.
pub(crate) fn count<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) -> bool {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(1);
    *count == 1
}

/// Decrements a count, and returns whether none is left.
pub(crate) fn uncount<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) -> bool {
    let Some(count) = counts.get_mut(key) else { return false };
    *count = count.saturating_sub(1);
    let is_last = *count == 0;
    if is_last {
        counts.remove(key);
    }
    is_last
}

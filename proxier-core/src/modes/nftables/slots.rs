//! Which slot each endpoint of a Frontend has. An endpoint keeps its slot while it lives, over changes of the list and
//! restarts of the process: a change writes the elements that differ, and clients that stay with a slot stay with an endpoint.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::EndpointKey;
use crate::service::Frontend;

/// Most endpoints among which clients stay with theirs. Frontends with more are served without affinity: each slot is a chain
/// and a set, and a new client is looked for in all of them.
pub(super) const MOST_STICKY: u32 = 1 << 12;

/// The slots of a Frontend's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    cluster: Numbers,
    local: Numbers,
}

/// A slot for each endpoint of a list; `None` where each has its place in the list, as nearly all do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Numbers(Option<Box<[u32]>>);

/// Slots as they were, by endpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) cluster: BTreeMap<EndpointKey, u32>,
    pub(super) local: BTreeMap<EndpointKey, u32>,
}

impl Held {
    /// Those of a Frontend as it was.
    pub(super) fn of(frontend: &Frontend, slots: &Slots) -> Self {
        let by_endpoint = |is_local| {
            // Of an endpoint that is listed twice the first one counts.
            slots.of(frontend, is_local).map(|(slot, endpoint)| (*endpoint, slot)).rev().collect()
        };
        Held { cluster: by_endpoint(false), local: by_endpoint(true) }
    }
}

impl Slots {
    /// The slots of a Frontend's endpoints: those that are held, and the lowest free ones for the others. Without affinity
    /// there are no gaps, so that any number below the number of endpoints is a slot.
    pub(super) fn keeping(held: &Held, frontend: &Frontend) -> Self {
        let keep = |held: &BTreeMap<EndpointKey, u32>, endpoints: &[EndpointKey]| {
            let count = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
            Numbers::keeping(held, endpoints, if is_sticky(frontend, count) { MOST_STICKY } else { count })
        };
        Slots { cluster: keep(&held.cluster, &frontend.cluster), local: keep(&held.local, &frontend.local) }
    }

    /// The endpoints with their slots, in the order of the list: those on this node, or all.
    pub(super) fn of<'a>(
        &'a self,
        frontend: &'a Frontend,
        is_local: bool,
    ) -> impl DoubleEndedIterator<Item = (u32, &'a EndpointKey)> {
        let (numbers, endpoints) =
            if is_local { (&self.local, &frontend.local) } else { (&self.cluster, &frontend.cluster) };
        endpoints.iter().enumerate().map(move |(place, endpoint)| (numbers.at(place), endpoint))
    }

    /// Number of slots that a client is looked for in: the next power of two, so that few numbers are in use.
    pub(super) fn width(&self, frontend: &Frontend, is_local: bool) -> u32 {
        let highest = self.of(frontend, is_local).map(|(slot, _)| slot).max().unwrap_or(0);
        highest.saturating_add(1).checked_next_power_of_two().unwrap_or(u32::MAX)
    }
}

impl Numbers {
    fn keeping(held: &BTreeMap<EndpointKey, u32>, endpoints: &[EndpointKey], bound: u32) -> Self {
        if held.is_empty() {
            return Numbers::default();
        }
        let mut taken = BTreeSet::new();
        let kept: Vec<Option<u32>> = endpoints
            .iter()
            .map(|endpoint| held.get(endpoint).copied().filter(|slot| *slot < bound && taken.insert(*slot)))
            .collect();
        let mut free = (0..u32::MAX).filter(|slot| !taken.contains(slot));
        let numbers: Box<[u32]> =
            kept.into_iter().map(|slot| slot.or_else(|| free.next()).unwrap_or(u32::MAX)).collect();
        let are_places = (0..).zip(&numbers).all(|(place, slot)| *slot == place);
        Numbers((!are_places).then_some(numbers))
    }

    fn at(&self, place: usize) -> u32 {
        let number = self.0.as_ref().and_then(|numbers| numbers.get(place)).copied();
        number.unwrap_or_else(|| u32::try_from(place).unwrap_or(u32::MAX))
    }
}

/// Whether clients stay with their endpoint, if there are so many.
pub(super) fn is_sticky(frontend: &Frontend, endpoints: u32) -> bool {
    frontend.affinity_secs.is_some() && endpoints <= MOST_STICKY
}

/// Which slot is meant by each number below the number of slots: the slot of that number, where there is one; where there is a
/// gap, the next of those beyond. So a change of one endpoint changes at most two of them.
pub(super) fn draws(slots: &BTreeSet<u32>) -> impl Iterator<Item = (u32, u32)> {
    let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
    let mut beyond = slots.range(count..).copied();
    (0..count).filter_map(move |draw| Some((draw, if slots.contains(&draw) { draw } else { beyond.next()? })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(last: u8) -> EndpointKey {
        EndpointKey::new([10, 0, 0, last].into(), 80)
    }

    fn keys(last: &[u8]) -> Vec<EndpointKey> {
        last.iter().copied().map(key).collect()
    }

    fn held(slots: &[(u8, u32)]) -> BTreeMap<EndpointKey, u32> {
        slots.iter().map(|(last, slot)| (key(*last), *slot)).collect()
    }

    fn numbers(slots: &[(u8, u32)], endpoints: &[u8], bound: u32) -> Vec<u32> {
        let numbers = Numbers::keeping(&held(slots), &keys(endpoints), bound);
        (0..endpoints.len()).map(|place| numbers.at(place)).collect()
    }

    #[test]
    fn an_endpoint_keeps_its_slot_and_a_new_one_gets_the_lowest_free_one() {
        assert_eq!(numbers(&[], &[1, 2, 3], 3), [0, 1, 2]);
        assert_eq!(numbers(&[(1, 0), (3, 1)], &[1, 2, 3], MOST_STICKY), [0, 2, 1]);
        assert_eq!(numbers(&[(1, 0), (2, 1), (3, 2)], &[2, 3, 4], MOST_STICKY), [1, 2, 0]);
        // Two with one slot cannot both keep it.
        assert_eq!(numbers(&[(1, 1), (2, 1)], &[1, 2], MOST_STICKY), [1, 0]);
    }

    #[test]
    fn without_affinity_there_are_no_gaps() {
        assert_eq!(numbers(&[(1, 0), (2, 1), (3, 2)], &[1, 3], 2), [0, 1]);
        assert_eq!(numbers(&[(1, 0), (2, 1), (3, 2)], &[1, 3], MOST_STICKY), [0, 2]);
    }

    #[test]
    fn every_slot_is_drawn_once_and_one_change_changes_few_draws() {
        let draws_of = |slots: &[u32]| draws(&slots.iter().copied().collect()).collect::<Vec<_>>();
        assert_eq!(draws_of(&[0, 1, 2]), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(draws_of(&[0, 2, 3]), [(0, 0), (1, 3), (2, 2)]);
        assert_eq!(draws_of(&[5, 9, 2, 700]), [(0, 5), (1, 9), (2, 2), (3, 700)]);
        assert_eq!(draws_of(&[]), []);
    }
}

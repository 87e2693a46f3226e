//! Slots of a Frontend's endpoints, and the capacity of the chain that chooses among them. An endpoint keeps its slot
//! while it lives, over changes of the list and restarts of the process. So a change writes only the elements that
//! differ, and clients of a slot stay with an endpoint.
//!
//! With session affinity, new endpoints get slots in rotation: all clients of a removed endpoint would follow its slot
//! to the next one. An endpoint has one slot, whatever its weight. The weight decides how many draws select it, so that
//! clients stay when it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use super::pick::most_for;
use crate::net::EndpointKey;
use crate::pack::Gather as _;
use crate::service::Frontend;
use crate::snapshot::Sharing;

/// Largest number of endpoints with session affinity: each slot is a chain and a set, and a new client is searched for
/// in all of them. Services with more endpoints do not get it
/// ([`Facts::most_with_affinity`](crate::modes::Facts::most_with_affinity)).
pub(super) const MOST_STICKY: u32 = 1 << 12;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    cluster: Numbers,
    local: Numbers,
    pub(super) is_over_limit: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Numbers {
    /// The index in the list of the endpoint of each share; `None` if each endpoint has one, in order, as nearly all
    /// do. With affinity, an endpoint that takes connections has one share.
    shares: Option<Box<[u32]>>,
    /// The slot of each share; `None` if it is the share's index.
    slots: Option<Box<[u32]>>,
    /// With affinity, the number of draws that select each share; `None` for one each.
    draws: Option<Box<[u32]>>,
    /// Capacity of the selecting chain, if larger than the smallest sufficient one.
    most: Option<NonZeroU32>,
    /// Slot of the next new endpoint, if that is not the slot above the highest.
    next: Option<NonZeroU32>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct HeldSlots {
    pub(super) cluster: HeldNumbers,
    pub(super) local: HeldNumbers,
}

/// Slots of the endpoints on this node, or of all.
#[derive(Clone, Debug, Default)]
pub(super) struct HeldNumbers {
    pub(super) slots: BTreeMap<EndpointKey, BTreeSet<u32>>,
    pub(super) most: Option<u32>,
    next: Option<NonZeroU32>,
}

impl HeldNumbers {
    fn next(&self) -> u32 {
        let above = || self.slots.values().flatten().max().map_or(0, |highest| highest.saturating_add(1));
        self.next.map_or_else(above, NonZeroU32::get)
    }
}

impl HeldSlots {
    pub(super) fn from_frontend(frontend: &Frontend, slots: &Slots) -> Self {
        let numbers = |is_local| {
            let of = slots.of(frontend, is_local);
            let mut held = HeldNumbers { most: Some(of.most()), next: of.numbers.next, ..HeldNumbers::default() };
            for (slot, endpoint) in of.with_endpoints() {
                held.slots.entry(*endpoint).or_default().insert(slot);
            }
            held
        };
        HeldSlots { cluster: numbers(false), local: numbers(true) }
    }

    /// The same, but new endpoints get slots in the turn of these: the kernel does not know it.
    pub(super) fn in_turn(mut self, slots: &Slots) -> Self {
        (self.cluster.next, self.local.next) = (slots.cluster.next, slots.local.next);
        self
    }

    pub(super) fn of_mut(&mut self, is_local: bool) -> &mut HeldNumbers {
        if is_local { &mut self.local } else { &mut self.cluster }
    }
}

impl Slots {
    /// Held slots for the endpoints that have them, free ones for the others. Without affinity these are the lowest ones
    /// without gaps, with affinity the next in rotation out of about twice as many as there are endpoints.
    pub(super) fn keeping(held: &HeldSlots, frontend: &Frontend, is_over_limit: bool) -> Self {
        let keep = |held: &HeldNumbers, endpoints: &[EndpointKey]| {
            let by_client = by_client(frontend).is_some();
            let shares = if by_client || frontend.weights.is_some() { frontend.slots_of(endpoints) } else { None };
            if by_client {
                // All nodes have the same table.
                return Numbers { shares, ..Numbers::default() };
            }
            let is_sticky = is_sticky(frontend, endpoints) && !is_over_limit;
            let (shares, draws) = match shares {
                Some(shares) if is_sticky => once_each(&shares, endpoints.len()),
                shares => (shares, None),
            };
            let shared = shares.iter().flatten().filter_map(|place| endpoints.get(usize::try_from(*place).ok()?));
            let shared: Vec<EndpointKey> = shared.copied().collect();
            let list = if shares.is_some() { &shared } else { endpoints };
            let count = number_of(list);
            let (slots, next) = Numbers::keeping(held, list, is_sticky);
            let most = most_for(count, held.most);
            let is_smallest = is_sticky || most == most_for(count, None);
            Numbers { shares, slots, draws, most: NonZeroU32::new(most).filter(|_| !is_smallest), next }
        };
        Slots {
            cluster: keep(&held.cluster, &frontend.cluster),
            local: keep(&held.local, &frontend.local),
            is_over_limit,
        }
    }

    /// Those of the endpoints on this node, or of all.
    pub(super) fn of<'a>(&'a self, frontend: &'a Frontend, is_local: bool) -> SlotsOf<'a> {
        let (numbers, endpoints) =
            if is_local { (&self.local, &*frontend.local) } else { (&self.cluster, &*frontend.cluster) };
        let is_sticky = is_sticky(frontend, endpoints) && !self.is_over_limit;
        SlotsOf { numbers, endpoints, is_sticky }
    }
}

/// The slots of one list of endpoints.
pub(super) struct SlotsOf<'a> {
    numbers: &'a Numbers,
    endpoints: &'a [EndpointKey],
    pub(super) is_sticky: bool,
}

impl<'a> SlotsOf<'a> {
    /// The endpoints with their slots, in the order of the list. An endpoint has as many slots as shares.
    pub(super) fn with_endpoints(&self) -> impl Iterator<Item = (u32, &'a EndpointKey)> + use<'a> {
        let (numbers, endpoints) = (self.numbers, self.endpoints);
        let endpoint = move |share: usize| match &numbers.shares {
            None => endpoints.get(share),
            Some(shares) => endpoints.get(usize::try_from(*shares.get(share)?).ok()?),
        };
        (0..numbers.count(endpoints)).filter_map(move |share| Some((numbers.at(share), endpoint(share)?)))
    }

    /// The slot of each draw of a new client with affinity: a number below the number of draws.
    pub(super) fn draws(&self) -> Vec<(u32, u32)> {
        let slots = self.with_endpoints().map(|(slot, _)| slot);
        match &self.numbers.draws {
            None => draws(&slots.gather()).collect(),
            Some(draws) => {
                let counted: BTreeMap<u32, u32> = slots.zip(draws.iter().copied()).gather();
                let each = counted.into_iter().flat_map(|(slot, count)| (0..count).map(move |_| slot));
                (0..).zip(each).collect()
            }
        }
    }

    pub(super) fn draw_count(&self) -> u32 {
        let draws = self.numbers.draws.as_ref();
        draws.map_or_else(|| self.count(), |draws| draws.iter().copied().fold(0, u32::saturating_add))
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.numbers.count(self.endpoints)).unwrap_or(u32::MAX)
    }

    pub(super) fn most(&self) -> u32 {
        self.numbers.most.map_or_else(|| most_for(self.count(), None), NonZeroU32::get)
    }

    /// Number of slots in which a client is searched for: the next power of two, so that few numbers are in use.
    pub(super) fn width(&self) -> u32 {
        let highest = self.with_endpoints().map(|(slot, _)| slot).max().unwrap_or(0);
        highest.saturating_add(1).checked_next_power_of_two().unwrap_or(u32::MAX)
    }
}

impl Numbers {
    /// Also returns where the rotation continues.
    fn keeping(
        held: &HeldNumbers,
        endpoints: &[EndpointKey],
        is_sticky: bool,
    ) -> (Option<Box<[u32]>>, Option<NonZeroU32>) {
        if held.slots.is_empty() && held.next.is_none() {
            return (None, None);
        }
        let count = number_of(endpoints);
        let (bound, first, all) = if is_sticky {
            (MOST_STICKY, held.next(), count.next_power_of_two().saturating_mul(2).min(MOST_STICKY))
        } else {
            (count, 0, count)
        };
        let mut taken = BTreeSet::new();
        let kept: Vec<Option<u32>> = endpoints
            .iter()
            .map(|endpoint| {
                // The lowest one that no earlier share of it has.
                let slots = held.slots.get(endpoint)?;
                slots.iter().copied().find(|slot| *slot < bound && taken.insert(*slot))
            })
            .collect();
        let in_turn = (0..all).filter_map(|turn| first.wrapping_add(turn).checked_rem(all));
        let mut free = in_turn.filter(|slot| !taken.contains(slot));
        let mut next = first;
        let mut give = || {
            let slot = free.next().unwrap_or(u32::MAX);
            next = slot.saturating_add(1);
            slot
        };
        let numbers: Box<[u32]> = kept.into_iter().map(|slot| slot.unwrap_or_else(&mut give)).collect();
        let is_above = !is_sticky || numbers.iter().max().map_or(0, |highest| highest.saturating_add(1)) == next;
        let next = NonZeroU32::new(next).filter(|_| !is_above);
        let are_places = (0..).zip(&numbers).all(|(place, slot)| *slot == place);
        ((!are_places).then_some(numbers), next)
    }

    fn at(&self, share: usize) -> u32 {
        let number = self.slots.as_ref().and_then(|numbers| numbers.get(share)).copied();
        number.unwrap_or_else(|| u32::try_from(share).unwrap_or(u32::MAX))
    }

    fn count(&self, endpoints: &[EndpointKey]) -> usize {
        self.shares.as_ref().map_or(endpoints.len(), |shares| shares.len())
    }
}

/// Numbers, if they are not the obvious ones.
type Unusual = Option<Box<[u32]>>;

/// Each endpoint of a list of shares once, and the number of its shares; `None` for all endpoints in order, and for one
/// share each.
fn once_each(shares: &[u32], endpoints: usize) -> (Unusual, Unusual) {
    let each = || shares.chunk_by(|one, next| one == next);
    let once: Box<[u32]> = each().filter_map(|of| of.first()).copied().collect();
    let draws: Box<[u32]> = each().map(number_of).collect();
    let is_weighted = draws.iter().any(|count| *count != 1);
    ((once.len() != endpoints).then_some(once), is_weighted.then_some(draws))
}

fn number_of<T>(list: &[T]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

/// Whether the client determines the endpoint, and if so, whether with its port.
pub(super) fn by_client(frontend: &Frontend) -> Option<bool> {
    match frontend.sharing() {
        Sharing::ByClient { port } => Some(port),
        Sharing::Evenly => None,
    }
}

fn is_sticky(frontend: &Frontend, endpoints: &[EndpointKey]) -> bool {
    frontend.affinity_secs.is_some() && number_of(endpoints) <= MOST_STICKY
}

/// Slot of each draw, a number below the number of slots. It is the slot of that number, if it exists, otherwise the
/// next of those beyond. So a change of one endpoint changes at most two of them.
fn draws(slots: &BTreeSet<u32>) -> impl Iterator<Item = (u32, u32)> {
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

    fn held(slots: &[(u8, u32)]) -> HeldNumbers {
        let slots = slots.iter().map(|(last, slot)| (key(*last), [*slot].into())).collect();
        HeldNumbers { slots, ..HeldNumbers::default() }
    }

    /// The slots of these endpoints, and the slot and capacity from which the next change starts.
    fn follow(held: &HeldNumbers, endpoints: &[u8], is_sticky: bool) -> (Vec<u32>, HeldNumbers) {
        let (slots, next) = Numbers::keeping(held, &keys(endpoints), is_sticky);
        let numbers = Numbers { slots, next, ..Numbers::default() };
        let slots: Vec<u32> = (0..endpoints.len()).map(|place| numbers.at(place)).collect();
        let held = keys(endpoints).into_iter().zip(slots.iter().map(|slot| [*slot].into()));
        let held = HeldNumbers { slots: held.collect(), most: None, next };
        (slots, held)
    }

    fn numbers(slots: &[(u8, u32)], endpoints: &[u8], is_sticky: bool) -> Vec<u32> {
        follow(&held(slots), endpoints, is_sticky).0
    }

    #[test]
    fn an_endpoint_keeps_its_slot_and_a_new_one_gets_an_unused_slot() {
        assert_eq!(numbers(&[], &[1, 2, 3], true), [0, 1, 2]);
        assert_eq!(numbers(&[(1, 0), (3, 1)], &[1, 2, 3], true), [0, 2, 1]);
        assert_eq!(numbers(&[(1, 0), (2, 1), (3, 2)], &[2, 3, 4], true), [1, 2, 3]);
        assert_eq!(numbers(&[(1, 0), (2, 1)], &[3, 4], true), [2, 3]);
        // Two with one slot cannot both keep it.
        assert_eq!(numbers(&[(1, 1), (2, 1)], &[1, 2], true), [1, 2]);
        // The rotation returns to the slots that have been empty longest.
        assert_eq!(numbers(&[(1, 6), (2, 7)], &[1, 2, 3, 4], true), [6, 7, 0, 1]);
    }

    #[test]
    fn the_slot_of_a_removed_endpoint_is_reused_last() {
        let (mut slots, mut held) = follow(&HeldNumbers::default(), &[1, 2, 3, 4], true);
        let mut last_used = BTreeMap::new();
        for round in 1..40_u8 {
            last_used.extend(slots.iter().map(|slot| (*slot, round)));
            // One is removed before another is added.
            let rest: Vec<u8> = (round + 1..round + 4).collect();
            held = follow(&held, &rest, true).1;
            let all: Vec<u8> = (round + 1..round + 5).collect();
            (slots, held) = follow(&held, &all, true);
            let used = |slot: u32| last_used.get(&slot).copied().unwrap_or_default();
            let given = *slots.last().unwrap();
            assert!((0..8).all(|slot| used(slot) >= used(given)), "{round}: {given} of {last_used:?}");
        }
        // First no endpoint is left, and then there are four new ones.
        let all_before = slots;
        let (none, held) = follow(&held, &[], true);
        let (others, _) = follow(&held, &[200, 201, 202, 203], true);
        assert!(none.is_empty() && others.iter().all(|slot| !all_before.contains(slot)), "{others:?} {all_before:?}");
    }

    #[test]
    fn without_affinity_there_are_no_gaps() {
        assert_eq!(numbers(&[(1, 0), (2, 1), (3, 2)], &[1, 3], false), [0, 1]);
        assert_eq!(numbers(&[(1, 0), (2, 1), (3, 2)], &[1, 3], true), [0, 2]);
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

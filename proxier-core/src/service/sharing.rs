//! How endpoints share a Frontend's connections, for modes that use a table of slots.
//!
//! ```text
//!  weights 3, 1        ─▶ slots 0 0 0 1                    a draw meets each slot with the same probability
//!  by client           ─▶ slots 1 0 0 1 0 1 1 0 … (251)    a client's hash is a slot: Maglev's table
//! ```
//!
//! Maglev (Eisenbud et al., NSDI 2016, section 3.4). Each endpoint has a permutation of the slots that depends only on
//! its address and port. The endpoints take their next free slot in turn. So all nodes have the same table for the same
//! endpoints, and adding or removing an endpoint moves few of the others' slots.

use super::Frontend;
use crate::backoff::mix;
use crate::net::EndpointKey;
use crate::snapshot::{Balancing, Sharing};

/// Most slots of a weighted choice for up to 32 endpoints; beyond that, eight per endpoint.
const MOST_SLOTS: u32 = 256;

/// Sizes of Maglev's tables, which must be primes. The first with sixteen slots per endpoint is used.
const SIZES: [u32; 5] = [251, 1021, 4093, 16_381, 65_521];

impl Frontend {
    /// Whether any of these endpoints accepts new connections: its weight is not 0.
    pub(crate) fn takes(&self, endpoints: &[EndpointKey]) -> bool {
        let rests = |endpoint: &EndpointKey| {
            self.weights.as_ref().is_some_and(|all| all.binary_search(&(*endpoint, 0)).is_ok())
        };
        endpoints.iter().any(|endpoint| !rests(endpoint))
    }

    /// The endpoint of each slot, by index in the list, for a choice among slots; `None` if each endpoint has one slot,
    /// in order. Empty if none accepts connections.
    pub(crate) fn slots_of(&self, endpoints: &[EndpointKey]) -> Option<Box<[u32]>> {
        let known = self.weights.as_deref();
        let weights = known.and_then(|known| weights_of(endpoints, known, self.balancing.as_deref()));
        if matches!(self.sharing(), Sharing::ByClient { .. }) && !endpoints.is_empty() {
            let weights = weights.unwrap_or_else(|| vec![1; endpoints.len()]);
            return Some(maglev(endpoints, &weights));
        }
        let shares = shares(&weights?, MOST_SLOTS);
        let slots = (0_u32..).zip(shares).flat_map(|(place, share)| (0..share).map(move |_| place));
        Some(slots.collect())
    }
}

/// Number of slots of a Frontend with these endpoints, if each is selected ([`Frontend::slots_of`]).
pub(super) fn count_slots(
    endpoints: &[EndpointKey],
    known: Option<&[(EndpointKey, u16)]>,
    balancing: Option<&Balancing>,
) -> usize {
    let weights = known.and_then(|known| weights_of(endpoints, known, balancing));
    let slots = match balancing.map_or(Sharing::Evenly, Balancing::sharing) {
        Sharing::ByClient { .. } => {
            let taking = weights.as_ref().map(|all| all.iter().filter(|weight| **weight > 0).count());
            size_for(taking.unwrap_or(endpoints.len()))
        }
        Sharing::Evenly => {
            let Some(weights) = weights else { return endpoints.len() };
            shares(&weights, MOST_SLOTS).into_iter().fold(0, u32::saturating_add)
        }
    };
    usize::try_from(slots).unwrap_or(usize::MAX)
}

/// The weight of each endpoint of a list, in order; `None` if all are equal and above 0. Schedulers without weights
/// only distinguish 0. `known` is sorted by endpoint; missing ones have 1.
fn weights_of(
    endpoints: &[EndpointKey],
    known: &[(EndpointKey, u16)],
    balancing: Option<&Balancing>,
) -> Option<Vec<u32>> {
    let knows_weights = balancing.is_none_or(Balancing::knows_weights);
    let weight = |endpoint: &EndpointKey| {
        let weight = u32::from(weight_of(known, endpoint));
        if knows_weights { weight } else { weight.min(1) }
    };
    let weights: Vec<u32> = endpoints.iter().map(weight).collect();
    let first = weights.first()?;
    (*first == 0 || weights.iter().any(|weight| weight != first)).then_some(weights)
}

/// The weight of an endpoint; 1 if not listed.
pub(super) fn weight_of(known: &[(EndpointKey, u16)], endpoint: &EndpointKey) -> u16 {
    let place = known.binary_search_by(|(of, _)| of.cmp(endpoint)).ok();
    place.and_then(|place| known.get(place)).map_or(1, |(_, weight)| *weight)
}

/// Slots for each weight: the weights divided by their common divisor, and rounded if there would be more than `most`
/// (or eight per endpoint, if that is more). A weight above 0 gets at least one.
fn shares(weights: &[u32], most: u32) -> Vec<u32> {
    let divisor = weights.iter().copied().fold(0, gcd).max(1);
    let reduced: Vec<u32> = weights.iter().filter_map(|weight| weight.checked_div(divisor)).collect();
    let count = u32::try_from(weights.len()).unwrap_or(u32::MAX);
    let most = most.max(count.saturating_mul(8));
    let sum: u64 = reduced.iter().copied().map(u64::from).sum();
    if sum <= u64::from(most) { reduced } else { quotas(&reduced, most) }
}

fn gcd(a: u32, b: u32) -> u32 {
    let (mut a, mut b) = (a, b);
    while b != 0 {
        (a, b) = (b, a.checked_rem(b).unwrap_or(0));
    }
    a
}

/// Divides slots by weights: each gets its share rounded down, and the largest remainders get the rest. A weight above
/// 0 gets at least one, at the cost of the largest.
fn quotas(weights: &[u32], slots: u32) -> Vec<u32> {
    let sum = weights.iter().copied().map(u64::from).sum::<u64>().max(1);
    let due = |weight: u32| u64::from(weight).saturating_mul(slots.into());
    let quota = |weight: u32| u32::try_from(due(weight).checked_div(sum).unwrap_or(0)).unwrap_or(u32::MAX);
    let mut all: Vec<u32> = weights.iter().map(|weight| quota(*weight).max(u32::from(*weight > 0))).collect();
    let mut given = all.iter().copied().fold(0_u32, u32::saturating_add);
    let remainder = |weight: u32| due(weight).checked_rem(sum).unwrap_or(0);
    let ranks = weights.iter().enumerate().map(|(place, weight)| (std::cmp::Reverse(remainder(*weight)), place));
    let mut by_remainder: Vec<_> = ranks.collect();
    by_remainder.sort_unstable();
    let by_remainder = by_remainder.into_iter().map(|(_, place)| place);
    // Those with a share below one slot already have more.
    for place in by_remainder.filter(|place| weights.get(*place).is_some_and(|weight| quota(*weight) > 0)) {
        if given >= slots {
            break;
        }
        all.get_mut(place).into_iter().for_each(|quota| *quota = quota.saturating_add(1));
        given = given.saturating_add(1);
    }
    while given > slots {
        let Some(largest) = all.iter_mut().max().filter(|largest| **largest > 1) else { break };
        *largest = largest.saturating_sub(1);
        given = given.saturating_sub(1);
    }
    all
}

/// The size of Maglev's table for this many endpoints that take connections.
fn size_for(taking: usize) -> u32 {
    let wanted = u32::try_from(taking).unwrap_or(u32::MAX).saturating_mul(16);
    let [.., largest] = SIZES;
    if taking == 0 { 0 } else { SIZES.into_iter().find(|size| *size >= wanted).unwrap_or(largest) }
}

/// Maglev's table: the endpoint of each slot, by index in the list; empty if all weights are 0.
fn maglev(endpoints: &[EndpointKey], weights: &[u32]) -> Box<[u32]> {
    let size = size_for(weights.iter().filter(|weight| **weight > 0).count());
    if size == 0 {
        return Box::default();
    }
    let quotas = quotas(weights, size);
    let rounds = quotas.iter().copied().max().unwrap_or(0);
    let mut takers: Vec<Taker> = endpoints.iter().map(|endpoint| Taker::new(endpoint, size)).collect();
    let mut table = vec![None; usize::try_from(size).unwrap_or(0)];
    for round in 1..=rounds {
        for ((place, taker), quota) in (0_u32..).zip(&mut takers).zip(&quotas) {
            // After each round all have the same fraction of their share.
            while u64::from(taker.taken).saturating_mul(rounds.into()) < u64::from(*quota).saturating_mul(round.into())
            {
                let free = (0..size).map(|_| taker.next(size)).find(|slot| table.get(*slot) == Some(&None));
                let Some(entry) = free.and_then(|slot| table.get_mut(slot)) else { break };
                *entry = Some(place);
                taker.taken = taker.taken.saturating_add(1);
            }
        }
    }
    table.into_iter().flatten().collect()
}

/// An endpoint and its position in its permutation of the slots.
struct Taker {
    at: u64,
    skip: u64,
    taken: u32,
}

impl Taker {
    fn new(endpoint: &EndpointKey, size: u32) -> Self {
        // Changing this hash would move clients while nodes are upgraded one by one.
        let name = fnv(endpoint.to_string().bytes());
        let below = |hash: u64, bound: u32| hash.checked_rem(bound.into()).unwrap_or(0);
        let skip = below(mix(name.wrapping_add(0x9e37_79b9_7f4a_7c15)), size.saturating_sub(1)).saturating_add(1);
        Taker { at: below(mix(name), size), skip, taken: 0 }
    }

    fn next(&mut self, size: u32) -> usize {
        let slot = self.at;
        self.at = slot.wrapping_add(self.skip).checked_rem(size.into()).unwrap_or(0);
        usize::try_from(slot).unwrap_or(usize::MAX)
    }
}

fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
#[allow(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "numbers are small, and tests stop at the first surprise"
)]
mod tests {
    use super::*;

    fn endpoints(count: u16) -> Vec<EndpointKey> {
        (0..count).map(|n| EndpointKey::new([10, 244, (n / 250) as u8, (n % 250) as u8 + 1].into(), 8080)).collect()
    }

    fn counts(table: &[u32], endpoints: usize) -> Vec<u32> {
        let mut counts = vec![0; endpoints];
        for place in table {
            counts[*place as usize] += 1;
        }
        counts
    }

    #[test]
    fn shares_are_weights_reduced_or_rounded() {
        assert_eq!(shares(&[30, 10], 256), [3, 1]);
        assert_eq!(shares(&[0, 10], 256), [0, 1]);
        assert_eq!(shares(&[0, 0], 256), [0, 0]);
        assert_eq!(shares(&[65_535, 1], 256), [255, 1]);
        assert_eq!(shares(&[1000, 999, 0], 256), [128, 128, 0]);
        for weights in [vec![7, 65_521, 30_011], (1..=100).map(|n| n * 613 + 7).collect()] {
            let most = 256.max(8 * weights.len() as u32);
            let (shares, sum) = (shares(&weights, 256), weights.iter().sum::<u32>());
            assert_eq!(shares.iter().sum::<u32>(), most);
            for (share, weight) in shares.iter().zip(&weights) {
                let due = f64::from(*weight) * f64::from(most) / f64::from(sum);
                assert!((f64::from(*share) - due).abs() <= 1.0, "{weight}: {share} for {due}");
            }
        }
    }

    #[test]
    fn slots_are_counted_without_making_them() {
        let list = endpoints(20);
        for scheduler in ["", "rr", "mh"] {
            let balancing = Balancing { scheduler: scheduler.parse().ok(), ..Balancing::default() };
            for weights in [vec![], vec![0; 20], vec![1; 20], vec![3; 20], (0..20).collect(), vec![65_535, 1, 0]] {
                let known: Vec<(EndpointKey, u16)> = list.iter().copied().zip(weights).collect();
                let known = (!known.is_empty()).then_some(&*known);
                let weights = known.and_then(|known| weights_of(&list, known, Some(&balancing)));
                let expected = match (balancing.sharing(), &weights) {
                    (Sharing::ByClient { .. }, None) => maglev(&list, &[1; 20]).len(),
                    (Sharing::ByClient { .. }, Some(weights)) => maglev(&list, weights).len(),
                    (Sharing::Evenly, None) => 20,
                    (Sharing::Evenly, Some(weights)) => shares(weights, MOST_SLOTS).iter().sum::<u32>() as usize,
                };
                assert_eq!(count_slots(&list, known, Some(&balancing)), expected, "{scheduler} {weights:?}");
            }
        }
        assert_eq!(count_slots(&list, None, None), 20);
    }

    #[test]
    fn every_endpoint_gets_its_share_of_the_table() {
        for count in [1, 2, 3, 16, 17, 100, 700] {
            let list = endpoints(count);
            let table = maglev(&list, &vec![1; list.len()]);
            assert!(table.len() >= 16 * list.len(), "{count}");
            let counts = counts(&table, list.len());
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{count}: {counts:?}");
        }
        let table = maglev(&endpoints(3), &[3, 1, 0]);
        assert_eq!(counts(&table, 3), [188, 63, 0]);
        assert!(maglev(&endpoints(2), &[0, 0]).is_empty());
    }

    #[test]
    fn removing_an_endpoint_moves_few_others() {
        for count in [3_u16, 10, 60, 200] {
            let all = endpoints(count);
            let before = maglev(&all, &vec![1; all.len()]);
            let (mut others, mut kept) = (0, 0);
            for gone in 0..all.len() {
                let rest: Vec<EndpointKey> = all.iter().copied().filter(|one| *one != all[gone]).collect();
                let after = maglev(&rest, &vec![1; rest.len()]);
                if after.len() != before.len() {
                    continue;
                }
                for (old, new) in before.iter().zip(&after).filter(|(old, _)| **old as usize != gone) {
                    kept += 1;
                    others += u32::from(all[*old as usize] != rest[*new as usize]);
                }
            }
            assert!(kept > 0 && f64::from(others) / f64::from(kept) < 0.1, "{count}: {others} of {kept} moved");
        }
    }
}

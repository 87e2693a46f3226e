//! Choice of the endpoint of the next connection: endpoints in turn, and for clients with affinity the one they had.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::net::EndpointKey;
use crate::ports::{Limit, Slots, Turn};
use crate::service::{fnv, mix};
use crate::time::Moment;

/// Clients that are remembered at most; further ones are served without affinity.
const MOST_STAYS: usize = 1 << 17;

/// The turns and the clients of one Service port.
#[derive(Debug, Default)]
pub(super) struct Balance {
    turn: usize,
    stays: BTreeMap<IpAddr, Stay>,
    /// Open connections of each endpoint, where they count.
    open: BTreeMap<EndpointKey, u64>,
    /// Endpoints that have reached their limit, and get nothing until they are below it far enough.
    full: BTreeSet<EndpointKey>,
    /// Time at which clients that stayed away are forgotten next.
    sweep_at: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Stay {
    endpoint: EndpointKey,
    used: Moment,
}

impl Balance {
    /// The endpoint for a client's next connection. `avoid` has those that did not answer this connection: a client that
    /// stays with one of them moves on.
    pub(super) fn choose(
        &mut self,
        client: SocketAddr,
        slots: Slots<'_>,
        (turn, affinity): (Turn, Option<Duration>),
        avoid: &[EndpointKey],
        now: Moment,
    ) -> Option<EndpointKey> {
        let address = client.ip();
        let Some(affinity) = affinity else {
            return self.next(client, slots, turn, avoid);
        };
        let stays = self.stays.get(&address).filter(|stay| now < stay.used.saturating_add(affinity));
        let kept = stays
            .map(|stay| stay.endpoint)
            .filter(|endpoint| slots.endpoints.binary_search(endpoint).is_ok() && !avoid.contains(endpoint));
        let endpoint = kept.or_else(|| self.next(client, slots, turn, avoid))?;
        self.sweep(affinity, now);
        if self.stays.len() < MOST_STAYS || self.stays.contains_key(&address) {
            self.stays.insert(address, Stay { endpoint, used: now });
        }
        Some(endpoint)
    }

    /// Notes which endpoints have as many connections as they may, as IPVS does (`ip_vs_bind_dest`, `ip_vs_unbind_dest`): a client that stays
    /// with one of them keeps it.
    pub(super) fn limit(&mut self, limit: Option<Limit>, endpoints: &[EndpointKey]) {
        let Some(Limit { most, again_below }) = limit else {
            self.full.clear();
            return;
        };
        for endpoint in endpoints {
            let open = self.open.get(endpoint).copied().unwrap_or(0);
            if open >= most.into() {
                self.full.insert(*endpoint);
            } else if open < again_below.into() {
                self.full.remove(endpoint);
            }
        }
    }

    /// Counts a connection to an endpoint.
    pub(super) fn begin(&mut self, endpoint: EndpointKey) {
        let open = self.open.entry(endpoint).or_default();
        *open = open.saturating_add(1);
    }

    /// Counts a connection to an endpoint no more.
    pub(super) fn end(&mut self, endpoint: EndpointKey) {
        if let Entry::Occupied(mut open) = self.open.entry(endpoint) {
            *open.get_mut() = open.get().saturating_sub(1);
            if *open.get() == 0 {
                open.remove();
            }
        }
    }

    /// A client that stays with this endpoint does not any more.
    pub(super) fn leave(&mut self, client: IpAddr, endpoint: EndpointKey) {
        if self.stays.get(&client).is_some_and(|stay| stay.endpoint == endpoint) {
            self.stays.remove(&client);
        }
    }

    fn next(&mut self, client: SocketAddr, slots: Slots<'_>, turn: Turn, avoid: &[EndpointKey]) -> Option<EndpointKey> {
        let first = match turn {
            Turn::Next => self.turn,
            Turn::Client { port } => hash(client, port),
            Turn::Fewest => return self.fewest(slots, avoid),
        };
        for step in 0..slots.count() {
            let slot = first.wrapping_add(step).checked_rem(slots.count())?;
            let endpoint = slots.get(slot)?;
            if turn == Turn::Next {
                self.turn = self.turn.wrapping_add(1);
            }
            if !avoid.contains(&endpoint) && !self.full.contains(&endpoint) {
                return Some(endpoint);
            }
        }
        None
    }

    /// The endpoint with the fewest open connections for each of its slots; of several the next one.
    fn fewest(&mut self, slots: Slots<'_>, avoid: &[EndpointKey]) -> Option<EndpointKey> {
        let mut shares: BTreeMap<EndpointKey, u64> = BTreeMap::new();
        let all = (0..slots.count()).filter_map(|slot| slots.get(slot));
        for endpoint in all.filter(|endpoint| !avoid.contains(endpoint) && !self.full.contains(endpoint)) {
            let share = shares.entry(endpoint).or_default();
            *share = share.saturating_add(1);
        }
        self.turn = self.turn.wrapping_add(1);
        let first = self.turn.checked_rem(shares.len())?;
        let open = |endpoint: &EndpointKey| self.open.get(endpoint).copied().unwrap_or(0).saturating_add(1);
        let in_turn = shares.iter().skip(first).chain(shares.iter().take(first));
        // a / b < c / d without division.
        let fewer = |(a, b): &(&EndpointKey, &u64), (c, d): &(&EndpointKey, &u64)| {
            open(a).saturating_mul(**d).cmp(&open(c).saturating_mul(**b))
        };
        in_turn.min_by(fewer).map(|(endpoint, _)| *endpoint)
    }

    /// Forgets clients whose time is over, now and then.
    fn sweep(&mut self, affinity: Duration, now: Moment) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now.saturating_add(affinity.clamp(Duration::from_secs(1), Duration::from_secs(60)));
        self.stays.retain(|_, stay| now < stay.used.saturating_add(affinity));
    }
}

/// A number that is the same for one client on every node: FNV-1a, mixed as SplitMix64 does.
fn hash(client: SocketAddr, port: bool) -> usize {
    let port = port.then(|| client.port().to_be_bytes()).into_iter().flatten();
    let number = match client.ip() {
        IpAddr::V4(address) => fnv(address.octets().into_iter().chain(port)),
        IpAddr::V6(address) => fnv(address.octets().into_iter().chain(port)),
    };
    usize::try_from(mix(number) >> 32).unwrap_or(0)
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests stop at the first surprise")]
mod tests {
    use super::*;

    fn endpoints(count: u8) -> Vec<EndpointKey> {
        (1..=count).map(|last| EndpointKey::new([10, 0, 0, last].into(), 80)).collect()
    }

    fn client(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 50_000).into()
    }

    const HOUR: Option<Duration> = Some(Duration::from_secs(3600));

    #[test]
    fn endpoints_take_turns() {
        let (mut balance, all) = (Balance::default(), endpoints(3));
        let chosen: Vec<_> = (0..6)
            .filter_map(|_| balance.choose(client(1), Slots::each(&all), (Turn::Next, None), &[], Moment::ZERO))
            .collect();
        assert_eq!(chosen, [&all[..], &all[..]].concat());
    }

    #[test]
    fn what_did_not_answer_is_left_out() {
        let (mut balance, all) = (Balance::default(), endpoints(3));
        for _ in 0..4 {
            assert_eq!(
                balance.choose(client(1), Slots::each(&all), (Turn::Next, None), &[all[0], all[2]], Moment::ZERO),
                Some(all[1])
            );
        }
        assert_eq!(balance.choose(client(1), Slots::each(&all), (Turn::Next, None), &all, Moment::ZERO), None);
        assert_eq!(balance.choose(client(1), Slots::each(&[]), (Turn::Next, None), &[], Moment::ZERO), None);
    }

    #[test]
    fn a_client_stays_for_its_time_after_its_last_connection() {
        let (mut balance, all) = (Balance::default(), endpoints(3));
        let second = Duration::from_secs(1);
        let mut choose = |number, at: u32| {
            balance.choose(client(number), Slots::each(&all), (Turn::Next, Some(second)), &[], second / 10 * at)
        };
        let first = choose(1, 0);
        assert_ne!(choose(2, 0), first);
        assert_eq!(choose(1, 9), first);
        assert_eq!(choose(1, 18), first, "each connection begins the time anew");
        assert_ne!(choose(1, 28), first, "over");
    }

    #[test]
    fn a_client_moves_when_its_endpoint_goes_or_does_not_answer() {
        let (mut balance, all) = (Balance::default(), endpoints(2));
        let first = balance.choose(client(1), Slots::each(&all), (Turn::Next, HOUR), &[], Moment::ZERO).unwrap();
        let other = *all.iter().find(|endpoint| **endpoint != first).unwrap();
        assert_eq!(
            balance.choose(client(1), Slots::each(&all), (Turn::Next, HOUR), &[first], Moment::ZERO),
            Some(other)
        );
        assert_eq!(
            balance.choose(client(1), Slots::each(&all), (Turn::Next, HOUR), &[], Moment::ZERO),
            Some(other),
            "it stays with the new one"
        );
        assert_eq!(
            balance.choose(client(1), Slots::each(&[first]), (Turn::Next, HOUR), &[], Moment::ZERO),
            Some(first)
        );
    }

    #[test]
    fn clients_are_forgotten() {
        let (mut balance, all) = (Balance::default(), endpoints(2));
        let second = Duration::from_secs(1);
        for number in 0..100 {
            balance.choose(client(number), Slots::each(&all), (Turn::Next, Some(second)), &[], Moment::ZERO);
        }
        balance.choose(client(200), Slots::each(&all), (Turn::Next, Some(second)), &[], second * 5);
        assert_eq!(balance.stays.len(), 1);
    }
}

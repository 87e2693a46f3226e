//! Chooses the endpoint of the next connection: endpoints in rotation, or a client's previous one with affinity.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use crate::net::EndpointKey;
use crate::time::Moment;

/// Most clients to remember. Further ones are served without affinity.
const MOST_STAYS: usize = 1 << 17;

/// Rotation and affinity of one Service port.
#[derive(Debug, Default)]
pub(super) struct Balance {
    turn: usize,
    stays: BTreeMap<IpAddr, Stay>,
    /// When clients that stayed away are next forgotten.
    sweep_at: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Stay {
    endpoint: EndpointKey,
    used: Moment,
}

impl Balance {
    /// The endpoint, out of this sorted list, for a client's next connection. `avoid` has those that failed for this
    /// connection; affinity to one of them is dropped.
    pub(super) fn choose(
        &mut self,
        client: IpAddr,
        endpoints: &[EndpointKey],
        affinity: Option<Duration>,
        avoid: &[EndpointKey],
        now: Moment,
    ) -> Option<EndpointKey> {
        let Some(affinity) = affinity else {
            return self.next(endpoints, avoid);
        };
        let stays = self.stays.get(&client).filter(|stay| now < stay.used.saturating_add(affinity));
        let kept = stays
            .map(|stay| stay.endpoint)
            .filter(|endpoint| endpoints.binary_search(endpoint).is_ok() && !avoid.contains(endpoint));
        let endpoint = kept.or_else(|| self.next(endpoints, avoid))?;
        self.sweep(affinity, now);
        if self.stays.len() < MOST_STAYS || self.stays.contains_key(&client) {
            self.stays.insert(client, Stay { endpoint, used: now });
        }
        Some(endpoint)
    }

    /// Drops a client's affinity to this endpoint.
    pub(super) fn leave(&mut self, client: IpAddr, endpoint: EndpointKey) {
        if self.stays.get(&client).is_some_and(|stay| stay.endpoint == endpoint) {
            self.stays.remove(&client);
        }
    }

    fn next(&mut self, endpoints: &[EndpointKey], avoid: &[EndpointKey]) -> Option<EndpointKey> {
        for _ in endpoints {
            let endpoint = endpoints.get(self.turn.checked_rem(endpoints.len())?)?;
            self.turn = self.turn.wrapping_add(1);
            if !avoid.contains(endpoint) {
                return Some(*endpoint);
            }
        }
        None
    }

    /// Occasionally forgets clients whose time is over.
    fn sweep(&mut self, affinity: Duration, now: Moment) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now.saturating_add(affinity.clamp(Duration::from_secs(1), Duration::from_secs(60)));
        self.stays.retain(|_, stay| now < stay.used.saturating_add(affinity));
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "tests stop at the first surprise")]
mod tests {
    use super::*;

    fn endpoints(count: u8) -> Vec<EndpointKey> {
        (1..=count).map(|last| EndpointKey::new([10, 0, 0, last].into(), 80)).collect()
    }

    fn client(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    const HOUR: Option<Duration> = Some(Duration::from_secs(3600));

    #[test]
    fn endpoints_are_used_in_rotation() {
        let (mut balance, all) = (Balance::default(), endpoints(3));
        let chosen: Vec<_> = (0..6).filter_map(|_| balance.choose(client(1), &all, None, &[], Moment::ZERO)).collect();
        assert_eq!(chosen, [&all[..], &all[..]].concat());
    }

    #[test]
    fn endpoints_that_did_not_answer_are_left_out() {
        let (mut balance, all) = (Balance::default(), endpoints(3));
        for _ in 0..4 {
            assert_eq!(balance.choose(client(1), &all, None, &[all[0], all[2]], Moment::ZERO), Some(all[1]));
        }
        assert_eq!(balance.choose(client(1), &all, None, &all, Moment::ZERO), None);
        assert_eq!(balance.choose(client(1), &[], None, &[], Moment::ZERO), None);
    }

    #[test]
    fn a_client_stays_for_its_time_after_its_last_connection() {
        let (mut balance, all) = (Balance::default(), endpoints(3));
        let second = Duration::from_secs(1);
        let mut choose = |number, at: u32| balance.choose(client(number), &all, Some(second), &[], second / 10 * at);
        let first = choose(1, 0);
        assert_ne!(choose(2, 0), first);
        assert_eq!(choose(1, 9), first);
        assert_eq!(choose(1, 18), first, "each connection begins the time anew");
        assert_ne!(choose(1, 28), first, "over");
    }

    #[test]
    fn a_client_moves_when_its_endpoint_is_removed_or_does_not_answer() {
        let (mut balance, all) = (Balance::default(), endpoints(2));
        let first = balance.choose(client(1), &all, HOUR, &[], Moment::ZERO).unwrap();
        let other = *all.iter().find(|endpoint| **endpoint != first).unwrap();
        assert_eq!(balance.choose(client(1), &all, HOUR, &[first], Moment::ZERO), Some(other));
        assert_eq!(balance.choose(client(1), &all, HOUR, &[], Moment::ZERO), Some(other), "it stays with the new one");
        assert_eq!(balance.choose(client(1), &[first], HOUR, &[], Moment::ZERO), Some(first));
    }

    #[test]
    fn clients_are_forgotten() {
        let (mut balance, all) = (Balance::default(), endpoints(2));
        let second = Duration::from_secs(1);
        for number in 0..100 {
            balance.choose(client(number), &all, Some(second), &[], Moment::ZERO);
        }
        balance.choose(client(200), &all, Some(second), &[], second * 5);
        assert_eq!(balance.stays.len(), 1);
    }
}

//! TCP connections to endpoints that have left, in modes that translate connections. They are cut when the time is over
//! that the Service gives them ([`Balancing::drain_secs`](crate::snapshot::Balancing::drain_secs)).
//!
//! The kernel forgets the connection. The client's next packet goes where a new connection would, and the endpoint
//! there resets it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::modes::shared::flows::{STAY_TCP, answering_at, forget};
use crate::net::{Family, FrontendKey, Protocol};
use crate::pack::Gather as _;
use crate::plan::report::Applied;
use crate::ports::{Conntrack, UdpServices};
use crate::service::{Desired, Frontend};
use crate::time::Moment;

/// The TCP Frontends with removed endpoints, by address and port.
#[derive(Debug, Default)]
pub(super) struct Drains(BTreeMap<SocketAddr, Drain>);

#[derive(Debug, Default)]
struct Drain {
    time: Duration,
    /// The removed endpoints, and when they were removed.
    left: BTreeMap<SocketAddr, Moment>,
    /// Time at which it was found that endpoints may have left under an earlier process. It is unknown which ones, and
    /// when.
    earlier: Option<Moment>,
}

impl Drain {
    /// When the drain time of endpoints removed then is over.
    fn end(&self, since: Moment) -> Moment {
        since.saturating_add(self.time)
    }

    fn next(&self) -> Option<Moment> {
        self.left.values().copied().chain(self.earlier).min().map(|since| self.end(since))
    }
}

impl Drains {
    /// Updates Frontends that may have changed, each with its previous state. `is_first`: an earlier process may have
    /// served them.
    pub(super) fn follow<'a>(
        &mut self,
        changed: impl Iterator<Item = (&'a FrontendKey, Option<&'a Frontend>)>,
        desired: &Desired,
        is_first: bool,
        now: Moment,
    ) {
        for (key, before) in changed {
            let (Some(place), after) = (key.tcp(), desired.frontend(key)) else { continue };
            let Some(secs) = after.or(before).and_then(Frontend::drain_secs) else {
                self.0.remove(&place);
                continue;
            };
            let serving = after.map(Frontend::answering).unwrap_or_default();
            let drain = self.0.entry(place).or_default();
            drain.time = Duration::from_secs(secs.into());
            drain.left.retain(|endpoint, _| !serving.contains(endpoint));
            for endpoint in before.map(Frontend::answering).unwrap_or_default().difference(&serving) {
                drain.left.entry(*endpoint).or_insert(now);
            }
            drain.earlier = drain.earlier.or(is_first.then_some(now));
            if drain.next().is_none() {
                self.0.remove(&place);
            }
        }
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.0.values().filter_map(Drain::next).min()
    }

    /// Cuts the connections whose drain time is over, except in families that were not written, where the endpoints
    /// still serve.
    pub(super) fn cut(
        &mut self,
        desired: &Desired,
        unwritten: &BTreeSet<Family>,
        now: Moment,
        conntrack: (&mut dyn Conntrack, &dyn Fn() -> Moment),
        applied: &mut Applied,
    ) {
        let mut due = self.due(desired, now);
        due.retain(|place, _| !unwritten.contains(&Family::of(place.ip())));
        if forget(Protocol::Tcp, &due, Some(STAY_TCP), conntrack, applied) {
            self.done(due.into_keys(), now);
        }
    }

    /// The Frontends with connections to cut now, and the addresses that may still answer there.
    fn due(&self, desired: &Desired, now: Moment) -> UdpServices {
        let due = self.0.iter().filter(|(_, drain)| drain.next().is_some_and(|next| next <= now));
        let stays = |(place, drain): (&SocketAddr, &Drain)| {
            let key = FrontendKey::new(Protocol::Tcp, place.ip(), place.port());
            let mut stay = answering_at(*place, desired.frontend(&key).map(Frontend::answering));
            stay.extend(drain.left.iter().filter(|(_, since)| drain.end(**since) > now).map(|(endpoint, _)| *endpoint));
            (*place, stay)
        };
        due.map(stays).gather()
    }

    /// Drops the endpoints of these Frontends whose drain time was over.
    fn done(&mut self, places: impl IntoIterator<Item = SocketAddr>, now: Moment) {
        for place in places {
            let Some(drain) = self.0.get_mut(&place) else { continue };
            let time = drain.time;
            let goes_on = |since: Moment| since.saturating_add(time) > now;
            drain.left.retain(|_, since| goes_on(*since));
            drain.earlier = drain.earlier.filter(|since| goes_on(*since));
            if drain.next().is_none() {
                self.0.remove(&place);
            }
        }
    }
}

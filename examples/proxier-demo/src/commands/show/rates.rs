//! Rates: differences of two reads of the kernel's counters. Pure.
//!
//! The kernel has its own rates (`ipvsadm -Ln --rate`): averages over some seconds, which lag behind, and which are
//! zero with `net.ipv4.vs.run_estimation` 0. These are exact for the time between two reads.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Duration;

use ipvs::VirtualServerKey;
use ipvs::model::{ObservedRealServer, ObservedVirtualServer, RealServerKey, Stats};
use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PerSecond {
    pub(super) connections: f64,
    /// Packets from clients.
    pub(super) packets_in: f64,
    /// Packets to clients. None with direct return and tunnels, since replies do not come back this way.
    pub(super) packets_out: f64,
    pub(super) bytes_in: f64,
    pub(super) bytes_out: f64,
}

impl PerSecond {
    pub(super) fn packets(&self) -> f64 {
        self.packets_in + self.packets_out
    }

    pub(super) fn bytes(&self) -> f64 {
        self.bytes_in + self.bytes_out
    }

    pub(super) fn add(&mut self, other: &PerSecond) {
        self.connections += other.connections;
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
    }
}

pub(super) type RatedServer = (ObservedRealServer, Option<PerSecond>);

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ServerRates {
    pub(super) server: ObservedVirtualServer,
    /// Rates since the previous read. `None`: this is the first read.
    pub(super) rates: Option<PerSecond>,
    /// Busiest first. No rates: this read is the first with it.
    pub(super) real_servers: Vec<RatedServer>,
}

impl ServerRates {
    pub(super) fn key(&self) -> VirtualServerKey {
        self.server.server.key
    }

    /// Active and inactive connections.
    pub(super) fn connections(&self) -> (u64, u64) {
        self.real_servers.iter().fold((0, 0), |(active, inactive), (real, _)| {
            (active + u64::from(real.active_connections), inactive + u64::from(real.inactive_connections))
        })
    }
}

pub(super) type Reading = (ObservedVirtualServer, Vec<ObservedRealServer>);

/// A read compared with the previous one.
pub(super) struct View {
    /// Busiest first: by connections per second, then bytes per second, then active connections, then keys.
    pub(super) servers: Vec<ServerRates>,
    /// Sum over all virtual servers. `None`: this is the first read.
    pub(super) total: Option<PerSecond>,
    pub(super) compared: Comparison,
}

/// What has counters: a virtual server or Frontend, or a real server of one.
pub(super) type Counted = (VirtualServerKey, Option<RealServerKey>);

/// Counters of a complete read; `None`: something is there that is not counted.
pub(super) type Counters = HashMap<Counted, Option<Stats>>;

/// The previous read, and its time.
#[derive(Debug, Default)]
pub(super) struct History(Option<(Duration, Counters)>);

/// The counters of a read next to the previous ones.
pub(super) struct Comparison {
    /// `None`: this is the first read.
    before: Option<Counters>,
    elapsed: Duration,
    /// Number of virtual servers or Frontends added since the previous read; `went`: number of those deleted.
    pub(super) came: usize,
    pub(super) went: usize,
}

impl Comparison {
    pub(super) fn is_first(&self) -> bool {
        self.before.is_none()
    }

    /// The numbers of those that came and went, if any did.
    pub(super) fn changed(&self) -> String {
        let (came, went) = (self.came, self.went);
        if came + went > 0 { format!(" (+{came} -{went})") } else { String::new() }
    }

    /// Rates since the previous read. `None`: this read is the first with it, or it is not counted.
    pub(super) fn rates(&self, of: Counted, now: Option<&Stats>) -> Option<PerSecond> {
        let before = self.before.as_ref()?;
        let earlier = match before.get(&of) {
            Some(counters) => (*counters)?,
            // Reads are complete: what was not in the last one has counted since then. But a real server that returns to
            // its virtual server within two minutes may have its old counters (`ip_vs_trash_get_dest`,
            // net/netfilter/ipvs/ip_vs_ctl.c).
            None if of.1.is_some() && before.contains_key(&(of.0, None)) => return None,
            None => Stats::default(),
        };
        Some(per_second(&earlier, now?, self.elapsed))
    }
}

impl History {
    /// Compares the counters of a read with the previous ones, and stores them. `at`: time of the read, by a monotonic
    /// clock.
    pub(super) fn next(&mut self, read: Counters, at: Duration) -> Comparison {
        let (elapsed, before) = match self.0.take() {
            Some((then, before)) => (at.saturating_sub(then), Some(before)),
            None => (Duration::ZERO, None),
        };
        let more = |these: &Counters, than: &Counters| {
            these.keys().filter(|of| of.1.is_none() && !than.contains_key(*of)).count()
        };
        let (came, went) = before.as_ref().map_or((0, 0), |before| (more(&read, before), more(before, &read)));
        self.0 = Some((at, read));
        Comparison { before, elapsed, came, went }
    }

    /// Compares all virtual servers with those of the previous read.
    pub(super) fn compare(&mut self, reading: Vec<Reading>, at: Duration) -> View {
        let mut counters = Counters::new();
        for (server, real_servers) in &reading {
            let key = server.server.key;
            counters.insert((key, None), Some(server.stats));
            counters.extend(real_servers.iter().map(|real| ((key, Some(real.server.key)), Some(real.stats))));
        }
        let compared = self.next(counters, at);
        let mut servers: Vec<ServerRates> = reading.into_iter().map(|one| rated(one, &compared)).collect();
        servers.sort_unstable_by(|a, b| {
            let active = b.connections().cmp(&a.connections());
            faster(b.rates.as_ref(), a.rates.as_ref()).then(active).then_with(|| a.key().cmp(&b.key()))
        });
        let mut total = PerSecond::default();
        servers.iter().filter_map(|server| server.rates.as_ref()).for_each(|rates| total.add(rates));
        let total = (!compared.is_first()).then_some(total);
        View { servers, total, compared }
    }
}

fn rated((server, real_servers): Reading, compared: &Comparison) -> ServerRates {
    let key = server.server.key;
    let rates = compared.rates((key, None), Some(&server.stats));
    let of_real = |real: &ObservedRealServer| compared.rates((key, Some(real.server.key)), Some(&real.stats));
    let mut real_servers: Vec<_> = real_servers.into_iter().map(|real| (real, of_real(&real))).collect();
    real_servers.sort_unstable_by(|(a, of_a), (b, of_b)| {
        let active = b.active_connections.cmp(&a.active_connections);
        faster(of_b.as_ref(), of_a.as_ref()).then(active).then_with(|| a.server.cmp(&b.server))
    });
    ServerRates { server, rates, real_servers }
}

/// Orders by connections per second, then bytes per second.
fn faster(a: Option<&PerSecond>, b: Option<&PerSecond>) -> Ordering {
    let (a, b) = (a.copied().unwrap_or_default(), b.copied().unwrap_or_default());
    a.connections.total_cmp(&b.connections).then_with(|| a.bytes().total_cmp(&b.bytes()))
}

/// Rates between two reads of one server's counters; zero if no time has passed.
///
/// A counter that decreased was reset meanwhile (`ipvsadm -Z`, or the server was deleted and added again), so it
/// counted at least its current value. All counters are reset together.
fn per_second(before: &Stats, now: &Stats, elapsed: Duration) -> PerSecond {
    let was_reset = now.bytes_in < before.bytes_in || now.bytes_out < before.bytes_out;
    let difference = |before: u64, now: u64| if was_reset { now } else { now.checked_sub(before).unwrap_or(now) };
    let seconds = elapsed.as_secs_f64();
    let rate = |before, now| if seconds > 0.0 { float(difference(before, now)) / seconds } else { 0.0 };
    PerSecond {
        connections: rate(before.connections, now.connections),
        packets_in: rate(before.packets_in, now.packets_in),
        packets_out: rate(before.packets_out, now.packets_out),
        bytes_in: rate(before.bytes_in, now.bytes_in),
        bytes_out: rate(before.bytes_out, now.bytes_out),
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates are for reading: 15 digits are enough")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "all numbers here are exact")]
pub(super) mod tests {
    use std::net::SocketAddr;

    use ipvs::model::{RealServer, Scheduler, VirtualServer};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn stats(connections: u64, packets: u64, bytes: u64) -> Stats {
        let mut stats = Stats::default();
        (stats.connections, stats.packets_in, stats.packets_out) = (connections, packets, packets / 2);
        (stats.bytes_in, stats.bytes_out) = (bytes, bytes * 2);
        stats
    }

    /// `10.96.0.LAST:80`, with real servers `10.244.0.LAST:8080`.
    pub(in crate::commands::show) fn one(last: u8, of_virtual: Stats, real: &[(u8, Stats)]) -> Reading {
        let key = format!("TCP 10.96.0.{last}:80").parse().unwrap();
        let mut server = ObservedVirtualServer::from(VirtualServer::new(key, Scheduler::RoundRobin));
        server.stats = of_virtual;
        let real = real.iter().map(|(last, stats)| {
            let mut real = ObservedRealServer::from(RealServer::new(SocketAddr::new([10, 244, 0, *last].into(), 8080)));
            real.stats = *stats;
            real
        });
        (server, real.collect())
    }

    /// The last part of each address, in order.
    fn order(view: &View) -> Vec<u8> {
        let last = |server: &ServerRates| server.key().to_string().split(['.', ':']).nth(3).unwrap().parse().unwrap();
        view.servers.iter().map(last).collect()
    }

    fn connections(view: &View) -> Vec<Option<f64>> {
        view.servers.iter().map(|server| server.rates.map(|rates| rates.connections)).collect()
    }

    #[test]
    fn rates_are_differences_over_time_and_the_busiest_comes_first() {
        let mut history = History::default();
        let first = vec![one(1, stats(10, 100, 1000), &[(5, stats(10, 100, 1000))]), one(2, stats(7, 7, 7), &[])];
        let view = history.compare(first, SECOND);
        assert_eq!((connections(&view), view.total), (vec![None, None], None));
        assert_eq!(view.servers[0].real_servers[0].1, None);
        let second = vec![
            one(1, stats(12, 110, 1500), &[(5, stats(11, 104, 1004)), (6, stats(1, 6, 496))]),
            one(2, stats(27, 7, 7), &[]),
        ];
        let view = history.compare(second, 3 * SECOND);
        assert_eq!((order(&view), connections(&view)), (vec![2, 1], vec![Some(10.0), Some(1.0)]));
        let rates = view.servers[1].rates.unwrap();
        let expected =
            PerSecond { connections: 1.0, packets_in: 5.0, packets_out: 2.5, bytes_in: 250.0, bytes_out: 500.0 };
        assert_eq!(rates, expected);
        assert_eq!((rates.packets(), rates.bytes()), (7.5, 750.0));
        // A real server that was in no earlier read has no rate, since it may have old counters.
        let real: Vec<_> =
            view.servers[1].real_servers.iter().map(|(_, rates)| rates.map(|of| of.connections)).collect();
        assert_eq!(real, [Some(0.5), None]);
        assert_eq!(view.total.unwrap().connections, 11.0);
    }

    #[test]
    fn servers_may_appear_and_disappear() {
        let mut history = History::default();
        history.compare(vec![one(1, stats(5, 0, 0), &[]), one(2, stats(9, 0, 0), &[])], SECOND);
        let now = vec![one(2, stats(9, 0, 0), &[]), one(3, stats(4, 0, 0), &[(5, stats(4, 0, 0))])];
        let view = history.compare(now, 3 * SECOND);
        // Virtual server 3 is newer than the previous read, and so is its real server.
        assert_eq!((order(&view), connections(&view)), (vec![3, 2], vec![Some(2.0), Some(0.0)]));
        assert_eq!(view.servers[0].real_servers[0].1.unwrap().connections, 2.0);
        assert_eq!((view.compared.came, view.compared.went), (1, 1));
        let view = history.compare(Vec::new(), 4 * SECOND);
        assert_eq!((view.compared.came, view.compared.went, view.total), (0, 2, Some(PerSecond::default())));
        // The server returns and counts from zero: its rate is not negative, and excludes counts from before its
        // removal.
        let view = history.compare(vec![one(2, stats(3, 0, 0), &[])], 5 * SECOND);
        assert_eq!(connections(&view), [Some(3.0)]);
    }

    #[test]
    fn counters_may_be_reset_to_zero() {
        let of = |before, now| per_second(&before, &now, SECOND);
        let rates = of(stats(1000, 5000, 60_000), stats(3, 12, 400));
        assert_eq!((rates.connections, rates.packets_in, rates.bytes_in), (3.0, 12.0, 400.0));
        // Some counters have grown beyond their old values.
        let rates = of(stats(2, 1000, 60_000), stats(3, 12, 400));
        assert_eq!((rates.connections, rates.packets_in), (3.0, 12.0));
        let rates = of(stats(1000, 12, 400), stats(3, 5000, 60_000));
        assert_eq!(rates.connections, 3.0);
        // Deleted and added again between two readings: the same.
        let half = u64::from(u32::MAX / 2);
        assert_eq!(of(stats(half + 2, 9, 900), stats(1, 1, 60)).connections, 1.0);
        // A rate needs elapsed time.
        assert_eq!(per_second(&stats(0, 0, 0), &stats(5, 5, 5), Duration::ZERO), PerSecond::default());
    }
}

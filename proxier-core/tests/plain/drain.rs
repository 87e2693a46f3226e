//! Draining: no connection is cut before the deadline, and none keeps its real server after it.

use std::collections::BTreeMap;
use std::time::Duration;

use ipvs::model::{ObservedRealServer, Stats, Weight};
use ipvs::{RealServer, RealServerKey, VirtualServerKey};
use proptest::prelude::*;
use proxier_core::modes::ipvs::drain::{Drains, Policy};
use proxier_core::time::Moment;
use serde_json::json;

fn secs(secs: u64) -> Moment {
    Duration::from_secs(secs)
}

fn key(number: u8) -> VirtualServerKey {
    format!("TCP 10.96.0.{number}:80").parse().unwrap()
}

fn real(number: u8) -> RealServerKey {
    format!("10.244.0.{number}:8080").parse().unwrap()
}

/// A real server as the kernel lists it.
fn listed(real: RealServerKey, weight: u32, active: u32, inactive: u32, persistent: u32) -> ObservedRealServer {
    let server = RealServer { key: real, config: RealServer::new("1.2.3.4:5".parse().unwrap()).config };
    serde_json::from_value(json!({
        "server": server.with_weight(Weight::new(weight).unwrap()),
        "active_connections": active,
        "inactive_connections": inactive,
        "persistent_connections": persistent,
        "stats": Stats::default(),
    }))
    .unwrap()
}

/// Decision of `observe` in each case: connections of either kind count, templates of persistence do not.
#[test]
fn connections_decide() {
    let cases = [
        ((0, 0, 0), Some(0), true),
        ((1, 0, 0), Some(1), false),
        ((0, 1, 0), Some(1), false),
        ((0, 0, 9), Some(0), true),
        ((u32::MAX, u32::MAX, 0), Some(u64::from(u32::MAX) * 2), false),
    ];
    for ((active, inactive, persistent), connections, finished) in cases {
        let mut drains = Drains::new(Policy::default());
        drains.begin(key(1), real(1), secs(0));
        let verdicts = drains.observe(&key(1), Some(&[listed(real(1), 0, active, inactive, persistent)]), secs(1));
        let seen = [verdicts.finished, verdicts.waiting].map(|of| of.len());
        assert_eq!(seen, [usize::from(finished), usize::from(!finished)], "{active} {inactive} {persistent}");
        assert_eq!(drains.iter().next().unwrap().connections, connections);
    }
}

#[test]
fn pauses_double_up_to_a_minute() {
    let mut policy = Policy::default();
    policy.deadline = None;
    let mut drains = Drains::new(policy);
    drains.begin(key(1), real(1), secs(0));
    for at in [1, 3, 7, 15, 31, 63, 123, 183] {
        assert_eq!(drains.next_check(), Some(secs(at)));
        drains.observe(&key(1), None, secs(at));
    }
}

#[test]
fn a_weight_that_came_back_is_reported() {
    let mut drains = Drains::new(Policy::default());
    drains.begin(key(1), real(1), secs(0));
    drains.begin(key(1), real(2), secs(0));
    let there = [listed(real(1), 1, 1, 0, 0), listed(real(2), 0, 1, 0, 0)];
    assert_eq!(drains.observe(&key(1), Some(&there), secs(1)).takes_connections, [real(1)]);
}

#[derive(Clone, Debug)]
enum Event {
    Begin(u8, u8),
    Cancel(u8, u8),
    DeleteVirtualServer(u8),
    Connections(u8, u8, u32),
    Vanish(u8, u8),
    Pass { millis: u64, listing_fails: bool, deleting_fails: bool },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let place = || (0..3_u8, 0..4_u8);
    let event = prop_oneof![
        4 => place().prop_map(|(key, real)| Event::Begin(key, real)),
        1 => place().prop_map(|(key, real)| Event::Cancel(key, real)),
        1 => (0..3_u8).prop_map(Event::DeleteVirtualServer),
        3 => (place(), 0..3_u32).prop_map(|((key, real), count)| Event::Connections(key, real, count)),
        1 => place().prop_map(|(key, real)| Event::Vanish(key, real)),
        6 => (prop_oneof![0..3_000_u64, 0..400_000_u64], prop::bool::weighted(0.2), prop::bool::weighted(0.2))
            .prop_map(|(millis, listing_fails, deleting_fails)| Event::Pass { millis, listing_fails, deleting_fails }),
    ];
    prop::collection::vec(event, 1..120)
}

fn policies() -> impl Strategy<Value = Policy> {
    prop::option::weighted(0.8, 1..2_000_u64).prop_map(|deadline| {
        let mut policy = Policy::default();
        policy.deadline = deadline.map(secs);
        policy
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// A reconciler that checks whenever it is time, in simulated time, on a kernel in which connections come and go.
    #[test]
    fn never_before_the_time_and_never_after(events in events(), policy in policies()) {
        let mut drains = Drains::new(policy.clone());
        // The kernel: connections of each real server with weight 0. The book: since when each drains.
        let mut kernel: BTreeMap<(VirtualServerKey, RealServerKey), u32> = BTreeMap::new();
        let mut book: BTreeMap<(VirtualServerKey, RealServerKey), Moment> = BTreeMap::new();
        let longest = secs(60);
        let mut now = Moment::ZERO;
        // A deletion that fails is tried again at the next check.
        let mut excused = Moment::ZERO;
        for event in events {
            match event {
                Event::Begin(virtual_server, server) => {
                    let place = (key(virtual_server), real(server));
                    kernel.entry(place).or_insert(1);
                    let new = drains.begin(place.0, place.1, now);
                    prop_assert_eq!(new, !book.contains_key(&place));
                    book.entry(place).or_insert(now);
                }
                Event::Cancel(virtual_server, server) => {
                    let place = (key(virtual_server), real(server));
                    prop_assert_eq!(drains.forget(&place.0, &place.1), book.remove(&place).is_some());
                }
                Event::DeleteVirtualServer(virtual_server) => {
                    kernel.retain(|(of, _), _| *of != key(virtual_server));
                    book.retain(|(of, _), _| *of != key(virtual_server));
                    drains.forget_virtual_server(&key(virtual_server));
                }
                Event::Connections(virtual_server, server, count) => {
                    let place = (key(virtual_server), real(server));
                    kernel.entry(place).and_modify(|connections| *connections = count);
                }
                Event::Vanish(virtual_server, server) => {
                    kernel.remove(&(key(virtual_server), real(server)));
                }
                Event::Pass { millis, listing_fails, deleting_fails } => {
                    let end = now + Duration::from_millis(millis);
                    let mut looks = 0;
                    while let Some(at) = drains.next_check().filter(|at| *at <= end) {
                        prop_assert!(at >= now, "time goes back");
                        now = at;
                        looks += 1;
                        prop_assert!(looks < 100_000, "an endless loop");
                        let due = drains.due(now);
                        prop_assert!(!due.is_empty());
                        for virtual_server in due {
                            let verdicts = if listing_fails {
                                drains.observe(&virtual_server, None, now)
                            } else {
                                let there = kernel.iter().filter(|((of, _), _)| *of == virtual_server);
                                let there: Vec<_> =
                                    there.map(|((_, real), count)| listed(*real, 0, *count, 0, 5)).collect();
                                drains.observe(&virtual_server, Some(&there), now)
                            };
                            for finished in verdicts.finished {
                                let place = (virtual_server, finished);
                                // Never one that was cancelled, never one that has connections and time left.
                                let since = book.get(&place).copied();
                                prop_assert!(since.is_some());
                                let over = policy.deadline.is_some_and(|deadline| since.unwrap() + deadline <= now);
                                prop_assert!(over || kernel.get(&place) == Some(&0));
                                if deleting_fails {
                                    excused = now + longest;
                                } else {
                                    kernel.remove(&place);
                                    book.remove(&place);
                                    prop_assert!(drains.forget(&place.0, &place.1));
                                }
                            }
                            for gone in verdicts.vanished {
                                prop_assert!(!kernel.contains_key(&(virtual_server, gone)));
                                book.remove(&(virtual_server, gone));
                            }
                            for waiting in verdicts.waiting {
                                let since = book[&(virtual_server, waiting)];
                                prop_assert!(policy.deadline.is_none_or(|deadline| now < since + deadline));
                            }
                            prop_assert!(!drains.due(now).contains(&virtual_server));
                        }
                    }
                    now = end;
                    if let Some(next) = drains.next_check() {
                        prop_assert!(next > now && next <= now + longest);
                    }
                    // No real server that could be deleted is left after its time.
                    for (place, since) in &book {
                        let over = policy.deadline.is_some_and(|deadline| *since + deadline <= now);
                        prop_assert!(!over || now <= excused, "{:?} since {:?}, now {:?}", place, since, now);
                    }
                }
            }
            let known: Vec<_> = drains.iter().map(|of| ((of.virtual_server, of.real), of.since)).collect();
            prop_assert_eq!(known, book.clone().into_iter().collect::<Vec<_>>());
            prop_assert_eq!(drains.len(), book.len());
            prop_assert_eq!(drains.next_check().is_none(), book.is_empty());
        }
    }
}

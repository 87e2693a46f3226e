//! Policy by Service in nftables mode, with real connections: weights, choice by client, affinity and drain time by annotation.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use proxier_core::modes::Kind;
use proxier_core::net::Family;
use serde_json::{Value, json};
use testkit::witness::{Conversation, Transport, ask};
use testkit::{Need, kernel_test};

use crate::own_client::{self, LIMIT, Node, client, process};

const NEEDS: &[Need] = &[Need::Root, Need::Nftables, Need::IptablesNft, Need::OpenFiles(16_384)];

const CLIENTS: u8 = 40;

/// The one Service of these tests.
fn service(family: Family) -> SocketAddr {
    own_client::service(family, 1)
}

impl Node {
    /// Serves the Service with these annotations and endpoints, with weights. A restarted process finds nothing to write.
    fn serve(&mut self, annotations: Value, endpoints: &[(u8, u16)]) {
        self.service(1, &json!({ "annotations": annotations }));
        self.endpoints(1, endpoints);
        self.settle();
        self.restart();
    }

    /// Annotations that were refused.
    fn refused(&self) -> BTreeSet<String> {
        let name =
            |field: &str| field.trim_start_matches("metadata.annotations[proxier/").trim_end_matches(']').to_owned();
        self.process.rejections().map(|rejection| name(&rejection.field)).collect()
    }
}

/// The number of the endpoint that answers a client.
fn answer(family: Family, number: u8) -> u8 {
    own_client::answer(family, number, service(family))
}

/// Connections by which shares are measured.
const CONNECTIONS: usize = 1_200;

/// Connections by which the first shares are measured: `PROXIER_CONNECTIONS` of the environment. With much more, clients have no ports left.
fn first_connections() -> usize {
    std::env::var("PROXIER_CONNECTIONS").ok().and_then(|number| number.parse().ok()).unwrap_or(CONNECTIONS)
}

/// How many of this number of connections each endpoint gets.
fn spread(family: Family, connections: usize) -> BTreeMap<u8, u32> {
    let mut counts = BTreeMap::new();
    for client in (1..=CLIENTS).cycle().take(connections) {
        *counts.entry(answer(family, client)).or_default() += 1;
    }
    counts
}

/// Six standard deviations: more happens by chance once in 10^9.
#[track_caller]
fn is_shared(counts: &BTreeMap<u8, u32>, weights: &[(u8, u16)]) {
    let all = f64::from(counts.values().sum::<u32>());
    let sum = f64::from(weights.iter().map(|(_, weight)| u32::from(*weight)).sum::<u32>());
    for (number, weight) in weights {
        let part = f64::from(*weight) / sum;
        let count = f64::from(counts.get(number).copied().unwrap_or(0));
        let bound = 6.0 * (all * part * (1.0 - part)).sqrt();
        println!("{number}: {:.2} % of {all} connections, for {:.2} %", 100.0 * count / all, 100.0 * part);
        assert!((count - all * part).abs() <= bound, "{number}: {count} for {part} of {all}: {counts:?}");
    }
    assert!(counts.keys().all(|number| weights.iter().any(|(of, _)| of == number)), "{counts:?}");
}

fn in_mode(mode: Kind, test: impl FnOnce(&mut Node) + Send) {
    kernel_test(NEEDS, || test(&mut Node::new(mode)));
}

/// Weights change in place, 0 takes nothing, and where all are 0 clients are refused.
#[test]
fn weights_in_nftables_mode() {
    in_mode(Kind::Nftables, |node| {
        let mut connections = first_connections();
        for weights in [&[(1, 3), (2, 1)][..], &[(1, 3), (2, 1), (3, 0), (4, 2)], &[(1, 1), (2, 7), (3, 0)]] {
            node.serve(json!({}), weights);
            for family in Family::ALL {
                is_shared(&spread(family, connections), weights);
                connections = CONNECTIONS;
            }
        }
        assert_eq!(node.refused(), BTreeSet::new());
        // A scheduler that knows no weights knows 0.
        let weights = [(1, 5), (2, 1), (3, 0)];
        node.serve(json!({"proxier/scheduler": "rr"}), &weights);
        is_shared(&spread(Family::V4, CONNECTIONS), &[(1, 1), (2, 1)]);
        node.serve(json!({}), &[(1, 0), (2, 0)]);
        for family in Family::ALL {
            let refused = ask(Transport::Tcp, Some(client(family, 1)), service(family), LIMIT).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        }
    });
}

/// One client has one endpoint, which another process finds too; few clients move when an endpoint goes.
#[test]
fn by_client_in_nftables_mode() {
    in_mode(Kind::Nftables, |node| {
        for family in Family::ALL {
            let all = |node: &mut Node, endpoints: &[(u8, u16)]| -> BTreeMap<u8, u8> {
                node.serve(json!({"proxier/scheduler": "sh"}), endpoints);
                let first = (1..=CLIENTS).map(|client| (client, answer(family, client))).collect();
                let second: BTreeMap<u8, u8> = (1..=CLIENTS).map(|client| (client, answer(family, client))).collect();
                assert_eq!(first, second);
                first
            };
            let eight: Vec<(u8, u16)> = (1..=8).map(|number| (number, 1)).collect();
            let before = all(node, &eight);
            // Forty clients all get one of at most three of eight less than once in 10^14.
            assert!(before.values().collect::<BTreeSet<_>>().len() > 3, "{before:?}");
            let seven: Vec<(u8, u16)> = eight.iter().copied().filter(|(number, _)| *number != 3).collect();
            let after = all(node, &seven);
            let stayed = before.iter().filter(|(client, at)| **at != 3 && after[client] == **at).count();
            let were = before.values().filter(|at| **at != 3).count();
            assert!(stayed * 10 >= were * 8, "{stayed} of {were} stayed: {before:?} {after:?}");
            // In any order of events: another node has come to it otherwise.
            assert_eq!(all(node, &eight), before);
            let most = all(node, &[(1, 15), (2, 1), (3, 0)]);
            let count = |number: u8| most.values().filter(|at| **at == number).count();
            assert!(count(1) > 25 && count(3) == 0, "{most:?}");
        }
        assert_eq!(node.refused(), BTreeSet::new());
        // With the client's port, connections of one client are spread.
        node.serve(json!({"proxier/scheduler": "mh"}), &[(1, 1), (2, 1)]);
        let found: BTreeSet<u8> = (0..60).map(|_| answer(Family::V4, 1)).collect();
        assert_eq!(found.len(), 2);
    });
}

/// Drain times are for endpoints that have left. Those that hints, the traffic policy or a stop only deselect keep their connections, also over a
/// restart.
#[test]
fn connections_to_an_endpoint_that_serves_are_not_cut() {
    let hints = |kind: &str, names: [&str; 2]| {
        let hint = |name| json!({"hints": {kind: [{"name": name}]}});
        BTreeMap::from([(1, hint(names[0])), (2, hint(names[1]))])
    };
    let stopping = json!({"conditions": {"ready": false, "serving": true, "terminating": true}});
    let none = json!({});
    in_mode(Kind::Nftables, |node| {
        for (fields, spec) in [
            (hints("forNodes", ["node-a", "elsewhere"]), &none),
            (hints("forZones", ["here", "there"]), &none),
            (BTreeMap::new(), &json!({"internalTrafficPolicy": "Local"})),
            (BTreeMap::from([(2, stopping)]), &none),
        ] {
            let what = format!("{fields:?} {spec}");
            let serve = |node: &mut Node, more: &Value, endpoints: &[(u8, u16)]| {
                let mut spec = json!({"annotations": {"proxier/drain-seconds": "1"}});
                spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                node.service(1, &spec);
                node.endpoints(1, endpoints);
                node.settle();
            };
            node.fields.clear();
            serve(node, &none, &[(1, 1), (2, 1)]);
            let mut held = hold();
            node.fields = fields;
            for _ in 0..2 {
                // Each pass is a minute later.
                for _ in 0..2 {
                    serve(node, spec, &[(1, 1), (2, 1)]);
                }
                for ((family, number), one) in &mut held {
                    let answer = one.ask().unwrap_or_else(|error| panic!("{what}: {family} {number}: {error}"));
                    assert_eq!(answer.name, number.to_string(), "{what}");
                    assert!((1..=8).all(|client| self::answer(*family, client) == 1), "{what}");
                }
                node.process = process(node.mode);
            }
            for _ in 0..2 {
                serve(node, spec, &[(1, 1)]);
            }
            for ((family, number), one) in &mut held {
                assert_eq!(one.ask().is_ok(), *number == 1, "{what}: {family} {number}");
            }
        }
    });
}

/// A connection of each family to each of the endpoints 1 and 2.
fn hold() -> BTreeMap<(Family, u8), Conversation> {
    let mut held = BTreeMap::new();
    for family in Family::ALL {
        while [1, 2].iter().any(|number| !held.contains_key(&(family, *number))) {
            let mut one = Conversation::open(Transport::Tcp, None, service(family), LIMIT).unwrap();
            let name: u8 = one.ask().unwrap().name.parse().unwrap();
            held.insert((family, name), one);
        }
    }
    held
}

/// Wishes that nftables mode cannot fulfil are reported, and the others hold.
#[test]
fn what_a_mode_cannot_do_is_reported() {
    in_mode(Kind::Nftables, |node| {
        let ask = |scheduler: &str| {
            json!({"proxier/scheduler": scheduler, "proxier/forwarding": "direct-route", "proxier/max-connections": "9",
                "proxier/drain-seconds": "30", "proxier/persistence-seconds": "60"})
        };
        for scheduler in ["sed", "lc"] {
            node.serve(ask(scheduler), &[(1, 1), (2, 0)]);
            assert_eq!(node.refused(), ["forwarding", "max-connections", "scheduler"].map(str::to_owned).into());
            assert_eq!(spread(Family::V4, 20), BTreeMap::from([(1, 20)]));
        }
        node.serve(ask("wrr"), &[(1, 1)]);
        assert!(!node.refused().contains("scheduler"));
        node.serve(json!({"proxier/scheduler": "sh"}), &[(1, 1)]);
        assert_eq!(node.refused(), BTreeSet::new());
        node.serve(json!({"proxier/scheduler": "sh", "proxier/persistence-seconds": "60"}), &[(1, 1)]);
        assert!(node.refused().contains("scheduler"), "affinity decides");
    });
}

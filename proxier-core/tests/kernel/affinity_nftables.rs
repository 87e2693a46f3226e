//! Session affinity of nftables mode: real connections, and the tables as `nft` prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proxier_core::modes::Kind;
use proxier_core::net::Family;
use proxier_core::net::Family::{V4, V6};
use serde_json::{Value, json};
use testkit::{Need, Netns, kernel_test, oracle};

use crate::own_client::{self, Node, answer, node, service};

const NEEDS: &[Need] = &[Need::Root, Need::Nftables];

const CLIENTS: u8 = 20;

const NODE_PORT: u16 = 30_080;

fn new() -> Node {
    Node::new(Kind::Nftables)
}

impl Node {
    /// A Service with affinity, at its addresses and, the first one, at a node port.
    fn sticky(&mut self, number: u8, secs: u32, more: &Value) {
        let mut port = json!({"name": "p", "port": 80});
        if number == 1 {
            port["nodePort"] = json!(NODE_PORT);
        }
        let mut spec = json!({"type": "LoadBalancer", "ports": [port], "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": secs}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.service(number, &spec);
    }

    fn reached(&mut self, service: u8, numbers: &[u8]) {
        let endpoints: Vec<(u8, u16)> = numbers.iter().map(|number| (*number, 1)).collect();
        self.endpoints(service, &endpoints);
    }
}

fn nft(arguments: &[&str], input: Option<&str>) -> String {
    oracle::run("nft", arguments, input).unwrap_or_else(|error| panic!("{error}")).stdout
}

/// Parts of nft's text, sorted, without times: the order of elements does not count.
fn steady(text: &str) -> Vec<&str> {
    let elements = text.lines().flat_map(|line| line.trim().trim_start_matches("elements = { ").split(','));
    let mut parts: Vec<&str> = elements
        .map(|element| element.split(" expires ").next().unwrap_or_default().trim_end_matches('}').trim())
        .filter(|part| !part.is_empty())
        .collect();
    parts.sort_unstable();
    parts
}

/// Addresses by family and kind, each with a memory of its own for clients.
const PLACES: [(Family, bool); 4] = [(V4, false), (V6, false), (V4, true), (V6, true)];

fn place((family, is_node_port): (Family, bool)) -> SocketAddr {
    if is_node_port { SocketAddr::new(node(family), NODE_PORT) } else { service(family, 1) }
}

/// Endpoints that clients got, as long as these have been there.
#[derive(Default)]
struct Memory {
    known: BTreeMap<((Family, bool), u8), u8>,
}

impl Memory {
    /// Clients forget endpoints that are gone.
    fn forget_all_but(&mut self, endpoints: &[u8]) {
        self.known.retain(|_, endpoint| endpoints.contains(endpoint));
    }

    /// Connects these clients, all to the endpoint that they had.
    fn connect(&mut self, clients: impl Iterator<Item = u8>, endpoints: &[u8]) {
        for client in clients {
            for at in PLACES {
                let found = answer(at.0, client, place(at));
                assert!(endpoints.contains(&found), "{found} is none of {endpoints:?}");
                let known = *self.known.entry((at, client)).or_insert(found);
                assert_eq!(found, known, "client {client} at {}, endpoints {endpoints:?}", place(at));
            }
        }
    }
}

/// Endpoints come and go, slots are given again, and half of the clients are not seen for a round or more.
#[test]
fn a_client_keeps_its_endpoint_over_changes_and_restarts() {
    kernel_test(NEEDS, || {
        let mut node = new();
        node.sticky(1, 10_800, &json!({}));
        let rounds: [&[u8]; 14] = [
            &[1, 2, 3, 4],
            &[1, 3, 4],
            &[1, 3, 4, 5],
            &[1, 3, 4, 5, 6, 7, 8, 9, 10],
            &[4, 10],
            &[10],
            &[2, 10, 11],
            &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
            &[2, 5, 9, 12],
            &[1, 2, 5, 9, 12],
            &[1, 2, 5, 9],
            &[1, 2, 9, 10, 11],
            &[6, 7, 8],
            &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        ];
        let mut memory = Memory::default();
        for (round, endpoints) in (0_u8..).zip(rounds) {
            node.reached(1, endpoints);
            node.settle();
            memory.forget_all_but(endpoints);
            // Some clients are always there, the rest seldom.
            let seen = |client: &u8| client.is_multiple_of(2) || (client / 2 + round).is_multiple_of(4);
            memory.connect((1..=CLIENTS).filter(seen), endpoints);
            if round % 3 == 1 {
                node.restart();
            }
            memory.connect((1..=CLIENTS).filter(seen), endpoints);
            nft(&["list", "ruleset"], None);
        }
        memory.connect(1..=CLIENTS, rounds[13]);
        let used: BTreeSet<u8> = memory.known.values().copied().collect();
        assert!(used.len() > 2, "all clients go to {used:?}");
    });
}

/// Clients whose endpoint is gone choose among all endpoints, and the other clients stay, in any steps of change.
#[test]
fn clients_of_an_endpoint_that_is_gone_are_spread_anew() {
    kernel_test(NEEDS, || {
        let mut node = new();
        node.sticky(1, 10_800, &json!({}));
        let all = |node: &mut Node, endpoints: &[u8]| -> BTreeMap<u8, u8> {
            node.reached(1, endpoints);
            node.settle();
            let known: BTreeMap<u8, u8> =
                (1..=own_client::CLIENTS).map(|client| (client, answer(V4, client, place((V4, false))))).collect();
            assert!(known.values().all(|endpoint| endpoints.contains(endpoint)), "{known:?}");
            known
        };
        // Sixty clients of one of eight endpoints, at random: less than once in 10^7 it is 30.
        let is_spread = |known: &BTreeMap<u8, u8>, endpoints: &[u8]| {
            let most = endpoints.iter().map(|of| known.values().filter(|at| *at == of).count()).max();
            assert!(most < Some(30), "{known:?}");
        };
        let alone = all(&mut node, &[1]);
        assert_eq!(all(&mut node, &[1, 2, 3, 4, 5, 6, 7, 8]), alone);
        // All at once, then each of them: first it goes, then another one comes.
        let mut known = all(&mut node, &[9, 10, 11, 12, 13, 14, 15, 16]);
        is_spread(&known, &[9, 10, 11, 12, 13, 14, 15, 16]);
        let mut endpoints: Vec<u8> = (9..=16).collect();
        for (round, new) in (1..=8).enumerate() {
            let gone = endpoints.remove(0);
            let rest = if round % 2 == 0 { all(&mut node, &endpoints) } else { known.clone() };
            if round % 3 == 0 {
                node.restart();
            }
            endpoints.push(new);
            let next = all(&mut node, &endpoints);
            let stay = rest.iter().filter(|(_, at)| **at != gone).all(|(client, at)| next[client] == *at);
            assert!(stay, "{gone} is gone, {new} is new: {rest:?}, then {next:?}");
            let moved: BTreeSet<u8> =
                rest.iter().filter(|(_, at)| **at == gone).map(|(client, _)| next[client]).collect();
            let count = rest.values().filter(|at| **at == gone).count();
            // Six clients all get one of eight less than once in 30,000; ten less than once in 10^8.
            assert!(count < 10 || moved.len() > 1, "all {count} clients of {gone} went to {moved:?}");
            known = next;
        }
        is_spread(&known, &endpoints);
    });
}

/// New clients are spread over all endpoints, also where slots have gaps.
#[test]
fn new_clients_get_every_endpoint() {
    kernel_test(NEEDS, || {
        let mut node = new();
        node.sticky(1, 1, &json!({}));
        for endpoints in [&[1, 2, 3, 4, 5, 6, 7, 8, 9][..], &[2, 8, 9]] {
            node.reached(1, endpoints);
            node.settle();
            let wanted: BTreeSet<u8> = endpoints.iter().copied().collect();
            let mut found = BTreeSet::new();
            // Sixteen turns of twenty clients miss one of nine less than once in 10^15.
            for _ in 0..16 {
                found.extend((1..=CLIENTS).map(|client| answer(V4, client, place((V4, false)))));
                if found == wanted {
                    break;
                }
                // The kernel has forgotten the clients.
                std::thread::sleep(Duration::from_millis(1_100));
            }
            assert_eq!(found, wanted);
        }
    });
}

#[test]
fn affinity_ends_with_its_time() {
    kernel_test(NEEDS, || {
        let mut node = new();
        node.sticky(1, 1, &json!({}));
        node.sticky(2, 10_800, &json!({}));
        for service in [1, 2] {
            node.reached(service, &[1, 2, 3, 4, 5, 6, 7, 8]);
        }
        node.settle();
        for family in [V4, V6] {
            let all = |number: u8| -> Vec<u8> {
                (1..=CLIENTS).map(|client| answer(family, client, service(family, number))).collect()
            };
            let (short, long) = (all(1), all(2));
            std::thread::sleep(Duration::from_millis(1_200));
            // All of twenty clients get the same one of eight by chance less than once in 10^18.
            assert_ne!(short, all(1));
            assert_eq!(long, all(2));
        }
    });
}

/// `nft` prints the tables, as text and as JSON, and takes the text again.
#[test]
fn nft_lists_tables_with_affinity_and_takes_the_text_again() {
    kernel_test(&[NEEDS, &[Need::NftRanges]].concat(), || {
        let mut node = new();
        let local = json!({"externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local",
            "externalIPs": ["203.0.113.1", "2001:db8:2::1"],
            "loadBalancerSourceRanges": ["198.51.100.0/24", "2001:db8:1::/64"],
            "status": {"loadBalancer": {"ingress": [{"ip": "198.18.0.1"}, {"ip": "2001:db8:3::1"}]}}});
        node.sticky(1, 10_800, &json!({}));
        node.sticky(2, 60, &local);
        node.sticky(3, 10_800, &json!({"sessionAffinity": "None", "sessionAffinityConfig": null}));
        node.sticky(4, 10_800, &json!({}));
        for service in 1..=3 {
            node.reached(service, &[1, 2, 3, 4, 5]);
        }
        node.settle();
        // Gaps among the slots, and clients in the sets.
        for service in 1..=3 {
            node.reached(service, &[1, 5, 6]);
        }
        node.settle();
        for family in [V4, V6] {
            answer(family, 1, service(family, 1));
            answer(family, 2, service(family, 2));
        }
        let text = nft(&["list", "ruleset"], None);
        let tables: String =
            ["ip", "ip6"].iter().map(|family| nft(&["list", "table", family, "proxier"], None)).collect();
        assert_eq!(steady(&text), steady(&tables));
        for part in
            ["10.96.0.1 . tcp . 80 : goto internal-3-sticky-10800", "198.51.100.1 . 10.96.0.1 . tcp . 80 timeout 3h"]
        {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let rules: Value = serde_json::from_str(&nft(&["-j", "list", "ruleset"], None)).unwrap();
        let names = |kind: &str| -> BTreeSet<&str> {
            let objects = rules["nftables"].as_array().unwrap().iter();
            objects.filter_map(|object| object[kind]["name"].as_str()).collect()
        };
        for (chain, set) in [("slot-0-sticky-10800", "clients-0"), ("slot-0-local-sticky-60", "clients-0-local")] {
            assert!(names("chain").contains(chain) && names("set").contains(set), "no {chain} in {rules}");
        }
        let elsewhere = Netns::new().unwrap();
        let again = elsewhere.run_in(|| {
            nft(&["-f", "-"], Some(&text));
            nft(&["list", "ruleset"], None)
        });
        // nft 1.0.6 prints bytes of a port as those of TCP in one rule, and of any protocol in the next one.
        let [again, text] = [again.unwrap(), text].map(|text| text.replace("tcp dport", "th dport"));
        assert_eq!(steady(&again), steady(&text));
    });
}

/// The kernel remembers a limited number of clients; the rest are served without affinity.
#[test]
fn clients_beyond_the_kernels_limit_are_served() {
    kernel_test(NEEDS, || {
        let mut node = new();
        node.sticky(1, 10_800, &json!({}));
        node.reached(1, &[1]);
        node.settle();
        let listed = nft(&["list", "set", "ip", "proxier", "clients-0"], None);
        let size = listed.lines().find_map(|line| line.trim().strip_prefix("size ")).unwrap().parse().unwrap();
        let strangers: Vec<String> = (0..size)
            .map(|number: u32| {
                format!("{} . 10.96.0.9 . tcp . 80 timeout 1h", IpAddr::from((10 << 24 | number).to_be_bytes()))
            })
            .collect();
        for some in strangers.chunks(10_000) {
            nft(&["-f", "-"], Some(&format!("add element ip proxier clients-0 {{ {} }}", some.join(", "))));
        }
        // The kernel says that the set is full: listing it takes nft minutes on an emulated machine.
        let one_more = "add element ip proxier clients-0 { 10.255.255.255 . 10.96.0.9 . tcp . 80 timeout 1h }";
        let refused = || oracle::run("nft", &["-f", "-"], Some(one_more)).unwrap_err().to_string();
        assert!(refused().contains("Too many open files in system"), "{}", refused());
        for client in 1..=3 {
            assert_eq!(answer(V4, client, place((V4, false))), 1);
        }
        assert!(refused().contains("Too many open files in system"), "{}", refused());
    });
}

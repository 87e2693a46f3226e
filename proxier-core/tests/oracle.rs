//! Compares every scenario of the corpus (see `oracle/README.md`), run through the pure functions, with the result of
//! kube-proxy 1.28.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

mod corpus;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use corpus::{Scenario, corpus, facts, objects, store};
use ipset::{Element, Entry};
use iptables::{Rule, TableName};
use ipvs::model::{Protocol, RealServerKey, Scheduler, SchedulerFlags};
use ipvs::{VirtualServerKey, Weight};
use proxier_core::config::NamePrefix;
use proxier_core::modes::ipvs::rules::{Capabilities, Inputs, compile};
use proxier_core::modes::ipvs::sets::{SetKey, SetKind};
use proxier_core::modes::ipvs::wanted::Wanted;
use proxier_core::net::Family;
use proxier_core::service::NodeFacts;

/// The part of the kernel's state that is compared.
#[derive(Debug, Default, PartialEq, Eq)]
struct State {
    virtual_servers: BTreeMap<VirtualServerKey, VirtualServerState>,
    addresses: BTreeSet<IpAddr>,
    sets: BTreeMap<SetKey, BTreeSet<Element>>,
    rules: BTreeMap<ChainKey, Vec<String>>,
}

/// Family, table, chain.
type ChainKey = (Family, String, String);

#[derive(Debug, PartialEq, Eq)]
struct VirtualServerState {
    scheduler: String,
    flags: u64,
    persistence_secs: Option<u64>,
    real_servers: BTreeMap<RealServerKey, u32>,
}

fn state_of(wanted: &Wanted) -> State {
    let mut state = State { addresses: wanted.addresses().collect(), ..State::default() };
    for frontend in wanted.servers() {
        let server = frontend.virtual_server();
        let weights = frontend.real_servers.iter().map(|server| {
            assert_eq!(server.config.forwarding_method, ipvs::ForwardingMethod::Masquerade);
            (server.key, server.config.weight.get())
        });
        let new = VirtualServerState {
            scheduler: server.config.scheduler.to_string(),
            flags: u64::from(server.config.scheduler_flags.bits()),
            persistence_secs: server.config.persistence.map(|persistence| persistence.timeout_secs.into()),
            real_servers: weights.collect(),
        };
        assert!(state.virtual_servers.insert(server.key, new).is_none());
    }
    // The set that only this proxy has is left out: kube-proxy does not have it.
    for set in wanted.sets().filter(|set| set.kind.is_of_kube_proxy()) {
        state.sets.insert(set, wanted.entries(set).cloned().collect());
    }
    state
}

/// Rules in canonical form, without comments: the corpus has none.
fn rules_of(wanted: &Wanted, facts: &NodeFacts) -> BTreeMap<ChainKey, Vec<String>> {
    let mut chains = BTreeMap::new();
    for family in facts.config().families.iter() {
        let rules = compile(&Inputs::new(family, wanted, facts, Capabilities::default())).unwrap();
        for table in [TableName::NAT, TableName::FILTER] {
            for chain in rules.chains(&table) {
                let lines = chain.rules.iter().map(|rule| {
                    let comment = rule.comment().map(|text| Rule::builder().comment(text).build().unwrap().to_string());
                    let text = rule.to_string();
                    canonical(&comment.map_or(text.clone(), |comment| text.replace(&comment, "")))
                });
                let mut lines: Vec<String> = lines.collect();
                if chain.name == "KUBE-IPVS-OUT-FILTER" {
                    // All of them drop, so their order does not matter.
                    lines.sort();
                }
                chains.insert((family, table.to_string(), chain.name.to_string()), lines);
            }
        }
    }
    chains
}

fn canonical(rule: &str) -> String {
    Rule::parse(rule).unwrap().canonical().to_string()
}

fn virtual_server_key(text: &str) -> VirtualServerKey {
    let (at, protocol) = text.split_once('/').unwrap();
    VirtualServerKey::new(protocol.parse::<Protocol>().unwrap(), at.parse().unwrap())
}

/// The corpus's state, both families together, as values.
fn expected(scenario: &Scenario) -> State {
    let mut state = State::default();
    for (family, expect) in scenario.value["expect"].as_object().unwrap() {
        let family = if family == "IPv4" { Family::V4 } else { Family::V6 };
        for (key, server) in expect["virtualServers"].as_object().unwrap() {
            let flags = server["flags"].as_u64().unwrap();
            let weights = server["realServers"].as_object().unwrap().iter().map(|(at, weight)| {
                let weight = Weight::new(weight.as_u64().unwrap().try_into().unwrap()).unwrap();
                (at.parse::<SocketAddr>().unwrap().into(), weight.get())
            });
            let new = VirtualServerState {
                scheduler: server["scheduler"].as_str().unwrap().to_owned(),
                flags: flags & !1,
                persistence_secs: (flags & 1 != 0).then(|| server["timeout"].as_u64().unwrap()),
                real_servers: weights.collect(),
            };
            assert!(state.virtual_servers.insert(virtual_server_key(key), new).is_none());
        }
        state.addresses.extend(objects::<IpAddr>(&expect["dummy"]));
        let sets: BTreeMap<String, SetKey> =
            SetKey::all(family).map(|set| (set.named(NamePrefix::KUBE).name(), set)).collect();
        for (name, entries) in expect["ipsets"].as_object().unwrap() {
            let set = sets[name.as_str()];
            let parsed = objects::<String>(entries).into_iter().map(|text| {
                let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
                Entry::parse(set.kind.set_type(), &text).unwrap().element
            });
            state.sets.insert(set, parsed.collect());
        }
        for (table, chains) in expect["iptables"].as_object().unwrap() {
            for (chain, rules) in chains.as_object().unwrap() {
                let rules = objects::<String>(rules).iter().map(|rule| canonical(rule)).collect();
                state.rules.insert((family, table.clone(), chain.clone()), rules);
            }
        }
    }
    state
}

/// A deliberate difference: how it changes the corpus's state into ours, and in which scenarios.
struct Difference {
    name: &'static str,
    apply: fn(&Scenario, &mut State),
    shows_in: usize,
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "mh has mh-fallback besides mh-port: without it new connections are lost while a real server drains",
        apply: |_, state| {
            let mh = state.virtual_servers.values_mut().filter(|server| server.scheduler == "mh");
            mh.for_each(|server| server.flags |= u64::from(SchedulerFlags::MH_FALLBACK.bits()));
        },
        shows_in: 12,
    },
    Difference {
        name: "a health-check port is open only in families with addresses for node ports, whatever ports the Service has",
        apply: |scenario, state| {
            let facts = facts(scenario);
            for family in scenario.families.iter().filter(|family| facts.node_port_addresses(*family).next().is_none())
            {
                state.sets.remove(&SetKey::new(family, SetKind::HealthCheckNodePort));
            }
        },
        shows_in: 4,
    },
    Difference {
        name: "external IPs of Services with policy Local are not rejected (fixed in 1.30)",
        apply: |_, state| {
            for ((family, _, chain), rules) in &mut state.rules {
                if chain == "KUBE-IPVS-FILTER" {
                    let after = return_for(*family, SetKind::ExternalIp);
                    let place = rules.iter().position(|rule| *rule == after).unwrap();
                    rules.insert(place + 1, return_for(*family, SetKind::ExternalIpLocal));
                }
            }
        },
        shows_in: 497,
    },
    Difference {
        name: "this node's own traffic does not get around source ranges (KUBE-IPVS-OUT-FILTER, from 1.29)",
        apply: |scenario, state| {
            for family in scenario.families.iter() {
                let key = (family, "filter".to_owned(), "KUBE-IPVS-OUT-FILTER".to_owned());
                let rules = barred(family, state);
                state.rules.insert(key, rules);
            }
        },
        shows_in: 497,
    },
];

fn return_for(family: Family, kind: SetKind) -> String {
    canonical(&format!("-m set --match-set {} dst,dst -j RETURN", SetKey::new(family, kind).named(NamePrefix::KUBE)))
}

/// Load balancers whose source ranges do not include the node's address, from the corpus's sets.
fn barred(family: Family, state: &State) -> Vec<String> {
    let entries = |kind| state.sets.get(&SetKey::new(family, kind)).into_iter().flatten();
    let mut rules = Vec::new();
    for balancer in entries(SetKind::LoadBalancerFirewall) {
        let Element::IpPort(address, ports) = balancer else { panic!("{balancer}") };
        let itself = Element::IpPortIp(*address, *ports, *address);
        if entries(SetKind::LoadBalancerSourceIp).all(|entry| *entry != itself) {
            let text = balancer.to_string();
            let (protocol, port) = text.split_once(',').unwrap().1.split_once(':').unwrap();
            rules.push(format!("-s {address} -m ipvs --vaddr {address} --vproto {protocol} --vport {port} -j DROP"));
        }
    }
    let mut rules: Vec<String> = rules.iter().map(|rule| canonical(rule)).collect();
    rules.sort();
    rules
}

fn compare(scenario: &Scenario, ours: &State, theirs: &State, report: &mut String) {
    if ours == theirs {
        return;
    }
    writeln!(report, "== {}", scenario.id).unwrap();
    let keys: BTreeSet<_> = ours.virtual_servers.keys().chain(theirs.virtual_servers.keys()).collect();
    for key in keys {
        let (a, b) = (ours.virtual_servers.get(key), theirs.virtual_servers.get(key));
        if a != b {
            writeln!(report, "  {key}\n    ours     {a:?}\n    expected {b:?}").unwrap();
        }
    }
    if ours.addresses != theirs.addresses {
        writeln!(report, "  addresses\n    ours     {:?}\n    expected {:?}", ours.addresses, theirs.addresses)
            .unwrap();
    }
    let sets: BTreeSet<_> = ours.sets.keys().chain(theirs.sets.keys()).collect();
    for set in sets {
        let (a, b) = (ours.sets.get(set), theirs.sets.get(set));
        if a != b {
            writeln!(report, "  {set:?}\n    ours     {a:?}\n    expected {b:?}").unwrap();
        }
    }
    let chains: BTreeSet<_> = ours.rules.keys().chain(theirs.rules.keys()).collect();
    for chain in chains {
        let (a, b) = (ours.rules.get(chain), theirs.rules.get(chain));
        if a != b {
            writeln!(report, "  {chain:?}\n    ours     {a:#?}\n    expected {b:#?}").unwrap();
        }
    }
}

#[test]
fn every_scenario_ends_as_the_reference_says() {
    let corpus = corpus();
    assert_eq!(corpus.len(), 497);
    let mut report = String::new();
    let mut shown = vec![0; DIFFERENCES.len()];
    for scenario in &corpus {
        let store = store(scenario);
        // A LoadBalancer with policy Local and no health-check port is reported, as are source ranges of the other family only.
        let said = ["spec.healthCheckNodePort", "spec.loadBalancerSourceRanges"];
        let odd: Vec<_> = store.rejections().filter(|odd| !said.contains(&&*odd.field)).collect();
        assert!(odd.is_empty(), "{}: {odd:?}", scenario.id);
        let facts = facts(scenario);
        let wanted = Wanted::build(&store, &facts);
        let ours = State { rules: rules_of(&wanted, &facts), ..state_of(&wanted) };
        let mut theirs = expected(scenario);
        for (difference, shown) in DIFFERENCES.iter().zip(&mut shown) {
            let before = format!("{theirs:?}");
            (difference.apply)(scenario, &mut theirs);
            *shown += usize::from(before != format!("{theirs:?}"));
        }
        compare(scenario, &ours, &theirs, &mut report);
    }
    assert!(report.is_empty(), "{} scenarios differ:\n{report}", report.matches("== ").count());
    for (difference, shown) in DIFFERENCES.iter().zip(shown) {
        assert_eq!(shown, difference.shows_in, "scenarios in which this shows: {}", difference.name);
    }
}

/// The corpus covers what it is meant to cover; a truncated corpus would pass the test above.
#[test]
fn the_corpus_is_varied() {
    let (mut servers, mut real_servers, mut set_entries) = (0, 0, 0);
    let mut rules = BTreeSet::new();
    let mut schedulers = BTreeSet::new();
    let mut sets = BTreeSet::new();
    for scenario in corpus() {
        let state = expected(&scenario);
        servers += state.virtual_servers.len();
        real_servers += state.virtual_servers.values().map(|server| server.real_servers.len()).sum::<usize>();
        set_entries += state.sets.values().map(BTreeSet::len).sum::<usize>();
        schedulers.extend(state.virtual_servers.into_values().map(|server| server.scheduler));
        sets.extend(state.sets.into_keys());
        rules.extend(
            state.rules.into_iter().flat_map(|(chain, rules)| rules.into_iter().map(move |r| (chain.clone(), r))),
        );
    }
    assert_eq!(rules.len(), 75, "kinds of rules");
    assert!(servers > 2000 && real_servers > 2000 && set_entries > 5000, "{servers} {real_servers} {set_entries}");
    assert!(schedulers.contains(&Scheduler::MaglevHashing.to_string()) && schedulers.len() >= 5, "{schedulers:?}");
    let all = SetKey::all(Family::V4).chain(SetKey::all(Family::V6)).filter(|set| set.kind.is_of_kube_proxy());
    let all: BTreeSet<SetKey> = all.collect();
    let never: Vec<String> = all.difference(&sets).map(|set| set.named(NamePrefix::KUBE).name()).collect();
    // No IPv6 source range of the corpus includes the node's address; tests/services.rs has that case.
    assert_eq!(never, ["KUBE-6-LOAD-BALANCER-SOURCE-IP"]);
}

//! Runs every scenario of the corpora (see `oracle/README.md` and `oracle36/README.md`) through the pure functions.
//! Compares the result with that of kube-proxy 1.28, and for a sample with that of 1.36 (all with
//! `PROXIER_SCENARIOS=all`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use ipset::{Element, Entry};
use iptables::{Rule, TableName};
use ipvs::model::{Protocol, RealServerKey, Scheduler, SchedulerFlags};
use ipvs::{VirtualServerKey, Weight};
use proxier_core::config::NamePrefix;
use proxier_core::modes::ipvs::rules::{Capabilities, Inputs, compile};
use proxier_core::modes::ipvs::wanted::{Recorded, Wanted};
use proxier_core::net::Family;
use proxier_core::ports::{SetKey, SetKind};
use proxier_core::service::{Indexed, NodeFacts};
use serde_json::Value;
use testkit::{Sample, documents};

use crate::corpus::{Scenario, corpus, corpus_36, facts, objects, store};
use crate::differences::{self, Mode, Reference};

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

fn state_of(wanted: &Wanted<'_>) -> State {
    let mut state = State { addresses: wanted.addresses().collect(), ..State::default() };
    for (key, server) in wanted.servers() {
        let weights = server.real_servers.iter().map(|server| {
            assert_eq!(server.config.forwarding_method, ipvs::ForwardingMethod::Masquerade);
            (server.key, server.config.weight.get())
        });
        let new = VirtualServerState {
            scheduler: server.config.scheduler.to_string(),
            flags: u64::from(server.config.scheduler_flags.bits()),
            persistence_secs: server.config.persistence.map(|persistence| persistence.timeout_secs.into()),
            real_servers: weights.collect(),
        };
        assert!(state.virtual_servers.insert(key, new).is_none());
    }
    // The set that only this proxy has is left out: kube-proxy does not have it.
    for set in wanted.sets().filter(|set| set.kind.is_of_kube_proxy()) {
        state.sets.insert(set, wanted.entries(set).cloned().collect());
    }
    state
}

/// Rules in canonical form, without comments: the corpus has none.
fn rules_of(wanted: &Wanted<'_>, facts: &NodeFacts) -> BTreeMap<ChainKey, Vec<String>> {
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
                let mut rules: Vec<String> = objects::<String>(rules).iter().map(|rule| canonical(rule)).collect();
                if chain == "KUBE-IPVS-OUT-FILTER" {
                    rules.sort();
                }
                state.rules.insert((family, table.clone(), chain.clone()), rules);
            }
        }
    }
    state
}

/// A deliberate difference of the list: its function changes the corpus's state into ours.
struct Difference {
    name: &'static str,
    apply: fn(&Scenario, &mut State),
}

const DIFFERENCES: &[Difference] = &[
    Difference { name: NO_FALLBACK, apply: keep_local },
    Difference {
        name: "mh has mh-fallback besides mh-port",
        apply: |_, state| {
            let mh = state.virtual_servers.values_mut().filter(|server| server.scheduler == "mh");
            mh.for_each(|server| server.flags |= u64::from(SchedulerFlags::MH_FALLBACK.bits()));
        },
    },
    Difference {
        name: "a health-check port is open only in families with addresses for node ports, regardless of the Service's ports",
        apply: |scenario, state| {
            let facts = facts(scenario);
            for family in scenario.families.iter().filter(|family| facts.node_port_addresses(*family).next().is_none())
            {
                state.sets.remove(&SetKey::new(family, SetKind::HealthCheckNodePort));
            }
        },
    },
    Difference {
        name: "external IPs of Services with policy Local are not rejected",
        apply: |_, state| {
            for ((family, _, chain), rules) in &mut state.rules {
                if chain == "KUBE-IPVS-FILTER" {
                    let after = return_for(*family, SetKind::ExternalIp);
                    let place = rules.iter().position(|rule| *rule == after).unwrap();
                    rules.insert(place + 1, return_for(*family, SetKind::ExternalIpLocal));
                }
            }
        },
    },
    Difference {
        name: "this node's own traffic does not bypass source ranges",
        apply: |scenario, state| {
            for family in scenario.families.iter() {
                let key = (family, "filter".to_owned(), "KUBE-IPVS-OUT-FILTER".to_owned());
                let rules = barred(family, state);
                state.rules.insert(key, rules);
            }
        },
    },
];

const NO_FALLBACK: &str =
    "internal policy Local without local endpoints has no endpoint, also where the Service is reachable from outside";

/// Leaves virtual servers of cluster IPs with policy `Local` the endpoints of this node.
fn keep_local(scenario: &Scenario, state: &mut State) {
    let input = &scenario.value;
    for service in input["services"].as_array().unwrap() {
        if service["spec"]["internalTrafficPolicy"] != "Local" {
            continue;
        }
        let name = &service["metadata"]["name"];
        let of_service = |slice: &&Value| {
            slice["metadata"]["labels"]["kubernetes.io/service-name"] == *name
                && slice["metadata"]["namespace"] == service["metadata"]["namespace"]
        };
        let slices = input["endpointSlices"].as_array().unwrap().iter().filter(of_service);
        let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().unwrap());
        let here = endpoints.filter(|endpoint| endpoint["nodeName"] == input["node"]["name"]);
        // Some entries are names, or "None".
        let parsed = |list: &Value| {
            objects::<String>(list).into_iter().filter_map(|text| text.parse().ok()).collect::<Vec<IpAddr>>()
        };
        let here: BTreeSet<IpAddr> = here.flat_map(|endpoint| parsed(&endpoint["addresses"])).collect();
        let own = parsed(&service["spec"]["clusterIPs"]);
        for (key, server) in &mut state.virtual_servers {
            if key.addr().is_some_and(|address| own.contains(&address)) {
                server.real_servers.retain(|real, _| here.contains(&real.addr));
            }
        }
    }
}

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

fn hold(corpus: &[Scenario], reference: Reference, differences: &[&Difference], is_all: bool) {
    let mut report = String::new();
    let mut shown = BTreeSet::new();
    for scenario in corpus {
        let store = store(scenario);
        // A LoadBalancer with policy Local and no health-check port is reported, as are source ranges of the other family only.
        let said = ["spec.healthCheckNodePort", "spec.loadBalancerSourceRanges"];
        let odd: Vec<_> = store.rejections().filter(|odd| !said.contains(&&*odd.field)).collect();
        assert!(odd.is_empty(), "{}: {odd:?}", scenario.id);
        let facts = facts(scenario);
        let all = Indexed::build(&store, &facts, Recorded::new(facts.config()));
        let wanted = all.wanted();
        let ours = State { rules: rules_of(&wanted, &facts), ..state_of(&wanted) };
        let mut theirs = expected(scenario);
        for difference in differences {
            let before = format!("{theirs:?}");
            (difference.apply)(scenario, &mut theirs);
            if before != format!("{theirs:?}") {
                shown.insert(difference.name);
            }
        }
        compare(scenario, &ours, &theirs, &mut report);
    }
    assert!(report.is_empty(), "{} scenarios differ:\n{report}", report.matches("== ").count());
    differences::check(Mode::Ipvs, reference, shown, is_all);
}

#[test]
fn every_scenario_ends_as_the_reference_says() {
    let corpus = corpus();
    assert_eq!(corpus.len(), 497);
    let differences: Vec<_> = DIFFERENCES.iter().filter(|difference| difference.name != NO_FALLBACK).collect();
    hold(&corpus, Reference::Ipvs28, &differences, true);
}

#[test]
fn every_scenario_ends_as_the_reference_of_1_36_says() {
    let mut corpus = corpus_36();
    assert_eq!(corpus.len(), 500);
    let mut number = 0..;
    corpus.retain(|_| Sample::asked_for().takes(number.next().unwrap(), 3));
    let differences: Vec<_> = DIFFERENCES.iter().filter(|difference| difference.name == NO_FALLBACK).collect();
    hold(&corpus, Reference::Ipvs36, &differences, corpus.len() == 500);
}

/// The documentation's table is made of the list. `PROXIER_BLESS=1` writes it.
#[test]
fn the_documentation_has_the_list_of_differences() {
    let page = "docs/differences.md";
    let text = std::fs::read_to_string(documents::root().join(page)).unwrap();
    let begin = text.find("| here |").unwrap();
    documents::is_current(page, &format!("{}{}", &text[..begin], differences::table()));
}

#[test]
fn every_difference_shows_somewhere() {
    let mut names = BTreeSet::new();
    for difference in differences::DIFFERENCES {
        assert!(names.insert(difference.what), "twice: {}", difference.what);
        match difference.tested {
            Some((_, file, test)) => {
                assert!(differences::has_test(file, test), "{}: no test {file}: {test}", difference.what);
            }
            None => assert!(!difference.shows.is_empty(), "{}", difference.what),
        }
    }
}

/// The corpus covers all cases that it is for; a truncated corpus would pass the test above.
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
    // No IPv6 source range of the corpus includes the node's address; `services` has that case.
    assert_eq!(never, ["KUBE-6-LOAD-BALANCER-SOURCE-IP"]);
}

#[test]
fn the_documentation_has_every_annotation() {
    let page = proxier_core::snapshot::Annotation::documentation();
    testkit::documents::is_current("docs/reference/annotations.md", &page);
}

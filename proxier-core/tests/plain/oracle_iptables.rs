//! Compares the rules of every scenario of the corpus (see `oracle/README.md`) with those of kube-proxy 1.28, and the destinations of packets with
//! the reference's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use iptables::{Dump, Rule};
use proxier_core::modes::iptables::{Index, Options, changes};
use proxier_core::net::Family;
use proxier_core::service::Indexed;
use serde_json::Value;

use crate::corpus::{Scenario, corpus, facts, store, unpack};
use crate::iptables_model::tables::Tables;
use crate::iptables_model::walk::{Fate, Packet, Walk};

/// Table and chain, with rules in canonical form.
type Chains = BTreeMap<(String, String), Vec<String>>;

struct Expected {
    id: String,
    family: Family,
    value: Value,
}

impl Expected {
    fn name(&self) -> String {
        format!("{} {}", self.id, self.family)
    }
}

fn expected() -> Vec<Expected> {
    let text = unpack(include_bytes!("../oracle/iptables-corpus.jsonl.gz"));
    let line = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap();
        let family = if value["family"] == "IPv4" { Family::V4 } else { Family::V6 };
        Expected { id: value["id"].as_str().unwrap().to_owned(), family, value }
    };
    text.lines().map(line).collect()
}

/// Each line of the corpus with its scenario, and the tables after everything was written on a host without rules.
fn for_each(mut check: impl FnMut(&Scenario, &Expected, &Tables)) {
    let scenarios: BTreeMap<String, Scenario> =
        corpus().into_iter().map(|scenario| (scenario.id.clone(), scenario)).collect();
    for line in expected() {
        let scenario = &scenarios[&line.id];
        let facts = facts(scenario);
        let all = Indexed::build(&store(scenario), &facts, Index::new(&facts, Options::default()));
        let wanted = all.wanted();
        let mut tables = Tables::new();
        let transaction = changes(&wanted, &Dump::default(), line.family).unwrap();
        tables.restore(&transaction.to_restore_text().unwrap()).unwrap();
        let again = changes(&wanted, &tables.dump(), line.family).unwrap();
        assert!(again.is_empty(), "{}: {again}", line.name());
        check(scenario, &line, &tables);
    }
}

fn canonical(rule: &str) -> String {
    Rule::parse(rule).unwrap().canonical().to_string()
}

/// Chains without comments: the corpus has none, nor the rule that is nothing but a comment.
fn rules_of(tables: &Tables) -> Chains {
    let plain = |text: &String| {
        let rule = Rule::parse(text).unwrap();
        let comment = rule.comment().map(|text| Rule::builder().comment(text).build().unwrap().to_string());
        canonical(&text.replace(&comment.unwrap_or_default(), ""))
    };
    let chains = tables.chains().map(|(table, chain, rules)| {
        let rules = rules.iter().map(plain).filter(|rule| !rule.is_empty()).collect();
        ((table.to_owned(), chain.to_owned()), rules)
    });
    chains.collect()
}

fn expected_rules(line: &Expected) -> Chains {
    let tables = line.value["rules"].as_object().unwrap().iter();
    let chains = tables.flat_map(|(table, chains)| {
        chains.as_object().unwrap().iter().map(move |(chain, rules)| {
            let rules = rules.as_array().unwrap().iter().map(|rule| canonical(rule.as_str().unwrap())).collect();
            ((table.clone(), chain.clone()), rules)
        })
    });
    chains.collect()
}

/// A deliberate difference: which chains it explains, and on how many lines of the corpus it shows.
struct Difference {
    name: &'static str,
    explains: fn(chain: &str, ours: &[String], theirs: &[String]) -> bool,
    shows_in: usize,
}

/// Deliberate differences. None changes the destination of a packet: [`every_packet_goes_where_the_reference_sends_it`] has no exceptions.
const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "external IPs and load balancers' addresses of a Service port are sorted; the reference has the object's order",
        explains: |_, ours, theirs| {
            let without_address = |rules: &[String]| -> Vec<String> {
                let rest = |rule: &String| rule.split_once(" -p ").map_or(rule.clone(), |(_, rest)| rest.to_owned());
                rules.iter().map(rest).collect()
            };
            without_address(ours) == without_address(theirs)
        },
        shows_in: 40,
    },
    Difference {
        name: "source ranges are sorted; the reference has the object's order",
        explains: |chain, _, _| chain.starts_with("KUBE-FW-"),
        shows_in: 17,
    },
];

#[test]
fn every_chain_has_the_rules_of_the_reference() {
    let mut report = String::new();
    let (mut lines, mut rules) = (0, 0);
    let mut shown: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for_each(|_, line, tables| {
        let (ours, theirs) = (rules_of(tables), expected_rules(line));
        lines += 1;
        rules += theirs.values().map(Vec::len).sum::<usize>();
        let names: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
        for name in names {
            let (a, b) = (ours.get(name), theirs.get(name));
            if a == b {
                continue;
            }
            let explained = a.zip(b).filter(|(a, b)| sorted(a) == sorted(b));
            let explained =
                explained.and_then(|(a, b)| DIFFERENCES.iter().find(|difference| (difference.explains)(&name.1, a, b)));
            match explained {
                Some(difference) => drop(shown.entry(difference.name).or_default().insert(line.name())),
                None => writeln!(report, "{} {name:?}\n    ours     {a:#?}\n    expected {b:#?}", line.name()).unwrap(),
            }
        }
    });
    assert!(report.is_empty(), "{report}");
    assert_eq!((lines, rules), (616, 28_467));
    for difference in DIFFERENCES {
        let shown = shown.get(difference.name).map_or(0, BTreeSet::len);
        assert_eq!(shown, difference.shows_in, "lines on which this shows: {}", difference.name);
    }
}

fn sorted(rules: &[String]) -> Vec<&String> {
    let mut sorted: Vec<&String> = rules.iter().collect();
    sorted.sort();
    sorted
}

/// Answer in the corpus's form: destinations or a word, whether all are masqueraded, and if not, which.
#[derive(Debug, PartialEq)]
struct Answer {
    dest: Value,
    masquerade: bool,
    masquerade_to: Option<Value>,
}

fn answer(fates: &BTreeMap<Fate, f64>) -> Answer {
    let word = |word: &str| Answer { dest: word.into(), masquerade: false, masquerade_to: None };
    let mut reached: Vec<(String, bool)> = Vec::new();
    for fate in fates.keys() {
        match fate {
            _ if fates.len() > 1 && !matches!(fate, Fate::Reaches { .. }) => panic!("mixed: {fates:?}"),
            Fate::Untouched => return word("none"),
            Fate::Dropped => return word("DROP"),
            Fate::Rejected => return word("REJECT"),
            Fate::Reaches { endpoint, masqueraded } => reached.push((endpoint.to_string(), *masqueraded)),
        }
    }
    reached.sort();
    let masqueraded: Vec<&String> = reached.iter().filter(|(_, masqueraded)| *masqueraded).map(|(to, _)| to).collect();
    let all = masqueraded.len() == reached.len();
    let masquerade_to = (!all && !masqueraded.is_empty()).then(|| serde_json::to_value(&masqueraded).unwrap());
    let dest: Vec<&String> = reached.iter().map(|(to, _)| to).collect();
    Answer { dest: serde_json::to_value(dest).unwrap(), masquerade: all, masquerade_to }
}

#[test]
fn every_packet_goes_where_the_reference_sends_it() {
    let mut report = String::new();
    let (mut flows, mut differ) = (0, 0);
    for_each(|scenario, line, tables| {
        let interfaces: BTreeMap<String, Vec<IpAddr>> =
            serde_json::from_value(scenario.value["node"]["interfaces"].clone()).unwrap();
        let mut walk = Walk::new(tables, interfaces.into_values().flatten().collect());
        for flow in line.value["flows"].as_array().unwrap() {
            let text = |field: &str| flow[field].as_str().unwrap();
            let packet = Packet {
                protocol: text("protocol").to_lowercase(),
                source: text("source").parse().unwrap(),
                to: text("to").parse::<SocketAddr>().unwrap(),
                from_node: text("from") == "node",
            };
            let fates = walk.fates(&packet);
            let ours = answer(&fates);
            let theirs = Answer {
                dest: flow["dest"].clone(),
                masquerade: flow["masquerade"].as_bool().unwrap(),
                masquerade_to: flow.get("masqueradeTo").cloned(),
            };
            flows += 1;
            if ours != theirs {
                differ += 1;
                writeln!(report, "{}: {flow}\n    ours {ours:?}", line.name()).unwrap();
            }
            check_shares(&fates);
            if ours.dest.is_array() {
                check_affinity(&walk, flow["affinity"].as_u64(), fates.len());
            }
        }
    });
    assert!(report.is_empty(), "{differ} flows differ:\n{report}");
    assert_eq!(flows, 22_748);
}

/// Every endpoint gets the same share of connections.
fn check_shares(fates: &BTreeMap<Fate, f64>) {
    let share = 1.0 / f64::from(u32::try_from(fates.len()).unwrap());
    assert!(fates.values().all(|part| (part - share).abs() < 1e-6), "{fates:?}");
}

/// A client is noted in the list of the endpoint it reaches, and is first looked up in each of these lists.
fn check_affinity(walk: &Walk, secs: Option<u64>, endpoints: usize) {
    assert_eq!(walk.noted.len(), secs.map_or(0, |_| endpoints));
    let looked_up: BTreeSet<(u32, String)> =
        walk.noted.iter().map(|list| (secs.unwrap().try_into().unwrap(), list.clone())).collect();
    assert_eq!(walk.looked_up, looked_up);
}

//! Compares the rules of every scenario of the corpus (see `oracle/README.md`) with those of kube-proxy 1.28. `kernel_flows` sends packets through them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use iptables::{Dump, Rule};
use proxier_core::modes::iptables::{Index, IptablesOptions, changes};
use proxier_core::net::Family;
use proxier_core::service::Indexed;
use serde_json::Value;

use crate::corpus::{Scenario, corpus, facts, store, unpack};
use crate::host::Host;

/// Table and chain, with rules in canonical form.
type Chains = BTreeMap<(String, String), Vec<String>>;

/// The tables of a scenario after everything was written on a host without rules.
fn written(scenario: &Scenario, family: Family) -> Host {
    let facts = facts(scenario);
    let all = Indexed::build(&store(scenario), &facts, Index::new(&facts, IptablesOptions::default()));
    let wanted = all.wanted();
    let tables = Host::new(family);
    tables.restore(&changes(&wanted, &Dump::default(), family).unwrap().to_restore_text().unwrap());
    let again = changes(&wanted, &tables.dump(), family).unwrap();
    assert!(again.is_empty(), "{} {family}: {again}", scenario.id);
    tables
}

fn canonical(rule: &str) -> String {
    Rule::parse(rule).unwrap().canonical().to_string()
}

/// Chains without comments: the corpus has none, nor the rule that is nothing but a comment, nor the canary.
fn rules_of(tables: &Host) -> Chains {
    let plain = |text: &String| {
        let rule = Rule::parse(text).unwrap();
        let comment = rule.comment().map(|text| Rule::builder().comment(text).build().unwrap().to_string());
        canonical(&text.replace(&comment.unwrap_or_default(), ""))
    };
    let chains = tables.chains().into_iter().filter(|((_, chain), _)| chain != "KUBE-PROXY-CANARY");
    chains.map(|(name, rules)| (name, rules.iter().map(plain).filter(|rule| !rule.is_empty()).collect())).collect()
}

fn expected_rules(line: &Value) -> Chains {
    let tables = line["rules"].as_object().unwrap().iter();
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

/// Deliberate differences: only the order of addresses. None changes the destination of a packet.
const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "external IPs and load balancers' addresses of a Service port are sorted; the reference has the object's order",
        explains: |_, ours, theirs| rests(ours, " -p ") == rests(theirs, " -p "),
        shows_in: 40,
    },
    Difference {
        name: "source ranges are sorted; the reference has the object's order",
        explains: |chain, ours, theirs| chain.starts_with("KUBE-FW-") && rests(ours, " -j ") == rests(theirs, " -j "),
        shows_in: 17,
    },
];

#[test]
fn every_chain_has_the_rules_of_the_reference() {
    let mut report = String::new();
    let (mut lines, mut rules) = (0, 0);
    let mut shown: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let scenarios: BTreeMap<String, Scenario> =
        corpus().into_iter().map(|scenario| (scenario.id.clone(), scenario)).collect();
    for line in unpack(include_bytes!("../oracle/iptables-corpus.jsonl.gz")).lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let family = if line["family"] == "IPv4" { Family::V4 } else { Family::V6 };
        let scenario = &scenarios[line["id"].as_str().unwrap()];
        let of = format!("{} {family}", scenario.id);
        let (ours, theirs) = (rules_of(&written(scenario, family)), expected_rules(&line));
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
                Some(difference) => drop(shown.entry(difference.name).or_default().insert(of.clone())),
                None => writeln!(report, "{of} {name:?}\n    ours     {a:#?}\n    expected {b:#?}").unwrap(),
            }
        }
    }
    assert!(report.is_empty(), "{report}");
    assert_eq!((lines, rules), (616, 28_467));
    for difference in DIFFERENCES {
        let shown = shown.get(difference.name).map_or(0, BTreeSet::len);
        assert_eq!(shown, difference.shows_in, "lines on which this shows: {}", difference.name);
    }
}

/// Rules from this option on, in their order.
fn rests<'r>(rules: &'r [String], option: &str) -> Vec<&'r str> {
    rules.iter().map(|rule| rule.split_once(option).map_or(&**rule, |(_, rest)| rest)).collect()
}

fn sorted(rules: &[String]) -> Vec<&String> {
    let mut sorted: Vec<&String> = rules.iter().collect();
    sorted.sort();
    sorted
}

//! Rules in tables in memory: only what differs is written, and nothing of others ever. On real kernels they are in `kernel/rules.rs`.

use std::sync::OnceLock;

use iptables::{Dump, Rule, TableName};
use proptest::prelude::*;
use proxier_core::config::{Config, InterfaceName, LocalTraffic, MarkBit, NamePrefix};
use proxier_core::modes::ipvs::rules::{RuleChanges, Rules, cleanup};
use proxier_core::net::Family;
use serde_json::{Value, json};

use crate::host::Host;
use crate::node::checked;
use crate::rule_cases::{CHAINS, Case, FOREIGN, cases};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

fn everything() -> Case {
    cases().into_iter().find(|case| case.name == "everything at once").unwrap()
}

impl Host {
    fn apply(&self, rules: &Rules) -> RuleChanges {
        let changes = rules.changes(&self.dump()).unwrap();
        self.restore(&changes.transaction.to_restore_text().unwrap());
        changes
    }

    #[track_caller]
    fn assert_settled(&self, rules: &Rules, name: &str) {
        let left = rules.changes(&self.dump()).unwrap();
        assert!(left.is_empty() && left.lines.is_empty(), "{name}: {left:?}");
    }
}

#[test]
fn only_chains_that_differ_are_written() {
    let cases = cases();
    for family in FAMILIES {
        for from in &cases {
            let host = Host::new(family);
            host.restore(FOREIGN);
            host.apply(&from.rules(family));
            for to in &cases {
                let (old, new) = (from.rules(family), to.rules(family));
                let changes = host.apply(&new);
                let text = changes.transaction.to_string();
                let mut table = String::new();
                for line in text.lines() {
                    if let Some(name) = line.strip_prefix('*') {
                        name.clone_into(&mut table);
                    }
                    let Some(chain) = line.strip_prefix(':').and_then(|line| line.split(' ').next()) else { continue };
                    let name = TableName::new(table.clone()).unwrap();
                    let of = |rules: &Rules| rules.chains(&name).iter().find(|it| it.name == *chain).unwrap().clone();
                    assert_ne!(of(&old), of(&new), "{} to {}: {table} {chain}", from.name, to.name);
                }
                assert!(!text.contains("-I ") && !text.contains("-D "), "jumps stay: {text}");
                host.assert_settled(&new, to.name);
                host.apply(&old);
            }
        }
    }
}

fn check(object: Value) -> (Config, Vec<String>) {
    let (config, rejections) = checked(object);
    (config, rejections.into_iter().map(|rejection| rejection.field).collect())
}

#[test]
fn settings_of_masquerading() {
    let networks =
        |texts: &[&str]| LocalTraffic::ClusterCidrs(texts.iter().map(|text| text.parse().unwrap()).collect());
    let name = |name| InterfaceName::new(name).unwrap();
    let detected = |mode: &str, field: &str, name: &str| json!({"detectLocalMode": mode, "detectLocal": {field: name}});
    for (object, local, rejected) in [
        (json!({}), LocalTraffic::default(), None),
        (json!({"clusterCIDR": "10.244.0.0/16"}), networks(&["10.244.0.0/16"]), None),
        (json!({"clusterCIDR": "10.244.0.0/16,fd00:244::/56"}), networks(&["10.244.0.0/16", "fd00:244::/56"]), None),
        (json!({"clusterCIDR": "fd00:244::/56, 10.244.0.0/16"}), networks(&["fd00:244::/56", "10.244.0.0/16"]), None),
        (json!({"detectLocalMode": "ClusterCIDR", "clusterCIDR": ""}), LocalTraffic::default(), None),
        (json!({"detectLocalMode": "NodeCIDR", "clusterCIDR": "10.0.0.0/8"}), LocalTraffic::NodeCidr, None),
        (detected("BridgeInterface", "bridgeInterface", "cni0"), LocalTraffic::BridgeInterface(name("cni0")), None),
        (
            detected("InterfaceNamePrefix", "interfaceNamePrefix", "cali"),
            LocalTraffic::InterfaceNamePrefix(name("cali")),
            None,
        ),
        (json!({"clusterCIDR": "10.244.0.0"}), LocalTraffic::default(), Some("clusterCIDR")),
        (json!({"clusterCIDR": "10.1.0.0/16,10.2.0.0/16"}), networks(&["10.1.0.0/16"]), Some("clusterCIDR")),
        (json!({"clusterCIDR": "10.1.0.0/16,"}), networks(&["10.1.0.0/16"]), Some("clusterCIDR")),
        (json!({"detectLocalMode": "Cluster"}), LocalTraffic::default(), Some("detectLocalMode")),
        // The cluster's CIDR does not replace it: kube-proxy does not fall back either.
        (
            json!({"detectLocalMode": "BridgeInterface", "clusterCIDR": "10.1.0.0/16"}),
            LocalTraffic::default(),
            Some("detectLocal.bridgeInterface"),
        ),
        (
            detected("InterfaceNamePrefix", "interfaceNamePrefix", "cali+"),
            LocalTraffic::default(),
            Some("detectLocal.interfaceNamePrefix"),
        ),
        (
            detected("BridgeInterface", "bridgeInterface", "br0 -j ACCEPT"),
            LocalTraffic::default(),
            Some("detectLocal.bridgeInterface"),
        ),
    ] {
        let (config, fields) = check(object.clone());
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        assert_eq!((config.local_traffic, &*fields), (local, rejected.as_slice()), "{object}");
    }
    for (object, all, bit) in [
        (json!({}), false, 14),
        (json!({"iptables": {"masqueradeAll": true, "masqueradeBit": 0}}), true, 0),
        (json!({"iptables": {"masqueradeBit": null}}), false, 14),
        (
            json!({"iptables": {"masqueradeAll": true, "masqueradeBit": 3}, "ipvs": {"masqueradeAll": false, "masqueradeBit": 31}}),
            false,
            31,
        ),
    ] {
        let (config, rejected) = check(object.clone());
        assert_eq!((config.masquerade_all, config.masquerade_bit.get(), rejected), (all, bit, vec![]), "{object}");
    }
    for (object, field) in [
        (json!({"iptables": {"masqueradeBit": 32}}), "iptables.masqueradeBit"),
        (json!({"ipvs": {"masqueradeBit": -1}}), "ipvs.masqueradeBit"),
    ] {
        let (config, rejected) = check(object);
        assert_eq!((config.masquerade_bit, rejected), (MarkBit::default(), vec![field.to_owned()]));
    }
    assert_eq!(MarkBit::new(31).unwrap().to_string(), "0x80000000");
    assert_eq!(MarkBit::new(0).unwrap().to_string(), "0x00000001");
    assert_eq!(MarkBit::new(32), None);
}

const NAMES: [&str; 13] = [
    "INPUT",
    "OUTPUT",
    "PREROUTING",
    "FORWARD",
    "POSTROUTING",
    "KUBE-SERVICES",
    "KUBE-NODE-PORT",
    "KUBE-FIRE-WALL",
    "KUBE-FIREWALL",
    "KUBE-MARK-MASQ",
    "OTHER",
    "a\"b",
    "a-name-that-is-longer-than-iptables-takes",
];

/// Own and foreign rules as in a dump.
fn rule_line() -> impl Strategy<Value = String> {
    let chain = prop::sample::select(NAMES.to_vec());
    let comment = prop::sample::select(vec![
        "kubernetes service portals",
        "kube-proxy firewall rules",
        "kubernetes health check rules",
        "mine",
        "-j KUBE-SERVICES",
    ]);
    prop_oneof![
        4 => (chain.clone(), comment, chain.clone()).prop_map(|(from, comment, to)| {
            format!("-A {from} -m comment --comment \"{comment}\" -j {to}\n")
        }),
        2 => (chain.clone(), chain.clone()).prop_map(|(from, to)| format!("-A {from} -j {to}\n")),
        1 => (chain, "[ -~]{0,40}").prop_map(|(from, rest)| format!("-A {from} {rest}\n")),
    ]
}

/// A table with some of the chains and rules in those.
fn table(name: &'static str) -> impl Strategy<Value = String> {
    let chains = prop::sample::subsequence(NAMES.to_vec(), 0..=NAMES.len());
    (chains, prop::collection::vec(rule_line(), 0..20)).prop_map(move |(chains, rules)| {
        let declared: String = chains.iter().flat_map(|chain| [":", chain, " - [0:0]\n"]).collect();
        let is_declared = |rule: &&String| chains.iter().any(|chain| rule.starts_with(&format!("-A {chain} ")));
        let rules: String = rules.iter().filter(is_declared).cloned().collect();
        format!("*{name}\n{declared}{rules}COMMIT\n")
    })
}

/// Whether a line of restore text is about own chains and jumps only.
fn is_ours(table: &str, line: &str) -> bool {
    let mut ours = CHAINS.iter().find(|(name, _)| *name == table).unwrap().1.to_vec();
    if table == "nat" {
        ours.push("KUBE-FIRE-WALL");
    }
    let mut words = line.split(' ');
    let (first, chain) = (words.next().unwrap(), words.next().unwrap_or_default());
    match first {
        "-A" | "-F" | "-X" => ours.contains(&chain),
        "-I" | "-D" => {
            let rule = line.split_once(chain).unwrap().1;
            let rule = Rule::parse(rule.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit())).unwrap();
            let noted = rule.comment().is_some_and(|comment| comment.starts_with("kube"));
            NAMES[..5].contains(&chain) && noted && rule.target().is_some_and(|to| ours.contains(&to))
        }
        chain => chain.strip_prefix(':').is_some_and(|chain| ours.contains(&chain)),
    }
}

static RULES: OnceLock<Rules> = OnceLock::new();

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Written lines name own chains, and in built-in chains only jumps to them, for any state of the kernel.
    #[test]
    fn nothing_else_is_ever_written(nat in table("nat"), filter in table("filter"), mangle in table("mangle")) {
        let dump = Dump::parse(format!("{nat}{filter}{mangle}"));
        prop_assume!(dump.is_ok());
        let dump = dump.unwrap();
        let rules = RULES.get_or_init(|| everything().rules(Family::V4));
        for changes in [rules.changes(&dump).unwrap(), cleanup(&dump, NamePrefix::KUBE, &|_, _| false).unwrap()] {
            let text = changes.transaction.to_restore_text().unwrap();
            let mut table = "";
            for line in text.lines() {
                match line.strip_prefix('*') {
                    Some(name) => table = name,
                    None => prop_assert!(line == "COMMIT" || is_ours(table, line), "{} in {}", line, table),
                }
            }
        }
    }
}

#[test]
fn a_table_that_cannot_be_shown_is_left_alone() {
    let dump = Dump::parse("*filter\nCOMMIT\n# Table `nat' is incompatible, use 'nft' tool.\n").unwrap();
    let rules = cases()[0].rules(Family::V4);
    for error in [rules.changes(&dump).unwrap_err(), cleanup(&dump, NamePrefix::KUBE, &|_, _| false).unwrap_err()] {
        assert!(error.to_string().starts_with("table nat "), "{error}");
        assert!(error.to_string().contains("nft list ruleset"), "{error}");
    }
}

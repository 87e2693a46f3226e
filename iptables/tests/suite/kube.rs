//! Every chain and rule that a Kubernetes node proxy in IPVS mode writes, in its own spelling. All sets are in use, and
//! of rules with alternatives each one is here.

use iptables::{ChainName, Family, Rule, TableName};

/// Sets with their types; by table the own chains and their rules, and `-I` for those that lead other chains, in this
/// order. `LOOPBACK` and `PODS` are networks.
const RULES: &str = include_str!("kube.rules");

/// The name of a set in this family.
fn set_name(family: Family, name: &str) -> String {
    match family {
        Family::Ipv4 => name.to_owned(),
        Family::Ipv6 => name.replacen("KUBE-", "KUBE-6-", 1).chars().take(31).collect(),
    }
}

/// All sets of this family, by name and type.
pub(crate) fn sets(family: Family) -> Vec<(String, &'static str)> {
    let created = RULES.lines().filter_map(|line| line.strip_prefix("create ")?.split_once(' '));
    created.map(|(name, kind)| (set_name(family, name), kind)).collect()
}

/// The rule of `KUBE-IPVS-OUT-FILTER`, which needs the `ipvs` match in the kernel.
pub(crate) fn ipvs_rule(family: Family) -> Rule {
    let vip = if family == Family::Ipv4 { "192.0.2.7" } else { "2001:db8::7" };
    Rule::parse(&format!("-s {vip} -m ipvs --vaddr {vip} --vproto TCP --vport 443 -j DROP")).unwrap()
}

/// Table, chain, and its rules.
type ChainRules = (TableName, ChainName, Vec<Rule>);

/// The chains of lines that begin so, in the order of their first lines.
fn of(family: Family, prefixes: &[&str]) -> Vec<ChainRules> {
    let (loopback, pods) = match family {
        Family::Ipv4 => ("127.0.0.0/8", "10.244.0.0/16"),
        Family::Ipv6 => ("::1/128", "fd00:10:244::/56"),
    };
    let mut chains: Vec<ChainRules> = Vec::new();
    let mut table = TableName::NAT;
    for line in RULES.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = TableName::new(name).unwrap();
        }
        let Some(line) = prefixes.iter().find_map(|prefix| line.strip_prefix(prefix)) else { continue };
        let (chain, rule) = line.split_once(' ').unwrap_or((line, ""));
        let chain = ChainName::new(chain).unwrap();
        let place = chains.iter().position(|(of, name, _)| (of, name) == (&table, &chain)).unwrap_or(chains.len());
        if place == chains.len() {
            chains.push((table.clone(), chain, Vec::new()));
        }
        if !rule.is_empty() {
            let mut rule = rule.replace("LOOPBACK", loopback).replace("PODS", pods);
            if let Some(set) = rule.split("--match-set ").nth(1).and_then(|rest| rest.split(' ').next()) {
                rule = rule.replace(&format!("--match-set {set}"), &format!("--match-set {}", set_name(family, set)));
            }
            chains[place].2.push(Rule::parse(&rule).unwrap());
        }
    }
    chains
}

/// Own chains and their rules.
pub(crate) fn chains(family: Family) -> Vec<ChainRules> {
    of(family, &[":", "-A "])
}

/// The chains of others, and the rules that must lead them, in this order.
pub(crate) fn jumps() -> Vec<ChainRules> {
    of(Family::Ipv4, &["-I "])
}

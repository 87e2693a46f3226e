//! Names of chains, which other software knows, and which of them are ours.

use iptables::{Rule, TableName};

pub(super) const SERVICES: &str = "KUBE-SERVICES";
pub(super) const POSTROUTING: &str = "KUBE-POSTROUTING";
pub(super) const NODE_PORT: &str = "KUBE-NODE-PORT";
pub(super) const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
pub(super) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub(super) const FORWARD: &str = "KUBE-FORWARD";
pub(super) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
pub(super) const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
pub(super) const IPVS_FILTER: &str = "KUBE-IPVS-FILTER";
pub(super) const IPVS_OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";

/// Chains of IPVS mode, present and past, in the order in which they are declared. `KUBE-FIRE-WALL` is kube-proxy's up to
/// 1.25; not to be confused with the kubelet's `KUBE-FIREWALL`.
const NAT: &[&str] = &[SERVICES, POSTROUTING, NODE_PORT, LOAD_BALANCER, MARK_MASQ, "KUBE-FIRE-WALL"];
const FILTER: &[&str] = &[FORWARD, NODE_PORT, PROXY_FIREWALL, SOURCE_RANGES, IPVS_FILTER, IPVS_OUT_FILTER];

/// The tables in which there are rules of ours.
pub(super) const TABLES: [TableName; 2] = [TableName::NAT, TableName::FILTER];

/// The names of a table that are ours.
pub(super) fn owned(table: &TableName) -> &'static [&'static str] {
    if *table == TableName::NAT {
        NAT
    } else if *table == TableName::FILTER {
        FILTER
    } else {
        &[]
    }
}

/// Table, chain, target and comment, in the order in which the jumps stand in the chain. Source ranges come before the rule
/// that accepts marked packets.
pub(super) const JUMPS: &[(TableName, &str, &str, &str)] = &[
    (TableName::NAT, "PREROUTING", SERVICES, "kubernetes service portals"),
    (TableName::NAT, "OUTPUT", SERVICES, "kubernetes service portals"),
    (TableName::NAT, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
    (TableName::FILTER, "INPUT", IPVS_FILTER, "kubernetes ipvs access filter"),
    (TableName::FILTER, "INPUT", PROXY_FIREWALL, "kube-proxy firewall rules"),
    (TableName::FILTER, "INPUT", NODE_PORT, "kubernetes health check rules"),
    (TableName::FILTER, "FORWARD", PROXY_FIREWALL, "kube-proxy firewall rules"),
    (TableName::FILTER, "FORWARD", FORWARD, "kubernetes forwarding rules"),
    (TableName::FILTER, "OUTPUT", IPVS_OUT_FILTER, "kubernetes ipvs access filter"),
];

/// The comment of the jumps that kube-proxy's iptables mode makes to a chain whose name IPVS mode uses too.
const IPTABLES_MODE: &str = "kubernetes load balancer firewall";

/// Whether this proxy, or a kube-proxy before it, made a rule in a built-in chain: it jumps to a chain of ours with the
/// comment of such a jump. A jump that somebody else made to a chain of ours has another comment.
pub(super) fn is_jump_of_ours(table: &TableName, rule: &Rule) -> bool {
    let Some(comment) = rule.comment() else { return false };
    let known = JUMPS.iter().any(|(_, _, _, ours)| *ours == comment) || comment == IPTABLES_MODE;
    known && rule.target().is_some_and(|target| owned(table).contains(&target))
}

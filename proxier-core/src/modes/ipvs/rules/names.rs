//! Names of chains without the prefix, which other software relies on with kube-proxy's prefix, and how own chains are
//! recognized.

use iptables::{Rule, TableName};

use crate::config::NamePrefix;

pub(super) const SERVICES: &str = "SERVICES";
pub(super) const POSTROUTING: &str = "POSTROUTING";
pub(super) const NODE_PORT: &str = "NODE-PORT";
pub(super) const LOAD_BALANCER: &str = "LOAD-BALANCER";
pub(super) const MARK_MASQ: &str = "MARK-MASQ";
pub(super) const FORWARD: &str = "FORWARD";
pub(super) const PROXY_FIREWALL: &str = "PROXY-FIREWALL";
pub(super) const SOURCE_RANGES: &str = "SOURCE-RANGES-FIREWALL";
pub(super) const IPVS_FILTER: &str = "IPVS-FILTER";
pub(super) const IPVS_OUT_FILTER: &str = "IPVS-OUT-FILTER";

/// Chains of IPVS mode, present and past, in the order of declaration. `KUBE-FIRE-WALL` is kube-proxy's up to 1.25; do
/// not confuse it with the kubelet's `KUBE-FIREWALL`.
const OURS: [(TableName, &[&str]); 2] = [
    (TableName::NAT, &[SERVICES, POSTROUTING, NODE_PORT, LOAD_BALANCER, MARK_MASQ, "FIRE-WALL"]),
    (TableName::FILTER, &[FORWARD, NODE_PORT, PROXY_FIREWALL, SOURCE_RANGES, IPVS_FILTER, IPVS_OUT_FILTER]),
];

pub(super) const TABLES: [TableName; 2] = [TableName::NAT, TableName::FILTER];

pub(crate) fn is_ours(prefix: NamePrefix, table: &TableName, chain: &str) -> bool {
    let name = chain.strip_prefix(prefix.as_str());
    name.is_some_and(|name| OURS.iter().any(|(of, names)| of == table && names.contains(&name)))
}

/// Table, chain, target and comment, in the order of the jumps in the chain. Source ranges come before the rule that
/// accepts marked packets.
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

/// The comment of the jumps of kube-proxy's iptables mode to a chain whose name IPVS mode uses too.
const IPTABLES_MODE: &str = "kubernetes load balancer firewall";

/// Whether this proxy, or an earlier kube-proxy, created a rule in a built-in chain: it jumps to a chain of this proxy
/// and has the comment of such a jump. Another program's jump to such a chain has another comment.
pub(super) fn is_jump_of_ours(prefix: NamePrefix, table: &TableName, rule: &Rule) -> bool {
    let Some(comment) = rule.comment() else { return false };
    let known = JUMPS.iter().any(|(_, _, _, ours)| *ours == comment) || comment == IPTABLES_MODE;
    known && rule.target().is_some_and(|target| is_ours(prefix, table, target))
}

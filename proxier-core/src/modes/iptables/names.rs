//! Names of chains, which other software relies on, and how own ones are recognized.

use data_encoding::BASE32;
use iptables::{ChainName, Error, Rule, TableName};
use sha2::{Digest as _, Sha256};

use crate::modes::shared::chains::OwnJump;
use crate::net::Protocol;
use crate::service::Port;

pub(super) const SERVICES: &str = "KUBE-SERVICES";
pub(super) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub(super) const NODE_PORTS: &str = "KUBE-NODEPORTS";
pub(super) const POSTROUTING: &str = "KUBE-POSTROUTING";
pub(super) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub(super) const FORWARD: &str = "KUBE-FORWARD";
pub(super) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// The kubelet's chain. We only add our rule to it, and never delete it.
pub(super) use crate::modes::shared::localhost::FIREWALL as KUBELET_FIREWALL;

/// The chain whose absence shows that another program flushed the tables, in mangle, nat and filter; see
/// [`iptables::Canary`].
pub(crate) const CANARY: &str = "KUBE-PROXY-CANARY";

const NAT: &[&str] = &[SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ];
const FILTER: &[&str] = &[SERVICES, EXTERNAL_SERVICES, FORWARD, NODE_PORTS, PROXY_FIREWALL];

/// The tables in which this proxy has rules, in the order in which they are written: rules that refuse come before
/// rules that accept the rest.
pub(super) const TABLES: [TableName; 2] = [TableName::FILTER, TableName::NAT];

/// Prefixes of the chains of Service ports and endpoints, in nat. `KUBE-XLB-` is kube-proxy's up to 1.23.
const SERVICE_PREFIXES: &[&str] = &["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"];

pub(super) fn is_of_service(table: &TableName, chain: &str) -> bool {
    *table == TableName::NAT && SERVICE_PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

/// Whether this is the name of a chain that accepts source ranges, in which the order of rules does not matter.
pub(super) fn is_firewall(table: &TableName, chain: &str) -> bool {
    *table == TableName::NAT && chain.starts_with("KUBE-FW-")
}

/// Whether this chain is this proxy's own: it has exactly the proxy's rules, and is removed when not needed.
pub(crate) fn is_ours(table: &TableName, chain: &str) -> bool {
    let shared = match table {
        table if *table == TableName::NAT => NAT,
        table if *table == TableName::FILTER => FILTER,
        _ => &[],
    };
    shared.contains(&chain) || is_of_service(table, chain)
}

pub(super) struct Jump {
    pub(super) table: TableName,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    /// Comment of the jump. `None` for one without a comment, as the kubelet creates it; its position does not matter.
    pub(super) comment: Option<&'static str>,
    /// Whether only the first packet of a connection jumps.
    pub(super) new_only: bool,
}

const fn jump(table: TableName, from: &'static str, to: &'static str, comment: &'static str, new_only: bool) -> Jump {
    Jump { table, from, to, comment: Some(comment), new_only }
}

const PORTALS: &str = "kubernetes service portals";
const EXTERNAL_PORTALS: &str = "kubernetes externally-visible service portals";
const FIREWALL: &str = "kubernetes load balancer firewall";
const HEALTH_CHECKS: &str = "kubernetes health check service ports";

/// Jumps by chain, in the order of their rules. Source ranges come before the rule that accepts marked packets.
pub(super) const JUMPS: &[Jump] = &[
    Jump { table: TableName::FILTER, from: "INPUT", to: KUBELET_FIREWALL, comment: None, new_only: false },
    jump(TableName::FILTER, "INPUT", PROXY_FIREWALL, FIREWALL, true),
    jump(TableName::FILTER, "INPUT", NODE_PORTS, HEALTH_CHECKS, false),
    jump(TableName::FILTER, "INPUT", EXTERNAL_SERVICES, EXTERNAL_PORTALS, true),
    jump(TableName::FILTER, "FORWARD", PROXY_FIREWALL, FIREWALL, true),
    jump(TableName::FILTER, "FORWARD", FORWARD, "kubernetes forwarding rules", false),
    jump(TableName::FILTER, "FORWARD", SERVICES, PORTALS, true),
    jump(TableName::FILTER, "FORWARD", EXTERNAL_SERVICES, EXTERNAL_PORTALS, true),
    Jump { table: TableName::FILTER, from: "OUTPUT", to: KUBELET_FIREWALL, comment: None, new_only: false },
    jump(TableName::FILTER, "OUTPUT", PROXY_FIREWALL, FIREWALL, true),
    jump(TableName::FILTER, "OUTPUT", SERVICES, PORTALS, true),
    jump(TableName::NAT, "PREROUTING", SERVICES, PORTALS, false),
    jump(TableName::NAT, "OUTPUT", SERVICES, PORTALS, false),
    jump(TableName::NAT, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules", false),
];

const PORTAL_JUMP: &str = "handle ClusterIPs; NOTE: this must be before the NodePort rules";
const NODE_PORT_JUMP: &str = "handle service NodePorts; NOTE: this must be the last rule in the chain";

/// Jumps of kube-proxy's userspace mode (up to 1.25), which no mode here creates: table, chain, target and comment.
pub(super) const PORTALS_JUMPS: [(TableName, &str, &str, &str); 5] = [
    (TableName::NAT, "PREROUTING", "KUBE-PORTALS-CONTAINER", PORTAL_JUMP),
    (TableName::NAT, "OUTPUT", "KUBE-PORTALS-HOST", PORTAL_JUMP),
    (TableName::NAT, "PREROUTING", "KUBE-NODEPORT-CONTAINER", NODE_PORT_JUMP),
    (TableName::NAT, "OUTPUT", "KUBE-NODEPORT-HOST", NODE_PORT_JUMP),
    (TableName::FILTER, "INPUT", "KUBE-NODEPORT-NON-LOCAL", "Ensure that non-local NodePort traffic can flow"),
];

/// The comment of IPVS mode's jumps to a chain whose name both modes use.
const IPVS_MODE: &str = "kube-proxy firewall rules";

impl Jump {
    pub(super) fn own(&self) -> Result<OwnJump, Error> {
        let rule = Rule::builder();
        let rule = if self.new_only { rule.args(["-m", "conntrack", "--ctstate", "NEW"]) } else { rule };
        let rule = if let Some(comment) = self.comment { rule.comment(comment) } else { rule };
        Ok(OwnJump {
            table: self.table.clone(),
            from: ChainName::new(self.from)?,
            rule: rule.target(self.to).build()?,
            is_anywhere: self.comment.is_none(),
        })
    }
}

/// Whether this proxy, or an earlier kube-proxy, created a rule in a built-in chain: it jumps to an own chain and has
/// the comment of such a jump. Another program's jump to an own chain has another comment.
pub(super) fn is_jump_of_ours(table: &TableName, rule: &Rule) -> bool {
    let (Some(comment), Some(target)) = (rule.comment(), rule.target()) else { return false };
    let known = comment == IPVS_MODE || JUMPS.iter().any(|jump| jump.comment == Some(comment));
    known && is_ours(table, target) && !is_of_service(table, target)
}

/// Appends the hash in the names of a Service port's chains. It is the first 16 letters of base32 of the SHA-256 of
/// name and protocol, which are exactly the first ten bytes. An endpoint's chain has the endpoint in it too.
fn append_hash(name: &mut String, port: &Port, endpoint: Option<&str>) {
    let mut digest = Sha256::new();
    digest.update(&*port.name);
    digest.update(protocol(port.protocol));
    if let Some(endpoint) = endpoint {
        digest.update(endpoint);
    }
    BASE32.encode_append(digest.finalize().get(..10).unwrap_or_default(), name);
}

/// A protocol as iptables prints it.
pub(super) fn protocol(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

pub(super) struct PortNames {
    hash: String,
}

impl PortNames {
    /// Selects one of the cluster's endpoints.
    pub(super) const CLUSTER: &str = "SVC";
    /// Selects one of this node's endpoints.
    pub(super) const LOCAL: &str = "SVL";
    /// Traffic to external IPs, load balancers' addresses and node ports.
    pub(super) const EXTERNAL: &str = "EXT";
    /// Accepts source ranges for load balancers' addresses.
    pub(super) const FIREWALL: &str = "FW";

    pub(super) fn new(port: &Port) -> Self {
        let mut hash = String::new();
        append_hash(&mut hash, port, None);
        PortNames { hash }
    }

    /// The name of one of the port's chains, such as [`PortNames::CLUSTER`].
    pub(super) fn chain(&self, kind: &str) -> Result<ChainName, Error> {
        ChainName::new(["KUBE-", kind, "-", &self.hash].concat())
    }
}

/// The name of the chain for an endpoint, given as address and port.
pub(super) fn endpoint_chain(port: &Port, endpoint: &str) -> Result<ChainName, Error> {
    let mut name = String::with_capacity(ChainName::MAX_LEN);
    name.push_str("KUBE-SEP-");
    append_hash(&mut name, port, Some(endpoint));
    ChainName::new(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_ours_in_their_own_tables_only() {
        let tables = [TableName::NAT, TableName::FILTER, TableName::MANGLE];
        for (chain, ours) in [
            ("KUBE-SERVICES", [true, true, false]),
            ("KUBE-FORWARD", [false, true, false]),
            ("KUBE-MARK-MASQ", [true, false, false]),
            ("KUBE-SVC-ERIFXISQEP7F7OF4", [true, false, false]),
            ("KUBE-FIREWALL", [false, false, false]),
        ] {
            assert_eq!(tables.each_ref().map(|table| is_ours(table, chain)), ours, "{chain}");
        }
    }
}

//! What rules depend on besides Services, and the chains that depend on nothing else.

use std::net::IpAddr;

use iptables::{Chain, ChainName, Error, Rule, RuleBuilder, TableName};

use super::names;
use crate::config::MarkBit;
use crate::modes::shared::chains::{accept_forwarded, mark, masquerade};
use crate::modes::shared::localhost::FIREWALL_COMMENT;
pub(crate) use crate::modes::shared::networks::PodTraffic;
use crate::net::Family;
use crate::service::NodeFacts;

/// Options with which the administrator, iptables and the kernel affect rules. Default: as in kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct IptablesOptions {
    /// Node ports on 127.0.0.1 (`iptables.localhostNodePorts`), which need `route_localnet`. Never on `::1`.
    pub localhost_node_ports: bool,
    /// Whether masqueraded connections get random ports.
    pub random_fully: RandomFully,
    /// Whether packets that belong to no known connection are dropped when forwarded. Otherwise an endpoint's late
    /// answer may reach the client with the endpoint's address and end its connection. As in kube-proxy from 1.30, the
    /// rule is left out if the sysctl `nf_conntrack_tcp_be_liberal` is not 0. Each full pass reads it.
    pub drop_invalid: bool,
    /// Whether TCP clients of Services without endpoints get a reset (`iptables.rejectWithReset`) instead of ICMP. The
    /// kernel limits ICMP for each client (`icmp_ratelimit`), so with many connections in a second some clients wait.
    /// Default: no, as in kube-proxy.
    pub reject_with_reset: bool,
    /// Whether rules use packet counters ([`COUNTERS`]), as kube-proxy's do from 1.32. The counters must exist. The
    /// mode determines whether the kernel supports them. Default: no.
    pub counters: bool,
}

/// The packet counters (nfacct) that rules use: for the rule that drops invalid packets, and for node ports on
/// 127.0.0.1.
pub const COUNTERS: [&str; 2] = [INVALID_COUNTER, LOCALHOST_COUNTER];
pub(super) const INVALID_COUNTER: &str = "ct_state_invalid_dropped_pkts";
pub(super) const LOCALHOST_COUNTER: &str = "localhost_nps_accepted_pkts";

impl IptablesOptions {
    pub(super) fn counting(self, counter: &str) -> Vec<String> {
        let named = ["-m", "nfacct", "--nfacct-name", counter].map(str::to_owned);
        if self.counters { named.into() } else { Vec::new() }
    }
}

impl Default for IptablesOptions {
    fn default() -> Self {
        IptablesOptions {
            localhost_node_ports: true,
            random_fully: RandomFully::Auto,
            drop_invalid: true,
            reject_with_reset: false,
            counters: false,
        }
    }
}

/// Whether masqueraded connections get random ports (`MASQUERADE --random-fully`; `iptables.randomFully`).
///
/// Without random ports the kernel keeps the client's port if it is free. So two connections that are masqueraded at
/// the same moment may get the same one, and then one is lost (`insert_failed` of `conntrack -S`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RandomFully {
    /// If the programs support it: iptables from 1.6.2 (`iptables::ProgramVersion::has_random_fully`), as kube-proxy
    /// does. Default.
    #[default]
    Auto,
    /// Always. Programs without support refuse the rules.
    Always,
    /// Never. For servers that check the client's port (NFS and RPC with ports below 1,024), and for logs and firewalls
    /// that compare ports on both sides of this node.
    Never,
}

impl RandomFully {
    /// Resolves `Auto` to `Never` if the programs do not support it.
    pub(super) fn on(self, programs: bool) -> Self {
        if self == RandomFully::Auto && !programs { RandomFully::Never } else { self }
    }
}

/// What a family's rules depend on besides Services. If it differs, all rules must be compared again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    pub family: Family,
    pub masquerade_bit: MarkBit,
    pub masquerade_all: bool,
    pub pod_traffic: PodTraffic,
    /// Addresses that serve node ports; `None` for all of this host, including later ones.
    pub node_ports_on: Option<Vec<IpAddr>>,
    /// The options that apply to the family and to the addresses that serve node ports.
    pub options: IptablesOptions,
}

impl Settings {
    pub fn new(family: Family, facts: &NodeFacts, options: IptablesOptions) -> Self {
        let config = facts.config();
        let named = config.node_port_addresses.networks(family);
        let node_ports_on: Option<Vec<IpAddr>> = named.map(|_| facts.node_port_addresses(family).collect());
        let has_localhost = node_ports_on.as_ref().is_none_or(|addresses| addresses.contains(&family.localhost()));
        let localhost_node_ports = options.localhost_node_ports && family == Family::V4 && has_localhost;
        Settings {
            family,
            masquerade_bit: config.masquerade_bit,
            masquerade_all: config.masquerade_all,
            pod_traffic: PodTraffic::from_facts(facts, family),
            node_ports_on,
            options: IptablesOptions { localhost_node_ports, ..options },
        }
    }
}

pub(super) type TableChain = (TableName, Chain);

fn chain(table: TableName, name: &str, rules: Vec<RuleBuilder>) -> Result<TableChain, Error> {
    let mut chain = Chain::new(ChainName::new(name)?);
    chain.rules = rules.into_iter().map(RuleBuilder::build).collect::<Result<_, _>>()?;
    Ok((table, chain))
}

/// The chains that are the same for all Services.
pub(super) fn fixed(settings: &Settings) -> Result<Vec<TableChain>, Error> {
    let bit = settings.masquerade_bit;
    let random_fully = settings.options.random_fully != RandomFully::Never;
    Ok(vec![
        chain(TableName::FILTER, names::FORWARD, forward(settings))?,
        chain(TableName::NAT, names::POSTROUTING, masquerade(bit, random_fully).into())?,
        chain(TableName::NAT, names::MARK_MASQ, vec![mark(bit)])?,
    ])
}

fn forward(settings: &Settings) -> Vec<RuleBuilder> {
    let mut rules = Vec::new();
    if settings.options.drop_invalid {
        let counting = settings.options.counting(INVALID_COUNTER);
        let invalid = Rule::builder().args(["-m", "conntrack", "--ctstate", "INVALID"]);
        rules.push(invalid.args(counting).target("DROP"));
    }
    rules.extend(accept_forwarded(settings.masquerade_bit));
    rules
}

/// The kubelet's chain with its required rule: `route_localnet`, which node ports on 127.0.0.1 need, would let
/// neighbours reach programs that listen only there (CVE-2020-8558).
pub(super) fn kubelet_firewall(settings: &Settings) -> Result<TableChain, Error> {
    let local = "127.0.0.0/8";
    let rule = Rule::builder()
        .comment(FIREWALL_COMMENT)
        .args(["-d", local, "!", "-s", local])
        .args(["-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT"])
        .target("DROP");
    let rules = if settings.options.localhost_node_ports { vec![rule] } else { Vec::new() };
    chain(TableName::FILTER, names::KUBELET_FIREWALL, rules)
}

/// The last lines of `KUBE-SERVICES` in nat, for node ports: packets that no Service address matched.
pub(super) fn last_lines(settings: &Settings) -> Result<Vec<Rule>, Error> {
    let comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let line = |args: &[&str]| Rule::builder().comment(comment).args(args.to_vec()).target(names::NODE_PORTS).build();
    if let Some(addresses) = &settings.node_ports_on {
        return addresses.iter().map(|address| line(&["-d", &address.to_string()])).collect();
    }
    // Loopback addresses do not work: for IPv6 never, for IPv4 without `route_localnet`.
    let loopback: &[&str] = match settings.family {
        Family::V6 => &["!", "-d", "::1/128"],
        Family::V4 if !settings.options.localhost_node_ports => &["!", "-d", "127.0.0.0/8"],
        Family::V4 => &[],
    };
    Ok(vec![line(&[&["-m", "addrtype", "--dst-type", "LOCAL"], loopback].concat())?])
}

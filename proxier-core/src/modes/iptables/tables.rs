//! Chains that do not depend on Services, and the last lines of `KUBE-SERVICES`.

use iptables::{Chain, ChainName, Error, Rule, RuleBuilder, TableName};

use super::names;
use super::settings::{INVALID_COUNTER, NodePorts, RandomFully, Settings};
use crate::modes::shared::localhost::FIREWALL_COMMENT;
use crate::net::Family;

/// A chain of a table.
pub(super) type TableChain = (TableName, Chain);

fn chain(table: TableName, name: &str, rules: Vec<RuleBuilder>) -> Result<TableChain, Error> {
    let mut chain = Chain::new(ChainName::new(name)?);
    chain.rules = rules.into_iter().map(RuleBuilder::build).collect::<Result<_, _>>()?;
    Ok((table, chain))
}

/// The chains that are the same for all Services.
///
/// # Errors
/// None in practice: every name and argument fits into what iptables reads.
pub(super) fn fixed(settings: &Settings) -> Result<Vec<TableChain>, Error> {
    let mark = vec![Rule::builder().target("MARK").args(["--or-mark".to_owned(), settings.mark()])];
    Ok(vec![
        chain(TableName::FILTER, names::FORWARD, forward(settings))?,
        chain(TableName::NAT, names::POSTROUTING, postrouting(settings))?,
        chain(TableName::NAT, names::MARK_MASQ, mark)?,
    ])
}

fn forward(settings: &Settings) -> Vec<RuleBuilder> {
    let mark = settings.mark();
    let state = |states: &str| ["-m", "conntrack", "--ctstate", states].map(str::to_owned);
    let mut rules = Vec::new();
    if settings.options.drop_invalid {
        let counting = settings.options.counting(INVALID_COUNTER);
        rules.push(Rule::builder().args(state("INVALID")).args(counting).target("DROP"));
    }
    rules.extend([
        Rule::builder()
            .comment("kubernetes forwarding rules")
            .args(["-m", "mark", "--mark", &format!("{mark}/{mark}")])
            .target("ACCEPT"),
        Rule::builder()
            .comment("kubernetes forwarding conntrack rule")
            .args(state("RELATED,ESTABLISHED"))
            .target("ACCEPT"),
    ]);
    rules
}

fn postrouting(settings: &Settings) -> Vec<RuleBuilder> {
    let mark = settings.mark();
    let masquerade = Rule::builder().comment("kubernetes service traffic requiring SNAT").target("MASQUERADE");
    vec![
        Rule::builder().args(["-m", "mark", "!", "--mark", &format!("{mark}/{mark}")]).target("RETURN"),
        // Remove the mark, so that it has no effect when the packet passes here again inside a tunnel.
        Rule::builder().target("MARK").args(["--xor-mark", &mark]),
        masquerade.args((settings.options.random_fully != RandomFully::Never).then_some("--random-fully")),
    ]
}

/// The kubelet's chain with the rule that has to be in it: `route_localnet`, which node ports on 127.0.0.1 need, would let
/// neighbours reach programs that listen there only (CVE-2020-8558).
///
/// # Errors
/// None in practice.
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

/// The last lines of `KUBE-SERVICES` in nat: what no address of a Service took may be for a node port.
///
/// # Errors
/// None in practice.
pub(super) fn last_lines(settings: &Settings) -> Result<Vec<Rule>, Error> {
    let comment = "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    let line = |args: &[&str]| Rule::builder().comment(comment).args(args.to_vec()).target(names::NODE_PORTS).build();
    match &settings.node_ports {
        NodePorts::On(addresses) => addresses.iter().map(|address| line(&["-d", &address.to_string()])).collect(),
        NodePorts::Everywhere => {
            // Loopback addresses do not work: for IPv6 never, for IPv4 without `route_localnet`.
            let loopback: &[&str] = match settings.family {
                Family::V6 => &["!", "-d", "::1/128"],
                Family::V4 if !settings.options.localhost_node_ports => &["!", "-d", "127.0.0.0/8"],
                Family::V4 => &[],
            };
            Ok(vec![line(&[&["-m", "addrtype", "--dst-type", "LOCAL"], loopback].concat())?])
        }
    }
}

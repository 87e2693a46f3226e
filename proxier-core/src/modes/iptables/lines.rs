//! The lines that Services have in shared chains.

use iptables::{ChainName, Error, Rule, RuleBuilder, TableName};

use super::names::{self, PortNames};
use super::service::{has_firewall, is_served, noted, policy_chain, to};
use super::settings::{IptablesOptions, LOCALHOST_COUNTER};
use crate::net::Protocol;
use crate::service::{Frontend, Port};
use crate::snapshot::{Roles, TrafficPolicy};

/// A chain in which every Service may have lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SharedChain {
    /// Filter: cluster IPs without endpoints.
    NoEndpoints,
    /// Filter: other addresses and node ports without endpoints.
    NoExternalEndpoints,
    /// Filter: ports of health checks.
    HealthChecks,
    /// Filter: load balancers with source ranges.
    Firewall,
    /// Nat: addresses.
    Services,
    /// Nat: node ports.
    NodePorts,
}

impl SharedChain {
    pub(super) const ALL: [SharedChain; 6] = [
        SharedChain::NoEndpoints,
        SharedChain::NoExternalEndpoints,
        SharedChain::HealthChecks,
        SharedChain::Firewall,
        SharedChain::Services,
        SharedChain::NodePorts,
    ];

    pub(super) fn table(self) -> TableName {
        match self {
            SharedChain::Services | SharedChain::NodePorts => TableName::NAT,
            _ => TableName::FILTER,
        }
    }

    fn text(self) -> &'static str {
        match self {
            SharedChain::NoEndpoints | SharedChain::Services => names::SERVICES,
            SharedChain::NoExternalEndpoints => names::EXTERNAL_SERVICES,
            SharedChain::HealthChecks | SharedChain::NodePorts => names::NODE_PORTS,
            SharedChain::Firewall => names::PROXY_FIREWALL,
        }
    }

    pub(super) fn name(self) -> Result<ChainName, Error> {
        ChainName::new(self.text())
    }

    pub(super) fn by_name(table: &TableName, name: &str) -> Option<Self> {
        SharedChain::ALL.into_iter().find(|chain| chain.table() == *table && chain.text() == name)
    }
}

/// A line of a shared chain. No two lines match the same packet with different results, so their order has no meaning.
/// If two Services want one node port, which the API server never gives to both, either may get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) chain: SharedChain,
    pub(super) rule: Rule,
}

impl Line {
    fn new(chain: SharedChain, rule: RuleBuilder) -> Result<Self, Error> {
        Ok(Line { chain, rule: rule.build()? })
    }
}

/// The rule for traffic without endpoints, with its comment. It rejects if there are none at all. It drops if they are
/// on other nodes, which load balancers should have selected.
fn refusal(
    port: &Port,
    policy: TrafficPolicy,
    options: IptablesOptions,
) -> Option<(RuleBuilder, &'static [&'static str])> {
    if is_served(port, policy) {
        return None;
    }
    let elsewhere = policy == TrafficPolicy::Local && port.has_endpoints();
    let (why, target): (_, &[_]) = match port.protocol {
        _ if elsewhere => ("local endpoints", &["-j", "DROP"]),
        Protocol::Tcp if options.reject_with_reset => ("endpoints", &["-j", "REJECT", "--reject-with", "tcp-reset"]),
        _ => ("endpoints", &["-j", "REJECT"]),
    };
    Some((noted(&format!("{} has no {why}", port.name)), target))
}

/// The lines of a Frontend.
pub(super) fn of_frontend(frontend: &Frontend, options: IptablesOptions) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    let Some(port) = frontend.port.as_deref() else { return Ok(lines) };
    let restricted = is_restricted(frontend);
    let roles = if restricted { Roles::LOAD_BALANCER } else { frontend.roles };
    if roles.contains(Roles::CLUSTER_IP) {
        lines.push(cluster_ip(frontend, port, options)?);
    } else {
        for (role, what) in [(Roles::EXTERNAL_IP, "external IP"), (Roles::LOAD_BALANCER, "loadbalancer IP")] {
            if roles.contains(role) {
                external((frontend, port), what, (restricted, options), &mut lines)?;
            }
        }
        // A node port that is not served on every address.
        if roles == Roles::NODE_PORT && port.node_port.is_none() {
            external((frontend, port), "node port", (false, options), &mut lines)?;
        }
    }
    Ok(lines)
}

/// Whether a Frontend is restricted to source ranges, which applies to every other role of the address too.
fn is_restricted(frontend: &Frontend) -> bool {
    frontend.source_ranges.is_some() && frontend.roles.contains(Roles::LOAD_BALANCER)
}

/// The policy for a Frontend's traffic, if it only has the lines of a cluster IP.
fn internal_policy(frontend: &Frontend, port: &Port) -> Option<TrafficPolicy> {
    let is_internal = frontend.roles.contains(Roles::CLUSTER_IP) && !is_restricted(frontend);
    is_internal.then_some(port.internal_policy)
}

/// Whether traffic to a Frontend has endpoints, for any client.
pub(super) fn has_endpoints(frontend: &Frontend) -> bool {
    let Some(port) = frontend.port.as_deref() else { return false };
    internal_policy(frontend, port).map_or_else(|| port.has_endpoints(), |policy| is_served(port, policy))
}

fn cluster_ip(frontend: &Frontend, port: &Port, options: IptablesOptions) -> Result<Line, Error> {
    if let Some((rule, target)) = refusal(port, port.internal_policy, options) {
        return Line::new(SharedChain::NoEndpoints, to(rule, &frontend.key).args(target));
    }
    let rule = to(noted(&format!("{} cluster IP", port.name)), &frontend.key);
    let chain = policy_chain(&PortNames::new(port), port.internal_policy)?;
    Line::new(SharedChain::Services, rule.jump(&chain))
}

fn external(
    (frontend, port): (&Frontend, &Port),
    what: &str,
    (restricted, options): (bool, IptablesOptions),
    lines: &mut Vec<Line>,
) -> Result<(), Error> {
    let names = PortNames::new(port);
    if port.has_endpoints() {
        let restricted = restricted && has_firewall(port);
        let chain = if restricted { names.chain(PortNames::FIREWALL)? } else { names.chain(PortNames::EXTERNAL)? };
        let rule = to(noted(&format!("{} {what}", port.name)), &frontend.key);
        lines.push(Line::new(SharedChain::Services, rule.jump(&chain))?);
        if restricted {
            let comment = format!("{} traffic not accepted by {}", port.name, names.chain(PortNames::FIREWALL)?);
            lines.push(Line::new(SharedChain::Firewall, to(noted(&comment), &frontend.key).target("DROP"))?);
        }
    }
    if let Some((rule, target)) = refusal(port, port.external_policy, options) {
        lines.push(Line::new(SharedChain::NoExternalEndpoints, to(rule, &frontend.key).args(target))?);
    }
    Ok(())
}

/// Whether packets to the port's node port on 127.0.0.1 are counted.
pub(super) fn is_counted(port: &Port, options: IptablesOptions) -> bool {
    options.counters && options.localhost_node_ports && port.node_port.is_some() && port.has_endpoints()
}

/// The lines of a port that belong to no address: its node port and its health check.
pub(super) fn of_port(port: &Port, health_check: Option<u16>, options: IptablesOptions) -> Result<Vec<Line>, Error> {
    let mut lines = Vec::new();
    if let Some(number) = port.node_port {
        let protocol = names::protocol(port.protocol);
        let arriving = ["-m", protocol, "-p", protocol, "--dport", &number.to_string()];
        if port.has_endpoints() {
            let external = PortNames::new(port).chain(PortNames::EXTERNAL)?;
            if is_counted(port, options) {
                let counting = options.counting(LOCALHOST_COUNTER);
                let rule = noted(&port.name).args(arriving).args(["-d", "127.0.0.0/8"]).args(counting);
                lines.push(Line::new(SharedChain::NodePorts, rule.jump(&external))?);
            }
            lines.push(Line::new(SharedChain::NodePorts, noted(&port.name).args(arriving).jump(&external))?);
        }
        if let Some((rule, target)) = refusal(port, port.external_policy, options) {
            let rule = rule.args(["-m", "addrtype", "--dst-type", "LOCAL"]).args(arriving).args(target);
            lines.push(Line::new(SharedChain::NoExternalEndpoints, rule)?);
        }
    }
    if let Some(number) = health_check {
        let rule = noted(&format!("{} health check node port", port.name));
        let rule = rule.args(["-m", "tcp", "-p", "tcp", "--dport", &number.to_string()]).target("ACCEPT");
        lines.push(Line::new(SharedChain::HealthChecks, rule)?);
    }
    Ok(lines)
}

//! The nat chains of one Service port: how its traffic reaches endpoints.
//!
//! ```text
//!  KUBE-SERVICES ──▶ KUBE-SVC-… or KUBE-SVL-… ──▶ KUBE-SEP-… (DNAT)       cluster IP
//!               ├──▶ KUBE-EXT-… ──▶ KUBE-SVC-… or KUBE-SVL-…              external IP, load balancer, node port
//!               └──▶ KUBE-FW-…  ──▶ KUBE-EXT-…                            load balancer with source ranges
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use iptables::{Chain, ChainName, Error, Rule, RuleBuilder};

use super::names::{self, PortNames};
use super::settings::Settings;
use crate::net::{EndpointKey, FrontendKey};
use crate::service::Port;
use crate::snapshot::TrafficPolicy;

/// Starts a rule with a comment. Names of Services fit; an agent's Frontend name may not, and is cut.
pub(super) fn noted(text: &str) -> RuleBuilder {
    let mut text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let fits = |len: &usize| text.is_char_boundary(*len);
    let end = (0..=RuleBuilder::MAX_COMMENT_LEN.min(text.len())).rev().find(fits).unwrap_or_default();
    text.truncate(end);
    Rule::builder().comment(&text)
}

/// Adds the matches for packets to an address and port.
pub(super) fn to(rule: RuleBuilder, key: &FrontendKey) -> RuleBuilder {
    let (protocol, address, port) = (names::protocol(key.protocol), key.address.to_string(), key.port.to_string());
    rule.args(["-m", protocol, "-p", protocol, "-d", &address, "--dport", &port])
}

pub(super) fn is_served(port: &Port, policy: TrafficPolicy) -> bool {
    match policy {
        TrafficPolicy::Cluster => !port.cluster.is_empty(),
        TrafficPolicy::Local => !port.local.is_empty(),
    }
}

pub(super) fn policy_chain(names: &PortNames, policy: TrafficPolicy) -> Result<ChainName, Error> {
    names.chain(if policy == TrafficPolicy::Cluster { PortNames::CLUSTER } else { PortNames::LOCAL })
}

pub(super) fn has_firewall(port: &Port) -> bool {
    port.has_endpoints() && !port.load_balancer_ips.is_empty() && port.source_ranges.is_some()
}

/// The chains with their rules. `comments`: whether rules about endpoints have comments.
pub(super) fn chains(port: &Port, settings: &Settings, comments: bool) -> Result<Vec<Chain>, Error> {
    let mark = ChainName::new(names::MARK_MASQ)?;
    let lowering = ServiceLowering { port, settings, comments, names: PortNames::new(port), mark };
    let mut chains = Vec::new();
    if port.is_external && port.has_endpoints() {
        chains.push(chain(lowering.names.chain(PortNames::EXTERNAL)?, lowering.external()?));
    }
    if has_firewall(port) {
        chains.push(chain(lowering.names.chain(PortNames::FIREWALL)?, lowering.firewall()?));
    }
    let cluster: &[EndpointKey] = if uses_cluster(port) { &port.cluster } else { &[] };
    let local: &[EndpointKey] = if uses_local(port) { &port.local } else { &[] };
    let reached = reached(port, cluster.iter().chain(local))?;
    let lists = [(TrafficPolicy::Cluster, cluster), (TrafficPolicy::Local, local)];
    for (policy, endpoints) in lists.into_iter().filter(|(_, endpoints)| !endpoints.is_empty()) {
        let endpoints = as_kube_proxy_sorts(endpoints, &reached);
        chains.push(chain(policy_chain(&lowering.names, policy)?, lowering.policy(policy, &endpoints)?));
    }
    for endpoint in reached.into_values() {
        let rules = lowering.endpoint(&endpoint)?;
        chains.push(chain(endpoint.chain, rules));
    }
    Ok(chains)
}

/// An endpoint of the port, with the texts that are used more than once.
struct Endpoint {
    text: String,
    chain: ChainName,
}

impl Endpoint {
    /// The address alone. Printing takes time, and there may be a hundred thousand.
    fn address(&self) -> &str {
        let address = self.text.rsplit_once(':').map_or("", |(address, _port)| address);
        address.trim_matches(['[', ']'])
    }
}

/// The endpoints of the lists that are in use, each once.
fn reached<'a>(
    port: &Port,
    keys: impl Iterator<Item = &'a EndpointKey>,
) -> Result<BTreeMap<EndpointKey, Endpoint>, Error> {
    let mut reached = BTreeMap::new();
    for key in keys {
        if let Entry::Vacant(new) = reached.entry(*key) {
            let text = key.text();
            let chain = names::endpoint_chain(port, &text)?;
            new.insert(Endpoint { text, chain });
        }
    }
    Ok(reached)
}

fn chain(name: ChainName, rules: Vec<Rule>) -> Chain {
    let mut chain = Chain::new(name);
    chain.rules = rules;
    chain
}

/// The cluster's endpoints are used for the cluster IP, and for clients inside the cluster with any external policy.
fn uses_cluster(port: &Port) -> bool {
    port.cluster_ip.is_some() && port.internal_policy == TrafficPolicy::Cluster || port.is_external
}

fn uses_local(port: &Port) -> bool {
    port.cluster_ip.is_some() && port.internal_policy == TrafficPolicy::Local
        || port.is_external && port.external_policy == TrafficPolicy::Local
}

/// The endpoints, sorted as text. The order has no meaning, but rules in another order would be rewritten when taking
/// over from kube-proxy.
fn as_kube_proxy_sorts<'a>(
    endpoints: &[EndpointKey],
    reached: &'a BTreeMap<EndpointKey, Endpoint>,
) -> Vec<&'a Endpoint> {
    let mut sorted: Vec<&Endpoint> = endpoints.iter().filter_map(|key| reached.get(key)).collect();
    sorted.sort_by_key(|endpoint| &*endpoint.text);
    sorted
}

struct ServiceLowering<'a> {
    port: &'a Port,
    settings: &'a Settings,
    comments: bool,
    names: PortNames,
    mark: ChainName,
}

impl ServiceLowering<'_> {
    fn about_endpoint(&self, comment: impl FnOnce() -> String) -> RuleBuilder {
        if self.comments { noted(&comment()) } else { Rule::builder() }
    }

    /// External traffic. With policy `Local`, traffic from inside the cluster goes to any node, as if it left for a
    /// load balancer and came in again.
    fn external(&self) -> Result<Vec<Rule>, Error> {
        let (name, policy) = (&self.port.name, self.port.external_policy);
        let mut rules = Vec::new();
        if policy == TrafficPolicy::Cluster {
            let comment = format!("masquerade traffic for {name} external destinations");
            rules.push(noted(&comment).jump(&self.mark).build()?);
        } else if !self.port.cluster.is_empty() {
            let cluster = self.names.chain(PortNames::CLUSTER)?;
            if let Some(inside) = self.settings.pod_traffic.inside() {
                let comment = format!("pod traffic for {name} external destinations");
                rules.push(noted(&comment).args(inside).jump(&cluster).build()?);
            }
            let from_here = |what: &str| {
                let comment = format!("{what} LOCAL traffic for {name} external destinations");
                noted(&comment).args(["-m", "addrtype", "--src-type", "LOCAL"])
            };
            rules.push(from_here("masquerade").jump(&self.mark).build()?);
            rules.push(from_here("route").jump(&cluster).build()?);
        }
        if is_served(self.port, policy) {
            rules.push(Rule::builder().jump(&policy_chain(&self.names, policy)?).build()?);
        }
        Ok(rules)
    }

    /// Traffic to load balancers. For a client in no range the chain returns without a destination, and filter drops
    /// the packet.
    fn firewall(&self) -> Result<Vec<Rule>, Error> {
        let (port, external) = (self.port, self.names.chain(PortNames::EXTERNAL)?);
        let from = |source: String| {
            let rule = noted(&format!("{} loadbalancer IP", port.name)).args(["-s".to_owned(), source]);
            rule.jump(&external).build()
        };
        let ranges = port.source_ranges.iter().flat_map(|ranges| ranges.iter());
        let mut rules = ranges.map(|range| from(range.to_string())).collect::<Result<Vec<_>, _>>()?;
        // A load balancer's address is often local to the node, which then uses it as source.
        for address in port.load_balancer_ips.iter().filter(|_| port.node_may_use) {
            rules.push(from(address.to_string())?);
        }
        let rest = format!("other traffic to {} will be dropped by KUBE-PROXY-FIREWALL", port.name);
        rules.push(noted(&rest).build()?);
        Ok(rules)
    }

    /// Chooses an endpoint: that of the client's earlier connections, otherwise any with the same probability.
    fn policy(&self, policy: TrafficPolicy, endpoints: &[&Endpoint]) -> Result<Vec<Rule>, Error> {
        let mut rules = Vec::new();
        rules.extend(self.masquerade_outside(policy)?);
        let about = |endpoint: &Endpoint| self.about_endpoint(|| format!("{} -> {}", self.port.name, endpoint.text));
        if let Some(secs) = self.port.affinity_secs {
            for endpoint in endpoints {
                let to = &endpoint.chain;
                let known =
                    ["-m", "recent", "--name", to.as_str(), "--rcheck", "--seconds", &secs.to_string(), "--reap"];
                rules.push(about(endpoint).args(known).jump(to).build()?);
            }
        }
        for (left, endpoint) in (1..=endpoints.len()).rev().zip(endpoints) {
            let rule = about(endpoint);
            let rule = match left {
                1 => rule,
                _ => rule.args(["-m", "statistic", "--mode", "random", "--probability", &probability(left)]),
            };
            rules.push(rule.jump(&endpoint.chain).build()?);
        }
        Ok(rules)
    }

    /// Traffic to the cluster IP that is masqueraded, with any endpoint.
    fn masquerade_outside(&self, policy: TrafficPolicy) -> Result<Option<Rule>, Error> {
        let Some(address) = self.port.cluster_ip.filter(|_| self.port.internal_policy == policy) else {
            return Ok(None);
        };
        let outside = self.settings.pod_traffic.outside();
        let sources = if self.settings.masquerade_all { Some(Vec::new()) } else { outside };
        let Some(sources) = sources else { return Ok(None) };
        let key = FrontendKey::new(self.port.protocol, address, self.port.port);
        let rule = to(noted(&format!("{} cluster IP", self.port.name)), &key);
        rule.args(sources).jump(&self.mark).build().map(Some)
    }

    /// Masquerades the endpoint itself as client. Otherwise it would answer itself, past this node.
    fn endpoint(&self, endpoint: &Endpoint) -> Result<Vec<Rule>, Error> {
        let rule = || self.about_endpoint(|| self.port.name.to_string());
        let hairpin = rule().args(["-s", endpoint.address()]).jump(&self.mark).build()?;
        let chosen = match self.port.affinity_secs {
            Some(_) => rule().args(["-m", "recent", "--name", endpoint.chain.as_str(), "--set"]),
            None => rule(),
        };
        let protocol = names::protocol(self.port.protocol);
        let chosen = chosen.args(["-m", protocol, "-p", protocol]).target("DNAT");
        Ok(vec![hairpin, chosen.args(["--to-destination", &*endpoint.text]).build()?])
    }
}

/// The probability of one of `left` endpoints, as kube-proxy prints it.
fn probability(left: usize) -> String {
    format!("{:.10}", 1.0 / f64::from(u32::try_from(left).unwrap_or(u32::MAX)))
}

//! The chains with their rules, in kube-proxy's order. Comments give its reasons where they are not obvious.

use iptables::{Error, Rule, RuleBuilder};
use ipvs::VirtualServerKey;

use super::{Inputs, names};
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::shared::chains::{accept_forwarded, mark, masquerade};
use crate::modes::shared::networks::PodTraffic;
use crate::net::Family;

/// A chain, named without the prefix, and its rules.
pub(super) type Rows = (&'static str, Vec<RuleBuilder>);

pub(super) fn nat(inputs: &Inputs) -> Vec<Rows> {
    if !inputs.has_chains() {
        return Vec::new();
    }
    vec![
        (names::SERVICES, services(inputs)),
        (names::POSTROUTING, postrouting(inputs)),
        (names::NODE_PORT, node_port(inputs)),
        (names::LOAD_BALANCER, load_balancer(inputs)),
        (names::MARK_MASQ, vec![mark(inputs.masquerade_bit)]),
    ]
}

pub(super) fn filter(inputs: &Inputs) -> Vec<Rows> {
    if !inputs.has_chains() {
        return Vec::new();
    }
    vec![
        (names::FORWARD, accept_forwarded(inputs.masquerade_bit).into()),
        // Present even while the set is empty, so that the first health check needs no new rule.
        (names::NODE_PORT, {
            let row = noted(inputs, SetKind::HealthCheckNodePort, "dst").target("ACCEPT");
            let mut rows = always(inputs, SetKind::HealthCheckNodePort, row);
            rows.extend(accepted_input(inputs));
            rows
        }),
        (names::PROXY_FIREWALL, {
            let row =
                noted(inputs, SetKind::LoadBalancerFirewall, "dst,dst").target(&inputs.chain(names::SOURCE_RANGES));
            when(inputs, SetKind::LoadBalancerFirewall, [row])
        }),
        (names::SOURCE_RANGES, source_ranges(inputs)),
        (names::IPVS_FILTER, ipvs_filter(inputs)),
        (names::IPVS_OUT_FILTER, ipvs_out_filter(inputs)),
    ]
}

/// IPVS sees a packet to a Service's address only after INPUT has accepted it. Source ranges are checked before, in the
/// chain whose jump comes first.
fn accepted_input(inputs: &Inputs) -> Vec<RuleBuilder> {
    if !inputs.input_drops {
        return Vec::new();
    }
    let kinds = [SetKind::ClusterIp, SetKind::ExternalIp, SetKind::ExternalIpLocal, SetKind::LoadBalancer];
    let accept = |kind| when(inputs, kind, [noted(inputs, kind, "dst,dst").target("ACCEPT")]);
    let node_ports = [
        ("tcp", SetKind::NodePortTcp, "dst"),
        ("udp", SetKind::NodePortUdp, "dst"),
        ("sctp", SetKind::NodePortSctp, "dst,dst"),
    ];
    let of_node_port = |(protocol, kind, directions): (&str, SetKind, &str)| {
        let rule = Rule::builder().args(["-p", protocol]).comment(kind.comment());
        when(inputs, kind, [matching(rule, inputs, kind, directions).target("ACCEPT")])
    };
    kinds.into_iter().flat_map(accept).chain(node_ports.into_iter().flat_map(of_node_port)).collect()
}

fn matching(rule: RuleBuilder, inputs: &Inputs, kind: SetKind, directions: &str) -> RuleBuilder {
    rule.match_set(&SetKey::new(inputs.family, kind).named(inputs.prefix).name(), directions)
}

/// A rule that matches the set, without the set's comment.
fn plain(inputs: &Inputs, kind: SetKind, directions: &str) -> RuleBuilder {
    matching(Rule::builder(), inputs, kind, directions)
}

/// A rule that matches the set, with the set's comment.
fn noted(inputs: &Inputs, kind: SetKind, directions: &str) -> RuleBuilder {
    matching(Rule::builder().comment(kind.comment()), inputs, kind, directions)
}

/// Returns these rules if the set has entries, otherwise none.
fn when<const N: usize>(inputs: &Inputs, kind: SetKind, rows: [RuleBuilder; N]) -> Vec<RuleBuilder> {
    if inputs.filled.contains(&kind) { rows.into() } else { Vec::new() }
}

/// This rule, unless the set may be missing.
fn always(inputs: &Inputs, kind: SetKind, row: RuleBuilder) -> Vec<RuleBuilder> {
    if inputs.has_set(kind) { vec![row] } else { Vec::new() }
}

fn services(inputs: &Inputs) -> Vec<RuleBuilder> {
    let loopback = if inputs.family == Family::V4 { "127.0.0.0/8" } else { "::1/128" };
    let balancer = || plain(inputs, SetKind::LoadBalancer, "dst,dst");
    let mut rows = vec![Rule::builder().args(["-s", loopback]).target("RETURN")];
    let portal = noted(inputs, SetKind::LoadBalancer, "dst,dst").target(&inputs.chain(names::LOAD_BALANCER));
    rows.extend(when(inputs, SetKind::LoadBalancer, [portal]));
    if inputs.filled.contains(&SetKind::ClusterIp) {
        rows.extend(cluster_ip_masquerade(inputs));
    }
    let external = |kind| noted(inputs, kind, "dst,dst");
    // Accept what came from elsewhere, and what a local program sends to an address of this host. Other local traffic
    // goes to the host that has the address.
    let accepted = |kind| {
        let from_outside = external(kind);
        let from_outside = if inputs.capabilities.physdev {
            from_outside.args(["-m", "physdev", "!", "--physdev-is-in"])
        } else {
            from_outside
        };
        [
            from_outside.args(["-m", "addrtype", "!", "--src-type", "LOCAL"]).target("ACCEPT"),
            external(kind).args(["-m", "addrtype", "--dst-type", "LOCAL"]).target("ACCEPT"),
        ]
    };
    rows.extend(when(
        inputs,
        SetKind::ExternalIp,
        [external(SetKind::ExternalIp).target(&inputs.chain(names::MARK_MASQ))],
    ));
    rows.extend(when(inputs, SetKind::ExternalIp, accepted(SetKind::ExternalIp)));
    rows.extend(when(inputs, SetKind::ExternalIpLocal, accepted(SetKind::ExternalIpLocal)));
    rows.push(Rule::builder().args(["-m", "addrtype", "--dst-type", "LOCAL"]).target(&inputs.chain(names::NODE_PORT)));
    let cluster = plain(inputs, SetKind::ClusterIp, "dst,dst").target("ACCEPT");
    rows.extend(when(inputs, SetKind::ClusterIp, [cluster]));
    rows.extend(when(inputs, SetKind::LoadBalancer, [balancer().target("ACCEPT")]));
    rows
}

fn cluster_ip_masquerade(inputs: &Inputs) -> Option<RuleBuilder> {
    let to_cluster_ip = || noted(inputs, SetKind::ClusterIp, "dst,dst");
    let row = match &inputs.pods {
        _ if inputs.masquerade_all => to_cluster_ip(),
        // This node's own packets.
        PodTraffic::Unknown if inputs.by_routes => to_cluster_ip().args(["-m", "addrtype", "--src-type", "LOCAL"]),
        PodTraffic::Unknown => noted(inputs, SetKind::ClusterIp, "src,dst"),
        pods => to_cluster_ip().args(pods.outside()?),
    };
    Some(row.target(&inputs.chain(names::MARK_MASQ)))
}

fn postrouting(inputs: &Inputs) -> Vec<RuleBuilder> {
    let hairpin = noted(inputs, SetKind::LoopBack, "dst,dst,src").target("MASQUERADE");
    let mut rows = when(inputs, SetKind::LoopBack, [hairpin]);
    rows.extend(masquerade(inputs.masquerade_bit, inputs.capabilities.random_fully));
    rows
}

fn node_port(inputs: &Inputs) -> Vec<RuleBuilder> {
    let table = [
        ("tcp", SetKind::NodePortLocalTcp, SetKind::NodePortTcp, "dst"),
        ("udp", SetKind::NodePortLocalUdp, SetKind::NodePortUdp, "dst"),
        ("sctp", SetKind::NodePortLocalSctp, SetKind::NodePortSctp, "dst,dst"),
    ];
    let of_protocol = |protocol: &str, kind: SetKind, directions: &str| {
        let rule = Rule::builder().args(["-p", protocol]).comment(kind.comment());
        matching(rule, inputs, kind, directions)
    };
    let mut rows = Vec::new();
    for (protocol, local, all, directions) in table {
        rows.extend(when(inputs, local, [of_protocol(protocol, local, directions).target("RETURN")]));
        rows.extend(when(
            inputs,
            all,
            [of_protocol(protocol, all, directions).target(&inputs.chain(names::MARK_MASQ))],
        ));
    }
    rows
}

fn load_balancer(inputs: &Inputs) -> Vec<RuleBuilder> {
    let local = noted(inputs, SetKind::LoadBalancerLocal, "dst,dst").target("RETURN");
    let mut rows = when(inputs, SetKind::LoadBalancerLocal, [local]);
    rows.push(Rule::builder().target(&inputs.chain(names::MARK_MASQ)));
    rows
}

fn source_ranges(inputs: &Inputs) -> Vec<RuleBuilder> {
    let inside = |kind| when(inputs, kind, [noted(inputs, kind, "dst,dst,src").target("RETURN")]);
    let mut rows = inside(SetKind::LoadBalancerSourceCidr);
    rows.extend(inside(SetKind::LoadBalancerSourceIp));
    rows.push(Rule::builder().target("DROP"));
    rows
}

/// Addresses of Services are local, so no other program that listens here may answer on them.
fn ipvs_filter(inputs: &Inputs) -> Vec<RuleBuilder> {
    let returned = |kind| always(inputs, kind, plain(inputs, kind, "dst,dst").target("RETURN"));
    let kinds = [SetKind::LoadBalancer, SetKind::ClusterIp, SetKind::ExternalIp, SetKind::ExternalIpLocal];
    let mut rows: Vec<RuleBuilder> = kinds.into_iter().flat_map(returned).collect();
    let checked = plain(inputs, SetKind::HealthCheckNodePort, "dst").target("RETURN");
    rows.extend(always(inputs, SetKind::HealthCheckNodePort, checked));
    let new = Rule::builder().args(["-m", "conntrack", "--ctstate", "NEW"]);
    let rejected = matching(new, inputs, SetKind::IpvsIps, "dst").target("REJECT");
    rows.extend(always(inputs, SetKind::IpvsIps, rejected));
    let whole = inputs.guarded_networks.iter().map(|network| {
        let new = Rule::builder().args(["-d", &network.to_string(), "-m", "conntrack", "--ctstate", "NEW"]);
        new.target("REJECT")
    });
    rows.extend(whole);
    rows
}

/// A program on this node that connects to an address of this host has that address as its source. If a route binds the
/// address, the source is the node's, which passes every source range. So such packets are dropped on the way out.
fn ipvs_out_filter(inputs: &Inputs) -> Vec<RuleBuilder> {
    if !inputs.capabilities.ipvs {
        return Vec::new();
    }
    let barred = |key: &VirtualServerKey| {
        let VirtualServerKey::Address { protocol, addr, port } = *key else { return None };
        let (address, port) = (addr.to_string(), port.to_string());
        let protocol = protocol.to_string().to_ascii_lowercase();
        let server = ["-m", "ipvs", "--vaddr", &address, "--vproto", &protocol, "--vport", &port];
        let rule = if inputs.by_routes {
            Rule::builder().args(["-m", "addrtype", "--src-type", "LOCAL"])
        } else {
            Rule::builder().args(["-s", &address])
        };
        Some(rule.args(server).target("DROP"))
    };
    inputs.barred.iter().filter_map(barred).collect()
}

pub(super) fn build(rows: Vec<RuleBuilder>) -> Result<Vec<Rule>, Error> {
    rows.into_iter().map(RuleBuilder::build).collect()
}

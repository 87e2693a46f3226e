//! The chains with their rules, in kube-proxy's order. Comments give its reasons where they are not obvious.

use ipset::SetType;
use iptables::{Error, Rule, RuleBuilder};
use ipvs::VirtualServerKey;

use super::{Inputs, names};
use crate::modes::shared::chains::{accept_forwarded, mark, masquerade};
use crate::modes::shared::networks::PodTraffic;
use crate::net::Family;
use crate::ports::{SetKey, SetKind};

/// A rule, unless it is about a set that has no entries.
type Row = Option<RuleBuilder>;

/// A chain, named without the prefix, and its rules.
pub(super) type Rows = (&'static str, Vec<Row>);

/// Protocols of node ports, with the sets of those with policy `Local`, and of all.
const NODE_PORTS: [(&str, SetKind, SetKind); 3] = [
    ("tcp", SetKind::NodePortLocalTcp, SetKind::NodePortTcp),
    ("udp", SetKind::NodePortLocalUdp, SetKind::NodePortUdp),
    ("sctp", SetKind::NodePortLocalSctp, SetKind::NodePortSctp),
];

const NEW: [&str; 4] = ["-m", "conntrack", "--ctstate", "NEW"];
const FROM_HOST: [&str; 4] = ["-m", "addrtype", "--src-type", "LOCAL"];
const TO_HOST: [&str; 4] = ["-m", "addrtype", "--dst-type", "LOCAL"];

pub(super) fn nat(inputs: &Inputs) -> Vec<Rows> {
    let marked = Some(Rule::builder().target(&inputs.chain(names::MARK_MASQ)));
    let masquerade = masquerade(inputs.masquerade_bit, inputs.capabilities.random_fully).map(Some);
    vec![
        (names::SERVICES, services(inputs)),
        (names::POSTROUTING, [row(inputs, SetKind::LoopBack, "MASQUERADE")].into_iter().chain(masquerade).collect()),
        (names::NODE_PORT, node_port(inputs)),
        (names::LOAD_BALANCER, vec![row(inputs, SetKind::LoadBalancerLocal, "RETURN"), marked]),
        (names::MARK_MASQ, vec![Some(mark(inputs.masquerade_bit))]),
    ]
}

pub(super) fn filter(inputs: &Inputs) -> Vec<Rows> {
    let inside = |kind| row(inputs, kind, "RETURN");
    // Present even while the set is empty, so that the first health check needs no new rule.
    let checked = noted(inputs, SetKind::HealthCheckNodePort).target("ACCEPT");
    vec![
        (names::FORWARD, accept_forwarded(inputs.masquerade_bit).map(Some).into()),
        (names::NODE_PORT, [Some(checked)].into_iter().chain(accepted_input(inputs)).collect()),
        (names::PROXY_FIREWALL, vec![row(inputs, SetKind::LoadBalancerFirewall, &inputs.chain(names::SOURCE_RANGES))]),
        (
            names::SOURCE_RANGES,
            vec![
                inside(SetKind::LoadBalancerSourceCidr),
                inside(SetKind::LoadBalancerSourceIp),
                Some(Rule::builder().target("DROP")),
            ],
        ),
        (names::IPVS_FILTER, ipvs_filter(inputs)),
        (names::IPVS_OUT_FILTER, ipvs_out_filter(inputs)),
    ]
}

/// IPVS sees a packet to a Service's address only after INPUT has accepted it. Source ranges are checked before, in the
/// chain whose jump comes first.
fn accepted_input(inputs: &Inputs) -> Vec<Row> {
    if !inputs.input_drops {
        return Vec::new();
    }
    let kinds = [SetKind::ClusterIp, SetKind::ExternalIp, SetKind::ExternalIpLocal, SetKind::LoadBalancer];
    let node_ports = NODE_PORTS.map(|(protocol, _, all)| of_protocol(inputs, protocol, all, "ACCEPT"));
    kinds.map(|kind| row(inputs, kind, "ACCEPT")).into_iter().chain(node_ports).collect()
}

fn name(inputs: &Inputs, kind: SetKind) -> String {
    SetKey::new(inputs.family, kind).named(inputs.prefix).name()
}

/// Matches packets to what the set has, and from it if entries have sources.
fn matching(rule: RuleBuilder, inputs: &Inputs, kind: SetKind) -> RuleBuilder {
    let directions = match kind.set_type() {
        SetType::HashIp | SetType::BitmapPort => "dst",
        SetType::HashIpPort => "dst,dst",
        _ => "dst,dst,src",
    };
    rule.match_set(&name(inputs, kind), directions)
}

/// A rule that matches the set, without the set's comment.
fn plain(inputs: &Inputs, kind: SetKind) -> RuleBuilder {
    matching(Rule::builder(), inputs, kind)
}

/// A rule that matches the set, with the set's comment.
fn noted(inputs: &Inputs, kind: SetKind) -> RuleBuilder {
    matching(Rule::builder().comment(kind.comment()), inputs, kind)
}

/// This rule, if the set has entries.
fn when(inputs: &Inputs, kind: SetKind, rule: RuleBuilder) -> Row {
    inputs.filled.contains(&kind).then_some(rule)
}

/// The rule for packets to what the set has, if it has entries.
fn row(inputs: &Inputs, kind: SetKind, target: &str) -> Row {
    when(inputs, kind, noted(inputs, kind).target(target))
}

fn of_protocol(inputs: &Inputs, protocol: &str, kind: SetKind, target: &str) -> Row {
    let rule = Rule::builder().args(["-p", protocol]).comment(kind.comment());
    when(inputs, kind, matching(rule, inputs, kind).target(target))
}

fn services(inputs: &Inputs) -> Vec<Row> {
    let loopback = if inputs.family == Family::V4 { "127.0.0.0/8" } else { "::1/128" };
    // Accept what came from elsewhere, and what a local program sends to an address of this host. Other local traffic
    // goes to the host that has the address.
    let accepted = |kind| {
        let bridge: &[&str] =
            if inputs.capabilities.physdev { &["-m", "physdev", "!", "--physdev-is-in"] } else { &[] };
        let from_outside = noted(inputs, kind).args(bridge).args(["-m", "addrtype", "!", "--src-type", "LOCAL"]);
        [from_outside, noted(inputs, kind).args(TO_HOST)].map(|rule| when(inputs, kind, rule.target("ACCEPT")))
    };
    let others = |kind| when(inputs, kind, plain(inputs, kind).target("ACCEPT"));
    let marking = [
        Some(Rule::builder().args(["-s", loopback]).target("RETURN")),
        row(inputs, SetKind::LoadBalancer, &inputs.chain(names::LOAD_BALANCER)),
        cluster_ip_masquerade(inputs),
        row(inputs, SetKind::ExternalIp, &inputs.chain(names::MARK_MASQ)),
    ];
    let external = [SetKind::ExternalIp, SetKind::ExternalIpLocal].into_iter().flat_map(accepted);
    let node_ports = Rule::builder().args(TO_HOST).target(&inputs.chain(names::NODE_PORT));
    let last = [Some(node_ports), others(SetKind::ClusterIp), others(SetKind::LoadBalancer)];
    marking.into_iter().chain(external).chain(last).collect()
}

fn cluster_ip_masquerade(inputs: &Inputs) -> Row {
    let kind = SetKind::ClusterIp;
    let rule = match &inputs.pods {
        _ if inputs.masquerade_all => noted(inputs, kind),
        // This node's own packets.
        PodTraffic::Unknown if inputs.by_routes => noted(inputs, kind).args(FROM_HOST),
        PodTraffic::Unknown => Rule::builder().comment(kind.comment()).match_set(&name(inputs, kind), "src,dst"),
        pods => noted(inputs, kind).args(pods.outside()?),
    };
    when(inputs, kind, rule.target(&inputs.chain(names::MARK_MASQ)))
}

fn node_port(inputs: &Inputs) -> Vec<Row> {
    let of_port = |(protocol, local, all)| {
        let returned = of_protocol(inputs, protocol, local, "RETURN");
        [returned, of_protocol(inputs, protocol, all, &inputs.chain(names::MARK_MASQ))]
    };
    NODE_PORTS.into_iter().flat_map(of_port).collect()
}

/// Addresses of Services are local, so no other program that listens here may answer on them.
fn ipvs_filter(inputs: &Inputs) -> Vec<Row> {
    use SetKind::{ClusterIp, ExternalIp, ExternalIpLocal, HealthCheckNodePort, LoadBalancer};
    let returned = |kind| Some(plain(inputs, kind).target("RETURN"));
    let served = [LoadBalancer, ClusterIp, ExternalIp, ExternalIpLocal, HealthCheckNodePort];
    let rejected = matching(Rule::builder().args(NEW), inputs, SetKind::IpvsIps).target("REJECT");
    let whole = inputs.guarded_networks.iter().map(|network| {
        let new = Rule::builder().args(["-d", &network.to_string()]).args(NEW);
        Some(new.target("REJECT"))
    });
    served.map(returned).into_iter().chain([Some(rejected)]).chain(whole).collect()
}

/// A program on this node that connects to an address of this host has that address as its source. If a route binds the
/// address, the source is the node's, which passes every source range. So such packets are dropped on the way out.
fn ipvs_out_filter(inputs: &Inputs) -> Vec<Row> {
    if !inputs.capabilities.ipvs {
        return Vec::new();
    }
    let barred = |key: &VirtualServerKey| {
        let VirtualServerKey::Address { protocol, addr, port } = *key else { return None };
        let (address, port) = (addr.to_string(), port.to_string());
        let protocol = protocol.to_string().to_ascii_lowercase();
        let server = ["-m", "ipvs", "--vaddr", &address, "--vproto", &protocol, "--vport", &port];
        let rule = Rule::builder();
        let rule = if inputs.by_routes { rule.args(FROM_HOST) } else { rule.args(["-s", &address]) };
        Some(rule.args(server).target("DROP"))
    };
    inputs.barred.iter().map(barred).collect()
}

pub(super) fn build(rows: Vec<Row>) -> Result<Vec<Rule>, Error> {
    rows.into_iter().flatten().map(RuleBuilder::build).collect()
}

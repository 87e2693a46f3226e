//! What happens to packets in each mode.

use crate::modes::ipvs::binding::Routes;
use crate::modes::localhost_relay::is_relayed;
use crate::modes::{Kind, fast_path, iptables};
use crate::net::Family;
use crate::service::{Desired, NodeFacts, Packet, PacketRules, Trace, Treatment, Verdict, trace as trace_by};
use crate::snapshot::Store;

/// How a mode treats a family's packets. `iptables`: the settings of that mode.
pub(super) fn packet_rules(
    mode: Kind,
    family: Family,
    facts: &NodeFacts,
    iptables: iptables::IptablesOptions,
) -> PacketRules {
    let only_if = |holds: bool, rules: PacketRules| if holds { rules } else { PacketRules::empty() };
    match mode {
        Kind::Ipvs => {
            only_if(facts.config().splits_local(), PacketRules::SPLITS_LOCAL_BY_MARK)
                | PacketRules::OWNS_ADDRESSES
                | PacketRules::REFUSES_NODE
                | PacketRules::RANGES_FIRST
                | PacketRules::TRUSTS_NODE
                | PacketRules::NEVER_DROPS
                | PacketRules::CLOSES_ADDRESSES
                | PacketRules::BALANCES
        }
        Kind::Nftables => {
            PacketRules::SPLITS_LOCAL
                | PacketRules::REFUSES_NODE
                | PacketRules::CLOSES_CLUSTER_IPS
                | PacketRules::OTHER_PODS_ARE_OUTSIDE
        }
        Kind::Iptables => {
            let settings = iptables::Settings::new(family, facts, iptables);
            only_if(settings.options.localhost_node_ports, PacketRules::LOCALHOST_NODE_PORTS)
                | PacketRules::SPLITS_LOCAL
                | PacketRules::REMOTE_HAIRPINS
                | PacketRules::REFUSES_ON_EVERY_ADDRESS
        }
        Kind::Userspace => {
            PacketRules::SPLITS_LOCAL
                | PacketRules::OWNS_ADDRESSES
                | PacketRules::REFUSES_NODE
                | PacketRules::RELAYS
                | PacketRules::OTHER_PODS_ARE_OUTSIDE
        }
    }
}

/// Traces a packet through a mode.
pub fn trace(
    mode: Kind,
    store: &Store,
    (desired, facts): (&Desired, &NodeFacts),
    packet: &Packet,
    iptables: iptables::IptablesOptions,
) -> Trace {
    let rules = packet_rules(mode, packet.to.family(), facts, iptables);
    let mut treatment = Treatment { rules, ..Treatment::default() };
    if mode == Kind::Ipvs {
        let has_address = |address| desired.frontends().any(|frontend| frontend.key.address == address);
        let routes = Routes::new(&has_address, facts);
        (treatment.by_routes, treatment.closed) = (routes.is_on, routes.whole);
    }
    let is_at_localhost =
        mode == Kind::Nftables && packet.to.address.is_loopback() && desired.frontend(&packet.to).is_some();
    if is_at_localhost {
        treatment.rules |= PacketRules::RELAYS;
    }
    let mut trace = trace_by(store, desired, facts, packet, &treatment);
    if is_at_localhost && !is_relayed(&packet.to) {
        trace.steps.truncate(1);
        trace.steps.push("Node ports at loopback addresses are served for TCP only in nftables mode.".to_owned());
        trace.verdict = Verdict::Rejected;
    }
    let is_virtual = desired.frontend(&packet.to).is_some_and(crate::service::Frontend::is_virtual);
    if mode == Kind::Ipvs && is_virtual {
        let address = packet.to.address;
        let whole = treatment.closed.iter().find(|network| network.contains(&address));
        let how = match whole {
            Some(network) => format!("by the route of {network}"),
            None if treatment.by_routes => "by a route of its own".to_owned(),
            None => format!("bound to {}", facts.config().names.device),
        };
        trace.steps.insert(trace.steps.len().min(1), format!("{address} is this node's own, {how}."));
    }
    if matches!(trace.verdict, Verdict::Endpoints(_)) {
        trace.steps.extend(fast_path::step(facts.config(), mode, packet));
    }
    trace
}

//! What becomes of packets in each mode: [`service::trace`](crate::service::trace()) with the mode's ways.

use crate::modes::ipvs::binding::Routes;
use crate::modes::{Kind, iptables};
use crate::net::Family;
use crate::service::{Desired, NodeFacts, Packet, Trace, Treatment, Ways, trace as trace_by};
use crate::snapshot::Store;

/// How a mode treats packets of a family. `iptables`: the settings of that mode.
pub fn ways(mode: Kind, family: Family, facts: &NodeFacts, iptables: iptables::Options) -> Ways {
    match mode {
        Kind::Ipvs => {
            let split = if facts.config().splits_local() { Ways::SPLITS_LOCAL_BY_MARK } else { Ways::empty() };
            split
                | Ways::OWNS_ADDRESSES
                | Ways::REFUSES_NODE
                | Ways::RANGES_FIRST
                | Ways::TRUSTS_NODE
                | Ways::NEVER_DROPS
                | Ways::CLOSES_ADDRESSES
        }
        Kind::Nftables => Ways::SPLITS_LOCAL | Ways::REFUSES_NODE | Ways::CLOSES_CLUSTER_IPS,
        Kind::Iptables => {
            let settings = iptables::Settings::new(family, facts, iptables);
            let localhost = if settings.serves_localhost() { Ways::LOCALHOST_NODE_PORTS } else { Ways::empty() };
            localhost | Ways::SPLITS_LOCAL | Ways::REMOTE_HAIRPINS | Ways::REFUSES_ON_EVERY_ADDRESS
        }
        Kind::Userspace => Ways::SPLITS_LOCAL | Ways::OWNS_ADDRESSES | Ways::REFUSES_NODE | Ways::RELAYS,
    }
}

/// How a mode treats packets of a family; `desired` says which addresses are Services'. `iptables`: the settings of that mode.
pub fn treatment(
    mode: Kind,
    family: Family,
    (desired, facts): (&Desired, &NodeFacts),
    iptables: iptables::Options,
) -> Treatment {
    let mut treatment = Treatment::from(ways(mode, family, facts, iptables));
    if mode == Kind::Ipvs {
        let has_address = |address| desired.frontends().any(|frontend| frontend.key.address == address);
        let routes = Routes::of(&has_address, facts);
        treatment.by_routes = routes.is_on;
        treatment.closed = routes.whole;
    }
    treatment
}

/// What becomes of a packet in a mode.
pub fn trace(
    mode: Kind,
    store: &Store,
    (desired, facts): (&Desired, &NodeFacts),
    packet: &Packet,
    iptables: iptables::Options,
) -> Trace {
    let treatment = treatment(mode, packet.to.family(), (desired, facts), iptables);
    let mut trace = trace_by(store, desired, facts, packet, &treatment);
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
    trace
}

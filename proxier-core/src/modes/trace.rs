//! What becomes of packets in each mode: [`service::trace`](crate::service::trace()) with the mode's ways.

use crate::modes::{Kind, iptables};
use crate::net::Family;
use crate::service::{Desired, NodeFacts, Packet, Trace, Ways, trace as trace_by};
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

/// What becomes of a packet in a mode.
pub fn trace(
    mode: Kind,
    store: &Store,
    (desired, facts): (&Desired, &NodeFacts),
    packet: &Packet,
    iptables: iptables::Options,
) -> Trace {
    trace_by(store, desired, facts, packet, ways(mode, packet.to.family(), facts, iptables))
}

//! Configuration of IPVS mode.

use bitflags::bitflags;
use ipvs::model::Scheduler;

use crate::net::Network;

bitflags! {
    /// What annotations of Services, EndpointSlices and Nodes may decide.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct MayAskFor: u8 {
        /// `scheduler`: the scheduler and its flags.
        const SCHEDULER = 1;
        /// `persistence`: how long clients stay with their endpoints, and which count as one.
        const PERSISTENCE = 2;
        /// `one-packet`: scheduling of each UDP datagram for itself.
        const ONE_PACKET = 4;
        /// `weights`: weights of endpoints, by slice and by zone.
        const WEIGHTS = 8;
        /// `node-weights`: weights of endpoints by node; not by default, since a watch of all Nodes has its cost.
        const NODE_WEIGHTS = 16;
        /// `forwarding`: how packets for external addresses reach endpoints.
        const FORWARDING = 32;
        /// `thresholds`: limits of connections.
        const THRESHOLDS = 64;
        /// `drain`: how long endpoints that leave keep connections.
        const DRAIN = 128;
    }
}

impl MayAskFor {
    /// From its name in configuration files.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "scheduler" => Some(MayAskFor::SCHEDULER),
            "persistence" => Some(MayAskFor::PERSISTENCE),
            "one-packet" => Some(MayAskFor::ONE_PACKET),
            "weights" => Some(MayAskFor::WEIGHTS),
            "node-weights" => Some(MayAskFor::NODE_WEIGHTS),
            "forwarding" => Some(MayAskFor::FORWARDING),
            "thresholds" => Some(MayAskFor::THRESHOLDS),
            "drain" => Some(MayAskFor::DRAIN),
            _ => None,
        }
    }
}

/// What only IPVS mode uses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IpvsConfig {
    /// Scheduler of every virtual server. Default `rr`. For `mh` the flags `mh-port` and `mh-fallback` are set; without
    /// `mh-fallback`, new connections are lost while a real server drains.
    pub scheduler: Scheduler,
    /// What Services may decide by annotations ([`Balancing`](crate::snapshot::Balancing)). Default everything but weights by
    /// node.
    pub may_ask_for: MayAskFor,
    /// Networks in which no virtual server is ever deleted: another program made it. Default none.
    pub exclude_cidrs: Vec<Network>,
}

impl Default for IpvsConfig {
    fn default() -> Self {
        let may_ask_for = MayAskFor::all() - MayAskFor::NODE_WEIGHTS;
        IpvsConfig { scheduler: Scheduler::RoundRobin, may_ask_for, exclude_cidrs: Vec::new() }
    }
}

//! Configuration of IPVS mode.

use ipvs::model::Scheduler;

use crate::net::Network;

/// What only IPVS mode uses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IpvsConfig {
    /// Scheduler of every virtual server. Default `rr`. For `mh` the flags `mh-port` and `mh-fallback` are set; without
    /// `mh-fallback`, new connections are lost while a real server drains.
    pub scheduler: Scheduler,
    /// Networks in which no virtual server is ever deleted: another program made it. Default none.
    pub exclude_cidrs: Vec<Network>,
}

impl Default for IpvsConfig {
    fn default() -> Self {
        IpvsConfig { scheduler: Scheduler::RoundRobin, exclude_cidrs: Vec::new() }
    }
}

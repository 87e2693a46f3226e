//! What modes find in a kernel, for display.

use std::collections::{BTreeMap, BTreeSet};

use crate::net::EndpointKey;

/// What a kernel has for one address and port.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Inspection {
    /// The parts by name, with their values: `real server 10.244.0.5:8080`, `weight 1`.
    pub parts: BTreeMap<String, String>,
    /// Parts that may exist although they are not desired: draining real servers.
    pub(crate) leaving: BTreeSet<String>,
    /// The kernel's counters; `None` if it does not count.
    pub counters: Option<TrafficCounters>,
}

/// Counters since the kernel has had the counting parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TrafficCounters {
    /// Connections. In iptables mode: their first packets.
    pub connections: u64,
    /// Packets from clients and to clients, if counted.
    pub packets: Option<(u64, u64)>,
}

/// A Frontend as a kernel, or a process in userspace mode, serves it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ServedFrontend {
    /// The endpoints of any client; clients that a policy `Local` keeps on this node may get fewer. `None` if only the
    /// serving process has them.
    pub endpoints: Option<BTreeSet<EndpointKey>>,
    /// Connections since the kernel has had the rules, or this process the listener, if counted.
    pub connections: Option<u64>,
}

impl ServedFrontend {
    pub(crate) fn add(&mut self, endpoints: impl IntoIterator<Item = EndpointKey>) {
        self.endpoints.get_or_insert_default().extend(endpoints);
    }
}

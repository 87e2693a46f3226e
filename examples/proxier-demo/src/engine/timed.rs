//! Measures calls that forget flows, by family.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use proxier_core::net::{Family, Protocol};
use proxier_core::ports::{Conntrack, PortError, UdpServices};

/// Connection tracking that records the duration of each call that forgets flows, including failed ones.
pub(super) struct TimedPorts<'a> {
    pub(super) conntrack: &'a mut dyn Conntrack,
    pub(super) took: &'a mut Vec<(Family, Duration)>,
}

impl Conntrack for TimedPorts<'_> {
    fn forget_flows(&mut self, protocol: Protocol, family: Family, services: &UdpServices) -> Result<usize, PortError> {
        let start = Instant::now();
        let outcome = self.conntrack.forget_flows(protocol, family, services);
        self.took.push((family, start.elapsed()));
        outcome
    }

    fn find_udp(&mut self, services: &UdpServices) -> Result<BTreeSet<SocketAddr>, PortError> {
        self.conntrack.find_udp(services)
    }
}

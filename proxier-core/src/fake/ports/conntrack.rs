//! Tracked connections.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::gate::Gate;
use crate::fake::conntrack::{Flow, find_udp, forget};
use crate::fake::control::Call;
use crate::fake::shared::Shared;
use crate::net::{Family, Protocol};
use crate::ports::{Conntrack, PortError, UdpServices};

pub(super) struct FakeConntrackPort {
    pub(super) gate: Gate,
    pub(super) flows: Shared<BTreeSet<Flow>>,
}

impl Conntrack for FakeConntrackPort {
    fn forget_flows(&mut self, protocol: Protocol, family: Family, services: &UdpServices) -> Result<usize, PortError> {
        let forget = || Ok(forget(&mut self.flows.lock(), protocol.into(), family, services));
        self.gate.call(Call::ConntrackForgetFlows, None, forget)
    }

    fn find_udp(&mut self, services: &UdpServices) -> Result<BTreeSet<SocketAddr>, PortError> {
        self.gate.call(Call::ConntrackFindUdp, None, || Ok(find_udp(&self.flows.lock(), services)))
    }
}

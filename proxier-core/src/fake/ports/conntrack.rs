//! Tracked connections.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::gate::Gate;
use crate::fake::conntrack::{Flow, find_udp, forget_udp};
use crate::fake::control::Call;
use crate::fake::shared::Shared;
use crate::net::Family;
use crate::ports::{Conntrack, PortError, UdpServices};

pub(super) struct FakeConntrackPort {
    pub(super) gate: Gate,
    pub(super) flows: Shared<BTreeSet<Flow>>,
}

impl Conntrack for FakeConntrackPort {
    fn forget_udp(&mut self, family: Family, services: &UdpServices) -> Result<usize, PortError> {
        self.gate.call(Call::ConntrackForgetUdp, None, || Ok(forget_udp(&mut self.flows.lock(), family, services)))
    }

    fn find_udp(&mut self, services: &UdpServices) -> Result<BTreeSet<SocketAddr>, PortError> {
        self.gate.call(Call::ConntrackFindUdp, None, || Ok(find_udp(&self.flows.lock(), services)))
    }
}

//! Tracked connections.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use ipvs::model::Protocol;

use super::gate::Gate;
use crate::fake::conntrack::{Flow, find_udp, forget};
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
        let of_udp = || Ok(forget(&mut self.flows.lock(), Protocol::Udp, family, services));
        self.gate.call(Call::ConntrackForgetUdp, None, of_udp)
    }

    fn forget_tcp(&mut self, family: Family, services: &UdpServices) -> Result<usize, PortError> {
        let of_tcp = || Ok(forget(&mut self.flows.lock(), Protocol::Tcp, family, services));
        self.gate.call(Call::ConntrackForgetTcp, None, of_tcp)
    }

    fn find_udp(&mut self, services: &UdpServices) -> Result<BTreeSet<SocketAddr>, PortError> {
        self.gate.call(Call::ConntrackFindUdp, None, || Ok(find_udp(&self.flows.lock(), services)))
    }
}

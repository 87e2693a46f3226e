//! Tracked connections.

use std::collections::BTreeSet;

use super::gate::Gate;
use crate::fake::conntrack::{Flow, forget_udp};
use crate::fake::control::Call;
use crate::fake::shared::Shared;
use crate::ports::{Conntrack, Flows, PortError, UdpServices};

pub(super) struct FakeConntrackPort {
    pub(super) gate: Gate,
    pub(super) flows: Shared<BTreeSet<Flow>>,
}

impl Conntrack for FakeConntrackPort {
    fn forget_udp(&mut self, services: &UdpServices) -> Result<Flows, PortError> {
        self.gate.call(Call::ConntrackForgetUdp, None, || Ok(forget_udp(&mut self.flows.lock(), services)))
    }
}

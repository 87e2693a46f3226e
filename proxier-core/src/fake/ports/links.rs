//! Dummy devices and addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::gate::Gate;
use crate::fake::control::Call;
use crate::fake::links::Interfaces;
use crate::fake::shared::Shared;
use crate::ports::{ItemFailures, Links, PortError};
use crate::snapshot::HostAddresses;

pub(super) struct FakeLinksPort {
    pub(super) gate: Gate,
    pub(super) links: Shared<Interfaces>,
}

impl Links for FakeLinksPort {
    fn has_device(&mut self, name: &str) -> Result<bool, PortError> {
        self.links.lock().has(name)
    }

    fn create_device(&mut self, name: &str) -> Result<(), PortError> {
        self.gate.call(Call::LinksCreateDevice, None, || self.links.lock().create(name))
    }

    fn delete_device(&mut self, name: &str) -> Result<(), PortError> {
        self.gate.call(Call::LinksDeleteDevice, None, || self.links.lock().delete(name))
    }

    fn addresses(&mut self) -> Result<HostAddresses, PortError> {
        self.gate.call(Call::LinksAddresses, None, || Ok(self.links.lock().addresses()))
    }

    fn gateways(&mut self) -> Result<BTreeSet<IpAddr>, PortError> {
        self.gate.call(Call::LinksGateways, None, || Ok(self.links.lock().gateways.clone()))
    }

    fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        self.gate.items(Call::LinksBind, None, addresses, |addresses| self.links.lock().bind(device, addresses))
    }

    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        self.gate.items(Call::LinksUnbind, None, addresses, |addresses| self.links.lock().unbind(device, addresses))
    }
}

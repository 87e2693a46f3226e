//! Local routes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::gate::Gate;
use crate::fake::control::Call;
use crate::fake::links::Interfaces;
use crate::fake::shared::Shared;
use crate::net::Network;
use crate::ports::{ItemFailures, LocalNetworks, LocalRoute, PortError, RouteOwner};

pub(super) struct FakeRoutesPort {
    pub(super) gate: Gate,
    pub(super) links: Shared<Interfaces>,
}

impl LocalNetworks for FakeRoutesPort {
    fn networks(&mut self, owner: RouteOwner) -> Result<BTreeMap<Network, Option<IpAddr>>, PortError> {
        self.gate.call(Call::RoutesNetworks, None, || Ok(self.links.lock().networks(owner)))
    }

    fn add(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures {
        self.gate.items(Call::RoutesAdd, None, routes, |routes| self.links.lock().add_routes(owner, routes))
    }

    fn delete(&mut self, owner: RouteOwner, networks: &[Network]) -> ItemFailures {
        self.gate.items(Call::RoutesDelete, None, networks, |networks| self.links.lock().delete_routes(owner, networks))
    }
}

//! Makes addresses this host's, and takes them away: on the dummy device, or by routes.

use std::net::IpAddr;

use super::{Run, divide, needed, skipped};
use crate::net::{Family, Network};
use crate::plan::step::{Action, Step};
use crate::ports::{LocalRoute, PortError, Ports, RouteOwner};

/// Reason why an address is not made local: it has no virtual server.
fn too_early(address: IpAddr) -> PortError {
    skipped(format_args!("{address} is not bound, because none of its virtual servers could be made"))
}

impl Run<'_, '_> {
    pub(super) fn bind(&mut self, addresses: &[IpAddr], ports: &mut Ports<'_>) {
        let device = &self.plan.names.device;
        let why_not = |run: &Self, address: &IpAddr| {
            if !run.has_device {
                return Some(skipped(format_args!("{address} is not bound, because there is no device {device}")));
            }
            run.unserved.contains(address).then(|| too_early(*address))
        };
        let bind = |_: &mut Self, addresses: &[IpAddr]| ports.links.bind(device.as_str(), addresses);
        let step = |address: &IpAddr| Step::address(Action::Add, *address, device);
        let (done, _) = self.try_items(addresses.to_vec(), why_not, bind, step);
        self.observed.addresses.extend(done);
    }

    pub(super) fn unbind(&mut self, addresses: &[IpAddr], ports: &mut Ports<'_>) {
        let device = &self.plan.names.device;
        let why_not = |run: &Self, address: &IpAddr| {
            if run.needs.address(address) {
                return Some(needed());
            }
            let lacks_route = run.wanted.has_address(*address) && !run.observed.routes.cover(*address, None);
            lacks_route.then(|| skipped(format_args!("{address} stays bound, because no route makes it local yet")))
        };
        let unbind = |_: &mut Self, addresses: &[IpAddr]| ports.links.unbind(device.as_str(), addresses);
        let step = |address: &IpAddr| Step::address(Action::Delete, *address, device);
        let (done, _) = self.try_items(addresses.to_vec(), why_not, unbind, step);
        for address in done {
            self.observed.addresses.remove(&address);
        }
    }

    /// Adds routes. A source that the kernel refuses is left out: another source is better than no Service.
    pub(super) fn add_routes(&mut self, routes: &[LocalRoute], ports: &mut Ports<'_>) {
        let why_not = |run: &Self, LocalRoute { network, .. }: &LocalRoute| {
            let address = network.addr();
            if run.plan.guarded_networks.contains(network) && run.unguarded.contains(&Family::of(address)) {
                return Some(skipped(format_args!(
                    "{network} is not made local, because the rules that reject its unserved addresses are missing"
                )));
            }
            let is_single = *network == Network::from(address);
            let is_early = is_single && !run.observed.routes.has(network) && run.unserved.contains(&address);
            is_early.then(|| too_early(address))
        };
        let mut add = |routes: &[LocalRoute]| ports.routes.add(RouteOwner::Ipvs, routes);
        let step = |route: &LocalRoute| Step::route(Action::Add, route);
        let (mut done, refused) = self.try_items(routes.to_vec(), why_not, |_, routes| add(routes), step);
        let with_source = refused.iter().filter(|route| route.source.is_some());
        let without: Vec<_> = with_source.map(|route| LocalRoute::new(route.network)).collect();
        if !without.is_empty() {
            done.extend(divide(without, add).0);
        }
        for route in done {
            self.observed.routes.insert(route.network, route.source);
        }
    }

    pub(super) fn delete_routes(&mut self, routes: &[LocalRoute], ports: &mut Ports<'_>) {
        let why_not = |run: &Self, LocalRoute { network, .. }: &LocalRoute| {
            if run.needs.any_in(network) {
                return Some(needed());
            }
            let observed = &run.observed;
            let is_bound = |address: &IpAddr| {
                observed.addresses.contains(address) || observed.routes.cover(*address, Some(network))
            };
            let unbound = run.wanted.addresses_in(network).find(|address| !is_bound(address))?;
            Some(skipped(format_args!("stays, because {unbound} is not bound in any other way yet")))
        };
        let delete = |_: &mut Self, routes: &[LocalRoute]| {
            let networks: Vec<Network> = routes.iter().map(|route| route.network).collect();
            ports.routes.delete(RouteOwner::Ipvs, &networks)
        };
        let step = |route: &LocalRoute| Step::route(Action::Delete, route);
        let (done, _) = self.try_items(routes.to_vec(), why_not, delete, step);
        for route in done {
            self.observed.routes.remove(&route.network);
        }
    }
}

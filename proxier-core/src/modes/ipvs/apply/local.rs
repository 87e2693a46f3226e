//! Makes addresses this host's, and takes them away: on the dummy device, or by routes.

use std::net::IpAddr;

use super::{Run, skipped, split};
use crate::modes::shared::routes;
use crate::net::{Family, Network};
use crate::plan::report::Applied;
use crate::plan::step::{Action, Part, Step};
use crate::ports::{LocalRoute, Ports, RouteOwner};

impl Run<'_, '_> {
    pub(super) fn bind(&mut self, addresses: &[IpAddr], ports: &mut Ports<'_>) {
        let device = &self.plan.names.device;
        let (skipped, wanted): (Vec<IpAddr>, Vec<IpAddr>) =
            addresses.iter().partition(|address| !self.has_device || self.unserved.contains(address));
        if !wanted.is_empty() {
            let (done, failed) = split(&wanted, ports.links.bind(device.as_str(), &wanted));
            self.applied.count(Part::Address, Action::Add, done.len());
            self.observed.addresses.extend(done);
            for (address, error) in failed {
                self.applied.fail(Step::address(Action::Add, *address, device), error);
            }
        }
        for address in skipped {
            let why = if self.has_device {
                skipped::bound_too_early(address)
            } else {
                skipped::not_without_device(address, device)
            };
            self.applied.fail(Step::address(Action::Add, address, device), why);
        }
    }

    pub(super) fn unbind(&mut self, addresses: &[IpAddr], ports: &mut Ports<'_>) {
        let device = &self.plan.names.device;
        let mut going: Vec<IpAddr> = Vec::with_capacity(addresses.len());
        for address in addresses {
            let why = if self.needs.address(address) {
                skipped::needed()
            } else if self.wanted.has_address(*address) && !self.observed.routes.cover(*address, None) {
                skipped::not_without_route(*address)
            } else {
                going.push(*address);
                continue;
            };
            self.applied.fail(Step::address(Action::Delete, *address, device), why);
        }
        if going.is_empty() {
            return;
        }
        let (done, failed) = split(&going, ports.links.unbind(device.as_str(), &going));
        self.applied.count(Part::Address, Action::Delete, done.len());
        for address in done {
            self.observed.addresses.remove(address);
        }
        for (address, error) in failed {
            self.applied.fail(Step::address(Action::Delete, *address, device), error);
        }
    }

    /// Adds routes. A source that the kernel refuses is left out: another source is better than no Service.
    pub(super) fn add_routes(&mut self, routes: &[LocalRoute], ports: &mut Ports<'_>) {
        let mut possible = Vec::with_capacity(routes.len());
        for route in routes {
            let network = &route.network;
            let unguarded = self.unguarded.contains(&Family::of(network.addr()));
            let is_new = !self.observed.routes.has(network);
            if self.plan.guarded_networks.contains(network) && unguarded {
                self.applied.fail(Step::route(Action::Add, route), skipped::not_without_guard(network));
            } else if is_new && *network == Network::from(network.addr()) && self.unserved.contains(&network.addr()) {
                self.applied.fail(Step::route(Action::Add, route), skipped::bound_too_early(network.addr()));
            } else {
                possible.push(*route);
            }
        }
        let failed = routes::add(RouteOwner::Ipvs, &possible, ports, &mut self.applied);
        let (refused, done): (Vec<LocalRoute>, Vec<LocalRoute>) =
            possible.into_iter().partition(|route| failed.contains(&route.network));
        for route in done {
            self.observed.routes.insert(route.network, route.source);
        }
        let without: Vec<LocalRoute> =
            refused.iter().filter(|of| of.source.is_some()).map(|of| LocalRoute::new(of.network)).collect();
        if without.is_empty() {
            return;
        }
        let mut again = Applied::default();
        let failed = routes::add(RouteOwner::Ipvs, &without, ports, &mut again);
        for route in without.iter().filter(|route| !failed.contains(&route.network)) {
            self.observed.routes.insert(route.network, None);
        }
    }

    pub(super) fn delete_routes(&mut self, routes: &[LocalRoute], ports: &mut Ports<'_>) {
        let mut going: Vec<Network> = Vec::with_capacity(routes.len());
        for route in routes {
            let network = &route.network;
            let bound = |address: &IpAddr| {
                self.observed.addresses.contains(address) || self.observed.routes.cover(*address, Some(network))
            };
            let why = if self.needs.any_in(network) {
                skipped::needed()
            } else if let Some(address) = self.wanted.addresses_in(network).find(|address| !bound(address)) {
                skipped::not_unbound(address)
            } else {
                going.push(*network);
                continue;
            };
            self.applied.fail(Step::route(Action::Delete, route), why);
        }
        let failed = routes::delete(RouteOwner::Ipvs, &going, ports, &mut self.applied);
        for network in going.iter().filter(|network| !failed.contains(*network)) {
            self.observed.routes.remove(network);
        }
    }
}

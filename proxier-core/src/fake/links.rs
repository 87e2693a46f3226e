//! Interfaces with their addresses, and local routes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::net::Network;
use crate::ports::{ItemFailures, LocalNetworks, LocalRoute, PortError, PortErrorKind, Result, RouteOwner};
use crate::sketch::{Interfaces, RoutesOnPaper};

/// Interfaces and the routes whose sources are addresses of them. An IPv4 route is removed when the host loses its
/// source, as in kernels whose `fib_sync_down_addr` (net/ipv4/fib_semantics.c) handles all tables. IPv6 only handles
/// routes of the address's device (net/ipv6/route.c, `fib6_remove_prefsrc`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LinksAndRoutes {
    interfaces: Interfaces,
    pub(super) routes: RoutesOnPaper,
}

impl LinksAndRoutes {
    pub(super) fn interfaces(&self) -> &Interfaces {
        &self.interfaces
    }

    /// Changes interfaces, and removes the routes that lose their source by it.
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut Interfaces) -> T) -> T {
        let answer = change(&mut self.interfaces);
        let LinksAndRoutes { interfaces, routes } = self;
        routes.0.retain(|_, source| source.is_none_or(|source| source.is_ipv6() || is_here(interfaces, &source)));
        answer
    }
}

fn is_here(interfaces: &Interfaces, address: &IpAddr) -> bool {
    interfaces.by_name.values().any(|interface| interface.addresses.contains(address))
}

impl LocalNetworks for LinksAndRoutes {
    fn networks(&mut self, owner: RouteOwner) -> Result<BTreeMap<Network, Option<IpAddr>>> {
        self.routes.networks(owner)
    }

    fn add(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures {
        let mut failures = ItemFailures::new();
        for (index, route) in routes.iter().enumerate() {
            match route.source.filter(|source| !is_here(&self.interfaces, source)) {
                Some(source) => {
                    let message = format!("adding {route}: {source} is no address of this host");
                    failures.insert(index, PortError::new(PortErrorKind::Invalid, message));
                }
                None => failures.extend(self.routes.add(owner, &[*route])),
            }
        }
        failures
    }

    fn delete(&mut self, owner: RouteOwner, networks: &[Network]) -> ItemFailures {
        self.routes.delete(owner, networks)
    }
}

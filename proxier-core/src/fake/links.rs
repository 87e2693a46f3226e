//! Interfaces, their addresses, and local routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::ports::{
    ItemFailure, ItemFailures, LocalNetworks, LocalRoute, PortError, PortErrorKind, Result, RouteOwner,
};
use crate::sketch::RoutesOnPaper;
use crate::snapshot::HostAddresses;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Interface {
    dummy: bool,
    addresses: Vec<IpAddr>,
}

/// The interfaces of a namespace, with the rules of net/core/rtnetlink.c, net/ipv4/devinet.c and net/ipv6/addrconf.c. A
/// device has an address at most once, several devices may have the same one, and a device's addresses are removed with
/// it. An IPv4 route is removed when the host loses its source, as in kernels whose `fib_sync_down_addr`
/// (net/ipv4/fib_semantics.c) handles all tables. IPv6 only handles routes of the address's device (net/ipv6/route.c,
/// `fib6_remove_prefsrc`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interfaces {
    by_name: BTreeMap<String, Interface>,
    pub(super) gateways: BTreeSet<IpAddr>,
    pub(super) routes: RoutesOnPaper,
    pub(super) has_dummy: bool,
    pub(super) has_ipv6: bool,
}

/// Longest name, in bytes (`IFNAMSIZ` without the NUL).
const LONGEST_NAME: usize = 15;

impl Default for Interfaces {
    fn default() -> Self {
        let addresses = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from(std::net::Ipv6Addr::LOCALHOST)];
        let lo = Interface { dummy: false, addresses };
        Interfaces {
            by_name: [("lo".to_owned(), lo)].into(),
            gateways: BTreeSet::new(),
            routes: RoutesOnPaper::default(),
            has_dummy: true,
            has_ipv6: true,
        }
    }
}

impl Interfaces {
    /// Gives an interface other than the dummy device exactly these addresses, creating it if necessary.
    pub(super) fn set(&mut self, name: &str, addresses: &[IpAddr]) {
        self.by_name.entry(name.to_owned()).or_default().addresses = addresses.to_vec();
        self.lose_sources();
    }

    pub(super) fn remove(&mut self, name: &str) -> bool {
        let removed = self.by_name.remove(name).is_some();
        self.lose_sources();
        removed
    }

    fn is_here(&self, address: &IpAddr) -> bool {
        self.by_name.values().any(|interface| interface.addresses.contains(address))
    }

    fn lose_sources(&mut self) {
        let mut routes = std::mem::take(&mut self.routes);
        routes.0.retain(|_, source| source.is_none_or(|source| source.is_ipv6() || self.is_here(&source)));
        self.routes = routes;
    }

    pub(super) fn add_routes(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures {
        let mut failures = Vec::new();
        for (index, route) in routes.iter().enumerate() {
            match route.source.filter(|source| !self.is_here(source)) {
                Some(source) => {
                    let message = format!("adding {route}: {source} is no address of this host");
                    failures.push(ItemFailure { index, error: PortError::new(PortErrorKind::Invalid, message) });
                }
                None => failures.extend(self.routes.add(owner, &[*route])),
            }
        }
        failures
    }

    pub(super) fn has(&self, name: &str) -> Result<bool> {
        match self.by_name.get(name) {
            Some(Interface { dummy: false, .. }) => {
                let message = format!("looking for dummy device {name}: something else has this name");
                Err(PortError::new(PortErrorKind::Invalid, message))
            }
            there => Ok(there.is_some()),
        }
    }

    pub(super) fn create(&mut self, name: &str) -> Result<()> {
        if name.is_empty() || name.len() > LONGEST_NAME || name.contains(['/', ':', ' ']) || name == "." || name == ".."
        {
            return Err(PortError::new(PortErrorKind::Invalid, format!("creating device {name:?}: impossible name")));
        }
        let refused = |kind, why| Err(PortError::new(kind, format!("creating device {name}: {why}")));
        match self.by_name.get(name) {
            Some(Interface { dummy: true, .. }) => Ok(()),
            Some(_) => refused(PortErrorKind::Invalid, "something else has this name and is not a dummy device"),
            None if !self.has_dummy => refused(PortErrorKind::Unavailable, "this kernel has no dummy devices"),
            None => {
                self.by_name.insert(name.to_owned(), Interface { dummy: true, addresses: Vec::new() });
                Ok(())
            }
        }
    }

    pub(super) fn delete(&mut self, name: &str) -> Result<()> {
        match self.by_name.get(name) {
            None => Ok(()),
            Some(Interface { dummy: true, .. }) => {
                self.by_name.remove(name);
                self.lose_sources();
                Ok(())
            }
            Some(_) => {
                let message = format!("deleting device {name}: it is not a dummy device");
                Err(PortError::new(PortErrorKind::Invalid, message))
            }
        }
    }

    pub(super) fn addresses(&self) -> HostAddresses {
        let all = self.by_name.iter();
        HostAddresses { interfaces: all.map(|(name, of)| (name.clone(), of.addresses.clone())).collect() }
    }

    pub(super) fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        let has_ipv6 = self.has_ipv6;
        let mut interface = self.by_name.get_mut(device);
        let mut bind = |address: IpAddr| {
            let refused = |kind, why| Err(PortError::new(kind, format!("adding {address} to {device}: {why}")));
            let Some(interface) = &mut interface else {
                return refused(PortErrorKind::NotFound, "there is no such device");
            };
            if address.is_ipv6() && !has_ipv6 {
                return refused(PortErrorKind::Unavailable, "this kernel has no IPv6");
            }
            let impossible = address.is_multicast() || address.is_unspecified() || address.is_loopback();
            if address.is_ipv6() && impossible {
                return refused(PortErrorKind::Invalid, "the kernel refuses the address");
            }
            if address.is_unspecified() {
                // IPv4: accepted and ignored (`__inet_insert_ifa`).
                return Ok(());
            }
            if !interface.addresses.contains(&address) {
                interface.addresses.push(address);
            }
            Ok(())
        };
        let outcomes = addresses.iter().enumerate().map(|(index, address)| (index, bind(*address)));
        outcomes.filter_map(|(index, outcome)| outcome.err().map(|error| ItemFailure { index, error })).collect()
    }

    pub(super) fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        if let Some(interface) = self.by_name.get_mut(device) {
            interface.addresses.retain(|address| !addresses.contains(address));
        }
        self.lose_sources();
        Vec::new()
    }
}

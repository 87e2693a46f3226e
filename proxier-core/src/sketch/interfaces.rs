//! Interfaces and their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::ports::{ItemFailures, Links, PortError, PortErrorKind, Result};
use crate::snapshot::HostAddresses;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) dummy: bool,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The interfaces of a namespace, with the rules of net/core/rtnetlink.c, net/ipv4/devinet.c and net/ipv6/addrconf.c. A
/// device has an address at most once, several devices may have the same one, and a device's addresses are removed with
/// it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interfaces {
    pub(crate) by_name: BTreeMap<String, Interface>,
    pub(crate) gateways: BTreeSet<IpAddr>,
    pub(crate) has_dummy: bool,
    pub(crate) has_ipv6: bool,
}

/// Longest name, in bytes (`IFNAMSIZ` without the NUL).
const LONGEST_NAME: usize = 15;

impl Default for Interfaces {
    fn default() -> Self {
        let addresses = vec![IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        let lo = Interface { dummy: false, addresses };
        Interfaces {
            by_name: [("lo".to_owned(), lo)].into(),
            gateways: BTreeSet::new(),
            has_dummy: true,
            has_ipv6: true,
        }
    }
}

impl Interfaces {
    /// The addresses of every interface, including interfaces without any.
    pub(crate) fn all(&self) -> BTreeMap<String, Vec<IpAddr>> {
        self.by_name.iter().map(|(name, of)| (name.clone(), of.addresses.clone())).collect()
    }
}

impl Links for Interfaces {
    fn has_device(&mut self, name: &str) -> Result<bool> {
        match self.by_name.get(name) {
            Some(Interface { dummy: false, .. }) => {
                let message = format!("looking for dummy device {name}: something else has this name");
                Err(PortError::new(PortErrorKind::Invalid, message))
            }
            there => Ok(there.is_some()),
        }
    }

    fn create_device(&mut self, name: &str) -> Result<()> {
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

    fn delete_device(&mut self, name: &str) -> Result<()> {
        if self.by_name.get(name).is_some_and(|of| !of.dummy) {
            let message = format!("deleting device {name}: it is not a dummy device");
            return Err(PortError::new(PortErrorKind::Invalid, message));
        }
        self.by_name.remove(name);
        Ok(())
    }

    fn addresses(&mut self) -> Result<HostAddresses> {
        Ok(HostAddresses { interfaces: self.all() })
    }

    fn gateways(&mut self) -> Result<BTreeSet<IpAddr>> {
        Ok(self.gateways.clone())
    }

    fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
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
        outcomes.filter_map(|(index, outcome)| Some((index, outcome.err()?))).collect()
    }

    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        if let Some(interface) = self.by_name.get_mut(device) {
            interface.addresses.retain(|address| !addresses.contains(address));
        }
        ItemFailures::new()
    }
}

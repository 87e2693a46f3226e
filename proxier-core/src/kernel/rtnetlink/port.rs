//! The port for the dummy device and its addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_batch::{Connection, Errno, Error};

use super::address::AssignedAddress;
use super::link::Link;
use super::{address, kind_of, link, open, route, with_advice};
use crate::kernel::error::all;
use crate::kernel::lazy::Lazy;
use crate::pack::Gather as _;
use crate::ports::{ItemFailures, Links, PortError, PortErrorKind, Result};
use crate::snapshot::HostAddresses;

/// Manages devices and their addresses over rtnetlink.
///
/// Sends many addresses at once. What takes time is the kernel's own work: it searches all addresses of the device for
/// each one added or deleted. IPv6 addresses get no prefix route in addition to the local one (`noprefixroute`): nothing
/// needs it, and it makes the kernel take two to three times as long to delete many.
#[doc(hidden)]
#[derive(Debug)]
pub struct LinksPort {
    connection: Lazy<Connection, Error>,
}

/// How often devices and addresses are read until both match.
const ATTEMPTS: usize = 8;

impl Default for LinksPort {
    /// Opens a socket at first use, in the calling thread's network namespace.
    fn default() -> Self {
        LinksPort { connection: Lazy::new(open) }
    }
}

impl LinksPort {
    /// Opens the socket now.
    pub fn open(&mut self) -> Result<()> {
        self.connection.call("opening rtnetlink", |_| Ok(()))
    }

    fn find(&mut self, name: &str) -> Result<Option<Link>> {
        self.connection.call(format_args!("looking device {name} up"), |connection| link::get(connection, name))
    }

    /// Deletes IPv6 addresses that another program added with another prefix length.
    fn unbind_by_prefix(&mut self, device: u32, addresses: &[IpAddr]) -> Result<()> {
        self.connection.call("deleting addresses", |connection| {
            let ours = |there: &AssignedAddress| there.device == device && addresses.contains(&there.address);
            let there = address::list(connection)?.into_iter().filter(ours);
            let there: Vec<_> = there.map(|there| (there.address, there.prefix)).collect();
            address::delete(connection, device, &there).stopped.map_or(Ok(()), Err)
        })
    }
}

/// Maps an error of adding an address; `None`: the address exists.
fn kind_of_adding(errno: Errno) -> Option<PortErrorKind> {
    use nix::errno::Errno as E;
    match E::from_raw(errno.0) {
        E::EEXIST => None,
        // No device can have such an address: multicast, loopback (net/ipv6/addrconf.c, `ipv6_add_addr`).
        E::EADDRNOTAVAIL => Some(PortErrorKind::Invalid),
        _ => Some(kind_of(errno)),
    }
}

/// The error if a device with our name is not a dummy device.
fn taken(doing: &str, link: &Link) -> PortError {
    let kind = link.kind.as_deref().unwrap_or("no virtual device");
    let message = format!("{doing}: something else has this name ({kind}); rename or delete it");
    PortError::new(PortErrorKind::Invalid, message)
}

impl Links for LinksPort {
    fn has_device(&mut self, name: &str) -> Result<bool> {
        match self.find(name)? {
            Some(link) if link.is_dummy() => Ok(true),
            Some(link) => Err(taken(&format!("looking for dummy device {name}"), &link)),
            None => Ok(false),
        }
    }

    fn is_bridge(&mut self, name: &str) -> bool {
        self.find(name).is_ok_and(|link| link.is_some_and(|link| link.kind.as_deref() == Some("bridge")))
    }

    fn create_device(&mut self, name: &str) -> Result<()> {
        let doing = format!("creating dummy device {name}");
        match self.connection.call(&doing, |connection| link::create_dummy(connection, name)) {
            Err(error) if error.kind() == PortErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == PortErrorKind::Unavailable => {
                let message = format!("{error}; load its module with `modprobe dummy`");
                return Err(PortError::new(PortErrorKind::Unavailable, message));
            }
            outcome => return outcome,
        }
        match self.find(name)? {
            Some(link) if link.is_dummy() => Ok(()),
            Some(link) => Err(taken(&doing, &link)),
            None => Err(PortError::new(PortErrorKind::Busy, format!("{doing}: it appears and disappears"))),
        }
    }

    fn delete_device(&mut self, name: &str) -> Result<()> {
        let Some(link) = self.find(name)? else { return Ok(()) };
        let doing = format!("deleting device {name}");
        if !link.is_dummy() {
            return Err(PortError::new(PortErrorKind::Invalid, format!("{doing}: it is not a dummy device")));
        }
        match self.connection.call(&doing, |connection| link::delete(connection, link.index)) {
            Err(error) if error.kind() == PortErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    fn addresses(&mut self) -> Result<HostAddresses> {
        let doing = "listing the addresses of this host";
        for _ in 0..ATTEMPTS {
            let (links, addresses) = self.connection.call(doing, |connection| {
                let links = link::list(connection)?;
                Ok((links, address::list(connection)?))
            })?;
            let mut found: BTreeMap<u32, Vec<IpAddr>> = links.iter().map(|link| (link.index, Vec::new())).gather();
            let known = addresses.iter().all(|there| match found.get_mut(&there.device) {
                Some(addresses) => {
                    addresses.push(there.address);
                    true
                }
                None => false,
            });
            // A device appeared between the two reads: read both again.
            if known {
                let named = links.into_iter().map(|link| (link.name, found.remove(&link.index).unwrap_or_default()));
                return Ok(HostAddresses { interfaces: named.gather() });
            }
        }
        Err(PortError::new(PortErrorKind::Busy, format!("{doing}: devices appeared and disappeared meanwhile")))
    }

    fn gateways(&mut self) -> Result<BTreeSet<IpAddr>> {
        self.connection.call("listing the default routes of this host", route::gateways)
    }

    fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        if addresses.is_empty() {
            return ItemFailures::new();
        }
        let doing = |index: usize| {
            addresses.get(index).map_or_else(String::new, |address| format!("adding address {address} to {device}"))
        };
        let index = match self.find(device) {
            Ok(Some(link)) => link.index,
            Ok(None) => {
                let message = format!("adding addresses to {device}: there is no such device");
                return all(addresses.len(), &PortError::new(PortErrorKind::NotFound, message));
            }
            Err(error) => return all(addresses.len(), &error),
        };
        let add = |connection: &mut Connection| address::add(connection, index, addresses);
        with_advice(self.connection.batch(addresses.len(), add, doing, kind_of_adding), device)
    }

    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        if addresses.is_empty() {
            return ItemFailures::new();
        }
        let doing = |index: usize| {
            addresses.get(index).map_or_else(String::new, |address| format!("deleting address {address} of {device}"))
        };
        let index = match self.find(device) {
            Ok(Some(link)) => link.index,
            // A device that does not exist has no addresses.
            Ok(None) => return ItemFailures::new(),
            Err(error) => return all(addresses.len(), &error),
        };
        let as_ours = |address: &IpAddr| (*address, if address.is_ipv4() { 32 } else { 128 });
        let wanted: Vec<(IpAddr, u8)> = addresses.iter().map(as_ours).collect();
        let delete = |connection: &mut Connection| address::delete(connection, index, &wanted);
        let mut failures = self.connection.batch(addresses.len(), delete, doing, |errno| Some(kind_of(errno)));
        // It does not exist, or another program added this IPv6 address with another prefix length.
        let absent = |error: &PortError| error.kind() == PortErrorKind::NotFound;
        let odd = failures.iter().filter(|(_, error)| absent(error)).filter_map(|(index, _)| addresses.get(*index));
        let odd: Vec<IpAddr> = odd.copied().filter(IpAddr::is_ipv6).collect();
        failures.retain(|_, error| !absent(error));
        if !odd.is_empty()
            && let Err(error) = self.unbind_by_prefix(index, &odd)
        {
            let place = |address| addresses.iter().position(|wanted| *wanted == address);
            let failed = odd.into_iter().filter_map(place);
            failures.extend(failed.map(|index| (index, error.clone())));
        }
        failures
    }
}

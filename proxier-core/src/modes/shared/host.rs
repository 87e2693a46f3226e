//! Addresses of this host.

use std::net::IpAddr;

use crate::config::KernelNames;
use crate::plan::report::Unread;
use crate::ports::Links;
use crate::snapshot::HostAddresses;

/// Reads the addresses of this host, the dummy device's among them.
///
/// # Errors
/// When the kernel could not list them.
pub(crate) fn read_host(links: &mut dyn Links) -> Result<HostAddresses, Unread> {
    links.addresses().map_err(|error| Unread::new("addresses", error))
}

/// The addresses of interfaces other than proxies' devices.
pub fn other_addresses<'a>(host: &'a HostAddresses, names: &'a KernelNames) -> impl Iterator<Item = IpAddr> + 'a {
    let others = host.interfaces.iter().filter(|(interface, _)| !names.is_of_a_proxy(interface));
    others.flat_map(|(_, addresses)| addresses).map(IpAddr::to_canonical)
}

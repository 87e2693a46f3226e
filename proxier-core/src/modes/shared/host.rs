//! Addresses of this host.

use std::net::IpAddr;

use crate::config::Config;
use crate::ports::Links;
use crate::reconciler::report::Unread;
use crate::snapshot::HostAddresses;

/// Reads the addresses of this host, the dummy device's among them.
///
/// # Errors
/// When the kernel could not list them.
pub fn read_host(links: &mut dyn Links) -> Result<HostAddresses, Unread> {
    links.addresses().map_err(|error| Unread::new("addresses", error))
}

/// The addresses of interfaces other than the dummy device.
pub fn other_addresses(host: &HostAddresses) -> impl Iterator<Item = IpAddr> {
    let others = host.interfaces.iter().filter(|(interface, _)| *interface != Config::DUMMY_DEVICE);
    others.flat_map(|(_, addresses)| addresses).map(IpAddr::to_canonical)
}

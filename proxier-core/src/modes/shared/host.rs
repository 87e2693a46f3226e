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
///
/// ```
/// use proxier_core::config::KernelNames;
/// use proxier_core::fake::FakeKernel;
/// use proxier_core::modes::other_addresses;
///
/// let mut kernel = FakeKernel::new();
/// kernel.set_interface("eth0", &["192.0.2.10".parse()?]);
/// kernel.ports().links.create_device("kube-ipvs0")?;
/// kernel.ports().links.bind("kube-ipvs0", &["10.96.0.10".parse()?]);
/// let host = kernel.ports().links.addresses()?;
/// let names = KernelNames::default();
/// let addresses: Vec<String> = other_addresses(&host, &names).map(|address| address.to_string()).collect();
/// assert!(addresses.contains(&"192.0.2.10".to_owned()) && !addresses.contains(&"10.96.0.10".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn other_addresses<'a>(host: &'a HostAddresses, names: &'a KernelNames) -> impl Iterator<Item = IpAddr> + 'a {
    let others = host.interfaces.iter().filter(|(interface, _)| !names.is_of_a_proxy(interface));
    others.flat_map(|(_, addresses)| addresses).map(IpAddr::to_canonical)
}

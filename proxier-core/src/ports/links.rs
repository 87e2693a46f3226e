//! Devices, addresses and routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{ItemFailures, PortError};
use crate::snapshot::HostAddresses;

/// The dummy device, and the addresses and gateways of this host.
///
/// ```
/// use proxier_core::fake::FakeKernel;
///
/// let mut kernel = FakeKernel::new();
/// kernel.set_interface("eth0", &["192.0.2.10".parse()?]);
/// kernel.set_gateways(["192.0.2.1".parse()?]);
/// let port = kernel.ports().links;
/// assert_eq!(port.gateways()?, ["192.0.2.1".parse()?].into());
///
/// assert!(!port.has_device("kube-ipvs0")?);
/// port.create_device("kube-ipvs0")?;
/// let vip = ["10.96.0.10".parse()?];
/// assert_eq!(port.bind("kube-ipvs0", &vip), []);
/// assert_eq!(port.bind("kube-ipvs0", &vip), []); // what is there counts as added
/// assert_eq!(port.addresses()?.interfaces["kube-ipvs0"], vip);
/// assert_eq!(port.unbind("kube-ipvs0", &vip), []);
/// port.delete_device("kube-ipvs0")?;
/// // A device of that name that is no dummy device is left alone.
/// assert!(port.delete_device("eth0").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Links {
    /// Whether the dummy device exists.
    ///
    /// # Errors
    /// [`Invalid`](super::PortErrorKind::Invalid) when a link of another type has its name: the addresses of that are foreign.
    fn has_device(&mut self, name: &str) -> Result<bool, PortError>;

    /// Creates the dummy device; done if it exists. It stays down: its addresses count all the same.
    ///
    /// # Errors
    /// [`Invalid`](super::PortErrorKind::Invalid) when something else has its name, [`Unavailable`](super::PortErrorKind::Unavailable) without the module.
    fn create_device(&mut self, name: &str) -> Result<(), PortError>;

    /// Deletes the dummy device with its addresses; done if it does not exist.
    ///
    /// # Errors
    /// [`Invalid`](super::PortErrorKind::Invalid) when the link of this name is no dummy device.
    fn delete_device(&mut self, name: &str) -> Result<(), PortError>;

    /// The addresses of every interface, an interface without any included.
    ///
    /// # Errors
    /// When they could not be read as a whole.
    fn addresses(&mut self) -> Result<HostAddresses, PortError>;

    /// The gateways of the default routes of both families: of routes for an eighth of all addresses or more.
    ///
    /// # Errors
    /// When the routes could not be read as a whole.
    fn gateways(&mut self) -> Result<BTreeSet<IpAddr>, PortError>;

    /// Adds addresses to the device, as `/32` or `/128`; one that is there counts as added.
    fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures;

    /// Deletes addresses from the device; one that is not there counts as deleted.
    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures;
}

//! Devices, addresses and routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{ItemFailures, PortError};
use crate::snapshot::HostAddresses;

/// The dummy device, and the addresses and gateways of this host.
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

    /// Whether a device is a bridge. Default no; so for a device that is missing or cannot be read.
    fn is_bridge(&mut self, name: &str) -> bool {
        let _ = name;
        false
    }

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

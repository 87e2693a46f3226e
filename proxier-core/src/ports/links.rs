//! Devices, addresses and routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{ItemFailures, PortError};
use crate::snapshot::HostAddresses;

/// The dummy device, and this host's addresses and gateways.
pub trait Links {
    /// Whether the dummy device exists.
    ///
    /// # Errors
    /// [`Invalid`](super::PortErrorKind::Invalid) if a device of another type has its name; its addresses belong to
    /// another program.
    fn has_device(&mut self, name: &str) -> Result<bool, PortError>;

    /// Creates the dummy device, unless it exists. It stays down, which does not affect its addresses.
    ///
    /// # Errors
    /// [`Invalid`](super::PortErrorKind::Invalid) if another device has its name,
    /// [`Unavailable`](super::PortErrorKind::Unavailable) without the module.
    fn create_device(&mut self, name: &str) -> Result<(), PortError>;

    /// Deletes the dummy device with its addresses; not an error if it does not exist.
    ///
    /// # Errors
    /// [`Invalid`](super::PortErrorKind::Invalid) if the device of this name is not a dummy device.
    fn delete_device(&mut self, name: &str) -> Result<(), PortError>;

    /// Reads the addresses of every interface, including interfaces without any.
    ///
    /// # Errors
    /// If they could not be read completely.
    fn addresses(&mut self) -> Result<HostAddresses, PortError>;

    /// Whether a device is a bridge. `false` by default, and for a device that is missing or cannot be read.
    fn is_bridge(&mut self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Reads the gateways of the default routes of both families: of routes for at least an eighth of all addresses.
    ///
    /// # Errors
    /// If the routes could not be read completely.
    fn gateways(&mut self) -> Result<BTreeSet<IpAddr>, PortError>;

    /// Adds addresses to the device, as `/32` or `/128`. An existing one counts as added.
    fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures;

    /// Deletes addresses from the device. A missing one counts as deleted.
    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures;
}

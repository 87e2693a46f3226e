//! Routes that make networks local.

use std::collections::BTreeSet;

use super::{ItemFailures, PortError};
use crate::net::Network;

/// Local routes of our own: `ip route add local 10.96.0.0/12 dev lo proto 118`. Packets to every address of such a network
/// end on this host, without any address being bound.
pub trait LocalNetworks {
    /// Those of our own; routes that others made are not listed.
    ///
    /// # Errors
    /// When the routes could not be read as a whole.
    fn networks(&mut self) -> Result<BTreeSet<Network>, PortError>;

    /// Makes networks local; one that is already, whoever did it, counts as done.
    fn add(&mut self, networks: &[Network]) -> ItemFailures;

    /// Deletes routes of our own; one that is not there counts as deleted.
    fn delete(&mut self, networks: &[Network]) -> ItemFailures;
}

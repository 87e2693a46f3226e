//! Listening for Services within this process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::PortError;
use crate::modes::userspace::{Listener, Settings};
use crate::net::FrontendKey;

/// What this process listens on for Services, and where that leads. It ends with the process.
pub trait Relays {
    /// What is listened on now.
    fn listeners(&mut self) -> BTreeMap<FrontendKey, Listener>;

    /// Sets what holds for all listeners.
    ///
    /// # Errors
    /// When this process cannot relay at all: no thread, no descriptor.
    fn configure(&mut self, settings: &Settings) -> Result<(), PortError>;

    /// Listens, or changes where a listener leads.
    ///
    /// # Errors
    /// [`AlreadyExists`](super::PortErrorKind::AlreadyExists) when another program has the port. Nothing is listened on there then.
    fn serve(&mut self, listener: &Listener) -> Result<(), PortError>;

    /// Stops listening; done if nothing is listened on there. Connections may go on for a while.
    fn close(&mut self, key: &FrontendKey);

    /// Addresses of closed listeners that still have connections.
    fn busy(&mut self) -> BTreeSet<IpAddr>;

    /// How many endpoints are gone and may still have connections.
    fn leaving(&mut self) -> usize;

    /// What people should know since the last call: limits that were reached, endpoints that do not answer.
    fn notices(&mut self) -> Vec<String>;
}

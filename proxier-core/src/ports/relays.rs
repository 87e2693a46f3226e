//! Listening for Services within this process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::PortError;
use super::listener::{Listener, Settings};
use crate::net::FrontendKey;

/// Listeners of this process for Services, and the endpoints to which they lead. They end with the process.
pub trait Relays {
    /// The present listeners, by Frontend.
    fn listeners(&mut self) -> BTreeMap<FrontendKey, Listener>;

    /// Frontends on which another process, the node's proxy, listens, for a plan of the remaining work; `None` when there is no such
    /// process. Endpoints are not known.
    fn elsewhere(&mut self) -> Option<BTreeSet<FrontendKey>> {
        None
    }

    /// Applies settings to all listeners.
    ///
    /// # Errors
    /// When this process cannot relay at all: no thread, no descriptor.
    fn configure(&mut self, settings: &Settings) -> Result<(), PortError>;

    /// Listens, or changes where a listener leads.
    ///
    /// # Errors
    /// [`AlreadyExists`](super::PortErrorKind::AlreadyExists) when another program has the port. Nothing is listened on there then.
    fn serve(&mut self, listener: &Listener) -> Result<(), PortError>;

    /// Stops listening; done if nothing is listened on there. Connections go on until either side closes them.
    fn close(&mut self, key: &FrontendKey);

    /// Addresses of closed listeners that still have connections.
    fn busy(&mut self) -> BTreeSet<IpAddr>;

    /// Connections and UDP flows that were begun, by listener: since it was opened. None where nothing counts.
    fn begun(&mut self) -> BTreeMap<FrontendKey, u64> {
        BTreeMap::new()
    }

    /// Notices for people since the last call: limits that were reached, endpoints that do not answer.
    fn notices(&mut self) -> Vec<String>;
}

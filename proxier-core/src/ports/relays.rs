//! Listeners of this process for Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::PortError;
use super::listener::{Listener, Settings};
use crate::net::FrontendKey;

/// Listeners of this process for Services, with their endpoints. They end with the process.
pub trait Relays {
    /// The current listeners, by Frontend.
    fn listeners(&mut self) -> BTreeMap<FrontendKey, Listener>;

    /// Frontends on which another process, the node's proxy, listens, for a plan of the remaining work; `None` without
    /// such a process. Their endpoints are unknown.
    fn elsewhere(&mut self) -> Option<BTreeSet<FrontendKey>> {
        None
    }

    /// Applies settings to all listeners.
    ///
    /// # Errors
    /// If this process cannot relay at all: no thread, no descriptor.
    fn configure(&mut self, settings: &Settings) -> Result<(), PortError>;

    /// Listens, or changes the endpoints of a listener.
    ///
    /// # Errors
    /// [`AlreadyExists`](super::PortErrorKind::AlreadyExists) if another program has the port. Nothing listens there
    /// then.
    fn serve(&mut self, listener: &Listener) -> Result<(), PortError>;

    /// Stops listening; not an error if nothing listens there. Connections continue until either side closes them.
    fn close(&mut self, key: &FrontendKey);

    /// Addresses of closed listeners that still have connections.
    fn busy(&mut self) -> BTreeSet<IpAddr>;

    /// Connections and UDP flows started, by listener, since it was opened. Empty if nothing counts them.
    fn begun(&mut self) -> BTreeMap<FrontendKey, u64> {
        BTreeMap::new()
    }

    /// Messages for people since the last call: limits that were reached, endpoints that do not answer.
    fn notices(&mut self) -> Vec<String>;
}

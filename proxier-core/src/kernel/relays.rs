//! Listeners of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use super::relay::Relay;
use crate::net::FrontendKey;
use crate::pack::Gather as _;
use crate::ports::{Listener, Relays, Result, Settings};

/// A [`Relay`] that starts at first use. Connections end when this is dropped; [`RelaysPort::finish`] lets them finish
/// first.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct RelaysPort {
    settings: Settings,
    relay: Option<Relay>,
    elsewhere: Option<BTreeSet<FrontendKey>>,
}

impl RelaysPort {
    fn relay(&mut self) -> Result<&mut Relay> {
        let relay = match self.relay.take() {
            Some(relay) => relay,
            None => Relay::start(self.settings.clone())?,
        };
        Ok(self.relay.insert(relay))
    }

    /// Sets the listeners of another process, the node's proxy, which plans here then omit.
    pub fn set_elsewhere(&mut self, listening: BTreeSet<FrontendKey>) {
        self.elsewhere = Some(listening);
    }

    /// Stops listening, and waits at most `patience` for all connections to end. Returns the number of connections
    /// left.
    pub fn finish(&mut self, patience: Duration) -> usize {
        self.relay.as_mut().map_or(0, |relay| relay.finish(patience))
    }
}

impl Relays for RelaysPort {
    fn listeners(&mut self) -> BTreeMap<FrontendKey, Listener> {
        let listeners = self.relay.iter().flat_map(Relay::listeners);
        listeners.map(|listener| (listener.key, listener.clone())).gather()
    }

    fn elsewhere(&mut self) -> Option<BTreeSet<FrontendKey>> {
        self.elsewhere.clone()
    }

    fn configure(&mut self, settings: &Settings) -> Result<()> {
        self.settings = settings.clone();
        self.relay()?.configure(settings.clone());
        Ok(())
    }

    fn serve(&mut self, listener: &Listener) -> Result<()> {
        self.relay()?.serve(listener)
    }

    fn close(&mut self, key: &FrontendKey) {
        if let Some(relay) = &mut self.relay {
            relay.close(key);
        }
    }

    fn busy(&mut self) -> BTreeSet<IpAddr> {
        self.relay.as_mut().map(Relay::busy).unwrap_or_default()
    }

    fn begun(&mut self) -> BTreeMap<FrontendKey, u64> {
        self.relay.iter().flat_map(Relay::begun).gather()
    }

    fn notices(&mut self) -> Vec<String> {
        self.relay.as_ref().map(Relay::notices).unwrap_or_default()
    }
}

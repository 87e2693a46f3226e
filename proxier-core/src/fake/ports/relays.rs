//! Listeners in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::gate::Gate;
use crate::fake::control::Call;
use crate::fake::shared::Shared;
use crate::net::FrontendKey;
use crate::ports::{Listener, PortError, PortErrorKind, Relays, Settings};

/// The listeners of a process. They end with it.
#[derive(Debug, Default)]
pub(in crate::fake) struct FakeRelays {
    pub(in crate::fake) listeners: BTreeMap<FrontendKey, Listener>,
    pub(in crate::fake) settings: Settings,
    /// Ports in use by other programs.
    pub(in crate::fake) taken: BTreeSet<FrontendKey>,
    /// Addresses at which a connection continues, with or without a listener.
    pub(in crate::fake) connected: BTreeSet<IpAddr>,
}

pub(super) struct FakeRelaysPort {
    pub(super) gate: Gate,
    pub(super) relays: Shared<FakeRelays>,
}

impl Relays for FakeRelaysPort {
    fn listeners(&mut self) -> BTreeMap<FrontendKey, Listener> {
        self.relays.lock().listeners.clone()
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), PortError> {
        self.gate.call(Call::RelaysConfigure, None, || {
            self.relays.lock().settings = settings.clone();
            Ok(())
        })
    }

    fn serve(&mut self, listener: &Listener) -> Result<(), PortError> {
        self.gate.call(Call::RelaysServe, None, || {
            let mut relays = self.relays.lock();
            if relays.taken.contains(&listener.key) {
                relays.listeners.remove(&listener.key);
                let message = format!("listening on {}: another program has the port", listener.key);
                return Err(PortError::new(PortErrorKind::AlreadyExists, message));
            }
            relays.listeners.insert(listener.key, listener.clone());
            Ok(())
        })
    }

    fn close(&mut self, key: &FrontendKey) {
        self.relays.lock().listeners.remove(key);
    }

    fn busy(&mut self) -> BTreeSet<IpAddr> {
        let relays = self.relays.lock();
        let is_served = |address: &IpAddr| relays.listeners.keys().any(|key| key.address == *address);
        relays.connected.iter().copied().filter(|address| !is_served(address)).collect()
    }

    fn notices(&mut self) -> Vec<String> {
        Vec::new()
    }
}

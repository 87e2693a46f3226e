//! Listeners that [`Desired`] needs, and changes since the last pass.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::lower::lower;
use crate::modes::Refreshed;
use crate::modes::shared::routes::network_of;
use crate::net::{EndpointKey, FrontendKey, Network, Protocol};
use crate::pack::pack;
use crate::ports::Listener;
use crate::service::{Compiled, Desired, Follower, Frontend, NodeFacts};
use crate::snapshot::{ObjectKey, Store};

/// Listeners that are needed, kept up to date at O(changed Services).
///
/// Listeners are not kept: each follows from its Frontend ([`lower`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    desired: Desired,
    /// Addresses that have to be local, and how many Frontends need each.
    addresses: BTreeMap<IpAddr, usize>,
}

/// Differences from the last pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) frontends: BTreeSet<FrontendKey>,
    /// Addresses that have to be local now and had not, or the other way round.
    pub(super) addresses: BTreeSet<IpAddr>,
}

struct Following<'a> {
    addresses: &'a mut BTreeMap<IpAddr, usize>,
    changed: &'a mut Changed,
    refreshed: Refreshed,
}

/// The address that has to be made local for a Frontend.
fn virtual_address(frontend: &Frontend) -> Option<IpAddr> {
    let is_served = frontend.key.protocol != Protocol::Sctp;
    (is_served && frontend.is_virtual()).then_some(frontend.key.address)
}

impl Follower for Following<'_> {
    /// Listeners of one port take turns together, and share clients with affinity.
    fn needs_ports(&self) -> bool {
        true
    }

    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        self.refreshed.health_checks |=
            before.and_then(|old| old.health_check) != after.and_then(|new| new.health_check);
    }

    fn frontend(&mut self, before: Option<&Frontend>, after: Option<&Frontend>) {
        let Some(key) = after.or(before).map(|frontend| frontend.key) else { return };
        self.refreshed.frontends.push(key);
        self.changed.frontends.insert(key);
        // Add first, then remove, so that the count of what stays never reaches zero.
        if let Some(address) = after.and_then(virtual_address) {
            let count = self.addresses.entry(address).or_default();
            *count = count.saturating_add(1);
            self.changed.addresses.insert(address);
        }
        if let Some(address) = before.and_then(virtual_address)
            && let Entry::Occupied(mut count) = self.addresses.entry(address)
        {
            *count.get_mut() = count.get().saturating_sub(1);
            if *count.get() == 0 {
                count.remove();
            }
            self.changed.addresses.insert(address);
        }
    }
}

impl Wanted {
    /// Empty state, without Services.
    pub fn new() -> Self {
        Self::default()
    }

    /// Frontends of all Services.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Compiles these Services again, and records what differs.
    pub(super) fn refresh<'a>(
        &mut self,
        store: &Store,
        facts: &NodeFacts,
        services: impl IntoIterator<Item = &'a ObjectKey>,
        changed: &mut Changed,
    ) -> Refreshed {
        let mut following = Following { addresses: &mut self.addresses, changed, refreshed: Refreshed::default() };
        self.desired.refresh(store, facts, services, &mut following);
        following.refreshed
    }

    /// Listener at a Frontend's address and port.
    pub fn listener(&self, key: &FrontendKey) -> Option<Listener> {
        self.desired.frontend(key).and_then(lower)
    }

    /// Everything that is to be listened on, sorted by key.
    pub fn listeners(&self) -> impl Iterator<Item = Listener> {
        self.desired.frontends().filter_map(lower)
    }

    /// The endpoints of a Frontend on which this process listens itself, for which Frontend: what goes there would come back.
    pub(super) fn loops(&self, frontend: &Frontend) -> BTreeMap<EndpointKey, FrontendKey> {
        let endpoints = frontend.cluster.iter().chain(frontend.local.iter());
        let at =
            |endpoint: &EndpointKey| Some((*endpoint, self.desired.frontend_at(frontend.key.protocol, endpoint)?.key));
        endpoints.filter_map(at).collect()
    }

    /// Whether an address has to be local.
    pub(super) fn needs(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// The networks that have to be local: whole ones, and addresses outside of them one by one.
    pub(super) fn networks(&self, whole: &BTreeSet<Network>) -> BTreeSet<Network> {
        let alone = self.addresses.keys().filter_map(|address| network_of(*address, whole));
        whole.iter().copied().chain(alone).collect()
    }

    /// Reduces memory by rebuilding everything; call it after a large change.
    pub(super) fn compact(&mut self) {
        self.desired.compact();
        pack(&mut self.addresses);
    }
}

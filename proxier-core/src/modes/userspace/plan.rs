//! What userspace mode requires (listeners, and routes that make addresses local), and the plan of a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::modes::Work;
use crate::modes::shared::frontends::{count, uncount};
use crate::modes::shared::listeners::lower;
use crate::modes::shared::networks::{Unusable, network_of};
use crate::net::{EndpointKey, FrontendKey, Network, Protocol};
use crate::pack::pack;
use crate::plan::operation::Operation;
use crate::plan::step::Action;
use crate::ports::{Listener, LocalRoute, RouteOwner, Settings};
use crate::service::{Desired, Frontend};
use crate::time::Moment;

/// Plan of a pass.
#[derive(Debug, Default)]
pub(crate) struct UserspacePlan {
    /// Settings of all listeners, if they differ from the present ones.
    pub(super) configure: Option<Settings>,
    /// Listeners that are opened or changed.
    pub(super) serve: BTreeMap<FrontendKey, (Action, Listener)>,
    /// Listeners that are closed.
    pub(super) close: BTreeSet<FrontendKey>,
    /// Networks that become local.
    pub(super) add_routes: Vec<Network>,
    /// Networks that are no longer local, once no connection needs them.
    pub(super) delete_routes: Vec<Network>,
    /// The networks that are local as a whole.
    pub(super) whole: BTreeSet<Network>,
    /// Networks that cannot be local as a whole.
    pub(super) unusable: Vec<Unusable>,
    /// Frontends that the safeguard holds back.
    pub(super) held: BTreeSet<FrontendKey>,
    pub(super) now: Moment,
}

impl UserspacePlan {
    /// Listeners that are opened or changed, then routes, so that a port has its listener before packets for its
    /// address arrive here. Then listeners that are closed.
    pub(super) fn first_operations(&self) -> impl Iterator<Item = Operation<'_>> {
        let serve = self.serve.iter();
        let serve = serve.map(|(key, (action, listener))| Operation::Listener(*action, *key, Some(listener)));
        let close = self.close.iter().map(|key| Operation::Listener(Action::Delete, *key, None));
        serve.chain(self.add_routes.iter().map(|network| route(Action::Add, network))).chain(close)
    }
}

impl Work for UserspacePlan {
    fn is_empty(&self) -> bool {
        self.configure.is_none() && self.operations().next().is_none()
    }

    fn operations(&self) -> Box<dyn Iterator<Item = Operation<'_>> + '_> {
        Box::new(self.first_operations().chain(self.delete_routes.iter().map(|network| route(Action::Delete, network))))
    }
}

pub(super) fn route(action: Action, network: &Network) -> Operation<'static> {
    Operation::Route(action, RouteOwner::Userspace, LocalRoute::new(*network))
}

/// Addresses that must be local, and how many Frontends need each.
///
/// Listeners are not stored: each follows from its Frontend ([`lower`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    addresses: BTreeMap<IpAddr, usize>,
}

/// The address that must be made local for a Frontend.
fn virtual_address(frontend: &Frontend) -> Option<IpAddr> {
    let is_served = frontend.key.protocol != Protocol::Sctp;
    (is_served && frontend.is_virtual()).then_some(frontend.key.address)
}

impl Index {
    /// Applies a change of a Frontend. What stays is added before it is removed, so that its count never reaches zero.
    pub(super) fn follow(&mut self, before: Option<&Frontend>, after: Option<&Frontend>) {
        if let Some(address) = after.and_then(virtual_address) {
            count(&mut self.addresses, address);
        }
        if let Some(address) = before.and_then(virtual_address) {
            uncount(&mut self.addresses, &address);
        }
    }

    /// Whether an address must be local.
    pub(super) fn needs(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// The networks that must be local: whole ones, and single addresses outside of them.
    pub(super) fn networks(&self, whole: &BTreeSet<Network>) -> impl Iterator<Item = Network> {
        let alone = self.addresses.keys().filter_map(move |address| network_of(*address, whole));
        whole.iter().copied().chain(alone)
    }

    /// Whether a network is one of [`Index::networks`].
    pub(super) fn needs_route(&self, network: &Network, whole: &BTreeSet<Network>) -> bool {
        let address = network.addr();
        whole.contains(network) || (self.needs(address) && network_of(address, whole) == Some(*network))
    }

    /// Rebuilds everything to release memory. Call it after a large change.
    pub(super) fn compact(&mut self) {
        pack(&mut self.addresses);
    }
}

/// Listener at a Frontend's address and port.
pub(super) fn listener(desired: &Desired, key: &FrontendKey) -> Option<Listener> {
    desired.frontend(key).and_then(lower)
}

/// Desired listeners, sorted by key.
pub(super) fn listeners(desired: &Desired) -> impl Iterator<Item = Listener> {
    desired.frontends().filter_map(lower)
}

/// The endpoints of a Frontend on which this process listens itself, and for which Frontend: connections to them would
/// come back.
pub(super) fn loops(desired: &Desired, frontend: &Frontend) -> BTreeMap<EndpointKey, FrontendKey> {
    let endpoints = frontend.cluster.iter().chain(frontend.local.iter());
    let at = |endpoint: &EndpointKey| Some((*endpoint, desired.frontend_at(frontend.key.protocol, endpoint)?.key));
    endpoints.filter_map(at).collect()
}

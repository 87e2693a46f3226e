//! Plan of userspace mode: listeners, and routes that make addresses local.

use std::collections::{BTreeMap, BTreeSet};

use crate::modes::Work;
use crate::modes::shared::service_networks::Unusable;
use crate::net::{FrontendKey, Network};
use crate::plan::operation::Operation;
use crate::plan::step::Action;
use crate::ports::{Listener, LocalRoute, RouteOwner, Settings};
use crate::time::Moment;

/// Plan of a pass.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Settings of all listeners, where they differ from the present ones.
    pub(super) configure: Option<Settings>,
    /// Listeners that are opened or changed.
    pub(super) serve: BTreeMap<FrontendKey, (Action, Listener)>,
    /// Listeners that are closed.
    pub(super) close: BTreeSet<FrontendKey>,
    /// Networks that become local.
    pub(super) add_routes: Vec<Network>,
    /// Networks that are local no more, once no connection needs them.
    pub(super) delete_routes: Vec<Network>,
    /// The networks that are local as a whole.
    pub(super) whole: BTreeSet<Network>,
    /// Networks that cannot be local as a whole.
    pub(super) unusable: Vec<Unusable>,
    /// Frontends that the safeguard holds back.
    pub(super) held: BTreeSet<FrontendKey>,
    pub(super) now: Moment,
}

impl Plan {
    /// Listeners that are opened or changed, then routes; a port is listened on before its address leads here. Then listeners that are closed.
    pub(super) fn first_operations(&self) -> impl Iterator<Item = Operation<'_>> {
        let serve = self.serve.iter();
        let serve = serve.map(|(key, (action, listener))| Operation::Listener(*action, *key, Some(listener)));
        let close = self.close.iter().map(|key| Operation::Listener(Action::Delete, *key, None));
        serve.chain(self.add_routes.iter().map(|network| route(Action::Add, network))).chain(close)
    }
}

impl Work for Plan {
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

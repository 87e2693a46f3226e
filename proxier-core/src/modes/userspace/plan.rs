//! Plan of userspace mode: listeners, and routes that make addresses local.

use std::collections::{BTreeMap, BTreeSet};

use crate::modes::Work;
use crate::modes::shared::names::Names;
use crate::net::{FrontendKey, Network};
use crate::plan::step::{Action, Part, Step};
use crate::ports::{Listener, LocalRoute, Settings};

/// Plan of a pass.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
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
}

impl Work for Plan {
    fn is_empty(&self) -> bool {
        self.configure.is_none()
            && self.serve.is_empty()
            && self.close.is_empty()
            && self.add_routes.is_empty()
            && self.delete_routes.is_empty()
    }

    /// A port is listened on before its address leads here.
    fn steps<'a>(&'a self, names: &'a Names<'a>) -> Box<dyn Iterator<Item = Step> + 'a> {
        let serve = self.serve.values().map(move |(action, listener)| serve_step(*action, listener, names));
        let add = self.add_routes.iter().map(|network| route_step(Action::Add, network));
        let close = self.close.iter().map(|key| Step::new(Action::Delete, Part::Listener, key));
        let delete = self.delete_routes.iter().map(|network| route_step(Action::Delete, network));
        Box::new(serve.chain(add).chain(close).chain(delete))
    }
}

pub(super) fn serve_step(action: Action, listener: &Listener, names: &Names<'_>) -> Step {
    let everybody = listener.inside.iter().chain(listener.outside.iter());
    let endpoints = everybody.collect::<BTreeSet<_>>().len();
    Step::new(action, Part::Listener, listener.key)
        .with(format_args!("{endpoints} endpoints"))
        .of_service(names.service_of(&listener.key))
}

pub(super) fn route_step(action: Action, network: &Network) -> Step {
    Step::route(action, &LocalRoute::new(*network))
}

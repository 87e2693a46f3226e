//! Looks up the names of Services for output.

use crate::net::{EndpointKey, FrontendKey};
use crate::service::{Desired, Frontend, Roles};
use crate::snapshot::Store;

/// Looks up names of Services.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    of: Option<(&'a Store, &'a Desired)>,
}

impl<'a> Names<'a> {
    /// No names: for operations on objects that belong to no Service.
    pub(crate) const NONE: Names<'static> = Names { of: None };

    /// Looks up names of desired objects.
    pub fn new(store: &'a Store, desired: &'a Desired) -> Self {
        Names { of: Some((store, desired)) }
    }

    /// The Service and port that a Frontend is for: `namespace/name:port`, without `:port` if the port has no name.
    /// `None` if it belongs to no Service. At address 0 it is a node port's, which costs O(Frontends) to find.
    pub fn service_of(&self, key: &FrontendKey) -> Option<String> {
        let (store, desired) = self.of?;
        if key.address.is_unspecified() {
            let at = |address| FrontendKey { address, ..*key };
            let is_it = |of: &&Frontend| of.roles.contains(Roles::NODE_PORT) && of.key == at(of.key.address);
            let mut frontends = desired.frontends().filter(|of| of.key.family() == key.family());
            return frontends.find(is_it).and_then(|of| self.service_of(&of.key));
        }
        let owner = desired.owner(key)?;
        let frontend = desired.frontend(key)?;
        let ports = store.service(owner).map_or(&[][..], |service| &service.ports);
        let number = Some(frontend.key.port);
        let of = |node_port: bool| {
            ports.iter().find(|port| {
                let its = if node_port { port.node_port } else { Some(port.port) };
                port.protocol == frontend.key.protocol && its == number
            })
        };
        let port = of(frontend.roles.contains(Roles::NODE_PORT)).or_else(|| of(false));
        Some(match port.map(|port| &*port.name) {
            None | Some("") => owner.to_string(),
            Some(name) => format!("{owner}:{name}"),
        })
    }

    /// Whether a desired endpoint has weight 0 on purpose, so that it gets no new connections.
    pub(crate) fn rests(&self, key: &FrontendKey, endpoint: &EndpointKey) -> bool {
        self.of.and_then(|(_, desired)| desired.frontend(key)).is_some_and(|frontend| !frontend.takes(&[*endpoint]))
    }
}

//! Local routes: which one makes an address local, and removing those of a mode.

use std::net::IpAddr;

use crate::modes::shared::cleaned::Cleaned;
use crate::net::Network;
use crate::plan::names::Names;
use crate::plan::operation::Operation;
use crate::plan::step::Action;
use crate::ports::{LocalRoute, Ports, RouteOwner};

/// The route that an address needs of its own: none within the networks that are local as a whole.
pub(crate) fn network_of<'a>(address: IpAddr, whole: impl IntoIterator<Item = &'a Network>) -> Option<Network> {
    let is_covered = whole.into_iter().any(|network| network.contains(&address));
    (!is_covered).then(|| Network::from(address))
}

/// Deletes all routes of a mode.
pub(crate) fn cleanup(owner: RouteOwner, ports: &mut Ports<'_>, cleaned: &mut Cleaned) {
    match ports.routes.networks(owner) {
        Ok(networks) => {
            let all = networks.into_keys().map(LocalRoute::new);
            let all = all.map(|route| Operation::Route(Action::Delete, owner, route));
            cleaned.applied.carry_out(all, &Names::NONE, ports);
        }
        Err(error) => cleaned.miss("local routes", error),
    }
}

//! Local routes: which one makes an address local, and writing them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::net::Network;
use crate::plan::report::Applied;
use crate::plan::step::{Action, Part, Step};
use crate::ports::{ItemFailure, ItemFailures, LocalRoute, PortError, Ports, RouteOwner};

/// The route that an address needs of its own: none within the networks that are local as a whole.
pub(crate) fn network_of<'a>(address: IpAddr, whole: impl IntoIterator<Item = &'a Network>) -> Option<Network> {
    let is_covered = whole.into_iter().any(|network| network.contains(&address));
    (!is_covered).then(|| Network::from(address))
}

/// Makes networks local. Returns those that failed.
pub(crate) fn add(
    owner: RouteOwner,
    routes: &[LocalRoute],
    ports: &mut Ports<'_>,
    applied: &mut Applied,
) -> BTreeSet<Network> {
    let failures = if routes.is_empty() { Vec::new() } else { ports.routes.add(owner, routes) };
    note(Action::Add, routes, failures, applied)
}

/// Deletes routes. Returns the networks of those that failed.
pub(crate) fn delete(
    owner: RouteOwner,
    networks: &[Network],
    ports: &mut Ports<'_>,
    applied: &mut Applied,
) -> BTreeSet<Network> {
    let failures = if networks.is_empty() { Vec::new() } else { ports.routes.delete(owner, networks) };
    note(Action::Delete, &networks.iter().copied().map(LocalRoute::new).collect::<Vec<_>>(), failures, applied)
}

/// Counts the routes that are done. Returns the networks of those that failed.
fn note(action: Action, routes: &[LocalRoute], failures: ItemFailures, applied: &mut Applied) -> BTreeSet<Network> {
    applied.count(Part::Route, action, routes.len().saturating_sub(failures.len()));
    let of = |failure: ItemFailure| Some((*routes.get(failure.index)?, failure.error));
    let note = |(route, error): (LocalRoute, PortError)| {
        applied.fail(Step::route(action, &route), error);
        route.network
    };
    failures.into_iter().filter_map(of).map(note).collect()
}

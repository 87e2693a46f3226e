//! Local routes: which one makes an address local, and writing them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::net::Network;
use crate::plan::report::Applied;
use crate::plan::step::{Action, Part, Step};
use crate::ports::{LocalRoute, Ports, RouteOwner};

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
    if routes.is_empty() {
        return BTreeSet::new();
    }
    let failures = ports.routes.add(owner, routes);
    applied.count(Part::Route, Action::Add, routes.len().saturating_sub(failures.len()));
    let mut failed = BTreeSet::new();
    for failure in failures {
        if let Some(route) = routes.get(failure.index) {
            applied.fail(Step::route(Action::Add, route), failure.error);
            failed.insert(route.network);
        }
    }
    failed
}

/// Deletes routes. Returns the networks of those that failed.
pub(crate) fn delete(
    owner: RouteOwner,
    networks: &[Network],
    ports: &mut Ports<'_>,
    applied: &mut Applied,
) -> BTreeSet<Network> {
    if networks.is_empty() {
        return BTreeSet::new();
    }
    let failures = ports.routes.delete(owner, networks);
    applied.count(Part::Route, Action::Delete, networks.len().saturating_sub(failures.len()));
    let mut failed = BTreeSet::new();
    for failure in failures {
        if let Some(network) = networks.get(failure.index) {
            applied.fail(Step::route(Action::Delete, &LocalRoute::new(*network)), failure.error);
            failed.insert(*network);
        }
    }
    failed
}

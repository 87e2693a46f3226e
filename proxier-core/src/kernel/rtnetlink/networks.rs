//! Networks that are local as a whole, with routes that only this project makes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use ipset::IpSpan;

use super::LocalRoutes;
use crate::net::Network;
use crate::ports::{ItemFailure, ItemFailures, LocalNetworks, LocalRoute, PortError, PortErrorKind, RouteOwner};

/// The device of local routes.
const LOOPBACK: &str = "lo";

/// Local routes of the calling thread's network namespace.
pub struct RoutesPort {
    userspace: LocalRoutes,
    ipvs: LocalRoutes,
}

impl fmt::Debug for RoutesPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutesPort").field("userspace", &self.userspace).field("ipvs", &self.ipvs).finish()
    }
}

impl Default for RoutesPort {
    fn default() -> Self {
        Self::new()
    }
}

impl RoutesPort {
    /// Opens a socket when it is first needed.
    pub fn new() -> Self {
        let of = |owner: RouteOwner| LocalRoutes::of_protocol(owner.number());
        RoutesPort { userspace: of(RouteOwner::Userspace), ipvs: of(RouteOwner::Ipvs) }
    }

    fn of_owner(&mut self, owner: RouteOwner) -> &mut LocalRoutes {
        match owner {
            RouteOwner::Userspace => &mut self.userspace,
            RouteOwner::Ipvs => &mut self.ipvs,
        }
    }
}

/// Converts networks to spans, with the index of each; networks that are no spans fail.
fn spans(networks: impl Iterator<Item = Network>) -> (Vec<usize>, Vec<IpSpan>, ItemFailures) {
    let (mut places, mut spans, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for (index, network) in networks.enumerate() {
        match IpSpan::network(network.network(), network.prefix_len()) {
            Ok(span) => {
                places.push(index);
                spans.push(span);
            }
            Err(error) => {
                failures.push(ItemFailure { index, error: PortError::from_error(PortErrorKind::Invalid, &error) });
            }
        }
    }
    (places, spans, failures)
}

fn placed(places: &[usize], failures: ItemFailures) -> impl Iterator<Item = ItemFailure> {
    failures
        .into_iter()
        .filter_map(|failure| Some(ItemFailure { index: *places.get(failure.index)?, error: failure.error }))
}

impl LocalNetworks for RoutesPort {
    fn networks(&mut self, owner: RouteOwner) -> Result<BTreeMap<Network, Option<IpAddr>>, PortError> {
        let spans = self.of_owner(owner).list_with_source(LOOPBACK)?;
        let network = |span: IpSpan| Network::new(span.first(), span.prefix()?).ok();
        Ok(spans.into_iter().filter_map(|(span, source)| Some((network(span)?, source))).collect())
    }

    fn add(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures {
        let (places, spans, mut failures) = spans(routes.iter().map(|route| route.network));
        let source = |place: &usize| routes.get(*place).and_then(|route| route.source);
        let routes: Vec<_> = spans.into_iter().zip(places.iter().map(source)).collect();
        if !routes.is_empty() {
            failures.extend(placed(&places, self.of_owner(owner).add_with_source(LOOPBACK, &routes)));
        }
        failures
    }

    fn delete(&mut self, owner: RouteOwner, networks: &[Network]) -> ItemFailures {
        let (places, spans, mut failures) = spans(networks.iter().copied());
        if !spans.is_empty() {
            failures.extend(placed(&places, self.of_owner(owner).delete(LOOPBACK, &spans)));
        }
        failures
    }
}

//! Networks that are local as a whole, with routes that only this project makes.

use std::collections::BTreeSet;
use std::fmt;

use ipset::IpSpan;

use super::LocalRoutes;
use crate::net::Network;
use crate::ports::{ItemFailure, ItemFailures, LocalNetworks, PortError, PortErrorKind};

/// The number by which our routes are told from others' (`proto 118` of `ip route`). No program that is registered in iproute2's
/// `rt_protos` has it.
const OURS: u8 = 118;
/// The device of such routes.
const LOOPBACK: &str = "lo";

/// Local routes of the calling thread's network namespace.
pub struct RoutesPort {
    routes: LocalRoutes,
}

impl fmt::Debug for RoutesPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoutesPort").field("routes", &self.routes).finish()
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
        RoutesPort { routes: LocalRoutes::of_protocol(OURS) }
    }
}

/// As spans, with the index of each; those that are none fail.
fn spans(networks: &[Network]) -> (Vec<usize>, Vec<IpSpan>, ItemFailures) {
    let (mut places, mut spans, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    for (index, network) in networks.iter().enumerate() {
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
    fn networks(&mut self) -> Result<BTreeSet<Network>, PortError> {
        let spans = self.routes.list(LOOPBACK)?;
        let network = |span: IpSpan| Network::new(span.first(), span.prefix()?).ok();
        Ok(spans.into_iter().filter_map(network).collect())
    }

    fn add(&mut self, networks: &[Network]) -> ItemFailures {
        let (places, spans, mut failures) = spans(networks);
        if !spans.is_empty() {
            failures.extend(placed(&places, self.routes.add(LOOPBACK, &spans)));
        }
        failures
    }

    fn delete(&mut self, networks: &[Network]) -> ItemFailures {
        let (places, spans, mut failures) = spans(networks);
        if !spans.is_empty() {
            failures.extend(placed(&places, self.routes.delete(LOOPBACK, &spans)));
        }
        failures
    }
}

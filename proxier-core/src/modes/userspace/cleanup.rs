//! Removes everything that is ours.

use crate::modes::shared::cleaned::Cleaned;
use crate::net::Network;
use crate::ports::Ports;
use crate::reconciler::step::{Action, Part};

use super::plan::route_step;

/// Deletes the local routes that this mode has made, and nothing else. All else that the mode has ends with its process.
pub fn cleanup(ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    let networks: Vec<Network> = match ports.routes.networks() {
        Ok(networks) => networks.into_iter().collect(),
        Err(error) => {
            cleaned.miss("local routes", error);
            return cleaned;
        }
    };
    let failures = ports.routes.delete(&networks);
    cleaned.applied.count(Part::Route, Action::Delete, networks.len().saturating_sub(failures.len()));
    for failure in failures {
        if let Some(network) = networks.get(failure.index) {
            cleaned.applied.fail(route_step(Action::Delete, network), failure.error);
        }
    }
    cleaned
}

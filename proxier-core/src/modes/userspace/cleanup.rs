//! Removes the local routes of userspace mode.

use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::routes;
use crate::net::Network;
use crate::ports::{Ports, RouteOwner};

/// Deletes the local routes that this mode has made, and nothing else. All else that the mode has ends with its process.
pub fn cleanup(ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    let networks: Vec<Network> = match ports.routes.networks(RouteOwner::Userspace) {
        Ok(networks) => networks.into_keys().collect(),
        Err(error) => {
            cleaned.miss("local routes", error);
            return cleaned;
        }
    };
    routes::delete(RouteOwner::Userspace, &networks, ports, &mut cleaned.applied);
    cleaned
}

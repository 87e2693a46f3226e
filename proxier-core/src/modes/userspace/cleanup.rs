//! Removes the local routes of userspace mode.

use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::routes;
use crate::ports::{Ports, RouteOwner};

/// Deletes the local routes that this mode has made, and nothing else. All else that the mode has ends with its process.
pub fn cleanup(ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    routes::cleanup(RouteOwner::Userspace, ports, &mut cleaned);
    cleaned
}

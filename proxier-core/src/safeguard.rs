//! Safeguards against the input: losing much at once, and taking an address, or an address and port, that the node itself
//! needs.

mod lost;
mod mass;
mod reserved;

pub use mass::{Kernel, Loss, MassRemoval, Safeguard, Stopped};
pub use reserved::{Extent, Neighbour, Rejected, Reserved, ReservedPort, User};

//! Safeguards against the input: losing much at once, and taking an address, or an address and port, that the node itself
//! needs.

mod lost;
mod mass;
mod needs;
mod reserved;

pub use mass::{MassRemoval, Safeguard, Stopped};
pub(crate) use needs::Needs;
pub use reserved::{Extent, Neighbour, Rejected, Reserved, ReservedPort, User};

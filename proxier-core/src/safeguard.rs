//! What is not done although the input says so: losing much at once, and taking an address, or an address and
//! port, that the node itself cannot do without.

mod lost;
mod mass;
mod needs;
mod reserved;

pub use mass::{MassRemoval, Safeguard, Stopped};
pub(crate) use needs::Needs;
pub use reserved::{Extent, Neighbour, Rejected, Reserved, ReservedPort, User};

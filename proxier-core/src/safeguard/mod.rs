//! Safeguards against the input: losing much at once, and taking an address, or an address and port, that the node itself
//! needs.

mod lost;
mod mass;

pub use mass::{Kernel, Loss, MassRemoval, Safeguard, Stopped};

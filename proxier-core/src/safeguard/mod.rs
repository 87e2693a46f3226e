//! Safeguards against the input: losing much at once, and taking an address, or an address and port, that the node itself
//! needs.

mod mass;
mod missing;

pub use mass::{MassRemoval, Stopped};

/// How it works inside: for this crate and its tests.
#[doc(hidden)]
pub use mass::{Kernel, Loss, Safeguard};

//! Safeguards against the input: losing much at once, and serving an address or port that the node itself needs.

mod mass;
mod missing;

pub use mass::{MassRemoval, Stopped};

/// Internals, for this crate and its tests.
#[doc(hidden)]
pub use mass::{Kernel, Loss, Safeguard};

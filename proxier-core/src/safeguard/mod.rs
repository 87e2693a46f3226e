//! Safeguards against the input: losing much at once, and serving an address or port that the node itself needs.

mod mass;
mod missing;

pub(crate) use mass::{Kernel, Loss, Safeguard};
pub use mass::{MassRemoval, Stopped};

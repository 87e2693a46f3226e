//! The kernel that this process runs on.

use proxier_core::kernel::{KernelPorts, Options};

use crate::proxier_demo::engine::privileges;
use crate::proxier_demo::problem::Problem;

/// The kernel, to be changed.
///
/// # Errors
///
/// There is no netlink, or this process has not the capabilities.
pub(crate) fn open() -> Result<KernelPorts, Problem> {
    privileges::require()?;
    open_to_look()
}

/// The kernel, only to read it. Without capabilities most of it cannot be read.
///
/// # Errors
///
/// There is no netlink.
pub(crate) fn open_to_look() -> Result<KernelPorts, Problem> {
    KernelPorts::open(&Options::default()).map_err(|error| Problem::new("", error.to_string()))
}

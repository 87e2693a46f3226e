//! The kernel that this process runs on.

use proxier_core::kernel::{KernelPorts, Options};

use crate::proxier_demo::engine::privileges;
use crate::proxier_demo::problem::Problem;

/// Opens the kernel to change it.
///
/// # Errors
///
/// There is no netlink, or this process lacks capabilities.
pub(crate) fn open() -> Result<KernelPorts, Problem> {
    privileges::require()?;
    open_to_look()
}

/// Opens the kernel to read it. Most of it cannot be read without capabilities.
///
/// # Errors
///
/// There is no netlink.
pub(crate) fn open_to_look() -> Result<KernelPorts, Problem> {
    KernelPorts::open(&Options::default()).map_err(|error| Problem::new("", error.to_string()))
}

//! The kernel that this process runs on.

use std::path::Path;

use proxier_core::kernel::{KernelOptions, KernelPorts};

use crate::engine::privileges;
use crate::problem::Problem;

/// Where a pod may mount the node's `/proc/sys/net` to write it, since its own `/proc/sys` is read-only.
const MOUNTED: &str = "/host/proc/sys";

/// Opens the kernel for writing.
pub(crate) fn open() -> Result<KernelPorts, Problem> {
    privileges::NET_ADMIN.require()?;
    open_to_look()
}

/// Opens the kernel for reading. Without capabilities most of it cannot be read.
pub(crate) fn open_to_look() -> Result<KernelPorts, Problem> {
    let mut options = KernelOptions::default();
    if Path::new(MOUNTED).join("net/ipv4").exists() {
        options.sysctl_root = MOUNTED.into();
    }
    KernelPorts::open(&options).map_err(|error| Problem::new("", error.to_string()))
}

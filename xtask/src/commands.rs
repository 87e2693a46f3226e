//! The commands, one file each.

pub(crate) mod setup;
pub(crate) mod vm;

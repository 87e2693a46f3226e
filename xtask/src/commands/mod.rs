//! The commands, one file each.

pub(crate) mod api;
pub(crate) mod bench;
pub(crate) mod conformance;
pub(crate) mod demo;
pub(crate) mod differential;
pub(crate) mod dist;
pub(crate) mod emulate;
pub(crate) mod package;
pub(crate) mod setup;
pub(crate) mod soak;
pub(crate) mod test;
pub(crate) mod vm;

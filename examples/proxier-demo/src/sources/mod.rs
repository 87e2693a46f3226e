//! Sources of Services, as changes: an API server or files.

pub mod cluster;
pub mod files;
pub mod initial_list;
pub mod manifests;
pub(crate) mod source;
pub(crate) mod triggers;

//! What several modes need of a host.

pub mod host;
pub mod names;
pub mod sysctls;

//! What several modes need of a host.

pub(crate) mod flows;
pub mod host;
pub mod names;
pub(crate) mod retry;
pub mod sysctls;

//! What several modes need of a host.

pub mod sysctls;

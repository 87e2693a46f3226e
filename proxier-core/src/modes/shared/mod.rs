//! What several modes need of a host.

pub(crate) mod by_default;
pub(crate) mod chains;
pub mod cleaned;
pub(crate) mod flows;
pub mod host;
pub mod local_traffic;
pub mod names;
pub(crate) mod nft;
pub(crate) mod retry;
pub(crate) mod routes;
pub(crate) mod served;
pub(crate) mod service_networks;
pub mod sysctls;

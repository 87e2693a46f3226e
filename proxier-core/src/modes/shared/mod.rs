//! Parts that several modes share: facts of the host, sysctls, flows, tables of nf_tables and chains of iptables.

pub(crate) mod by_default;
pub(crate) mod chains;
pub mod cleaned;
pub(crate) mod counts;
pub(crate) mod flows;
pub mod host;
pub mod local_traffic;
pub(crate) mod localhost;
pub mod names;
pub(crate) mod nft;
pub(crate) mod retry;
pub(crate) mod routes;
pub(crate) mod served;
pub(crate) mod service_networks;
pub mod sysctls;
pub(crate) mod table;

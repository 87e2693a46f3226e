//! Parts that several modes share: facts of the host, sysctls, flows, tables of nf_tables and chains of iptables.

pub(crate) mod by_default;
pub(crate) mod chains;
pub(crate) mod cleaned;
pub(crate) mod counts;
pub(crate) mod flows;
pub(crate) mod frontends;
pub(crate) mod host;
pub(crate) mod listeners;
pub(crate) mod local_traffic;
pub(crate) mod localhost;
pub(crate) mod nft;
pub(crate) mod retry;
pub(crate) mod routes;
pub(crate) mod served;
pub(crate) mod service_networks;
pub(crate) mod sysctls;
pub(crate) mod table;

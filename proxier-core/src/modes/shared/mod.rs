//! Parts that several modes share: facts of the host, sysctls, flows, nf_tables tables and iptables chains.

pub(crate) mod by_default;
pub(crate) mod chains;
pub(crate) mod cleaned;
pub(crate) mod flows;
pub(crate) mod frontends;
pub(crate) mod listeners;
pub(crate) mod localhost;
pub(crate) mod networks;
pub(crate) mod nft;
pub(crate) mod sysctls;
pub(crate) mod table;

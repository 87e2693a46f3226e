//! Finds chains of a firewall that drop packets to Services before IPVS sees them.

use iptables::TableName;
use nftables::{ChainKey, ChainType, Hook};

use crate::compat;
use crate::config::{Config, RulesBy};
use crate::modes::shared::by_default;
use crate::modes::shared::nft::base_chains;
use crate::net::Family;
use crate::ports::Ports;

/// The chains of nf_tables that drop new incoming packets by default, by their policy or last rule, each with advice. In IPVS mode packets to
/// Services are such, and no chain of another table can accept them against that. Where iptables [guards](RulesBy) virtual servers, chain INPUT
/// of its own table filter does not count: its rules accept traffic of Services there. Best effort: chains that cannot be read drop nothing.
pub fn dropping_input(config: &Config, ports: &mut Ports<'_>) -> Vec<String> {
    let by_nft = config.ipvs.rules == RulesBy::Nftables;
    let of_iptables = |chain: &ChainKey| {
        let is_filter = |family| compat::table_key(family, &TableName::FILTER).is_ok_and(|key| key == chain.table);
        Family::ALL.into_iter().any(is_filter) && chain.name.as_str() == "INPUT"
    };
    let mut found = Vec::new();
    for (chain, policy) in base_chains(Hook::Input, &ChainType::Filter, ports.tables) {
        if (by_nft || !of_iptables(&chain)) && by_default::drops_in_nft(&chain, policy, ports.tables) {
            let instead = if of_iptables(&chain) { "ipvs.rules: iptables, which accepts it" } else { "mode nftables" };
            found.push(format!(
                "chain {chain} drops by default what comes in, and traffic to Services passes it before IPVS: only what a rule \
                 there accepts reaches a Service; accept the addresses and node ports of Services in it, or choose {instead}"
            ));
        }
    }
    found
}

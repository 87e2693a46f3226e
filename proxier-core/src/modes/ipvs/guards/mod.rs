//! Masquerading and source-range rules, in two variants: by iptables and ipset, or by an nf_tables table.
//!
//! | | entries | rules |
//! |---|---|---|
//! | `programs` | ipsets ([`SetKind`](crate::ports::SetKind)) | kube-proxy's chains, by the iptables programs ([`rules`](crate::modes::ipvs::rules)) |
//! | `nft` | sets of a table of nf_tables | chains of that table ([`Layout`]) |
//!
//! Both have the same entries, the same effect on packets, and the same order of a plan. The programs' variant writes
//! sets one by one and then the rules, which change with the first and last entry of a set. The table's variant writes
//! everything that must exist before virtual servers in one transaction per family, and everything that must be deleted
//! after them in another. Its rules do not depend on entries.
//!
//! A node that changes from one to the other has both until a [cleanup](crate::modes::cleanup::cleanup). Records of own
//! virtual servers are read from both, and guards of those that stay are carried over.

mod choose;
pub(crate) mod migrate_backend;
pub(crate) mod nft;

pub use choose::{Choice, choose};
pub use nft::{Layout, TableChange, marks, trials};

use std::collections::{BTreeMap, BTreeSet};

use nftables::{ChainKey, ChainType, Hook};

use crate::backoff::RulesRetry;
use crate::config::{Config, RulesBy};
use crate::modes::ipvs::observed::Contents;
use crate::modes::ipvs::rules::{Capabilities, Inputs};
use crate::modes::shared::by_default::{Known, drops_in_nft};
use crate::modes::shared::nft::{base_chains, is_of_iptables};
use crate::net::{Family, Network};
use crate::plan::report::Unread;
use crate::ports::{Ports, SetKey, Sets};

#[derive(Debug)]
pub(crate) enum Guards {
    Programs(Programs),
    Nft(nft::Tables),
}

impl Guards {
    pub(crate) fn by_table(&self) -> bool {
        matches!(self, Guards::Nft(_))
    }

    /// The networks in which the kernel's rules refuse connections that no Service serves; `None` if unknown.
    pub(crate) fn guarded_networks(&self, family: Family) -> Option<&BTreeSet<Network>> {
        match self {
            Guards::Programs(programs) => programs.rules.get(&family).map(|inputs| &inputs.guarded_networks),
            Guards::Nft(tables) => tables.written.get(&family).map(|layout| &layout.guarded_networks),
        }
    }
}

/// The entries of the ipsets that exist, and the sets that could not be read.
pub(crate) fn read_ipsets(config: &Config, sets: &mut dyn Sets) -> (Contents, Vec<Unread>) {
    let (mut contents, mut unread) = (Contents::new(), Vec::new());
    for set in config.families.iter().flat_map(SetKey::all) {
        let named = set.named(config.names.prefix);
        match sets.entries(named) {
            Ok(entries) => contents.extend(entries.map(|entries| (set, entries))),
            Err(error) => unread.push(Unread::new(format_args!("set {named}"), error)),
        }
    }
    (contents, unread)
}

/// The nf_tables chains that drop new incoming packets by default, by policy or last rule, each with advice. In IPVS
/// mode packets to Services are incoming, and no chain of another table can accept what such a chain drops. If iptables
/// [guards](RulesBy) virtual servers, chain INPUT of its own table filter is ignored, because its rules accept traffic
/// to Services there. Chains that cannot be read are treated as dropping nothing.
pub fn dropping_input(config: &Config, ports: &mut Ports<'_>) -> Vec<String> {
    let by_nft = config.ipvs.rules == RulesBy::Nftables;
    let of_iptables = |chain: &ChainKey| is_of_iptables(chain, "INPUT");
    let mut found = Vec::new();
    for (chain, policy) in base_chains(Hook::Input, &ChainType::Filter, ports.tables) {
        if (by_nft || !of_iptables(&chain)) && drops_in_nft(&chain, policy, &Known::FIRST, ports.tables) {
            let instead = if of_iptables(&chain) { "ipvs.rules: iptables, which accepts it" } else { "mode nftables" };
            found.push(format!(
                "chain {chain} drops by default what comes in, and traffic to Services passes it before IPVS: only what a rule \
                 there accepts reaches a Service; accept the addresses and node ports of Services in it, or choose {instead}"
            ));
        }
    }
    found
}

#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// The known capabilities of iptables and the kernel; the largest set before the kernel was read.
    pub(crate) capabilities: Capabilities,
    /// The inputs of the rules in the kernel.
    pub(crate) rules: BTreeMap<Family, Inputs>,
    /// Families whose rules could not be restored.
    pub(crate) retry: BTreeMap<Family, RulesRetry>,
}

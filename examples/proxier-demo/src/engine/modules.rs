//! Loads the modules of a mode with one `modprobe`. The kernel would load them too, one by one at first use, each with
//! its own `modprobe` and more for other names that it tries first.

use std::path::Path;

use kmod_probe::{Loader, ModuleName};
use proxier_core::config::RulesBy;
use proxier_core::modes::Kind;

use crate::settings::Settings;

/// Modules for the tables of nftables mode and of IPVS mode.
const TABLES: &str = "nf_tables nft_chain_nat nft_ct nft_fib_ipv4 nft_fib_ipv6 nft_masq nft_nat nft_reject_ipv4 \
                      nft_reject_ipv6 nf_conntrack_netlink";

/// More modules of nftables mode, which distributes connections itself.
const NFTABLES: &str = "nft_hash nft_numgen";

/// Modules of IPVS mode that are loaded once it has served, without the scheduler's. If all are loaded, no preparation
/// is needed.
const IPVS: &str = "ip_vs dummy xt_set xt_comment xt_mark xt_addrtype xt_conntrack xt_MASQUERADE xt_physdev xt_ipvs \
                    ip_set_hash_ip ip_set_hash_ipport ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_bitmap_port";

/// Modules of IPVS mode with an nf_tables table. A trial shows whether the table's modules are available.
const IPVS_BY_NFT: &str = "ip_vs dummy";

fn of_ipvs(settings: &Settings) -> Vec<String> {
    let by_nft = settings.core.ipvs.rules == RulesBy::Nftables;
    let used = if by_nft { IPVS_BY_NFT } else { IPVS };
    let scheduler = format!("ip_vs_{}", settings.core.ipvs.scheduler);
    used.split(' ').map(str::to_owned).chain([scheduler]).collect()
}

/// Whether every module of IPVS mode is loaded. A built-in one may be invisible.
pub(super) fn has_ipvs(settings: &Settings) -> bool {
    of_ipvs(settings).iter().all(|module| Path::new("/sys/module").join(module).exists())
}

/// Loads missing modules of the mode. A failure shows at first use.
pub(crate) fn preload(settings: &Settings) {
    let mut names = match settings.mode {
        Kind::Ipvs => of_ipvs(settings),
        Kind::Nftables => NFTABLES.split(' ').map(str::to_owned).collect(),
        Kind::Iptables | Kind::Userspace => Vec::new(),
    };
    if settings.mode.table_name(&settings.core).is_some() {
        names.splice(0..0, TABLES.split(' ').map(str::to_owned));
    }
    if names.is_empty() {
        return;
    }
    let modules: Vec<ModuleName> = names.iter().filter_map(|name| ModuleName::new(name).ok()).collect();
    for outcome in Loader::new().load_all(&modules) {
        tracing::debug!("module {outcome}");
    }
}

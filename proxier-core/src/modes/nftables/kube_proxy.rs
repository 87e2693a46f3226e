//! What a kube-proxy in nftables mode has left.

use nftables::{Name, TableKey};

use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::nft::remove_table;
use crate::net::Family;
use crate::ports::{PortError, Ports, Tables};

/// The name of its tables.
const TABLE: &str = "kube-proxy";

/// What its tables say of themselves. Kernels from 5.10 keep that; kube-proxy's nftables mode needs a newer one.
const COMMENT: &str = "rules for kube-proxy";

/// Chains that its tables have in every release, whatever Services there are. Source: kubernetes, pkg/proxy/nftables/proxier.go,
/// `setupNFTables`.
const CHAINS: [&str; 6] =
    ["nat-prerouting", "nat-output", "nat-postrouting", "services", "mark-for-masquerade", "masquerading"];

/// Removes the tables of both families that a kube-proxy in nftables mode has left: it would go on choosing endpoints that
/// nobody keeps up to date. A table of that name without its comment or one of its chains is somebody else's, and stays.
pub(crate) fn cleanup_kube_proxy(ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    for family in Family::ALL {
        let Ok(name) = Name::new(TABLE) else { continue };
        let table = TableKey { family: family.into(), name };
        remove_table(&table, is_kube_proxys, ports.tables, &mut cleaned);
    }
    cleaned
}

fn is_kube_proxys(table: &TableKey, tables: &mut dyn Tables) -> Result<bool, PortError> {
    let found = tables.table(table)?;
    if found.is_none_or(|found| found.comment.as_deref() != Some(COMMENT)) {
        return Ok(false);
    }
    for chain in CHAINS {
        if !tables.has_chain(table, chain)? {
            return Ok(false);
        }
    }
    Ok(true)
}

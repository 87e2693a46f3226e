//! Removes all tables of this mode.

use super::layout::{self, Layout};
use super::mode::read;
use crate::config::Config;
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::nft::{is_ours, remove_table};
use crate::modes::shared::served::ServedFrontends;
use crate::net::Family;
use crate::ports::{PortErrorKind, Ports};
use crate::service::NodeFacts;

/// Frontends that the tables of both families serve.
pub(crate) fn served(facts: &NodeFacts, ports: &mut Ports<'_>) -> ServedFrontends {
    let mut served = ServedFrontends::default();
    for family in Family::ALL {
        let layout = Layout::new(family, &layout::table_name(&facts.config().names), facts, false);
        match read(ports.tables, &layout) {
            Ok(observed) => {
                let frontends = observed.iter().flat_map(|observed| observed.frontends(family));
                frontends.for_each(|(key, has_endpoints)| served.add(key, has_endpoints));
            }
            // The table is foreign.
            Err(error) if error.kind() == PortErrorKind::AlreadyExists => {}
            Err(error) => served.miss(format_args!("table {}", layout.table()), error),
        }
    }
    served
}

/// Removes the tables of both families that this mode has made, and nothing else. It uses only the names of
/// the configuration. What is gone already counts as done, and so does a kernel without nf_tables.
pub fn cleanup(config: &Config, ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    for family in Family::ALL {
        let table = layout::table(family, &layout::table_name(&config.names));
        remove_table(&table, is_ours, ports.tables, &mut cleaned);
    }
    cleaned
}

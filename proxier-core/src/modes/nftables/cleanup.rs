//! Removes everything that is ours.

use super::layout::{self, OWNED};
use crate::config::Config;
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::nft::remove_table;
use crate::net::Family;
use crate::ports::Ports;

/// Removes the tables of both families that this mode has made, and nothing else. It uses only the names of
/// the configuration. What is gone already counts as done, and so does a kernel without nf_tables.
pub fn cleanup(config: &Config, ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    for family in Family::ALL {
        let table = layout::table(family, &layout::table_name(&config.names));
        remove_table(&table, |table, tables| tables.has_chain(table, OWNED), ports.tables, &mut cleaned);
    }
    cleaned
}

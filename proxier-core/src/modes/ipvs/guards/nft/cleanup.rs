//! Removes the tables.

use super::layout::table;
use crate::config::Config;
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::nft::{is_ours, remove_table};
use crate::net::Family;
use crate::ports::Tables;

/// Removes the tables of both families, configured or not, and nothing else. A missing table counts as done, and so does
/// a kernel without nf_tables.
pub(in crate::modes::ipvs) fn cleanup(config: &Config, tables: &mut dyn Tables, cleaned: &mut Cleaned) {
    for family in Family::ALL {
        let table = table(family, &config.names);
        remove_table(&table, is_ours, tables, cleaned);
    }
}

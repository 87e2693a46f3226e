//! Removes the tables.

use nftables::Transaction;

use super::layout::table;
use crate::config::Config;
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::nft::OWNED;
use crate::net::Family;
use crate::ports::{NotCommitted, PortErrorKind, Tables};
use crate::reconciler::report::Unread;
use crate::reconciler::step::{Action, Part, Step};

/// Removes the tables of both families, whatever is configured, and nothing else. What is gone already counts as done, and so does
/// a kernel without nf_tables.
pub(in crate::modes::ipvs) fn cleanup(config: &Config, tables: &mut dyn Tables, cleaned: &mut Cleaned) {
    for family in Family::ALL {
        let table = table(family, &config.names);
        match tables.has_chain(&table, OWNED) {
            Ok(true) => {
                let mut transaction = Transaction::new();
                transaction.delete_table(&table);
                let outcome = match tables.commit(&transaction) {
                    Err(NotCommitted { error, .. }) if error.kind() != PortErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                };
                cleaned.applied.note(|| Step::new(Action::Delete, Part::Table, &table), outcome);
            }
            Ok(false) => {}
            Err(error) if matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::NotFound) => {}
            Err(error) => cleaned.unread.push(Unread::new(format_args!("table {table}"), error)),
        }
    }
}

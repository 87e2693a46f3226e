//! Removes everything that is ours.

use nftables::Transaction;

use super::layout::{self, OWNED};
use crate::config::Config;
use crate::modes::shared::cleaned::Cleaned;
use crate::net::Family;
use crate::ports::{NotCommitted, PortError, PortErrorKind, Ports};
use crate::reconciler::report::Unread;
use crate::reconciler::step::{Action, Part, Step};

/// Removes the tables of both families that this mode has made, and nothing else. It uses only the names of
/// the configuration. What is gone already counts as done, and so does a kernel without nf_tables.
pub fn cleanup(config: &Config, ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = Cleaned::default();
    for family in Family::ALL {
        let table = layout::table(family, &layout::table_name(&config.names));
        match ports.tables.has_chain(&table, OWNED) {
            Ok(true) => {
                let mut transaction = Transaction::new();
                transaction.delete_table(&table);
                let outcome = match ports.tables.commit(&transaction) {
                    Err(NotCommitted { error, .. }) if error.kind() != PortErrorKind::NotFound => Err(error),
                    _ => Ok(()),
                };
                cleaned.applied.note(|| Step::new(Action::Delete, Part::Table, &table), outcome);
            }
            Ok(false) => {}
            Err(error) if is_absent(&error) => {}
            Err(error) => cleaned.unread.push(Unread::new(format_args!("table {table}"), error)),
        }
    }
    cleaned
}

pub(super) fn is_absent(error: &PortError) -> bool {
    matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::NotFound)
}

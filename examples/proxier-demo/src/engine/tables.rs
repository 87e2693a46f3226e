//! Watches this proxy's nf_tables tables.

use std::fmt::Display;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use proxier_core::kernel::{TableChanges, TableMonitor};
use tokio::sync::mpsc;

use crate::engine::host::wait_for;
use crate::message::Message;

/// Transactions that follow each other within this time are reported together. It is short, because source ranges of
/// IPVS mode are open until the report is handled, if their table was deleted.
const PAUSE: Duration = Duration::from_millis(20);

/// Reports writes to the tables of this name, once the returned sender is dropped. While something listens, the kernel
/// makes a message of each element, which doubles the time of a large first pass. If watching fails, full passes still
/// find the changes.
pub(crate) fn watch(table: String, messages: mpsc::Sender<Message>) -> Sender<()> {
    let (compared, begin) = channel();
    let name = table.clone();
    let work = move || {
        let _gone = begin.recv();
        match TableMonitor::open(&table) {
            Ok(monitor) => {
                // Earlier writes are known by their generation.
                let mut changes = TableChanges::default();
                changes.lost = true;
                if messages.blocking_send(Message::TablesChanged(changes)).is_ok() {
                    report(monitor, &table, &messages);
                }
            }
            Err(error) => late(&table, &error),
        }
    };
    if let Err(error) = std::thread::Builder::new().name("tables".to_owned()).spawn(work) {
        late(&name, &error);
    }
    compared
}

fn late(table: &str, error: &dyn Display) {
    tracing::warn!(
        "cannot monitor table {table}, so changes by other programs are noticed only at full passes: {error}"
    );
}

fn report(mut monitor: TableMonitor, table: &str, messages: &mpsc::Sender<Message>) {
    loop {
        if let Err(error) = wait_for(&monitor) {
            return late(table, &error);
        }
        let changes = match monitor.drain() {
            Ok(changes) if changes.is_empty() => continue,
            Ok(changes) => changes,
            Err(error) => return late(table, &error),
        };
        if messages.blocking_send(Message::TablesChanged(changes)).is_err() {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

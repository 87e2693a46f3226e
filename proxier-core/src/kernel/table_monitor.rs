//! Reports writes to an nf_tables table.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nftables::{ErrorKind, Event, Events, Name};

use super::tables::port_error;
use crate::ports::{PortError, PortErrorKind, Result};

/// Room for the changes of a transaction with tens of thousands of elements.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Writes to tables since the last call.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TableChanges {
    /// The generations of transactions that wrote to the tables, in order.
    pub generations: Vec<u32>,
    /// The kernel dropped events that were not read in time: there may have been more.
    pub lost: bool,
}

impl TableChanges {
    /// Whether there were no writes.
    pub fn is_empty(&self) -> bool {
        *self == TableChanges::default()
    }
}

/// Listens for changes of the tables of one name, in all families, in one network namespace. A reconciler writes the
/// tables named [`Reconciler::table_name`](crate::engine::Reconciler::table_name).
///
/// This process's own transactions are reported too;
/// [`Reconciler::tables_changed`](crate::engine::Reconciler::tables_changed) recognises them. To miss nothing, open
/// it before the tables are read. Or open it after the first full pass and call `tables_changed` with `lost`, which
/// compares generations. While something listens, the kernel makes a message of each written element
/// (`nf_tables_setelem_notify`), which doubles the time of a large first pass. Wait until its descriptor is readable,
/// then call [`drain`](TableMonitor::drain).
#[derive(Debug)]
pub struct TableMonitor {
    events: Events,
    table: Name,
    /// Whether the transaction whose events are being read wrote to the tables.
    is_touched: bool,
}

impl AsFd for TableMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl TableMonitor {
    /// Starts to listen in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Unavailable`](crate::ports::PortErrorKind::Unavailable) on a kernel without nf_tables;
    /// [`Permission`](crate::ports::PortErrorKind::Permission) without `CAP_NET_ADMIN`; socket errors.
    pub fn open(table: &str) -> Result<Self> {
        let table = Name::new(table).map_err(|error| PortError::from_error(PortErrorKind::Invalid, &error))?;
        let mut events = Events::open().map_err(|error| port_error(&error))?;
        // A smaller buffer loses changes, and reports that.
        events.set_receive_buffer(RECEIVE_BUFFER).map_err(|error| port_error(&error))?;
        Ok(TableMonitor { events, table, is_touched: false })
    }

    /// Returns the writes since the last call, without waiting.
    ///
    /// # Errors
    /// If the socket failed: open another one, and assume a change.
    pub fn drain(&mut self) -> Result<TableChanges> {
        let mut changes = TableChanges::default();
        loop {
            match self.events.wait(Duration::ZERO) {
                Ok(Some(events)) => {
                    for event in events {
                        self.note(&event, &mut changes);
                    }
                }
                Ok(None) => return Ok(changes),
                Err(error) if matches!(error.kind(), ErrorKind::StateUnknown | ErrorKind::Malformed) => {
                    self.is_touched = false;
                    changes.lost = true;
                }
                Err(error) => return Err(port_error(&error)),
            }
        }
    }

    /// A transaction's last event is that of its generation (`nf_tables_commit`).
    fn note(&mut self, event: &Event, changes: &mut TableChanges) {
        match event {
            Event::Generation(generation) if std::mem::take(&mut self.is_touched) => {
                changes.generations.push(*generation);
            }
            _ => self.is_touched |= event.table().is_some_and(|table| table.name == self.table),
        }
    }
}

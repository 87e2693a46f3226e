//! nf_tables tables over [`nftables::Client`].

use nftables::{
    ChainKey, Client, Error, ErrorKind, InvalidValue, ObservedChain, ObservedRule, Part, Table, TableKey,
    TableSnapshot, Transaction,
};

use super::error::io_kind;
use super::lazy::Lazy;
use crate::ports::{NotCommitted, PortError, PortErrorKind, Result, Tables};

/// Manages tables through [`nftables::Client`].
#[doc(hidden)]
#[derive(Debug)]
pub struct TablesPort {
    client: Lazy<Client, Error>,
}

fn kind_of(error: &Error) -> PortErrorKind {
    match error.kind() {
        ErrorKind::NotFound => PortErrorKind::NotFound,
        ErrorKind::AlreadyExists => PortErrorKind::AlreadyExists,
        ErrorKind::InUse | ErrorKind::GenerationChanged | ErrorKind::NoMemory | ErrorKind::Interrupted => {
            PortErrorKind::Busy
        }
        ErrorKind::SetFull => PortErrorKind::Full,
        ErrorKind::Unsupported => PortErrorKind::Unavailable,
        ErrorKind::Permission | ErrorKind::TooLarge => PortErrorKind::Permission,
        ErrorKind::Overlap | ErrorKind::Loop | ErrorKind::Rejected | ErrorKind::Invalid => PortErrorKind::Invalid,
        ErrorKind::Timeout | ErrorKind::StateUnknown => PortErrorKind::Unknown,
        ErrorKind::Io => io_kind(error),
        _ => PortErrorKind::Other,
    }
}

/// Whether the next call should open a new socket.
fn is_broken(error: &Error) -> bool {
    use ErrorKind::{Io, Malformed, StateUnknown, Timeout};
    matches!(error.kind(), Io | Malformed | StateUnknown | Timeout)
}

impl TablesPort {
    pub fn new(open: impl FnMut() -> Result<Client, Error> + Send + 'static) -> Self {
        TablesPort { client: Lazy::new(open) }
    }

    fn call<T>(&mut self, ask: impl FnOnce(&mut Client) -> Result<T, Error>) -> Result<T, Error> {
        self.client.ask(ask, is_broken)
    }
}

pub(super) fn port_error(error: &Error) -> PortError {
    PortError::from_error(kind_of(error), error)
}

/// `None` if the object does not exist.
fn if_there<T>(found: Result<T, Error>) -> Result<Option<T>> {
    match found {
        Err(error) if error.is_not_found() => Ok(None),
        found => found.map(Some).map_err(|error| port_error(&error)),
    }
}

impl Tables for TablesPort {
    fn generation(&mut self) -> Result<u32> {
        self.call(Client::generation).map_err(|error| port_error(&error))
    }

    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>> {
        if_there(self.call(|client| client.snapshot(table)))
    }

    fn table(&mut self, table: &TableKey) -> Result<Option<Table>> {
        Ok(if_there(self.call(|client| client.get_table(table)))?.map(|found| found.table))
    }

    fn has_chain(&mut self, table: &TableKey, chain: &str) -> Result<bool> {
        let invalid = |error: InvalidValue| PortError::from_error(PortErrorKind::Invalid, &error);
        let chain = table.chain(chain).map_err(invalid)?;
        Ok(if_there(self.call(|client| client.get_chain(&chain)))?.is_some())
    }

    fn list(&mut self) -> Result<Vec<TableKey>> {
        let tables = self.call(|client| client.list_tables(None)).map_err(|error| port_error(&error))?;
        Ok(tables.into_iter().map(|of| of.table.key).collect())
    }

    fn chains(&mut self, table: &TableKey) -> Result<Vec<ObservedChain>> {
        self.call(|client| client.list_chains(table)).map_err(|error| port_error(&error))
    }

    fn rules(&mut self, chain: &ChainKey) -> Result<Vec<ObservedRule>> {
        self.call(|client| client.list_rules(chain)).map_err(|error| port_error(&error))
    }

    fn check(&mut self, transaction: &Transaction) -> Result<(), NotCommitted> {
        self.call(|client| client.check(transaction)).map_err(|error| not_committed(&error))
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), NotCommitted> {
        self.call(|client| client.commit(transaction)).map_err(|error| not_committed(&error))
    }
}

fn not_committed(error: &Error) -> NotCommitted {
    let first = error.refusals().iter().find_map(|refusal| Some((refusal, refusal.operation?)));
    let refused = first.map(|(refusal, operation)| {
        let element = match refusal.part {
            Part::Element { index } => Some(index),
            // If there is only one, that is it.
            Part::AmongElements { first, last } if first == last => Some(first),
            _ => None,
        };
        (operation, element)
    });
    NotCommitted { error: port_error(error), refused }
}

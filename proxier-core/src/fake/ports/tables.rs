//! nf_tables tables.

use nftables::{TableKey, TableSnapshot};

use super::gate::Gate;
use crate::fake::control::Call;
use crate::kernel::TablesPort;
use crate::net::Family;
use crate::ports::{NotCommitted, PortError, Tables};

pub(super) struct FakeTablesPort {
    pub(super) gate: Gate,
    /// Another program's client.
    pub(super) other: nftables::Client,
    pub(super) port: TablesPort,
}

impl Tables for FakeTablesPort {
    fn generation(&mut self) -> Result<u32, PortError> {
        self.gate.call(Call::TablesGeneration, None, || self.port.generation())
    }

    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>, PortError> {
        self.gate.call(Call::TablesRead, family_of(table), || self.port.read(table))
    }

    fn table(&mut self, table: &TableKey) -> Result<Option<nftables::Table>, PortError> {
        self.gate.call(Call::TablesTable, family_of(table), || self.port.table(table))
    }

    fn list(&mut self) -> Result<Vec<TableKey>, PortError> {
        self.port.list()
    }

    fn has_chain(&mut self, table: &TableKey, chain: &str) -> Result<bool, PortError> {
        self.gate.call(Call::TablesHasChain, family_of(table), || self.port.has_chain(table, chain))
    }

    fn check(&mut self, transaction: &nftables::Transaction) -> Result<(), NotCommitted> {
        let port = &mut self.port;
        committing(&self.gate, Call::TablesCheck, || port.check(transaction))
    }

    fn commit(&mut self, transaction: &nftables::Transaction) -> Result<(), NotCommitted> {
        let theirs = self.gate.0.lock().others.pop_front();
        if let Some(theirs) = theirs {
            // A refused transaction has no effect, as on a kernel.
            drop(self.other.commit(&theirs));
        }
        let port = &mut self.port;
        committing(&self.gate, Call::TablesCommit, || port.commit(transaction))
    }
}

fn committing(gate: &Gate, call: Call, commit: impl FnOnce() -> Result<(), NotCommitted>) -> Result<(), NotCommitted> {
    let mut refused = None;
    let outcome = gate.call(call, None, || {
        commit().map_err(|not| {
            refused = not.refused;
            not.error
        })
    });
    outcome.map_err(|error| NotCommitted { error, refused })
}

fn family_of(table: &TableKey) -> Option<Family> {
    match table.family {
        nftables::Family::Ip => Some(Family::V4),
        nftables::Family::Ip6 => Some(Family::V6),
        _ => None,
    }
}

//! nf_tables tables.

use nftables::{ChainKey, ObservedChain, ObservedRule, Table, TableKey, TableSnapshot, Transaction};

use super::PortError;

/// A transaction that the kernel refused as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct NotCommitted {
    /// The kernel's error.
    pub error: PortError,
    /// Index of the refused operation, from 0, and of its element if the kernel reported one.
    pub refused: Option<(usize, Option<usize>)>,
}

/// nf_tables tables.
pub trait Tables {
    /// The generation of the rule set, which grows with every change by any program.
    ///
    /// # Errors
    /// [`Unavailable`](super::PortErrorKind::Unavailable) without nf_tables.
    fn generation(&mut self) -> Result<u32, PortError>;

    /// Reads a table with all its contents in one generation; `None` if it does not exist.
    ///
    /// # Errors
    /// If it could not be read completely.
    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>, PortError>;

    /// Reads a table without its contents; `None` if it does not exist.
    ///
    /// # Errors
    /// If the request failed.
    fn table(&mut self, table: &TableKey) -> Result<Option<Table>, PortError>;

    /// Whether a table has a chain of this name. `false` without the table.
    ///
    /// # Errors
    /// If the request failed.
    fn has_chain(&mut self, table: &TableKey, chain: &str) -> Result<bool, PortError>;

    /// Lists all tables, of all programs. Default: none.
    ///
    /// # Errors
    /// If the request failed.
    fn list(&mut self) -> Result<Vec<TableKey>, PortError> {
        Ok(Vec::new())
    }

    /// Lists the chains of a table; none if it does not exist.
    ///
    /// # Errors
    /// If the request failed.
    fn chains(&mut self, table: &TableKey) -> Result<Vec<ObservedChain>, PortError> {
        Ok(self.read(table)?.map(|read| read.chains).unwrap_or_default())
    }

    /// Lists the rules of a chain, in order; none if it does not exist.
    ///
    /// # Errors
    /// If the request failed.
    fn rules(&mut self, chain: &ChainKey) -> Result<Vec<ObservedRule>, PortError> {
        let rules = self.read(&chain.table)?.map(|read| read.rules).unwrap_or_default();
        Ok(rules.into_iter().filter(|rule| rule.chain == *chain).collect())
    }

    /// Lets the kernel check all changes without applying them.
    ///
    /// # Errors
    /// As [`Tables::commit`].
    fn check(&mut self, transaction: &Transaction) -> Result<(), NotCommitted>;

    /// Applies all changes atomically, or none.
    ///
    /// # Errors
    /// The kernel's refusal. [`Unknown`](super::PortErrorKind::Unknown) if the kernel may have applied the changes.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), NotCommitted>;
}

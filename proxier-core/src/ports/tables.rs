//! Tables of nf_tables.

use nftables::{ChainKey, ObservedChain, ObservedRule, Table, TableKey, TableSnapshot, Transaction};

use super::PortError;

/// A transaction of which the kernel made nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct NotCommitted {
    /// Error of the kernel.
    pub error: PortError,
    /// The operation that the kernel refused, from 0, and its element, where it said which.
    pub refused: Option<(usize, Option<usize>)>,
}

/// Tables of nf_tables.
pub trait Tables {
    /// The generation of the rule set: it grows with every own and foreign change.
    ///
    /// # Errors
    /// [`Unavailable`](super::PortErrorKind::Unavailable) without nf_tables.
    fn generation(&mut self) -> Result<u32, PortError>;

    /// A table with everything in it, of one generation; `None` when there is none.
    ///
    /// # Errors
    /// When it could not be read as a whole.
    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>, PortError>;

    /// A table without its contents; `None` when there is none.
    ///
    /// # Errors
    /// When the kernel could not be asked.
    fn table(&mut self, table: &TableKey) -> Result<Option<Table>, PortError>;

    /// Whether there is a chain of this name in a table. Without the table there is none.
    ///
    /// # Errors
    /// When the kernel could not be asked.
    fn has_chain(&mut self, table: &TableKey, chain: &str) -> Result<bool, PortError>;

    /// All tables, own and foreign. Default: none is known.
    ///
    /// # Errors
    /// When the kernel could not be asked.
    fn list(&mut self) -> Result<Vec<TableKey>, PortError> {
        Ok(Vec::new())
    }

    /// The chains of a table; none without the table.
    ///
    /// # Errors
    /// When the kernel could not be asked.
    fn chains(&mut self, table: &TableKey) -> Result<Vec<ObservedChain>, PortError> {
        Ok(self.read(table)?.map(|read| read.chains).unwrap_or_default())
    }

    /// The rules of a chain, in order; none without the chain.
    ///
    /// # Errors
    /// When the kernel could not be asked.
    fn rules(&mut self, chain: &ChainKey) -> Result<Vec<ObservedRule>, PortError> {
        let rules = self.read(&chain.table)?.map(|read| read.rules).unwrap_or_default();
        Ok(rules.into_iter().filter(|rule| rule.chain == *chain).collect())
    }

    /// Has the kernel check all changes, and makes none of them.
    ///
    /// # Errors
    /// As [`Tables::commit`].
    fn check(&mut self, transaction: &Transaction) -> Result<(), NotCommitted>;

    /// Makes all changes at one instant, or none.
    ///
    /// # Errors
    /// The kernel's refusal. [`Unknown`](super::PortErrorKind::Unknown) when it is not known whether the kernel made the changes.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), NotCommitted>;
}

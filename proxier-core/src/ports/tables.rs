//! Tables of nf_tables.

use nftables::{Table, TableKey, TableSnapshot, Transaction};

use super::PortError;

/// A transaction of which the kernel made nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCommitted {
    /// Why.
    pub error: PortError,
    /// The operation that the kernel refused, from 0, and its element, where it said which.
    pub refused: Option<(usize, Option<usize>)>,
}

/// Tables of nf_tables.
pub trait Tables {
    /// The generation of the rule set: it grows with every change that anybody makes.
    ///
    /// # Errors
    /// [`Unavailable`](super::PortErrorKind::Unavailable) without nf_tables.
    fn generation(&mut self) -> Result<u32, PortError>;

    /// A table with everything in it, of one generation; `None` when there is none.
    ///
    /// # Errors
    /// When it could not be read as a whole.
    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>, PortError>;

    /// A table without what is in it; `None` when there is none.
    ///
    /// # Errors
    /// When the kernel could not be asked.
    fn table(&mut self, table: &TableKey) -> Result<Option<Table>, PortError>;

    /// Whether there is a chain of this name in a table. Without the table there is none.
    ///
    /// # Errors
    /// When the kernel could not be asked.
    fn has_chain(&mut self, table: &TableKey, chain: &str) -> Result<bool, PortError>;

    /// Has the kernel check all changes, and makes none of them.
    ///
    /// # Errors
    /// As [`Tables::commit`].
    fn check(&mut self, transaction: &Transaction) -> Result<(), NotCommitted>;

    /// Makes all changes at one instant, or none.
    ///
    /// # Errors
    /// What the kernel refused. [`Unknown`](super::PortErrorKind::Unknown) when it is not known whether it made them.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), NotCommitted>;
}

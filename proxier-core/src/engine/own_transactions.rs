//! Generations of the rule set caused by this process's own transactions.
//!
//! The kernel counts all transactions of a network namespace, and does not report the sender's own number. If other
//! programs commit at the same time, the own generation is one of several. These are compared with the generations that
//! wrote to this proxy's tables: if there are more than own ones, another program wrote.

use std::collections::VecDeque;
use std::time::Duration;

use nftables::{ChainKey, ObservedChain, ObservedRule, Table, TableKey, TableSnapshot, Transaction};

use crate::ports::{NotCommitted, Result, Tables};
use crate::time::Moment;

/// Largest number of spans kept, in case no monitor reports them.
const MOST: usize = 1000;

/// If two proxies, or a proxy and a person, undo each other's work, everything is compared no more often than this.
const BETWEEN_FOREIGN_CHANGES: Duration = Duration::from_secs(1);

/// What passes track about changes to this proxy's nf_tables tables.
#[derive(Debug, Default)]
pub(super) struct OwnTables {
    pub(super) transactions: OwnTransactions,
    /// When everything was last compared, or will be next, because another program changed them.
    compared_at: Option<Moment>,
}

impl OwnTables {
    /// When everything is compared if another program has changed tables now.
    pub(super) fn compare_at(&mut self, now: Moment) -> Moment {
        let at = match self.compared_at {
            Some(last) if now < last => last,
            Some(last) => now.max(last.saturating_add(BETWEEN_FOREIGN_CHANGES)),
            None => now,
        };
        self.compared_at = Some(at);
        at
    }
}

/// Own transactions that were not reported yet.
#[derive(Debug, Default)]
pub(super) struct OwnTransactions {
    spans: VecDeque<Span>,
    /// The generation up to which everything was read or comes from own transactions. `None`: another program has
    /// written since.
    seen: Option<u32>,
}

/// An own transaction, one of all from one generation to another.
#[derive(Debug)]
struct Span {
    /// The generation before them.
    before: u32,
    /// Number of all transactions.
    all: u32,
}

impl OwnTransactions {
    /// Records an own transaction, committed between the generations `before` and `after`. Other programs may have
    /// committed too.
    fn note(&mut self, before: u32, after: u32) {
        self.seen = self.seen.filter(|seen| *seen == before && before.wrapping_add(1) == after).map(|_| after);
        self.spans.push_back(Span { before, all: after.wrapping_sub(before) });
        if self.spans.len() > MOST {
            self.spans.pop_front();
        }
    }

    /// Whether another program made any of these generations. `lost`: there may have been more.
    pub(super) fn differs(&mut self, generations: &[u32], lost: bool, tables: &mut dyn Tables) -> bool {
        // Each is looked up, so that this process's own are dropped.
        let others = generations.iter().filter(|generation| !self.forget(**generation)).count();
        let unseen = lost && tables.generation().map_or(true, |now| self.seen != Some(now));
        others > 0 || unseen
    }

    /// Removes the own transaction that made this generation, if there is one.
    fn forget(&mut self, generation: u32) -> bool {
        // From 1 for the first one.
        let of = |span: &Span| generation.wrapping_sub(span.before);
        let found = self.spans.iter().position(|span| (1..=span.all).contains(&of(span)));
        found.and_then(|place| self.spans.remove(place)).is_some()
    }
}

/// Tables that record which transactions are this process's own.
pub(super) struct RecordingTables<'a> {
    tables: &'a mut dyn Tables,
    own_transactions: &'a mut OwnTransactions,
    has_read: bool,
    /// The generation that the kernel reported last, if this process has written nothing since.
    told: Option<u32>,
    /// Whether `told` comes from this process's last transaction, and no caller has used it yet.
    is_new: bool,
}

impl<'a> RecordingTables<'a> {
    pub(super) fn new(tables: &'a mut dyn Tables, own_transactions: &'a mut OwnTransactions) -> Self {
        RecordingTables { tables, own_transactions, has_read: false, told: None, is_new: false }
    }

    /// The generation, read only if this pass does not know it. Other programs' transactions since then count among
    /// later ones.
    fn before(&mut self) -> Option<u32> {
        self.told.or_else(|| self.generation().ok())
    }
}

impl Tables for RecordingTables<'_> {
    /// Right after a transaction of this process it is known.
    fn generation(&mut self) -> Result<u32> {
        let told = self.told.take();
        if let Some(new) = told.filter(|_| std::mem::take(&mut self.is_new)) {
            self.told = told;
            return Ok(new);
        }
        let generation = self.tables.generation()?;
        self.told = Some(generation);
        Ok(generation)
    }

    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>> {
        // Everything read after this includes earlier changes of other programs.
        if !std::mem::replace(&mut self.has_read, true) {
            self.own_transactions.seen = self.before();
        }
        self.tables.read(table)
    }

    fn table(&mut self, table: &TableKey) -> Result<Option<Table>> {
        self.tables.table(table)
    }

    fn has_chain(&mut self, table: &TableKey, chain: &str) -> Result<bool> {
        self.tables.has_chain(table, chain)
    }

    fn list(&mut self) -> Result<Vec<TableKey>> {
        self.tables.list()
    }

    fn chains(&mut self, table: &TableKey) -> Result<Vec<ObservedChain>> {
        self.tables.chains(table)
    }

    fn rules(&mut self, chain: &ChainKey) -> Result<Vec<ObservedRule>> {
        self.tables.rules(chain)
    }

    fn check(&mut self, transaction: &Transaction) -> Result<(), NotCommitted> {
        self.tables.check(transaction)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), NotCommitted> {
        let before = self.before();
        self.is_new = false;
        self.tables.commit(transaction)?;
        match (before, self.generation()) {
            (Some(before), Ok(after)) => {
                self.own_transactions.note(before, after);
                self.is_new = true;
            }
            // Its report will look like another program's, so everything is compared.
            _ => self.own_transactions.seen = None,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_transactions_are_distinguished() {
        let mut own_transactions = OwnTransactions::default();
        own_transactions.note(7, 8);
        own_transactions.note(8, 9);
        own_transactions.note(9, 10);
        assert!(own_transactions.forget(8) && own_transactions.forget(9) && own_transactions.forget(10));
        assert!([8, 9, 10, 11, 7].into_iter().all(|generation| !own_transactions.forget(generation)));
    }

    #[test]
    fn each_own_transaction_explains_one_generation_only() {
        let mut own_transactions = OwnTransactions::default();
        // Two of three are its own.
        own_transactions.note(u32::MAX - 1, 1);
        own_transactions.note(u32::MAX - 1, 1);
        assert!(own_transactions.forget(u32::MAX) && own_transactions.forget(1));
        assert!(!own_transactions.forget(0), "a third one wrote to the tables");
    }

    #[test]
    fn unreported_transactions_are_forgotten() {
        let mut own_transactions = OwnTransactions::default();
        for pass in 0..5000 {
            own_transactions.note(pass, pass + 1);
        }
        assert_eq!(own_transactions.spans.len(), MOST);
        assert!(!own_transactions.forget(1) && own_transactions.forget(5000));
    }
}

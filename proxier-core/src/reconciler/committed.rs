//! Which generations of the rule set are of this process's own transactions.
//!
//! The kernel counts all transactions of a network namespace, and does not tell the sender which number its own got. If others
//! commit at the same time, our generation is one of several. These are compared with the generations that wrote to our tables: more
//! than ours means that somebody else wrote.

use std::collections::VecDeque;

use nftables::{ChainKey, ObservedChain, ObservedRule, Table, TableKey, TableSnapshot, Transaction};

use crate::ports::{NotCommitted, PortError, Tables};

/// So many passes are remembered; nobody may be listening.
const MOST: usize = 1000;

/// Own transactions that were not reported yet.
#[derive(Debug, Default)]
pub(super) struct Committed {
    spans: VecDeque<Span>,
    /// The generation up to which everything was read, or is of own transactions. `None`: others wrote something since.
    seen: Option<u32>,
}

/// Some own transactions, among all from one generation to another.
#[derive(Debug)]
struct Span {
    /// The generation before them.
    before: u32,
    /// How many transactions there were.
    all: u32,
    /// How many of these were own ones, and not reported yet.
    own: u32,
}

impl Committed {
    /// Own transactions, `count` of them, were committed after the generation `before`; then it was `after`. Others may have been, too.
    fn note(&mut self, before: u32, after: u32, count: u32) {
        self.seen = self.seen.filter(|seen| *seen == before && before.wrapping_add(count) == after).map(|_| after);
        self.spans.push_back(Span { before, all: after.wrapping_sub(before), own: count });
        if self.spans.len() > MOST {
            self.spans.pop_front();
        }
    }

    /// Whether any of the transactions that made these generations was somebody else's. `lost`: there may have been more.
    pub(super) fn differs(&mut self, generations: &[u32], lost: bool, tables: &mut dyn Tables) -> bool {
        // Each is looked up, so that those that are this process's own are forgotten.
        let others = generations.iter().filter(|generation| !self.forget(**generation)).count();
        let unseen = lost && tables.generation().map_or(true, |now| self.seen != Some(now));
        others > 0 || unseen
    }

    /// Takes the own transaction that made this generation, if there is one.
    fn forget(&mut self, generation: u32) -> bool {
        // From 1 for the first one.
        let of = |span: &Span| generation.wrapping_sub(span.before);
        let found = self.spans.iter().position(|span| (1..=span.all).contains(&of(span)) && span.own > 0);
        let Some(span) = found.and_then(|place| self.spans.get_mut(place)) else { return false };
        span.own = span.own.saturating_sub(1);
        self.spans.retain(|span| span.own > 0);
        true
    }
}

/// Tables that note which transactions are this process's own.
pub(super) struct Noting<'a> {
    tables: &'a mut dyn Tables,
    committed: &'a mut Committed,
    has_read: bool,
    /// The generation that the kernel told last, as far as this process has written nothing since.
    told: Option<u32>,
}

impl<'a> Noting<'a> {
    pub(super) fn new(tables: &'a mut dyn Tables, committed: &'a mut Committed) -> Self {
        Noting { tables, committed, has_read: false, told: None }
    }

    /// The generation, asked for only if it was not told in this pass. What others wrote since counts among what comes after it.
    fn before(&mut self) -> Option<u32> {
        self.told.or_else(|| self.generation().ok())
    }
}

impl Tables for Noting<'_> {
    fn generation(&mut self) -> Result<u32, PortError> {
        self.told = None;
        let generation = self.tables.generation()?;
        self.told = Some(generation);
        Ok(generation)
    }

    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>, PortError> {
        // What is read after this has whatever others wrote before.
        if !std::mem::replace(&mut self.has_read, true) {
            self.committed.seen = self.before();
        }
        self.tables.read(table)
    }

    fn table(&mut self, table: &TableKey) -> Result<Option<Table>, PortError> {
        self.tables.table(table)
    }

    fn has_chain(&mut self, table: &TableKey, chain: &str) -> Result<bool, PortError> {
        self.tables.has_chain(table, chain)
    }

    fn list(&mut self) -> Result<Vec<TableKey>, PortError> {
        self.tables.list()
    }

    fn chains(&mut self, table: &TableKey) -> Result<Vec<ObservedChain>, PortError> {
        self.tables.chains(table)
    }

    fn rules(&mut self, chain: &ChainKey) -> Result<Vec<ObservedRule>, PortError> {
        self.tables.rules(chain)
    }

    fn check(&mut self, transaction: &Transaction) -> Result<(), NotCommitted> {
        self.tables.check(transaction)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), NotCommitted> {
        let before = self.before();
        self.tables.commit(transaction)?;
        match (before, self.generation()) {
            (Some(before), Ok(after)) => self.committed.note(before, after, 1),
            // Its report will be taken for somebody else's, and everything compared.
            _ => self.committed.seen = None,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_transactions_are_told_from_others() {
        let mut committed = Committed::default();
        committed.note(7, 9, 2);
        committed.note(9, 10, 1);
        assert!(committed.forget(8) && committed.forget(9) && committed.forget(10));
        assert!([8, 9, 10, 11, 7].into_iter().all(|generation| !committed.forget(generation)));
    }

    #[test]
    fn among_others_there_are_no_more_than_its_own() {
        let mut committed = Committed::default();
        // Two of three are its own.
        committed.note(u32::MAX - 1, 1, 2);
        assert!(committed.forget(u32::MAX) && committed.forget(1));
        assert!(!committed.forget(0), "a third one wrote to the tables");
    }

    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let mut committed = Committed::default();
        for pass in 0..5000 {
            committed.note(pass, pass + 1, 1);
        }
        assert_eq!(committed.spans.len(), MOST);
        assert!(!committed.forget(1) && committed.forget(5000));
    }
}

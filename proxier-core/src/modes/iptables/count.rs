//! Counts the rules that tables have in own chains, without reading anything.

use std::collections::BTreeMap;

use iptables::{Dump, Edit, Table, TableEdit, TableName, Transaction};

use super::names;
use super::wanted::ServiceRules;
use crate::net::Family;
use crate::pack::Gather as _;
use crate::plan::report::RuleCount;

/// Numbers of rules by table, in the order of [`names::TABLES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally([isize; 2]);

/// Adds numbers of rules in tables.
impl Extend<(TableName, usize)> for Tally {
    fn extend<I: IntoIterator<Item = (TableName, usize)>>(&mut self, counted: I) {
        for (table, number) in counted {
            for (_, count) in names::TABLES.iter().zip(&mut self.0).filter(|(of, _)| **of == table) {
                *count = count.saturating_add_unsigned(number);
            }
        }
    }
}

impl Tally {
    pub(super) fn and(self, other: Tally) -> Tally {
        let ([filter, nat], [more, of_nat]) = (self.0, other.0);
        Tally([filter.saturating_add(more), nat.saturating_add(of_nat)])
    }

    pub(super) fn less(self, other: Tally) -> Tally {
        self.and(Tally(other.0.map(isize::saturating_neg)))
    }

    /// Number of rules in own chains after a transaction on these, and number of those that it writes. A chain gets its
    /// rules in one place of the transaction, so emptied chains had them before.
    pub(super) fn after(dump: &Dump, transaction: &Transaction) -> (Tally, Tally) {
        let count = |table: TableName| {
            let is_ours = |chain: &str| names::is_ours(&table, chain);
            let there = dump.table(&table).into_iter().flat_map(Table::chains);
            let there = there.filter(|chain| is_ours(chain.name.as_str()));
            let mut there: BTreeMap<&str, usize> = there.map(|chain| (chain.name.as_str(), chain.rules.len())).gather();
            let mut come = 0_usize;
            let changes = transaction.tables().iter().filter(|change| *change.name() == table);
            for edit in changes.flat_map(TableEdit::edits) {
                match edit {
                    Edit::Replace(chain, rules) if is_ours(chain.as_str()) => {
                        there.remove(chain.as_str());
                        come = come.saturating_add(rules.len());
                    }
                    Edit::Append(chain, _) | Edit::Insert(chain, ..) if is_ours(chain.as_str()) => {
                        come = come.saturating_add(1);
                    }
                    Edit::Flush(chain) | Edit::DeleteChain(chain) => {
                        there.remove(chain.as_str());
                    }
                    _ => {}
                }
            }
            ((table.clone(), there.into_values().fold(come, usize::saturating_add)), (table, come))
        };
        names::TABLES.into_iter().map(count).unzip()
    }

    pub(super) fn of(rules: &ServiceRules) -> Tally {
        let mut tally = Tally::default();
        tally.extend(rules.lines.iter().map(|line| (line.chain.table(), 1)));
        tally.extend(rules.chains.iter().map(|chain| (TableName::NAT, chain.rules.len())));
        tally
    }

    /// Converts the counts to metrics, one for each table.
    pub(super) fn told(self, written: Tally, family: Family) -> impl Iterator<Item = RuleCount> {
        let counts = ["filter", "nat"].into_iter().zip(self.0.into_iter().zip(written.0));
        let number = |count: isize| usize::try_from(count).unwrap_or_default();
        counts.map(move |(table, (total, written))| RuleCount {
            family,
            table,
            total: number(total),
            written: number(written),
        })
    }
}

//! Counts the rules that tables have in own chains, without reading anything.

use std::collections::BTreeMap;

use iptables::{Dump, Edit, Table, TableEdit, TableName, Transaction};

use super::lines::Line;
use super::names;
use crate::net::Family;
use crate::plan::report::RuleCount;

/// Numbers of rules by table, in the order of [`names::TABLES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally([isize; 2]);

/// How a write changes the number of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Total(Tally),
    /// The number of added rules, less that of removed ones.
    Difference(Tally),
}

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
            let mut there: BTreeMap<&str, usize> =
                there.map(|chain| (chain.name.as_str(), chain.rules.len())).collect();
            let (mut come, mut go) = (0_usize, 0_usize);
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
                    Edit::Delete(chain, _) if is_ours(chain.as_str()) => go = go.saturating_add(1),
                    Edit::Flush(chain) | Edit::DeleteChain(chain) => {
                        there.remove(chain.as_str());
                    }
                    _ => {}
                }
            }
            let total = there.into_values().fold(come, usize::saturating_add);
            ((table.clone(), total.saturating_sub(go)), (table, come))
        };
        names::TABLES.into_iter().map(count).unzip()
    }

    /// Counts lines of shared chains, and the rules of chains of Services.
    pub(super) fn of_lines(lines: &[Line], chains: &[iptables::Chain]) -> Tally {
        let mut tally = Tally::default();
        tally.extend(lines.iter().map(|line| (line.chain.table(), 1)));
        tally.extend(chains.iter().map(|chain| (TableName::NAT, chain.rules.len())));
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

impl Outcome {
    /// The number afterwards; `None` if the number before is unknown.
    pub(super) fn from(self, before: Option<Tally>) -> Option<Tally> {
        match self {
            Outcome::Total(total) => Some(total),
            Outcome::Difference(difference) => Some(before?.and(difference)),
        }
    }
}

#[cfg(test)]
mod tests {
    use iptables::{ChainName, Rule};

    use super::*;

    fn chain(name: &str) -> ChainName {
        ChainName::new(name).unwrap()
    }

    fn rule() -> Rule {
        Rule::parse("-j ACCEPT").unwrap()
    }

    #[test]
    fn only_own_edits_are_counted() {
        let dump = "*nat\n:PREROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n:KUBE-SVC-B - [0:0]\n:MINE - [0:0]\n\
                    -A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -j KUBE-SVC-A\n-A KUBE-SERVICES -j KUBE-SVC-B\n\
                    -A KUBE-SVC-A -j ACCEPT\n-A KUBE-SVC-B -j ACCEPT\n-A MINE -j ACCEPT\nCOMMIT\n";
        let dump = Dump::parse(dump).unwrap();
        let mut transaction = Transaction::new();
        assert_eq!(Tally::after(&dump, &transaction), (Tally([0, 4]), Tally::default()));
        transaction
            .table(TableName::NAT)
            .replace_chain(&chain("KUBE-SVC-A"), [rule(), rule()])
            .replace_chain(&chain("KUBE-SEP-C"), [rule()])
            .edit(Edit::Delete(chain("KUBE-SERVICES"), Rule::parse("-j KUBE-SVC-B").unwrap()))
            .edit(Edit::Insert(chain("KUBE-SERVICES"), 1, rule()))
            .edit(Edit::Insert(chain("PREROUTING"), 1, rule()))
            .delete_chain(chain("KUBE-SVC-B"));
        transaction.table(TableName::FILTER).replace_chain(&chain("KUBE-FORWARD"), [rule()]);
        let written = Tally([1, 2 + 1 + 1]);
        assert_eq!(Tally::after(&dump, &transaction), (Tally([1, 2 + 2 + 1]), written));
    }

    #[test]
    fn a_difference_needs_the_number_before() {
        let difference = Outcome::Difference(Tally([0, 5]).less(Tally([1, 2])));
        assert_eq!(difference.from(None), None);
        assert_eq!(difference.from(Some(Tally([3, 10]))), Some(Tally([2, 13])));
        assert_eq!(Outcome::Total(Tally([7, 8])).from(None), Some(Tally([7, 8])));
    }
}

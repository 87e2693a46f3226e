//! Counts the rules that tables have in own chains, without reading anything.

use std::collections::BTreeMap;

use iptables::{ChainName, Dump, Edit, TableName, Transaction};

use super::lines::Line;
use super::names;
use crate::net::Family;
use crate::plan::report::RuleCount;

/// A number for each table, in the order of [`names::TABLES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally([usize; 2]);

/// How a write changes the number of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The number of rules afterwards.
    Total(Tally),
    /// The numbers of removed and added rules.
    Difference { gone: Tally, new: Tally },
}

fn table_index(table: &TableName) -> Option<usize> {
    names::TABLES.iter().position(|known| known == table)
}

/// The chain that gets rules, and how many.
fn added(edit: &Edit) -> Option<(&ChainName, usize)> {
    match edit {
        Edit::Replace(chain, rules) => Some((chain, rules.len())),
        Edit::Append(chain, _) | Edit::Insert(chain, ..) => Some((chain, 1)),
        _ => None,
    }
}

impl Tally {
    fn add(&mut self, table: &TableName, number: usize) {
        if let Some(count) = table_index(table).and_then(|place| self.0.get_mut(place)) {
            *count = count.saturating_add(number);
        }
    }

    fn of_table(&self, table: &TableName) -> usize {
        table_index(table).and_then(|place| self.0.get(place)).copied().unwrap_or_default()
    }

    /// Both together.
    pub(super) fn and(self, other: Tally) -> Tally {
        let mut sum = self;
        for table in names::TABLES {
            sum.add(&table, other.of_table(&table));
        }
        sum
    }

    fn less(self, other: Tally) -> Tally {
        let mut rest = self;
        for (rest, gone) in rest.0.iter_mut().zip(other.0) {
            *rest = rest.saturating_sub(gone);
        }
        rest
    }

    /// Number of rules that a transaction writes into own chains.
    pub(super) fn written(transaction: &Transaction) -> Tally {
        let mut written = Tally::default();
        for table in transaction.tables() {
            for (chain, rules) in table.edits().iter().filter_map(added) {
                if names::is_ours(table.name(), chain.as_str()) {
                    written.add(table.name(), rules);
                }
            }
        }
        written
    }

    /// Number of rules in own chains after a transaction on these, and number of those that it writes. A chain gets its
    /// rules in one place of the transaction, so emptied chains had them before.
    pub(super) fn after(dump: &Dump, transaction: &Transaction) -> (Tally, Tally) {
        let (mut tally, mut written) = (Tally::default(), Tally::default());
        for table in names::TABLES {
            let is_ours = |chain: &str| names::is_ours(&table, chain);
            let there = dump.table(&table).into_iter().flat_map(iptables::Table::chains);
            let there = there.filter(|chain| is_ours(chain.name.as_str()));
            let mut there: BTreeMap<&str, usize> =
                there.map(|chain| (chain.name.as_str(), chain.rules.len())).collect();
            let (mut come, mut go) = (0_usize, 0_usize);
            for change in transaction.tables().iter().filter(|change| *change.name() == table) {
                for edit in change.edits() {
                    if let Edit::Replace(chain, _) | Edit::Flush(chain) | Edit::DeleteChain(chain) = edit {
                        there.remove(chain.as_str());
                    }
                    match (added(edit), edit) {
                        (Some((chain, rules)), _) if is_ours(chain.as_str()) => come = come.saturating_add(rules),
                        (None, Edit::Delete(chain, _)) if is_ours(chain.as_str()) => go = go.saturating_add(1),
                        _ => {}
                    }
                }
            }
            let total = there.into_values().fold(come, usize::saturating_add);
            tally.add(&table, total.saturating_sub(go));
            written.add(&table, come);
        }
        (tally, written)
    }

    /// Counts lines of shared chains, and the rules of chains of Services.
    pub(super) fn of_lines(lines: &[Line], chains: &[iptables::Chain]) -> Tally {
        let mut tally = Tally::default();
        for line in lines {
            tally.add(&line.chain.table(), 1);
        }
        for chain in chains {
            tally.add(&TableName::NAT, chain.rules.len());
        }
        tally
    }

    /// Converts the counts to metrics, one for each table.
    pub(super) fn told(self, written: Tally, family: Family) -> impl Iterator<Item = RuleCount> {
        [("filter", TableName::FILTER), ("nat", TableName::NAT)].into_iter().map(move |(name, table)| RuleCount {
            family,
            table: name,
            total: self.of_table(&table),
            written: written.of_table(&table),
        })
    }
}

impl Outcome {
    /// The number afterwards; `None` if the number before is unknown.
    pub(super) fn from(self, before: Option<Tally>) -> Option<Tally> {
        match self {
            Outcome::Total(total) => Some(total),
            Outcome::Difference { gone, new } => Some(before?.and(new).less(gone)),
        }
    }
}

#[cfg(test)]
mod tests {
    use iptables::Rule;

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
        assert_eq!(Tally::written(&transaction), written);
    }

    #[test]
    fn a_difference_needs_the_number_before() {
        let difference = Outcome::Difference { gone: Tally([1, 2]), new: Tally([0, 5]) };
        assert_eq!(difference.from(None), None);
        assert_eq!(difference.from(Some(Tally([3, 10]))), Some(Tally([2, 13])));
        assert_eq!(Outcome::Total(Tally([7, 8])).from(None), Some(Tally([7, 8])));
    }
}

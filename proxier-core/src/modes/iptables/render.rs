//! Transactions for a change: only chains that changed, and lines in chains that all Services share.

use std::collections::{BTreeMap, BTreeSet};

use iptables::{ChainName, Edit, Error, Rule, TableName, Transaction};

use super::count::{Outcome, Tally};
use super::lines::{Line, SharedChain};
use super::wanted::Wanted;
use crate::net::Family;
use crate::service::Changes;

/// Input for `iptables-restore --noflush` that changes a family from the state recorded in `changes` to the wanted one; empty
/// when nothing has to change. Costs O(changes).
///
/// The kernel must have the rules that were wanted before: the program refuses to delete a line that is not there, or a chain to which
/// a foreign rule jumps, and then changes nothing in that table, though the table before may have changed. Read the
/// tables then, and write [`changes`](super::diff::changes). Do so too when [`Index::set_settings`](super::Index::set_settings) says that settings differ.
///
/// Chains that are not wanted any more are emptied, and deleted after all lines that lead to them.
///
/// # Errors
/// None in practice: every name and argument fits into what iptables reads.
#[cfg(feature = "testing")]
pub fn update(wanted: &Wanted<'_>, changes: &Changes, family: Family) -> Result<Transaction, Error> {
    written(wanted, changes, family).map(|(transaction, ..)| transaction)
}

/// As [`update`], and each table fails as a whole if the canary is gone from it: another program deleted the chains, and single lines
/// would be useless without the rest. Also returns the change of the number of rules.
///
/// # Errors
/// As [`update`].
pub(super) fn watchful_update(
    wanted: &Wanted<'_>,
    changes: &Changes,
    family: Family,
) -> Result<(Transaction, Outcome), Error> {
    let (mut transaction, tables, rules) = written(wanted, changes, family)?;
    let canary = ChainName::new(super::names::CANARY)?;
    for table in tables {
        transaction.table(table).edit(Edit::Flush(canary.clone()));
    }
    Ok((transaction, rules))
}

/// Transaction of [`update`], with the tables that it changes and the new number of rules.
fn written(
    wanted: &Wanted<'_>,
    changes: &Changes,
    family: Family,
) -> Result<(Transaction, BTreeSet<TableName>, Outcome), Error> {
    let steps = wanted.steps(changes, family)?;
    let rules = Outcome::Difference {
        gone: Tally::of_lines(&steps.lines_before, &steps.chains_before),
        new: Tally::of_lines(&steps.lines, &steps.chains),
    };
    let mut transaction = Transaction::new();
    let edits = line_edits(steps.lines_before, steps.lines)?;
    // Filter first: what is to be refused is, before its way to endpoints goes.
    let mut tables = BTreeSet::new();
    for table in super::names::TABLES {
        for (_, edit) in edits.iter().filter(|(shared, _)| shared.table() == table) {
            transaction.table(table.clone()).edit(edit.clone());
            tables.insert(table.clone());
        }
    }
    let before: BTreeMap<&ChainName, &[Rule]> =
        steps.chains_before.iter().map(|chain| (&chain.name, &*chain.rules)).collect();
    let now: BTreeSet<&ChainName> = steps.chains.iter().map(|chain| &chain.name).collect();
    let changed = steps.chains.iter().filter(|chain| before.get(&chain.name) != Some(&&*chain.rules));
    let gone: Vec<&ChainName> = before.keys().copied().filter(|name| !now.contains(name)).collect();
    let mut changed = changed.peekable();
    if changed.peek().is_none() && gone.is_empty() {
        return Ok((transaction, tables, rules));
    }
    tables.insert(TableName::NAT);
    let nat = transaction.table(TableName::NAT);
    for chain in changed {
        nat.replace_chain(&chain.name, chain.rules.iter().cloned());
    }
    for name in &gone {
        nat.chain((*name).clone());
    }
    for name in gone {
        nat.edit(Edit::DeleteChain(name.clone()));
    }
    Ok((transaction, tables, rules))
}

/// Deletes lines that are not wanted any more and inserts new ones. Lines that are equal count one by one.
fn line_edits(before: Vec<Line>, now: Vec<Line>) -> Result<Vec<(SharedChain, Edit)>, Error> {
    let mut counts: BTreeMap<(SharedChain, String), (Rule, isize)> = BTreeMap::new();
    for (lines, by) in [(before, -1), (now, 1)] {
        for Line { chain, rule } in lines {
            let (_, count) = counts.entry((chain, rule.to_string())).or_insert((rule, 0));
            *count = count.saturating_add(by);
        }
    }
    let (mut new, mut gone) = (Vec::new(), Vec::new());
    for ((chain, _), (rule, count)) in counts {
        let name = chain.name()?;
        for _ in 0..count.unsigned_abs() {
            let (name, rule) = (name.clone(), rule.clone());
            match chain {
                _ if count.is_negative() => gone.push((chain, Edit::Delete(name, rule))),
                // Before the last lines, which lead to node ports.
                SharedChain::Services => new.push((chain, Edit::Insert(name, 1, rule))),
                _ => new.push((chain, Edit::Append(name, rule))),
            }
        }
    }
    gone.append(&mut new);
    Ok(gone)
}

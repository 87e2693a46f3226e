//! Compares rules with the kernel's.

use std::fmt;

use iptables::{Chain, ChainName, Dump, Edit, Rule, Table, TableName, Transaction};
use serde::Serialize;

use super::{Rules, names};
use crate::config::NamePrefix;
use crate::modes::shared::cleaned::IsKept;

/// A table that `iptables-save` cannot show, because it contains something that only `nft` can express. Our rules in it
/// could not be found again, so nothing is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableTable {
    table: TableName,
}

#[cfg(feature = "testing")]
impl UnreadableTable {
    /// The table.
    pub fn table(&self) -> &TableName {
        &self.table
    }
}

impl fmt::Display for UnreadableTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = &self.table;
        write!(
            f,
            "table {table} has rules that iptables-save cannot show, so those of Services cannot be compared and are left \
             as they are; find them with `nft list ruleset` and remove what was not made by iptables"
        )
    }
}

impl std::error::Error for UnreadableTable {}

/// Whether a line is added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum LineChange {
    /// The line is added.
    Added,
    /// The line is removed.
    Removed,
}

/// A line of `iptables-save` that is added or removed. Prints as `+ nat -A KUBE-SERVICES …`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct RuleLine {
    /// Whether it is added or removed.
    pub change: LineChange,
    /// The table.
    pub table: String,
    /// `:CHAIN` for a chain, `-A CHAIN …` for a rule.
    pub line: String,
}

impl fmt::Display for RuleLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.change == LineChange::Added { '+' } else { '-' };
        write!(f, "{sign} {} {}", self.table, self.line)
    }
}

/// Changes of a family's tables. Prints as added and removed lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleChanges {
    transaction: Transaction,
    lines: Vec<RuleLine>,
}

impl RuleChanges {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.transaction.is_empty()
    }

    /// The input of `iptables-restore --noflush`; empty if nothing changes.
    pub fn transaction(&self) -> &Transaction {
        &self.transaction
    }

    /// The transaction, by value; `None` if nothing changes.
    pub fn into_transaction(self) -> Option<Transaction> {
        (!self.transaction.is_empty()).then_some(self.transaction)
    }

    /// Whether rules of iptables mode are replaced. Until then they send connections to endpoints, and guard load
    /// balancers.
    pub(crate) fn replace_iptables_mode(&self) -> bool {
        let leads_on = |line: &str| line.ends_with(" -j KUBE-NODEPORTS");
        let of_nat = |line: &&RuleLine| line.change == LineChange::Removed && line.table == "nat";
        self.lines.iter().filter(of_nat).any(|line| leads_on(&line.line))
    }

    /// The added and removed lines.
    pub fn lines(&self) -> &[RuleLine] {
        &self.lines
    }

    fn line(&mut self, change: LineChange, table: &TableName, line: String) {
        self.lines.push(RuleLine { change, table: table.to_string(), line });
    }

    fn rule(&mut self, change: LineChange, table: &TableName, chain: &ChainName, rule: &Rule) {
        self.line(change, table, format!("-A {chain} {}", rule.arguments()));
    }

    /// Records how one list of rules becomes another; the common start and end stay.
    fn rules(&mut self, table: &TableName, chain: &ChainName, old: &[Rule], new: &[Rule]) {
        let same = |(a, b): &(&Rule, &Rule)| a.same_as(b);
        let head = old.iter().zip(new).take_while(same).count();
        let (old, new) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
        let tail = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
        let but_tail = |list: &'_ [Rule]| list.len().saturating_sub(tail);
        for rule in old.iter().take(but_tail(old)) {
            self.rule(LineChange::Removed, table, chain, rule);
        }
        for rule in new.iter().take(but_tail(new)) {
            self.rule(LineChange::Added, table, chain, rule);
        }
    }
}

impl fmt::Display for RuleChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// This proxy's chains and jumps.
#[derive(Clone, Copy)]
pub(super) struct Ours<'a> {
    /// Prefix of the names of this proxy's chains.
    pub(super) prefix: NamePrefix,
    /// Selects chains that belong to another mode.
    pub(super) is_kept: IsKept<'a>,
}

impl Ours<'_> {
    fn has_chain(&self, table: &TableName, chain: &str) -> bool {
        names::is_ours(self.prefix, table, chain) && !(self.is_kept)(table, chain)
    }

    fn has_jump(&self, table: &TableName, rule: &Rule) -> bool {
        let is_kept = rule.target().is_some_and(|target| (self.is_kept)(table, target));
        names::is_jump_of_ours(self.prefix, table, rule) && !is_kept
    }
}

/// The changes that turn the dump into these rules, or remove all own rules if there are none.
pub(super) fn compare(wanted: Option<&Rules>, ours: Ours<'_>, observed: &Dump) -> Result<RuleChanges, UnreadableTable> {
    let unreadable = observed.incompatible_tables();
    let mut changes = RuleChanges::default();
    for table in names::TABLES {
        if unreadable.contains(&table.as_str()) && observed.table(&table).is_none() {
            return Err(UnreadableTable { table });
        }
        compare_table((&table, ours), wanted, observed.table(&table), &mut changes);
    }
    Ok(changes)
}

/// A table, with this proxy's chains and jumps in it.
type InTable<'a> = (&'a TableName, Ours<'a>);

fn compare_table(ours: InTable<'_>, wanted: Option<&Rules>, observed: Option<&Table>, changes: &mut RuleChanges) {
    let (name, _) = ours;
    let chains = wanted.map_or(&[][..], |rules| rules.chains(name));
    for chain in chains {
        let there = observed.and_then(|table| table.chain(chain.name.as_str()));
        if changes.transaction.table(name.clone()).replace_chain_if_different(observed, &chain.name, &chain.rules) {
            if there.is_none() {
                changes.line(LineChange::Added, name, format!(":{}", chain.name));
            }
            changes.rules(name, &chain.name, there.map_or(&[][..], |there| &there.rules), &chain.rules);
        }
    }
    let Some(observed) = observed else {
        place_all_jumps(name, wanted, changes);
        return;
    };
    for from in observed.chains().iter().filter(|chain| is_builtin(name, chain)) {
        let wanted = jumps(name, wanted, from.name.as_str());
        place_jumps(ours, from, &wanted, changes);
    }
    // The nft programs may not print a built-in chain that was never used.
    for from in name.builtin_chains() {
        if observed.chain(from).is_none() {
            insert_jumps(name, &jumps(name, wanted, from), changes);
        }
    }
    remove_chains(ours, chains, observed, changes);
}

fn is_builtin(table: &TableName, chain: &Chain) -> bool {
    chain.policy.is_some() || table.builtin_chains().contains(&chain.name.as_str())
}

fn jumps<'r>(table: &TableName, wanted: Option<&'r Rules>, from: &str) -> Vec<&'r super::Jump> {
    let all = wanted.map_or(&[][..], Rules::jumps);
    all.iter().filter(|jump| jump.table == *table && jump.from == *from).collect()
}

fn place_all_jumps(table: &TableName, wanted: Option<&Rules>, changes: &mut RuleChanges) {
    for from in table.builtin_chains() {
        insert_jumps(table, &jumps(table, wanted, from), changes);
    }
}

/// Keeps the jumps of a chain if all exist in order. Otherwise removes the existing ones, and inserts all as the
/// chain's first rules.
fn place_jumps((table, ours): InTable<'_>, from: &Chain, wanted: &[&super::Jump], changes: &mut RuleChanges) {
    let there: Vec<&Rule> = from.rules.iter().filter(|rule| ours.has_jump(table, rule)).collect();
    if there.len() == wanted.len() && there.iter().zip(wanted).all(|(there, wanted)| there.same_as(&wanted.rule)) {
        return;
    }
    for rule in there {
        changes.rule(LineChange::Removed, table, &from.name, rule);
        changes.transaction.table(table.clone()).edit(Edit::Delete(from.name.clone(), rule.clone()));
    }
    insert_jumps(table, wanted, changes);
}

fn insert_jumps(table: &TableName, wanted: &[&super::Jump], changes: &mut RuleChanges) {
    for jump in wanted {
        changes.rule(LineChange::Added, table, &jump.from, &jump.rule);
        let insert = Edit::Insert(jump.from.clone(), jump.position, jump.rule.clone());
        changes.transaction.table(table.clone()).edit(insert);
    }
}

/// Removes our chains that are not desired: all of them in a cleanup, otherwise those of older versions.
fn remove_chains((name, ours): InTable<'_>, wanted: &[Chain], observed: &Table, changes: &mut RuleChanges) {
    let is_wanted = |chain: &str| wanted.iter().any(|wanted| wanted.name == *chain);
    let unwanted = |chain: &str| ours.has_chain(name, chain) && !is_wanted(chain);
    let going: Vec<&Chain> = observed.chains().iter().filter(|chain| unwanted(chain.name.as_str())).collect();
    // Another program's rule: not in one of the proxy's chains, which are removed or replaced, and not one of its
    // jumps, which are removed.
    let is_foreign = |chain: &Chain, rule: &Rule| {
        let in_ours = ours.has_chain(name, chain.name.as_str());
        let is_jump = is_builtin(name, chain) && ours.has_jump(name, rule);
        !in_ours && !is_jump
    };
    let is_used = |chain: &Chain| observed.references(chain.name.as_str()).any(|(from, rule)| is_foreign(from, rule));
    let edits = changes.transaction.table(name.clone());
    let mut lines = Vec::new();
    let mut deleted = Vec::new();
    for chain in going {
        let used = is_used(chain);
        if used && chain.name == *names::chain(ours.prefix, names::MARK_MASQ) {
            continue;
        }
        if !chain.rules.is_empty() {
            edits.edit(Edit::Flush(chain.name.clone()));
            lines.extend(chain.rules.iter().map(|rule| format!("-A {} {}", chain.name, rule.arguments())));
        }
        if !used {
            deleted.push(chain.name.clone());
        }
    }
    // Only now, when no rule of this proxy jumps to them any more.
    for chain in deleted {
        lines.push(format!(":{chain}"));
        edits.edit(Edit::DeleteChain(chain));
    }
    for line in lines {
        changes.line(LineChange::Removed, name, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changes that a cleanup of these tables makes.
    fn removed(tables: &str) -> RuleChanges {
        super::super::cleanup(&Dump::parse(tables).unwrap(), NamePrefix::KUBE).unwrap()
    }

    /// A jump in another program's chain is that program's, with any comment.
    #[test]
    fn jumps_are_ours_in_built_in_chains_only() {
        let of = |from: &str| -> Vec<String> {
            let jump = format!("-A {from} -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES");
            let chains = ":PREROUTING ACCEPT [0:0]\n:MINE - [0:0]\n:KUBE-SERVICES - [0:0]";
            let changes = removed(&format!("*nat\n{chains}\n{jump}\nCOMMIT\n"));
            changes.lines().iter().map(ToString::to_string).collect()
        };
        assert_eq!(of("MINE"), [""; 0]);
        assert!(of("PREROUTING").iter().any(|line| line.starts_with("- nat -A PREROUTING")), "{:?}", of("PREROUTING"));
    }

    /// Until the jump to its node ports is removed, iptables mode sends connections to endpoints.
    #[test]
    fn rules_of_iptables_mode_are_recognized_by_their_node_ports() {
        let nat = |rule: &str| format!("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES {rule}\nCOMMIT\n");
        let filter = |rule: &str| format!("*filter\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD {rule}\nCOMMIT\n");
        let node_ports = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS";
        assert!(removed(&nat(node_ports)).replace_iptables_mode());
        assert!(!removed(&nat("-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT")).replace_iptables_mode());
        assert!(!removed(&filter(node_ports)).replace_iptables_mode(), "health checks");
        let mut added = RuleChanges::default();
        added.line(LineChange::Added, &TableName::NAT, format!("-A KUBE-SERVICES {node_ports}"));
        assert!(!added.replace_iptables_mode());
    }
}

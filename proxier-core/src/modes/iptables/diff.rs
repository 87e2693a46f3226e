//! Compares the desired rules with the kernel's in a full pass, and with what was last written for changes.

use std::collections::{BTreeMap, BTreeSet};

use iptables::{Backend, Chain, ChainName, Dump, Edit, Error, Rule, Table, TableName, Transaction};

use super::count::Tally;
use super::lines::{Line, SharedChain};
use super::names;
use super::observed::{self, Keep};
use super::settings::{TableChain, kubelet_firewall};
use super::spelling;
use super::wanted::Wanted;
use crate::modes::shared::chains::{Comparison, OwnChains};
use crate::modes::shared::cleaned::IsKept;
use crate::net::{Family, Protocol};
use crate::pack::Gather as _;
use crate::parallel;
use crate::ports::Result;
use crate::service::{Changes, Compiled, Port};
use crate::snapshot::ObjectKey;

/// Below this number of ports, a second thread does not pay.
const WORTH_A_THREAD: usize = 256;

/// The input of `iptables-restore --noflush` that brings a family to the desired rules. Empty if it has them already,
/// in any spelling, and with any comments in rules about endpoints. With an empty dump it contains everything. Fails if
/// a table could not be shown.
pub fn changes(wanted: &Wanted<'_>, observed: &Dump, family: Family) -> Result<Transaction> {
    compare(wanted, observed, family, &Keep::default(), None).map(|compared| compared.transaction)
}

#[derive(Debug)]
pub(super) struct RuleChanges {
    pub(super) transaction: Transaction,
    /// The Services whose chains differ, with the port's name and protocol.
    pub(super) ports: BTreeSet<(ObjectKey, Box<str>, Protocol)>,
}

/// Rules to write if no chain of a Service exists.
#[derive(Debug)]
pub(super) struct NewRules {
    shared: Vec<TableChain>,
    parts: Vec<RuleChanges>,
}

impl NewRules {
    /// Creates the rules of a family of which nothing is to stay.
    pub(super) fn new(wanted: &Wanted<'_>, family: Family) -> Result<Self> {
        let (nothing, keep) = (Dump::default(), Keep::default());
        let (shared, parts) = parallel::map(
            "lines",
            &[()],
            |()| wanted.shared_chains(family, &keep),
            || compare_ports(wanted, &nothing, family, &keep),
        );
        let shared = shared.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        Ok(NewRules { shared, parts: parts?.into_iter().map(|(part, _)| part).collect() })
    }

    fn is_of(observed: &Dump, keep: &Keep) -> bool {
        let chains = observed.table(&TableName::NAT).into_iter().flat_map(Table::chains);
        let mut of_services = chains.filter(|chain| names::is_of_service(&TableName::NAT, chain.name.as_str()));
        *keep == Keep::default() && of_services.next().is_none()
    }
}

/// As [`changes`], but leaves lines and chains in `keep` unchanged. `from_nothing`: rules built in advance, in case
/// none exist.
pub(super) fn compare(
    wanted: &Wanted<'_>,
    observed: &Dump,
    family: Family,
    keep: &Keep,
    from_nothing: Option<NewRules>,
) -> Result<RuleChanges> {
    let mut comparison = Comparison::new(observed, Ours { is_kept: &|_table, _chain| false });
    comparison.check_readable()?;
    let mut kept = keep.lines(observed, family);
    let reached = observed::reached(observed, &kept);
    let (shared, parts) = match from_nothing.filter(|_| NewRules::is_of(observed, keep)) {
        Some(NewRules { shared, parts }) => (shared, parts.into_iter().map(|part| (part, BTreeSet::new())).collect()),
        None => (wanted.shared_chains(family, keep)?, compare_ports(wanted, observed, family, keep)?),
    };
    for (table, mut chain) in shared {
        // In front, because the lines for node ports come last.
        let lines = SharedChain::by_name(&table, chain.name.as_str()).and_then(|shared| kept.remove(&shared));
        chain.rules.splice(0..0, lines.into_iter().flatten());
        comparison.chain(&table, chain);
    }
    let mut ports = BTreeSet::new();
    for (mut part, stay) in parts {
        comparison.transaction.append(part.transaction);
        comparison.stay.extend(stay);
        ports.append(&mut part.ports);
    }
    // Chains to which kept lines lead stay as they are, unless they are desired.
    comparison.stay.extend(reached.into_iter().map(|name| (TableName::NAT, name)));
    if let Some(settings) = wanted.settings(family) {
        let (table, chain) = kubelet_firewall(settings)?;
        comparison.add_to(&table, &chain);
        comparison.jumps(&names::JUMPS.iter().map(names::Jump::own).collect::<Result<Vec<_>, _>>()?);
    }
    comparison.remove_others();
    for table in names::TABLES.into_iter().filter(|table| !observed.has_chain(table, names::CANARY)) {
        comparison.transaction.table(table).chain(ChainName::new(names::CANARY)?);
    }
    Ok(RuleChanges { transaction: comparison.transaction, ports })
}

/// Chains in a restore by the nft back end ([`Transaction::divide`]). The kernel checks the whole table for each
/// restore, so that less is slower as well.
const PART: usize = 2_500;

/// Divides what a family writes, if that is faster: first the chains of Services, in parts, then the rest.
pub(super) fn divide(whole: Transaction, backend: Option<Backend>) -> Vec<Transaction> {
    let most = if backend == Some(Backend::NfTables) { PART } else { usize::MAX };
    let is_own = |table: &TableName, chain: &str| names::is_of_service(table, chain) || chain == names::MARK_MASQ;
    whole.divide(most, |table, chain| is_own(table, chain.as_str()))
}

type Stay<'a> = BTreeSet<(TableName, &'a str)>;

/// Compares the chains of Services in parts. Each chain is built when it is compared, so that they are not all in
/// memory at once. Also returns which of them exist.
fn compare_ports<'a>(
    wanted: &Wanted<'_>,
    observed: &'a Dump,
    family: Family,
    keep: &Keep,
) -> Result<Vec<(RuleChanges, Stay<'a>)>, Error> {
    let ports = wanted.ports(family).filter(|(service, _)| !keep.has_service(&service.service));
    let ports: Vec<(&Compiled, &Port)> = ports.collect();
    let compare = |ports: &[(&Compiled, &Port)]| {
        let mut comparison = Comparison::new(observed, Ours { is_kept: &|_table, _chain| false });
        let mut differing = BTreeSet::new();
        for (service, port) in ports {
            let mut differs = false;
            for chain in wanted.port_chains(port)? {
                differs |= comparison.chain(&TableName::NAT, chain);
            }
            if differs {
                differing.insert((service.service.clone(), port.name.clone(), port.protocol));
            }
        }
        Ok((RuleChanges { transaction: comparison.transaction, ports: differing }, comparison.stay))
    };
    parallel::map_parts(&ports, WORTH_A_THREAD, compare).into_iter().collect()
}

/// Removes the chains and jumps of this mode, except the kept chains and the jumps to them.
pub(super) fn remove(observed: &Dump, is_kept: IsKept<'_>) -> Result<Transaction> {
    let mut comparison = Comparison::new(observed, Ours { is_kept });
    comparison.check_readable()?;
    comparison.jumps(&[]);
    comparison.remove_others();
    Ok(comparison.transaction)
}

struct Ours<'a> {
    /// Chains of these names are another mode's.
    is_kept: IsKept<'a>,
}

impl OwnChains for Ours<'_> {
    const TABLES: [TableName; 2] = names::TABLES;

    fn has_chain(&self, table: &TableName, chain: &str) -> bool {
        names::is_ours(table, chain) && !(self.is_kept)(table, chain)
    }

    fn has_jump(&self, table: &TableName, rule: &Rule) -> bool {
        names::is_jump_of_ours(table, rule) && !rule.target().is_some_and(|target| (self.is_kept)(table, target))
    }

    fn mark(&self) -> String {
        names::MARK_MASQ.to_owned()
    }

    fn is_same_chain(&self, table: &TableName, there: &Chain, desired: &Chain) -> bool {
        let name = desired.name.as_str();
        if SharedChain::by_name(table, name).is_some() || names::is_firewall(table, name) {
            return same_lines(&there.rules, &desired.rules);
        }
        // Comments of rules about endpoints depend on the number of endpoints. Chains that differ only in them are not
        // written.
        spelling::same_rules(&there.rules, &desired.rules, !names::is_of_service(table, name))
    }

    fn is_same_rule(&self, there: &Rule, desired: &Rule, comments: bool) -> bool {
        spelling::same(there, desired, comments)
    }
}

/// Whether a chain has these lines in any order, except that those for node ports come last.
fn same_lines(there: &[Rule], wanted: &[Rule]) -> bool {
    let is_last = |rule: &&Rule| rule.target() == Some(names::NODE_PORTS);
    let last = there.iter().filter(is_last).count();
    let in_place = there.iter().rev().take_while(is_last).count() == last;
    in_place && spelling::same_in_any_order(there, wanted)
}

/// Creates the input for `iptables-restore --noflush` that brings a family from the state recorded in `changes` to the
/// desired one, and the change of the number of rules. Empty if nothing changes. Costs O(changes).
///
/// The kernel must have the previously desired rules. Otherwise the program refuses to delete a line that does not
/// exist, or to change a table that has lost its canary. It then changes nothing in that table, though the table before
/// may have changed. In this case, read the tables and write [`changes`].
///
/// Chains that are no longer desired are emptied, and deleted after all lines that jump to them.
pub fn update(wanted: &Wanted<'_>, changes: &Changes, family: Family) -> Result<(Transaction, Tally), Error> {
    let [before, now] = wanted.changed(changes, family)?;
    let rules = Tally::of(&now).less(Tally::of(&before));
    let mut transaction = Transaction::new();
    let edits = line_edits(before.lines, now.lines)?;
    // Filter first, so that what must be refused is refused before its path to endpoints is removed.
    for table in names::TABLES {
        for (_, edit) in edits.iter().filter(|(shared, _)| shared.table() == table) {
            transaction.table(table.clone()).edit(edit.clone());
        }
    }
    let before: BTreeMap<&ChainName, &[Rule]> = before.chains.iter().map(|chain| (&chain.name, &*chain.rules)).gather();
    for chain in now.chains.iter().filter(|chain| before.get(&chain.name) != Some(&&*chain.rules)) {
        transaction.table(TableName::NAT).replace_chain(&chain.name, chain.rules.iter().cloned());
    }
    let now: BTreeSet<&ChainName> = now.chains.iter().map(|chain| &chain.name).collect();
    let gone = || before.keys().copied().filter(|name| !now.contains(name)).cloned();
    for name in gone() {
        transaction.table(TableName::NAT).chain(name);
    }
    for name in gone() {
        transaction.table(TableName::NAT).edit(Edit::DeleteChain(name));
    }
    let tables: Vec<TableName> = transaction.tables().iter().map(|table| table.name().clone()).collect();
    for table in tables {
        transaction.table(table).edit(Edit::Flush(ChainName::new(names::CANARY)?));
    }
    Ok((transaction, rules))
}

/// Deletes lines that are no longer desired and inserts new ones. Equal lines count individually.
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
                // Before the last lines, which are for node ports.
                SharedChain::Services => new.push((chain, Edit::Insert(name, 1, rule))),
                _ => new.push((chain, Edit::Append(name, rule))),
            }
        }
    }
    gone.append(&mut new);
    Ok(gone)
}

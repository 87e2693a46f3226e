//! Own chains of iptables: compares them with the kernel's, and removes those of other modes: over nf_tables where
//! iptables-nft keeps them, which takes no program, otherwise by programs.

use std::collections::{BTreeMap, BTreeSet};

use iptables::{Backend, Chain, ChainName, Dump, Edit, Rule, RuleBuilder, Table, TableEdit, TableName, Transaction};
use nftables::Transaction as NftTransaction;

use crate::compat;
use crate::config::MarkBit;
use crate::modes::shared::cleaned::Cleaned;
use crate::net::Family;
use crate::pack::Gather as _;
use crate::plan::report::Unread;
use crate::plan::step::{Action, Part, Step};
use crate::ports::{PortError, PortErrorKind, Ports, Result, Tables};

const NAMED: usize = 4;
const TABLES: [TableName; 2] = [TableName::NAT, TableName::FILTER];

type MayGo<'a> = dyn Fn(Backend, &TableName, &str) -> bool + 'a;
type Edits<'a> = dyn Fn(Backend, &Dump) -> Result<Transaction> + 'a;

pub(crate) struct Removal<'a> {
    /// Whether a chain with this name may be removed. If there is none, nothing else is read.
    pub(crate) may_go: Box<MayGo<'a>>,
    /// Edits that delete rules, empty chains and delete chains. If chains that may be removed are in nf_tables, their
    /// rules are unknown, and of other programs' rules only targets and comments are known.
    pub(crate) edits: Box<Edits<'a>>,
}

impl Removal<'_> {
    /// Removes them in both families and both back ends, whether in use or not. A family without iptables tables has
    /// none.
    pub(crate) fn carry_out(&self, ports: &mut Ports<'_>, cleaned: &mut Cleaned) {
        for family in Family::ALL {
            for (backend, edits) in self.by_programs(family, ports) {
                note(family, edits, cleaned, |edits| ports.rules.restore_to(backend, family, edits));
            }
            // Read afterwards, so that nothing is removed twice.
            match self.read(family, ports.tables) {
                Ok(Some((dump, generation))) => {
                    note(family, (self.edits)(Backend::NfTables, &dump), cleaned, |edits| {
                        let mut transaction = as_nft(family, edits, ports.tables)?;
                        transaction.expect_generation(generation);
                        ports.tables.commit(&transaction).map_err(|refused| refused.error)
                    });
                }
                Ok(None) => {}
                Err(error) => cleaned.miss(what(family), error),
            }
        }
    }

    /// Adds the chains that [`Removal::carry_out`] would empty or delete, and what cannot be read. Changes nothing.
    pub(crate) fn find(&self, ports: &mut Ports<'_>, found: &mut Found) {
        for family in Family::ALL {
            let mut all = self.by_programs(family, ports);
            match self.read(family, ports.tables) {
                Ok(Some((dump, _))) => all.push((Backend::NfTables, (self.edits)(Backend::NfTables, &dump))),
                Ok(None) => {}
                Err(error) => all.push((Backend::NfTables, Err(error))),
            }
            for (backend, edits) in all {
                let edits = match edits {
                    Ok(edits) => edits,
                    Err(error) if error.kind() == PortErrorKind::Unavailable => continue,
                    Err(error) => {
                        found.unread.insert(Unread::new(what(family), error).to_string());
                        continue;
                    }
                };
                let chains = edits.tables().iter().flat_map(TableEdit::edits).filter_map(|edit| match edit {
                    Edit::Flush(chain) | Edit::DeleteChain(chain) => Some(chain.to_string()),
                    _ => None,
                });
                found.chains.entry((family, backend)).or_default().extend(chains);
            }
        }
    }

    /// No program is started if there is nothing.
    fn by_programs(&self, family: Family, ports: &mut Ports<'_>) -> Vec<(Backend, Result<Transaction>)> {
        if ports.rules.has_tables(family) == Some(false) {
            return Vec::new();
        }
        let edits = |backend| ports.rules.dump_of(backend, family).and_then(|dump| (self.edits)(backend, &dump));
        Backend::ALL.map(edits).into_iter().zip(Backend::ALL).map(|(edits, backend)| (backend, edits)).collect()
    }

    /// The iptables tables in nf_tables with chains that may be removed, and their generation.
    fn read(&self, family: Family, tables: &mut dyn Tables) -> Result<Option<(Dump, u32)>> {
        let generation = tables.generation()?;
        let mut dump = Dump::default();
        for name in TABLES {
            let key = compat::table_key(family, &name)?;
            let may_go = |chain: &str| (self.may_go)(Backend::NfTables, &name, chain);
            if tables.chains(&key)?.iter().any(|of| may_go(of.chain.key.name.as_str())) {
                dump.tables.extend(compat::read(&key, &name, &|chain| !may_go(chain), tables)?);
            }
        }
        Ok((!dump.tables.is_empty()).then_some((dump, generation)))
    }
}

fn what(family: Family) -> String {
    format!("rules of {}", family.name())
}

/// Chains of modes that do not serve here, by family and back end.
#[derive(Default)]
pub(crate) struct Found {
    chains: BTreeMap<(Family, Backend), BTreeSet<String>>,
    unread: BTreeSet<String>,
}

impl Found {
    /// One sentence for each back end of a family that has some, and for what cannot be read.
    pub(crate) fn sentences(self) -> impl Iterator<Item = String> {
        let sentence = |((family, backend), chains): ((Family, Backend), BTreeSet<String>)| {
            let named: Vec<&str> = chains.iter().take(NAMED).map(String::as_str).collect();
            let more = chains.len().saturating_sub(NAMED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            (!chains.is_empty()).then(|| {
                format!(
                    "{} of the {backend} back end of iptables are a kube-proxy's or another mode's: chains {}{more}; they are \
                     removed once this mode serves, or by cleanup",
                    what(family),
                    named.join(", ")
                )
            })
        };
        self.chains.into_iter().filter_map(sentence).chain(self.unread)
    }
}

fn note(
    family: Family,
    edits: Result<Transaction>,
    cleaned: &mut Cleaned,
    write: impl FnOnce(&Transaction) -> Result<()>,
) {
    match edits {
        Ok(edits) if edits.is_empty() => {}
        Ok(edits) => {
            let outcome = write(&edits);
            cleaned.applied.note(Step::new(Action::Delete, Part::Rules, family.name()), outcome);
        }
        Err(error) => cleaned.miss(what(family), error),
    }
}

fn as_nft(family: Family, edits: &Transaction, tables: &mut dyn Tables) -> Result<NftTransaction> {
    let mut transaction = NftTransaction::new();
    for table in edits.tables() {
        let key = compat::table_key(family, table.name())?;
        let mut deleted = BTreeSet::new();
        for edit in table.edits() {
            match edit {
                Edit::Delete(chain, rule) => {
                    let chain = compat::chain_key(&key, chain)?;
                    let rules = tables.rules(&chain)?;
                    let same = |of: &&nftables::ObservedRule| compat::rule(of).is_some_and(|of| of == *rule);
                    let found = rules.iter().filter(same).find(|of| deleted.insert(of.handle));
                    if let Some(found) = found {
                        transaction.delete_rule(&chain, found.handle);
                    }
                }
                Edit::Flush(chain) => drop(transaction.flush_chain(&compat::chain_key(&key, chain)?)),
                Edit::DeleteChain(chain) => drop(transaction.delete_chain(&compat::chain_key(&key, chain)?)),
                other => {
                    let why = format!("{other} removes nothing");
                    return Err(PortError::new(PortErrorKind::Invalid, why));
                }
            }
        }
    }
    Ok(transaction)
}

/// Tables that no program here can read, with what to do.
pub(crate) fn unreadable(ports: &mut Ports<'_>) -> Vec<String> {
    let said = |family: Family| {
        let (names, program) = match family {
            Family::V4 => ("ip_tables_names", "iptables-legacy"),
            Family::V6 => ("ip6_tables_names", "ip6tables-legacy"),
        };
        format!(
            "rules of {} in the tables of /proc/net/{names} may be another mode's, and decide about packets: no program here reads them; \
             install {program} beside this program, or look with '{program}-save' on the node and remove chains KUBE-…",
            family.name()
        )
    };
    Family::ALL.into_iter().filter(|family| ports.rules.has_unreadable_tables(*family)).map(said).collect()
}

/// Why a table is not compared that `iptables-save` cannot show, because it holds what only `nft` can express. Our
/// rules in it could not be found again, so nothing is written.
fn unreadable_table(table: &TableName) -> PortError {
    PortError::new(
        PortErrorKind::Invalid,
        format_args!(
            "table {table} has rules that iptables-save cannot show, so those of Services cannot be compared and are left \
             as they are; find them with `nft list ruleset` and remove what was not made by iptables"
        ),
    )
}

/// Does not occur in practice: every name and argument fits into what iptables reads.
impl From<iptables::Error> for PortError {
    fn from(error: iptables::Error) -> Self {
        PortError::from_error(PortErrorKind::Invalid, &error)
    }
}

/// The rules that accept forwarded packets of Services: marked ones, and those of existing connections.
pub(crate) fn accept_forwarded(bit: MarkBit) -> [RuleBuilder; 2] {
    let rule = |comment: &str| Rule::builder().comment(comment);
    let states = ["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"];
    [
        rule("kubernetes forwarding rules").args(["-m", "mark", "--mark", &format!("{bit}/{bit}")]).target("ACCEPT"),
        rule("kubernetes forwarding conntrack rule").args(states).target("ACCEPT"),
    ]
}

/// The rules that masquerade marked packets. The mark is removed, so that it has no effect when the packet passes here
/// again inside a tunnel.
pub(crate) fn masquerade(bit: MarkBit, random_fully: bool) -> [RuleBuilder; 3] {
    let masquerade = Rule::builder().comment("kubernetes service traffic requiring SNAT").target("MASQUERADE");
    [
        Rule::builder().args(["-m", "mark", "!", "--mark", &format!("{bit}/{bit}")]).target("RETURN"),
        Rule::builder().target("MARK").args(["--xor-mark".to_owned(), bit.to_string()]),
        masquerade.args(random_fully.then_some("--random-fully")),
    ]
}

/// The rule that marks packets for masquerading.
pub(crate) fn mark(bit: MarkBit) -> RuleBuilder {
    Rule::builder().target("MARK").args(["--or-mark".to_owned(), bit.to_string()])
}

pub(crate) trait OwnChains {
    /// The tables in which it has rules, in the order in which they are written.
    const TABLES: [TableName; 2];

    /// Whether a chain of this name is its own: it has exactly its rules, and is deleted where it is not desired.
    fn has_chain(&self, table: &TableName, chain: &str) -> bool;

    /// Whether it has made a rule of a built-in chain.
    fn has_jump(&self, table: &TableName, rule: &Rule) -> bool;

    /// The chain that marks packets: container runtimes use it, so it keeps its rules while a foreign rule jumps to it.
    fn mark(&self) -> String;

    fn is_same_chain(&self, _table: &TableName, there: &Chain, desired: &Chain) -> bool {
        there.same_rules(&desired.rules)
    }

    fn is_same_rule(&self, there: &Rule, desired: &Rule, _comments: bool) -> bool {
        there.same_as(desired)
    }
}

/// A rule of a built-in chain that jumps to a chain of this proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnJump {
    pub(crate) table: TableName,
    pub(crate) from: ChainName,
    pub(crate) rule: Rule,
    /// Its place among the other rules does not matter.
    pub(crate) is_anywhere: bool,
}

/// A comparison of desired chains with those that are there. What differs goes into a transaction.
pub(crate) struct Comparison<'a, O> {
    observed: &'a Dump,
    own: O,
    /// The chains that are there and are not deleted.
    pub(crate) stay: BTreeSet<(TableName, &'a str)>,
    pub(crate) transaction: Transaction,
}

impl<'a, O: OwnChains> Comparison<'a, O> {
    pub(crate) fn new(observed: &'a Dump, own: O) -> Self {
        let mut transaction = Transaction::new();
        // Names the tables in the order in which they are written.
        for table in O::TABLES {
            transaction.table(table);
        }
        Comparison { observed, own, stay: BTreeSet::new(), transaction }
    }

    /// Fails if a table could not be shown: writing would add the jumps again each time.
    pub(crate) fn check_readable(&self) -> Result<()> {
        let unreadable = self.observed.incompatible_tables();
        let is_hidden =
            |table: &TableName| unreadable.contains(&table.as_str()) && self.observed.table(table).is_none();
        O::TABLES.into_iter().find(is_hidden).map_or(Ok(()), |table| Err(unreadable_table(&table)))
    }

    fn observed(&self, table: &TableName, chain: &str) -> Option<&'a Chain> {
        self.observed.table(table)?.chain(chain)
    }

    /// Replaces a chain unless it has these rules. Returns whether it had different ones.
    pub(crate) fn chain(&mut self, table: &TableName, chain: Chain) -> bool {
        let there = self.observed(table, chain.name.as_str());
        let differs = !there.is_some_and(|there| self.own.is_same_chain(table, there, &chain));
        if differs {
            self.transaction.table(table.clone()).replace_chain(&chain.name, chain.rules);
        }
        self.stay.extend(there.map(|there| (table.clone(), there.name.as_str())));
        differs
    }

    /// Creates a foreign chain if it is missing, and adds the rules that it lacks.
    pub(crate) fn add_to(&mut self, table: &TableName, chain: &Chain) {
        let there = self.observed(table, chain.name.as_str());
        let edits = self.transaction.table(table.clone());
        if there.is_none() {
            edits.chain(chain.name.clone());
        }
        let present = there.map_or(&[][..], |there| &there.rules);
        for rule in &chain.rules {
            if !present.iter().any(|there| self.own.is_same_rule(there, rule, false)) {
                edits.edit(Edit::Append(chain.name.clone(), rule.clone()));
            }
        }
    }

    /// Makes these the own jumps in built-in chains. Those of a chain stay if all exist in order, even with other rules
    /// between: two programs that both insist on the first position would take turns without end. Otherwise the existing
    /// ones are removed, and all are inserted as the chain's first rules.
    pub(crate) fn jumps(&mut self, desired: &[OwnJump]) {
        for table in O::TABLES {
            for from in table.builtin_chains() {
                let of_chain = desired.iter().filter(|jump| jump.table == table && jump.from == **from);
                let (anywhere, ours): (Vec<_>, Vec<_>) = of_chain.partition(|jump| jump.is_anywhere);
                // The nft programs may not print a built-in chain that nothing has used.
                let there = self.observed(&table, from);
                let there = there.into_iter().flat_map(|chain| chain.rules.iter().map(move |rule| (&chain.name, rule)));
                let old: Vec<_> = there.clone().filter(|(_, rule)| self.own.has_jump(&table, rule)).collect();
                let mut pairs = old.iter().zip(&ours);
                let is_in_order =
                    old.len() == ours.len() && pairs.all(|((_, old), new)| self.own.is_same_rule(old, &new.rule, true));
                let edits = self.transaction.table(table.clone());
                if !is_in_order {
                    for (from, rule) in old {
                        edits.edit(Edit::Delete(from.clone(), rule.clone()));
                    }
                    for (jump, place) in ours.into_iter().zip(1..) {
                        edits.edit(Edit::Insert(jump.from.clone(), place, jump.rule.clone()));
                    }
                }
                for jump in anywhere {
                    if !there.clone().any(|(_, there)| self.own.is_same_rule(there, &jump.rule, false)) {
                        edits.edit(Edit::Insert(jump.from.clone(), 1, jump.rule.clone()));
                    }
                }
            }
        }
    }

    /// Empties and deletes own chains that are not desired, after all rules that lead to them. A chain to which a
    /// foreign rule jumps cannot be deleted: it is emptied and stays.
    pub(crate) fn remove_others(&mut self) {
        for table in O::TABLES {
            let Some(observed) = self.observed.table(&table) else { continue };
            let (used, mark) = (self.used_by_others(&table, observed), self.own.mark());
            let is_going = |chain: &&Chain| {
                let name = chain.name.as_str();
                let is_desired = self.stay.contains(&(table.clone(), name));
                self.own.has_chain(&table, name) && !is_desired && !(used.contains(name) && name == mark)
            };
            let going: Vec<&Chain> = observed.chains().iter().filter(is_going).collect();
            let edits = self.transaction.table(table);
            for chain in going.iter().filter(|chain| !chain.rules.is_empty()) {
                edits.edit(Edit::Flush(chain.name.clone()));
            }
            for chain in going.into_iter().filter(|chain| !used.contains(chain.name.as_str())) {
                edits.edit(Edit::DeleteChain(chain.name.clone()));
            }
        }
    }

    /// The chains to which foreign rules jump: rules that are neither in an own chain nor an own jump.
    fn used_by_others(&self, table: &TableName, observed: &'a Table) -> BTreeSet<&'a str> {
        let others = observed.chains().iter().filter(|chain| !self.own.has_chain(table, chain.name.as_str()));
        let is_builtin = |chain: &Chain| table.builtin_chains().contains(&chain.name.as_str());
        let rules = others.flat_map(|chain| chain.rules.iter().map(move |rule| (chain, rule)));
        let foreign = rules.filter(|(chain, rule)| !(is_builtin(chain) && self.own.has_jump(table, rule)));
        foreign.filter_map(|(_, rule)| rule.target()).gather()
    }
}

//! Tables of nf_tables that this program owns. They are read, compared with their layout, and written in one
//! transaction based on the state that was read. It is repeated without the parts that the kernel refuses. Before it, a
//! large new table gets some of its elements.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use nftables::{
    BaseChain, Chain, ChainKey, ChainType, Element, Expression, Family as NftFamily, Hook, Operand, Priority, Rule,
    RuleBuilder, Set, SetFlags, Table, TableFlags, TableKey, TableSnapshot, Transaction,
};

use super::frontends::search;
use super::nft::{OWNED, is_marked, is_of_an_element, is_of_the_state, made_by_others, name};
use crate::config::Config;
use crate::net::Family;
use crate::pack::Gather as _;
use crate::plan::step::{Action, Part, Step};
use crate::ports::{NotCommitted, PortError, PortErrorKind, Result, Tables};

/// The change of a table as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays.
    Keep,
    /// It is made.
    Make,
    /// It is deleted and created again, at one instant: its flags, sets or hooks differ from the layout.
    Remake,
    /// It is deleted, because the family is not served any more.
    Delete,
}

impl Fate {
    pub(crate) fn action(self) -> Action {
        match self {
            Fate::Make => Action::Add,
            Fate::Delete => Action::Delete,
            Fate::Keep | Fate::Remake => Action::Change,
        }
    }
}

/// The step of a change of a table as a whole, or of these chains.
pub(crate) fn step(table: &TableKey, fate: Fate, chains: &[&str]) -> Step {
    let detail = match fate {
        Fate::Make | Fate::Delete => String::new(),
        Fate::Remake => "made again: it has other flags, sets or hooks".to_owned(),
        Fate::Keep if chains.is_empty() => "this process becomes its owner".to_owned(),
        Fate::Keep => format!("chains {}", chains.join(", ")),
    };
    Step::new(fate.action(), Part::Table, table).with(detail)
}

pub(crate) type ChainRules = (Chain, Vec<Rule>);

/// The layout of a table: everything except its elements.
pub(crate) trait Layout {
    fn key(&self) -> &TableKey;

    fn to_table(&self) -> Table;

    fn sets(&self) -> impl Iterator<Item = Set>;

    /// The chains that it always has, with their rules. A chain comes before those that jump to it.
    fn chains(&self) -> Vec<ChainRules>;

    fn rule(&self) -> RuleBuilder {
        nftables::rule(self.key().family)
    }

    fn source(&self) -> Operand {
        if self.key().family == NftFamily::Ip { Operand::IP_SADDR } else { Operand::IP6_SADDR }
    }

    fn destination(&self) -> Operand {
        if self.key().family == NftFamily::Ip { Operand::IP_DADDR } else { Operand::IP6_DADDR }
    }

    fn chain_key(&self, chain: &str) -> ChainKey {
        ChainKey { table: self.key().clone(), name: name(chain) }
    }

    fn regular(&self, chain: &str, rules: Vec<Rule>) -> ChainRules {
        (Chain::regular(self.chain_key(chain)), rules)
    }

    fn base(&self, chain: &str, kind: ChainType, hook: Hook, priority: Priority, rules: Vec<Rule>) -> ChainRules {
        (Chain::base(self.chain_key(chain), BaseChain::new(kind, hook, priority)), rules)
    }
}

/// A table in the kernel, without the elements of its sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    flags: TableFlags,
    is_owned: bool,
    pub(crate) chains: BTreeMap<String, ChainRules>,
    /// Sets by name. Anonymous ones are deleted with their rules, and are not here.
    pub(crate) sets: BTreeMap<String, Set>,
}

/// A rule with its counters at zero, as in a layout.
fn uncounted(mut rule: Rule) -> Rule {
    for expression in &mut rule.expressions {
        if matches!(expression, Expression::Counter { .. }) {
            *expression = Expression::COUNTER;
        }
    }
    rule
}

impl Shape {
    /// Splits a snapshot into its shape, and the elements by set name. `None` if the table is another program's.
    pub(crate) fn read(snapshot: TableSnapshot) -> Option<(Self, BTreeMap<String, Vec<Element>>)> {
        let table = &snapshot.table;
        let mut shape = Shape { flags: table.table.flags, is_owned: table.owner.is_some(), ..Shape::default() };
        for chain in snapshot.chains {
            shape.chains.insert(chain.chain.key.name.as_str().to_owned(), (chain.chain, Vec::new()));
        }
        if !is_marked(&table.table, shape.chains.contains_key(OWNED)) {
            return None;
        }
        for rule in snapshot.rules {
            if let Some((_, rules)) = shape.chains.get_mut(rule.chain.name.as_str()) {
                rules.push(uncounted(rule.rule));
            }
        }
        let mut elements = BTreeMap::new();
        for contents in snapshot.sets {
            let set = contents.set.set;
            if !set.flags.contains(SetFlags::ANONYMOUS) {
                let name = set.key.name.as_str().to_owned();
                elements.insert(name.clone(), contents.elements);
                shape.sets.insert(name, set);
            }
        }
        Some((shape, elements))
    }

    /// Whether the table cannot be repaired, only recreated: it has flags (`dormant`: no chain sees packets), or other
    /// base chains or sets than the layout.
    pub(crate) fn is_other(&self, layout: &impl Layout) -> bool {
        let has = |set: Set| self.sets.get(set.key.name.as_str()).is_some_and(|found| is_kind_of(found, &set));
        // A missing chain can be added to the table, but one of another kind cannot be changed.
        let is_other = |(chain, _): &ChainRules| {
            self.chains.get(chain.key.name.as_str()).is_some_and(|(found, _)| found.base != chain.base)
        };
        self.flags != layout.to_table().flags || !layout.sets().all(has) || layout.chains().iter().any(is_other)
    }

    /// Whether the table should belong to this process, and belongs to none: its owner has ended, or lost its socket.
    pub(crate) fn is_orphan(&self, layout: &impl Layout) -> bool {
        layout.to_table().flags.contains(TableFlags::OWNER) && !self.is_owned
    }

    pub(crate) fn rules(&self, chain: &str) -> Option<&Vec<Rule>> {
        self.chains.get(chain).map(|(_, rules)| rules)
    }
}

/// The kernel's default limit for sets that rules write (`nft_dynset_init`).
const SIZE_BY_DEFAULT: u32 = 0xffff;

pub(crate) fn is_kind_of(found: &Set, wanted: &Set) -> bool {
    found.key_type == wanted.key_type
        && found.data == wanted.data
        && found.all_flags() == wanted.all_flags()
        && found.expressions.iter().map(Expression::name).eq(wanted.expressions.iter().map(Expression::name))
        && (found.size == wanted.size || wanted.size.is_none() && found.size == Some(SIZE_BY_DEFAULT))
}

/// With an owner that it outlives. With `OWNER` alone, the table would be deleted with its process.
const OWNED_FLAGS: TableFlags = TableFlags::OWNER.union(TableFlags::PERSIST);

pub(crate) fn flags(config: &Config) -> TableFlags {
    if config.nftables.own_tables { OWNED_FLAGS } else { TableFlags::empty() }
}

/// Whether the kernel lets a process own tables that outlive it
/// ([`NftablesConfig::own_tables`](crate::config::NftablesConfig::own_tables)), since Linux 6.9 (`nf_tables_newtable`
/// in the kernel's nf_tables_api.c). Changes nothing.
///
/// # Errors
/// The kernel could not be asked.
pub fn can_own_tables(tables: &mut dyn Tables) -> Result<bool> {
    let key = TableKey { family: nftables::Family::Ip, name: name("proxier-owner-trial") };
    let mut transaction = Transaction::new();
    let mut table = Table::new(key);
    table.flags = OWNED_FLAGS;
    transaction.create_table(table);
    match tables.check(&transaction) {
        Ok(()) => Ok(true),
        Err(refused) if refused.refused.is_some() => Ok(false),
        Err(refused) => Err(refused.error),
    }
}

/// Creates, claims or deletes a table with its sets, creates other sets, and writes chains.
pub(crate) fn write_layout(
    transaction: &mut Transaction,
    (fate, claims): (Fate, bool),
    layout: &impl Layout,
    sets: impl IntoIterator<Item = Set>,
    chains: &[ChainRules],
) {
    if matches!(fate, Fate::Remake | Fate::Delete) {
        transaction.delete_table(layout.key());
    }
    if fate == Fate::Delete {
        return;
    }
    let is_new = fate != Fate::Keep;
    if is_new {
        transaction.create_table(layout.to_table());
    } else if claims {
        transaction.add_table(layout.to_table());
    }
    for set in is_new.then(|| layout.sets()).into_iter().flatten().chain(sets) {
        transaction.create_set(set);
    }
    // Chains jump to each other, so create all of them before their rules.
    for (chain, _) in chains {
        transaction.add_chain(chain.clone());
    }
    for (chain, rules) in chains {
        if !is_new {
            transaction.flush_chain(&chain.key);
        }
        for rule in rules {
            transaction.add_rule(&chain.key, rule.clone());
        }
    }
}

/// Number of times that a table is compared again because another program committed something in between.
const ATTEMPTS: usize = 4;

/// Number of refused parts of one transaction after which the whole is given up.
const PATIENCE: usize = 16;

/// Largest number of checks by the kernel in the search for refused elements of a transaction. Each costs as much as
/// the transaction.
const CHECKS: usize = 64;

/// The state that tables are written from: as read, unless another program has changed them since. A family's first
/// transaction changes its table only if it is still as read; after that, what was written is tracked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Basis<F> {
    /// The generation of the rule set that the tables were read from, or that own transactions made of it; `None` if
    /// nothing was read.
    generation: Option<u32>,
    read: BTreeMap<Family, Option<F>>,
}

/// Reads a table again; `None` if that fails.
pub(crate) type ReadAgain<'a, F> = dyn Fn(&mut dyn Tables) -> Option<Option<F>> + 'a;

impl<F: PartialEq> Basis<F> {
    pub(crate) fn new(generation: Option<u32>, read: BTreeMap<Family, Option<F>>) -> Self {
        Basis { generation, read }
    }

    /// A family's table as read; `None` if it was not read.
    pub(crate) fn found(&self, family: Family) -> Option<&Option<F>> {
        self.read.get(&family)
    }

    /// Commits a family's transaction. With a refusal comes whether another program has changed the table since it was
    /// read.
    fn commit(
        &mut self,
        family: Family,
        transaction: &mut Transaction,
        again: &ReadAgain<'_, F>,
        tables: &mut dyn Tables,
    ) -> Result<(), (NotCommitted, bool)> {
        let mut attempts = ATTEMPTS;
        loop {
            let expected = self.generation.filter(|_| self.read.contains_key(&family));
            if let Some(expected) = expected {
                transaction.expect_generation(expected);
            }
            let Err(refused) = tables.commit(transaction) else {
                self.generation = self.generation.map(|generation| generation.wrapping_add(1));
                self.read.remove(&family);
                return Ok(());
            };
            let is_busy = refused.error.kind() == PortErrorKind::Busy && refused.refused.is_none();
            let now = tables.generation().ok().filter(|now| is_busy && expected.is_some_and(|of| of != *now));
            let Some(now) = now else { return Err((refused, false)) };
            // Another program has committed something: is this table unchanged?
            if attempts == 0 || again(tables).as_ref() != self.read.get(&family) {
                return Err((refused, true));
            }
            attempts = attempts.saturating_sub(1);
            self.generation = Some(now);
        }
    }
}

/// A transaction, and which of its operations change elements of sets: the set, and whether they add or delete.
pub(crate) type LabelledTransaction<S> = (Transaction, BTreeMap<usize, (S, Action)>);

/// Changes of a table that can be written without some of their parts.
pub(crate) trait Changes: Clone {
    type Set: Copy + PartialEq;
    /// A part: an element, or everything that belongs to it.
    type Part: Clone + Ord;

    /// The table, if it is created, and must not exist before.
    fn new_table(&self) -> Option<&TableKey>;

    /// Transactions to commit first, in this order, if there are any: a new table with some of its elements, and no
    /// chain that sees packets.
    fn groundwork(&self) -> Vec<Transaction> {
        Vec::new()
    }

    /// All changes. `has_ground`: the first of [`groundwork`](Changes::groundwork) is committed.
    fn outgoing(&self, has_ground: bool) -> LabelledTransaction<Self::Set>;

    /// The part of each element of an operation; `None` for one that belongs to none.
    fn parts(&self, operation: (Self::Set, Action)) -> impl Iterator<Item = Option<Self::Part>>;

    /// Removes parts everywhere, in this set or wherever they have elements.
    fn leave_out(&mut self, set: Self::Set, parts: &[Self::Part]);
}

#[derive(Debug)]
pub(crate) struct WriteOutcome<P> {
    /// The failure of the whole.
    pub(crate) failed: Option<PortError>,
    /// Parts that were left out of it.
    pub(crate) refused: Vec<(P, Action, PortError)>,
    /// The kernel contradicted its tracked state.
    pub(crate) is_surprise: bool,
    /// Number of committed transactions.
    pub(crate) commits: u32,
}

/// Writes changes without the parts that the kernel refuses. Returns what is left of them.
pub(crate) fn write<'a, C: Changes, F: PartialEq>(
    mut changes: Cow<'a, C>,
    family: Family,
    (basis, again): (&mut Basis<F>, &ReadAgain<'_, F>),
    tables: &mut dyn Tables,
) -> (Cow<'a, C>, WriteOutcome<C::Part>) {
    let mut written = WriteOutcome { failed: None, refused: Vec::new(), is_surprise: false, commits: 0 };
    for mut transaction in changes.groundwork() {
        if basis.commit(family, &mut transaction, again, tables).is_err() {
            // What follows shows why.
            break;
        }
        written.commits = written.commits.saturating_add(1);
    }
    let has_ground = written.commits > 0;
    let mut checks = CHECKS;
    loop {
        let (mut transaction, of_elements) = changes.outgoing(has_ground);
        if transaction.is_empty() {
            break;
        }
        let (NotCommitted { error, refused }, is_changed) = match basis.commit(family, &mut transaction, again, tables)
        {
            Ok(()) => {
                written.commits = written.commits.saturating_add(1);
                break;
            }
            Err(refused) => refused,
        };
        let found = refused.filter(|_| written.refused.len() < PATIENCE).and_then(|(number, element)| {
            let (set, action) = of_elements.get(&number).copied()?;
            let part = match element {
                // Not the element is missing, but its table, set or chain; or another program has added the element.
                _ if action == Action::Add && is_of_the_state(&error) => return None,
                Some(element) => changes.parts((set, action)).nth(element)??,
                None if is_of_an_element(&error) => {
                    let suspects: BTreeSet<C::Part> = changes.parts((set, action)).flatten().gather();
                    let passes = |without: &[C::Part]| passes(&*changes, has_ground, set, without, tables);
                    search(suspects.into_iter().collect(), &mut checks, passes)?
                }
                None => return None,
            };
            Some((set, action, part))
        });
        let Some((set, action, part)) = found else {
            // Nothing was changed, because the transaction is atomic.
            written.is_surprise |= is_changed || is_of_the_state(&error);
            let is_foreign =
                error.kind() == PortErrorKind::AlreadyExists && refused.is_some_and(|(operation, _)| operation == 0);
            written.failed = Some(match changes.new_table().filter(|_| is_foreign && !has_ground) {
                Some(table) => PortError::new(error.kind(), format_args!("{error}: {}", made_by_others(table))),
                None => error,
            });
            break;
        };
        // An element to delete that is already gone.
        written.is_surprise |= action == Action::Delete && error.kind() == PortErrorKind::NotFound;
        changes.to_mut().leave_out(set, std::slice::from_ref(&part));
        written.refused.push((part, action, error));
    }
    (changes, written)
}

/// Whether the kernel accepts all but these parts of a set; `None` if it refuses something else.
fn passes<C: Changes>(
    changes: &C,
    has_ground: bool,
    set: C::Set,
    without: &[C::Part],
    tables: &mut dyn Tables,
) -> Option<bool> {
    let mut tried = changes.clone();
    tried.leave_out(set, without);
    let (transaction, of_elements) = tried.outgoing(has_ground);
    match tables.check(&transaction) {
        Ok(()) => Some(true),
        // The kernel continues after a refusal, and the first refusal is the one that counts. If it is about another
        // set, this set passed.
        Err(NotCommitted { refused: Some((operation, _)), .. }) => {
            Some(of_elements.get(&operation).is_none_or(|(of, _)| *of != set))
        }
        Err(_) => None,
    }
}

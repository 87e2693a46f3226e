//! The plan of nftables mode: one transaction per family, made from elements and chains, and how it is written.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nftables::{
    Element, ElementData, ElementKey, ElementList, Expression, MapData, Rule, Set, SetFlags, TableKey, Transaction,
    Verdict,
};

use super::index::{Index, frontends};
use super::layout::{Layout, OWNED, SERVICES};
use super::lower::{Item, SetName, place};
use super::observed::{Observed, frontend_of, read};
use super::pick::Pick;
use crate::modes::Work;
use crate::modes::shared::frontends::{FrontendChanges, change};
use crate::modes::shared::table::{
    self, Basis, ChainRules, Fate, LabelledTransaction, Layout as _, WriteOutcome, is_kind_of, write,
};
use crate::net::{Family, FrontendKey};
use crate::pack::Gather as _;
use crate::plan::operation::{Operation, Whole};
use crate::plan::report::Applied;
use crate::plan::step::{Action, Names, Part, Step};
use crate::ports::Tables;
use crate::service::{Changes, Desired};

/// Number of elements of a new table from which it gets some before the others. Below, that saves the kernel less than
/// a listener, which reads the table at each transaction, takes.
const ELEMENTS_AT_ONCE: usize = 32_768;

#[derive(Debug, Default)]
pub(crate) struct NftablesPlan {
    pub(super) tables: Vec<TablePlan>,
    /// The generation before it.
    pub(super) generation: Option<u32>,
    /// The tables that were read for it.
    pub(super) basis: Basis<Observed>,
    pub(super) held: BTreeSet<FrontendKey>,
    /// Families whose table should be recreated, but stays because deletions are held back.
    pub(super) left: BTreeSet<Family>,
}

#[derive(Clone, Debug)]
pub(super) struct TablePlan {
    pub(super) layout: Arc<Layout>,
    pub(super) fate: Fate,
    /// Whether this process becomes the table's owner.
    claims: bool,
    sets: Vec<Set>,
    delete_sets: Vec<String>,
    /// Chains that are created or get other rules.
    chains: Vec<ChainRules>,
    delete_chains: Vec<String>,
    delete: BTreeMap<SetName, Vec<ElementKey>>,
    /// Shared with the transaction, because for a whole table they take most of a pass's memory.
    add: BTreeMap<SetName, Arc<ElementList>>,
    pub(super) frontends: FrontendChanges,
}

impl TablePlan {
    /// Computes the differences from what existed `before`. Without `changes` that is the whole table, empty if it must
    /// be created. Otherwise it is what changed, as last written ([`Index::written`]).
    pub(super) fn new(
        layout: Arc<Layout>,
        fate: Fate,
        (desired, index): (&Desired, &Index),
        (before, changes): (&Observed, Option<&Changes>),
    ) -> Self {
        let family = layout.family;
        let mut plan = TablePlan {
            claims: fate == Fate::Keep && changes.is_none() && before.shape.is_orphan(&*layout),
            layout,
            fate,
            sets: Vec::new(),
            delete_sets: Vec::new(),
            chains: Vec::new(),
            delete_chains: Vec::new(),
            delete: BTreeMap::new(),
            add: BTreeMap::new(),
            frontends: FrontendChanges::default(),
        };
        if fate == Fate::Delete {
            return plan;
        }
        // What remains of these in the end is deleted.
        let mut elements: BTreeMap<SetName, Vec<Option<&Element>>> =
            before.elements.iter().map(|(set, elements)| (*set, elements.iter().map(Some).collect())).gather();
        let is_fixed = |name: &&str| SetName::FIXED.into_iter().any(|set| set.name() == *name);
        let sets = before.shape.sets.keys().map(String::as_str);
        let mut sets: BTreeSet<&str> = sets.filter(|name| !is_fixed(name)).gather();
        let mut there: BTreeMap<&str, &Vec<Rule>> =
            before.shape.chains.iter().map(|(name, (_, rules))| (name.as_str(), rules)).gather();
        let mut compare = |plan: &mut TablePlan, (set, element): Item| {
            let place = before.elements.get(&set).and_then(|elements| place(elements, &element.key));
            match place.and_then(|place| elements.get_mut(&set)?.get_mut(place)?.take()) {
                Some(there) if there.data == element.data => return false,
                Some(_) => plan.delete(set, element.key.clone()),
                None => {}
            }
            Arc::make_mut(plan.add.entry(set).or_default()).push(element);
            true
        };
        let mut differing = Vec::new();
        for frontend in frontends(desired, family, changes) {
            let mut differs = false;
            for item in index.lower(frontend) {
                differs |= compare(&mut plan, item);
            }
            if differs {
                differing.push(frontend.key);
            }
        }
        let mut chains = index.fixed_chains(&plan.layout, changes.is_some());
        for need in index.needs(family, changes.is_some()) {
            if let Some(item) = need.item() {
                compare(&mut plan, item);
            }
            let chain = need.chain().map(|chain| plan.layout.regular(&chain.to_string(), plan.layout.rules(chain)));
            chains.extend(chain);
            plan.sets.extend(need.set(&plan.layout).filter(|set| !sets.remove(set.key.name.as_str())));
        }
        let left =
            elements.into_iter().flat_map(|(set, of)| of.into_iter().flatten().map(move |left| (set, &left.key)));
        for (set, key) in left {
            differing.extend(frontend_of(set, key, family));
            plan.delete(set, key.clone());
        }
        chains.retain(|(chain, rules)| there.remove(chain.key.name.as_str()) != Some(rules));
        plan.chains = chains;
        plan.delete_chains = there.into_keys().map(str::to_owned).collect();
        plan.delete_sets = sets.into_iter().map(str::to_owned).collect();
        let is_read = changes.is_none() && !differing.is_empty();
        let served = if is_read { before.frontends(family) } else { BTreeMap::new() };
        let noted = differing.into_iter().map(|key| {
            let was_written = changes.is_some_and(|changes| changes.written(&key, None).is_some());
            (key, change(was_written || served.contains_key(&key), desired.frontend(&key)))
        });
        plan.frontends = FrontendChanges(noted.gather());
        plan
    }

    /// Computes the differences from the table that was read. One that cannot be repaired is recreated.
    pub(super) fn compared(layout: Arc<Layout>, (desired, index): (&Desired, &Index), observed: &Observed) -> Self {
        let family = layout.family;
        let is_other =
            |set: Set| observed.shape.sets.get(set.key.name.as_str()).is_some_and(|of| !is_kind_of(of, &set));
        if !observed.is_other && !index.needs(family, false).filter_map(|need| need.set(&layout)).any(is_other) {
            return TablePlan::new(layout, Fate::Keep, (desired, index), (observed, None));
        }
        let mut plan = TablePlan::new(layout, Fate::Remake, (desired, index), (&Observed::default(), None));
        for (key, had_endpoints) in observed.frontends(family) {
            let after = desired.frontend(&key);
            if after.is_none_or(|after| had_endpoints && after.endpoints().is_empty()) {
                plan.frontends.note(key, true, after);
            }
        }
        plan
    }

    fn delete(&mut self, set: SetName, key: ElementKey) {
        self.delete.entry(set).or_default().push(key);
    }

    fn add_nothing_of(&mut self, frontends: &BTreeSet<FrontendKey>) {
        let family = self.layout.family;
        for (set, elements) in &mut self.add {
            let is_it = |key: &ElementKey| frontend_of(*set, key, family).is_some_and(|key| frontends.contains(&key));
            *elements = Arc::new(elements.iter().filter(|element| !is_it(&element.key)).collect());
        }
        self.frontends.0.retain(|key, _| !frontends.contains(key));
    }

    /// Leaves held Frontends unchanged, with the chains that they need.
    pub(super) fn hold(&mut self, held: &BTreeSet<FrontendKey>, index: &Index, observed: &Observed) {
        let family = self.layout.family;
        let is_held = |set, key: &ElementKey| frontend_of(set, key, family).is_some_and(|key| held.contains(&key));
        let addresses: BTreeSet<ElementKey> = held.iter().map(|key| ElementKey::Value(key.address.into())).gather();
        let is_shared = |set, key: &ElementKey| match set {
            SetName::Hairpins => true,
            SetName::ClusterIps => addresses.contains(key),
            _ => false,
        };
        for (set, keys) in &mut self.delete {
            keys.retain(|key| !is_held(*set, key) && !is_shared(*set, key));
        }
        self.add_nothing_of(held);
        let mut needed = BTreeSet::new();
        let (mut found, mut entered): (Vec<&str>, BTreeSet<Pick>) = (Vec::new(), BTreeSet::new());
        for (set, elements) in &observed.elements {
            for element in elements.iter().filter(|element| is_held(*set, &element.key)) {
                match (set, &element.data) {
                    (SetName::Picked(pick), _) => drop(entered.insert(*pick)),
                    (_, Some(ElementData::Verdict(Verdict::Goto(chain)))) => {
                        found.push(chain.as_str());
                    }
                    _ => {}
                }
            }
        }
        let kept: Vec<String> = entered.iter().map(Pick::to_string).collect();
        found.extend(kept.iter().map(String::as_str));
        // Chains jump to chains, and name sets.
        while let Some(name) = found.pop() {
            if needed.insert(name) {
                let rules = observed.shape.rules(name).into_iter().flatten();
                found.extend(rules.flat_map(|rule| &rule.expressions).filter_map(|expression| match expression {
                    Expression::Verdict(Verdict::Goto(to) | Verdict::Jump(to)) => Some(to.as_str()),
                    Expression::Lookup { set, .. } | Expression::DynSet { set, .. } => Some(set.name.as_str()),
                    _ => None,
                }));
            }
        }
        self.delete_chains.retain(|chain| !needed.contains(chain.as_str()));
        self.delete_sets.retain(|set| !needed.contains(set.as_str()));
        // The chain that jumps to those that stay.
        entered.extend(index.entered_by_set(family));
        let services = self.layout.services(entered);
        if self.chains.iter().any(|(chain, _)| *chain == services.0) {
            self.chains.retain(|(chain, _)| *chain != services.0);
            if observed.shape.rules(SERVICES) != Some(&services.1) {
                self.chains.push(services);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let has_elements = self.add.values().any(|of| !of.is_empty()) || self.delete.values().any(|of| !of.is_empty());
        !self.changes_rules() && !has_elements
    }

    /// Whether more than elements changes: the table as a whole, or chains and sets.
    pub(super) fn changes_rules(&self) -> bool {
        let has_sets = !self.sets.is_empty() || !self.delete_sets.is_empty();
        self.fate != Fate::Keep || self.claims || has_sets || !self.chains.is_empty() || !self.delete_chains.is_empty()
    }
}

impl table::Changes for TablePlan {
    type Set = SetName;
    type Part = FrontendKey;

    fn new_table(&self) -> Option<&TableKey> {
        (self.fate == Fate::Make).then_some(&self.layout.table)
    }

    /// The kernel enlarges hash tables between transactions. One that fills an empty set visits each of its smaller
    /// tables for each element, and takes twice as long with 20,000 Services (`rhashtable_insert_slow` in the kernel's
    /// lib/rhashtable.c).
    fn groundwork(&self) -> Vec<Transaction> {
        let elements = self.add.values().map(|of| of.len()).sum::<usize>();
        if self.fate != Fate::Make || elements < ELEMENTS_AT_ONCE {
            return Vec::new();
        }
        let mut table = Transaction::new();
        let owned: Vec<ChainRules> =
            self.chains.iter().filter(|(chain, _)| chain.key.name.as_str() == OWNED).cloned().collect();
        table::write_layout(&mut table, (self.fate, false), &*self.layout, self.sets.iter().cloned(), &owned);
        let part = |mut transaction: Transaction, share| {
            let hashed = |set: &Set| set.data != Some(MapData::Verdict) && !set.flags.contains(SetFlags::INTERVAL);
            for (set, elements) in self.add.iter().map(|(set, elements)| (self.layout.set(*set), elements)) {
                if hashed(&set) {
                    let some = elements.len().checked_div(share).unwrap_or_default();
                    transaction.add_elements(&set, elements.iter().take(some));
                }
            }
            transaction
        };
        vec![part(table, 64), part(Transaction::new(), 8)]
    }

    fn outgoing(&self, has_ground: bool) -> LabelledTransaction<SetName> {
        let (layout, sets) = (&*self.layout, self.sets.iter().filter(|_| !has_ground).cloned());
        let (mut transaction, mut of_elements) = LabelledTransaction::default();
        let fate = if has_ground { Fate::Keep } else { self.fate };
        table::write_layout(&mut transaction, (fate, self.claims), layout, sets, &self.chains);
        if self.fate == Fate::Delete {
            return (transaction, of_elements);
        }
        for (set, keys) in self.delete.iter().filter(|(_, keys)| !keys.is_empty()) {
            transaction.delete_elements(&layout.set(*set), keys.iter().cloned().map(Element::new));
        }
        for (set, elements) in self.add.iter().filter(|(_, elements)| !elements.is_empty()) {
            of_elements.insert(transaction.len(), (*set, Action::Add));
            transaction.add_shared_elements(layout.set(*set), Arc::clone(elements));
        }
        for chain in &self.delete_chains {
            transaction.flush_chain(&layout.chain_key(chain));
        }
        for chain in &self.delete_chains {
            transaction.delete_chain(&layout.chain_key(chain));
        }
        for set in &self.delete_sets {
            transaction.delete_set(&layout.set_key_of(set));
        }
        (transaction, of_elements)
    }

    fn parts(&self, (set, _): (SetName, Action)) -> impl Iterator<Item = Option<FrontendKey>> {
        let elements = self.add.get(&set).into_iter().flat_map(|elements| elements.iter());
        elements.map(move |element| frontend_of(set, &element.key, self.layout.family))
    }

    /// Leaves Frontends unchanged, with all their elements; without any if a chain is deleted, which may be theirs.
    fn leave_out(&mut self, _set: SetName, parts: &[FrontendKey]) {
        let family = self.layout.family;
        let parts: BTreeSet<FrontendKey> = parts.iter().copied().gather();
        let is_it = |set, key: &ElementKey| frontend_of(set, key, family).is_some_and(|key| parts.contains(&key));
        self.add_nothing_of(&parts);
        if self.delete_chains.is_empty() && self.delete_sets.is_empty() {
            for (set, keys) in &mut self.delete {
                keys.retain(|key| !is_it(*set, key));
            }
        }
    }
}

impl Work for NftablesPlan {
    fn is_empty(&self) -> bool {
        self.tables.iter().all(TablePlan::is_empty)
    }

    /// Those of a table are one transaction.
    fn operations(&self) -> Box<dyn Iterator<Item = Operation<'_>> + '_> {
        Box::new(self.tables.iter().flat_map(|table| {
            let whole = table.changes_rules().then_some(Operation::Whole(table));
            whole.into_iter().chain(table.frontends.operations())
        }))
    }
}

impl Whole for TablePlan {
    fn step(&self) -> Step {
        let made = self.chains.iter().map(|(chain, _)| chain.key.name.as_str());
        let sets = self.sets.iter().map(|set| set.key.name.as_str());
        let gone = self.delete_chains.iter().chain(&self.delete_sets).map(String::as_str);
        let names: BTreeSet<&str> = made.chain(sets).chain(gone).gather();
        table::step(&self.layout.table, self.fate, &names.into_iter().collect::<Vec<_>>())
    }
}

/// Writes a table. What the kernel refuses of a Frontend is left out, and the rest is written without it.
pub(super) fn write_table(
    plan: &TablePlan,
    basis: &mut Basis<Observed>,
    names: &Names<'_>,
    tables: &mut dyn Tables,
    applied: &mut Applied,
) -> (Family, WriteOutcome<FrontendKey>) {
    let (family, layout): (Family, &Layout) = (plan.layout.family, &plan.layout);
    let again = |tables: &mut dyn Tables| read(tables, layout).ok();
    let (left, written) = write(Cow::Borrowed(plan), family, (basis, &again), tables);
    for (key, _, error) in &written.refused {
        applied.fail(plan.frontends.operation(key).step(names), error.clone());
    }
    let table_step = left.changes_rules().then(|| left.step());
    if let Some(error) = &written.failed {
        let step = table_step.unwrap_or_else(|| Step::new(Action::Change, Part::Table, &layout.table));
        applied.fail(step.with(format_args!("{} frontends", left.frontends.0.len())), error.clone());
    } else {
        if let Some(step) = table_step {
            applied.count(step.part, step.action, 1);
        }
        left.frontends.count(|_| left.fate != Fate::Delete, applied);
    }
    (family, written)
}

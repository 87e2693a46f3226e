//! Plan of nftables mode: one transaction for each family, made from elements and chains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nftables::{Chain, Element, ElementData, ElementKey, Expression, Rule, Set, TableKey, Verdict};

use super::index::{Index, Need};
use super::layout::{Layout, SERVICES};
use super::lower::{Item, SetName};
use super::observed::{Observed, frontend_of};
use super::pick::{Pick, SharedChain};
use crate::modes::Work;
use crate::modes::localhost_relay::is_relayed;
use crate::modes::shared::frontends::FrontendChanges;
use crate::modes::shared::table::{self, Basis, ChainRules, Fate, LabelledTransaction, Layout as _, is_kind_of};
use crate::net::{Family, FrontendKey};
use crate::plan::operation::{Operation, Whole};
use crate::plan::step::{Action, Part, Step};
use crate::safeguard::Loss;
use crate::service::{Changes, Desired};

/// Plan of a pass.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Changes to each family's table.
    pub(super) tables: Vec<TablePlan>,
    /// The generation before it.
    pub(super) generation: Option<u32>,
    /// State of the tables that was read for it.
    pub(super) basis: Basis<Observed>,
    /// Frontends that the safeguard holds back.
    pub(super) held: BTreeSet<FrontendKey>,
    /// Families whose table should be made again, but stays because deletions are held back.
    pub(super) left: BTreeSet<Family>,
}

/// Changes to a family's table.
#[derive(Clone, Debug)]
pub(super) struct TablePlan {
    pub(super) layout: Layout,
    pub(super) fate: Fate,
    /// This process becomes the table's owner.
    claims: bool,
    /// Sets of chains that are made.
    sets: Vec<Set>,
    delete_sets: Vec<String>,
    /// Chains that are made, or get other rules.
    chains: Vec<ChainRules>,
    delete_chains: Vec<String>,
    delete: BTreeMap<SetName, Vec<ElementKey>>,
    /// Shared with the transaction: of a whole table they are the largest part of the memory that a pass takes.
    add: BTreeMap<SetName, Arc<Vec<Element>>>,
    pub(super) frontends: FrontendChanges,
}

impl TablePlan {
    fn new(layout: Layout, fate: Fate) -> Self {
        TablePlan {
            layout,
            fate,
            claims: false,
            sets: Vec::new(),
            delete_sets: Vec::new(),
            chains: Vec::new(),
            delete_chains: Vec::new(),
            delete: BTreeMap::new(),
            add: BTreeMap::new(),
            frontends: FrontendChanges::default(),
        }
    }

    /// Plans the whole table, where there is none or one that cannot be repaired.
    pub(super) fn full(layout: Layout, (desired, index): (&Desired, &Index), fate: Fate) -> Self {
        let family = layout.family();
        let mut plan = TablePlan::new(layout, fate);
        if fate == Fate::Delete {
            return plan;
        }
        plan.sets = shared_sets(&plan.layout, index);
        plan.chains = all_chains(&plan.layout, index);
        for item in index.items(desired, family) {
            plan.add(item);
        }
        let frontends = desired.frontends().filter(|frontend| frontend.key.family() == family);
        for frontend in frontends.filter(|frontend| !is_relayed(&frontend.key)) {
            plan.frontends.note(frontend.key, false, Some(frontend));
        }
        plan
    }

    /// Differences to the table that was read.
    pub(super) fn compared(layout: Layout, (desired, index): (&Desired, &Index), observed: &Observed) -> Self {
        let family = layout.family();
        let mut sets: BTreeMap<&str, &Set> = observed.other_sets().collect();
        let mut new_sets = shared_sets(&layout, index);
        let is_other =
            new_sets.iter().any(|set| sets.get(set.key.name.as_str()).is_some_and(|found| !is_kind_of(found, set)));
        let served = observed.frontends(family);
        if observed.is_other || is_other {
            let mut plan = TablePlan::full(layout, (desired, index), Fate::Remake);
            for (key, had_endpoints) in served {
                let after = desired.frontend(&key);
                if after.is_none_or(|after| had_endpoints && after.endpoints().is_empty()) {
                    plan.frontends.note(key, true, after);
                }
            }
            return plan;
        }
        let mut plan = TablePlan::new(layout, Fate::Keep);
        plan.claims = observed.shape.is_orphan(&plan.layout);
        new_sets.retain(|set| sets.remove(set.key.name.as_str()).is_none());
        plan.sets = new_sets;
        plan.delete_sets = sets.into_keys().map(str::to_owned).collect();
        let mut differing = BTreeSet::new();
        let mut left: BTreeMap<SetName, BTreeMap<&ElementKey, &Option<ElementData>>> =
            observed.elements.iter().map(|(set, elements)| (*set, elements.iter().collect())).collect();
        for item in index.items(desired, family) {
            match left.entry(item.set).or_default().remove(&item.key) {
                Some(data) if *data == item.data => continue,
                Some(_) => plan.delete(item.set, item.key.clone()),
                None => {}
            }
            differing.extend(frontend_of(item.set, &item.key, family));
            plan.add(item);
        }
        for (set, left) in left {
            for key in left.into_keys() {
                differing.extend(frontend_of(set, key, family));
                plan.delete(set, key.clone());
            }
        }
        let chains = observed.shape.chains.iter();
        let mut chains: BTreeMap<&str, &Vec<Rule>> = chains.map(|(name, (_, rules))| (name.as_str(), rules)).collect();
        for (chain, rules) in all_chains(&plan.layout, index) {
            if chains.remove(chain.key.name.as_str()) != Some(&rules) {
                plan.chains.push((chain, rules));
            }
        }
        plan.delete_chains = chains.into_keys().map(str::to_owned).collect();
        for key in differing {
            plan.frontends.note(key, served.contains_key(&key), desired.frontend(&key));
        }
        plan
    }

    /// Differences to the last write.
    pub(super) fn changed(layout: Layout, (desired, index): (&Desired, &Index), changes: &Changes) -> Self {
        let family = layout.family();
        let mut plan = TablePlan::new(layout, Fate::Keep);
        for (key, before) in changes.frontends().filter(|(key, _)| key.family() == family) {
            let after = desired.frontend(key);
            if before == after {
                continue;
            }
            let old = before.into_iter().flat_map(|frontend| index.lower_written(frontend));
            let mut old: BTreeMap<(SetName, ElementKey), Option<ElementData>> =
                old.map(|item| ((item.set, item.key), item.data)).collect();
            let mut differs = false;
            for item in after.into_iter().flat_map(|frontend| index.lower(frontend)) {
                match old.remove(&(item.set, item.key.clone())) {
                    Some(data) if data == item.data => continue,
                    Some(_) => plan.delete(item.set, item.key.clone()),
                    None => {}
                }
                differs = true;
                plan.add(item);
            }
            differs |= !old.is_empty();
            for (set, key) in old.into_keys() {
                plan.delete(set, key);
            }
            if differs {
                plan.frontends.note(*key, before.is_some(), after);
            }
        }
        let mut enters = false;
        for need in index.changed.iter().filter(|need| need.family() == family) {
            match (need, index.is_needed(need)) {
                (Need::Chain(_, chain), is_needed) => {
                    let set = chain.set(&plan.layout);
                    enters |= chain.entered_by_set().is_some();
                    if is_needed {
                        plan.sets.extend(set);
                        plan.chains.push(shared_chain(&plan.layout, chain));
                    } else {
                        plan.delete_sets.extend(set.map(|_| chain.to_string()));
                        plan.delete_chains.push(chain.to_string());
                    }
                }
                (Need::Clients(_, clients), true) => plan.sets.push(plan.layout.clients_set(*clients)),
                (Need::Clients(_, clients), false) => plan.delete_sets.push(clients.to_string()),
                (need, true) => need.item().into_iter().for_each(|item| plan.add(item)),
                (need, false) => need.item().into_iter().for_each(|item| plan.delete(item.set, item.key)),
            }
        }
        if enters {
            plan.chains.push(plan.layout.services(entered_by_set(index, family)));
        }
        plan
    }

    fn add(&mut self, item: Item) {
        Arc::make_mut(self.add.entry(item.set).or_default()).push(item.into_element());
    }

    fn delete(&mut self, set: SetName, key: ElementKey) {
        self.delete.entry(set).or_default().push(key);
    }

    /// Frontends that the plan would delete, or leave without endpoints.
    pub(super) fn losing<'a>(&'a self, desired: &'a Desired) -> impl Iterator<Item = (FrontendKey, Loss)> + 'a {
        self.frontends.0.iter().filter_map(|(key, (action, _))| {
            let loss = match (action, desired.frontend(key)) {
                (Action::Delete, _) => Loss::Everything,
                (Action::Change, Some(frontend)) if frontend.endpoints().is_empty() => Loss::Endpoints,
                _ => return None,
            };
            Some((*key, loss))
        })
    }

    /// Leaves held Frontends alone, with the chains that they need.
    pub(super) fn hold(&mut self, held: &BTreeSet<FrontendKey>, index: &Index, observed: &Observed) {
        let family = self.layout.family();
        let is_held = |set, key: &ElementKey| frontend_of(set, key, family).is_some_and(|key| held.contains(&key));
        let addresses: BTreeSet<ElementKey> = held.iter().map(|key| ElementKey::Value(key.address.into())).collect();
        let is_shared = |set, key: &ElementKey| match set {
            SetName::Hairpins => true,
            SetName::ClusterIps => addresses.contains(key),
            _ => false,
        };
        for (set, keys) in &mut self.delete {
            keys.retain(|key| !is_held(*set, key) && !is_shared(*set, key));
        }
        for (set, elements) in &mut self.add {
            Arc::make_mut(elements).retain(|element| !is_held(*set, &element.key));
        }
        self.frontends.0.retain(|key, _| !held.contains(key));
        let mut needed = BTreeSet::new();
        let (mut found, mut entered): (Vec<&str>, BTreeSet<Pick>) = (Vec::new(), BTreeSet::new());
        for (set, elements) in &observed.elements {
            for (key, data) in elements {
                match (set, data) {
                    (SetName::Picked(pick), _) if is_held(*set, key) => drop(entered.insert(*pick)),
                    (_, Some(ElementData::Verdict(Verdict::Goto(chain)))) if is_held(*set, key) => {
                        found.push(chain.as_str());
                    }
                    _ => {}
                }
            }
        }
        let kept: Vec<String> = entered.iter().map(Pick::to_string).collect();
        found.extend(kept.iter().map(String::as_str));
        // Chains lead to chains, and name sets.
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
        // The chain that leads to those that stay.
        entered.extend(entered_by_set(index, family));
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

    /// Whether more changes than elements: the table as a whole, or chains and sets.
    pub(super) fn changes_rules(&self) -> bool {
        let has_sets = !self.sets.is_empty() || !self.delete_sets.is_empty();
        self.fate != Fate::Keep || self.claims || has_sets || !self.chains.is_empty() || !self.delete_chains.is_empty()
    }

    /// The names of chains that are made, get other rules, or go; and of sets where only they do.
    pub(super) fn chain_names(&self) -> BTreeSet<&str> {
        let made = self.chains.iter().map(|(chain, _)| chain.key.name.as_str());
        let sets = self.sets.iter().map(|set| set.key.name.as_str());
        let gone = self.delete_chains.iter().chain(&self.delete_sets).map(String::as_str);
        made.chain(sets).chain(gone).collect()
    }

    /// The transaction, with the set of each operation that adds elements.
    pub(super) fn transaction(&self) -> LabelledTransaction<SetName> {
        let layout = &self.layout;
        let mut out = LabelledTransaction::default();
        table::write_layout(
            &mut out.transaction,
            (self.fate, self.claims),
            layout,
            self.sets.iter().cloned(),
            &self.chains,
        );
        if self.fate == Fate::Delete {
            return out;
        }
        for (set, keys) in self.delete.iter().filter(|(_, keys)| !keys.is_empty()) {
            out.transaction.delete_elements(&layout.set(*set), keys.iter().cloned().map(Element::new));
        }
        for (set, elements) in self.add.iter().filter(|(_, elements)| !elements.is_empty()) {
            out.note(*set, Action::Add);
            out.transaction.add_shared_elements(&layout.set(*set), Arc::clone(elements));
        }
        for chain in &self.delete_chains {
            out.transaction.flush_chain(&layout.chain_key(chain));
        }
        for chain in &self.delete_chains {
            out.transaction.delete_chain(&layout.chain_key(chain));
        }
        for set in &self.delete_sets {
            out.transaction.delete_set(&layout.set_key_of(set));
        }
        out
    }
}

impl table::Changes for TablePlan {
    type Set = SetName;
    type Part = FrontendKey;

    fn table(&self) -> &TableKey {
        self.layout.table()
    }

    fn makes_table(&self) -> bool {
        self.fate == Fate::Make
    }

    fn outgoing(&self) -> LabelledTransaction<SetName> {
        self.transaction()
    }

    fn part(&self, (set, _): (SetName, Action), element: usize) -> Option<FrontendKey> {
        frontend_of(set, &self.add.get(&set)?.get(element)?.key, self.layout.family())
    }

    fn parts(&self, (set, _): (SetName, Action)) -> Vec<FrontendKey> {
        let elements = self.add.get(&set).into_iter().flat_map(|elements| elements.iter());
        let keys = elements.filter_map(|element| frontend_of(set, &element.key, self.layout.family()));
        keys.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Leaves Frontends as they are; their other elements go with them.
    fn leave_out(&mut self, _set: SetName, parts: &[FrontendKey]) {
        let family = self.layout.family();
        let parts: BTreeSet<&FrontendKey> = parts.iter().collect();
        let is_it = |set, key: &ElementKey| frontend_of(set, key, family).is_some_and(|key| parts.contains(&key));
        for (set, elements) in &mut self.add {
            Arc::make_mut(elements).retain(|element| !is_it(*set, &element.key));
        }
        self.frontends.0.retain(|key, _| !parts.contains(key));
    }
}

fn shared_chain(layout: &Layout, chain: &SharedChain) -> ChainRules {
    (Chain::regular(layout.chain_key(&chain.to_string())), chain.rules(layout))
}

fn shared_sets(layout: &Layout, index: &Index) -> Vec<Set> {
    let of_frontends = index.chains(layout.family()).filter_map(|chain| chain.set(layout));
    of_frontends.chain(index.clients(layout.family()).map(|clients| layout.clients_set(clients))).collect()
}

/// The chains that Frontends enter by the sets of these, of a family.
fn entered_by_set(index: &Index, family: Family) -> impl Iterator<Item = Pick> {
    index.chains(family).filter_map(|chain| chain.entered_by_set())
}

fn all_chains(layout: &Layout, index: &Index) -> Vec<ChainRules> {
    let mut chains = layout.chains();
    let services = layout.services(entered_by_set(index, layout.family()));
    for chain in chains.iter_mut().filter(|(chain, _)| *chain == services.0) {
        chain.1.clone_from(&services.1);
    }
    chains.extend(index.chains(layout.family()).map(|chain| shared_chain(layout, &chain)));
    chains
}

impl Work for Plan {
    fn is_empty(&self) -> bool {
        self.tables.iter().all(TablePlan::is_empty)
    }

    /// The operations, in the order in which they are carried out; those of a table are one transaction.
    fn operations(&self) -> Box<dyn Iterator<Item = Operation<'_>> + '_> {
        Box::new(self.tables.iter().flat_map(|table| {
            let whole = table.changes_rules().then_some(Operation::Whole(table));
            whole.into_iter().chain(table.frontends.operations())
        }))
    }
}

/// The table as a whole, if it or a chain of it changes.
impl Whole for TablePlan {
    fn kind(&self) -> (Part, Action) {
        (Part::Table, self.fate.action())
    }

    fn step(&self) -> Step {
        let names: Vec<&str> = self.chain_names().into_iter().collect();
        table::step(self.layout.table(), self.fate, &names)
    }
}

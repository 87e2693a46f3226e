//! A plan: for each family one transaction, made from elements and chains.

use std::collections::{BTreeMap, BTreeSet};

use nftables::{Chain, Element, ElementData, ElementKey, Expression, Rule, Set, TableKey, Verdict};

use super::index::{Index, Need};
use super::layout::Layout;
use super::lower::{Item, SetName};
use super::observed::{Observed, frontend_of, is_kind_of};
use super::pick::SharedChain;
use crate::modes::shared::names::Names;
use crate::modes::shared::table::{self, ChainRules, Fate, Outgoing};
use crate::net::FrontendKey;
use crate::plan::step::{Action, Part, Step};
use crate::safeguard::Loss;
use crate::service::{Changes, Desired};

/// Plan of a pass.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Plan {
    /// Changes to each family's table.
    pub(super) tables: Vec<TablePlan>,
}

/// Changes to a family's table.
#[derive(Clone, Debug)]
pub(super) struct TablePlan {
    pub(super) layout: Layout,
    pub(super) fate: Fate,
    /// Sets of slots that are made.
    sets: Vec<Set>,
    delete_sets: Vec<String>,
    /// Chains that are made, or get other rules.
    chains: Vec<ChainRules>,
    delete_chains: Vec<String>,
    delete: BTreeMap<SetName, Vec<ElementKey>>,
    add: BTreeMap<SetName, Vec<Element>>,
    /// Action for each Frontend that changes, with the number of its endpoints.
    pub(super) frontends: BTreeMap<FrontendKey, (Action, usize)>,
}

impl TablePlan {
    fn new(layout: Layout, fate: Fate) -> Self {
        TablePlan {
            layout,
            fate,
            sets: Vec::new(),
            delete_sets: Vec::new(),
            chains: Vec::new(),
            delete_chains: Vec::new(),
            delete: BTreeMap::new(),
            add: BTreeMap::new(),
            frontends: BTreeMap::new(),
        }
    }

    /// Whether programs at loopback addresses are guarded when it is carried out.
    pub(super) fn guards_localhost(&self) -> bool {
        self.fate != Fate::Delete && self.layout.guards_localhost()
    }

    /// The whole table, where there is none or one that cannot be mended.
    pub(super) fn whole(layout: Layout, (desired, index): (&Desired, &Index), fate: Fate) -> Self {
        let family = layout.family();
        let mut plan = TablePlan::new(layout, fate);
        if fate == Fate::Delete {
            return plan;
        }
        plan.sets = slot_sets(&plan.layout, index);
        plan.chains = all_chains(&plan.layout, index);
        for item in index.items(desired, family) {
            plan.add(item);
        }
        let frontends = desired.frontends().filter(|frontend| frontend.key.family() == family);
        plan.frontends = frontends.map(|of| (of.key, (Action::Add, of.endpoints().len()))).collect();
        plan
    }

    /// Differences to the table that was read.
    pub(super) fn compared(layout: Layout, (desired, index): (&Desired, &Index), observed: &Observed) -> Self {
        let family = layout.family();
        let mut sets: BTreeMap<&str, &Set> =
            observed.other_sets.iter().map(|(name, set)| (name.as_str(), set)).collect();
        let mut new_sets = slot_sets(&layout, index);
        let is_other =
            new_sets.iter().any(|set| sets.get(set.key.name.as_str()).is_some_and(|found| !is_kind_of(found, set)));
        if observed.is_other || is_other {
            return TablePlan::whole(layout, (desired, index), Fate::Remake);
        }
        let served = observed.frontends(family);
        let mut plan = TablePlan::new(layout, Fate::Keep);
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
        let mut chains: BTreeMap<&str, &Vec<Rule>> =
            observed.chains.iter().map(|(name, rules)| (name.as_str(), rules)).collect();
        for (chain, rules) in all_chains(&plan.layout, index) {
            if chains.remove(chain.key.name.as_str()) != Some(&rules) {
                plan.chains.push((chain, rules));
            }
        }
        plan.delete_chains = chains.into_keys().map(str::to_owned).collect();
        for key in differing {
            plan.note(key, served.contains_key(&key), desired);
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
                plan.note(*key, before.is_some(), desired);
            }
        }
        for need in index.changed.iter().filter(|need| need.family() == family) {
            match (need, index.is_needed(need)) {
                (Need::Chain(_, chain), true) => {
                    plan.sets.extend(chain.slot().map(|slot| plan.layout.slot_set(slot)));
                    plan.chains.push(shared_chain(&plan.layout, chain));
                }
                (Need::Chain(_, chain), false) => {
                    plan.delete_sets.extend(chain.slot().map(ToString::to_string));
                    plan.delete_chains.push(chain.to_string());
                }
                (need, true) => need.item().into_iter().for_each(|item| plan.add(item)),
                (need, false) => need.item().into_iter().for_each(|item| plan.delete(item.set, item.key)),
            }
        }
        plan
    }

    fn add(&mut self, item: Item) {
        self.add.entry(item.set).or_default().push(item.into_element());
    }

    fn delete(&mut self, set: SetName, key: ElementKey) {
        self.delete.entry(set).or_default().push(key);
    }

    fn note(&mut self, key: FrontendKey, was_there: bool, desired: &Desired) {
        let after = desired.frontend(&key);
        let action = match (was_there, after) {
            (_, None) => Action::Delete,
            (false, Some(_)) => Action::Add,
            (true, Some(_)) => Action::Change,
        };
        self.frontends.insert(key, (action, after.map_or(0, |frontend| frontend.endpoints().len())));
    }

    /// Frontends that the plan would delete, or leave without endpoints.
    pub(super) fn losing<'a>(&'a self, desired: &'a Desired) -> impl Iterator<Item = (FrontendKey, Loss)> + 'a {
        self.frontends.iter().filter_map(|(key, (action, _))| {
            let loss = match (action, desired.frontend(key)) {
                (Action::Delete, _) => Loss::Everything,
                (Action::Change, Some(frontend)) if frontend.endpoints().is_empty() => Loss::Endpoints,
                _ => return None,
            };
            Some((*key, loss))
        })
    }

    /// Leaves held Frontends alone, with the chains that they need.
    pub(super) fn hold(&mut self, held: &BTreeSet<FrontendKey>, observed: &Observed) {
        let family = self.layout.family();
        let is_held = |set, key: &ElementKey| frontend_of(set, key, family).is_some_and(|key| held.contains(&key));
        for (set, keys) in &mut self.delete {
            keys.retain(|key| !is_held(*set, key) && *set != SetName::Hairpins);
        }
        for (set, elements) in &mut self.add {
            elements.retain(|element| !is_held(*set, &element.key));
        }
        self.frontends.retain(|key, _| !held.contains(key));
        let mut needed = BTreeSet::new();
        let mut found = Vec::new();
        for (set, elements) in &observed.elements {
            for (key, data) in elements {
                if let Some(ElementData::Verdict(Verdict::Goto(chain))) = data
                    && is_held(*set, key)
                {
                    found.push(chain.as_str());
                }
            }
        }
        // Chains lead to chains; a slot's set has its chain's name.
        while let Some(chain) = found.pop() {
            if needed.insert(chain) {
                let rules = observed.chains.get(chain).into_iter().flatten();
                found.extend(rules.flat_map(|rule| &rule.expressions).filter_map(|expression| match expression {
                    Expression::Verdict(Verdict::Goto(to) | Verdict::Jump(to)) => Some(to.as_str()),
                    _ => None,
                }));
            }
        }
        self.delete_chains.retain(|chain| !needed.contains(chain.as_str()));
        self.delete_sets.retain(|set| !needed.contains(set.as_str()));
    }

    pub(super) fn is_empty(&self) -> bool {
        let has_elements = self.add.values().any(|of| !of.is_empty()) || self.delete.values().any(|of| !of.is_empty());
        !self.changes_rules() && !has_elements
    }

    /// Whether more changes than elements: the table as a whole, or chains and sets.
    pub(super) fn changes_rules(&self) -> bool {
        let has_sets = !self.sets.is_empty() || !self.delete_sets.is_empty();
        self.fate != Fate::Keep || has_sets || !self.chains.is_empty() || !self.delete_chains.is_empty()
    }

    /// The names of chains that are made, get other rules, or go; and of sets where only they do.
    pub(super) fn chain_names(&self) -> BTreeSet<&str> {
        let made = self.chains.iter().map(|(chain, _)| chain.key.name.as_str());
        let sets = self.sets.iter().map(|set| set.key.name.as_str());
        let gone = self.delete_chains.iter().chain(&self.delete_sets).map(String::as_str);
        made.chain(sets).chain(gone).collect()
    }

    /// The transaction, with the set of each operation that adds elements.
    pub(super) fn transaction(&self) -> Outgoing<SetName> {
        let layout = &self.layout;
        let mut out = Outgoing::default();
        let fixed = layout.sets().filter(|_| self.fate != Fate::Keep);
        let sets = fixed.chain(self.sets.iter().cloned());
        table::write_layout(&mut out.transaction, self.fate, layout.to_table(), sets, &self.chains);
        if self.fate == Fate::Delete {
            return out;
        }
        for (set, keys) in self.delete.iter().filter(|(_, keys)| !keys.is_empty()) {
            out.transaction.delete_elements(&layout.set(*set), keys.iter().cloned().map(Element::new));
        }
        for (set, elements) in self.add.iter().filter(|(_, elements)| !elements.is_empty()) {
            out.note(*set, Action::Add);
            out.transaction.add_elements(&layout.set(*set), elements.iter().cloned());
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

    fn outgoing(&self) -> Outgoing<SetName> {
        self.transaction()
    }

    fn part(&self, (set, _): (SetName, Action), element: usize) -> Option<FrontendKey> {
        frontend_of(set, &self.add.get(&set)?.get(element)?.key, self.layout.family())
    }

    fn parts(&self, (set, _): (SetName, Action)) -> Vec<FrontendKey> {
        let elements = self.add.get(&set).into_iter().flatten();
        let keys = elements.filter_map(|element| frontend_of(set, &element.key, self.layout.family()));
        keys.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Leaves Frontends as they are; their other elements go with them.
    fn leave_out(&mut self, _set: SetName, parts: &[FrontendKey]) {
        let family = self.layout.family();
        let parts: BTreeSet<&FrontendKey> = parts.iter().collect();
        let is_it = |set, key: &ElementKey| frontend_of(set, key, family).is_some_and(|key| parts.contains(&key));
        for (set, elements) in &mut self.add {
            elements.retain(|element| !is_it(*set, &element.key));
        }
        self.frontends.retain(|key, _| !parts.contains(key));
    }
}

fn shared_chain(layout: &Layout, chain: &SharedChain) -> ChainRules {
    (Chain::regular(layout.chain_key(&chain.to_string())), chain.rules(layout))
}

fn slot_sets(layout: &Layout, index: &Index) -> Vec<Set> {
    let chains = index.chains(layout.family());
    chains.filter_map(|chain| chain.slot().map(|slot| layout.slot_set(slot))).collect()
}

fn all_chains(layout: &Layout, index: &Index) -> Vec<ChainRules> {
    let shared = index.chains(layout.family()).map(|chain| shared_chain(layout, &chain));
    layout.chains().into_iter().chain(shared).collect()
}

impl Plan {
    /// Whether the plan is empty.
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(TablePlan::is_empty)
    }

    /// The operations, in the order in which they are carried out; those of a table are one transaction.
    pub fn steps<'a>(&'a self, names: &'a Names<'a>) -> impl Iterator<Item = Step> + 'a {
        self.tables.iter().flat_map(move |table| table.steps(names))
    }
}

impl TablePlan {
    pub(super) fn steps<'a>(&'a self, names: &'a Names<'a>) -> impl Iterator<Item = Step> + 'a {
        let frontends = self.frontends.keys().map(|key| self.frontend_step(key, names));
        self.table_step().into_iter().chain(frontends)
    }

    /// The step of the table as a whole, if it or a chain of it changes.
    pub(super) fn table_step(&self) -> Option<Step> {
        let action = match self.fate {
            Fate::Make => Action::Add,
            Fate::Keep | Fate::Remake => Action::Change,
            Fate::Delete => Action::Delete,
        };
        let step = Step::new(action, Part::Table, self.layout.table());
        match self.fate {
            Fate::Keep if self.changes_rules() => {
                let names: Vec<&str> = self.chain_names().into_iter().collect();
                Some(step.with(format_args!("chains {}", names.join(", "))))
            }
            Fate::Keep => None,
            Fate::Remake => Some(step.with("made again: it has other flags, sets or hooks")),
            Fate::Make | Fate::Delete => Some(step),
        }
    }

    pub(super) fn frontend_step(&self, key: &FrontendKey, names: &Names<'_>) -> Step {
        let (action, endpoints) = self.frontends.get(key).copied().unwrap_or((Action::Change, 0));
        let step = Step::new(action, Part::Frontend, key).of(names.service_of(key));
        match (action, endpoints) {
            (Action::Delete, _) => step,
            (_, 1) => step.with("1 endpoint"),
            (_, count) => step.with(format_args!("{count} endpoints")),
        }
    }
}

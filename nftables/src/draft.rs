//! Simulates transactions without a kernel.

use std::collections::BTreeMap;

use crate::model::{
    Element, ElementKey, InvalidValue, Name, ObservedChain, ObservedFlowtable, ObservedObject, ObservedRule,
    ObservedSet, ObservedTable, SetKey, TableKey,
};
use crate::snapshot::{SetContents, TableSnapshot};
use crate::transaction::{Operation, RulePlace, Transaction};

/// The tables that transactions would create, to show their effect. The kernel's checks are not simulated.
///
/// ```
/// use nftables::{Chain, Draft, Family, Table, TableKey, Transaction, rule};
///
/// let table = TableKey::new(Family::Inet, "filter")?;
/// let web = table.chain("web")?;
/// let mut transaction = Transaction::new();
/// transaction.add_table(Table::new(table.clone())).add_chain(Chain::regular(web.clone()));
/// transaction.add_rule(&web, rule(Family::Inet).dport(80).accept().build()?);
///
/// let mut draft = Draft::default();
/// draft.apply(&transaction)?;
/// let text = draft.snapshot(&table).ok_or("no table")?.to_string();
/// assert_eq!(text, "table inet filter {\n\tchain web {\n\t\tth dport 80 accept\n\t}\n}\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Draft {
    tables: BTreeMap<TableKey, DraftTable>,
    handles: u64,
}

/// A table with its elements indexed by key.
#[derive(Clone, Debug)]
struct DraftTable {
    /// Without elements.
    snapshot: TableSnapshot,
    elements: BTreeMap<Name, BTreeMap<ElementKey, Element>>,
}

fn missing(what: impl std::fmt::Display) -> InvalidValue {
    InvalidValue::new(what.to_string(), "it does not exist")
}

/// Adds an item unless an equal one exists.
fn add<T>(to: &mut Vec<T>, item: T, is_same: impl Fn(&T) -> bool) {
    if !to.iter().any(is_same) {
        to.push(item);
    }
}

/// Removes the matching items.
///
/// # Errors
/// None does.
fn remove<T>(from: &mut Vec<T>, what: &dyn std::fmt::Display, fits: impl Fn(&T) -> bool) -> Result<(), InvalidValue> {
    let before = from.len();
    from.retain(|item| !fits(item));
    if from.len() == before { Err(missing(what)) } else { Ok(()) }
}

impl Draft {
    /// The keys of the tables, in order.
    pub fn tables(&self) -> impl Iterator<Item = &TableKey> {
        self.tables.keys()
    }

    /// A table with all its contents; `None` if there is none with this key.
    pub fn snapshot(&self, table: &TableKey) -> Option<TableSnapshot> {
        let DraftTable { snapshot, elements } = self.tables.get(table)?;
        let mut snapshot = snapshot.clone();
        for contents in &mut snapshot.sets {
            let of_set = elements.get(&contents.set.set.key.name).into_iter().flat_map(BTreeMap::values);
            contents.elements = of_set.cloned().collect();
            contents.elements.sort_by(|one, other| one.key.start().cmp(&other.key.start()));
        }
        Some(snapshot)
    }

    /// Applies the changes of a transaction. Existing objects are kept, even by `create_…`.
    ///
    /// # Errors
    /// The first operation on a table, chain, set, rule, object or flow table that does not exist. Earlier operations
    /// stay applied.
    pub fn apply(&mut self, transaction: &Transaction) -> Result<(), InvalidValue> {
        // Names of anonymous sets by their number in this transaction.
        let mut anonymous = BTreeMap::new();
        transaction.operations.iter().try_for_each(|operation| self.apply_one(operation, &mut anonymous))
    }

    fn table(&mut self, key: &TableKey) -> Result<&mut DraftTable, InvalidValue> {
        self.tables.get_mut(key).ok_or_else(|| missing(format_args!("table {key}")))
    }

    fn apply_one(&mut self, operation: &Operation, anonymous: &mut BTreeMap<u32, Name>) -> Result<(), InvalidValue> {
        self.handles = self.handles.saturating_add(1);
        let handle = self.handles;
        match operation {
            Operation::AddTable(table, _) => {
                let observed = ObservedTable { table: table.clone(), handle, references: 0, owner: None };
                let new = || DraftTable { snapshot: TableSnapshot::empty(observed), elements: BTreeMap::new() };
                self.tables.entry(table.key.clone()).or_insert_with(new);
            }
            Operation::DeleteTable(key) => {
                self.tables.remove(key).ok_or_else(|| missing(format_args!("table {key}")))?;
            }
            Operation::FlushTable(key) => self.table(key)?.snapshot.rules.clear(),
            Operation::AddChain(chain, _) => {
                let observed = ObservedChain { chain: chain.clone(), handle, references: 0 };
                let chains = &mut self.table(&chain.key.table)?.snapshot.chains;
                add(chains, observed, |found| found.chain.key == chain.key);
            }
            Operation::DeleteChain(key) => {
                let chains = &mut self.table(&key.table)?.snapshot.chains;
                remove(chains, &format_args!("chain {key}"), |found| found.chain.key == *key)?;
            }
            Operation::FlushChain(key) => self.table(&key.table)?.snapshot.rules.retain(|rule| rule.chain != *key),
            Operation::AddRule(chain, rule, place) => {
                let rules = &mut self.table(&chain.table)?.snapshot.rules;
                let at_handle = |handle: u64| {
                    let found = rules.iter().position(|rule| rule.chain == *chain && rule.handle == handle);
                    found.ok_or_else(|| missing(format_args!("rule {handle} of chain {chain}")))
                };
                let at = match *place {
                    RulePlace::Last => rules.len(),
                    RulePlace::First => 0,
                    RulePlace::After(handle) => at_handle(handle)?.saturating_add(1),
                    RulePlace::Before(handle) => at_handle(handle)?,
                };
                let mut rule = rule.clone();
                for expression in &mut rule.expressions {
                    expression.for_each_set(&mut |set| {
                        if let Some(name) = set.id.take().and_then(|id| anonymous.get(&id)) {
                            set.name = name.clone();
                        }
                    });
                }
                rules.insert(at, ObservedRule { chain: chain.clone(), rule, handle });
            }
            Operation::ReplaceRule(chain, old, rule) => {
                let rules = &mut self.table(&chain.table)?.snapshot.rules;
                let found = rules.iter_mut().find(|rule| rule.chain == *chain && rule.handle == *old);
                found.ok_or_else(|| missing(format_args!("rule {old} of chain {chain}")))?.rule = rule.clone();
            }
            Operation::DeleteRule(chain, old) => {
                let rules = &mut self.table(&chain.table)?.snapshot.rules;
                let what = format_args!("rule {old} of chain {chain}");
                remove(rules, &what, |rule| rule.chain == *chain && rule.handle == *old)?;
            }
            Operation::AddSet(set, id, _) => {
                let mut set = set.clone();
                if let Some(stem) = set.key.name.as_str().strip_suffix("%d") {
                    set.key.name = Name::new(&format!("{stem}{handle}"))?;
                    anonymous.insert(*id, set.key.name.clone());
                }
                let table = self.table(&set.key.table)?;
                table.elements.entry(set.key.name.clone()).or_default();
                let key = set.key.clone();
                let contents = SetContents { set: ObservedSet { set, handle, count: None }, elements: Vec::new() };
                add(&mut table.snapshot.sets, contents, |found| found.set.set.key == key);
            }
            Operation::DeleteSet(key) => {
                let table = self.table(&key.table)?;
                table.elements.remove(&key.name);
                remove(&mut table.snapshot.sets, &format_args!("set {key}"), |found| found.set.set.key == *key)?;
            }
            Operation::FlushSet(key, _) => self.elements(key)?.clear(),
            Operation::AddElements(of, _) => {
                let name = of.id.and_then(|id| anonymous.get(&id)).unwrap_or(&of.set.key.name).clone();
                let elements = self.elements(&SetKey { name, ..of.set.key.clone() })?;
                for element in of.elements.iter() {
                    elements.entry(element.key.clone()).or_insert(element);
                }
            }
            Operation::DeleteElements(of) => {
                let elements = self.elements(&of.set.key)?;
                of.elements.iter().for_each(|element| drop(elements.remove(&element.key)));
            }
            other => self.apply_to_object(other, handle)?,
        }
        Ok(())
    }

    /// Objects and flow tables.
    fn apply_to_object(&mut self, operation: &Operation, handle: u64) -> Result<(), InvalidValue> {
        match operation {
            Operation::AddObject(object, _) => {
                let observed = ObservedObject { object: object.clone(), handle, references: 0 };
                let objects = &mut self.table(&object.key.table)?.snapshot.objects;
                add(objects, observed, |found| found.object.key == object.key);
            }
            Operation::DeleteObject(key) => {
                let objects = &mut self.table(&key.table)?.snapshot.objects;
                remove(objects, &format_args!("object {key}"), |found| found.object.key == *key)?;
            }
            Operation::AddFlowtable(flowtable, _) => {
                let observed = ObservedFlowtable { flowtable: flowtable.clone(), handle, references: 0 };
                let flowtables = &mut self.table(&flowtable.key.table)?.snapshot.flowtables;
                match flowtables.iter_mut().find(|found| found.flowtable.key == flowtable.key) {
                    // New devices are added to the existing ones.
                    Some(found) => {
                        for device in &flowtable.devices {
                            add(&mut found.flowtable.devices, device.clone(), |found| found == device);
                        }
                    }
                    None => flowtables.push(observed),
                }
            }
            Operation::DeleteFlowtable(key) => {
                let flowtables = &mut self.table(&key.table)?.snapshot.flowtables;
                remove(flowtables, &format_args!("flow table {key}"), |found| found.flowtable.key == *key)?;
            }
            Operation::DeleteFlowtableDevices(of) => {
                let flowtables = &mut self.table(&of.key.table)?.snapshot.flowtables;
                let found = flowtables.iter_mut().find(|found| found.flowtable.key == of.key);
                let found = found.ok_or_else(|| missing(format_args!("flow table {}", of.key)))?;
                found.flowtable.devices.retain(|device| !of.devices.contains(device));
            }
            _ => {}
        }
        Ok(())
    }

    fn elements(&mut self, set: &SetKey) -> Result<&mut BTreeMap<ElementKey, Element>, InvalidValue> {
        let elements = &mut self.table(&set.table)?.elements;
        elements.get_mut(&set.name).ok_or_else(|| missing(format_args!("set {set}")))
    }
}

//! State of the fake kernel, and the rules for changing it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netlink_batch::Errno;

use crate::expr::{Expression, SetReference};
use crate::model::{
    Chain, ChainType, Element, ElementData, ElementKey, Family, Flowtable, FlowtableFlags, Hook, MapData, Name, Object,
    ObjectData, ObjectType, Rule, Set, SetFlags, Table, TableKey, Value, Verdict, timeout_states,
};

/// A refusal, and the index of the expression or element that it concerns.
pub(super) type Refusal = (Errno, Option<usize>);

pub(super) fn whole(errno: Errno) -> Refusal {
    (errno, None)
}

/// Refuses `NFT_NETDEVICE_MAX` devices of a flow table (`nf_tables_parse_netdev_hooks`).
fn check_number(devices: &[String]) -> Result<(), Refusal> {
    const EFBIG: Errno = Errno(27);
    if devices.len() < 256 { Ok(()) } else { Err(whole(EFBIG)) }
}

/// The kernel's limit of nested jumps (`NFT_JUMP_STACK_SIZE`).
const JUMPS: usize = 16;

/// Each transaction works on a copy of the state, which shares its parts until it changes them.
#[derive(Clone, Debug)]
pub(super) struct FakeTable {
    pub(super) table: Arc<Table>,
    pub(super) handle: u64,
    pub(super) chains: Vec<Arc<FakeChain>>,
    pub(super) sets: Vec<FakeSet>,
    pub(super) objects: Vec<(Object, u64)>,
    pub(super) flowtables: Vec<(Flowtable, u64)>,
}

#[derive(Clone, Debug)]
pub(super) struct FakeChain {
    pub(super) chain: Chain,
    pub(super) handle: u64,
    pub(super) rules: Vec<(u64, Rule)>,
}

#[derive(Clone, Debug)]
pub(super) struct FakeSet {
    pub(super) set: Arc<Set>,
    /// Length of its keys in bytes.
    key_length: usize,
    pub(super) handle: u64,
    /// Number within the transaction that created it.
    pub(super) id: Option<u32>,
    /// Elements in the kernel's form: by key, and whether it is the end of a range.
    pub(super) elements: Arc<BTreeMap<(Value, bool), Element>>,
    /// When elements run out.
    deadlines: BTreeMap<(Value, bool), Instant>,
}

#[derive(Clone, Debug)]
pub(super) struct Ruleset {
    pub(super) generation: u32,
    pub(super) tables: BTreeMap<TableKey, FakeTable>,
    handles: u64,
    /// Elements to refuse: prefix of the key, and the error.
    pub(super) objections: Vec<(Vec<u8>, Errno)>,
    /// Whether refusals omit the part of the message.
    pub(super) is_silent: bool,
}

impl Default for Ruleset {
    fn default() -> Self {
        Ruleset { generation: 1, tables: BTreeMap::new(), handles: 0, objections: Vec::new(), is_silent: false }
    }
}

/// Position of a rule in its chain, and flags of the request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RuleRequest {
    pub(super) handle: Option<u64>,
    pub(super) position: Option<u64>,
    pub(super) append: bool,
    pub(super) replace: bool,
}

impl Ruleset {
    fn handle(&mut self) -> u64 {
        self.handles = self.handles.saturating_add(1);
        self.handles
    }

    /// Removes expired elements.
    pub(super) fn expire(&mut self, now: Instant) {
        for set in self.tables.values_mut().flat_map(|table| &mut table.sets) {
            let over = set.deadlines.iter().filter(|(_, deadline)| **deadline <= now).map(|(key, _)| key.clone());
            for key in over.collect::<Vec<_>>() {
                set.remove(&key);
                // The end of a range expires with its start.
                let mut ends = set.elements.range((key.0, true)..).map(|(key, _)| key.clone());
                if let Some(end) = ends.find(|(_, is_end)| *is_end) {
                    Arc::make_mut(&mut set.elements).remove(&end);
                }
            }
        }
    }

    /// Set numbers are only valid within one transaction.
    pub(super) fn begin(&mut self) {
        self.tables.values_mut().flat_map(|table| &mut table.sets).for_each(|set| set.id = None);
    }

    pub(super) fn table(&self, key: &TableKey) -> Result<&FakeTable, Refusal> {
        self.tables.get(key).ok_or(whole(Errno::ENOENT))
    }

    pub(super) fn table_mut(&mut self, key: &TableKey) -> Result<&mut FakeTable, Refusal> {
        self.tables.get_mut(key).ok_or(whole(Errno::ENOENT))
    }

    pub(super) fn add_table(&mut self, table: Table, exclusive: bool) -> Result<(), Refusal> {
        if let Some(found) = self.tables.get_mut(&table.key) {
            if exclusive {
                return Err(whole(Errno::EEXIST));
            }
            Arc::make_mut(&mut found.table).flags = table.flags;
            return Ok(());
        }
        let handle = self.handle();
        let key = table.key.clone();
        let (chains, sets, objects, flowtables) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        self.tables.insert(key, FakeTable { table: Arc::new(table), handle, chains, sets, objects, flowtables });
        Ok(())
    }

    pub(super) fn delete_table(&mut self, key: &TableKey) -> Result<(), Refusal> {
        self.tables.remove(key).map(drop).ok_or(whole(Errno::ENOENT))
    }

    pub(super) fn add_chain(&mut self, chain: Chain, exclusive: bool) -> Result<(), Refusal> {
        let handle = self.handle();
        let table = self.table_mut(&chain.key.table)?;
        if let Some(found) = table.chains.iter_mut().find(|found| found.chain.key == chain.key) {
            if exclusive {
                return Err(whole(Errno::EEXIST));
            }
            let Some(new) = chain.base else { return Ok(()) };
            let Some(old) = &mut Arc::make_mut(found).chain.base else { return Err(whole(Errno::EEXIST)) };
            if (&old.kind, old.hook, old.priority) != (&new.kind, new.hook, new.priority) {
                return Err(whole(Errno::EEXIST));
            }
            old.policy = new.policy;
            return Ok(());
        }
        if let Some(base) = &chain.base {
            match base.kind {
                ChainType::Other(_) => return Err(whole(Errno::ENOENT)),
                ChainType::Nat if base.hook == Hook::Forward || base.priority.0 <= -200 => {
                    return Err(whole(Errno::EOPNOTSUPP));
                }
                ChainType::Route if base.hook != Hook::Output => return Err(whole(Errno::EOPNOTSUPP)),
                _ => {}
            }
        }
        table.chains.push(Arc::new(FakeChain { chain, handle, rules: Vec::new() }));
        Ok(())
    }

    pub(super) fn delete_chain(&mut self, key: &TableKey, name: &Name) -> Result<(), Refusal> {
        let table = self.table_mut(key)?;
        let place = table.chain_place(name).ok_or(whole(Errno::ENOENT))?;
        // Its own rules and their references are deleted with it.
        let mut without = table.clone();
        if let Some(chain) = without.chains.get_mut(place) {
            Arc::make_mut(chain).rules.clear();
        }
        if without.jumps_to(name) > 0 {
            return Err(whole(Errno::EBUSY));
        }
        without.chains.remove(place);
        without.drop_anonymous();
        *table = without;
        Ok(())
    }

    pub(super) fn add_rule(
        &mut self,
        key: &TableKey,
        chain: &Name,
        mut rule: Rule,
        request: RuleRequest,
    ) -> Result<(), Refusal> {
        let handle = self.handle();
        let table = self.table_mut(key)?;
        let place = table.chain_place(chain).ok_or(whole(Errno::ENOENT))?;
        table.resolve(&mut rule)?;
        let chain = table.chains.get_mut(place).ok_or(whole(Errno::ENOENT))?;
        let rules = &mut Arc::make_mut(chain).rules;
        let find = |rules: &[(u64, Rule)], wanted: u64| {
            rules.iter().position(|(handle, _)| *handle == wanted).ok_or(whole(Errno::ENOENT))
        };
        if let Some(old) = request.handle.filter(|_| request.replace) {
            let at = find(rules, old)?;
            if let Some(slot) = rules.get_mut(at) {
                // The kernel assigns a new handle to the new rule.
                *slot = (handle, rule);
            }
            table.drop_anonymous();
            return Ok(());
        }
        let at = match (request.position, request.append) {
            (Some(position), true) => find(rules, position)?.saturating_add(1),
            (Some(position), false) => find(rules, position)?,
            (None, true) => rules.len(),
            (None, false) => 0,
        };
        rules.insert(at, (handle, rule));
        Ok(())
    }

    pub(super) fn delete_rules(
        &mut self,
        key: &TableKey,
        chain: Option<&Name>,
        handle: Option<u64>,
    ) -> Result<(), Refusal> {
        let table = self.table_mut(key)?;
        let place = chain.map(|chain| table.chain_place(chain).ok_or(whole(Errno::ENOENT))).transpose()?;
        let mut found = false;
        for (at, chain) in table.chains.iter_mut().enumerate() {
            if place.is_none_or(|place| place == at) {
                let before = chain.rules.len();
                let chain = Arc::make_mut(chain);
                chain.rules.retain(|(number, _)| handle.is_some_and(|handle| handle != *number));
                found |= chain.rules.len() < before;
            }
        }
        table.drop_anonymous();
        if handle.is_some() && !found { Err(whole(Errno::ENOENT)) } else { Ok(()) }
    }

    pub(super) fn add_set(&mut self, mut set: Set, id: Option<u32>, exclusive: bool) -> Result<(), Refusal> {
        let handle = self.handle();
        let table = self.table_mut(&set.key.table)?;
        let key_length = usize::try_from(set.key_type.length()).unwrap_or(usize::MAX);
        if id.is_none() || !(1..=64).contains(&key_length) {
            return Err(whole(Errno::EINVAL));
        }
        if set.key.name.as_str().ends_with("%d") {
            let stem = set.key.name.as_str().trim_end_matches("%d").to_owned();
            let names = (0_u32..).map(|number| Name::from_kernel(format!("{stem}{number}").as_bytes()));
            let mut free = names.filter(|name| table.set_place(name).is_none());
            set.key.name = free.next().ok_or(whole(Errno::ENFILE))?;
        }
        if let Some(place) = table.set_place(&set.key.name) {
            if exclusive {
                return Err(whole(Errno::EEXIST));
            }
            if let Some(found) = table.sets.get_mut(place) {
                if found.key_length != key_length || found.set.all_flags() != set.all_flags() {
                    return Err(whole(Errno::EEXIST));
                }
                found.id = id;
            }
            return Ok(());
        }
        let (set, elements, deadlines) = (Arc::new(set), Arc::default(), BTreeMap::new());
        table.sets.push(FakeSet { set, key_length, handle, id, elements, deadlines });
        Ok(())
    }

    pub(super) fn delete_set(&mut self, key: &TableKey, name: &Name) -> Result<(), Refusal> {
        let table = self.table_mut(key)?;
        let place = table.set_place(name).ok_or(whole(Errno::ENOENT))?;
        if table.uses_set(name) {
            return Err(whole(Errno::EBUSY));
        }
        table.sets.remove(place);
        Ok(())
    }

    pub(super) fn add_elements(
        &mut self,
        key: &TableKey,
        set: &SetReference,
        elements: Vec<Element>,
        exclusive: bool,
    ) -> Result<(), Refusal> {
        let objections = self.objections.clone();
        let table = self.table_mut(key)?;
        let place = table.find_set(set).ok_or(whole(Errno::ENOENT))?;
        for (index, element) in elements.into_iter().enumerate() {
            let key = stored_key(&element).0;
            if let Some((_, errno)) = objections.iter().find(|(begin, _)| key.as_bytes().starts_with(begin)) {
                return Err((*errno, Some(index)));
            }
            table.add_element(place, element, exclusive).map_err(|errno| (errno, Some(index)))?;
        }
        Ok(())
    }

    pub(super) fn delete_elements(
        &mut self,
        key: &TableKey,
        name: &Name,
        elements: Option<Vec<Element>>,
    ) -> Result<(), Refusal> {
        let table = self.table_mut(key)?;
        let place = table.set_place(name).ok_or(whole(Errno::ENOENT))?;
        let Some(set) = table.sets.get_mut(place) else { return Err(whole(Errno::ENOENT)) };
        let Some(elements) = elements else {
            Arc::make_mut(&mut set.elements).clear();
            set.deadlines.clear();
            return Ok(());
        };
        for (index, element) in elements.iter().enumerate() {
            set.remove(&stored_key(element)).ok_or((Errno::ENOENT, Some(index)))?;
        }
        Ok(())
    }

    pub(super) fn add_object(&mut self, mut object: Object, exclusive: bool) -> Result<(), Refusal> {
        let handle = self.handle();
        // The namespace's defaults (`nft_ct_timeout_obj_init`).
        if let ObjectData::CtTimeout { protocol, policy, .. } = &mut object.data {
            for (_, state, seconds) in timeout_states(*protocol) {
                policy.entry((*state).to_owned()).or_insert(Duration::from_secs(*seconds));
            }
        }
        let table = self.table_mut(&object.key.table)?;
        if table.object_place(object.key.kind, &object.key.name).is_some() {
            return if exclusive { Err(whole(Errno::EEXIST)) } else { Ok(()) };
        }
        table.objects.push((object, handle));
        Ok(())
    }

    pub(super) fn delete_object(&mut self, key: &TableKey, kind: ObjectType, name: &Name) -> Result<(), Refusal> {
        let table = self.table_mut(key)?;
        let place = table.object_place(kind, name).ok_or(whole(Errno::ENOENT))?;
        if table.uses_of_object(kind, name) > 0 {
            return Err(whole(Errno::EBUSY));
        }
        table.objects.remove(place);
        Ok(())
    }

    /// Adds a flow table, or devices to an existing one (`nft_flowtable_update`). Every device exists here.
    pub(super) fn add_flowtable(&mut self, flowtable: Flowtable, exclusive: bool) -> Result<(), Refusal> {
        let handle = self.handle();
        check_number(&flowtable.devices)?;
        if !flowtable.flags.difference(FlowtableFlags::HW_OFFLOAD | FlowtableFlags::COUNTER).is_empty() {
            return Err(whole(Errno::EOPNOTSUPP));
        }
        let key = &flowtable.key;
        let table = self.table_mut(&key.table)?;
        let others = table.flowtables.iter().filter(|(other, _)| other.key != *key);
        let taken = others.flat_map(|(other, _)| &other.devices).any(|device| flowtable.devices.contains(device));
        let Some(place) = table.flowtable_place(&key.name) else {
            if taken {
                return Err(whole(Errno::EEXIST));
            }
            table.flowtables.push((flowtable, handle));
            return Ok(());
        };
        let Some((found, _)) = table.flowtables.get_mut(place) else { return Ok(()) };
        if exclusive || taken {
            return Err(whole(Errno::EEXIST));
        }
        let hardware = (found.flags ^ flowtable.flags).contains(FlowtableFlags::HW_OFFLOAD);
        if hardware || found.priority != flowtable.priority {
            return Err(whole(Errno::EOPNOTSUPP));
        }
        for device in flowtable.devices {
            if !found.devices.contains(&device) {
                found.devices.push(device);
            }
        }
        Ok(())
    }

    /// Deletes a flow table, or only these devices of it if any are given.
    pub(super) fn delete_flowtable(&mut self, key: &TableKey, name: &Name, devices: &[String]) -> Result<(), Refusal> {
        let table = self.table_mut(key)?;
        let place = table.flowtable_place(name).ok_or(whole(Errno::ENOENT))?;
        check_number(devices)?;
        if devices.is_empty() {
            if table.uses_of_flowtable(name) > 0 {
                return Err(whole(Errno::EBUSY));
            }
            table.flowtables.remove(place);
            return Ok(());
        }
        let Some((found, _)) = table.flowtables.get_mut(place) else { return Ok(()) };
        if devices.iter().any(|device| !found.devices.contains(device)) {
            return Err(whole(Errno::ENOENT));
        }
        found.devices.retain(|device| !devices.contains(device));
        Ok(())
    }

    /// Checks for jump loops and too deep nesting.
    pub(super) fn validate(&self) -> Result<(), Errno> {
        for table in self.tables.values() {
            // Depth at which each chain was already checked.
            let mut walked = BTreeMap::new();
            for chain in table.chains.iter().filter(|chain| chain.chain.base.is_some()) {
                table.walk(&chain.chain.key.name, &mut Vec::new(), &mut walked)?;
            }
        }
        Ok(())
    }
}

impl FakeSet {
    fn remove(&mut self, key: &(Value, bool)) -> Option<Element> {
        self.deadlines.remove(key);
        Arc::make_mut(&mut self.elements).remove(key)
    }

    /// Whether a range, or one of its two boundaries, overlaps an existing one.
    fn overlaps(&self, key: &ElementKey) -> bool {
        if !self.set.flags.contains(SetFlags::INTERVAL) {
            return false;
        }
        if self.set.key_type.is_concatenation() {
            let Some(new) = key.ends() else { return false };
            return self.elements.values().filter_map(|element| element.key.ends()).any(|old| self.meet(new, old));
        }
        // One range may start where another ends.
        let is_start_behind = |value: &Value| {
            let place = self.elements.range(..(value.clone(), false)).next_back().map(|((value, _), _)| value.clone());
            place.is_some_and(|value| self.elements.contains_key(&(value, false)))
        };
        match key {
            ElementKey::Value(start) => !self.elements.contains_key(&(start.clone(), true)) && is_start_behind(start),
            // The end before the first range (`nft_rbtree_interval_null`).
            ElementKey::End(end) if end.as_bytes().iter().all(|byte| *byte == 0) => false,
            ElementKey::End(end) => {
                let next = self.elements.range((end.clone(), true)..).next().map(|((value, _), _)| value.clone());
                let is_end_ahead = next.is_some_and(|value| self.elements.contains_key(&(value, true)));
                !is_start_behind(end) || (!self.elements.contains_key(&(end.clone(), false)) && is_end_ahead)
            }
            _ => false,
        }
    }

    /// Whether either end of a new multi-field range lies in an existing one, which is all that the kernel checks
    /// (`nft_pipapo_insert`).
    fn meet(&self, (first, last): (&Value, &Value), (other_first, other_last): (&Value, &Value)) -> bool {
        [first, last].into_iter().any(|end| {
            let mut from = 0_usize;
            self.set.key_type.fields().iter().all(|field| {
                let length = usize::try_from(field.length).unwrap_or(usize::MAX);
                let place = from..from.saturating_add(length);
                from = from.saturating_add(length.next_multiple_of(4));
                let of = |value: &Value| value.as_bytes().get(place.clone()).map(<[u8]>::to_vec);
                of(other_first) <= of(end) && of(end) <= of(other_last)
            })
        })
    }
}

fn stored_key(element: &Element) -> (Value, bool) {
    let start = element.key.start().cloned().unwrap_or(Value::EMPTY);
    (start, matches!(element.key, ElementKey::End(_)))
}

/// The chain to which a verdict jumps or goes.
fn leads_to(verdict: &Verdict) -> Option<&Name> {
    match verdict {
        Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
        _ => None,
    }
}

impl FakeTable {
    pub(super) fn chain_place(&self, name: &Name) -> Option<usize> {
        self.chains.iter().position(|chain| chain.chain.key.name == *name)
    }

    pub(super) fn set_place(&self, name: &Name) -> Option<usize> {
        self.sets.iter().position(|set| set.set.key.name == *name)
    }

    pub(super) fn object_place(&self, kind: ObjectType, name: &Name) -> Option<usize> {
        self.objects.iter().position(|(object, _)| object.key.kind == kind && object.key.name == *name)
    }

    pub(super) fn flowtable_place(&self, name: &Name) -> Option<usize> {
        self.flowtables.iter().position(|(flowtable, _)| flowtable.key.name == *name)
    }

    pub(super) fn uses_of_flowtable(&self, name: &Name) -> usize {
        let adds =
            |expression: &&Expression| matches!(expression, Expression::FlowAdd { flowtable } if flowtable == name);
        self.expressions().filter(adds).count()
    }

    /// Finds a set by name, otherwise by its number within the transaction (`nft_set_lookup_global`).
    fn find_set(&self, wanted: &SetReference) -> Option<usize> {
        self.set_place(&wanted.name)
            .or_else(|| self.sets.iter().position(|set| wanted.id.is_some() && set.id == wanted.id))
    }

    fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.chains.iter().flat_map(|chain| &chain.rules).flat_map(|(_, rule)| &rule.expressions)
    }

    fn element_verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.sets.iter().flat_map(|set| set.elements.values()).filter_map(|element| match &element.data {
            Some(ElementData::Verdict(verdict)) => Some(verdict),
            _ => None,
        })
    }

    pub(super) fn jumps_to(&self, name: &Name) -> usize {
        let of_rules = self.expressions().filter_map(Expression::jumps_to);
        of_rules.chain(self.element_verdicts().filter_map(leads_to)).filter(|chain| *chain == name).count()
    }

    fn uses_set(&self, name: &Name) -> bool {
        self.expressions().any(|expression| {
            let mut used = false;
            expression.clone().for_each_set(&mut |set| used |= set.name == *name);
            used
        })
    }

    pub(super) fn uses_of_object(&self, kind: ObjectType, name: &Name) -> usize {
        let of_rules = self.expressions().filter(|expression| {
            matches!(expression, Expression::ObjectReference { kind: used, name: found } if *used == kind && found == name)
        });
        let of_elements = self.sets.iter().flat_map(|set| set.elements.values());
        let of_elements = of_elements.filter(|element| element.data == Some(ElementData::Object(name.clone())));
        of_rules.count().saturating_add(of_elements.count())
    }

    /// Deletes anonymous sets together with the rule that used them.
    fn drop_anonymous(&mut self) {
        let gone: Vec<Name> = self
            .sets
            .iter()
            .filter(|set| set.set.flags.contains(SetFlags::ANONYMOUS) && !self.uses_set(&set.set.key.name))
            .map(|set| set.set.key.name.clone())
            .collect();
        self.sets.retain(|set| !gone.contains(&set.set.key.name));
    }

    /// Finds the sets, chains and objects to which a rule refers.
    fn resolve(&self, rule: &mut Rule) -> Result<(), Refusal> {
        for (index, expression) in rule.expressions.iter_mut().enumerate() {
            let refuse = |errno| Err((errno, Some(index)));
            let mut missing = false;
            expression.for_each_set(&mut |set| match self.find_set(set).and_then(|place| self.sets.get(place)) {
                Some(found) => *set = SetReference::named(found.set.key.name.clone()),
                None => missing = true,
            });
            if missing {
                return refuse(Errno::ENOENT);
            }
            match expression {
                Expression::Verdict(verdict) => {
                    let Some(chain) = leads_to(verdict) else { continue };
                    match self.chain_place(chain).and_then(|place| self.chains.get(place)) {
                        None => return refuse(Errno::ENOENT),
                        Some(found) if found.chain.base.is_some() => return refuse(Errno::EOPNOTSUPP),
                        Some(_) => {}
                    }
                }
                Expression::ObjectReference { kind, name } if self.object_place(*kind, name).is_none() => {
                    return refuse(Errno::ENOENT);
                }
                Expression::FlowAdd { flowtable } if self.flowtable_place(flowtable).is_none() => {
                    return refuse(Errno::ENOENT);
                }
                Expression::Log { level, group: None, .. } => {
                    level.get_or_insert(4);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add_element(&mut self, place: usize, element: Element, exclusive: bool) -> Result<(), Errno> {
        let set = self.sets.get(place).ok_or(Errno::ENOENT)?;
        let key = stored_key(&element);
        if element.key != ElementKey::CatchAll && key.0.len() != set.key_length {
            return Err(Errno::EINVAL);
        }
        if element.extras().timeout.is_some() && !set.set.flags.contains(SetFlags::TIMEOUT) {
            return Err(Errno::EINVAL);
        }
        match (&set.set.data, &element.data) {
            _ if key.1 => {}
            (None, None) | (Some(MapData::Value(_)), Some(ElementData::Value(_))) => {}
            (Some(MapData::Verdict), Some(ElementData::Verdict(verdict))) => {
                if leads_to(verdict).is_some_and(|chain| self.chain_place(chain).is_none()) {
                    return Err(Errno::ENOENT);
                }
            }
            (Some(MapData::Object(kind)), Some(ElementData::Object(name))) => {
                self.object_place(*kind, name).ok_or(Errno::ENOENT)?;
            }
            _ => return Err(Errno::EINVAL),
        }
        let limit = set.set.size.and_then(|size| usize::try_from(size).ok());
        let set = self.sets.get_mut(place).ok_or(Errno::ENOENT)?;
        if let Some(found) = set.elements.get(&key) {
            // An end is shared by ranges that were written twice.
            let is_other = found.data != element.data || found.key != element.key;
            return if exclusive || is_other { Err(Errno::EEXIST) } else { Ok(()) };
        }
        // Internally the kernel reports an overlap as ENOTEMPTY, and answers as for an existing element
        // (`nft_add_set_elem`).
        if set.overlaps(&element.key) {
            return Err(Errno::EEXIST);
        }
        if limit.is_some_and(|limit| set.elements.len() >= limit) {
            return Err(Errno::ENFILE);
        }
        let mut element = element;
        let timeout = element.extras().timeout.or(set.set.timeout);
        if let Some(timeout) = timeout.filter(|timeout| !key.1 && !timeout.is_zero()) {
            let left = *element.extras_mut().expiration.get_or_insert(timeout);
            set.deadlines.extend(Instant::now().checked_add(left).map(|deadline| (key.clone(), deadline)));
        }
        if !key.1 && !set.set.expressions.is_empty() && element.extras().expressions.is_empty() {
            element.extras_mut().expressions.clone_from(&set.set.expressions);
        }
        Arc::make_mut(&mut set.elements).insert(key, element);
        Ok(())
    }

    fn walk(&self, chain: &Name, path: &mut Vec<Name>, walked: &mut BTreeMap<Name, usize>) -> Result<(), Errno> {
        if path.contains(chain) {
            return Err(Errno::ELOOP);
        }
        if path.len() >= JUMPS {
            return Err(Errno::EMLINK);
        }
        if walked.get(chain).is_some_and(|depth| *depth >= path.len()) {
            return Ok(());
        }
        let Some(found) = self.chain_place(chain).and_then(|place| self.chains.get(place)) else { return Ok(()) };
        path.push(chain.clone());
        for expression in found.rules.iter().flat_map(|(_, rule)| &rule.expressions) {
            match expression {
                Expression::Verdict(verdict) => {
                    leads_to(verdict).map_or(Ok(()), |next| self.walk(next, path, walked))?;
                }
                Expression::Lookup { set, register: Some(crate::expr::Register::VERDICT), .. } => {
                    let Some(set) = self.set_place(&set.name).and_then(|place| self.sets.get(place)) else { continue };
                    for element in set.elements.values() {
                        if let Some(ElementData::Verdict(verdict)) = &element.data
                            && let Some(next) = leads_to(verdict)
                        {
                            self.walk(next, path, walked)?;
                        }
                    }
                }
                _ => {}
            }
        }
        path.pop();
        walked.insert(chain.clone(), path.len());
        Ok(())
    }

    pub(super) fn family(&self) -> Family {
        self.table.key.family
    }
}

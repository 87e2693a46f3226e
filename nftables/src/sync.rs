//! Computes the transaction that brings a table to a desired state. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::expr::{Expression, NatFlags};
use crate::gather::Gather as _;
use crate::model::{
    Chain, ChainKey, Element, ElementData, ElementKey, Flowtable, FlowtableKey, Hook, InvalidValue, Name, Object,
    ObjectData, ObjectKey, ObservedRule, Priority, Rule, Set, SetFlags, SetKey, Table, TableFlags, Verdict,
};
use crate::snapshot::TableSnapshot;
use crate::transaction::{RulePlace, Transaction};

/// The desired state of a table.
///
/// Counters, consumed quotas and remaining lifetimes are not compared; rules, objects and elements that stay keep
/// theirs. Timeouts less than 10 ms apart are equal, since the kernel rounds them to ticks of its clock. Comments are
/// only compared for rules and elements, since the kernel cannot change others.
///
/// * Existing rules stay if they are in the desired order. Others are deleted, and missing ones are inserted. Rules
///   with the same text ([`Rule::to_nft`]) are equal, whether this crate or nft wrote their expressions.
/// * Elements of a set to which rules write ([`SetFlags::DYNAMIC`]) are added but never deleted. Ranges of a single
///   field are merged first ([`Set::merge`]).
/// * A chain with another hook, a set with another type, or an object with other values is deleted and created again.
///   The rules and elements that refer to it are too, all atomically. Of an object with timeouts of connections only
///   the desired states are compared.
/// * A table whose dormant flag and base chains both change is deleted and created again, because the kernel refuses
///   these changes in one transaction. With [`keep_others`](TableSpec::keep_others) this remains an error.
/// * Everything else in the table is deleted, or kept with [`keep_others`](TableSpec::keep_others).
///
/// Rules must not refer to [anonymous sets](Transaction::add_anonymous_set), since those are created with each rule.
///
/// ```
/// use nftables::fake::FakeNftables;
/// use nftables::{
///     BaseChain, Chain, ChainType, Client, Element, Family, Hook, Operand, Policy, Priority, Set, Table, TableKey, TableSpec, Value,
///     rule,
/// };
///
/// let key = TableKey::new(Family::Inet, "firewall")?;
/// let input = key.chain("input")?;
/// let open = Set::typeof_set(key.set("open")?, &[Operand::DPORT])?;
/// let spec = |ports: &[u16]| -> Result<TableSpec, Box<dyn std::error::Error>> {
///     let base = BaseChain::new(ChainType::Filter, Hook::Input, Priority::FILTER);
///     let rules = [
///         rule(Family::Inet).iifname("lo").accept().build()?,
///         rule(Family::Inet).in_set(&[Operand::DPORT], &open.key).counter().accept().build()?,
///     ];
///     let chain = Chain::base(input.clone(), base).policy(Policy::Drop);
///     let elements = ports.iter().map(|port| Element::value(Value::port(*port)));
///     Ok(TableSpec::new(Table::new(key.clone())).chain(chain, rules).set(open.clone(), elements))
/// };
/// let mut client = Client::with_transport(FakeNftables::new().transport());
/// client.sync(&spec(&[22, 80])?)?;
/// // Only the difference is written, in one transaction; nothing where there is none.
/// let plan = spec(&[22, 443])?.diff(Some(&client.snapshot(&key)?))?;
/// assert_eq!(
///     plan.to_string(),
///     "delete element inet firewall open { 80 }\nadd element inet firewall open { 443 }\n"
/// );
/// assert_eq!(client.sync(&spec(&[22, 443])?)?.to_string(), plan.to_string());
/// assert!(client.sync(&spec(&[22, 443])?)?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TableSpec {
    /// The table.
    pub table: Table,
    /// Chains with their rules, in order.
    #[cfg_attr(feature = "serde", serde(default))]
    pub chains: Vec<(Chain, Vec<Rule>)>,
    /// Sets and maps with their elements.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sets: Vec<(Set, Vec<Element>)>,
    /// Objects.
    #[cfg_attr(feature = "serde", serde(default))]
    pub objects: Vec<Object>,
    /// Flow tables.
    #[cfg_attr(feature = "serde", serde(default))]
    pub flowtables: Vec<Flowtable>,
    /// Whether chains, sets, objects and flow tables that are not listed here are kept. By default they are deleted.
    #[cfg_attr(feature = "serde", serde(default))]
    pub keep_others: bool,
}

impl TableSpec {
    /// An empty table.
    pub fn new(table: Table) -> Self {
        let (chains, sets, objects, flowtables) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        TableSpec { table, chains, sets, objects, flowtables, keep_others: false }
    }

    /// Adds a chain with these rules.
    #[must_use]
    pub fn chain(mut self, chain: Chain, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.chains.push((chain, rules.into_iter().collect()));
        self
    }

    /// Adds a set or map with these elements.
    #[must_use]
    pub fn set(mut self, set: Set, elements: impl IntoIterator<Item = Element>) -> Self {
        self.sets.push((set, elements.into_iter().collect()));
        self
    }

    /// Computes the changes that bring the table to this state; `observed` is `None` if the table does not exist. Empty
    /// if nothing differs. [`Client::sync`](crate::Client::sync) reads, compares and commits.
    ///
    /// # Errors
    /// Something belongs to another table or occurs twice, or a rule refers to a set of a transaction.
    pub fn diff(&self, observed: Option<&TableSnapshot>) -> Result<Transaction, InvalidValue> {
        self.check()?;
        let is_replaced = observed.is_some_and(|found| self.must_replace(found));
        let mut difference = Difference::new(self, observed.filter(|_| !is_replaced));
        if is_replaced {
            difference.transaction.remove_table(&self.table.key);
        }
        difference.delete();
        difference.add();
        Ok(difference.transaction)
    }

    /// Whether the table falls asleep or awakes while its base chains change. The kernel refuses this in one transaction
    /// (`nft_table_pending_update`).
    fn must_replace(&self, observed: &TableSnapshot) -> bool {
        let is_dormant = |table: &Table| table.flags.contains(TableFlags::DORMANT);
        is_dormant(&self.table) != is_dormant(&observed.table.table)
            && !self.keep_others
            && hooks(self.chains.iter().map(|(chain, _)| chain)) != hooks(observed.chains.iter().map(|of| &of.chain))
    }

    fn check(&self) -> Result<(), InvalidValue> {
        let table = &self.table.key;
        let chains = self.chains.iter().map(|(chain, _)| (chain.key.to_string(), &chain.key.table));
        let sets = self.sets.iter().map(|(set, _)| (set.key.to_string(), &set.key.table));
        let objects = self.objects.iter().map(|object| (object.key.to_string(), &object.key.table));
        let flowtables = self.flowtables.iter().map(|of| (of.key.to_string(), &of.key.table));
        let kinds: [(&str, Vec<_>); 4] = [
            ("chain", chains.collect()),
            ("set", sets.collect()),
            ("object", objects.collect()),
            ("flow table", flowtables.collect()),
        ];
        for (kind, all) in kinds {
            let mut seen = BTreeSet::new();
            for (name, of) in all {
                if of != table {
                    return Err(InvalidValue::new(
                        format!("{kind} {name}"),
                        "it is of another table than the wanted one",
                    ));
                }
                if !seen.insert(name.clone()) {
                    return Err(InvalidValue::new(format!("{kind} {name}"), "it is wanted twice"));
                }
            }
        }
        let anonymous = self.sets.iter().find(|(set, _)| set.flags.contains(SetFlags::ANONYMOUS));
        if let Some((set, _)) = anonymous {
            return Err(InvalidValue::new(format!("set {}", set.key), "it is anonymous; give it a name"));
        }
        if let Some((chain, _)) = self.chains.iter().find(|(chain, _)| chain.bound) {
            return Err(InvalidValue::new(format!("chain {}", chain.key), "it goes with a rule; wanted chains stay"));
        }
        for (chain, rules) in &self.chains {
            let mut of_transaction = false;
            for expression in rules.iter().flat_map(|rule| &rule.expressions) {
                expression.clone().for_each_set(&mut |set| of_transaction |= set.id.is_some());
            }
            if of_transaction {
                let why = "a rule names a set of a transaction; name it by its key";
                return Err(InvalidValue::new(format!("chain {}", chain.key), why));
            }
        }
        Ok(())
    }
}

netlink_batch::settings! {
    TableSpec:
    /// Adds an object.
    object(object: Object) |of| of.objects.push(object);
    /// Adds a flow table.
    flowtable(flowtable: Flowtable) |of| of.flowtables.push(flowtable);
    /// Keeps chains, sets, objects and flow tables of other programs in the table.
    keep_others() |of| of.keep_others = true;
}

/// Names of what is deleted or created again, by kind.
#[derive(Default)]
struct Gone {
    chains: BTreeSet<Name>,
    sets: BTreeSet<Name>,
    objects: BTreeSet<ObjectKey>,
    flowtables: BTreeSet<Name>,
}

impl Gone {
    fn has_verdict(&self, verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::Jump(chain) | Verdict::Goto(chain) if self.chains.contains(chain))
    }

    /// Whether a rule refers to any of it.
    fn has(&self, rule: &Rule) -> bool {
        rule.expressions.iter().any(|expression| {
            let mut has = match expression {
                Expression::Verdict(verdict) => self.has_verdict(verdict),
                Expression::FlowAdd { flowtable } => self.flowtables.contains(flowtable),
                Expression::ObjectReference { kind, name } => {
                    self.objects.iter().any(|key| key.kind == *kind && key.name == *name)
                }
                _ => false,
            };
            expression.clone().for_each_set(&mut |set| has |= self.sets.contains(&set.name));
            has
        })
    }

    fn has_data(&self, element: &Element) -> bool {
        match &element.data {
            Some(ElementData::Verdict(verdict)) => self.has_verdict(verdict),
            Some(ElementData::Object(name)) => self.objects.iter().any(|key| key.name == *name),
            _ => false,
        }
    }
}

/// The desired parts of a table by key: a table may have tens of thousands.
struct Parts<'a> {
    chains: BTreeMap<&'a ChainKey, &'a (Chain, Vec<Rule>)>,
    sets: BTreeMap<&'a SetKey, &'a (Set, Vec<Element>)>,
    objects: BTreeMap<&'a ObjectKey, &'a Object>,
    flowtables: BTreeMap<&'a FlowtableKey, &'a Flowtable>,
}

/// A desired table and that of the kernel.
struct Difference<'a> {
    wanted: &'a TableSpec,
    parts: Parts<'a>,
    observed: Option<&'a TableSnapshot>,
    gone: Gone,
    transaction: Transaction,
    /// Added rules, which come last.
    rules: Transaction,
    /// Additions of elements.
    elements: Transaction,
}

impl<'a> Difference<'a> {
    fn new(wanted: &'a TableSpec, observed: Option<&'a TableSnapshot>) -> Self {
        let mut gone = Gone::default();
        let parts = Parts {
            chains: wanted.chains.iter().map(|of| (&of.0.key, of)).gather(),
            sets: wanted.sets.iter().map(|of| (&of.0.key, of)).gather(),
            objects: wanted.objects.iter().map(|object| (&object.key, object)).gather(),
            flowtables: wanted.flowtables.iter().map(|of| (&of.key, of)).gather(),
        };
        if let Some(observed) = observed {
            // Kept are equal ones, and those of other programs if allowed.
            let stays = |found: Option<bool>| found.unwrap_or(wanted.keep_others);
            for found in observed.chains.iter().map(|found| &found.chain) {
                let is_same = parts.chains.get(&found.key);
                if !stays(is_same.map(|(chain, _)| is_kind_of_chain(chain, found))) {
                    gone.chains.insert(found.key.name.clone());
                }
            }
            for found in observed.sets.iter().map(|found| &found.set.set) {
                let is_same = parts.sets.get(&found.key);
                let is_anonymous = found.flags.contains(SetFlags::ANONYMOUS);
                if !is_anonymous && !stays(is_same.map(|(set, _)| is_kind_of_set(set, found))) {
                    gone.sets.insert(found.key.name.clone());
                }
            }
            for found in observed.objects.iter().map(|found| &found.object) {
                let is_same = parts.objects.get(&found.key);
                if !stays(is_same.map(|object| is_kind_of_object(&object.data, &found.data))) {
                    gone.objects.insert(found.key.clone());
                }
            }
            for found in observed.flowtables.iter().map(|found| &found.flowtable) {
                let is_same = parts.flowtables.get(&found.key);
                if !stays(is_same.map(|of| is_kind_of_flowtable(of, found))) {
                    gone.flowtables.insert(found.key.name.clone());
                }
            }
        }
        let (transaction, rules, elements) = (Transaction::new(), Transaction::new(), Transaction::new());
        Difference { wanted, parts, observed, gone, transaction, rules, elements }
    }

    /// Deletes what is not desired, referring parts first. Records additions to what stays.
    fn delete(&mut self) {
        let Some(observed) = self.observed else { return };
        let mut rules: BTreeMap<&ChainKey, Vec<&ObservedRule>> = BTreeMap::new();
        observed.rules.iter().for_each(|found| rules.entry(&found.chain).or_default().push(found));
        // Bound chains are deleted with their rules.
        let chains =
            || observed.chains.iter().map(|found| &found.chain).filter(|chain| !chain.bound).map(|chain| &chain.key);
        for found in chains() {
            if self.gone.chains.contains(&found.name) {
                self.transaction.flush_chain(found);
            } else if let Some((chain, wanted)) = self.parts.chains.get(found) {
                self.change_rules(chain, wanted, rules.get(found).map_or(&[], Vec::as_slice));
            }
        }
        for contents in &observed.sets {
            let found = &contents.set.set;
            if self.gone.sets.contains(&found.key.name) {
                self.transaction.delete_set(&found.key);
            } else if let Some((set, elements)) = self.parts.sets.get(&found.key) {
                self.change_elements(set, elements, &contents.elements);
            }
        }
        for found in chains().filter(|key| self.gone.chains.contains(&key.name)) {
            self.transaction.delete_chain(found);
        }
        for found in &observed.objects {
            if self.gone.objects.contains(&found.object.key) {
                self.transaction.delete_object(&found.object.key);
            }
        }
        for found in observed.flowtables.iter().map(|found| &found.flowtable) {
            if self.gone.flowtables.contains(&found.key.name) {
                self.transaction.delete_flowtable(&found.key);
            } else if let Some(flowtable) = self.parts.flowtables.get(&found.key) {
                self.change_devices(flowtable, found);
            }
        }
    }

    /// Flows of the devices that stay continue.
    fn change_devices(&mut self, wanted: &Flowtable, found: &Flowtable) {
        let lacks = |of: &Flowtable, in_it: &Flowtable| Flowtable {
            devices: in_it.devices.iter().filter(|device| !of.devices.contains(device)).cloned().collect(),
            ..wanted.clone()
        };
        let (missing, gone) = (lacks(found, wanted), lacks(wanted, found));
        if !gone.devices.is_empty() {
            self.transaction.delete_flowtable_devices(gone);
        }
        if !missing.devices.is_empty() {
            self.transaction.add_flowtable(missing);
        }
    }

    /// Creates what is missing, referring parts last.
    fn add(&mut self) {
        let (wanted, observed) = (self.wanted, self.observed);
        match observed.map(|observed| &observed.table.table) {
            Some(found) if found.flags == wanted.table.flags => {}
            Some(_) => {
                self.transaction.add_table(wanted.table.clone());
            }
            None => {
                self.transaction.create_table(wanted.table.clone());
            }
        }
        let objects: BTreeSet<_> = observed.iter().flat_map(|of| &of.objects).map(|found| &found.object.key).gather();
        for object in &wanted.objects {
            if !objects.contains(&object.key) || self.gone.objects.contains(&object.key) {
                self.transaction.create_object(object.clone());
            }
        }
        for flowtable in &wanted.flowtables {
            let is_there = |of: &TableSnapshot| of.flowtables.iter().any(|found| found.flowtable.key == flowtable.key);
            if !observed.is_some_and(is_there) || self.gone.flowtables.contains(&flowtable.key.name) {
                self.transaction.create_flowtable(flowtable.clone());
            }
        }
        let chains = observed.iter().flat_map(|of| &of.chains).map(|found| (&found.chain.key, &found.chain));
        let chains: BTreeMap<_, _> = chains.gather();
        for (chain, rules) in &wanted.chains {
            match chains.get(&chain.key).filter(|_| !self.gone.chains.contains(&chain.key.name)) {
                Some(found) if policy(found) == policy(chain) => {}
                Some(_) => {
                    self.transaction.add_chain(chain.clone());
                }
                None => {
                    self.transaction.create_chain(chain.clone());
                    for rule in rules {
                        self.rules.add_rule(&chain.key, rule.clone());
                    }
                }
            }
        }
        let sets: BTreeSet<_> = observed.iter().flat_map(|of| &of.sets).map(|found| &found.set.set.key).gather();
        for (set, elements) in &wanted.sets {
            if !sets.contains(&set.key) || self.gone.sets.contains(&set.key.name) {
                self.transaction.create_set(set.clone());
                let elements = set.merge(elements.iter().cloned());
                if !elements.is_empty() {
                    self.elements.add_elements(set, elements);
                }
            }
        }
        let (elements, rules) = (std::mem::take(&mut self.elements), std::mem::take(&mut self.rules));
        self.transaction.append(elements).append(rules);
    }

    /// Keeps the longest sequence of rules in order, deletes the others, and inserts missing rules before the next one
    /// that stays.
    fn change_rules(&mut self, chain: &Chain, wanted: &[Rule], observed: &[&ObservedRule]) {
        let wanted_fixed: Vec<Fixed> = wanted.iter().map(fixed_rule).collect();
        // A rule that refers to something deleted is written again.
        let found: Vec<Option<Fixed>> =
            observed.iter().map(|found| (!self.gone.has(&found.rule)).then(|| fixed_rule(&found.rule))).collect();
        // nft writes some rules with other expressions but the same text.
        let is_other = !wanted_fixed.iter().map(Some).eq(found.iter().map(Option::as_ref));
        let worded =
            |of: &Fixed| (is_other.then(|| of.rule.to_nft(chain.key.table.family)).flatten(), of.rule.userdata.clone());
        let words: Vec<_> = wanted_fixed.iter().map(|rule| (rule, worded(rule))).collect();
        let found: Vec<_> = found.iter().map(|rule| rule.as_ref().map(|rule| (rule, worded(rule)))).collect();
        let kept = common(&words, &found, |wanted, found| {
            found.as_ref().is_some_and(|of| {
                let is_same = of.0.rule == wanted.0.rule || (of.1.0.is_some() && of.1 == wanted.1);
                is_same && of.0.has_timeouts_of(wanted.0)
            })
        });
        let stays: BTreeSet<usize> = kept.iter().map(|(_, found)| *found).gather();
        for (place, found) in observed.iter().enumerate() {
            if !stays.contains(&place) {
                self.transaction.delete_rule(&chain.key, found.handle);
            }
        }
        let mut next = kept.iter().peekable();
        for (place, rule) in wanted.iter().enumerate() {
            if next.next_if(|(of, _)| *of == place).is_some() {
                continue;
            }
            let before = next.peek().and_then(|(_, found)| observed.get(*found));
            let at = before.map_or(RulePlace::Last, |found| RulePlace::Before(found.handle));
            self.rules.add_rule_at(&chain.key, rule.clone(), at);
        }
    }

    /// Adds and deletes elements. One with other data, expressions, timeout or comment is replaced.
    fn change_elements(&mut self, set: &Set, wanted: &[Element], observed: &[Element]) {
        let is_in_time = |wanted: &Element, found: &Element| {
            is_timeout(wanted.extras().timeout.or(set.timeout), found.read_timeout(set.timeout))
        };
        let has_expressions = |wanted: &Element, found: &Element| {
            let own = [&wanted.extras().expressions, &set.expressions].into_iter().find(|own| !own.is_empty());
            own.is_none_or(|own| fixed_expressions(own) == fixed_expressions(&found.extras().expressions))
        };
        let wanted: BTreeMap<ElementKey, Element> =
            set.merge(wanted.iter().cloned()).into_iter().map(|element| (plain_key(&element.key), element)).gather();
        let (mut stays, mut deleted) = (BTreeSet::new(), Vec::new());
        for found in observed {
            let key = plain_key(&found.key);
            let is_same = wanted.get(&key).map(|wanted| {
                let of = |element: &Element| (element.data.clone(), element.extras().comment.clone());
                let is_same = of(wanted) == of(found) && has_expressions(wanted, found);
                is_same && is_in_time(wanted, found) && !self.gone.has_data(found)
            });
            match is_same {
                Some(true) => {
                    stays.insert(key);
                }
                None if set.flags.contains(SetFlags::DYNAMIC) => {}
                _ => deleted.push(found.clone()),
            }
        }
        if !deleted.is_empty() {
            self.transaction.remove_elements(set, deleted);
        }
        let added: Vec<Element> =
            wanted.into_iter().filter(|(key, _)| !stays.contains(key)).map(|(_, element)| element).collect();
        if !added.is_empty() {
            self.elements.add_elements(set, added);
        }
    }
}

/// Turns a range of one value into that value.
fn plain_key(key: &ElementKey) -> ElementKey {
    match key {
        ElementKey::Range(ends) => ElementKey::range(ends.0.clone(), ends.1.clone()),
        key => key.clone(),
    }
}

/// Index pairs (desired, found) of the longest common subsequence. It may be a shorter one if the lists are too long for
/// the quadratic algorithm: then each desired item is searched for only a little further.
fn common<W, F>(wanted: &[W], found: &[F], is_same: impl Fn(&W, &F) -> bool) -> Vec<(usize, usize)> {
    const LARGEST: usize = 1 << 20;
    let head = wanted.iter().zip(found).take_while(|(wanted, found)| is_same(wanted, found)).count();
    let (rest, others) = (wanted.get(head..).unwrap_or_default(), found.get(head..).unwrap_or_default());
    let pairs = rest.iter().rev().zip(others.iter().rev());
    let tail = pairs.take_while(|(wanted, found)| is_same(wanted, found)).count();
    let middle = (rest.len().saturating_sub(tail), others.len().saturating_sub(tail));
    let mut places: Vec<(usize, usize)> = (0..head).map(|place| (place, place)).collect();
    if middle.0.saturating_mul(middle.1) <= LARGEST {
        let same = |of: usize, at: usize| rest.get(of).zip(others.get(at)).is_some_and(|(of, at)| is_same(of, at));
        // Lengths of the longest sequences from these indexes on.
        let width = middle.1.saturating_add(1);
        let index = |of: usize, at: usize| of.saturating_mul(width).saturating_add(at);
        let mut lengths = vec![0_u32; middle.0.saturating_add(1).saturating_mul(width)];
        let length = |lengths: &[u32], of: usize, at: usize| lengths.get(index(of, at)).copied().unwrap_or(0);
        for of in (0..middle.0).rev() {
            for at in (0..middle.1).rev() {
                let (down, right) = (of.saturating_add(1), at.saturating_add(1));
                let longest = if same(of, at) {
                    length(&lengths, down, right).saturating_add(1)
                } else {
                    length(&lengths, down, at).max(length(&lengths, of, right))
                };
                if let Some(place) = lengths.get_mut(index(of, at)) {
                    *place = longest;
                }
            }
        }
        let (mut of, mut at) = (0_usize, 0_usize);
        while of < middle.0 && at < middle.1 {
            let (down, right) = (of.saturating_add(1), at.saturating_add(1));
            if same(of, at) {
                places.push((head.saturating_add(of), head.saturating_add(at)));
                (of, at) = (down, right);
            } else if length(&lengths, down, at) >= length(&lengths, of, right) {
                of = down;
            } else {
                at = right;
            }
        }
    } else {
        let window = LARGEST.checked_div(middle.0).unwrap_or(0);
        let mut left = others.iter().take(middle.1).enumerate();
        for (of, wanted) in rest.iter().take(middle.0).enumerate() {
            let skipped = left.clone().take(window).position(|(_, found)| is_same(wanted, found));
            if let Some((at, _)) = skipped.and_then(|skipped| left.nth(skipped)) {
                places.push((head.saturating_add(of), head.saturating_add(at)));
            }
        }
    }
    let behind = |length: usize, place: usize| length.saturating_sub(tail).saturating_add(place);
    places.extend((0..tail).map(|place| (behind(wanted.len(), place), behind(found.len(), place))));
    places
}

/// A rule without values that change at runtime, and with values that the kernel fills in.
#[derive(PartialEq)]
struct Fixed {
    /// Without timeouts.
    rule: Rule,
    /// Timeouts of the elements that it adds.
    timeouts: Vec<Option<Duration>>,
}

impl Fixed {
    fn has_timeouts_of(&self, wanted: &Self) -> bool {
        let mut pairs = self.timeouts.iter().zip(&wanted.timeouts);
        self.timeouts.len() == wanted.timeouts.len() && pairs.all(|(found, wanted)| is_timeout(*wanted, *found))
    }
}

fn fixed_rule(rule: &Rule) -> Fixed {
    let (mut rule, mut timeouts) = (rule.clone(), Vec::new());
    for expression in &mut rule.expressions {
        fix(expression);
        if let Expression::DynSet { timeout, .. } = expression {
            timeouts.push(timeout.take());
        }
    }
    Fixed { rule, timeouts }
}

/// Whether the kernel reports this timeout for the desired one. It stores ticks of its clock, and the longest tick is
/// that of `HZ=100`. Zero is no timeout, and is not reported.
fn is_timeout(wanted: Option<Duration>, found: Option<Duration>) -> bool {
    const TICK: Duration = Duration::from_millis(10);
    let given = |timeout: Option<Duration>| timeout.filter(|timeout| !timeout.is_zero());
    match (given(wanted), given(found)) {
        (Some(wanted), Some(found)) => wanted.abs_diff(found) < TICK,
        (wanted, found) => wanted == found,
    }
}

/// Clears what an expression has counted.
pub(crate) fn reset(expression: &mut Expression) {
    match expression {
        Expression::Counter { packets, bytes } => (*packets, *bytes) = (0, 0),
        Expression::Quota { consumed, .. } => *consumed = 0,
        _ => {}
    }
}

fn fix(expression: &mut Expression) {
    reset(expression);
    match expression {
        // NFT_LIMIT_PKT_BURST_DEFAULT
        Expression::Limit { burst: burst @ 0, bytes: false, .. } => *burst = 5,
        Expression::Log { level, group: None, .. } => {
            level.get_or_insert(4);
        }
        Expression::Nat { flags, .. } | Expression::Masquerade { flags, .. } | Expression::Redirect { flags, .. } => {
            flags.remove(NatFlags::MAP_IPS | NatFlags::PROTO_SPECIFIED);
        }
        Expression::DynSet { expressions, .. } => expressions.iter_mut().for_each(fix),
        _ => {}
    }
}

/// Expressions of a set's elements without values that change at runtime, and with values that the kernel fills in.
fn fixed_expressions(expressions: &[Expression]) -> Vec<Expression> {
    let mut expressions = expressions.to_vec();
    for expression in &mut expressions {
        fix(expression);
        if let Expression::Other(of) = expression {
            of.data = None; // may change at runtime
        }
    }
    expressions
}

/// An object's data without values that change at runtime, and with values that the kernel fills in.
pub(crate) fn fixed_data(data: &ObjectData) -> ObjectData {
    let mut fixed = data.to_expression();
    fixed.iter_mut().for_each(fix);
    fixed.and_then(|fixed| ObjectData::from_expression(&fixed)).unwrap_or_else(|| data.clone())
}

fn is_kind_of_object(wanted: &ObjectData, found: &ObjectData) -> bool {
    let mut found = fixed_data(found);
    if let (ObjectData::CtTimeout { policy: wanted, .. }, ObjectData::CtTimeout { policy, .. }) = (wanted, &mut found) {
        // The kernel gives the other states the namespace's defaults.
        policy.retain(|state, _| wanted.contains_key(state));
    }
    found == fixed_data(wanted)
}

fn policy(chain: &Chain) -> Option<crate::model::Policy> {
    chain.base.as_ref().map(|base| base.policy)
}

/// Where a base chain is called.
type CalledAt<'a> = (&'a str, Hook, Priority, BTreeSet<&'a String>);

fn hook(chain: &Chain) -> Option<CalledAt<'_>> {
    let base = chain.base.as_ref()?;
    Some((base.kind.name(), base.hook, base.priority, base.devices.iter().gather()))
}

fn hooks<'a>(chains: impl Iterator<Item = &'a Chain>) -> BTreeMap<&'a ChainKey, CalledAt<'a>> {
    chains.filter_map(|chain| Some((&chain.key, hook(chain)?))).gather()
}

/// Whether a change of policy turns one chain into the other.
fn is_kind_of_chain(wanted: &Chain, found: &Chain) -> bool {
    hook(wanted) == hook(found)
}

/// The kernel's limit for sets to which rules write, if none is given (`nft_dynset_init`).
pub(crate) const SIZE_BY_DEFAULT: u32 = 0xffff;

fn is_kind_of_set(wanted: &Set, found: &Set) -> bool {
    let kind = |set: &Set| (set.key_type.clone(), set.data.clone(), set.all_flags(), set.policy, set.auto_merge);
    let each = |set: &Set| fixed_expressions(&set.expressions);
    let size = wanted.size == found.size || wanted.size.is_none() && found.size == Some(SIZE_BY_DEFAULT);
    let timeout = is_timeout(wanted.timeout, found.timeout);
    kind(wanted) == kind(found) && each(wanted) == each(found) && size && timeout
}

fn is_kind_of_flowtable(wanted: &Flowtable, found: &Flowtable) -> bool {
    (wanted.priority, wanted.flags) == (found.priority, found.flags)
}

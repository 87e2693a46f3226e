//! Transactions: any number of changes that the kernel applies atomically.

use std::ops::Range;
use std::sync::Arc;

use netlink_batch::header::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NfGenHeader};
use netlink_batch::{AttrTable, Attribute, Be32, Be64, Encoder, RawAttrs};

use crate::attrs::{ChainAttr, ElemListAttr, FlowtableAttr, ObjAttr, RuleAttr, SetAttr, TableAttr};
use crate::error::Part;
use crate::expr::{Expression, SetReference};
use crate::model::{
    Chain, ChainKey, Element, ElementKey, ElementList, Family, Flowtable, FlowtableKey, InvalidValue, MapData, Name,
    Object, ObjectKey, Rule, Set, SetFlags, SetKey, Table, TableKey,
};
use crate::uapi;
use crate::userdata;
use crate::wire::{
    ElementForm, put_chain, put_chain_key, put_chain_of_rule, put_element, put_flowtable, put_flowtable_hook,
    put_flowtable_key, put_name, put_object, put_object_key, put_rule, put_set, put_set_key, put_set_of_elements,
    put_table, set_userdata,
};

/// `NLM_F_APPEND` (linux/netlink.h): after the existing ones.
const NLM_F_APPEND: u16 = 0x800;

/// Position of a new rule in its chain. Rules are identified by their handles, which the kernel assigns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum RulePlace {
    /// The end of the chain.
    #[default]
    Last,
    /// The beginning of the chain.
    First,
    /// After the rule with this handle.
    After(u64),
    /// Before the rule with this handle.
    Before(u64),
}

/// Whether the object may exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Present {
    Keep,
    Refuse,
}

/// One change.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    AddTable(Table, Present),
    DeleteTable(TableKey),
    AddChain(Chain, Present),
    DeleteChain(ChainKey),
    AddRule(ChainKey, Rule, RulePlace),
    ReplaceRule(ChainKey, u64, Rule),
    DeleteRule(ChainKey, u64),
    FlushChain(ChainKey),
    FlushTable(TableKey),
    AddSet(Set, u32, Present),
    DeleteSet(SetKey),
    AddElements(Elements, Present),
    DeleteElements(Elements),
    /// With the keyword `set` or `map`, which only matters for the text.
    FlushSet(SetKey, &'static str),
    AddObject(Object, Present),
    DeleteObject(ObjectKey),
    AddFlowtable(Flowtable, Present),
    DeleteFlowtable(FlowtableKey),
    /// The flow table stays, but loses these devices.
    DeleteFlowtableDevices(Flowtable),
}

/// Elements of one set.
#[derive(Clone, Debug)]
#[expect(clippy::struct_field_names, reason = "elements have no other name")]
pub(crate) struct Elements {
    pub(crate) set: Arc<Set>,
    /// The set's number, if it is created in the same transaction.
    pub(crate) id: Option<u32>,
    pub(crate) elements: Arc<ElementList>,
}

/// Changes that are applied together, in order. [`Client::commit`](crate::Client::commit) sends them.
///
/// If an equal object exists, `add_…` succeeds and `create_…` is refused. An existing chain gets the policy; an
/// existing map element with other data is an error. Deleting what does not exist is an error. The kernel checks
/// operations in order, so what an operation needs must exist or come before it.
///
/// # Replace a table
///
/// No packet meets neither table. For a moment after the commit a packet may meet both, see
/// [`delete_table`](Self::delete_table). [`Client::sync`](crate::Client::sync) keeps chains and changes their rules, so no packet
/// meets both. Operations print in nft's syntax.
///
/// ```
/// use nftables::{
///     BaseChain, Chain, ChainType, Element, Family, Hook, Operand, Policy, Priority, Set, Table, TableKey, Transaction,
///     Value, rule,
/// };
///
/// let table = TableKey::new(Family::Inet, "firewall")?;
/// let input = table.chain("input")?;
/// let open = Set::typeof_set(table.set("open")?, &[Operand::DPORT])?;
/// let base = BaseChain::new(ChainType::Filter, Hook::Input, Priority::FILTER);
///
/// let mut transaction = Transaction::new();
/// // Whether it is there or not.
/// transaction.remove_table(&table).add_table(Table::new(table));
/// transaction.add_chain(Chain::base(input.clone(), base).policy(Policy::Drop));
/// transaction.add_set(open.clone());
/// transaction.add_elements(&open, [22, 443].map(|port| Element::value(Value::port(port))));
/// transaction.add_rule(&input, rule(Family::Inet).in_set(&[Operand::DPORT], &open.key).accept().build()?);
/// assert_eq!(
///     transaction.to_string(),
///     "\
/// add table inet firewall
/// delete table inet firewall
/// add table inet firewall
/// add chain inet firewall input { type filter hook input priority 0; policy drop; }
/// add set inet firewall open { typeof th dport; }
/// add element inet firewall open { 22, 443 }
/// add rule inet firewall input th dport @open accept
/// "
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Deleting
///
/// Within a transaction, referring objects must be deleted before the object that they refer to. `delete_table` deletes
/// all of a table, and fails if there is none; `remove_table` does not.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    pub(crate) operations: Vec<Operation>,
    pub(crate) generation: Option<u32>,
    /// Number of sets created so far, which is the number of the last one.
    sets: u32,
}

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether there are no operations. Committing it does nothing.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Refuses the transaction if the rule set has another generation than this
    /// ([`Client::generation`](crate::Client::generation)).
    pub fn expect_generation(&mut self, generation: u32) -> &mut Self {
        self.generation = Some(generation);
        self
    }

    fn push(&mut self, operation: Operation) -> &mut Self {
        self.operations.push(operation);
        self
    }

    /// Creates a table; sets the flags of an existing one.
    #[doc(alias = "NFT_MSG_NEWTABLE")]
    pub fn add_table(&mut self, table: Table) -> &mut Self {
        self.push(Operation::AddTable(table, Present::Keep))
    }

    /// Creates a table that must not exist.
    pub fn create_table(&mut self, table: Table) -> &mut Self {
        self.push(Operation::AddTable(table, Present::Refuse))
    }

    /// Deletes a table with all its contents. Its chains keep their rules until the kernel has taken their hooks away, one
    /// after the other and after the commit (`nf_tables_commit_chain_prepare` in nf_tables_api.c): for a moment a packet may
    /// meet some of them only. To let all rules end at once, commit [`flush_table`](Self::flush_table) before.
    #[doc(alias = "NFT_MSG_DELTABLE")]
    pub fn delete_table(&mut self, table: &TableKey) -> &mut Self {
        self.push(Operation::DeleteTable(table.clone()))
    }

    /// Deletes a table with all its contents, whether it exists or not, by creating it first.
    pub fn remove_table(&mut self, table: &TableKey) -> &mut Self {
        self.add_table(Table::new(table.clone())).delete_table(table)
    }

    /// Creates a chain; sets the policy of an existing one.
    #[doc(alias = "NFT_MSG_NEWCHAIN")]
    pub fn add_chain(&mut self, chain: Chain) -> &mut Self {
        self.push(Operation::AddChain(chain, Present::Keep))
    }

    /// Creates a chain that must not exist.
    pub fn create_chain(&mut self, chain: Chain) -> &mut Self {
        self.push(Operation::AddChain(chain, Present::Refuse))
    }

    /// Deletes a chain with its rules. Nothing may jump to it.
    #[doc(alias = "NFT_MSG_DELCHAIN")]
    pub fn delete_chain(&mut self, chain: &ChainKey) -> &mut Self {
        self.push(Operation::DeleteChain(chain.clone()))
    }

    /// Deletes all rules of a chain.
    pub fn flush_chain(&mut self, chain: &ChainKey) -> &mut Self {
        self.push(Operation::FlushChain(chain.clone()))
    }

    /// Deletes all rules of a table.
    pub fn flush_table(&mut self, table: &TableKey) -> &mut Self {
        self.push(Operation::FlushTable(table.clone()))
    }

    /// Adds a rule at the end of a chain.
    #[doc(alias = "NFT_MSG_NEWRULE")]
    pub fn add_rule(&mut self, chain: &ChainKey, rule: impl Into<Rule>) -> &mut Self {
        self.add_rule_at(chain, rule, RulePlace::Last)
    }

    /// Adds a rule at a position.
    pub fn add_rule_at(&mut self, chain: &ChainKey, rule: impl Into<Rule>, place: RulePlace) -> &mut Self {
        self.push(Operation::AddRule(chain.clone(), rule.into(), place))
    }

    /// Replaces the rule with this handle.
    pub fn replace_rule(&mut self, chain: &ChainKey, handle: u64, rule: impl Into<Rule>) -> &mut Self {
        self.push(Operation::ReplaceRule(chain.clone(), handle, rule.into()))
    }

    /// Deletes the rule with this handle.
    #[doc(alias = "NFT_MSG_DELRULE")]
    pub fn delete_rule(&mut self, chain: &ChainKey, handle: u64) -> &mut Self {
        self.push(Operation::DeleteRule(chain.clone(), handle))
    }

    fn push_set(&mut self, set: Set, present: Present) -> SetReference {
        self.sets = self.sets.saturating_add(1);
        let reference = SetReference::in_transaction(set.key.name.clone(), self.sets);
        self.push(Operation::AddSet(set, self.sets, present));
        reference
    }

    /// Creates a set or map; an existing one is not changed. Rules of this transaction refer to it by the returned
    /// reference or by name.
    #[doc(alias = "NFT_MSG_NEWSET")]
    pub fn add_set(&mut self, set: Set) -> SetReference {
        self.push_set(set, Present::Keep)
    }

    /// Creates a set or map that must not exist.
    pub fn create_set(&mut self, set: Set) -> SetReference {
        self.push_set(set, Present::Refuse)
    }

    /// Creates an anonymous set for one rule of this transaction, which is deleted with that rule. The rule refers to
    /// it by the returned reference.
    ///
    /// The name in the set's key is ignored.
    ///
    /// # Errors
    /// Never: the kernel's pattern for such names is a valid name.
    pub fn add_anonymous_set(&mut self, set: Set, elements: Vec<Element>) -> Result<SetReference, InvalidValue> {
        let pattern = match set.data {
            None => "__set%d",
            Some(MapData::Object(_)) => "__objmap%d",
            Some(_) => "__map%d",
        };
        let mut set = set.flags(SetFlags::ANONYMOUS | SetFlags::CONSTANT);
        set.key.name = Name::new(pattern)?;
        let reference = self.push_set(set.clone(), Present::Keep);
        self.push(Operation::AddElements(
            Elements { set: Arc::new(set), id: reference.id, elements: Arc::new(elements.into_iter().collect()) },
            Present::Keep,
        ));
        Ok(reference)
    }

    /// Deletes a set or map that no rule uses.
    #[doc(alias = "NFT_MSG_DELSET")]
    pub fn delete_set(&mut self, set: &SetKey) -> &mut Self {
        self.push(Operation::DeleteSet(set.clone()))
    }

    /// Deletes all elements of a set.
    ///
    /// The kernel accepts this for a map too, but nft cannot parse its text: use [`flush_map`](Self::flush_map).
    pub fn flush_set(&mut self, set: &SetKey) -> &mut Self {
        self.push(Operation::FlushSet(set.clone(), "set"))
    }

    /// Deletes all elements of a map.
    pub fn flush_map(&mut self, map: &SetKey) -> &mut Self {
        self.push(Operation::FlushSet(map.clone(), "map"))
    }

    /// Adds elements, thousands per message. Only the key, types and flags of `set` matter; they decide how keys are
    /// encoded.
    #[doc(alias = "NFT_MSG_NEWSETELEM")]
    pub fn add_elements(&mut self, set: &Set, elements: impl IntoIterator<Item = Element>) -> &mut Self {
        self.add_shared_elements(Arc::new(set.clone()), Arc::new(elements.into_iter().collect()))
    }

    /// Adds elements that must not exist.
    pub fn create_elements(&mut self, set: &Set, elements: impl IntoIterator<Item = Element>) -> &mut Self {
        let (set, elements) = (Arc::new(set.clone()), Arc::new(elements.into_iter().collect()));
        self.push(Operation::AddElements(Elements { set, id: None, elements }, Present::Refuse))
    }

    /// Adds shared elements to a shared set: [`add_elements`](Transaction::add_elements) without copies.
    pub fn add_shared_elements(&mut self, set: Arc<Set>, elements: Arc<ElementList>) -> &mut Self {
        self.push(Operation::AddElements(Elements { set, id: None, elements }, Present::Keep))
    }

    /// Deletes elements by key. Data and options are ignored.
    #[doc(alias = "NFT_MSG_DELSETELEM")]
    pub fn delete_elements(&mut self, set: &Set, elements: impl IntoIterator<Item = Element>) -> &mut Self {
        let elements = Arc::new(elements.into_iter().map(|element| Element::new(element.key)).collect());
        self.push(Operation::DeleteElements(Elements { set: Arc::new(set.clone()), id: None, elements }))
    }

    /// Deletes elements as they were read, even if they have expired since: those that can expire are added first. The
    /// kernel drops expired elements without a new generation, so [`delete_elements`](Self::delete_elements) could
    /// fail.
    ///
    /// In a full set, an expired element counts until the kernel collects it, so adding it again is refused.
    pub fn remove_elements(&mut self, set: &Set, elements: impl IntoIterator<Item = Element>) -> &mut Self {
        let elements: Vec<Element> = elements.into_iter().collect();
        let can_run_out = |element: &&Element| element.extras().expiration.is_some();
        let mut again: Vec<Element> = elements.iter().filter(can_run_out).cloned().collect();
        // With the full timeout: the rest may be over before the deletion.
        again.iter_mut().for_each(Element::forget_expiration);
        if !again.is_empty() {
            self.add_elements(set, again);
        }
        self.delete_elements(set, elements)
    }

    /// Creates an object; an existing one is not changed, or gets new limits if its kind allows it.
    #[doc(alias = "NFT_MSG_NEWOBJ")]
    pub fn add_object(&mut self, object: Object) -> &mut Self {
        self.push(Operation::AddObject(object, Present::Keep))
    }

    /// Creates an object that must not exist.
    pub fn create_object(&mut self, object: Object) -> &mut Self {
        self.push(Operation::AddObject(object, Present::Refuse))
    }

    /// Deletes an object that nothing uses.
    #[doc(alias = "NFT_MSG_DELOBJ")]
    pub fn delete_object(&mut self, object: &ObjectKey) -> &mut Self {
        self.push(Operation::DeleteObject(object.clone()))
    }

    /// Creates a flow table; an existing one gets the devices that it lacks. Its priority and
    /// [`FlowtableFlags::HW_OFFLOAD`](crate::FlowtableFlags::HW_OFFLOAD) cannot be changed.
    ///
    /// The kernel accepts 255 devices at once. With more, this and the other methods with devices add several
    /// operations.
    #[doc(alias = "NFT_MSG_NEWFLOWTABLE")]
    pub fn add_flowtable(&mut self, flowtable: Flowtable) -> &mut Self {
        in_parts(flowtable).into_iter().fold(self, |to, part| to.push(Operation::AddFlowtable(part, Present::Keep)))
    }

    /// Creates a flow table that must not exist.
    pub fn create_flowtable(&mut self, flowtable: Flowtable) -> &mut Self {
        let presences = std::iter::once(Present::Refuse).chain(std::iter::repeat(Present::Keep));
        let parts = in_parts(flowtable).into_iter().zip(presences);
        parts.fold(self, |to, (part, present)| to.push(Operation::AddFlowtable(part, present)))
    }

    /// Deletes a flow table that no rule uses.
    #[doc(alias = "NFT_MSG_DELFLOWTABLE")]
    pub fn delete_flowtable(&mut self, flowtable: &FlowtableKey) -> &mut Self {
        self.push(Operation::DeleteFlowtable(flowtable.clone()))
    }

    /// Removes devices from a flow table, which stays. Since Linux 5.8. Its flags are ignored. It is an error to name a
    /// device that it does not have, or no device.
    pub fn delete_flowtable_devices(&mut self, flowtable: Flowtable) -> &mut Self {
        in_parts(flowtable).into_iter().fold(self, |to, part| to.push(Operation::DeleteFlowtableDevices(part)))
    }

    /// Appends the operations of another transaction.
    pub fn append(&mut self, other: Transaction) -> &mut Self {
        let base = self.sets;
        self.sets = self.sets.saturating_add(other.sets);
        for mut operation in other.operations {
            operation.shift_ids(base);
            self.operations.push(operation);
        }
        self
    }
}

/// Bytes after which a message is closed. One more element always fits into the 65,535 bytes of an attribute.
const MESSAGE_BYTES: usize = 56 << 10;

impl Operation {
    /// Renumbers the sets to follow the `base` sets created before.
    fn shift_ids(&mut self, base: u32) {
        let shift = |id: &mut Option<u32>| *id = id.map(|id| id.saturating_add(base));
        match self {
            Operation::AddSet(_, id, _) => *id = id.saturating_add(base),
            Operation::AddElements(elements, _) => shift(&mut elements.id),
            Operation::AddRule(_, rule, _) | Operation::ReplaceRule(_, _, rule) => {
                rule.expressions
                    .iter_mut()
                    .for_each(|expression| expression.for_each_set(&mut |set| shift(&mut set.id)));
            }
            _ => {}
        }
    }

    /// The family of its messages, their type and their flags.
    fn message(&self) -> (Family, u8, u16) {
        let create = |present: &Present| match present {
            Present::Keep => NLM_F_CREATE,
            Present::Refuse => NLM_F_CREATE | NLM_F_EXCL,
        };
        let (table, command, flags) = match self {
            Operation::AddTable(Table { key, .. }, present) => (key, uapi::NFT_MSG_NEWTABLE, create(present)),
            Operation::DeleteTable(key) => (key, uapi::NFT_MSG_DELTABLE, 0),
            Operation::AddChain(Chain { key, .. }, present) => (&key.table, uapi::NFT_MSG_NEWCHAIN, create(present)),
            Operation::DeleteChain(key) => (&key.table, uapi::NFT_MSG_DELCHAIN, 0),
            Operation::AddRule(key, _, RulePlace::Last | RulePlace::After(_)) => {
                (&key.table, uapi::NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND)
            }
            Operation::AddRule(key, ..) => (&key.table, uapi::NFT_MSG_NEWRULE, NLM_F_CREATE),
            Operation::ReplaceRule(key, ..) => (&key.table, uapi::NFT_MSG_NEWRULE, NLM_F_REPLACE),
            Operation::DeleteRule(key, _) | Operation::FlushChain(key) => (&key.table, uapi::NFT_MSG_DELRULE, 0),
            Operation::FlushTable(key) => (key, uapi::NFT_MSG_DELRULE, 0),
            Operation::AddSet(Set { key, .. }, _, present) => (&key.table, uapi::NFT_MSG_NEWSET, create(present)),
            Operation::DeleteSet(key) => (&key.table, uapi::NFT_MSG_DELSET, 0),
            Operation::AddElements(of, present) => (&of.set.key.table, uapi::NFT_MSG_NEWSETELEM, create(present)),
            Operation::DeleteElements(of) => (&of.set.key.table, uapi::NFT_MSG_DELSETELEM, 0),
            Operation::FlushSet(key, _) => (&key.table, uapi::NFT_MSG_DELSETELEM, 0),
            Operation::AddObject(Object { key, .. }, present) => (&key.table, uapi::NFT_MSG_NEWOBJ, create(present)),
            Operation::DeleteObject(key) => (&key.table, uapi::NFT_MSG_DELOBJ, 0),
            Operation::AddFlowtable(of, present) => (&of.key.table, uapi::NFT_MSG_NEWFLOWTABLE, create(present)),
            Operation::DeleteFlowtable(key) | Operation::DeleteFlowtableDevices(Flowtable { key, .. }) => {
                (&key.table, uapi::NFT_MSG_DELFLOWTABLE, 0)
            }
        };
        (table.family, command, flags)
    }

    /// The fixed header of its messages.
    pub(crate) fn header(&self) -> [u8; 4] {
        NfGenHeader { family: self.message().0.number(), version: 0, resource: 0 }.to_bytes()
    }

    /// Message type and flags.
    pub(crate) fn command(&self) -> (u8, u16) {
        let (_, command, flags) = self.message();
        (command, flags)
    }

    /// Rejects what the kernel would misinterpret, or what could not be written in full.
    pub(crate) fn check(&self) -> Result<(), InvalidValue> {
        match self {
            Operation::AddTable(table, _) => userdata::check(table.comment.as_deref(), 0),
            Operation::AddChain(chain, _) => {
                let family = chain.key.table.family;
                match &chain.base {
                    Some(base) if base.hook.number(family).is_none() => Err(InvalidValue::new(
                        format!("hook {} in family {family}", base.hook),
                        "the family does not have it",
                    )),
                    _ => userdata::check(chain.comment.as_deref(), 0),
                }
            }
            Operation::AddRule(_, rule, _) | Operation::ReplaceRule(_, _, rule) => {
                userdata::check(rule.comment.as_deref(), rule.userdata.len())
            }
            Operation::AddSet(set, _, _) => {
                let mut bare = set.clone();
                let comment = bare.comment.take();
                userdata::check(comment.as_deref(), set_userdata(&bare).len())
            }
            Operation::AddElements(elements, _) | Operation::DeleteElements(elements) => {
                elements.elements.whole().iter().try_for_each(|element| elements.check(element))
            }
            Operation::AddObject(object, _) => {
                object.data.check()?;
                userdata::check(object.comment.as_deref(), 0)
            }
            Operation::DeleteFlowtableDevices(flowtable) if flowtable.devices.is_empty() => {
                // The kernel would delete the whole flow table.
                let what = format!("no devices to delete from flow table {}", flowtable.key);
                Err(InvalidValue::new(what, "name some, or delete the flow table"))
            }
            Operation::AddFlowtable(flowtable, _) | Operation::DeleteFlowtableDevices(flowtable) => {
                Flowtable::check_devices(&flowtable.devices)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn rule(&self) -> Option<&Rule> {
        match self {
            Operation::AddRule(_, rule, _) | Operation::ReplaceRule(_, _, rule) => Some(rule),
            _ => None,
        }
    }

    fn elements(&self) -> Option<&Elements> {
        match self {
            Operation::AddElements(elements, _) | Operation::DeleteElements(elements) => Some(elements),
            _ => None,
        }
    }

    /// Whether another message is needed after this many elements. Without elements there is nothing to send.
    pub(crate) fn has_more(&self, written: usize) -> bool {
        match self.elements() {
            Some(elements) => written < elements.elements.len(),
            None => written == 0,
        }
    }

    /// Appends the attributes of one message, with the elements from index `from` that fit. Returns where the next
    /// message starts.
    pub(crate) fn put(&self, out: &mut Encoder, from: usize) -> usize {
        match self {
            Operation::AddTable(table, _) => put_table(out, table),
            Operation::DeleteTable(key) => put_name(out, TableAttr::NAME, &key.name),
            Operation::FlushTable(key) => put_name(out, RuleAttr::TABLE, &key.name),
            Operation::AddChain(chain, _) => put_chain(out, chain),
            Operation::DeleteChain(key) => put_chain_key(out, key),
            Operation::AddRule(key, rule, place) => {
                put_rule(out, key, rule);
                if let RulePlace::After(handle) | RulePlace::Before(handle) = place {
                    out.attr(RuleAttr::POSITION, &Be64(*handle));
                }
            }
            Operation::ReplaceRule(key, handle, rule) => {
                put_rule(out, key, rule);
                out.attr(RuleAttr::HANDLE, &Be64(*handle));
            }
            Operation::DeleteRule(key, handle) => {
                put_chain_of_rule(out, key);
                out.attr(RuleAttr::HANDLE, &Be64(*handle));
            }
            Operation::FlushChain(key) => put_chain_of_rule(out, key),
            Operation::AddSet(set, id, _) => put_set(out, set, *id),
            Operation::DeleteSet(key) => put_set_key(out, key),
            Operation::FlushSet(key, _) => put_set_of_elements(out, key),
            Operation::AddElements(elements, _) | Operation::DeleteElements(elements) => {
                return elements.put(out, from);
            }
            Operation::AddObject(object, _) => put_object(out, object),
            Operation::DeleteObject(key) => put_object_key(out, key),
            Operation::AddFlowtable(flowtable, _) => put_flowtable(out, flowtable),
            Operation::DeleteFlowtable(key) => put_flowtable_key(out, key),
            Operation::DeleteFlowtableDevices(flowtable) => {
                put_flowtable_key(out, &flowtable.key);
                put_flowtable_hook(out, flowtable.priority, &flowtable.devices);
            }
        }
        from.saturating_add(1)
    }

    /// The operation, for errors: `"adding chain inet t c"`.
    pub(crate) fn action(&self) -> String {
        match self {
            Operation::AddTable(table, _) => format!("adding table {}", table.key),
            Operation::DeleteTable(key) => format!("deleting table {key}"),
            Operation::FlushTable(key) => format!("flushing table {key}"),
            Operation::AddChain(chain, _) => format!("adding chain {}", chain.key),
            Operation::DeleteChain(key) => format!("deleting chain {key}"),
            Operation::FlushChain(key) => format!("flushing chain {key}"),
            Operation::AddRule(key, _, _) => format!("adding a rule to chain {key}"),
            Operation::ReplaceRule(key, handle, _) => format!("replacing rule {handle} of chain {key}"),
            Operation::DeleteRule(key, handle) => format!("deleting rule {handle} of chain {key}"),
            Operation::AddSet(set, _, _) => format!("adding set {}", set.key),
            Operation::DeleteSet(key) => format!("deleting set {key}"),
            Operation::FlushSet(key, word) => format!("flushing {word} {key}"),
            Operation::AddElements(elements, _) => format!("adding elements to set {}", elements.set.key),
            Operation::DeleteElements(elements) => format!("deleting elements of set {}", elements.set.key),
            Operation::AddObject(object, _) => format!("adding object {}", object.key),
            Operation::DeleteObject(key) => format!("deleting object {key}"),
            Operation::AddFlowtable(flowtable, _) => format!("adding flow table {}", flowtable.key),
            Operation::DeleteFlowtable(key) => format!("deleting flow table {key}"),
            Operation::DeleteFlowtableDevices(flowtable) => format!("deleting devices of flow table {}", flowtable.key),
        }
    }

    /// Whether it adds ranges without data and accepts equal ones.
    pub(crate) fn keeps_ranges(&self) -> bool {
        let Operation::AddElements(Elements { set, .. }, Present::Keep) = self else { return false };
        set.flags.contains(SetFlags::INTERVAL) && set.data.is_none()
    }

    /// The part of a message, with the elements from index `from`, whose attribute is at this offset.
    pub(crate) fn part_at(&self, from: usize, offset: usize) -> Part {
        let mut out = Encoder::new();
        self.put(&mut out, from);
        let bytes = out.as_slice();
        let place = |kind: u16| {
            let list = RawAttrs::new(bytes).map_while(Result::ok).find(|attr| attr.kind() == kind)?;
            let inside = offset.checked_sub(list.offset.saturating_add(4))?;
            let holds = |attr: &netlink_batch::RawAttr<'_>| {
                let length = attr.payload.len().saturating_add(4).next_multiple_of(4);
                (attr.offset..attr.offset.saturating_add(length)).contains(&inside)
            };
            RawAttrs::new(list.payload).map_while(Result::ok).position(|attr| holds(&attr))
        };
        if let Some(rule) = self.rule()
            && let Some(index) = place(RuleAttr::EXPRESSIONS)
        {
            let name = rule.expressions.get(index).map_or("", Expression::name).to_owned();
            return Part::Expression { index, name };
        }
        if let Some(elements) = self.elements()
            && let Some(index) = place(ElemListAttr::ELEMENTS)
        {
            return Part::Element { index: elements.index_of(from, index) };
        }
        let path = netlink_batch::locate(bytes, offset);
        if path.is_empty() { Part::Whole } else { Part::Attribute(self.table().path(&path)) }
    }

    /// The refused part if the kernel does not report where it is: one of a message's elements, or the whole operation.
    pub(crate) fn part_without_place(&self, sent: &Range<usize>) -> Part {
        match (self.elements(), sent.end.checked_sub(1)) {
            (Some(_), Some(last)) if sent.start <= last => Part::AmongElements { first: sent.start, last },
            _ => Part::Whole,
        }
    }

    /// The names of its attributes.
    fn table(&self) -> &'static AttrTable {
        match self.command().0 {
            uapi::NFT_MSG_NEWTABLE | uapi::NFT_MSG_DELTABLE => table_of::<TableAttr<'_>>(),
            uapi::NFT_MSG_NEWCHAIN | uapi::NFT_MSG_DELCHAIN => table_of::<ChainAttr<'_>>(),
            uapi::NFT_MSG_NEWRULE | uapi::NFT_MSG_DELRULE => table_of::<RuleAttr<'_>>(),
            uapi::NFT_MSG_NEWSET | uapi::NFT_MSG_DELSET => table_of::<SetAttr<'_>>(),
            uapi::NFT_MSG_NEWSETELEM | uapi::NFT_MSG_DELSETELEM => table_of::<ElemListAttr<'_>>(),
            uapi::NFT_MSG_NEWOBJ | uapi::NFT_MSG_DELOBJ => table_of::<ObjAttr<'_>>(),
            _ => table_of::<FlowtableAttr<'_>>(),
        }
    }
}

/// The table of attribute names. A separate function, because one of its names may be `TABLE`.
fn table_of<'a, A: Attribute<'a>>() -> &'static AttrTable {
    A::TABLE
}

impl Elements {
    fn check(&self, element: &Element) -> Result<(), InvalidValue> {
        if let ElementKey::Range(ends) = &element.key {
            let (first, last) = &**ends;
            let invalid = |why| Err(InvalidValue::new(format!("range {first:?} to {last:?}"), why));
            if ElementForm::of(&self.set) == ElementForm::Single {
                return invalid("the set is not one of ranges: SetFlags::INTERVAL");
            }
            // The kernel would treat the first value as the start of a range without an end.
            if first > last || first.len() != last.len() {
                return invalid("it ends before it starts");
            }
        }
        userdata::check(element.extras().comment.as_deref(), 0)
    }

    fn put(&self, out: &mut Encoder, from: usize) -> usize {
        put_set_of_elements(out, &self.set.key);
        if let Some(id) = self.id {
            out.attr(ElemListAttr::SET_ID, &Be32(id));
        }
        let form = ElementForm::of(&self.set);
        let start = out.len();
        let mut written = from;
        out.nest(ElemListAttr::ELEMENTS, |out| {
            for element in (from..self.elements.len()).map_while(|place| self.elements.get(place)) {
                if out.len().saturating_sub(start) >= MESSAGE_BYTES {
                    break;
                }
                put_element(out, form, &element);
                written = written.saturating_add(1);
            }
        });
        written
    }

    /// Index of the element to which an attribute of a message belongs. A range may take two attributes.
    fn index_of(&self, from: usize, attribute: usize) -> usize {
        let pairs = ElementForm::of(&self.set) == ElementForm::Pairs;
        let mut attributes = 0_usize;
        for (index, element) in self.elements.iter().enumerate().skip(from) {
            let two = pairs && element.key.ends().is_some_and(|(_, last)| last.successor().is_some());
            attributes = attributes.saturating_add(if two { 2 } else { 1 });
            if attribute < attributes {
                return index;
            }
        }
        from
    }
}

/// Most devices of a flow table in one message (net/netfilter/nf_tables_api.c, `nf_tables_parse_netdev_hooks`, refuses
/// `NFT_NETDEVICE_MAX`).
const DEVICES: usize = 255;

/// A flow table with its devices spread over as many messages as needed: one without devices.
fn in_parts(mut flowtable: Flowtable) -> Vec<Flowtable> {
    let mut parts = Vec::new();
    while flowtable.devices.len() > DEVICES {
        let rest = flowtable.devices.split_off(DEVICES);
        parts.push(flowtable.clone());
        flowtable.devices = rest;
    }
    parts.push(flowtable);
    parts
}

/// One message of a transaction: an operation, and the elements in it.
#[derive(Clone, Debug)]
pub(crate) struct SentMessage {
    pub(crate) operation: usize,
    pub(crate) elements: Range<usize>,
}

/// The attributes of the batch's first message.
pub(crate) fn put_begin(out: &mut Encoder, generation: Option<u32>) {
    if let Some(generation) = generation {
        out.attr(uapi::NFNL_BATCH_GENID, &Be32(generation));
    }
}

//! Sets and maps.

use std::time::Duration;

use super::{Element, FieldTypes, InvalidValue, ObjectType, SetKey};
use crate::expr::{Expression, flags};
use crate::operand::Operand;
use crate::typing::{self, About};

flags! {
    /// Properties of a set (`NFT_SET_*`).
    SetFlags {
        /// Deleted together with the rule that uses it.
        ANONYMOUS = 0x1;
        /// Elements cannot change while rules use it.
        CONSTANT = 0x2;
        /// Elements may be ranges.
        INTERVAL = 0x4;
        /// Elements have data.
        MAP = 0x8;
        /// Elements may time out.
        TIMEOUT = 0x10;
        /// Rules add elements.
        DYNAMIC = 0x20;
        /// Data are objects.
        OBJECT = 0x40;
        /// The key is a concatenation. Only used with [`INTERVAL`](SetFlags::INTERVAL). Since Linux 5.6.
        CONCATENATION = 0x80;
        /// Elements have expressions. Since Linux 5.11.
        EXPRESSION = 0x100;
    }
}

/// What the kernel optimises for when it chooses an implementation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum SetPolicy {
    /// Fast lookups.
    #[default]
    Performance,
    /// Little memory.
    Memory,
}

/// Type of a map's data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum MapData {
    /// A verdict.
    Verdict,
    /// A value.
    Value(FieldTypes),
    /// The name of an object.
    Object(ObjectType),
}

/// A set or map, without its elements.
///
/// Sets and maps by the types of their fields, and elements:
///
/// ```
/// use nftables::{
///     DataType, Element, ElementKey, Family, FieldTypes, ObjectType, Set, SetFlags, TableKey, Transaction, Value, Verdict,
/// };
/// use std::net::Ipv4Addr;
/// use std::time::Duration;
///
/// let table = TableKey::new(Family::Inet, "proxy")?;
/// let types = FieldTypes::of;
/// let (address, target) = (types(&[DataType::IPV4_ADDR])?, types(&[DataType::IPV4_ADDR, DataType::INET_SERVICE])?);
/// let nodes = Set::new(table.set("nodes")?, address.clone()).flags(SetFlags::INTERVAL);
/// let banned = Set::new(table.set("banned")?, address.clone()).timeout(Duration::from_secs(600)).comment("ten minutes");
/// let marks = Set::map(table.set("marks")?, target, types(&[DataType::MARK])?).size(4096);
/// let ports = Set::verdict_map(table.set("ports")?, types(&[DataType::INET_SERVICE])?);
/// let counters = Set::object_map(table.set("counters")?, address, ObjectType::Counter);
/// let mut transaction = Transaction::new();
/// for set in [&nodes, &banned, &marks, &ports, &counters] {
///     transaction.add_set(set.clone());
/// }
///
/// let client = Ipv4Addr::new(198, 51, 100, 7);
/// let first_floor = Element::range(Ipv4Addr::new(192, 0, 2, 0), Ipv4Addr::new(192, 0, 2, 127));
/// transaction.add_elements(&nodes, [first_floor.comment("first floor")]);
/// transaction.add_elements(&banned, [Element::value(client).timeout(Duration::from_secs(3600))]);
/// let web = Value::concat(&[client.into(), Value::port(80)])?;
/// transaction.add_elements(&marks, [Element::value(web).maps_to(Value::mark(7))]);
/// let others = Element::new(ElementKey::CatchAll).verdict(Verdict::Drop);
/// transaction.add_elements(&ports, [Element::value(Value::port(443)).verdict(Verdict::Accept), others]);
/// assert_eq!(
///     transaction.to_string(),
///     "\
/// add set inet proxy nodes { type ipv4_addr; flags interval; }
/// add set inet proxy banned { type ipv4_addr; flags timeout; timeout 10m; comment \"ten minutes\"; }
/// add map inet proxy marks { type ipv4_addr . inet_service : mark; size 4096; }
/// add map inet proxy ports { type inet_service : verdict; }
/// add map inet proxy counters { type ipv4_addr : counter; }
/// add element inet proxy nodes { 192.0.2.0/25 comment \"first floor\" }
/// add element inet proxy banned { 198.51.100.7 timeout 1h }
/// add element inet proxy marks { 198.51.100.7 . 80 : 0x00000007 }
/// add element inet proxy ports { 443 : accept, * : drop }
/// "
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Set {
    /// Identity of the set.
    pub key: SetKey,
    /// Type of the keys.
    pub key_type: FieldTypes,
    /// Data, for a map.
    pub data: Option<MapData>,
    /// Flags, without [`MAP`](SetFlags::MAP), [`OBJECT`](SetFlags::OBJECT) and
    /// [`CONCATENATION`](SetFlags::CONCATENATION), which follow from the types.
    #[cfg_attr(feature = "serde", serde(default))]
    pub flags: SetFlags,
    /// Timeout of elements without their own, in whole milliseconds.
    pub timeout: Option<Duration>,
    /// Interval in which expired elements are removed, in whole milliseconds.
    pub gc_interval: Option<Duration>,
    /// Greatest number of elements.
    pub size: Option<u32>,
    /// What the kernel optimises for: time or memory.
    #[cfg_attr(feature = "serde", serde(default))]
    pub policy: SetPolicy,
    /// Expressions of each element, such as a counter.
    #[cfg_attr(feature = "serde", serde(default))]
    pub expressions: Vec<Expression>,
    /// A comment. nft accepts at most 128 bytes, the kernel stores up to 253.
    pub comment: Option<String>,
    /// A note for nft (`auto-merge`) that it may merge overlapping or adjacent ranges when it adds elements. The kernel
    /// ignores it, and this crate only merges with [`Set::merge`].
    #[cfg_attr(feature = "serde", serde(default))]
    pub auto_merge: bool,
    /// Operands of the keys, field by field; empty if only their types are known. nft prints such a set with `typeof`,
    /// which is required for numbers from `numgen`.
    #[cfg_attr(feature = "serde", serde(default))]
    pub key_typeof: Vec<Operand>,
    /// Operands that make up the data, in the same way.
    #[cfg_attr(feature = "serde", serde(default))]
    pub data_typeof: Vec<Operand>,
    /// Other data stored by programs, in nft's layout: type, length, value. Written back unchanged.
    #[cfg_attr(feature = "serde", serde(default))]
    pub userdata: Vec<u8>,
}

impl Set {
    /// A set of keys.
    pub fn new(key: SetKey, key_type: FieldTypes) -> Self {
        Set {
            key,
            key_type,
            data: None,
            flags: SetFlags::empty(),
            timeout: None,
            gc_interval: None,
            size: None,
            policy: SetPolicy::Performance,
            expressions: Vec::new(),
            comment: None,
            auto_merge: false,
            key_typeof: Vec::new(),
            data_typeof: Vec::new(),
            userdata: Vec::new(),
        }
    }

    /// A set whose keys consist of these operands.
    ///
    /// # Errors
    /// The operands are too long, or nft's note for one of them is not supported. Supported are the header fields that
    /// are constants of [`Operand`], which are Ethernet addresses and types, IPv4 and IPv6 addresses, and ports. Also
    /// the protocol in both IP headers, [`Operand::Meta`], [`Operand::Ct`] and [`Operand::Numgen`].
    pub fn typeof_set(key: SetKey, operands: &[Operand]) -> Result<Self, InvalidValue> {
        Ok(Set { key_typeof: operands.to_vec(), ..Set::new(key, types_of(operands, About::Key)?) })
    }

    /// A map whose keys and values consist of these operands. Ports in values are noted as TCP's for every protocol,
    /// since nft accepts no others in a translation.
    ///
    /// # Errors
    /// As [`Set::typeof_set`].
    pub fn typeof_map(key: SetKey, operands: &[Operand], data: &[Operand]) -> Result<Self, InvalidValue> {
        let set = Set::typeof_set(key, operands)?;
        Ok(Set { data: Some(MapData::Value(types_of(data, About::Data)?)), data_typeof: data.to_vec(), ..set })
    }

    /// A map of verdicts whose keys consist of these operands.
    ///
    /// # Errors
    /// As [`Set::typeof_set`].
    pub fn typeof_verdict_map(key: SetKey, operands: &[Operand]) -> Result<Self, InvalidValue> {
        Ok(Set { data: Some(MapData::Verdict), ..Set::typeof_set(key, operands)? })
    }

    /// A map from keys to values.
    pub fn map(key: SetKey, key_type: FieldTypes, data: FieldTypes) -> Self {
        Set { data: Some(MapData::Value(data)), ..Set::new(key, key_type) }
    }

    /// A map from keys to verdicts.
    pub fn verdict_map(key: SetKey, key_type: FieldTypes) -> Self {
        Set { data: Some(MapData::Verdict), ..Set::new(key, key_type) }
    }

    /// A map from keys to objects.
    pub fn object_map(key: SetKey, key_type: FieldTypes, objects: ObjectType) -> Self {
        Set { data: Some(MapData::Object(objects)), ..Set::new(key, key_type) }
    }

    /// Merges ranges: returns the fewest elements that match the same keys, in order. Values and ranges that overlap or
    /// are adjacent are merged if they are otherwise equal. The kernel refuses overlapping ranges. Elements of sets
    /// other than single-field sets of intervals are returned unchanged.
    pub fn merge(&self, elements: impl IntoIterator<Item = Element>) -> Vec<Element> {
        let mut elements: Vec<Element> = elements.into_iter().collect();
        if !self.flags.contains(SetFlags::INTERVAL) || self.is_concatenated_interval() {
            return elements;
        }
        elements.sort_by(|one, other| one.key.ends().cmp(&other.key.ends()));
        let mut merged: Vec<Element> = Vec::new();
        for element in elements {
            if let Some(last) = merged.last_mut().and_then(|last| last.join(&element).then_some(last)) {
                last.forget_expiration();
            } else {
                merged.push(element);
            }
        }
        merged
    }

    /// All flags to send to the kernel.
    pub fn all_flags(&self) -> SetFlags {
        let mut flags = self.flags;
        match &self.data {
            Some(MapData::Object(_)) => flags |= SetFlags::OBJECT,
            Some(_) => flags |= SetFlags::MAP,
            None => {}
        }
        if self.is_concatenated_interval() {
            flags |= SetFlags::CONCATENATION;
        }
        flags
    }

    /// Whether one element holds both ends of a range; otherwise start and end are two elements.
    pub fn is_concatenated_interval(&self) -> bool {
        self.flags.contains(SetFlags::INTERVAL) && self.key_type.is_concatenation()
    }
}

netlink_batch::settings! {
    Set:
    /// Adds flags.
    flags(flags: SetFlags) |of| of.flags |= flags;
    /// Lets elements time out.
    timeout(timeout: Duration) |of| { of.flags |= SetFlags::TIMEOUT; of.timeout = Some(timeout) };
    /// Sets the greatest number of elements.
    size(size: u32) |of| of.size = Some(size);
    /// Lets nft merge ranges (`auto-merge`).
    auto_merge() |of| { of.flags |= SetFlags::INTERVAL; of.auto_merge = true };
}

/// The types of operands for which nft has notes.
fn types_of(operands: &[Operand], about: About) -> Result<FieldTypes, InvalidValue> {
    if typing::put_operands(operands, about).is_none() {
        return Err(InvalidValue::new("a set", "nft keeps no notes of one of its operands; give the types instead"));
    }
    FieldTypes::new(operands.iter().map(Operand::field))
}

/// A set as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedSet {
    /// The set.
    pub set: Set,
    /// The kernel's handle.
    pub handle: u64,
    /// Number of elements, if the kernel reports it (since 6.16).
    pub count: Option<u32>,
}

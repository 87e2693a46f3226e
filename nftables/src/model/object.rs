//! Named objects: counters and others.

use super::ObjectKey;
use crate::expr::{Expression, LimitUnit};

/// The kind of an object (`NFT_OBJECT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum ObjectType {
    /// Counts packets and bytes.
    Counter,
    /// Bytes up to a bound.
    Quota,
    /// A rate.
    Limit,
    /// A kind that this library keeps as bytes.
    Other(u32),
}

impl ObjectType {
    /// The number.
    pub fn number(self) -> u32 {
        match self {
            ObjectType::Counter => 1,
            ObjectType::Quota => 2,
            ObjectType::Limit => 4,
            ObjectType::Other(number) => number,
        }
    }

    /// The kind of a number.
    pub fn from_number(number: u32) -> Self {
        match number {
            1 => ObjectType::Counter,
            2 => ObjectType::Quota,
            4 => ObjectType::Limit,
            other => ObjectType::Other(other),
        }
    }

    /// nft's word for it; `None` for kinds that this library does not name.
    pub fn name(self) -> Option<&'static str> {
        match self {
            ObjectType::Counter => Some("counter"),
            ObjectType::Quota => Some("quota"),
            ObjectType::Limit => Some("limit"),
            ObjectType::Other(_) => None,
        }
    }
}

/// Data of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum ObjectData {
    /// A counter.
    Counter {
        /// Packets so far.
        packets: u64,
        /// Bytes so far.
        bytes: u64,
    },
    /// A quota.
    Quota {
        /// Number of bytes.
        bytes: u64,
        /// Bytes so far.
        consumed: u64,
        /// Matches beyond them instead.
        inverted: bool,
    },
    /// A rate.
    Limit {
        /// Number in a unit of time.
        rate: u64,
        /// The unit of time.
        unit: LimitUnit,
        /// Number at once beyond the rate.
        burst: u32,
        /// Counts bytes instead of packets.
        bytes: bool,
        /// Matches above the rate instead.
        inverted: bool,
    },
    /// Attributes of another kind, unchanged.
    Other(Vec<u8>),
}

impl ObjectData {
    /// The expression that does the same within a rule.
    pub(crate) fn to_expression(&self) -> Option<Expression> {
        Some(match *self {
            ObjectData::Counter { packets, bytes } => Expression::Counter { packets, bytes },
            ObjectData::Quota { bytes, consumed, inverted } => Expression::Quota { bytes, consumed, inverted },
            ObjectData::Limit { rate, unit, burst, bytes, inverted } => {
                Expression::Limit { rate, unit, burst, bytes, inverted }
            }
            ObjectData::Other(_) => return None,
        })
    }

    pub(crate) fn from_expression(expression: &Expression) -> Option<Self> {
        Some(match *expression {
            Expression::Counter { packets, bytes } => ObjectData::Counter { packets, bytes },
            Expression::Quota { bytes, consumed, inverted } => ObjectData::Quota { bytes, consumed, inverted },
            Expression::Limit { rate, unit, burst, bytes, inverted } => {
                ObjectData::Limit { rate, unit, burst, bytes, inverted }
            }
            _ => return None,
        })
    }
}

/// A named object.
///
/// A counter for each client, by a map, and one that rules name:
///
/// ```
/// # use nftables::fake::FakeNftables;
/// use nftables::{
///     Chain, Client, DataType, Element, ErrorKind, Family, FieldTypes, Object, ObjectData, ObjectType, Set, Table,
///     TableKey, Transaction, rule,
/// };
///
/// let table = TableKey::new(Family::Ip, "account")?;
/// let chain = table.chain("all")?;
/// let (alice, all) = (table.object(ObjectType::Counter, "alice")?, table.object(ObjectType::Counter, "all")?);
/// let clients = Set::object_map(table.set("clients")?, FieldTypes::of(&[DataType::IPV4_ADDR])?, ObjectType::Counter);
/// let mut transaction = Transaction::new();
/// transaction.add_table(Table::new(table.clone())).add_chain(Chain::regular(chain.clone()));
/// transaction.add_object(Object::counter(all.clone()).comment("all clients"));
/// // Goes on where it was before a restart.
/// transaction.add_object(Object::new(alice.clone(), ObjectData::Counter { packets: 12, bytes: 3_400 }));
/// transaction.add_set(clients.clone());
/// let address = "192.0.2.10".parse::<std::net::Ipv4Addr>()?;
/// transaction.add_elements(&clients, [Element::value(address).object(alice.name.clone())]);
/// transaction.add_rule(&chain, rule(Family::Ip).named_counter(all.name.clone()).build()?);
/// # let mut client = Client::with_transport(FakeNftables::new().transport());
/// client.commit(&transaction)?;
///
/// assert_eq!(client.get_object(&alice)?.object.data, ObjectData::Counter { packets: 12, bytes: 3_400 });
/// assert_eq!(client.list_objects(&table)?.iter().map(|found| found.references).collect::<Vec<_>>(), [1, 1]);
/// let mut transaction = Transaction::new();
/// transaction.delete_object(&all);
/// assert_eq!(client.commit(&transaction).unwrap_err().kind(), ErrorKind::InUse);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Object {
    /// Identity of the object.
    pub key: ObjectKey,
    /// Data of the object.
    pub data: ObjectData,
    /// Text for people. nft takes at most 128 bytes, the kernel has room for 253. Kept since Linux 5.10.
    pub comment: Option<String>,
}

impl Object {
    /// An object with these data.
    pub fn new(key: ObjectKey, data: ObjectData) -> Self {
        Object { key, data, comment: None }
    }

    /// A counter at zero. The key's kind should be [`ObjectType::Counter`].
    pub fn counter(key: ObjectKey) -> Self {
        Object::new(key, ObjectData::Counter { packets: 0, bytes: 0 })
    }

    /// The same with a comment.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}

/// An object as the kernel holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedObject {
    /// The object.
    pub object: Object,
    /// The kernel's number of it.
    pub handle: u64,
    /// Number of rules and elements that refer to it.
    pub references: u32,
}

//! Named objects: counters and others.

use super::ObjectKey;

/// The kind of an object (`NFT_OBJECT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ObjectType {
    /// Counts packets and bytes.
    Counter,
    /// Bytes up to a bound.
    Quota,
    /// A rate.
    Limit,
    /// One that this library keeps as bytes.
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

/// What an object holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectData {
    /// A counter.
    Counter {
        /// Packets so far.
        packets: u64,
        /// Bytes so far.
        bytes: u64,
    },
    /// Attributes of another kind, unchanged.
    Other(Vec<u8>),
}

/// A named object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Object {
    /// What it is known by.
    pub key: ObjectKey,
    /// What it holds.
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
#[non_exhaustive]
pub struct ObservedObject {
    /// The object.
    pub object: Object,
    /// The kernel's number of it.
    pub handle: u64,
    /// Number of rules and elements that refer to it.
    pub references: u32,
}

//! The parts of a rule set as values, without I/O.

use std::fmt;

mod chain;
mod datatype;
mod element;
mod flowtable;
mod key;
mod object;
mod rule;
mod set;
mod table;
mod value;

pub use chain::{BaseChain, Chain, ChainType, Hook, ObservedChain, Policy, Priority};
pub(crate) use datatype::padded;
pub use datatype::{ByteOrder, DataType, Field, FieldTypes};
pub use element::{Element, ElementData, ElementExtras, ElementKey, Verdict};
pub use flowtable::{Flowtable, FlowtableFlags, ObservedFlowtable};
pub use key::{ChainKey, Family, FlowtableKey, Name, ObjectKey, SetKey, TableKey};
pub use object::{Object, ObjectData, ObjectType, ObservedObject};
pub(crate) use object::{timeout_state, timeout_state_number, timeout_states};
pub use rule::{ObservedRule, Rule};
pub use set::{MapData, ObservedSet, Set, SetFlags, SetPolicy};
pub use table::{ObservedTable, Table, TableFlags};
pub use value::Value;
pub(crate) use value::network;

/// A value that cannot be part of a request. `Debug` prints the message, so a `main` that returns this error is
/// readable.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct InvalidValue {
    what: String,
    why: &'static str,
}

impl InvalidValue {
    pub(crate) fn new(what: impl Into<String>, why: &'static str) -> Self {
        InvalidValue { what: what.into(), why }
    }
}

impl fmt::Debug for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Serialises a type as text, with its `Display` and `FromStr`.
#[cfg(feature = "serde")]
macro_rules! serde_as_text {
    ($type:ty, $expecting:literal, $write:expr, $read:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&$write(self))
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        $read(text).map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Visitor)
            }
        }
    };
}
#[cfg(feature = "serde")]
pub(crate) use serde_as_text;

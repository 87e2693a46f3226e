//! What a rule set is made of, as values. No I/O.

mod chain;
mod datatype;
mod element;
mod key;
mod object;
mod rule;
mod set;
mod table;
mod value;

pub use chain::{BaseChain, Chain, ChainType, Hook, ObservedChain, Policy, Priority};
pub(crate) use datatype::padded;
pub use datatype::{ByteOrder, DataType, Field, FieldTypes};
pub use element::{Element, ElementData, ElementKey, Verdict};
pub use key::{ChainKey, Family, Name, ObjectKey, SetKey, TableKey};
pub use object::{Object, ObjectData, ObjectType, ObservedObject};
pub use rule::{ObservedRule, Rule};
pub use set::{MapData, ObservedSet, Set, SetFlags, SetPolicy};
pub use table::{ObservedTable, Table, TableFlags};
pub use value::Value;

/// A value that cannot be part of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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

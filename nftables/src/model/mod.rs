//! The parts of a rule set as values, without I/O.

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
pub use element::{Element, ElementData, ElementExtras, ElementKey, ElementList, Verdict};
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

netlink_batch::debug_is_message!(InvalidValue);

macro_rules! commented {
    ($($name:ty),*) => { $(
        impl $name {
            /// Sets the comment.
            #[must_use]
            pub fn comment(mut self, comment: impl Into<String>) -> Self {
                self.comment = Some(comment.into());
                self
            }
        }
    )* };
}
commented!(Chain, Object, Rule, Set, Table);

//! The sets that rules refer to. They are values of a port ([`Sets`](crate::ports::Sets)).

pub use crate::ports::{NamedSet, SetKey, SetKind};

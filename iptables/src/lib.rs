//! iptables-save and iptables-restore as values: parse, compare, apply

mod canonical;
mod client;
mod detect;
mod error;
mod failure;
mod lock;
mod model;
mod monitor;
mod name;
mod rule;
mod runner;
mod save;
mod system;
mod token;
mod transaction;
mod version;

#[cfg(feature = "testing")]
pub mod fake;

pub use canonical::CanonicalRule;
pub use client::{Ensured, Iptables, Limits, Position};
pub use detect::{BackendChoice, Presence, Survey};
pub use error::{Error, ErrorKind, RestoreFailure};
pub use lock::{LOCK_PATH, LockHolder, holders};
pub use model::{Chain, Dump, Policy, Table};
pub use monitor::{Canary, CanaryState};
pub use name::{Backend, ChainName, Family, TableName};
pub use rule::{Counters, Rule, RuleBuilder};
pub use runner::{Invocation, LockGuard, Output, Runner};
pub use system::System;
pub use token::Token;
pub use transaction::{Edit, TableEdit, Transaction};
pub use version::{ProgramVersion, RestoreWait};

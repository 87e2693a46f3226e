//! Parses, compares and applies iptables rules as values, by way of the programs `iptables-save` and
//! `iptables-restore`.
//!
//! It works with both families and both back ends (legacy and `nf_tables`):
//! * [`Dump`], [`Table`], [`Chain`] and [`Rule`] hold what `iptables-save` prints, and print it back byte for byte.
//! * [`CanonicalRule`] is one form for the many spellings of a rule. It finds your rules again in the kernel's
//!   spelling, so nothing is written twice.
//! * [`Transaction`] collects edits to several tables as one input of `iptables-restore --noflush`. Each table is
//!   atomic.
//! * [`Iptables`] runs the programs of either back end and family. Errors name the line that failed.
//! * [`Survey`] finds the back end that the host uses. Mixing both is refused unless you force it.
//! * [`Canary`] detects that another program flushed the tables.
//!
//! It does not:
//! * flush whole tables or restore without `--noflush`, which would remove chains of other programs;
//! * change several tables atomically, because the kernel cannot: [`RestoreFailure::committed`] lists the tables
//!   already changed;
//! * log, or start threads that outlive a call: methods block until the program ends or its time limit is over;
//! * support `ebtables`, `arptables`, native nftables, renaming chains or zeroing counters;
//! * resolve host names, service names or abbreviated options when it compares rules.
//!
//! # Example
//!
//! ```
//! use iptables::{ChainName, Dump, Rule, TableName, Transaction};
//!
//! // What `iptables-save` says …
//! let dump = Dump::parse("\
//! *nat
//! :OUTPUT ACCEPT [0:0]
//! :MY-MARK - [0:0]
//! -A MY-MARK -p tcp -m tcp --dport 80 -m comment --comment \"web traffic\" -j MARK --set-xmark 0x4000/0x4000
//! COMMIT
//! ")?;
//! let nat = dump.table(&TableName::NAT);
//!
//! // … and what should be there, in another spelling.
//! let chain = ChainName::new("MY-MARK")?;
//! let wanted = [Rule::builder().comment("web traffic").args(["-p", "6", "--dport", "80", "-j", "MARK", "--or-mark", "0x4000"]).build()?];
//!
//! let mut change = Transaction::new();
//! assert!(!change.table(TableName::NAT).replace_chain_if_different(nat, &chain, &wanted), "it means the same: nothing to write");
//! # Ok::<(), iptables::Error>(())
//! ```
//!
//! The same on a real host, as root:
//!
//! ```no_run
//! use iptables::{BackendChoice, ChainName, Family, Iptables, Rule, System, TableName};
//!
//! let iptables = Iptables::detect(System::new(), Family::Ipv4, BackendChoice::Detect)?;
//! println!("{} uses {}", iptables.family(), iptables.version());
//! let chain = ChainName::new("MY-CHAIN")?;
//! iptables.ensure_chain_rules(&TableName::FILTER, &chain, &[Rule::parse("-m conntrack --ctstate ESTABLISHED -j ACCEPT")?])?;
//! iptables.ensure_leading(&TableName::FILTER, &ChainName::new("INPUT")?, &[Rule::builder().jump(&chain).build()?])?;
//! # Ok::<(), iptables::Error>(())
//! ```
//!
//! # Where to look next
//!
//! | task | API |
//! | --- | --- |
//! | read and write `iptables-save` text | [`Dump::parse`], [`Table`], [`Rule::parse`], [`Rule::builder`] |
//! | find a rule again in another spelling | [`CanonicalRule`] |
//! | plan changes and apply them | [`Transaction`], [`Iptables::restore`], [`Iptables::check`] |
//! | ensure single chains and rules | [`Iptables::ensure_chain_rules`], [`Iptables::ensure_rule`], [`Iptables::ensure_leading`] |
//! | find the programs and the back end | [`Survey`], [`BackendChoice`], [`Iptables::detect`] |
//! | detect a flush by another program | [`Canary`] |
//! | find the holder of the lock | [`holders`] |
//! | test without a kernel (feature `testing`) | `fake` |
//!
//! # Why programs and text
//!
//! Legacy tables can only be read and written as a whole, in a binary format that is private to each extension. An nft
//! rule must have the form that `iptables-nft` understands, or the administrator's tools stop showing it. The programs
//! are the only interface that both back ends and all other tools share.
//!
//! One restore writes thousands of rules in one run. Programs are run by absolute path, without a shell. Each argument
//! is quoted for their parser, which is not a shell. A [`Token`] refuses what quoting cannot represent, so no text in a
//! comment can change the meaning of a rule.

#![forbid(unsafe_code)]

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
pub use error::{Error, ErrorKind, LockHolder, RestoreFailure};
pub use lock::{LOCK_PATH, holders};
pub use model::{Chain, Dump, Policy, Table};
pub use monitor::{Canary, CanaryState};
pub use name::{Backend, ChainName, Family, TableName};
pub use rule::{Counters, Rule, RuleBuilder};
pub use runner::{Invocation, LockGuard, Output, Runner};
pub use system::System;
pub use token::Token;
pub use transaction::{Edit, TableEdit, Transaction};
pub use version::{ProgramVersion, RestoreWait};

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

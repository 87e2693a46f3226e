//! iptables-save and iptables-restore as values: parse, compare, apply.
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
//! On a real host, as root:
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
//! # What there is
//!
//! | task | here |
//! | --- | --- |
//! | read and write `iptables-save` text | [`Dump::parse`], [`Table`], [`Rule::parse`], [`Rule::builder`] |
//! | find a rule again in other words | [`CanonicalRule`] |
//! | plan changes, and apply them | [`Transaction`], [`Iptables::restore`], [`Iptables::check`] |
//! | make single chains and rules so | [`Iptables::ensure_chain_rules`], [`Iptables::ensure_rule`], [`Iptables::ensure_leading`] |
//! | which programs and back end the host has | [`Survey`], [`BackendChoice`], [`Iptables::detect`] |
//! | notice that somebody flushed the tables | [`Canary`] |
//! | who holds the lock | [`holders`] |
//! | tests without a kernel (feature `testing`) | `fake` |
//!
//! * [`Dump`], [`Table`], [`Chain`], [`Rule`]: what `iptables-save` prints, kept so exactly that it prints back byte for byte.
//! * [`CanonicalRule`]: one form for the many spellings of a rule, so that what was written can be found again in what the
//!   kernel says, and nothing is written that is there already.
//! * [`Transaction`]: edits to several tables as one input of `iptables-restore --noflush`, each table atomic.
//! * [`Iptables`]: runs the programs of either back end ([`Backend`]) and family; failures name the line and show it.
//! * [`Survey`], [`BackendChoice`]: which back end the host uses; mixing both is refused unless forced.
//! * [`Canary`]: detects that another program flushed the tables.
//! * `fake::FakeHost` (feature `testing`): the same programs in memory, held to the same test-suite as real kernels.
//!
//! # Why programs and text
//!
//! Legacy tables can only be read and written as a whole, in a binary form private to each extension; the nft form of a rule must
//! be the one that `iptables-nft` understands, or the administrator's tools stop showing it. The programs are the one interface
//! that both back ends share and that every other tool on the host agrees with. One restore writes thousands of rules in one run.
//! Programs are run by absolute path, without a shell; each argument is quoted as their reader (which is not a shell) understands
//! it, and what it could not carry is refused when a [`Token`] is made. No text in a comment can change the meaning of a rule.
//!
//! # What there is not
//!
//! * No flushing of a whole table, nor a restore without `--noflush`: the other chains are not ours.
//! * No atomic change over several tables: the kernel has none. [`RestoreFailure::committed`] tells how far it came.
//! * No waiting, no log, no thread that outlives a call: methods block until the program ends or its time limit is over.
//! * No `ebtables`, no `arptables`, no native nftables, no renaming of chains, no zeroing of counters.
//! * No resolution of host names, service names and abbreviated options when comparing: see [`CanonicalRule`].

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

/// The example of the README is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

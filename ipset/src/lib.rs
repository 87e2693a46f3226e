//! Programs Linux ipset over netlink, without processes or C libraries.
//!
//! ipset keeps sets of addresses, networks, ports and interfaces in the kernel, against which an iptables rule matches a
//! packet in one step. This crate speaks the kernel's own protocol (nfnetlink, subsystem 6, versions 6 and 7):
//! * every command and every set type, for IPv4 and IPv6;
//! * hundreds of entries in a message: filling a set costs a third of a microsecond an entry;
//! * [`Client::sync`]: brings a set to exactly the wanted entries with the least writes, without a moment in which a
//!   wanted entry that was there is absent;
//! * `ipset save` text, written and read ([`save`], [`parse_save`]);
//! * errors told apart by what can be done about them ([`ErrorKind`]), with the entry that the kernel refused.
//!
//! The crate needs `CAP_NET_ADMIN` in the network namespace, and only that: the type's revision is chosen from what the running
//! kernel offers, so no version of the `ipset` tool matters.
//!
//! The crate does not look up host, service or interface names, log, start threads, keep state of its own, or load modules (the
//! kernel loads a type's module by itself). Rules that use sets are written by iptables or nftables.
//!
//! # What there is
//!
//! | task | here |
//! | --- | --- |
//! | make, list, rename, swap and delete sets | [`Client::create_set`], [`Client::list_sets`], [`SetSpec`], [`SetType`] |
//! | add, test and delete entries, any number | [`Client::add_entries`], [`Client::test_entry`], [`Entry`], [`EntryReport`] |
//! | a wanted state, with the least writes | [`Client::sync`], [`SyncReport`] |
//! | what happens to entries that exist, or do not | [`IfPresent`], [`IfAbsent`] |
//! | `ipset save` text, both ways | [`save`], [`parse_save`] |
//! | tests without a kernel (feature `testing`) | `fake` |
//!
//! # Example
//!
//! ```no_run
//! use ipset::{Client, Entry, SetSpec, SetType};
//!
//! let mut client = Client::open()?;
//! let set = SetSpec::new("allowed".parse()?, SetType::HashIpPort);
//! client.create_set(&set)?;
//! client.add_entry(&set.name, &Entry::parse(set.set_type, "192.0.2.1,tcp:443")?)?;
//! for entry in client.get_set(&set.name)?.entries {
//!     println!("{entry}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same without a kernel, with feature `testing`:
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use ipset::fake::FakeIpset;
//! use ipset::{Client, Entry, SetSpec, SetType};
//!
//! let kernel = FakeIpset::new();
//! let mut client = Client::with_transport(kernel.transport())?;
//! let set = SetSpec::new("allowed".parse()?, SetType::HashIpPort);
//! let wanted = [Entry::parse(set.set_type, "192.0.2.1,tcp:443")?];
//! let report = client.sync(&set, &wanted)?;
//! assert_eq!((report.added, report.created), (1, true));
//! assert!(client.save()?.ends_with("add allowed 192.0.2.1,tcp:443\n"));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

mod attrs;
mod client;
mod cmd;
mod error;
#[cfg(feature = "testing")]
pub mod fake;
pub mod model;
mod precheck;
mod sync;
mod text;
pub mod uapi;
#[cfg(all(test, feature = "testing"))]
#[allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "tests stop at the first surprise"
)]
mod uapi_tests;
mod wire;
mod write;

pub use client::Client;
pub use error::{Error, ErrorKind};
pub use model::{
    Comment, Element, Entry, EntryOptions, Family, Interface, InvalidValue, IpSpan, MacAddr, Nets, ObservedSet,
    PortRange, Ports, Position, Protocol, Range, SetFlags, SetName, SetOptions, SetSpec, SetType, Shape, SkbMark,
    SkbPriority, Timeout,
};
pub use netlink_batch::{Limits, Transport};
pub use sync::SyncReport;
pub use text::{SavedSet, parse_save, save};
pub use write::{EntryFailure, EntryReport, IfAbsent, IfPresent};

/// The example of the README is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

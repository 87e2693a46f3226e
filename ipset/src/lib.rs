//! Programs Linux ipset over netlink, without processes or C libraries.
//!
//! ipset keeps sets of addresses, networks, ports and interfaces in the kernel. An iptables rule matches a packet
//! against a whole set in one step. This crate uses the kernel's own protocol (nfnetlink, subsystem 6, versions 6 and
//! 7). It has:
//! * every command and every set type, for IPv4 and IPv6;
//! * messages with hundreds of entries: filling a set takes a third of a microsecond per entry;
//! * [`Client::sync`], which brings a set to a desired state with the fewest writes and never removes an entry that
//!   is still desired;
//! * the text of `ipset save`, both written and parsed ([`save`], [`parse_save`]);
//! * errors by what you can do about them ([`ErrorKind`]), with the entry that the kernel refused.
//!
//! It only needs `CAP_NET_ADMIN` in the network namespace. The version of the `ipset` tool does not matter, because
//! type revisions are negotiated with the running kernel.
//!
//! It does not look up host, service or interface names, log, start threads, or load modules (the kernel loads a type's
//! module itself). Rules that use sets are the business of iptables or nftables.
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
//! In a test without a kernel, with feature `testing`, the client is
//! `Client::with_transport(ipset::fake::FakeIpset::new().transport())?`.
//!
//! # Where to look next
//!
//! | task | API |
//! | --- | --- |
//! | create, list, rename, swap and delete sets | [`Client::create_set`], [`Client::list_sets`], [`SetSpec`], [`SetType`] |
//! | add, test and delete entries, any number | [`Client::add_entries`], [`Client::test_entry`], [`Entry`], [`EntryReport`] |
//! | bring a set to a desired state | [`Client::sync`], [`SyncReport`] |
//! | decide about entries that exist, or do not | [`IfPresent`], [`IfAbsent`] |
//! | write and parse `ipset save` text | [`save`], [`parse_save`] |
//! | test without a kernel (feature `testing`) | `fake` |
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

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

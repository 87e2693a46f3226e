//! Programs the Linux IP Virtual Server (IPVS), the kernel's layer-4 load balancer.
//!
//! A *virtual server* is an address and port (or a firewall mark) to which clients connect. The kernel forwards each
//! connection to one of its *real servers*, chosen by a *scheduler*. ipvsadm and the kernel call them service and
//! destination.
//!
//! The crate does not load kernel modules, bind virtual addresses to an interface, write firewall rules, log, or start
//! threads or programs. It never retries a change whose outcome is unknown. It has no async interface and needs none:
//! the kernel answers inside `send`. It needs `CAP_NET_ADMIN` in the initial user namespace, even for reading.
//!
//! # Example
//!
//! This needs root and a kernel with the module `ip_vs`. A real server's address must be routable, which this host's
//! own addresses always are:
//!
//! ```no_run
//! use ipvs::{Client, RealServer, Scheduler, VirtualServer, VirtualServerKey};
//! use std::time::Duration;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut ipvs = Client::open()?;
//!     let key = VirtualServerKey::tcp("10.0.0.1:80".parse()?);
//!     ipvs.add_virtual_server(&VirtualServer::new(key, Scheduler::RoundRobin))?;
//!     let real = RealServer::new("127.0.0.1:8080".parse()?);
//!     ipvs.add_real_server(&key, &real)?;
//!
//!     for entry in ipvs.snapshot()?.entries {
//!         println!("{}: {} real servers", entry.virtual_server.server.key, entry.real_servers.len());
//!     }
//!
//!     // No new connections; deleted when the old ones have ended, or after a minute.
//!     ipvs.drain_real_server(&key, &real.key, Duration::from_secs(60))?;
//!     Ok(())
//! }
//! ```
//!
//! In a test without a kernel, with feature `testing`, the client is `ipvs::fake::FakeIpvs::new().client()?`.
//!
//! # Where to look next
//!
//! | task | API |
//! | --- | --- |
//! | read and change single virtual and real servers | [`Client`], [`VirtualServer`], [`RealServer`] |
//! | many changes in few system calls, with one outcome each | [`Batch`], [`Client::run`], [`Report`] |
//! | read the whole table | [`Client::snapshot`], [`model::Snapshot`] |
//! | bring the table to a desired state, or print the changes | [`Client::sync`], [`Ruleset::diff`], [`SyncPolicy`], [`Weights`] |
//! | remove a real server without cutting its connections | [`Client::drain_real_server`], [`Client::drain_step`] |
//! | read and write ipvsadm's save format | [`text`] |
//! | read connections and counters that netlink does not have | [`proc`] |
//! | read and write `/proc/sys/net/ipv4/vs` | [`sysctl`] |
//! | start synchronisation daemons, set timeouts | [`Client::start_daemon`], [`Client::set_timeouts`] |
//! | test without a kernel (feature `testing`) | `fake` |
//!
//! # Many changes at once
//!
//! [`Client::run`] takes a [`Batch`] and returns a [`Report`] with one outcome per operation. It sends up to 128
//! operations in one system call and asks only for the acknowledgement of the last, which is many times faster than one
//! call each.
//!
//! # A desired state
//!
//! [`Ruleset::diff`] computes the batch that brings one table to another; it prints in ipvsadm's syntax.
//! [`Client::sync`] also carries it out. Virtual servers of other programs are not changed. [`Weights`] lets a health
//! check keep control of the weights.
//!
//! ```
//! # #[cfg(feature = "testing")] {
//! use ipvs::{Ruleset, SyncPolicy, Weights};
//!
//! let mut ipvs = ipvs::fake::FakeIpvs::new().client()?;
//! let wanted: Ruleset = "
//!     -A -t 10.0.0.1:80 -s rr
//!     -a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1
//! ".parse()?;
//! let policy = SyncPolicy::owning(|key| key.addr() == "10.0.0.1".parse().ok()).with_weights(Weights::Keep);
//! print!("{}", wanted.diff(&ipvs.snapshot()?, &policy)?); // a dry run
//! assert_eq!(ipvs.sync(&wanted, &policy)?.into_result()?.len(), 2);
//! assert!(!ipvs.sync(&wanted, &policy)?.is_changed());
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

mod batch;
mod client;
mod convert;
mod diff;
mod drain;
mod error;
#[cfg(feature = "testing")]
pub mod fake;
pub mod model;
pub mod proc;
mod snapshot;
mod sync;
pub mod sysctl;
pub mod text;

pub use batch::{Batch, Operation, Outcome, Report};
pub use client::Client;
pub use diff::{SyncPolicy, Weights};
pub use error::{Error, ErrorKind, MissingModule, Subject};
pub use model::{
    ForwardingMethod, RealServer, RealServerKey, Scheduler, SchedulerFlags, VirtualServer, VirtualServerKey, Weight,
};
pub use netlink_batch::{Limits, Transport};
pub use sync::{SyncFailure, SyncReport};
pub use text::Ruleset;

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

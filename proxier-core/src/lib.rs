//! Programs the kernel to serve Kubernetes Services with IPVS, nf_tables, iptables or listeners of this process.
//!
//! # Embedding it
//!
//! Create one [`Reconciler`] per node, with a configuration: [`config::Config`], or what a kube-proxy reads
//! ([`objects::ConfigObject`]).
//!
//! 1. **Give it objects**: Services, EndpointSlices and the Node, as they change, as [`objects`] that `serde` reads. An
//!    agent with its own source of truth registers addresses and endpoints directly
//!    ([`upsert_frontends`](engine::Reconciler::upsert_frontends)). Once the first lists are complete, call
//!    [`start`](engine::Reconciler::start). Nothing is written before.
//! 2. **Call [`pass`](engine::Reconciler::pass)** when [`next_wake`](engine::Reconciler::next_wake) is due, and
//!    lend it the [`ports`] to the kernel: [`kernel`] (feature `kernel`), [`fake`] for tests (feature `testing`), or
//!    your own.
//! 3. **Read the [`Report`]**: what was written, what failed and why. The reconciler schedules retries itself.
//!
//! This program serves the Services of a file on the running kernel:
//!
//! ```no_run
//! # #[cfg(feature = "kernel")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::{Duration, Instant};
//! use proxier_core::kernel::{KernelOptions, KernelPorts};
//! use proxier_core::objects::{EndpointSliceObject, ServiceObject};
//! use proxier_core::engine::{Options, Reconciler};
//!
//! let services: Vec<ServiceObject> = serde_json::from_str(&std::fs::read_to_string("services.json")?)?;
//! let slices: Vec<EndpointSliceObject> = serde_json::from_str(&std::fs::read_to_string("slices.json")?)?;
//!
//! let origin = Instant::now();
//! let mut kernel = KernelPorts::open(&KernelOptions::default())?;
//! let mut proxier = Reconciler::new("node-a", Options::default(), Duration::ZERO);
//! proxier.replace_objects(&services, &slices, origin.elapsed());
//! proxier.start(origin.elapsed());
//! while let Some(at) = proxier.next_wake() {
//!     std::thread::sleep(at.saturating_sub(origin.elapsed()));
//!     if let Some(report) = proxier.pass(&|| origin.elapsed(), &mut kernel.ports()) {
//!         println!("{} operations, {} failed", report.writes(), report.applied.failures.len());
//!     }
//! }
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "kernel"))]
//! # fn main() {}
//! ```
//!
//! [`kernel`] shows a loop that also reacts to changes on the host. The README has an example without a kernel.
//!
//! # How it works
//!
//! ```text
//!  objects ──check──▶ Store ──compile, per Service──▶ Desired ──lower──▶ desired kernel state ┐
//!                       └─▶ Rejections                   └─▶ Conflicts                        ├─diff─▶ Plan ──apply──▶ Report
//!                                                      ports ──read──▶ present kernel state   ┘
//! ```
//!
//! * [`Store`] keeps the checked objects of a cluster as one node sees them.
//! * [`service`] compiles a Service into Frontends, independent of any kernel. Each has a protocol, an address, a port
//!   and its endpoints. [`Desired`] decides which Service owns which Frontend.
//! * [`modes`] turn Frontends into kernel objects: [`modes::ipvs`] into virtual servers with their guard rules,
//!   [`modes::nftables`] into nf_tables tables, [`modes::iptables`] into kube-proxy's chains, [`modes::userspace`] into
//!   listeners of this process. A mode compares these with the kernel and writes the difference, make before break,
//!   with an outcome for each operation.
//! * [`sketch`] shows what a node would hold, without a kernel.
//!
//! A changed EndpointSlice costs one Service, whether there are ten Services or fifty thousand. The kernel is read
//! completely at the start, on a timer, and after a failure.
//!
//! # What it does not do
//!
//! The crate uses no clock, randomness, file, socket, process, log or lock: the same input gives the same output. Only
//! the ports of the features `kernel` and `testing` do. It does not use the types of a Kubernetes client: [`objects`]
//! are plain structs that `serde` reads from the output of an API server or `kubectl get -o json`.
//!
//! Invalid input never fails a pass. An impossible field is left out, the rest of the object applies, and a
//! [`Rejection`] reports the field and the reason. An operation that the kernel refuses does not stop the others. The
//! [`Report`] lists it, and a full pass follows after a growing pause.
//!
//! # Design decisions
//!
//! * A pass writes sets, then rules, virtual servers with their real servers, and addresses; it deletes in reverse
//!   order. If an address were bound before its virtual server exists, packets would reach programs that listen on this
//!   host.
//! * A virtual server belongs to another program if its address is not on the dummy device and none of this proxy's
//!   sets has its address, protocol and port. It is reported but never changed.
//! * Loopback, multicast and other impossible addresses are rejected for Services and endpoints.
//! * `docs/differences.md` of the repository lists what differs from kube-proxy, and why.
//!
//! [`Reconciler`]: engine::Reconciler
//! [`Report`]: plan::report::Report
//! [`Store`]: snapshot::Store
//! [`Rejection`]: snapshot::Rejection
//! [`Desired`]: service::Desired
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "testing"),
    expect(unreachable_pub, reason = "with the feature `testing`, tests reach the insides of modes")
)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

mod backoff;
mod compat;
pub mod config;
pub mod engine;
#[cfg(feature = "testing")]
pub mod fake;
mod flags;
pub mod inspect;
#[cfg(feature = "kernel")]
pub mod kernel;
pub mod modes;
mod named;
pub mod net;
pub mod objects;
mod pack;
mod parallel;
pub mod plan;
pub mod ports;

pub mod safeguard;
pub mod service;
pub mod sketch;
pub mod snapshot;
pub mod time;

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

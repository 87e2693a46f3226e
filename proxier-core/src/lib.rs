//! Kubernetes Services in; the state of IPVS, nf_tables or iptables out. A change costs what changed, not what there is.
//!
//! To embed it, make one [`Reconciler`] for each node. Hand it objects as they change, call
//! [`pass`](reconciler::Reconciler::pass) when one is due ([`next_wake`](reconciler::Reconciler::next_wake)), and lend each pass the
//! [`ports`] to the kernel: those of [`kernel`] (feature `kernel`), those of [`fake`] in tests (feature `testing`), or your own. The reconciler
//! reads no clock and no file, starts no thread and logs nothing: the time is an argument, and what happened is in the
//! [`Report`](plan::report::Report). An agent with a source of truth of its own hands in Frontends with their endpoints instead of
//! Kubernetes objects ([`Reconciler::upsert_frontends`](reconciler::Reconciler::upsert_frontends)).
//!
//! ```text
//!  objects ──check──▶ Store ──compile, per Service──▶ Desired ──lower──▶ what a mode wants ┐
//!                       └─▶ Rejections                   └─▶ Conflicts                     ├─diff─▶ Plan ──apply──▶ Report
//!                                                      ports ──read──▶ what the kernel has ┘
//! ```
//!
//! * [`Store`] keeps the checked objects of a cluster as one node sees them.
//! * [`service`] says what they mean, without the words of any kernel. Compiling turns a Service into Frontends, each with a protocol,
//!   an address, a port and its endpoints; [`Desired`] decides which Service owns which Frontend.
//! * [`modes`] turn Frontends into what a part of the kernel holds: [`modes::ipvs`] into virtual servers with the rules that guard them,
//!   [`modes::nftables`] into tables of nf_tables, [`modes::iptables`] into kube-proxy's chains, [`modes::userspace`] into listeners of this
//!   process. A mode compares that with what the kernel has, and writes the difference, make before break, with an outcome for each operation.
//! * [`sketch`] shows what a node would hold, without a kernel.
//!
//! One changed EndpointSlice costs one Service, with ten Services or fifty thousand. The kernel is read at the start, on a timer, and after
//! a surprise.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use proxier_core::fake::FakeKernel;
//! use proxier_core::modes::Names;
//! use proxier_core::objects::{EndpointSliceObject, ServiceObject};
//! use proxier_core::reconciler::{Options, Reconciler};
//!
//! let service: ServiceObject = serde_json::from_str(r#"{
//!     "metadata": {"namespace": "demo", "name": "web"},
//!     "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}]}
//! }"#)?;
//! let slice: EndpointSliceObject = serde_json::from_str(r#"{
//!     "metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
//!     "addressType": "IPv4",
//!     "ports": [{"name": "http", "port": 8080}],
//!     "endpoints": [{"addresses": ["10.244.1.7"]}]
//! }"#)?;
//!
//! let (mut kernel, mut now) = (FakeKernel::new(), Duration::ZERO);
//! let mut proxier = Reconciler::new("node-a", Options::default(), now);
//! proxier.upsert_service(&service, now);
//! proxier.start(now);
//! let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("not due")?;
//! assert!(report.full && report.is_done());
//! assert!(kernel.state().ipvs.contains("-A -t 10.96.0.10:80 -s rr"));
//!
//! // What the Service means now, without the words of IPVS.
//! now += Duration::from_secs(1);
//! proxier.upsert_slice(&slice, now);
//! let (plan, _) = proxier.preview(now, &mut kernel.ports());
//! let frontend = proxier.desired().frontend(&"TCP 10.96.0.10:80".parse()?).ok_or("gone")?;
//! assert_eq!((frontend.cluster.len(), frontend.local.len()), (1, 0));
//! // Only that is planned.
//! let names = Names::new(proxier.store(), proxier.desired());
//! let steps: Vec<String> = plan.steps(&names).map(|step| step.to_string()).collect();
//! assert_eq!(steps, ["+ real server TCP 10.96.0.10:80 -> 10.244.1.7:8080 weight 1  (demo/web:http)"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The whole of it, on the running kernel:
//!
//! ```no_run
//! # #[cfg(feature = "kernel")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::{Duration, Instant};
//! use proxier_core::kernel::{KernelPorts, Options as KernelOptions};
//! use proxier_core::objects::ServiceObject;
//! use proxier_core::reconciler::{Options, Reconciler};
//!
//! let origin = Instant::now();
//! let mut kernel = KernelPorts::open(&KernelOptions::default())?;
//! let mut proxier = Reconciler::new("node-a", Options::default(), Duration::ZERO);
//! let services: Vec<ServiceObject> = serde_json::from_str(&std::fs::read_to_string("services.json")?)?;
//! proxier.replace_objects(&services, [], origin.elapsed());
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
//! # What it does not do
//!
//! The crate has no clock, randomness, file, socket, process, log or lock: the same input gives the same output. Only the ports of
//! the features `kernel` and `testing` use anything else. It has no type of a Kubernetes client: [`objects`] are plain
//! structs that `serde` reads from what an API server or `kubectl get -o json` prints.
//!
//! Bad input does not fail: an impossible field is left out, the rest of the object counts, and a [`Rejection`] says what
//! and why. An operation that the kernel refuses does not stop the rest: the [`Report`] has it, and a full pass follows
//! after a growing pause.
//!
//! # Decisions a reader may question
//!
//! * Where kube-proxy 1.28 is known to do harm, this differs: `internalTrafficPolicy: Local` without local endpoints has no
//!   endpoints, with any other setting of the Service; a source range of `/0` lifts the restriction where kube-proxy locks
//!   all clients out; the addresses of `kube-ipvs0` are not node addresses; of two Services that claim one address and port,
//!   the older gets it.
//! * `externalTrafficPolicy: Local` without local endpoints falls back to the cluster's, as with kube-proxy, unless
//!   [`LocalFallback::Refuse`](config::LocalFallback::Refuse) is set.
//! * Rules for iptables mean for packets what kube-proxy's mean, are written only when something differs, and close two of
//!   its gaps: `modes/ipvs/rules` lists every difference.
//! * The order of a pass is sets, rules, virtual servers with their real servers, addresses; deletions go in reverse. An
//!   address that is bound before its virtual server exists would for a moment lead to programs that listen on this host.
//! * An endpoint that goes away drains (weight 0) for at most 15 minutes; one that comes back meanwhile gets its weight
//!   back in place, and keeps its connections.
//! * A virtual server whose address is not on the dummy device and whose address, protocol and port are in none of this
//!   proxy's sets is foreign: reported, never changed.
//! * When the input suddenly becomes empty, deletions are held back for a while: see [`safeguard`].
//! * Loopback, multicast and other impossible addresses are rejected for Services and endpoints.
//! * Labels: `service.kubernetes.io/headless` counts on slices only, as from Kubernetes 1.32; a Service is headless by
//!   its cluster IP.
//!
//! [`Reconciler`]: reconciler::Reconciler
//! [`Report`]: plan::report::Report
//! [`Store`]: snapshot::Store
//! [`Rejection`]: snapshot::Rejection
//! [`Desired`]: service::Desired
//! [`safeguard`]: safeguard
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "testing"),
    expect(unreachable_pub, reason = "with the feature `testing`, tests reach the insides of modes")
)]
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects, clippy::as_conversions)]

mod backoff;
mod compat;
pub mod config;
#[cfg(feature = "testing")]
pub mod fake;
mod flags;
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
pub mod reconciler;
pub mod safeguard;
pub mod service;
pub mod sketch;
pub mod snapshot;
pub mod time;

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

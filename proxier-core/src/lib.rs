//! Programs a node's service proxy from Kubernetes Services: IPVS, nf_tables, iptables, or listeners of the process.
//!
//! To embed it, create one [`Reconciler`] per node. Give it objects as they change, and call
//! [`pass`](reconciler::Reconciler::pass) when one is due ([`next_wake`](reconciler::Reconciler::next_wake)). Each pass
//! borrows the [`ports`] to the kernel: those of [`kernel`] (feature `kernel`), those of [`fake`] in tests (feature
//! `testing`), or your own. The time is an argument, and the result is a [`Report`](plan::report::Report). An agent
//! with its own source of truth can provide Frontends with their endpoints instead of Kubernetes objects
//! ([`Reconciler::upsert_frontends`](reconciler::Reconciler::upsert_frontends)).
//!
//! ```text
//!  objects ──check──▶ Store ──compile, per Service──▶ Desired ──lower──▶ what a mode wants ┐
//!                       └─▶ Rejections                   └─▶ Conflicts                     ├─diff─▶ Plan ──apply──▶ Report
//!                                                      ports ──read──▶ what the kernel has ┘
//! ```
//!
//! * [`Store`] holds the checked objects of a cluster as seen from one node.
//! * [`service`] interprets them, independent of any kernel part. Compiling turns a Service into Frontends, each with
//!   a protocol, an address, a port and its endpoints. [`Desired`] decides which Service owns which Frontend.
//! * [`modes`] turn Frontends into objects of a kernel part: [`modes::ipvs`] into virtual servers and the rules that
//!   guard them, [`modes::nftables`] into nf_tables tables, [`modes::iptables`] into kube-proxy's chains,
//!   [`modes::userspace`] into listeners of this process. A mode compares them with the kernel and writes the
//!   difference, make before break, with an outcome for each operation.
//! * [`sketch`] shows what a node would have, without a kernel.
//!
//! A changed EndpointSlice costs as much as its Service, whether the cluster has ten Services or fifty thousand. The
//! kernel is read at the start, on a timer, and after unexpected results.
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
//! The complete loop on the running kernel:
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
//! The crate uses no clock, randomness, file, socket, process, log or lock: the same input gives the same output. Only
//! the ports of the features `kernel` and `testing` do. It does not use the types of a Kubernetes client: [`objects`]
//! are plain structs that `serde` reads from the output of an API server or `kubectl get -o json`.
//!
//! Invalid input is not an error. An impossible field is ignored, the rest of the object counts, and a [`Rejection`]
//! says what and why. An operation that the kernel refuses does not stop the others. It is in the [`Report`], and a
//! full pass follows after a growing pause.
//!
//! # Where to look next
//!
//! | task | API |
//! | --- | --- |
//! | run the loop | [`Reconciler`], [`Report`] |
//! | program the running kernel | [`kernel::KernelPorts`]; single parts: [`ports`] |
//! | test an agent without a kernel | [`fake::FakeKernel`] |
//! | configure | [`config::Config`], [`objects::ConfigObject`] |
//! | provide Frontends instead of Services | [`Reconciler::upsert_frontends`](reconciler::Reconciler::upsert_frontends) |
//! | show what a node would have | [`sketch`] |
//!
//! # Design decisions
//!
//! * kube-proxy 1.28's behaviour is changed where it is known to do harm. `internalTrafficPolicy: Local` without
//!   local endpoints has no endpoints, regardless of the Service's other settings. A source range of `/0` lifts the
//!   restriction, where kube-proxy locks all clients out. The addresses of `kube-ipvs0` are not node addresses. If two
//!   Services claim one address and port, the older one gets it.
//! * `externalTrafficPolicy: Local` without local endpoints falls back to the cluster's, as in kube-proxy, unless
//!   [`LocalFallback::Refuse`](config::LocalFallback::Refuse) is set.
//! * iptables rules have the same effect on packets as kube-proxy's, are only written if something differs, and close
//!   two gaps: `modes/ipvs/rules` lists every difference.
//! * A pass writes sets, then rules, virtual servers with their real servers, and addresses; it deletes in reverse
//!   order. If an address were bound before its virtual server exists, packets would reach programs that listen on this
//!   host.
//! * A removed endpoint drains (weight 0) for at most 15 minutes. If it returns meanwhile, it gets its weight back
//!   and keeps its connections.
//! * A virtual server belongs to another program if its address is not on the dummy device and none of this proxy's
//!   sets has its address, protocol and port. It is reported but never changed.
//! * If the input suddenly becomes empty, deletions are held back for a while: see [`safeguard`].
//! * Loopback, multicast and other impossible addresses are rejected for Services and endpoints.
//! * `service.kubernetes.io/headless` only counts on slices, as from Kubernetes 1.32. A Service is headless by its
//!   cluster IP.
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

/// Compiles the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

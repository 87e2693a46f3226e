//! IPVS mode: virtual servers, addresses on a dummy device or local routes, and rules beside them that masquerade and guard ([`guards`]):
//! ipsets with rules of iptables, or a table of nf_tables.
//!
//! ```text
//!  Desired ──▶ Index ──▶ Wanted, Changed ┐
//!                                        ├─diff─▶ Changes ─plan─▶ Plan ─apply─▶ Applied
//!  kernel ───reading────────▶ Observed ──┘            ▲             │
//!                                ▲                  Drains          │
//!                                └───── what the kernel confirmed ──┘
//! ```
//!
//! # A pass by hand
//!
//! The steps of a [`Reconciler`](crate::reconciler::Reconciler) in this mode, without its schedule, rules and safeguard:
//!
//! ```
//! use ipvs::VirtualServerKey;
//! use proxier_core::config::Config;
//! use proxier_core::fake::FakeKernel;
//! use proxier_core::modes::ipvs::apply::apply;
//! use proxier_core::modes::ipvs::diff::{diff, diff_changed, foreign};
//! use proxier_core::modes::ipvs::drain::{Drains, Policy};
//! use proxier_core::modes::ipvs::plan::plan;
//! use proxier_core::modes::ipvs::reading::read;
//! use proxier_core::modes::ipvs::index::Recorded;
//! use proxier_core::modes::shared::host::read_host;
//! use proxier_core::modes::shared::names::Names;
//! use proxier_core::net::EndpointKey;
//! use proxier_core::service::{Indexed, NodeFacts};
//! use proxier_core::snapshot::{FrontendSpec, Node, ObjectKey, Store};
//!
//! let config = Config::default();
//! let mut kernel = FakeKernel::new();
//! kernel.ipvs().load("-A -t 192.0.2.10:7777 -s rr\n")?; // somebody else's
//! kernel.ports().links.create_device("kube-ipvs0")?;
//! let host = read_host(kernel.ports().links).map_err(|unread| unread.to_string())?;
//! let facts = NodeFacts::new(&config, &Node::new("node-a"), &host);
//! let (mut store, mut all) = (Store::new("node-a"), Indexed::new(Recorded::new(&config)));
//! let with = |endpoints: &[u8]| -> Result<FrontendSpec, proxier_core::net::InvalidFrontendKey> {
//!     let endpoints = endpoints.iter().map(|last| EndpointKey::new([10, 244, 1, *last].into(), 8080));
//!     Ok(FrontendSpec::new("TCP 10.96.0.10:80".parse()?, endpoints))
//! };
//! let (web, key): (ObjectKey, VirtualServerKey) = (ObjectKey::new("agent", "web"), "TCP 10.96.0.10:80".parse()?);
//!
//! // Everything is read, and compared.
//! let changed = store.upsert_frontends(&web, [with(&[7])?]);
//! all.refresh(&store, &facts, &changed);
//! let wanted = all.wanted();
//! let mut ports = kernel.ports();
//! let mut observed = read(ports.ipvs, ports.sets, &host, &config, &wanted, false).map_err(|_| "not read")?;
//! assert!(foreign(&wanted, &observed, &config).eq(["TCP 192.0.2.10:7777".parse()?]));
//! let drains = Drains::new(Policy::default());
//! let first = plan(diff(&wanted, &observed, &config), &wanted, &observed, &drains);
//! assert!(!first.is_empty() && first.bind == ["10.96.0.10".parse::<std::net::IpAddr>()?]);
//! let names = Names::new(&store, wanted.desired());
//! let (applied, _) = apply(&first, &wanted, &mut observed, &names, &mut ports);
//! assert_eq!(applied.failures, []);
//! assert!(diff(&wanted, &observed, &config).is_empty()); // `observed` follows what the kernel confirmed
//!
//! // Then only what changed: one operation, and nothing is read.
//! let changed = store.upsert_frontends(&web, [with(&[7, 8])?]);
//! all.take_changed();
//! all.refresh(&store, &facts, &changed);
//! let changed = all.take_changed();
//! let wanted = all.wanted();
//! let changes = diff_changed(&wanted, &observed, &changed, &config);
//! assert_eq!(Vec::from_iter(changes.virtual_servers.keys()), [&key]);
//! let second = plan(changes, &wanted, &observed, &drains);
//! let names = Names::new(&store, wanted.desired());
//! let steps: Vec<String> = second.steps(&names).map(|step| step.to_string()).collect();
//! assert_eq!(steps, ["+ real server TCP 10.96.0.10:80 -> 10.244.1.8:8080 weight 1  (agent/web)"]);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

pub mod apply;
pub mod binding;
pub mod cleanup;
mod confirm;
pub mod diff;
pub mod drain;
mod entries;
pub mod guards;
pub mod held;
pub mod index;
mod look;
mod lost;
mod lower;
mod mode;
pub mod observed;
pub mod plan;
pub mod reading;
pub mod rules;
pub mod servers;
pub mod sets;
mod split;
pub mod steps;
pub mod udp;
pub mod wanted;

pub(super) use look::look;
pub(crate) use mode::Mode;
pub use mode::Options;

//! nftables mode: one table for each family, whose number of chains and rules does not grow with Services.
//!
//! kube-proxy's nftables mode has chains for every Service and every endpoint. Each transaction that changes a jump
//! makes the kernel check all of them again. Here, what differs from Service to Service is in maps, and rules are
//! shared:
//!
//! ```text
//!  set internal-4 { address . protocol . port }                                     one element a Frontend with 1 to 4 endpoints
//!  map services   { address . protocol . port         : goto pick-4-or-none, … }    one for each Frontend without such a set
//!  map endpoints  { address . protocol . port . slot  : endpoint address . port }   one element an endpoint
//!  chain internal-4 { dnat to … numgen random mod 4 map @endpoints … }              one chain for 1 to 4 endpoints
//! ```
//!
//! With session affinity, clients are remembered by slot: a set of clients and a chain for each *number* of a slot,
//! shared by all Services. An endpoint keeps its slot while it lives; the tables say which, so a restart changes
//! nothing. New endpoints get slots in turn, of about twice as many as there are endpoints, so that the slot of a
//! removed endpoint stays empty for as long as possible. A client that this slot knows is forgotten when it connects,
//! and chooses again among all endpoints. A client never leaves an endpoint that still exists. Clients are looked for
//! in all slots, one after the other, up to the next power of two above the highest in use. This is the cost of
//! affinity with many endpoints for a new connection. With more than 4,096 endpoints there is none. The lowest slot
//! remembers 196,608 clients of all Services, the next two half as many, the rest 65,535; beyond, clients are served
//! without affinity. When a table is made again, clients are forgotten.
//!
//! A changed endpoint is a transaction of a few elements, with ten Services or fifty thousand. So is one endpoint more
//! or less, as long as the chain suits their number. It is kept for up to seven fewer: a rolling update that goes up
//! and down by less than four changes it once at most. A new Service, its first endpoint, or another chain is an
//! element of another set. Some Frontends are in the map of verdicts (session affinity, policy `Local` for clients
//! outside, more than 16 endpoints). Only for these the kernel checks the table when their chain changes, at a cost
//! that grows with their number. Each pass is one transaction for each family: packets see the table before it or after
//! it, never in between.
//!
//! ```text
//!  Desired ──follow──▶ Wanted ──▶ Changed ┐
//!    │ lower                              ├─plan─▶ Plan ─apply─▶ Applied
//!    ▼                                    │
//!  Items                kernel ──observe──┘
//! ```
//!
//! The differences from kube-proxy for packets are in one list that tests use, `tests/differences` of this crate;
//! `docs/differences.md` is generated from it.
//!
//! Rejections are at the priority `filter`, source ranges ten before `dstnat`. Affinity is kept by Frontend: a client
//! that uses two addresses of a Service may get two endpoints. [`LocalFallback`](crate::config::LocalFallback) has no
//! effect: the node and its pods get the cluster's endpoints, and connections of other clients are dropped.

mod cleanup;
mod index;
mod layout;
mod lower;
mod mode;
mod observed;
mod pick;
mod plan;
mod slots;
mod trial;

#[doc(hidden)]
pub use cleanup::cleanup;
pub use cleanup::list_kube_proxy;
pub(crate) use cleanup::{cleanup_kube_proxy, served, served_by_kube_proxy, unrecognised_tables};
pub(crate) use mode::Mode;
pub(super) use observed::inspect;
pub(in crate::modes) use observed::{list_frontends, rejected_at_localhost};
pub use trial::trials;

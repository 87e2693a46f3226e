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
//! shared by all Services. An endpoint keeps its slot while it exists. The tables record the slots, so a restart
//! changes nothing. New endpoints get slots in rotation, out of about twice as many as there are endpoints. A slot
//! whose endpoint was removed stays empty for as long as possible. A client of an empty slot is forgotten when it
//! returns, and gets a new endpoint. A client never moves away from an existing endpoint.
//!
//! Clients are searched for in all slots, up to the next power of two above the highest in use, one after the other.
//! That is what affinity with many endpoints costs a new connection. The lowest slot remembers 196,608 clients of all
//! Services, the next two half as many, the rest 65,535; further clients are served without affinity. If a table is
//! recreated, clients are forgotten.
//!
//! Adding or removing an endpoint is a transaction of a few elements, as long as the chain still fits their number. A
//! chain is kept for up to seven fewer endpoints, so a rolling update that goes up and down by less than four changes it
//! at most once. What changes cost, and limits, are in `docs/modes.md`. The differences from kube-proxy for packets are
//! in one list that tests use, `tests/differences` of this crate; `docs/differences.md` is generated from it.
//!
//! Rejections are at the priority `filter`, source ranges ten before `dstnat`. With external policy `Local` the node
//! and its pods get the cluster's endpoints; connections of other clients are dropped if this node has none.

mod cleanup;
mod index;
mod layout;
mod lower;
mod mode;
mod observed;
mod pick;
mod plan;
mod slots;

pub use cleanup::list_kube_proxy;
pub(crate) use cleanup::{
    cleanup, cleanup_kube_proxy, served, served_by_kube_proxy, served_by_others, unrecognised_tables,
};
pub use layout::trials;
pub(crate) use mode::Mode;
pub(crate) use observed::rejected_at_localhost;
pub(crate) use observed::{inspect, list_frontends};

//! iptables mode: chains and rules exactly as kube-proxy's iptables mode writes them, except for the differences named
//! below.
//!
//! ```text
//!  Desired ──▶ Wanted, Changes ──update──▶ Transaction      only what changed; nothing is read
//!                 │
//!  kernel ──▶ Dump ┴──────────changes────▶ Transaction      everything, compared with what the kernel has
//! ```
//!
//! # Own chains and rules
//!
//! Own chains are those of kube-proxy's iptables mode, by name, in nat and filter. Own jumps are those from built-in
//! chains to them that carry its comments. An own chain has exactly this proxy's rules. Of the kubelet's chains only
//! `KUBE-FIREWALL` is touched. It is created if it is missing, and gets the rule that closes a hole of node ports on
//! 127.0.0.1. It is never emptied or deleted.
//!
//! # A pass
//!
//! A full pass compares what it reads. A pass for changes reads nothing if the last write of the family succeeded. It
//! writes the chains of the Service ports that changed, and deletes and inserts single lines in the shared chains, whose
//! order does not matter. If the kernel contradicts that (a line to delete is not there), the table is not changed, and
//! the rules are read at once. Each table that is written must have the chain `KUBE-PROXY-CANARY`, otherwise the write
//! fails too: another program has deleted the chains, and single lines would be useless without the rest.
//!
//! After another failure (the lock of iptables) the family is tried again after a pause of up to five seconds. If the
//! kernel refuses what was compared, the mode finds the Services that are the reason by bisection, at most 16 in a pass.
//! They keep what they have, and are tried again at full passes and when they change.
//!
//! # Differences from kube-proxy
//!
//! * An address and port has one owner ([`Desired`](crate::service::Desired)); other Services' lines for it are left
//!   out. Reserved addresses and ports have no lines. A node port that is reserved at some of the node's addresses has
//!   a line for each remaining address. Node ports of two Services never collide, since the API server allocates them.
//! * Source ranges also apply to an address that is both an external IP and a load balancer's. A range of prefix length
//!   0 restricts no client, so nothing is written for it. If no range can be read, no client gets through.
//! * For an address that is both the cluster IP and external, only the line of the cluster IP is written, since no
//!   packet reaches any further line.
//! * Comments in rules about endpoints are left out beyond a thousand endpoints, as in kube-proxy, but no chain is
//!   written only for them.
//! * Jumps have a fixed order, replacing any earlier order: source ranges are checked before marked packets are
//!   accepted.
//!
//! As with kube-proxy, and unlike IPVS mode, external traffic under `externalTrafficPolicy: Local` is dropped if this
//! node has no endpoint. Traffic from inside the cluster goes to any node.

mod count;
mod diff;
mod lines;
mod mode;
pub(crate) mod names;
mod observed;
mod plan;
mod remove;
mod service;
mod settings;
mod spelling;
mod trial;
mod wanted;

pub(crate) use mode::Mode;
pub use observed::{inspect, list_frontends};
pub(crate) use remove::removal;
pub(crate) use remove::{remove_counters, served};
pub(crate) use settings::Settings;
pub use settings::{IptablesOptions, RandomFully};
pub use trial::{Tried, trial};

/// Internals. For this crate's tests and benches.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use {
    diff::{changes, update},
    remove::cleanup,
    settings::COUNTERS,
    wanted::{Index, Wanted},
};

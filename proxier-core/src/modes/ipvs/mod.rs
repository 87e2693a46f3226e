//! IPVS mode: virtual servers, addresses on a dummy device or local routes, and rules that masquerade and guard (ipsets
//! with iptables rules, or an nf_tables table).
//!
//! ```text
//!  Desired ──▶ Index ──▶ Wanted, Changed ┐
//!                                        ├─diff─▶ Changes ─plan─▶ Plan ─apply─▶ Applied
//!  kernel ───reading────────▶ Observed ──┘            ▲             │
//!                                ▲                  Drains          │
//!                                └───── what the kernel confirmed ──┘
//! ```

#[path = ""]
#[allow(missing_docs, reason = "no public API: comments say what names and types do not")]
mod insides {
    pub mod apply;
    pub mod binding;
    pub mod cleanup;
    pub mod diff;
    pub mod drain;
    pub mod guards;
    pub mod lower;
    pub(super) mod mode;
    pub mod observed;
    pub(super) mod pass_plan;
    pub mod plan;
    pub mod reading;
    pub mod rules;
    pub(super) mod split;
    pub(super) mod state;
    pub mod wanted;
}

/// Internals. For this crate, its tests and its benches.
#[cfg(not(feature = "testing"))]
pub(crate) use insides::*;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use insides::*;

pub use insides::drain::{Draining, Policy};
pub use insides::guards::{Choice, choose, dropping_input, marks, trials};
pub(crate) use insides::reading::inspect;
pub use insides::reading::{device_addresses, has_device};
pub use insides::rules::Capabilities;
pub use insides::state::IpvsOptions;
pub(crate) use insides::state::{Mode, Servers};
pub use insides::wanted::MarkUnavailable;

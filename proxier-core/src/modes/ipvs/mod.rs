//! IPVS mode: virtual servers, addresses on a dummy device or local routes, entries of ipset sets, rules of iptables.
//!
//! ```text
//!  Desired ──lower──▶ Wanted ──▶ Changed ┐
//!                                        ├─diff─▶ Changes ─plan─▶ Plan ─apply─▶ Applied
//!  kernel ───reading────────▶ Observed ──┘            ▲             │
//!                                ▲                  Drains          │
//!                                └───── what the kernel confirmed ──┘
//! ```

pub mod apply;
pub mod binding;
pub mod cleanup;
mod confirm;
pub mod diff;
pub mod drain;
pub mod held;
mod lower;
mod mode;
pub mod observed;
pub mod plan;
pub mod reading;
pub mod rules;
pub mod servers;
pub mod sets;
pub mod steps;
pub mod udp;
pub mod wanted;

pub use mode::Options;
pub(crate) use mode::{Mode, Prepared};

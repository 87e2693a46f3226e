//! IPVS mode: virtual servers, addresses on a dummy device or local routes, and what masquerades and guards beside them ([`guards`]):
//! ipsets with rules of iptables, or a table of nf_tables.
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
pub mod guards;
pub mod held;
mod look;
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
pub use mode::Options;
pub(crate) use mode::{Mode, Prepared};

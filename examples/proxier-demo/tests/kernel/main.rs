//! `proxier-demo` on a real kernel, as a user starts it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
#![allow(clippy::cast_precision_loss, clippy::float_cmp, reason = "small numbers")]

mod auto_rules;
mod binding;
mod demo;
mod diff;
mod iptables_mode;
mod lacks;
mod lacks_nf_tables;
mod live;
mod live_api;
mod modes;
mod obstacles;
mod plans;
mod policy;
mod render;
mod scratch;
mod start;
mod status;
mod tables;
mod trace;
mod upgrade;
mod userspace;
mod ways;

#[path = "../program/mod.rs"]
mod program;

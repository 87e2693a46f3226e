//! Parts of `proxier-demo`, and the whole program where it needs no kernel.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests stop at the first surprise"
)]

mod cluster;
mod command_line;
mod configuration;
mod damaged;
mod diff;
mod docs;
mod docs_run;
mod explain;
mod install;
mod linear;
mod lists;
mod lock;
mod manifests;
mod messages;
mod metrics;
mod monitoring;
mod status_page;
mod walls;

#[allow(dead_code, reason = "the rest is for real kernels")]
#[path = "../program/mod.rs"]
mod program;

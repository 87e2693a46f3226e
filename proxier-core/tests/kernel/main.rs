//! IPVS, rules, relays and tables as the field's tools show them on a real kernel.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "time, threads, files and sockets are real, and a run says what it has seen"
)]
#![allow(clippy::let_underscore_must_use, reason = "what is damaged may not be there")]
#![allow(clippy::needless_pass_by_value, reason = "json!(…) as an argument reads better than &json!(…)")]

mod affinity_nftables;
mod iptables;
mod model;
mod own_client;
mod policy;
mod ports_kernel;
mod relay;
mod rules;
mod scenarios;

#[allow(dead_code, reason = "the rest is for tests without a kernel")]
#[path = "../corpus/mod.rs"]
mod corpus;
#[path = "../ports/mod.rs"]
mod ports;
#[allow(dead_code, reason = "the rest is for tests without a kernel")]
#[path = "../rule_cases/mod.rs"]
mod rule_cases;
#[allow(dead_code, reason = "the rest is for tests without a kernel")]
#[path = "../scenarios/runner/mod.rs"]
mod runner;
#[allow(dead_code, reason = "the rest is for tests without a kernel")]
#[path = "../world/mod.rs"]
mod world;

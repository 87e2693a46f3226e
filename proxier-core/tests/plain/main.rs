//! Tests that need no kernel: functions on values, and the reconciler on a kernel in memory.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
#![allow(clippy::let_underscore_must_use, reason = "what is damaged may not be there")]
#![allow(clippy::needless_pass_by_value, reason = "json!(…) as an argument reads better than &json!(…)")]
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "fixtures are for real kernels, too; sources are read"
)]

mod binding;
mod cold_start;
mod drain;
mod every_mode;
mod every_way;
mod fast_path;
mod frontends;
mod host;
mod inspect;
mod iptables_mode;
mod iptables_rules;
mod ipvs_nft;
mod ipvs_split;
mod marks;
mod missing;
mod mode_switch;
mod neighbours;
mod nftables_mode;
mod node;
mod oracle;
mod oracle_iptables;
mod policy;
mod ports_fake;
mod proxier;
mod rules;
mod scenarios;
mod services;
mod sketch;
mod trace;
mod two_proxies;
mod udp;
mod universe;
mod unreadable;
mod userspace_mode;
mod walls;

// What tests on real kernels use, too.
#[path = "../corpus/mod.rs"]
mod corpus;
#[path = "../differences/mod.rs"]
mod differences;
#[allow(dead_code, unused_imports, reason = "packets are for real kernels")]
#[path = "../flows/mod.rs"]
mod flows;
#[path = "../ports/mod.rs"]
mod ports;
#[allow(dead_code, reason = "the rest is for real kernels")]
#[path = "../rule_cases/mod.rs"]
mod rule_cases;
#[allow(dead_code, reason = "the real kernel is for other tests")]
#[path = "../scenarios/runner/mod.rs"]
mod runner;
#[path = "../world/mod.rs"]
mod world;

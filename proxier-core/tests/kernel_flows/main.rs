//! The flows of the corpora as packets through a real kernel that a proxy mode, or the reference, has programmed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "time, threads, files and sockets are real, and a run says what it has seen"
)]

mod iptables;
mod ipvs;
mod nftables;
mod reference;
mod userspace;

#[allow(dead_code, reason = "states of IPVS mode are another test's")]
#[path = "../corpus/mod.rs"]
mod corpus;
#[allow(dead_code, reason = "the table of the documentation is another test's")]
#[path = "../differences/mod.rs"]
mod differences;
#[path = "../flows/mod.rs"]
mod flows;

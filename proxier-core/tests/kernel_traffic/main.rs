//! Connections of clients through a node that the reconciler has programmed, on a real kernel.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "time, threads, files and sockets are real, and a run says what it has seen"
)]

mod failover;
mod guards;
mod invalid;
mod ipvs;
mod ipvs_table;
mod nft;
mod nftables;
mod restart;
mod rolling;
mod split;
mod traffic;

#[allow(dead_code, reason = "the rest is for the flows of the corpus")]
#[path = "../flows/wire.rs"]
mod wire;

//! The suite against the running kernel, each case in a network namespace of its own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

#[macro_use]
mod suite;

use nftables::Client;
use testkit::{Need, kernel_test};

fn run(case: fn(&mut Client)) {
    kernel_test(&[Need::Root, Need::Nftables], || case(&mut Client::open().unwrap()));
}

suite_tests!(run);

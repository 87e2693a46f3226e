//! The suite against the running kernel, each case in a network namespace of its own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

#[macro_use]
mod suite;
mod support;

use ipset::Client;

fn run(case: fn(&mut Client)) {
    support::in_namespace(|| case(&mut Client::open().unwrap()));
}

suite_tests!(run);

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

#[test]
fn flow_tables_come_back_as_they_were_written() {
    kernel_test(&[Need::Root, Need::Nftables, Need::FlowTables], || {
        suite::flow_tables_come_back_as_they_were_written(&mut Client::open().unwrap());
    });
}

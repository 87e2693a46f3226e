//! The suite against the fake kernel.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

#[macro_use]
mod suite;

use nftables::Client;
use nftables::fake::FakeNftables;

fn run(case: fn(&mut Client)) {
    let kernel = FakeNftables::new();
    case(&mut Client::with_transport(kernel.transport()));
}

suite_tests!(run);

#[test]
fn flow_tables_come_back_as_they_were_written() {
    run(suite::flow_tables_come_back_as_they_were_written);
}

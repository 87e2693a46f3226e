//! The suite against the fake kernel.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

#[macro_use]
mod suite;

use ipset::Client;
use ipset::fake::FakeIpset;

fn run(case: fn(&mut Client)) {
    let kernel = FakeIpset::new();
    case(&mut Client::with_transport(kernel.transport()).unwrap());
}

suite_tests!(run);

#[test]
fn a_rule_keeps_its_set() {
    let kernel = FakeIpset::new();
    let mut client = Client::with_transport(kernel.transport()).unwrap();
    let set = suite::spec("create a hash:ip");
    client.create_set(&set).unwrap();
    assert!(kernel.add_reference(&set.name));
    assert_eq!(*client.destroy_set(&set.name).unwrap_err().kind(), ipset::ErrorKind::InUse);
    assert!(kernel.remove_reference(&set.name));
    client.destroy_set(&set.name).unwrap();
    assert!(!kernel.add_reference(&set.name));
}

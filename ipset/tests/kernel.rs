//! The suite against the running kernel, each case in a network namespace of its own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

#[macro_use]
mod suite;

use ipset::Client;
use testkit::{Need, kernel_test};

fn run(case: fn(&mut Client)) {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip")], || case(&mut Client::open().unwrap()));
}

suite_tests!(run);

/// Another network namespace has sets of its own, and a client opened there stays there.
#[test]
fn another_namespace_by_its_file() {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip"), Need::Tool("ipset")], || {
        let listed = || testkit::oracle::run("ipset", &["list", "-n"], None).unwrap().stdout;
        let other = testkit::Netns::new().unwrap();
        let file = other.run_in(|| std::fs::File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
        let mut there = Client::open_in(std::os::fd::AsFd::as_fd(&file)).unwrap();
        there.create_set(&ipset::SetSpec::new("there".parse().unwrap(), ipset::SetType::HashIp)).unwrap();
        assert_eq!(listed(), "");
        assert_eq!(Client::open().unwrap().list_names().unwrap(), []);
        assert_eq!(other.run_in(listed).unwrap(), "there\n");
    });
}

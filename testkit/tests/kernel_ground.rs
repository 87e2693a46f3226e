//! The ground itself: namespaces, and needs.

#![expect(clippy::unwrap_used, reason = "helpers of tests may stop at the first surprise")]

use std::fs;

use testkit::{Need, Netns, NetnsGuard, kernel_test, oracle};

fn namespace() -> String {
    fs::read_link("/proc/thread-self/ns/net").unwrap().display().to_string()
}

#[test]
fn a_guard_gives_an_empty_namespace_and_takes_it_back() {
    kernel_test(&[Need::Root], || {
        let outside = namespace();
        let guard = NetnsGuard::new().unwrap();
        assert_ne!(namespace(), outside);
        let links = oracle::run("ip", &["-oneline", "link"], None).unwrap().stdout;
        // Some kernels put fallback tunnel devices into every namespace; they are down.
        let up: Vec<&str> = links.lines().filter(|line| line.contains(",UP")).collect();
        assert!(up.len() == 1 && up[0].contains(" lo:"), "{links}");
        drop(guard);
        assert_eq!(namespace(), outside);
    });
}

#[test]
fn a_panic_inside_does_not_leave_the_thread_behind() {
    kernel_test(&[Need::Root], || {
        let outside = namespace();
        let other = Netns::new().unwrap();
        let inside = other.run_in(namespace).unwrap();
        assert_ne!(inside, outside);
        let result = std::panic::catch_unwind(|| other.run_in(|| assert_ne!(namespace(), inside)));
        assert!(result.is_err());
        assert_eq!(namespace(), outside);
        assert_eq!(other.spawn(namespace).unwrap().join().unwrap(), inside);
    });
}

/// A minimum version is the one need that may be missing everywhere; every kernel that runs this is older than 99.
#[test]
fn a_test_for_a_newer_kernel_does_not_run() {
    assert!(testkit::missing(Need::Kernel(99, 0)).is_some());
    assert!(testkit::missing(Need::Kernel(4, 0)).is_none());
}

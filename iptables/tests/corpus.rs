//! Replays the inputs that fuzzing has found, on a stable compiler: none may cause a panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod fuzzed;

#[test]
fn saved_tables() {
    assert!(testkit::replay("iptables_save", 64, fuzzed::save).unwrap() >= 510);
}

#[test]
fn rules() {
    assert!(testkit::replay("iptables_rule", 64, fuzzed::rule).unwrap() >= 790);
}

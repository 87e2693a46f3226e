//! Replays the inputs that fuzzing has found, on a stable compiler: none may cause a panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod fuzzed;

#[test]
fn lists() {
    assert!(testkit::replay("kmod_lists", 64, fuzzed::lists).unwrap() >= 640);
}

#[test]
fn trees() {
    assert!(testkit::replay("kmod_tree", 0, fuzzed::tree).unwrap() >= 320);
}

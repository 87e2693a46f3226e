//! Replays the inputs that fuzzing has found, on a stable compiler: none may cause a panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod fuzzed;

#[test]
fn texts() {
    assert!(testkit::replay("ipset_text", 64, fuzzed::text).unwrap() >= 1120);
}

#[test]
fn replies() {
    assert!(testkit::replay("ipset_replies", 8, fuzzed::replies).unwrap() >= 580);
}

//! Replays the inputs that fuzzing has found, on a stable compiler: none may cause a panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod fuzzed;

#[test]
fn messages() {
    assert!(testkit::replay("message", 64, fuzzed::message).unwrap() >= 110);
}

#[test]
fn attributes() {
    assert!(testkit::replay("attributes", 64, fuzzed::attributes).unwrap() >= 410);
}

#[test]
fn dumps() {
    assert!(testkit::replay("dump", 64, fuzzed::dump).unwrap() >= 450);
}

#[test]
fn requests() {
    assert!(testkit::replay("requests", 64, fuzzed::requests).unwrap() >= 170);
}

#[test]
fn texts() {
    assert!(testkit::replay("text", 64, fuzzed::text).unwrap() >= 660);
}

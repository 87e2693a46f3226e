//! The bytes that the fuzz targets have found, on a stable compiler: none of them may make anything panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod fuzzed;

/// Every input of a target's corpus, every prefix of each short one, and some made here, so that an empty corpus is noticed.
fn replay(target: &str, least: usize, run: impl Fn(&[u8])) {
    let inputs = testkit::corpus(target).unwrap();
    assert!(inputs.len() >= least, "{target} has {} inputs", inputs.len());
    for input in &inputs {
        run(input);
        for length in 0..input.len().min(64) {
            run(&input[..length]);
        }
    }
}

#[test]
fn messages() {
    replay("message", 110, fuzzed::message);
}

#[test]
fn attributes() {
    replay("attributes", 410, fuzzed::attributes);
}

#[test]
fn dumps() {
    replay("dump", 450, fuzzed::dump);
}

#[test]
fn requests() {
    replay("requests", 170, fuzzed::requests);
}

#[test]
fn texts() {
    replay("text", 660, fuzzed::text);
}

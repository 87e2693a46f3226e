//! The bytes that the fuzz targets have found, on a stable compiler: none of them may make anything panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod fuzzed;

/// Every input of a target's corpus, and the beginnings of each up to a length. An empty corpus is noticed.
fn replay(target: &str, least: usize, prefixes: usize, run: impl Fn(&[u8])) {
    let inputs = testkit::corpus(target).unwrap();
    assert!(inputs.len() >= least, "{target} has {} inputs", inputs.len());
    for input in &inputs {
        run(input);
        for length in 0..input.len().min(prefixes) {
            run(&input[..length]);
        }
    }
}

#[test]
fn lists() {
    replay("kmod_lists", 640, 64, fuzzed::lists);
}

#[test]
fn trees() {
    replay("kmod_tree", 320, 0, fuzzed::tree);
}

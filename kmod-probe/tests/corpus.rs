//! Replays the inputs that fuzzing has found, on a stable compiler: none may cause a panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod fuzzed;

/// Runs every input of a target's corpus and its prefixes of fewer than `prefixes` bytes. Fails on a corpus smaller
/// than `least`.
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

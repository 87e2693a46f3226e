//! The bytes that the fuzz targets start from and have found, on a stable compiler: none of them may make anything panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod fuzzed;

/// As [`testkit::replay`] with all beginnings, and each input with one byte changed.
fn replay(target: &str, least: usize, run: impl Fn(&[u8])) {
    assert!(testkit::replay(target, usize::MAX, &run).unwrap() >= least);
    for mut input in testkit::corpus(target).unwrap() {
        for at in 0..input.len() {
            let byte = input[at];
            for changed in [0xff, byte.wrapping_add(1)] {
                input[at] = changed;
                run(&input);
            }
            input[at] = byte;
        }
    }
}

#[test]
fn replies() {
    replay("nftables_replies", 28, fuzzed::replies);
}

/// Answers are framed as events are.
#[test]
fn events() {
    replay("nftables_replies", 28, fuzzed::events);
}

#[test]
fn requests() {
    replay("nftables_requests", 27, fuzzed::requests);
}

#[test]
fn a_whole_batch_is_taken() {
    let all: Vec<u8> = testkit::corpus("nftables_requests").unwrap().join(&0xf5);
    fuzzed::requests(&all);
}

//! The bytes that the fuzz targets have found, on a stable compiler: none of them may make anything panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::fs;
use std::path::Path;

mod fuzzed;

/// Every file of a target's corpus, and the beginnings of each up to a length. An empty corpus is noticed.
fn replay(target: &str, least: usize, prefixes: usize, run: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let files: Vec<Vec<u8>> = entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(files.len() >= least, "{} has {} files", folder.display(), files.len());
    for file in &files {
        run(file);
        for length in 0..file.len().min(prefixes) {
            run(&file[..length]);
        }
    }
}

#[test]
fn texts() {
    replay("ipset_text", 10, 64, fuzzed::text);
}

#[test]
fn replies() {
    replay("ipset_replies", 10, 8, fuzzed::replies);
}

//! `cargo xtask api`: compares the public API of each library with its list.
//!
//! Rustdoc's JSON tells what is public. Its format is unstable, so a list is only compared with the same compiler;
//! another compiler checks nothing.

use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::{cargo, tools};

/// Compare the public API of each library with its list
///
/// Compares the public API of each library, with all features, with the list in its file public-api.txt. Exit code 1: they
/// differ; the differences are printed.
///
/// A list is only held against the compiler that its first line names; with another one nothing is checked, and the exit code is 3.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Write the lists anew; the commit then says what changes for users
    #[arg(long)]
    bless: bool,
}

/// The libraries whose API is checked, lowest first.
pub(crate) const CRATES: [&str; 8] =
    ["netlink-batch", "ipvs-sys", "ipvs", "ipset", "iptables", "nftables", "kmod-probe", "proxier-core"];

/// The exit code if this compiler has no list.
const NOT_CHECKED: u8 = 3;

/// First words of a list; the compiler's version follows.
const HEAD: &str = "# Public API with all features, made by `cargo xtask api --bless` with rustc ";

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    let compiler = version(&cargo::rustc_version()?).context("rustc --version says no version")?;
    for name in CRATES.iter().filter(|_| !options.bless) {
        if let Some(other) = made_with(&fs::read_to_string(list(name))?).filter(|other| *other != compiler) {
            println!("not checked: {} was made with rustc {other}, this is {compiler}", list(name));
            return Ok(ExitCode::from(NOT_CHECKED));
        }
    }
    // Only rustdoc gets `RUSTC_BOOTSTRAP`, which allows unstable options: with it, cargo would build the dependencies
    // again.
    let mut document = cargo::command();
    document.env("RUSTDOC", tools::repository().join("xtask/src/commands/unstable-rustdoc"));
    document.env("RUSTDOCFLAGS", "-Z unstable-options --output-format json");
    document.args(["doc", "--quiet", "--workspace", "--all-features", "--no-deps", "--lib"]);
    tools::run_aloud(&mut document)?;
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).context("no folder for what cargo builds")?;
    let mut differs = false;
    for name in CRATES {
        let now = public(&target.join("doc").join(format!("{}.json", name.replace('-', "_"))))?;
        if options.bless {
            fs::write(list(name), format!("{HEAD}{compiler}\n{}\n", now.join("\n")))?;
            println!("written: {}, {} lines", list(name), now.len());
            continue;
        }
        for line in differences(&fs::read_to_string(list(name))?, &now) {
            differs = true;
            println!("{name}: {line}");
        }
    }
    if differs {
        eprintln!("xtask: the public API changed: if that is meant, cargo xtask api --bless");
    } else if !options.bless {
        println!("the public API is as listed: {}", CRATES.join(", "));
    }
    Ok(ExitCode::from(u8::from(differs)))
}

/// A library's list.
fn list(name: &str) -> String {
    format!("{}/{name}/public-api.txt", tools::repository().display())
}

/// The public API in a file of rustdoc's JSON. Derived implementations only appear as the line `impl TRAIT for TYPE`;
/// blanket and automatic ones do not appear.
fn public(json: &Path) -> Result<Vec<String>> {
    let lines = |without_derived| -> Result<Vec<String>> {
        let api = public_api::Builder::from_rustdoc_json(json)
            .sorted(true)
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .omit_auto_derived_impls(without_derived)
            .build()
            .with_context(|| format!("{}: not the JSON of a rustdoc that this program knows", json.display()))?;
        Ok(api.items().map(ToString::to_string).collect())
    };
    let written: HashSet<String> = lines(true)?.into_iter().collect();
    let mut seen = HashSet::new();
    let mut all = lines(false)?;
    all.retain(|line| {
        let implements = line.starts_with("impl") && !line.contains("core::marker::StructuralPartialEq");
        // An item that is exported twice has all its lines twice.
        (implements || written.contains(line)) && seen.insert(line.clone())
    });
    Ok(all)
}

/// The compiler's version without the patch number, since patch releases do not change rustdoc's JSON. `1.95` for
/// `rustc 1.95.0 (59807616e 2026-04-14)`; a nightly keeps its suffix, `1.97-nightly`.
fn version(text: &str) -> Option<String> {
    let full = text.strip_prefix("rustc ")?.split_whitespace().next()?;
    let (number, channel) = full.split_once('-').map_or((full, String::new()), |(a, b)| (a, format!("-{b}")));
    Some(number.rsplit_once('.')?.0.to_owned() + &channel)
}

fn made_with(list: &str) -> Option<&str> {
    list.lines().next()?.strip_prefix(HEAD)
}

/// Lines that only one of two lists has: `- removed` and `+ added`, each in its list's order.
fn differences(kept: &str, now: &[String]) -> Vec<String> {
    let kept: Vec<&str> = kept.lines().skip(1).collect();
    let gone = kept.iter().filter(|line| !now.iter().any(|other| other == *line)).map(|line| format!("- {line}"));
    let known: HashSet<&str> = kept.iter().copied().collect();
    let new = now.iter().filter(|line| !known.contains(line.as_str())).map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn read(file: &str) -> String {
        fs::read_to_string(tools::repository().join(file)).unwrap()
    }

    #[test]
    fn removed_and_new_items_are_named() {
        let kept = format!("{HEAD}1.95\npub mod a\npub fn a::f()\npub fn a::g()\n");
        let now = ["pub fn a::g()", "pub mod a", "pub fn a::f(u8)"].map(str::to_owned);
        assert_eq!(differences(&kept, &now), ["- pub fn a::f()", "+ pub fn a::f(u8)"]);
        assert_eq!(version("rustc 1.97.0-nightly (e50aa6fba 2026-05-19)").as_deref(), Some("1.97-nightly"));
    }

    /// As long as no type of neli is public, the socket can be replaced by changing one file.
    #[test]
    fn every_library_has_a_list_without_neli() {
        for name in CRATES {
            let text = fs::read_to_string(list(name)).unwrap();
            assert!(made_with(&text).is_some() && !text.contains("neli::"), "{name}");
        }
    }

    /// The documentation of netlink-batch states how many crates are below it.
    #[test]
    fn netlink_batch_has_the_number_of_dependencies_that_it_claims() {
        let words = "tree --package netlink-batch --edges normal --prefix none --locked --offline";
        let tree = tools::run(cargo::command().args(words.split(' '))).unwrap();
        // `name v1.2.3 (how it is built)`: two versions of one crate count as two.
        let crates: BTreeSet<Vec<&str>> = tree.lines().map(|line| line.split(' ').take(2).collect()).collect();
        let below = crates.len() - 1;
        for (file, words) in [("README.md", "crates are below this one"), ("src/lib.rs", "crates below this one")] {
            let text = read(&format!("netlink-batch/{file}"));
            assert!(text.contains(&format!("{below} {words}")), "{file} says another number than {below}:\n{tree}");
        }
    }
}

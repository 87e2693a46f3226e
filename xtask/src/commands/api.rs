//! `cargo xtask api`: the public API of each library, held against the list that is kept beside it.
//!
//! Rustdoc's JSON says what is public. It is an unstable format, so the lists are held against the compiler that they were
//! made with, and another one checks nothing.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::cargo;
use crate::error::{Context as _, Error, Result};
use crate::tools;

pub(crate) const HELP: &str = "\
Usage: cargo xtask api [--bless]

Compares the public API of each library, with all features, with the list in its file public-api.txt. Exit code 1: they
differ; the differences are printed.

  --bless   write the lists anew; the commit then says what changes for users

A list is only held against the compiler that its first line names; with another one nothing is checked, and the exit code is 3.
";

/// The libraries whose API is kept, from below.
pub(crate) const CRATES: [&str; 8] =
    ["netlink-batch", "ipvs-sys", "ipvs", "ipset", "iptables", "nftables", "kmod-probe", "proxier-core"];

/// A list's name in its crate's folder.
pub(super) const LIST: &str = "public-api.txt";

/// The exit code when there is no list for this compiler.
const NOT_CHECKED: u8 = 3;

/// First words of a list of the public API; the compiler's version follows.
const HEAD: &str = "# Public API with all features, made by `cargo xtask api --bless` with rustc ";

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let bless = match arguments {
        [] => false,
        [option] if option == "--bless" => true,
        _ => return Err(Error::usage("api takes --bless or nothing")),
    };
    let root = super::test::repository()?;
    let compiler = compiler()?;
    if !bless {
        for name in CRATES {
            let kept = read(&root.join(name).join(LIST))?;
            if let Some(other) = made_with(&kept).filter(|other| *other != compiler) {
                println!("not checked: {name}/{LIST} was made with rustc {other}, this is {compiler}");
                return Ok(ExitCode::from(NOT_CHECKED));
            }
        }
    }
    let lister = lister(&root)?;
    let documents = document(&root, &lister)?;
    let mut differs = false;
    for name in CRATES {
        let json = documents.join(format!("{}.json", name.replace('-', "_")));
        let now = tools::run_aloud(Command::new(&lister).arg(json))?;
        let path = root.join(name).join(LIST);
        if bless {
            fs::write(&path, format!("{HEAD}{compiler}\n{now}"))
                .context(|| format!("cannot write {}", path.display()))?;
            println!("written: {name}/{LIST}, {} lines", now.lines().count());
            continue;
        }
        for line in differences(&read(&path)?, &now) {
            differs = true;
            println!("{name}: {line}");
        }
    }
    if differs {
        eprintln!("xtask: the public API changed: if that is meant, cargo xtask api --bless");
        return Ok(ExitCode::FAILURE);
    }
    if !bless {
        println!("the public API is as listed: {}", CRATES.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).context(|| format!("cannot read {} (cargo xtask api --bless writes it)", path.display()))
}

/// The compiler's version without the patch number, `1.95`: patch releases leave rustdoc's JSON as it is.
fn compiler() -> Result<String> {
    let text = cargo::rustc_version()?;
    version(&text).ok_or_else(|| Error::new(format!("rustc --version says {:?}, which is no version", text.trim())))
}

/// `1.95` of `rustc 1.95.0 (59807616e 2026-04-14)`; a nightly's keeps its name, `1.97-nightly`.
fn version(text: &str) -> Option<String> {
    let full = text.strip_prefix("rustc ")?.split_whitespace().next()?;
    let (number, channel) = full.split_once('-').map_or((full, None), |(number, channel)| (number, Some(channel)));
    let short = number.rsplit_once('.')?.0;
    Some(channel.map_or_else(|| short.to_owned(), |channel| format!("{short}-{channel}")))
}

/// The compiler that a list was made with.
fn made_with(list: &str) -> Option<&str> {
    list.lines().next()?.strip_prefix(HEAD)
}

/// Lines that only one of two lists has: `- gone` and `+ new`, each in its list's order.
fn differences(kept: &str, now: &str) -> Vec<String> {
    let lines = |text: &str| text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
    let (kept, now) = (lines(kept), lines(now));
    let only = |lines: &[String], others: &[String], sign: char| {
        let others: BTreeSet<&String> = others.iter().collect();
        lines.iter().filter(|line| !others.contains(line)).map(|line| format!("{sign} {line}")).collect::<Vec<_>>()
    };
    [only(&kept, &now, '-'), only(&now, &kept, '+')].concat()
}

/// Builds the program that turns rustdoc's JSON into lines; gives its path.
///
/// With the flags of `cargo xtask test`, after which nothing is left to build. It is a program of its own so that the other
/// commands do without what it depends on.
fn lister(root: &Path) -> Result<PathBuf> {
    cargo::build(root, &["--quiet", "--workspace", "--all-features"], "public-api")
}

/// Writes rustdoc's JSON of all libraries; gives the folder.
///
/// Only rustdoc is told to allow unstable options (`RUSTC_BOOTSTRAP`): with that variable in its environment, cargo would
/// build the dependencies again.
fn document(root: &Path, lister: &Path) -> Result<PathBuf> {
    let target = lister.ancestors().nth(2).ok_or_else(|| Error::new("no folder for what cargo builds"))?;
    let script = target.join("rustdoc-unstable");
    let rustdoc = std::env::var_os("RUSTDOC").unwrap_or_else(|| "rustdoc".into());
    let text = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec \"$XTASK_RUSTDOC\" \"$@\"\n";
    fs::write(&script, text).context(|| format!("cannot write {}", script.display()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
        .context(|| format!("cannot make {} executable", script.display()))?;
    let mut command = cargo::command();
    command
        .current_dir(root)
        .env("RUSTDOC", &script)
        .env("XTASK_RUSTDOC", rustdoc)
        .env("RUSTDOCFLAGS", "-Z unstable-options --output-format json")
        .args(["doc", "--quiet", "--workspace", "--all-features", "--no-deps", "--lib"]);
    tools::run_aloud(&mut command)?;
    Ok(target.join("doc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_is_known_by_its_minor_version() {
        assert_eq!(version("rustc 1.95.0 (59807616e 2026-04-14)\n").as_deref(), Some("1.95"));
        assert_eq!(version("rustc 1.95.1 (abc 2026-05-01)").as_deref(), Some("1.95"));
        assert_eq!(version("rustc 1.97.0-nightly (e50aa6fba 2026-05-19)").as_deref(), Some("1.97-nightly"));
        assert_eq!(version("something else"), None);
        assert_eq!(made_with(&format!("{HEAD}1.95\npub mod a\n")), Some("1.95"));
        assert_eq!(made_with("pub mod a\n"), None);
    }

    #[test]
    fn what_is_gone_and_what_is_new_is_named() {
        let kept = format!("{HEAD}1.95\npub mod a\npub fn a::f()\npub fn a::g()\n");
        assert_eq!(
            differences(&kept, "pub mod a\npub fn a::f(u8)\npub fn a::g()\n"),
            ["- pub fn a::f()", "+ pub fn a::f(u8)"]
        );
        assert!(differences(&kept, "pub fn a::g()\npub fn a::f()\npub mod a\n").is_empty(), "the order does not count");
    }

    #[test]
    fn every_library_has_a_list() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in CRATES {
            let text = read(&root.join(name).join(LIST)).map_err(|error| error.to_string());
            assert!(text.as_deref().is_ok_and(|text| made_with(text).is_some()), "{name}: {text:?}");
        }
    }

    /// The socket is replaced by changing one file only as long as this holds.
    #[test]
    fn no_type_of_neli_is_public() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for name in CRATES {
            let text = fs::read_to_string(root.join(name).join(LIST)).unwrap_or_default();
            let found: Vec<&str> = text.lines().filter(|line| line.contains("neli::")).collect();
            assert!(!text.is_empty() && found.is_empty(), "{name}: {found:?}");
        }
    }

    /// The documentation of netlink-batch says how many crates are below it.
    #[test]
    fn netlink_batch_has_as_many_dependencies_as_it_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tree = cargo::command()
            .current_dir(&root)
            .args([
                "tree",
                "--package",
                "netlink-batch",
                "--edges",
                "normal",
                "--prefix",
                "none",
                "--locked",
                "--offline",
            ])
            .output()
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default();
        // `name v1.2.3 (how it is built)`: two versions of one crate are two.
        let crates: BTreeSet<Vec<&str>> = tree.lines().map(|line| line.split(' ').take(2).collect()).collect();
        let below = crates.iter().filter(|name| !matches!(name.as_slice(), ["" | "netlink-batch", ..])).count();
        for (file, words) in [("README.md", "crates are below it"), ("src/lib.rs", "crates below this one")] {
            let text = fs::read_to_string(root.join("netlink-batch").join(file)).unwrap_or_default();
            assert!(text.contains(&format!("{below} {words}")), "{file} says another number than {below}:\n{tree}");
        }
    }
}

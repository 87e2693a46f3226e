//! `cargo xtask package`: the libraries as a registry would hand them out.
//!
//! Strangers own the names `ipvs`, `ipset` and `iptables` on the public registry. So no crate of this repository may be published,
//! and crates elsewhere that depend on them must get these, never those.

use std::fmt::Write as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use super::api::CRATES;
use crate::{cargo, tools};

/// Files of every package besides its code.
const FILES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Files of no package: they need other crates, network namespaces, or recorded data.
const LEFT_OUT: [&str; 3] = ["tests/", "public-api.txt", "clippy.toml"];

pub(crate) fn main() -> Result<ExitCode> {
    ensure!(publishable()?.is_empty(), "not marked with publish = false: {}", publishable()?.join(", "));
    // Without a lock file, nothing asks a registry for the packages that others depend on. For the same reason cargo cannot build them itself:
    // it leaves what may not be published out of its own stand-in for a registry.
    let mut pack = cargo::command();
    pack.args("package --quiet --offline --allow-dirty --no-verify --exclude-lockfile".split(' '));
    tools::run(pack.args(CRATES.into_iter().flat_map(|name| ["--package", name])))?;
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).context("no folder for what cargo builds")?;
    // Not in the repository: cargo would take a crate there for a part of it.
    let scratch = tools::scratch()?;
    let mut patches = String::new();
    for name in CRATES {
        let member = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let package = target.join(format!("package/{member}.crate"));
        let list = tools::run(Command::new("tar").arg("-xzvf").arg(package).arg("-C").arg(scratch.path()))?;
        let wrong = wrong_files(&list.replace(&format!("{member}/"), ""));
        ensure!(wrong.is_empty(), "the package {name} {}", wrong.join(", "));
        writeln!(patches, "{name} = {{ path = {member:?} }}")?;
    }
    let manifest = format!("[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n[patch.crates-io]\n{patches}");
    fs::write(scratch.path().join("Cargo.toml"), manifest)?;
    // The versions of everything else are those of this repository: only those are at hand without a network.
    let lock = scratch.path().join("Cargo.lock");
    fs::copy(tools::repository().join("Cargo.lock"), &lock)?;
    let mut check = cargo::command();
    // The same folder for what is built: crates of others are there already.
    check.current_dir(scratch.path()).env("CARGO_TARGET_DIR", target);
    check.args("check --lib --tests --quiet --offline --workspace --all-features".split(' '));
    tools::run_aloud(&mut check)?;
    let lock = fs::read_to_string(lock)?;
    let is_foreign = |name: &&str| {
        lock.split("[[package]]").any(|of| of.contains(&format!("\nname = \"{name}\"\n")) && of.contains("\nsource = "))
    };
    let foreign: Vec<_> = CRATES.into_iter().filter(is_foreign).collect();
    ensure!(foreign.is_empty(), "crates of somebody else: {}", foreign.join(", "));
    println!("packed, unpacked, checked: {}", CRATES.join(", "));
    Ok(ExitCode::SUCCESS)
}

/// Names of the packages that `cargo publish` would send somewhere.
fn publishable() -> Result<Vec<String>> {
    let metadata = tools::run(cargo::command().args(["metadata", "--offline", "--no-deps", "--format-version=1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let packages = metadata["packages"].as_array().context("cargo metadata knows no packages")?.iter();
    let may_go =
        packages.filter(|package| package["publish"].as_array().is_none_or(|registries| !registries.is_empty()));
    Ok(may_go.map(|package| package["name"].to_string()).collect())
}

/// Files that a package lacks, or has too much.
fn wrong_files(list: &str) -> Vec<String> {
    let lacks =
        FILES.iter().filter(|file| !list.lines().any(|line| line == **file)).map(|file| format!("lacks {file}"));
    let more = LEFT_OUT.iter().filter(|start| list.lines().any(|line| line.starts_with(**start)));
    lacks.chain(more.map(|file| format!("has {file}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_here_can_be_published() {
        assert_eq!(publishable().unwrap(), <[String; 0]>::default());
    }

    #[test]
    fn a_package_has_its_licences_and_no_tests() {
        assert_eq!(wrong_files(&FILES.join("\n")), <[String; 0]>::default());
        assert_eq!(wrong_files(&(FILES[1..].join("\n") + "\ntests/a.rs")), ["lacks Cargo.toml", "has tests/"]);
    }
}

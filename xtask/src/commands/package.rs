//! `cargo xtask package`: the libraries as a registry would hand them out, and as another repository uses them.
//!
//! Strangers own the names `ipvs`, `ipset` and `iptables` on the public registry. So no crate of this repository may be published,
//! and crates elsewhere that depend on them must get these, never those.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::Value;

use super::api::CRATES;
use crate::cargo;
use crate::error::{Context as _, Error, Result};
use crate::scratch::Scratch;
use crate::tools;

pub(crate) const HELP: &str = "\
Usage: cargo xtask package

Packs each library, unpacks the packages in a temporary folder and checks them and their unit tests there, each package on the
other packages, with a crate that depends on all of them. Fails when a crate could be published, when a package lacks a file, or
when a name leads to a crate of somebody else. Needs no network.
";

/// Files of every package besides its code.
const FILES: [&str; 5] = ["Cargo.toml", "README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Files of no package: they need other crates, network namespaces, or recorded data.
const LEFT_OUT: [&str; 3] = ["tests", "public-api.txt", "clippy.toml"];

/// Code of the crate outside: one item of each library, so that each is linked.
const AGENT: &str = "\
//! A crate of another repository.

/// One thing of each library.
pub fn uses() -> [String; 8] {
    [
        format!(\"{:?}\", netlink_batch::Protocol::Route),
        ipvs_sys::uapi::GENL_NAME.to_owned(),
        ipvs::Scheduler::RoundRobin.to_string(),
        ipset::SetType::HashIpPort.to_string(),
        iptables::TableName::FILTER.to_string(),
        nftables::Family::Inet.to_string(),
        format!(\"{:?}\", kmod_probe::Families::Dual),
        format!(\"{:?}\", proxier_core::config::Config::default()),
    ]
}
";

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    if !arguments.is_empty() {
        return Err(Error::usage("package takes no arguments"));
    }
    let root = super::test::repository()?;
    let workspace = metadata(&root)?;
    let publishable = publishable(&workspace);
    if !publishable.is_empty() {
        return Ok(failed(&format!("not marked with publish = false: {}", publishable.join(", "))));
    }
    let target = Path::new(workspace["target_directory"].as_str().unwrap_or("target"));
    // Without a lock file, nothing asks a registry for the packages that others depend on.
    let mut pack = cargo::command();
    pack.current_dir(&root).args([
        "package",
        "--quiet",
        "--offline",
        "--allow-dirty",
        "--no-verify",
        "--exclude-lockfile",
    ]);
    tools::run(pack.args(CRATES.into_iter().flat_map(|name| ["--package", name])))?;
    // Not in the repository: cargo would take a crate there for a part of it.
    let scratch = Scratch::new()?;
    let (mut members, mut missing) = (vec!["agent".to_owned()], Vec::new());
    let (mut patches, mut dependencies) = (String::new(), String::new());
    for name in CRATES {
        let member = format!("{name}-{}", version(&workspace, name)?);
        let package = target.join("package").join(format!("{member}.crate"));
        tools::run(Command::new("tar").arg("-xzf").arg(package).arg("-C").arg(scratch.path()))?;
        missing.extend(missing_files(name, &scratch.path().join(&member)));
        let _infallible = writeln!(patches, "{name} = {{ path = {member:?} }}");
        let _infallible = writeln!(dependencies, "{name} = {{ path = \"../{member}\" }}");
        members.push(member);
    }
    if !missing.is_empty() {
        return Ok(failed(&missing.join("; ")));
    }
    let write = |file: &str, text: &str| {
        let path = scratch.path().join(file);
        fs::write(&path, text).context(|| format!("cannot write {}", path.display()))
    };
    let manifest = format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[patch.crates-io]\n{patches}");
    write("Cargo.toml", &manifest)?;
    fs::create_dir_all(scratch.path().join("agent/src")).context(|| "cannot create the crate outside".to_owned())?;
    let package = "[package]\nname = \"agent\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n";
    write("agent/Cargo.toml", &format!("{package}{dependencies}"))?;
    write("agent/src/lib.rs", AGENT)?;
    // The versions of everything else are those of this repository: only those are at hand without a network.
    let lock = scratch.path().join("Cargo.lock");
    fs::copy(root.join("Cargo.lock"), &lock).context(|| "cannot copy Cargo.lock".to_owned())?;
    let mut check = cargo::command();
    // The same folder for what is built: crates of others are there already.
    check.current_dir(scratch.path()).env("CARGO_TARGET_DIR", target);
    check.args(["check", "--lib", "--tests", "--quiet", "--offline", "--workspace", "--all-features"]);
    tools::run_aloud(&mut check)?;
    let lock = fs::read_to_string(&lock).context(|| "cannot read Cargo.lock".to_owned())?;
    let foreign = foreign(&lock);
    if !foreign.is_empty() {
        return Ok(failed(&format!("crates of somebody else: {}", foreign.join(", "))));
    }
    println!("packed, unpacked, checked; used from outside: {}", CRATES.join(", "));
    Ok(ExitCode::SUCCESS)
}

fn failed(why: &str) -> ExitCode {
    eprintln!("xtask: {why}");
    ExitCode::FAILURE
}

/// Cargo's metadata of this workspace.
fn metadata(root: &Path) -> Result<Value> {
    let mut command = cargo::command();
    let text =
        tools::run_aloud(command.current_dir(root).args(["metadata", "--offline", "--no-deps", "--format-version=1"]))?;
    serde_json::from_str(&text).context(|| "cannot read what cargo metadata says".to_owned())
}

/// Names of the packages that `cargo publish` would send somewhere.
fn publishable(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let may_go = |package: &&Value| package["publish"].as_array().is_none_or(|registries| !registries.is_empty());
    packages.iter().filter(may_go).map(|package| package["name"].as_str().unwrap_or("?").to_owned()).collect()
}

fn version<'a>(metadata: &'a Value, name: &str) -> Result<&'a str> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = packages.iter().find(|package| package["name"] == name).and_then(|package| package["version"].as_str());
    found.ok_or_else(|| Error::new(format!("cargo metadata does not know {name}")))
}

/// Files that a package lacks, or has too much.
fn missing_files(name: &str, folder: &Path) -> Vec<String> {
    // Neither of them a link, which would lead nowhere.
    let is_file = |file: &str| fs::symlink_metadata(folder.join(file)).is_ok_and(|found| found.is_file());
    let lacks = FILES.iter().filter(|file| !is_file(file)).map(|file| format!("the package {name} lacks {file}"));
    let left_out = LEFT_OUT.iter().filter(|file| folder.join(file).exists());
    lacks.chain(left_out.map(|file| format!("the package {name} has {file}"))).collect()
}

/// Our names in a lock file with a source: those are crates of another registry or repository.
fn foreign(lock: &str) -> Vec<String> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='))?;
        Some(line.trim().trim_matches('"').to_owned())
    };
    lock.split("[[package]]")
        .filter_map(|block| Some((value(block, "name")?, value(block, "source")?)))
        .filter(|(name, _)| CRATES.contains(&name.as_str()))
        .map(|(name, source)| format!("{name} of {source}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_here_can_be_published() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut metadata = metadata(&root).unwrap();
        assert_eq!(publishable(&metadata), Vec::<String>::new());
        assert!(CRATES.iter().all(|name| version(&metadata, name).is_ok()));
        metadata["packages"][0]["publish"] = Value::Null;
        assert_eq!(publishable(&metadata).len(), 1, "that of the first could be");
    }

    #[test]
    fn a_stranger_in_a_lock_file_is_found() {
        let lock = "version = 4\n\n[[package]]\nname = \"ipvs\"\nversion = \"0.1.0\"\n\n\
            [[package]]\nname = \"ipset\"\nversion = \"0.1.0\"\nsource = \"registry+https://example.test\"\nchecksum = \"00\"\n\n\
            [[package]]\nname = \"syn\"\nversion = \"2.0.0\"\nsource = \"registry+https://example.test\"\n";
        assert_eq!(foreign(lock), ["ipset of registry+https://example.test"]);
    }

    #[test]
    fn a_package_has_its_licences_and_no_tests() {
        let scratch = Scratch::new().unwrap();
        let folder = scratch.path();
        for file in FILES {
            fs::write(folder.join(file), "").unwrap();
        }
        assert_eq!(missing_files("a", folder), Vec::<String>::new());
        fs::remove_file(folder.join("LICENSE-MIT")).unwrap();
        std::os::unix::fs::symlink("../LICENSE-MIT", folder.join("LICENSE-MIT")).unwrap();
        fs::create_dir(folder.join("tests")).unwrap();
        assert_eq!(missing_files("a", folder), ["the package a lacks LICENSE-MIT", "the package a has tests"]);
    }
}

//! `cargo xtask package`: the libraries as a registry would hand them out, and as another repository uses them.
//!
//! Strangers own the names `ipvs`, `ipset` and `iptables` on the public registry. So no crate of this repository may be published,
//! and crates elsewhere that depend on them must get these, never those.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::Value;

use super::api::CRATES;
use crate::cargo;
use crate::error::{Context as _, Error, Result};

pub(crate) const HELP: &str = "\
Usage: cargo xtask package

Packs each library, unpacks the packages in a temporary folder and checks them and their unit tests there, each package on the
other packages. Then checks a crate outside this repository that depends on all libraries by path. Fails when a crate could be
published, when a package lacks a file, or when a name leads to a crate of somebody else. Needs no network.
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
        eprintln!("xtask: not marked with publish = false: {}", publishable.join(", "));
        return Ok(ExitCode::FAILURE);
    }
    let target = PathBuf::from(workspace["target_directory"].as_str().unwrap_or("target"));
    // Not in the repository: cargo would take a crate there for a part of it.
    let scratch = Scratch::new()?;
    let packages = pack(&publishable_copy(&root, &scratch.0.join("repository"))?, &target)?;
    let unpacked = scratch.0.join("packages");
    for name in CRATES {
        unpack(packages.get(name).ok_or_else(|| Error::new(format!("{name} was not packed")))?, &unpacked)?;
    }
    let mut missing = Vec::new();
    for name in CRATES {
        let folder = unpacked.join(format!("{name}-{}", version(&workspace, name)?));
        missing.extend(missing_files(name, &folder));
    }
    if !missing.is_empty() {
        eprintln!("xtask: {}", missing.join("; "));
        return Ok(ExitCode::FAILURE);
    }
    write(&unpacked.join("Cargo.toml"), &workspace_of_packages(&workspace)?)?;
    let agent = scratch.0.join("agent");
    write(&agent.join("Cargo.toml"), &manifest_of_agent(&root))?;
    write(&agent.join("src/lib.rs"), AGENT)?;
    for (folder, command) in [(&unpacked, &["check", "--lib", "--tests"][..]), (&agent, &["check", "--lib"])] {
        // The versions of everything else are those of this repository: only those are at hand without a network.
        fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).context(|| "cannot copy Cargo.lock".to_owned())?;
        // The same folder for what is built: crates of others are there already.
        cargo_in(folder, &target, command)?;
        let lock = fs::read_to_string(folder.join("Cargo.lock")).context(|| "cannot read Cargo.lock".to_owned())?;
        let foreign = foreign(&lock);
        if !foreign.is_empty() {
            eprintln!("xtask: crates of somebody else in {}: {}", folder.display(), foreign.join(", "));
            return Ok(ExitCode::FAILURE);
        }
    }
    println!("packed, unpacked, checked; used from outside: {}", CRATES.join(", "));
    Ok(ExitCode::SUCCESS)
}

/// Cargo's metadata of this workspace.
fn metadata(root: &Path) -> Result<Value> {
    let output = cargo::command()
        .current_dir(root)
        .args(["metadata", "--offline", "--no-deps", "--format-version=1"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context(|| "cannot start cargo".to_owned())?;
    if !output.status.success() {
        return Err(Error::new("cargo metadata failed"));
    }
    serde_json::from_slice(&output.stdout).context(|| "cannot read what cargo metadata says".to_owned())
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

/// A copy of the repository whose crates may be published: others do not find each other when they are packed in one run.
fn publishable_copy(root: &Path, copy: &Path) -> Result<PathBuf> {
    let listed = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context(|| "cannot start git".to_owned())?;
    if !listed.status.success() {
        return Err(Error::new(format!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr).trim_end())));
    }
    for name in String::from_utf8_lossy(&listed.stdout).split('\0').filter(|name| !name.is_empty()) {
        let (from, to) = (root.join(name), copy.join(name));
        // Some may be deleted; links to folders have nothing that a package needs.
        if from.is_file() {
            let folder = to.parent().unwrap_or(copy);
            fs::create_dir_all(folder).context(|| format!("cannot create {}", folder.display()))?;
            fs::copy(&from, &to).context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    let manifest = copy.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).context(|| format!("cannot read {}", manifest.display()))?;
    write(&manifest, &text.replace("\npublish = false\n", "\npublish = [\"crates-io\"]\n"))?;
    Ok(copy.to_owned())
}

/// Packs all libraries in one run, in which each finds the others; gives the files.
fn pack(root: &Path, target: &Path) -> Result<BTreeMap<&'static str, PathBuf>> {
    let folder = target.join("package");
    let mut command = cargo::command();
    // With a registry named, even one that is never asked, cargo lets the packages find each other.
    command.args(["package", "--quiet", "--offline", "--allow-dirty", "--no-verify", "--registry", "crates-io"]);
    for name in CRATES {
        command.args(["--package", name]);
    }
    command.arg("--target-dir").arg(target);
    let status = command.current_dir(root).status().context(|| "cannot start cargo".to_owned())?;
    if !status.success() {
        return Err(Error::new("cargo package failed"));
    }
    let metadata = metadata(root)?;
    let file = |name: &'static str| Ok((name, folder.join(format!("{name}-{}.crate", version(&metadata, name)?))));
    CRATES.into_iter().map(file).collect()
}

fn unpack(package: &Path, into: &Path) -> Result<()> {
    fs::create_dir_all(into).context(|| format!("cannot create {}", into.display()))?;
    let status = Command::new("tar").arg("-xzf").arg(package).arg("-C").arg(into).status();
    if status.context(|| "cannot start tar".to_owned())?.success() {
        return Ok(());
    }
    Err(Error::new(format!("cannot unpack {}", package.display())))
}

/// Files that a package lacks, or has too much.
fn missing_files(name: &str, folder: &Path) -> Vec<String> {
    // Neither of them a link, which would lead nowhere.
    let is_file = |file: &str| fs::symlink_metadata(folder.join(file)).is_ok_and(|found| found.is_file());
    let lacks = FILES.iter().filter(|file| !is_file(file)).map(|file| format!("the package {name} lacks {file}"));
    let left_out = LEFT_OUT.iter().filter(|file| folder.join(file).exists());
    lacks.chain(left_out.map(|file| format!("the package {name} has {file}"))).collect()
}

/// A workspace of the unpacked packages, in which each depends on the others as unpacked.
fn workspace_of_packages(metadata: &Value) -> Result<String> {
    let mut members = Vec::new();
    let mut patches = String::new();
    for name in CRATES {
        let folder = format!("{name}-{}", version(metadata, name)?);
        let _infallible = writeln!(patches, "{name} = {{ path = {folder:?} }}");
        members.push(folder);
    }
    Ok(format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[patch.crates-io]\n{patches}"))
}

fn manifest_of_agent(root: &Path) -> String {
    let mut text =
        "[package]\nname = \"agent\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n".to_owned();
    for name in CRATES {
        let _infallible = writeln!(text, "{name} = {{ path = \"{}\" }}", root.join(name).display());
    }
    text
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

fn cargo_in(folder: &Path, target: &Path, command: &[&str]) -> Result<()> {
    let status = cargo::command()
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .args(command)
        .args(["--quiet", "--offline", "--workspace"])
        // The crate outside has no features.
        .args(folder.ends_with("packages").then_some("--all-features"))
        .status()
        .context(|| "cannot start cargo".to_owned())?;
    if status.success() {
        return Ok(());
    }
    Err(Error::new(format!("cargo {} failed in {}", command.join(" "), folder.display())))
}

fn write(path: &Path, text: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).context(|| format!("cannot create {}", folder.display()))?;
    }
    fs::write(path, text).context(|| format!("cannot write {}", path.display()))
}

/// A temporary folder, removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("xtask-package-{}", std::process::id()));
        fs::create_dir(&path).context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_could_be_published_is_named() {
        let metadata = serde_json::json!({"packages": [
            {"name": "a", "publish": []}, {"name": "b", "publish": null}, {"name": "c", "publish": ["private"]}, {"name": "d"},
        ]});
        assert_eq!(publishable(&metadata), ["b", "c", "d"]);
    }

    #[test]
    fn nothing_here_can_be_published() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let metadata = metadata(&root).unwrap();
        assert_eq!(publishable(&metadata), Vec::<String>::new());
        assert!(CRATES.iter().all(|name| version(&metadata, name).is_ok()));
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
        for file in FILES {
            write(&scratch.0.join(file), "").unwrap();
        }
        assert_eq!(missing_files("a", &scratch.0), Vec::<String>::new());
        fs::remove_file(scratch.0.join("LICENSE-MIT")).unwrap();
        std::os::unix::fs::symlink("../LICENSE-MIT", scratch.0.join("LICENSE-MIT")).unwrap();
        write(&scratch.0.join("tests/kernel.rs"), "").unwrap();
        assert_eq!(missing_files("a", &scratch.0), ["the package a lacks LICENSE-MIT", "the package a has tests"]);
    }
}

//! `cargo xtask package`: packs the libraries for a registry.
//!
//! On the public registry, `ipvs`, `ipset` and `iptables` belong to other authors. So published packages have prefixed
//! names, while directories and the names in `use` stay. They are built from copies below target/publish, so nothing in
//! the repository itself can be published by mistake.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;
use serde_json::Value;

use super::api::CRATES;
use crate::{cargo, tools};

/// Files of every package besides its code.
const FILES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Files of no package: they need other crates, network namespaces, or recorded data.
const LEFT_OUT: [&str; 3] = ["tests/", "public-api.txt", "clippy.toml"];

/// How the root `Cargo.toml` configures published packages: `[workspace.metadata.publish]`.
struct Scheme {
    prefix: String,
    repository: Option<String>,
}

impl Scheme {
    fn read(metadata: &Value) -> Result<Self> {
        let publish = &metadata["metadata"]["publish"];
        let prefix = publish["prefix"].as_str().context("Cargo.toml has no workspace.metadata.publish.prefix")?;
        let repository = publish["repository"].as_str().map(str::to_owned);
        Ok(Self { prefix: prefix.to_owned(), repository })
    }

    fn name(&self, of: &str) -> String {
        if of.starts_with(&self.prefix) { of.to_owned() } else { self.prefix.clone() + of }
    }

    /// The manifest of a library under its published name. Tests need this repository, so dependencies of tests are
    /// removed.
    fn manifest(&self, of: &str, text: &str) -> Result<String> {
        let name = self.name(of);
        let mut out = String::new();
        for line in text.lines() {
            let is_of_tests = line.starts_with("testkit") || line.starts_with(&format!("{of} = {{ path = \".\""));
            if line == format!("name = \"{of}\"") {
                writeln!(out, "name = \"{name}\"\ndocumentation = \"https://docs.rs/{name}\"")?;
                if let Some(url) = &self.repository {
                    writeln!(out, "repository = \"{url}\"\nhomepage = \"{url}\"")?;
                }
            } else if line == "[package.metadata.docs.rs]" && name != of {
                writeln!(out, "[lib]\nname = \"{}\"\n\n{line}", of.replace('-', "_"))?;
            } else if !is_of_tests && line != "publish.workspace = true" {
                writeln!(out, "{line}")?;
            }
        }
        ensure!(out.contains(&format!("name = \"{name}\"\n")), "{of}/Cargo.toml has no line name = \"{of}\"");
        ensure!(name == of || out.contains("\n[lib]\n"), "{of}/Cargo.toml has no [package.metadata.docs.rs]");
        Ok(out)
    }

    /// The manifest of the workspace of all libraries.
    fn workspace(&self, text: &str) -> Result<String> {
        let (head, _) = text.split_once("\n[profile.").context("Cargo.toml has no profiles")?;
        let (_, shared) = head.split_once("[workspace.package]").context("Cargo.toml has no [workspace.package]")?;
        let members = CRATES.map(|name| format!("{name:?}")).join(", ");
        let mut out = format!("[workspace]\nresolver = \"3\"\nmembers = [{members}]\n\n[workspace.package]");
        for line in shared.lines() {
            let of = CRATES.into_iter().find(|name| line.starts_with(&format!("{name} = {{ path")));
            if let Some(of) = of {
                writeln!(out, "{}", line.replace("{ path", &format!("{{ package = {:?}, path", self.name(of))))?;
            } else if line != "publish = false" && !line.starts_with("testkit") {
                writeln!(out, "{line}")?;
            }
        }
        Ok(out)
    }
}

pub(crate) fn main() -> Result<ExitCode> {
    let metadata = metadata()?;
    let open = publishable(&metadata)?;
    ensure!(open.is_empty(), "not marked with publish = false: {}", open.join(", "));
    let scheme = Scheme::read(&metadata)?;
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).context("no folder for what cargo builds")?;
    let staged = target.join("publish");
    stage(&scheme, &staged)?;
    // Without a lock file, nothing asks a registry for the packages on which others depend, so cargo cannot build them
    // itself.
    let mut pack = cargo::command();
    pack.args("package --quiet --offline --allow-dirty --no-verify --exclude-lockfile --workspace".split(' '));
    tools::run(pack.current_dir(&staged).env("CARGO_TARGET_DIR", target))?;
    check(&scheme, target)?;
    compare_with_last_release()?;
    if scheme.repository.is_none() {
        println!("not ready to be published: set workspace.metadata.publish.repository in Cargo.toml");
        return Ok(ExitCode::SUCCESS);
    }
    println!("to publish, in this order:");
    for name in CRATES {
        println!("cargo publish --manifest-path {}", staged.join(name).join("Cargo.toml").display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies the contents of the packages, with the repository's licences.
fn stage(scheme: &Scheme, staged: &Path) -> Result<()> {
    let root = tools::repository();
    if staged.exists() {
        fs::remove_dir_all(staged)?;
    }
    for name in CRATES {
        let list = ["package", "--list", "--offline", "--allow-dirty", "--exclude-lockfile", "--package", name];
        for file in tools::run(cargo::command().args(list))?.lines() {
            let (from, to) = (root.join(name).join(file), staged.join(name).join(file));
            if from.is_file() && !file.starts_with("Cargo.toml") {
                fs::create_dir_all(to.parent().context("a file without a folder")?)?;
                fs::copy(from, to)?;
            }
        }
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            fs::copy(root.join(licence), staged.join(name).join(licence))?;
        }
        let manifest = scheme.manifest(name, &fs::read_to_string(root.join(name).join("Cargo.toml"))?)?;
        fs::write(staged.join(name).join("Cargo.toml"), manifest)?;
    }
    fs::write(staged.join("Cargo.toml"), scheme.workspace(&fs::read_to_string(root.join("Cargo.toml"))?)?)?;
    // Other dependencies have the versions of this repository's lock file, which are available without a network.
    fs::copy(root.join("Cargo.lock"), staged.join("Cargo.lock"))?;
    Ok(())
}

/// Unpacks the packages, and builds each alone and all together.
fn check(scheme: &Scheme, target: &Path) -> Result<()> {
    // Outside the repository, or cargo would treat a crate there as part of it.
    let scratch = tools::scratch()?;
    let mut patches = String::new();
    for of in CRATES {
        let name = scheme.name(of);
        let member = format!("{name}-{}", env!("CARGO_PKG_VERSION"));
        let package = target.join(format!("package/{member}.crate"));
        // With today's times (-m): a package's files have all the same, so cargo would take an earlier check's for these.
        let list = tools::run(Command::new("tar").arg("-xmzvf").arg(package).arg("-C").arg(scratch.path()))?;
        let folder = scratch.path().join(&member);
        let wrong = wrong_files(&list.replace(&format!("{member}/"), ""));
        ensure!(wrong.is_empty(), "the package {name} {}", wrong.join(", "));
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let is_same = fs::read(folder.join(licence))? == fs::read(tools::repository().join(licence))?;
            ensure!(is_same, "the package {name} has another {licence} than the repository");
        }
        for link in links(&fs::read_to_string(folder.join("README.md"))?) {
            ensure!(folder.join(&link).exists(), "the README of {name} links to {link}, which the package lacks");
        }
        writeln!(patches, "{name} = {{ path = {member:?} }}")?;
    }
    let manifest = format!("[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n[patch.crates-io]\n{patches}");
    fs::write(scratch.path().join("Cargo.toml"), manifest)?;
    let lock = scratch.path().join("Cargo.lock");
    fs::copy(tools::repository().join("Cargo.lock"), &lock)?;
    let check = |words: &[&str]| {
        let mut check = cargo::command();
        // The same target directory: other crates are already built there.
        check.current_dir(scratch.path()).env("CARGO_TARGET_DIR", target);
        tools::run_aloud(check.args(["check", "--quiet", "--offline", "--lib"]).args(words))
    };
    check(&["--tests", "--workspace", "--all-features"])?;
    for of in CRATES {
        check(&["--package", &scheme.name(of)]).with_context(|| format!("{of} alone, with its default features"))?;
    }
    let lock = fs::read_to_string(lock)?;
    let is_foreign = |name: &&str| {
        lock.split("[[package]]").any(|of| of.contains(&format!("\nname = \"{name}\"\n")) && of.contains("\nsource = "))
    };
    let published = CRATES.map(|of| scheme.name(of));
    let foreign: Vec<_> = CRATES.into_iter().chain(published.iter().map(String::as_str)).filter(is_foreign).collect();
    ensure!(foreign.is_empty(), "crates of somebody else: {}", foreign.join(", "));
    println!("packed, unpacked, checked: {}", published.join(", "));
    Ok(())
}

/// Compares the libraries with the last release by cargo-semver-checks, if there is one.
fn compare_with_last_release() -> Result<()> {
    let mut describe = Command::new("git");
    describe.current_dir(tools::repository()).args(["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]);
    let Ok(tag) = tools::run(&mut describe) else {
        println!("not compared with the last release: there is no tag yet");
        return Ok(());
    };
    if tools::find("cargo-semver-checks").is_none() {
        println!("not compared with the last release: cargo-semver-checks is not installed");
        return Ok(());
    }
    let mut compare = cargo::command();
    compare.args(["semver-checks", "--all-features", "--baseline-rev", tag.trim()]);
    match tools::run_aloud(compare.args(CRATES.into_iter().flat_map(|name| ["--package", name]))) {
        Ok(_) => Ok(()),
        Err(error) => bail!("the public API breaks what {} promised: {error}", tag.trim()),
    }
}

fn metadata() -> Result<Value> {
    let metadata = tools::run(cargo::command().args(["metadata", "--offline", "--no-deps", "--format-version=1"]))?;
    Ok(serde_json::from_str(&metadata)?)
}

/// Names of this repository's packages that `cargo publish` could publish.
fn publishable(metadata: &Value) -> Result<Vec<String>> {
    let packages = metadata["packages"].as_array().context("cargo metadata knows no packages")?.iter();
    let may_go =
        packages.filter(|package| package["publish"].as_array().is_none_or(|registries| !registries.is_empty()));
    Ok(may_go.map(|package| package["name"].to_string()).collect())
}

/// Files that a package lacks or should not have.
fn wrong_files(list: &str) -> Vec<String> {
    let lacks =
        FILES.iter().filter(|file| !list.lines().any(|line| line == **file)).map(|file| format!("lacks {file}"));
    let more = LEFT_OUT.iter().filter(|start| list.lines().any(|line| line.starts_with(**start)));
    lacks.chain(more.map(|file| format!("has {file}"))).collect()
}

/// Files that a text in Markdown links to.
fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let files = targets.map(|(target, _)| target.split('#').next().unwrap_or(target));
    files.filter(|file| !file.is_empty() && !file.contains("://")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_crate_can_be_published_from_here() {
        assert_eq!(publishable(&metadata().unwrap()).unwrap(), <[String; 0]>::default());
    }

    #[test]
    fn a_package_has_its_licences_and_no_tests() {
        assert_eq!(wrong_files(&FILES.join("\n")), <[String; 0]>::default());
        assert_eq!(wrong_files(&(FILES[1..].join("\n") + "\ntests/a.rs")), ["lacks Cargo.toml", "has tests/"]);
    }

    #[test]
    fn published_names_have_the_prefix_once_and_keep_the_name_in_use() {
        let scheme = Scheme { prefix: "proxier-".to_owned(), repository: Some("https://example.org/x".to_owned()) };
        assert_eq!(["ipvs-sys", "proxier-core"].map(|of| scheme.name(of)), ["proxier-ipvs-sys", "proxier-core"]);
        let text = "[package]\nname = \"ipvs-sys\"\npublish.workspace = true\n\n[package.metadata.docs.rs]\nall-features = true\n\n\
            [dev-dependencies]\nipvs-sys = { path = \".\", features = [\"x\"] }\nproptest.workspace = true\ntestkit.workspace = true\n";
        assert_eq!(
            scheme.manifest("ipvs-sys", text).unwrap(),
            "[package]\nname = \"proxier-ipvs-sys\"\ndocumentation = \"https://docs.rs/proxier-ipvs-sys\"\n\
             repository = \"https://example.org/x\"\nhomepage = \"https://example.org/x\"\n\n\
             [lib]\nname = \"ipvs_sys\"\n\n[package.metadata.docs.rs]\nall-features = true\n\n[dev-dependencies]\nproptest.workspace = true\n"
        );
        assert!(scheme.manifest("ipvs", text).is_err());
    }

    #[test]
    fn links_of_a_readme_are_files() {
        let text = "[a](../ipvs) [b](KERNELS.md#part) [c](https://example.org) [d](#here) `x`](y)";
        assert_eq!(links(text), ["../ipvs", "KERNELS.md", "y"]);
    }
}

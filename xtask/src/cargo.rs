//! Runs cargo from a program that cargo started.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::tools;

/// A cargo command in a user's environment.
pub(crate) fn command() -> Command {
    as_typed(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()).as_ref())
}

/// A program in a user's environment.
///
/// `cargo run` sets variables about the package (`CARGO_PKG_NAME` and others). Some build scripts (ring's) run again
/// when these change, and with them everything that depends on them.
pub(crate) fn as_typed(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(b"CARGO_PKG_") || bytes.starts_with(b"CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
    command.current_dir(tools::repository());
    command
}

/// Line of `rustc --version`.
pub(crate) fn rustc_version() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    Ok(tools::run_aloud(Command::new(rustc).arg("--version"))?.trim().to_owned())
}

/// A program that cargo built.
#[derive(Debug)]
pub(crate) struct Artifact {
    pub(crate) name: String,
    /// `test`, `bin`, `lib` and so on.
    pub(crate) kind: String,
    pub(crate) is_test: bool,
    pub(crate) source: PathBuf,
    /// The crate's directory, in which tests start.
    pub(crate) folder: PathBuf,
    pub(crate) file: PathBuf,
}

impl Artifact {
    /// The program that a line of cargo's messages is about.
    fn parse(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let target = &message["target"];
        Some(Self {
            file: message["executable"].as_str()?.into(),
            name: target["name"].as_str()?.to_owned(),
            kind: target["kind"][0].as_str()?.to_owned(),
            is_test: message["profile"]["test"].as_bool()?,
            source: target["src_path"].as_str()?.into(),
            folder: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    }

    /// Name of the crate, which is that of its directory.
    pub(crate) fn package(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

/// Runs `cargo build` or similar; returns the programs that it built.
pub(crate) fn artifacts(command: &mut Command) -> Result<Vec<Artifact>> {
    command.arg("--message-format=json-render-diagnostics").env("BENCHES_RUSTC", rustc_version()?);
    Ok(tools::run_aloud(command)?.lines().filter_map(Artifact::parse).collect())
}

/// The path of a built program that is not a test.
pub(crate) fn program(built: &[Artifact], name: &str) -> Result<PathBuf> {
    let found = built.iter().rfind(|artifact| artifact.name == name && !artifact.is_test);
    found.map(|artifact| artifact.file.clone()).with_context(|| format!("{name} was not built"))
}

/// Builds a program of a package with a workspace profile; returns its path.
pub(crate) fn build(package: &str, name: &str, profile: &str) -> Result<PathBuf> {
    program(&artifacts(command().args(["build", "--profile", profile, "--package", package, "--bin", name]))?, name)
}

/// Builds everything with all features, unoptimised: tests, examples and programs, in one run of cargo.
///
/// Everything that needs no optimised program uses these: two commands that select crates or features differently would
/// build much of it twice.
pub(crate) fn build_all(selection: &[String]) -> Result<Vec<Artifact>> {
    artifacts(command().args(["build", "--all-targets", "--all-features"]).args(selection))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]
mod tests {
    use super::*;

    /// Fakes of the kernel are for tests.
    #[test]
    fn program_is_built_without_features_for_tests() {
        let features_with = |edges: &str| -> Vec<String> {
            let options = ["tree", "--offline", "--locked", "--package", "proxier-demo", "--prefix", "none", "--edges"];
            let printed = tools::run(command().args(options).arg(edges)).unwrap();
            printed.lines().filter(|line| line.contains("feature \"testing\"")).map(str::to_owned).collect()
        };
        assert_eq!(features_with("features,no-dev"), Vec::<String>::new());
        assert!(!features_with("features").is_empty(), "cargo would print them");
    }
}

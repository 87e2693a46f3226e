//! Cargo, started by a program that cargo started.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::tools;

/// Cargo as this program was started by it, or as it is found.
fn path() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A run of cargo in the environment that a person has who types it.
///
/// `cargo run` tells this program about its package (`CARGO_PKG_NAME` and others). Some build scripts (ring's) build again
/// when these variables change, and with them everything that depends on them: once for us, once for a person.
pub(crate) fn command() -> Command {
    as_typed(Command::new(path()))
}

/// The same by way of a line of `sh`, whose `$0` is cargo and whose `$@` are the arguments.
pub(crate) fn in_shell(line: &str) -> Command {
    let mut command = as_typed(Command::new("sh"));
    command.args(["-c", line]).arg(path());
    command
}

/// Builds a program; gives its path.
pub(crate) fn build(root: &Path, arguments: &[&str], name: &str) -> Result<PathBuf> {
    build_by(command(), root, arguments, name)
}

/// Builds a program by a run of cargo that has its environment; gives the program's path.
pub(crate) fn build_by(mut command: Command, root: &Path, arguments: &[&str], name: &str) -> Result<PathBuf> {
    command.current_dir(root).env("BENCHES_RUSTC", rustc_version()?.trim());
    command.arg("build").args(arguments).args(["--bin", name, "--message-format=json-render-diagnostics"]);
    let messages = tools::run_aloud(&mut command)?;
    let program = messages.lines().filter_map(|line| executable(line, name)).next_back();
    program.ok_or_else(|| Error::new(format!("cargo names no program {name}")))
}

/// Builds a program of a package, optimised; gives its path.
pub(crate) fn build_release(root: &Path, package: &str, name: &str) -> Result<PathBuf> {
    build(root, &["--release", "--package", package], name)
}

/// Line of `rustc --version`.
pub(crate) fn rustc_version() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    tools::run_aloud(Command::new(rustc).arg("--version"))
}

/// The program a line of cargo's messages is about, if it is this one.
fn executable(line: &str, wanted: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let name = message.get("target")?.get("name")?.as_str()?;
    let path = message.get("executable")?.as_str()?;
    (name == wanted).then(|| path.into())
}

fn as_typed(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if is_about_our_package(&name) {
            command.env_remove(name);
        }
    }
    command
}

fn is_about_our_package(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b"CARGO_PKG_") || name.starts_with(b"CARGO_MANIFEST_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let message = |name: &str, executable: &str| {
            format!(r#"{{"reason":"compiler-artifact","target":{{"name":"{name}"}},"executable":{executable}}}"#)
        };
        let found = |line: &str| executable(line, "proxier-demo");
        assert_eq!(found(&message("proxier-demo", "\"/t/p\"")).as_deref(), Some(Path::new("/t/p")));
        for line in [&message("proxier-demo", "null"), &message("xtask", "\"/t/x\""), "Compiling"] {
            assert_eq!(found(line), None);
        }
    }

    #[test]
    fn nothing_about_our_package_is_handed_on() {
        let ours = ["CARGO_PKG_NAME", "CARGO_PKG_VERSION", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH"];
        assert!(ours.iter().all(|name| is_about_our_package(OsStr::new(name))));
        let command = command();
        let removed = |name: &str| command.get_envs().any(|(key, value)| key == name && value.is_none());
        assert!(ours.iter().all(|name| removed(name) == std::env::var_os(name).is_some()));
        assert!(!removed("PATH") && !removed("CARGO_TARGET_DIR") && !removed("CARGO_INCREMENTAL"));
    }
}

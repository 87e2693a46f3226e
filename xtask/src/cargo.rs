//! Cargo, started by a program that cargo started.

use std::ffi::{OsStr, OsString};
use std::process::Command;

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
    fn nothing_about_our_package_is_handed_on() {
        let ours = ["CARGO_PKG_NAME", "CARGO_PKG_VERSION", "CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH"];
        assert!(ours.iter().all(|name| is_about_our_package(OsStr::new(name))));
        let command = command();
        let removed = |name: &str| command.get_envs().any(|(key, value)| key == name && value.is_none());
        assert!(ours.iter().all(|name| removed(name) == std::env::var_os(name).is_some()));
        assert!(!removed("PATH") && !removed("CARGO_TARGET_DIR") && !removed("CARGO_INCREMENTAL"));
    }
}

//! `cargo xtask emulate`: tests of the low crates, compiled for another processor, under QEMU's user emulation. The kernel below is this
//! machine's, and the emulator translates few netlink families, so tests that need a kernel are left out.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::dist::{Arch, cross_cargo};
use crate::error::{Context as _, Error, Result};
use crate::tools;

pub(crate) const HELP: &str = "\
Usage: cargo xtask emulate [s390x|arm64]

Compiles the tests of the crates that speak to the kernel for s390x (default), whose byte order is the other one, or for
arm64, in a Debian sid root, which is made in the cache (1.5 GB; root), and runs those that need no kernel under QEMU's
user emulation.

Exit codes: 0 all passed, 1 one failed, 2 bad usage, 125 else.
";

const ARCHS: [Arch; 2] = [Arch { debian: "s390x", rust: "s390x" }, Arch { debian: "arm64", rust: "aarch64" }];

const CRATES: [&str; 6] = ["netlink-batch", "ipvs-sys", "ipvs", "ipset", "iptables", "nftables"];

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let arch = parse(arguments)?;
    let root = super::test::repository()?;
    let emulator = format!("qemu-{}-static", arch.rust);
    if tools::find(&emulator).is_none() {
        return Err(Error::new(format!("{emulator} is missing: install the package qemu-user-static")));
    }
    let mut cargo = cross_cargo(&root, arch)?;
    // Static programs need no libraries of that architecture here.
    cargo
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo.current_dir(&root).args(["test", "--no-run", "--locked", "--all-features"]);
    cargo.args(["--target", &format!("{}-unknown-linux-gnu", arch.rust), "--message-format=json-render-diagnostics"]);
    cargo.args(CRATES.iter().flat_map(|name| ["--package", *name]));
    let messages = tools::run_aloud(&mut cargo)?;
    let mut failed = Vec::new();
    for Program { name, folder, file } in messages.lines().filter_map(program) {
        println!("\n--- {name} ({}) ---", arch.debian);
        let mut run = Command::new(&emulator);
        let status = run.arg(&file).current_dir(&folder).status().context(|| format!("cannot start {emulator}"))?;
        if !status.success() {
            failed.push(name);
        }
    }
    match failed.as_slice() {
        [] => println!("\nall passed on {}", arch.debian),
        some => println!("\nfailed on {}: {}", arch.debian, some.join(", ")),
    }
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

fn parse(arguments: &[OsString]) -> Result<Arch> {
    let [s390x, _] = ARCHS;
    match arguments {
        [] => Ok(s390x),
        [name] => ARCHS
            .into_iter()
            .find(|arch| *name == *arch.debian)
            .ok_or_else(|| Error::usage(format!("emulate: {}: write s390x or arm64", name.display()))),
        _ => Err(Error::usage("emulate takes one architecture")),
    }
}

/// A test program that needs no kernel.
struct Program {
    /// Crate and program.
    name: String,
    /// Folder of the crate, in which its tests run.
    folder: PathBuf,
    file: PathBuf,
}

/// The test program that a line of cargo's messages is about.
fn program(line: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let file = PathBuf::from(message.get("executable")?.as_str()?);
    let is_test = message.get("profile")?.get("test")?.as_bool()?;
    let name = message.get("target")?.get("name")?.as_str()?;
    let folder = Path::new(message.get("manifest_path")?.as_str()?).parent()?.to_owned();
    let name = format!("{} {name}", folder.file_name()?.display());
    let needs_kernel = message.get("target")?.get("name")?.as_str()?.starts_with("kernel");
    (is_test && !needs_kernel).then_some(Program { name, folder, file })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{parse, program};

    #[test]
    fn one_architecture_at_a_time() {
        let words = |line: &str| line.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(parse(&[]).unwrap().rust, "s390x");
        assert_eq!(parse(&words("arm64")).unwrap().rust, "aarch64");
        for line in ["amd64", "s390x arm64", "--all"] {
            assert!(parse(&words(line)).is_err(), "{line}");
        }
    }

    #[test]
    fn programs_that_need_a_kernel_are_left_out() {
        let message = |name: &str, test: bool| {
            format!(
                r#"{{"manifest_path":"/r/ipvs/Cargo.toml","target":{{"name":"{name}"}},"profile":{{"test":{test}}},"executable":"/t/x"}}"#
            )
        };
        assert_eq!(program(&message("text", true)).unwrap().name, "ipvs text");
        for line in [&message("kernel_text", true), &message("text", false), "Compiling"] {
            assert!(program(line).is_none(), "{line}");
        }
    }
}

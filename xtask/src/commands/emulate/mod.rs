//! `cargo xtask emulate`: tests of the low crates, compiled for another processor, under QEMU's user emulation. The kernel below is this
//! machine's, and the emulator translates few netlink families, so tests that need a kernel are left out.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::dist::{Arch, cross_cargo};
use crate::apt;
use crate::error::{Context as _, Error, Result};
use crate::tools;

pub(crate) const HELP: &str = "\
Usage: cargo xtask emulate [s390x|arm64] [--kernel]

Compiles the tests of the crates that speak to the kernel for s390x (default), whose byte order is the other one, or for
arm64, in a Debian sid root, which is made in the cache (1.5 GB; root), and runs those that need no kernel under QEMU's
user emulation.

  --kernel   arm64: boots Debian's kernel for it in QEMU, without KVM, and runs the tests that need a kernel there

Exit codes: 0 all passed, 1 one failed, 2 bad usage, 125 else.
";

const ARCHS: [Arch; 2] = [Arch { debian: "s390x", rust: "s390x" }, Arch { debian: "arm64", rust: "aarch64" }];

const CRATES: [&str; 6] = ["netlink-batch", "ipvs-sys", "ipvs", "ipset", "iptables", "nftables"];

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let Options { arch, kernel } = parse(arguments)?;
    let root = super::test::repository()?;
    let (emulator, package) = if kernel {
        (format!("qemu-system-{}", arch.rust), "qemu-system-arm")
    } else {
        (format!("qemu-{}-static", arch.rust), "qemu-user-static")
    };
    for (program, package) in [(emulator.as_str(), package), ("cpio", "cpio"), ("depmod", "kmod")] {
        if tools::find(program).is_none() {
            return Err(Error::new(format!("{program} is missing: install the package {package}")));
        }
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
    let programs: Vec<Program> = messages.lines().filter_map(program).filter(|of| of.needs_kernel == kernel).collect();
    if kernel {
        let mut machine = Command::new("sh");
        machine.arg(root.join("xtask/src/commands/emulate/arm64-kernel.sh")).arg(&root).arg(apt::mirror()?);
        machine.args(programs.iter().map(|Program { name, file, .. }| format!("{name}={}", file.display())));
        let status = machine.status().context(|| "cannot start sh".to_owned())?;
        return Ok(ExitCode::from(u8::from(!status.success())));
    }
    let mut failed = Vec::new();
    for Program { name, folder, file, .. } in programs {
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

#[derive(Debug)]
struct Options {
    arch: Arch,
    /// Whether to boot a kernel of that architecture.
    kernel: bool,
}

fn parse(arguments: &[OsString]) -> Result<Options> {
    let [s390x, arm64] = ARCHS;
    let mut options = Options { arch: s390x, kernel: false };
    for argument in arguments {
        match argument.to_str() {
            Some("--kernel") => options.kernel = true,
            Some(name) if name == s390x.debian => options.arch = s390x,
            Some(name) if name == arm64.debian => options.arch = arm64,
            _ => return Err(Error::usage(format!("emulate: {}: write s390x, arm64 or --kernel", argument.display()))),
        }
    }
    if options.kernel && options.arch != arm64 {
        return Err(Error::usage("emulate: --kernel is for arm64"));
    }
    Ok(options)
}

/// A test program.
struct Program {
    /// `crate/program`.
    name: String,
    needs_kernel: bool,
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
    let needs_kernel = name.starts_with("kernel");
    let name = format!("{}/{name}", folder.file_name()?.display());
    is_test.then_some(Program { name, needs_kernel, folder, file })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{parse, program};

    #[test]
    fn one_architecture_at_a_time() {
        let words = |line: &str| line.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        let of = |line: &str| parse(&words(line)).map(|of| (of.arch.rust, of.kernel));
        assert_eq!((of("").unwrap(), of("arm64").unwrap()), (("s390x", false), ("aarch64", false)));
        assert_eq!(of("arm64 --kernel").unwrap(), ("aarch64", true));
        for line in ["amd64", "--kernel", "s390x --kernel", "--all"] {
            assert!(of(line).is_err(), "{line}");
        }
    }

    #[test]
    fn programs_that_need_a_kernel_are_known_by_their_names() {
        let message = |name: &str, test: bool| {
            format!(
                r#"{{"manifest_path":"/r/ipvs/Cargo.toml","target":{{"name":"{name}"}},"profile":{{"test":{test}}},"executable":"/t/x"}}"#
            )
        };
        let of = |line: &str| program(line).map(|of| (of.name, of.needs_kernel));
        assert_eq!(of(&message("text", true)), Some(("ipvs/text".to_owned(), false)));
        assert_eq!(of(&message("kernel_text", true)), Some(("ipvs/kernel_text".to_owned(), true)));
        for line in [&message("text", false), "Compiling"] {
            assert!(of(line).is_none(), "{line}");
        }
    }
}

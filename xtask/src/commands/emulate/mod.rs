//! `cargo xtask emulate`: tests of the low crates, compiled for another processor, in QEMU's user emulation. That uses
//! this machine's kernel and translates few netlink families, so tests that need a kernel are omitted.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};

use super::dist::{Arch, cross_cargo};
use crate::{apt, cargo, tools};

/// The low crates' tests on another processor
///
/// Compiles the tests of the crates that speak to the kernel for s390x, which is big-endian, or for arm64, in a Debian
/// sid root. That root is made in the cache (1.5 GB; needs root). Runs the tests that need no kernel under QEMU's user
/// emulation.
///
/// Exit codes: 0 all passed, 1 one failed, 2 bad usage, 125 else.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(default_value = "s390x", value_parser = ["s390x", "arm64"])]
    arch: String,
    /// arm64: boots Debian's kernel for it in QEMU, without KVM, and runs the tests that need a kernel there
    #[arg(long)]
    kernel: bool,
}

const CRATES: [&str; 6] = ["netlink-batch", "ipvs-sys", "ipvs", "ipset", "iptables", "nftables"];

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    let is_arm = options.arch == "arm64";
    ensure!(is_arm || !options.kernel, "emulate: --kernel is for arm64");
    let arch = if is_arm { Arch::Arm64 } else { Arch::S390x };
    let (emulator, package) = if options.kernel {
        (format!("qemu-system-{}", arch.rust()), "qemu-system-arm")
    } else {
        (format!("qemu-{}-static", arch.rust()), "qemu-user-static")
    };
    for (program, package) in [(emulator.as_str(), package), ("cpio", "cpio"), ("depmod", "kmod")] {
        ensure!(tools::find(program).is_some(), "{program} is missing: install the package {package}");
    }
    let mut cargo = cross_cargo(arch)?;
    // Static programs need no libraries of that architecture.
    cargo
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo.args(["test", "--no-run", "--locked", "--all-features", "--target", &arch.target()]);
    let built = cargo::artifacts(cargo.args(CRATES.iter().flat_map(|name| ["--package", *name])))?;
    let programs = built.iter().filter(|of| of.is_test && of.name.starts_with("kernel") == options.kernel);
    if options.kernel {
        let root = tools::repository();
        let mut machine = Command::new("sh");
        machine.arg(root.join("xtask/src/commands/emulate/arm64-kernel.sh")).arg(root).arg(apt::mirror()?);
        machine.args(programs.map(|of| format!("{}/{}={}", of.package(), of.name, of.file.display())));
        return Ok(ExitCode::from(u8::from(!tools::succeeds(&mut machine)?)));
    }
    let mut failed = Vec::new();
    for program in programs {
        let name = format!("{}/{}", program.package(), program.name);
        println!("\n--- {name} ({}) ---", options.arch);
        if !tools::succeeds(Command::new(&emulator).arg(&program.file).current_dir(&program.folder))? {
            failed.push(name);
        }
    }
    match failed.as_slice() {
        [] => println!("\nall passed on {}", options.arch),
        some => println!("\nfailed on {}: {}", options.arch, some.join(", ")),
    }
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

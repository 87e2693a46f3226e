//! `cargo xtask vm`: one command, or a shell, on a real kernel.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use fs_err as fs;

use crate::kernel::{Kernel, Series};
use crate::tools;
use crate::vm::Vm;

/// Run a command, or a shell, on a real kernel in a virtual machine
///
/// Boots a Debian kernel in QEMU and runs COMMAND on it, as root, in the current folder. Every file of this machine is
/// there, read-only below an overlay that is thrown away. Without COMMAND: a shell (leave it with exit or Ctrl-D).
///
/// The exit code is COMMAND's. 124: time was up. 125: the kernel panicked, or the machine could not start. 2: bad usage.
///
/// Environment: XTASK_CACHE (where kernels are kept), XTASK_ACCEL (kvm or tcg, instead of trying), XTASK_DEBIAN_MIRROR.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// 5.10, 6.1, 6.12 or 7.x; fetched when it is not in the cache yet
    #[arg(long, default_value = "6.1")]
    kernel: Series,
    /// Memory of the machine in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    memory: u32,
    /// Time limit from power-on on, in seconds
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Network card; this machine is 10.0.2.2 in there
    #[arg(long)]
    net: bool,
    /// Network card without an address, on this tap device of this machine
    #[arg(long, value_name = "DEVICE", conflicts_with = "net", value_parser = device)]
    tap: Option<String>,
    /// COMMAND may write into this folder, and what it wrote stays (may be repeated)
    #[arg(long, value_name = "FOLDER")]
    rw: Vec<PathBuf>,
    #[arg(last = true)]
    command: Vec<String>,
}

pub(crate) fn main(options: Options) -> Result<ExitCode> {
    tools::ensure(tools::MACHINE)?;
    let shares = options.rw.iter().map(fs::canonicalize).collect::<Result<_, _>>()?;
    let vm = Vm {
        memory: options.memory,
        timeout: Duration::from_secs(options.timeout),
        network: options.tap.or_else(|| options.net.then(|| "user".to_owned())),
        shares,
        ..Vm::new(Kernel::get(options.kernel)?)?
    };
    if options.command.is_empty() {
        return vm.shell(&["bash".to_owned(), "-i".to_owned()]);
    }
    let outcome = vm.run(&options.command)?;
    let code = || ExitCode::from(outcome.exit.and_then(|code| u8::try_from(code).ok()).unwrap_or(125));
    Ok(outcome.failed().unwrap_or_else(code))
}

/// QEMU's backend for a tap device.
fn device(name: &str) -> Result<String, &'static str> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let backend = format!("tap,ifname={name},script=no,downscript=no");
    if is_plain && (1..16).contains(&name.len()) { Ok(backend) } else { Err("not the name of a device") }
}

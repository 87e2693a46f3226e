//! Chooses KVM or emulation by trying, and remembers the result.
//!
//! `/dev/kvm` can exist and start QEMU while an ordinary kernel hangs under it, as in nested virtual machines.

use std::fs::OpenOptions;
use std::time::Duration;

use anyhow::{Result, bail};
use fs_err as fs;

use super::Vm;
use crate::kernel::Kernel;
use crate::tools;

/// QEMU without KVM, with one host thread per processor.
const EMULATION: &str = "tcg,thread=multi";

/// A kernel that works under KVM needs a second for this.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// Selects the accelerator, `tcg` or `kvm`, instead of trying.
const VARIABLE: &str = "XTASK_ACCEL";

/// The accelerator for this kernel on this machine.
pub(super) fn choose(kernel: &Kernel) -> Result<&'static str> {
    match std::env::var(VARIABLE).as_deref() {
        Ok("kvm") => return Ok("kvm"),
        Ok("tcg") => return Ok(EMULATION),
        Ok("") | Err(_) => {}
        Ok(other) => bail!("{VARIABLE}={other}: either kvm or tcg"),
    }
    if OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(EMULATION);
    }
    // One answer for each pair of kernels: the machine's own and the one to boot.
    let host = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let answer = tools::cache()?.join(format!("kvm-{}-on-{}", kernel.release, host.trim()));
    if !answer.exists() {
        fs::write(&answer, if works(kernel)? { "works\n" } else { "does not work\n" })?;
    }
    Ok(if fs::read_to_string(&answer)?.trim() == "works" { "kvm" } else { EMULATION })
}

fn works(kernel: &Kernel) -> Result<bool> {
    eprintln!("xtask: trying whether {} boots under KVM", kernel.release);
    let vm = Vm { timeout: PROBE_LIMIT, folder: "/".into(), shows_errors: false, ..Vm::new(kernel.clone())? };
    Ok(vm.boot("kvm", &["true".to_owned()]).is_ok_and(|outcome| outcome.exit == Some(0)))
}

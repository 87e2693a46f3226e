//! KVM or emulation: decided by trying, and remembered.
//!
//! `/dev/kvm` can be there and start QEMU while an ordinary kernel hangs under it (nested virtual machines do that).

use std::fs::OpenOptions;
use std::time::Duration;

use anyhow::{Result, bail};
use fs_err as fs;

use super::Vm;
use crate::kernel::Kernel;
use crate::tools;

/// QEMU's emulator, one host thread for each processor.
const EMULATION: &str = "tcg,thread=multi";

/// A kernel that works under KVM needs a second for this.
const PROBE_LIMIT: Duration = Duration::from_secs(10);

/// Says which one to use: `tcg` or `kvm`, instead of trying.
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
    // One answer for each pair of kernels: the machine's own and the one that is to boot.
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

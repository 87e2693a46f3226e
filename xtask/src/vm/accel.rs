//! KVM or emulation: decided by trying, and remembered.
//!
//! `/dev/kvm` can be there and start QEMU while an ordinary kernel hangs under it (nested virtual machines do that).

use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::Vm;
use crate::cache;
use crate::error::{Context as _, Error, Result};
use crate::kernel::Kernel;

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
        Ok(other) => return Err(Error::usage(format!("{VARIABLE}={other}: either kvm or tcg"))),
    }
    if OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
        return Ok(EMULATION);
    }
    let answer = answer_file(kernel)?;
    let works = if let Ok(text) = fs::read_to_string(&answer) {
        text.trim() == "works"
    } else {
        let works = probe(kernel)?;
        fs::write(&answer, if works { "works\n" } else { "does not work\n" })
            .context(|| format!("cannot write {}", answer.display()))?;
        works
    };
    Ok(if works { "kvm" } else { EMULATION })
}

/// One answer for each pair of kernels: the machine's own and the one that is to boot.
fn answer_file(kernel: &Kernel) -> Result<PathBuf> {
    let host = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Ok(cache::folder()?.join(format!("kvm-{}-on-{}", kernel.release, host.trim())))
}

fn probe(kernel: &Kernel) -> Result<bool> {
    eprintln!("xtask: trying whether {} boots under KVM", kernel.release);
    let mut vm = Vm::new(kernel.clone())?;
    vm.timeout = PROBE_LIMIT;
    vm.folder = PathBuf::from("/");
    let outcome = vm.boot("kvm", &["true".into()], Box::new(io::sink()), Box::new(io::sink()));
    Ok(outcome.is_ok_and(|outcome| outcome.exit == Some(0)))
}

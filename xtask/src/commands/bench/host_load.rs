//! Load of this machine, which a virtual machine in QEMU cannot see.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use fs_err as fs;
use tempfile::TempDir;

use crate::tools;
use crate::vm::Vm;

/// A file with this machine's load average over a minute and its number of processors, updated every two seconds until
/// this is dropped. The kernel computes its averages every five seconds.
#[derive(Debug)]
pub(in crate::commands) struct HostLoad(TempDir);

impl HostLoad {
    /// Passes the load to the benches in this machine as long as this lives.
    pub(in crate::commands) fn tell(vm: &mut Vm) -> Result<Self> {
        let load = Self(tools::scratch()?);
        let file = load.0.path().join("load");
        write(&file)?;
        vm.shares.push(load.0.path().to_owned());
        vm.env.push(("BENCHES_HOST_LOAD".to_owned(), file.display().to_string()));
        thread::spawn(move || {
            while write(&file).is_ok() {
                thread::sleep(Duration::from_secs(2));
            }
        });
        Ok(load)
    }
}

/// Atomic: a reader sees the old file or the new one.
fn write(file: &Path) -> Result<()> {
    let load = fs::read_to_string("/proc/loadavg")?;
    let next = file.with_extension("next");
    fs::write(
        &next,
        format!("{} {}\n", load.split(' ').next().unwrap_or("unknown"), thread::available_parallelism()?),
    )?;
    Ok(fs::rename(next, file)?)
}

//! Load of this machine, which a virtual machine that it emulates cannot see.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use fs_err as fs;
use tempfile::TempDir;

use crate::tools;
use crate::vm::Vm;

/// Greatest age of the file's content. The kernel computes its averages every five seconds.
const EVERY: Duration = Duration::from_secs(2);

/// A file in a folder that holds this machine's load average over a minute and its number of processors, written again every
/// two seconds until this is dropped.
#[derive(Debug)]
pub(in crate::commands) struct HostLoad {
    _folder: TempDir,
    _end: Sender<()>,
}

impl HostLoad {
    /// Tells the benches in this machine, as long as this lives.
    pub(in crate::commands) fn tell(vm: &mut Vm) -> Result<Self> {
        let (folder, (end, ended)) = (tools::scratch()?, channel());
        let file = folder.path().join("load");
        write(&file)?;
        vm.shares.push(folder.path().to_owned());
        vm.env.push(("BENCHES_HOST_LOAD".to_owned(), file.display().to_string()));
        thread::spawn(move || {
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                // A figure that is a little older is no reason to end a bench.
                drop(write(&file));
            }
        });
        Ok(HostLoad { _folder: folder, _end: end })
    }
}

/// A reader sees the old file or the new one, never half of one.
fn write(file: &Path) -> Result<()> {
    let load = fs::read_to_string("/proc/loadavg")?;
    let next = file.with_extension("next");
    fs::write(
        &next,
        format!("{} {}\n", load.split(' ').next().unwrap_or("unknown"), thread::available_parallelism()?),
    )?;
    Ok(fs::rename(next, file)?)
}

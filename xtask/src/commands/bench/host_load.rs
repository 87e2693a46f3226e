//! Load of this machine, which a virtual machine that it emulates cannot see.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Context as _, Result};
use crate::scratch::Scratch;
use crate::vm::Vm;

/// Greatest age of the file's content. The kernel computes its averages every five seconds.
const EVERY: Duration = Duration::from_secs(2);

/// A file in a folder that holds this machine's load average over a minute and its number of processors, written again every
/// two seconds until this is dropped.
#[derive(Debug)]
pub(in crate::commands) struct HostLoad {
    folder: Scratch,
    end: Option<Sender<()>>,
    writer: Option<JoinHandle<()>>,
}

impl HostLoad {
    /// Tells the benches in this machine, as long as this lives.
    pub(in crate::commands) fn tell(vm: &mut Vm) -> Result<Self> {
        let load = Self::start()?;
        vm.shares.push(load.folder.path().to_owned());
        vm.env.push(("BENCHES_HOST_LOAD".into(), load.file().into()));
        Ok(load)
    }

    fn start() -> Result<Self> {
        let (end, ended) = channel();
        let mut load = HostLoad { folder: Scratch::new()?, end: Some(end), writer: None };
        let file = load.file();
        write(&file).context(|| format!("cannot write {}", file.display()))?;
        load.writer = Some(thread::spawn(move || {
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                // A figure that is a little older is no reason to end a bench.
                drop(write(&file));
            }
        }));
        Ok(load)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("load")
    }
}

impl Drop for HostLoad {
    fn drop(&mut self) {
        drop(self.end.take());
        drop(self.writer.take().map(JoinHandle::join));
    }
}

/// A reader sees the old file or the new one, never half of one.
fn write(file: &Path) -> std::io::Result<()> {
    let load = fs::read_to_string("/proc/loadavg")?;
    let cpus = thread::available_parallelism()?;
    let next = file.with_extension("next");
    fs::write(&next, format!("{} {cpus}\n", load.split_whitespace().next().unwrap_or("unknown")))?;
    fs::rename(next, file)
}

#[cfg(test)]
mod tests {
    use super::HostLoad;

    #[test]
    fn the_file_has_a_number_and_the_processors_and_is_gone_afterwards() {
        let load = HostLoad::start().unwrap();
        let text = std::fs::read_to_string(load.file()).unwrap();
        let (average, cpus) = text.trim().split_once(' ').unwrap();
        assert!(average.parse::<f64>().unwrap() >= 0.0 && cpus.parse::<u32>().unwrap() > 0, "{text}");
        let folder = load.folder.path().to_owned();
        drop(load);
        assert!(!folder.exists());
    }
}

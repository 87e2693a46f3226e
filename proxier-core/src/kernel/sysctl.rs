//! Values below `/proc/sys`.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use super::error::errno_kind;
use crate::ports::{PortError, PortErrorKind, Result, Sysctls};

/// The port over a directory of files: `/proc/sys`, or wherever it is mounted.
///
/// `net/` below it belongs to the calling thread's network namespace.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct SysctlsPort {
    root: PathBuf,
}

impl SysctlsPort {
    /// The values below this directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        SysctlsPort { root: root.into() }
    }

    fn file(&self, path: &str) -> Result<PathBuf> {
        check(path)?;
        let root = if path.starts_with("net/") { &*self.root } else { Path::new("/proc/sys") };
        Ok(root.join(path))
    }
}

/// Refuses everything except a path below the directory, so that nothing outside is read or written.
pub(crate) fn check(path: &str) -> Result<()> {
    if path.is_empty() || !Path::new(path).components().all(|part| matches!(part, Component::Normal(_))) {
        let message = format!("sysctl {path:?}: not a path like net/ipv4/ip_forward");
        return Err(PortError::new(PortErrorKind::Invalid, message));
    }
    Ok(())
}

fn failed(doing: &str, file: &Path, error: &io::Error) -> PortError {
    let kind = error.raw_os_error().map_or(PortErrorKind::Other, errno_kind);
    let advice = match kind {
        PortErrorKind::NotFound => "; this kernel does not have it, or its module is not loaded",
        PortErrorKind::Permission => "; is /proc/sys mounted read-only?",
        _ => "",
    };
    PortError::new(kind, format!("{doing} {}: {error}{advice}", file.display()))
}

impl Sysctls for SysctlsPort {
    fn get(&mut self, path: &str) -> Result<String> {
        let file = self.file(path)?;
        let mut text = String::new();
        OpenOptions::new()
            .read(true)
            .open(&file)
            .and_then(|mut open| open.read_to_string(&mut text))
            .map_err(|error| failed("reading", &file, &error))?;
        Ok(text.trim().to_owned())
    }

    fn can_set(&mut self, path: &str) -> bool {
        // Opening writes nothing; the kernel checks the file's mode, even for root (proc_sys_permission). A lack of
        // descriptors or memory passes, and writing reports it.
        let passes = |error: io::Error| error.raw_os_error().is_some_and(|no| errno_kind(no) == PortErrorKind::Busy);
        self.file(path).is_ok_and(|file| OpenOptions::new().write(true).open(file).map_or_else(passes, |_| true))
    }

    fn set(&mut self, path: &str, value: &str) -> Result<()> {
        let file = self.file(path)?;
        // A single write, since the kernel parses each write as a whole value.
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&file)
            .and_then(|mut open| open.write_all(format!("{value}\n").as_bytes()))
            .map_err(|error| failed(&format!("writing {value:?} to"), &file, &error))
    }
}

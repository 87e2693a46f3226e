//! Temporary folders.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Context as _, Result};

/// A temporary folder of this process, for its user alone; removed with the value.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("xtask-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // The path of a socket has room for 107 bytes.
        let parent = Some(std::env::temp_dir()).filter(|path| path.as_os_str().len() < 60);
        let path = parent.unwrap_or_else(|| "/tmp".into()).join(name);
        fs::DirBuilder::new().mode(0o700).create(&path).context(|| format!("cannot create {}", path.display()))?;
        // A virtual machine sees it below the same name.
        Ok(Self(path.canonicalize().context(|| format!("cannot find {}", path.display()))?))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

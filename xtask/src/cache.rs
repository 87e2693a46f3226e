//! The folder where kernels and answers worth remembering are kept between runs.

use std::env;
use std::fs;
use std::path::PathBuf;

use crate::error::{Context as _, Error, Result};

/// `$XTASK_CACHE`, else `$XDG_CACHE_HOME/ipvs-rs-kernels`, else `~/.cache/ipvs-rs-kernels`; created when absent.
///
/// The path is canonical: the virtual machine sees it below the same name.
pub(crate) fn folder() -> Result<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = variable("XTASK_CACHE")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("ipvs-rs-kernels")))
        .or_else(|| Some(variable("HOME")?.join(".cache/ipvs-rs-kernels")))
        .ok_or_else(|| Error::new("no place for a cache: set XTASK_CACHE, XDG_CACHE_HOME or HOME"))?;
    fs::create_dir_all(&folder).context(|| format!("cannot create {}", folder.display()))?;
    folder.canonicalize().context(|| format!("cannot resolve {}", folder.display()))
}

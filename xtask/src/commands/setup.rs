//! `cargo xtask setup`: installs and fetches, and does nothing else.

use std::process::ExitCode;

use anyhow::Result;

use crate::kernel::{Kernel, SeriesList};
use crate::tools;

/// Install what the tests need and fetch kernels
///
/// Installs the programs that the tests need (with apt, when root) and fetches kernels into the cache.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// 5.10, 6.1, 6.12, 7.x or several with commas between them, or all
    #[arg(default_value = "6.1,6.12")]
    kernels: SeriesList,
}

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    tools::ensure(tools::MACHINE)?;
    tools::ensure(tools::ORACLES)?;
    for series in &options.kernels.0 {
        let kernel = Kernel::get(*series)?;
        println!("{series}: {} in {}", kernel.release, kernel.folder.display());
    }
    Ok(ExitCode::SUCCESS)
}

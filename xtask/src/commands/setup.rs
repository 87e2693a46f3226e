//! `cargo xtask setup`: installs and fetches, and does nothing else.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::kernel::{Kernel, Series};
use crate::tools;

pub(crate) const HELP: &str = "\
Usage: cargo xtask setup [KERNEL]...

Installs the programs that the tests need (with apt, when root) and fetches kernels into the cache.
Without KERNEL: 6.1 and 6.12. KERNEL is one of 5.10, 6.1, 6.12, 7.x, all.
";

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let mut kernels = Vec::new();
    for argument in arguments {
        let name = argument.to_str().ok_or_else(|| Error::usage("setup: a kernel's name is plain text"))?;
        kernels.extend(if name == "all" { Series::ALL.to_vec() } else { vec![Series::parse(name)?] });
    }
    if kernels.is_empty() {
        kernels = vec![Series::V6_1, Series::V6_12];
    }
    tools::ensure(tools::MACHINE)?;
    tools::ensure(tools::ORACLES)?;
    for series in kernels {
        let kernel = Kernel::get(series)?;
        println!("{series}: {} in {}", kernel.release, kernel.modules.display());
    }
    Ok(ExitCode::SUCCESS)
}

//! `cargo xtask differential`: runs the own tests of nft and iptables against this project's crates.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use fs_err as fs;

use crate::cargo;

/// Other projects' own tests against the libraries
///
/// Takes folders of unpacked source packages (`apt-get source nftables iptables`); nothing is fetched. Each rule is loaded in a
/// network namespace, read by the library, and written again. Prints the rules that do not come back, and figures:
/// tried, loaded, came back, wrong. Needs root and the programs that load the rules.
///
/// Exit codes: 0 all that loads comes back, 1 something does not, 2 bad usage, 125 else.
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Options {
    /// nftables: the rules of tests/py, the rule sets of tests/shell
    #[arg(long, value_name = "DIR")]
    nft_source: Option<PathBuf>,
    /// iptables: the rules of extensions/*.t and extensions/*.txlate
    #[arg(long, value_name = "DIR")]
    iptables_source: Option<PathBuf>,
}

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    // The crate, the variable that passes the directory to its test `differential`, the directory.
    let parts =
        [("nftables", "NFT_SOURCE", &options.nft_source), ("iptables", "IPTABLES_SOURCE", &options.iptables_source)];
    let mut is_right = true;
    for (package, variable, source) in parts {
        let Some(source) = source else { continue };
        let source = fs::canonicalize(source)?;
        let mut run = cargo::command();
        run.args(["test", "--package", package, "--all-features", "--test", "differential"]);
        run.args(["--", "--nocapture"]).env(variable, &source);
        let status = run.status()?;
        ensure!(status.code().is_some(), "{package}: {status}");
        is_right &= status.success();
    }
    Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

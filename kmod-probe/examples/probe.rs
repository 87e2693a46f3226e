//! Prints what this machine's kernel has for IPVS mode.
//!
//! `probe [ROOT [SCHEDULER]]`: ROOT is the directory that `/proc`, `/sys`, `/lib/modules` and `/boot` are below.
//! Exit code 0: IPVS mode can be used; 1: it cannot; 2: bad usage; 3: not known.

use std::io::Write;
use std::process::ExitCode;

use kmod_probe::{Answer, Families, Probe, Profile};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().unwrap_or_else(|| "/".to_owned());
    let profile = match Profile::default().scheduler(&arguments.next().unwrap_or_default()) {
        Ok(profile) => profile.families(Families::Dual),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let report = Probe::new().root(root).profile(profile).run();
    // A reader that has seen enough (`probe | head`) is no failure.
    if let Err(error) = write!(std::io::stdout(), "{report}")
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("cannot write the report: {error}");
    }
    match report.verdict.answer {
        Answer::Yes => ExitCode::SUCCESS,
        Answer::No => ExitCode::from(1),
        Answer::Unknown => ExitCode::from(3),
    }
}

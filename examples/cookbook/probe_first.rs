//! Probes the kernel before an agent starts, and loads missing modules only on request.
//!
//! `cargo run -p examples --example probe_first -- [load]`
//!
//! Exit code 0: IPVS answers. 1: it does not, and the output says what to do. An agent could also call its client and
//! check the error, but would not learn the reason or the remedy.
//!
//! Needs no privileges to probe; `CAP_NET_ADMIN` to let the kernel itself answer, `CAP_SYS_MODULE` for `load`. In a
//! container, the modules are the host's: mount its `/lib/modules`.

use std::process::ExitCode;

use examples::Failure;
use ipvs::{Client, ErrorKind};
use kmod_probe::{ActiveAnswer, Answer, Capability, Loader, Probe, Profile, Report};

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => examples::end(Err(error)),
    }
}

fn run() -> Result<ExitCode, Failure> {
    let load = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("load") => true,
        Some(_) => return Err("usage: probe_first [load]".into()),
    };
    let mut report = look()?;
    if load && report.verdict.answer != Answer::No {
        for outcome in Loader::new().load_all(&report.to_load()) {
            println!("{outcome}");
        }
        report = look()?;
    }
    for finding in &report.findings {
        if let Some(fix) = finding.fix.as_ref().filter(|_| !finding.state.is_usable()) {
            println!("{} ({}) is {}: {fix}", finding.name, finding.why, finding.state.as_str());
        }
    }
    // The kernel's answer decides.
    match Client::open() {
        Ok(mut ipvs) => {
            println!("IPVS {} answers", ipvs.info()?);
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            println!("IPVS does not answer: {error}");
            report.verdict.reasons.iter().for_each(|reason| println!("  {reason}"));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Reads files that list modules. The kernel's own answer takes precedence.
fn look() -> Result<Report, Failure> {
    let mut ask = |what: &Capability| match what {
        Capability::GenlFamily(name) if name == "IPVS" => match Client::open() {
            Ok(_) => ActiveAnswer::Works("its netlink family answers".to_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::ModuleMissing(_)) => {
                ActiveAnswer::Refused(error.to_string())
            }
            Err(error) => ActiveAnswer::Unknown(error.to_string()),
        },
        _ => ActiveAnswer::Unknown("not asked".to_owned()),
    };
    Ok(Probe::new().profile(Profile::default().scheduler("wlc")?).run_with(&mut ask))
}

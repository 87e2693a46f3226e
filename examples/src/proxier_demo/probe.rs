//! `probe`: can this machine run IPVS mode?

use std::process::ExitCode;

use ipvs::model::Family;
use kmod_probe::{ActiveAnswer, Answer, Capability, Families, Loader, Probe, Profile, Report};
use proxier_core::kernel::KernelPorts;
use proxier_core::ports::{PortError, PortErrorKind};
use serde_json::json;

use super::cli::{Configured, Output};
use super::engine::open_to_look;
use super::neighbours;
use super::once::print_json;
use super::problem::Problem;
use super::settings::Settings;

/// Looks at everything that IPVS mode needs. Nothing is loaded or written, but that newer kernels load IPVS when they
/// are asked for it.
///
/// # Errors
///
/// The configured scheduler has a name that no kernel module has.
pub fn look(settings: &Settings, kernel: &mut KernelPorts) -> Result<Report, Problem> {
    let mut ask = |capability: &Capability| ask(kernel, capability);
    Ok(prepared(settings)?.run_with(&mut ask))
}

/// What to look at.
pub(super) fn prepared(settings: &Settings) -> Result<Probe, Problem> {
    let profile = Profile::default()
        .scheduler(&settings.core.scheduler.to_string())
        .map_err(|error| Problem::new("ipvs.scheduler", error.to_string()))?;
    Ok(Probe::new().profile(profile.families(Families::Dual).strict_arp(settings.strict_arp)))
}

fn ask(kernel: &mut KernelPorts, capability: &Capability) -> ActiveAnswer {
    let ports = kernel.ports();
    let answer = |outcome: Result<String, PortError>| match outcome {
        Ok(how) => ActiveAnswer::Works(how),
        Err(error) if error.kind() == PortErrorKind::Unavailable => ActiveAnswer::Refused(error.to_string()),
        Err(error) => ActiveAnswer::Unknown(error.to_string()),
    };
    match capability {
        Capability::GenlFamily(name) if name == "IPVS" => {
            answer(ports.ipvs.timeouts().map(|timeouts| format!("it answers (timeout of TCP {} s)", timeouts.tcp_secs)))
        }
        Capability::Ipset => {
            let set = proxier_core::sets::SetKey::new(Family::V4, proxier_core::sets::SetKind::ClusterIp);
            answer(ports.sets.entries(set).map(|_entries| "it answers".to_owned()))
        }
        _ => ActiveAnswer::Unknown("not asked".to_owned()),
    }
}

/// Makes IPVS available, or says what is missing. Modules are loaded when the kernel does not answer without.
///
/// # Errors
///
/// IPVS mode cannot be used: each obstacle with its fix.
pub fn require(settings: &Settings, kernel: &mut KernelPorts) -> Result<(), Vec<Problem>> {
    let Err(error) = kernel.ports().ipvs.timeouts() else { return Ok(()) };
    if error.kind() == PortErrorKind::Permission {
        return Err(vec![Problem::new("", format!("{error}; run as root, or with CAP_NET_ADMIN and CAP_NET_RAW"))]);
    }
    let report = look(settings, kernel).map_err(|problem| vec![problem])?;
    for outcome in Loader::new().load_all(&report.to_load()) {
        tracing::debug!("module {}: {:?}", outcome.module, outcome.result);
    }
    let Err(error) = kernel.ports().ipvs.timeouts() else { return Ok(()) };
    let mut problems = vec![Problem::new("", format!("IPVS cannot be used: {error}"))];
    problems.extend(report.verdict.reasons.iter().map(|reason| Problem::new("", reason.clone())));
    Err(problems)
}

/// Prints the table, and what no Service gets on this node; or JSON. 0: yes. 1: no, or not known.
pub async fn probe(configured: &Configured, output: Output) -> ExitCode {
    let looked = open_to_look().and_then(|mut kernel| Ok((look(&configured.settings, &mut kernel)?, kernel)));
    let (report, mut kernel) = match looked {
        Ok(looked) => looked,
        Err(problem) => {
            eprintln!("proxier-demo: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let reserved = neighbours::reserved(configured, &mut kernel).await;
    let printed = match output {
        Output::Text => {
            print!("{report}{}", neighbours::text(&reserved));
            Ok(())
        }
        Output::Json => {
            let mut report = json!(report);
            report["reserved"] = neighbours::json(&reserved);
            print_json(&report)
        }
    };
    ExitCode::from(u8::from(report.verdict.answer != Answer::Yes || printed.is_err()))
}

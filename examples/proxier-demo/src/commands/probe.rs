//! `probe`: whether this machine can run the configured mode, and the other modes.

use std::process::ExitCode;

use kmod_probe::Answer;
use proxier_core::config::RulesBy;
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::{Kind, fast_path, iptables, ipvs};
use proxier_core::net::Family;
use proxier_core::ports::PortError;
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::Node;
use serde_json::{Value, json};

use crate::commands::modes::Modes;
use crate::engine::beside::beside;
use crate::engine::choose::Preparing;
use crate::engine::{self, kernel, needs, neighbours, userspace};
use crate::output::{Out, lines, say};
use crate::problem::Problem;
use crate::settings::Settings;
use crate::settings::cli::{Configured, Output};

/// Whether a mode can serve here, as text and as JSON.
struct ModeFindings {
    works: bool,
    text: String,
    json: Value,
}

impl ModeFindings {
    fn new(works: bool, lines: &[String], json: Value) -> Self {
        ModeFindings { works, text: lines.join("\n") + "\n", json }
    }
}

/// Whether nftables mode can serve each family.
fn probe_nftables(settings: &Settings, kernel: &mut KernelPorts) -> ModeFindings {
    let tried = needs::try_nftables(settings, kernel);
    let works = tried.iter().any(|(_, outcome)| outcome.is_ok());
    let mut lines = vec![format!("nftables mode: {}", if works { "yes" } else { "no" })];
    for (family, outcome) in &tried {
        lines.push(match outcome {
            Ok(()) => format!("  {family}: the kernel takes all chains, sets and rules"),
            Err(error) => format!("  {family}: {error}"),
        });
    }
    let family = |(family, outcome): &(Family, Result<(), PortError>)| {
        let reason = outcome.as_ref().err().map(ToString::to_string);
        json!({"family": family.name(), "works": outcome.is_ok(), "reason": reason})
    };
    let families: Vec<_> = tried.iter().map(family).collect();
    ModeFindings::new(works, &lines, json!({"mode": "nftables", "works": works, "families": families}))
}

/// Whether iptables mode can serve each family, and which features it lacks here.
fn probe_iptables(settings: &Settings, kernel: &mut KernelPorts) -> ModeFindings {
    let tried: Vec<_> = needs::try_iptables(settings, kernel).collect();
    let serves = |all: &[iptables::Tried]| all.iter().all(|tried| !tried.is_needed_by_all || tried.outcome.is_ok());
    let works = tried.iter().any(|(_, all)| serves(all));
    let mut lines = vec![format!("iptables mode: {}", if works { "yes" } else { "no" })];
    for (family, all) in &tried {
        for tried in all {
            lines.push(match &tried.outcome {
                Ok(()) => format!("  {family}: {}: program and kernel have all matches and targets", tried.what),
                Err(error) => format!("  {family}: {}: {error}", tried.what),
            });
        }
    }
    let kind = |tried: &iptables::Tried| {
        let reason = tried.outcome.as_ref().err().map(ToString::to_string);
        json!({"what": tried.what, "works": tried.outcome.is_ok(), "reason": reason})
    };
    let family = |(family, all): &(Family, Vec<iptables::Tried>)| {
        let rules: Vec<_> = all.iter().map(kind).collect();
        json!({"family": family.name(), "works": serves(all), "rules": rules})
    };
    let families: Vec<_> = tried.iter().map(family).collect();
    ModeFindings::new(works, &lines, json!({"mode": "iptables", "works": works, "families": families}))
}

/// Whether userspace mode can serve each family.
fn probe_userspace(settings: &Settings, kernel: &mut KernelPorts) -> Result<ModeFindings, PortError> {
    let tried = userspace::attempt(settings, kernel)?;
    let works = tried.iter().any(|(_, outcome)| outcome.is_ok());
    let open_files = userspace::raise_open_files();
    let mut lines = vec![format!("userspace mode: {}", if works { "yes" } else { "no" })];
    for (family, outcome) in &tried {
        lines.push(match outcome {
            Ok(()) => format!("  {family}: this process can listen"),
            Err(error) => format!("  {family}: {error}"),
        });
    }
    lines.push(format!(
        "  {open_files} files may be open: one for each listener and flow of UDP, two for each connection"
    ));
    let family = |(family, outcome): &(Family, Result<(), PortError>)| {
        let reason = outcome.as_ref().err().map(ToString::to_string);
        json!({"family": family.name(), "works": outcome.is_ok(), "reason": reason})
    };
    let families: Vec<_> = tried.iter().map(family).collect();
    let json = json!({"mode": "userspace", "works": works, "families": families, "openFiles": open_files});
    Ok(ModeFindings::new(works, &lines, json))
}

/// Whether IPVS mode can serve, with each requirement, and the features that are missing on this node.
async fn probe_ipvs(configured: &Configured, kernel: &mut KernelPorts) -> Result<ModeFindings, Problem> {
    let (settings, choice) = &engine::with_rules(&configured.settings, &mut kernel.ports(), Preparing::Nothing);
    let report = needs::check(settings, kernel)?;
    let reserved = neighbours::reserved(configured, kernel).await;
    let by = settings.core.ipvs.rules;
    let choice = choice.as_ref();
    let mut text = format!("{report}{}\n", choice.map_or_else(|| format!("rules by {by}"), ToString::to_string));
    let mut takes_table = true;
    if by == RulesBy::Nftables {
        let tried = needs::try_ipvs_table(settings, kernel);
        takes_table = tried.iter().any(|(_, outcome)| outcome.is_ok());
        for (family, outcome) in tried {
            let says = match outcome {
                Ok(()) => "the kernel takes all chains, sets and rules".to_owned(),
                Err(error) => error.to_string(),
            };
            text.extend(["  ", family.name(), ": ", &says, "\n"]);
        }
    }
    text += &neighbours::text(&reserved);
    let dropping = ipvs::dropping_input(&settings.core, &mut kernel.ports());
    text += &lines(&dropping);
    let mut json = json!(report);
    json["input"] = json!(dropping);
    json["rules"] = json!(by.name());
    json["rules_reason"] = json!(choice.and_then(|choice| choice.reason.as_deref()));
    json["reserved"] = neighbours::json(&reserved);
    Ok(ModeFindings { works: report.verdict.answer == Answer::Yes && takes_table, text, json })
}

/// Whether the kernel supports the fast path, if it is configured and the mode has one.
fn probe_fast_path(settings: &Settings, kernel: &mut KernelPorts) -> Option<Result<(), PortError>> {
    let ports = kernel.ports();
    let config = Some(&settings.core).filter(|_| settings.mode.facts().translates_packets)?;
    match ports.links.addresses() {
        Ok(host) => fast_path::trial(config, &host, ports.tables),
        Err(error) => config.fast_path.is_some().then_some(Err(error)),
    }
}

/// Prints the requirements of the configured mode (for `auto`: of IPVS mode) and a table of all modes; or JSON. Exit code 0: that mode can serve
/// here; for `auto`, one can. 1: no, or unknown.
pub async fn probe(configured: &Configured, output: Output) -> ExitCode {
    let settings = &configured.settings;
    let looked = async {
        let mut kernel = kernel::open_to_look()?;
        let found = match settings.mode {
            Kind::Nftables => probe_nftables(settings, &mut kernel),
            Kind::Iptables => probe_iptables(settings, &mut kernel),
            Kind::Userspace => {
                probe_userspace(settings, &mut kernel).map_err(|error| Problem::new("", error.to_string()))?
            }
            Kind::Ipvs => probe_ipvs(configured, &mut kernel).await?,
        };
        let modes = Modes::try_all(configured, &mut kernel);
        let fast_path = probe_fast_path(settings, &mut kernel);
        let mut ports = kernel.ports();
        let host = ports.links.addresses().unwrap_or_default();
        let facts = NodeFacts::new(&settings.core, &Node::new(&settings.node_name), &host);
        let left = beside(modes.chosen(), &facts, &mut ports);
        Ok((found, fast_path, modes, left))
    };
    let (ModeFindings { works, text, mut json }, fast_path, modes, leftovers) = match looked.await {
        Ok(looked) => looked,
        Err::<_, Problem>(problem) => {
            say(problem);
            return ExitCode::FAILURE;
        }
    };
    let mut out = Out::open();
    match output {
        Output::Text => {
            out.text(&text);
            out.text(&lines(fast_path.iter().map(|tried| match tried {
                Ok(()) => "fastPath: the kernel takes the flow table".to_owned(),
                Err(error) => format!("fastPath: all packets to Services take the usual way: {error}"),
            })));
            out.text(&modes.text());
            out.text(&lines(&leftovers));
        }
        Output::Json => {
            (json["modes"], json["serves"]) = (modes.json(), modes.chosen().map(Kind::name).into());
            json["leftovers"] = json!(leftovers);
            if let Some(tried) = fast_path {
                json["fastPath"] =
                    json!({"works": tried.is_ok(), "reason": tried.err().map(|error| error.to_string())});
            }
            out.json(&json);
        }
    }
    let works = if settings.object.mode == "auto" { modes.serve() } else { works };
    ExitCode::from(u8::from(!(out.end() && works)))
}

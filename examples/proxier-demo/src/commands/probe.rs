//! `probe`: whether this machine can run the configured mode, and the other modes.

use std::process::ExitCode;

use kmod_probe::Answer;
use proxier_core::config::RulesBy;
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::select::RequestedMode;
use proxier_core::modes::{Kind, fast_path, ipvs};
use proxier_core::ports::PortError;
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::Node;
use serde_json::{Value, json};

use crate::commands::modes::Modes;
use crate::commands::once::exit_code;
use crate::engine::beside::beside;
use crate::engine::choose::Preparing;
use crate::engine::needs::Trial;
use crate::engine::{self, kernel, needs, neighbours, userspace};
use crate::output::{Output, lines};
use crate::problem::{Problem, Stopped};
use crate::settings::Settings;
use crate::settings::cli::Configured;

/// Whether a mode can serve here, and why, as text and as JSON.
type ModeFindings = (bool, String, Value);

/// Whether another mode than IPVS mode can serve each family, and which features it lacks here.
fn probe_families(mode: Kind, settings: &Settings, kernel: &mut KernelPorts) -> Result<ModeFindings, PortError> {
    let tried = needs::try_mode(mode, settings, kernel)?;
    let works = tried.iter().any(|(_, trials)| needs::serves(trials));
    let mut text = format!("{mode} mode: {}\n", if works { "yes" } else { "no" });
    let mut families = Vec::new();
    for (family, trials) in &tried {
        let mut rules = Vec::new();
        for Trial { what, outcome, .. } in trials {
            let about = what.map(|what| format!("{what}: ")).unwrap_or_default();
            let reason = outcome.as_ref().err().map(ToString::to_string);
            let works = match mode {
                Kind::Iptables => "program and kernel have all matches and targets",
                Kind::Userspace => "this process can listen",
                _ => "the kernel takes all chains, sets and rules",
            };
            text += &format!("  {family}: {about}{}\n", reason.as_deref().unwrap_or(works));
            rules.push(json!({"what": what, "works": outcome.is_ok(), "reason": reason}));
        }
        let mut of_family = json!({"family": family.name(), "works": needs::serves(trials)});
        if mode == Kind::Iptables {
            of_family["rules"] = rules.into();
        } else {
            of_family["reason"] = rules.first().map(|rule| rule["reason"].clone()).into();
        }
        families.push(of_family);
    }
    let mut json = json!({"mode": mode.name(), "works": works, "families": families});
    if mode.facts().is_process {
        let open_files = userspace::raise_open_files();
        text += &format!(
            "  {open_files} files may be open: one for each listener and flow of UDP, two for each connection\n"
        );
        json["openFiles"] = open_files.into();
    }
    Ok((works, text, json))
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
        let (works, of_table, _) = probe_families(Kind::Ipvs, settings, kernel)?;
        takes_table = works;
        // Without the line about the mode.
        text.extend(of_table.split_inclusive('\n').skip(1));
    }
    let (of_reserved, reserved) = neighbours::shown(&reserved);
    text += &of_reserved;
    let dropping = ipvs::dropping_input(&settings.core, &mut kernel.ports());
    text += &lines(&dropping);
    let mut json = json!(report);
    json["input"] = json!(dropping);
    json["rules"] = json!(by.name());
    json["rules_reason"] = json!(choice.and_then(|choice| choice.reason.as_deref()));
    json["reserved"] = reserved;
    Ok((report.verdict.answer == Answer::Yes && takes_table, text, json))
}

/// Prints the requirements of the configured mode (for `auto`: of IPVS mode) and a table of all modes; or JSON. Exit code 0: that mode can serve
/// here; for `auto`, one can. 1: no, or unknown.
pub async fn probe(configured: &Configured, output: Output) -> Result<ExitCode, Stopped> {
    let settings = &configured.settings;
    let mut kernel = kernel::open_to_look()?;
    let (works, text, mut json) = match settings.mode {
        Kind::Ipvs => probe_ipvs(configured, &mut kernel).await?,
        mode => probe_families(mode, settings, &mut kernel)?,
    };
    let modes = Modes::try_all(configured, &mut kernel);
    let mut ports = kernel.ports();
    let host = ports.links.addresses();
    let fast_path = match &host {
        _ if !settings.mode.facts().translates_packets => None,
        Ok(host) => fast_path::trial(&settings.core, host, ports.tables),
        Err(error) => settings.core.fast_path.is_some().then(|| Err(error.clone())),
    };
    let host = host.unwrap_or_default();
    let facts = NodeFacts::new(&settings.core, &Node::new(&settings.node_name), &host);
    let leftovers = beside(modes.chosen, &facts, &mut ports);
    let of_fast_path = |tried: &Result<(), PortError>| match tried {
        Ok(()) => "fastPath: the kernel takes the flow table".to_owned(),
        Err(error) => format!("fastPath: all packets to Services take the usual way: {error}"),
    };
    let text = || [text, lines(fast_path.iter().map(of_fast_path)), modes.text(), lines(&leftovers)].concat();
    let json = || {
        (json["modes"], json["serves"]) = (modes.json(), modes.chosen.map(Kind::name).into());
        json["leftovers"] = json!(leftovers);
        if let Some(tried) = &fast_path {
            let reason = tried.as_ref().err().map(ToString::to_string);
            json["fastPath"] = json!({"works": tried.is_ok(), "reason": reason});
        }
        json
    };
    let is_printed = output.print(text, json);
    let works = if settings.asked == RequestedMode::Auto { modes.chosen.is_some() } else { works };
    Ok(exit_code(is_printed && works, &[]))
}

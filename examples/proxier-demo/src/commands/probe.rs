//! `probe`: whether this machine can run the configured mode, and a table of all modes: what each needs, whether that is
//! there, and what to do if not.

use std::fmt::Write as _;
use std::process::ExitCode;

use kmod_probe::{Answer, Report};
use proxier_core::config::RulesBy;
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::select::{RequestedMode, candidates};
use proxier_core::modes::{Kind, fast_path, ipvs};
use proxier_core::net::Family;
use proxier_core::ports::PortError;
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::Node;
use serde::Serialize;
use serde_json::{Value, json};

use crate::commands::once::exit_code;
use crate::engine::beside::beside;
use crate::engine::choose::{self, Preparing};
use crate::engine::needs::Trial;
use crate::engine::{self, kernel, needs, neighbours, userspace};
use crate::output::lines;
use crate::problem::{Problem, Stopped};
use crate::settings::Settings;
use crate::settings::cli::Configured;

/// What a mode needs, as tried on this machine.
struct TriedMode {
    /// The settings of this mode, with its rule back end.
    settings: Settings,
    /// Why IPVS mode has this rule back end.
    choice: Option<ipvs::Choice>,
    /// Modules and settings of the host for IPVS mode.
    report: Option<Report>,
    /// Sockets, rules or tables, by family; none in IPVS mode with rules by programs.
    trials: Vec<(Family, Vec<Trial>)>,
}

/// Why a mode could not be tried: what is wrong, and how.
type Untried = (&'static str, Vec<Problem>);

impl TriedMode {
    /// Tries a mode. Changes nothing, but the kernel may load modules when asked about them.
    fn new(mode: Kind, configured: &Configured, kernel: &mut KernelPorts) -> Result<Self, Untried> {
        let configured = configured.in_mode(mode).map_err(|problems| ("its configuration", problems))?;
        let (settings, choice) = engine::with_rules(&configured.settings, &mut kernel.ports(), Preparing::Nothing);
        let report = mode.facts().has_virtual_servers.then(|| needs::check(&settings, kernel)).transpose();
        let report = report.map_err(|problem| ("its scheduler", vec![problem]))?;
        let by_programs = report.is_some() && settings.core.ipvs.rules != RulesBy::Nftables;
        let trials = if by_programs { Ok(Vec::new()) } else { needs::try_mode(mode, &settings, kernel) };
        let trials = trials.map_err(|error| (tried_part(mode), vec![error.into()]))?;
        Ok(TriedMode { settings, choice, report, trials })
    }

    /// Whether it can serve at least one address family here.
    fn serves(&self) -> bool {
        let has_modules = self.report.as_ref().is_none_or(|report| report.verdict.answer == Answer::Yes);
        has_modules && (self.trials.is_empty() || self.trials.iter().any(|(_, trials)| needs::serves(trials)))
    }

    fn requirements(&self) -> Vec<Requirement> {
        let mut all = Vec::new();
        if let Some(report) = &self.report {
            let by_nft = self.settings.core.ipvs.rules == RulesBy::Nftables;
            let what = if by_nft { "modules, nf_tables" } else { "modules, sets, iptables programs" };
            let (verdict, reasons) = (report.verdict.answer, &report.verdict.reasons);
            let met = [String::new()];
            let fixes = if reasons.is_empty() { &met } else { reasons.as_slice() };
            all.extend(fixes.iter().map(|fix| Requirement { what: what.to_owned(), verdict, fix: fix.clone() }));
        }
        let part = tried_part(self.settings.mode);
        for (family, trials) in &self.trials {
            all.extend(trials.iter().map(|Trial { what, outcome, .. }| Requirement {
                what: format!("{family}: {part}{}", what.unwrap_or_default()),
                verdict: if outcome.is_ok() { Answer::Yes } else { Answer::No },
                fix: outcome.as_ref().err().map(ToString::to_string).unwrap_or_default(),
            }));
        }
        all
    }

    /// The trials as text, and by family as JSON.
    fn families(&self) -> (String, Vec<Value>) {
        let mode = self.settings.mode;
        let works = match mode {
            Kind::Iptables => "program and kernel have all matches and targets",
            Kind::Userspace => "this process can listen",
            Kind::Nftables | Kind::Ipvs => "the kernel takes all chains, sets and rules",
        };
        let (mut text, mut families) = (String::new(), Vec::new());
        for (family, trials) in &self.trials {
            let mut rules = Vec::new();
            for Trial { what, outcome, .. } in trials {
                let about = what.map(|what| format!("{what}: ")).unwrap_or_default();
                let reason = outcome.as_ref().err().map(ToString::to_string);
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
        (text, families)
    }

    /// The requirements of another mode than IPVS mode, as text and as JSON.
    fn details(&self) -> (String, Value) {
        let (mode, works, (of_families, families)) = (self.settings.mode, self.serves(), self.families());
        let mut text = format!("{mode} mode: {}\n{of_families}", if works { "yes" } else { "no" });
        let mut json = json!({"mode": mode.name(), "works": works, "families": families});
        if mode.facts().is_process {
            let open_files = userspace::raise_open_files();
            text += &format!(
                "  {open_files} files may be open: one for each listener and flow of UDP, two for each connection\n"
            );
            json["openFiles"] = open_files.into();
        }
        (text, json)
    }

    /// The requirements of IPVS mode, and the addresses and ports that no Service gets, as text and as JSON.
    async fn details_of_ipvs(
        &self,
        report: &Report,
        configured: &Configured,
        kernel: &mut KernelPorts,
    ) -> (String, Value) {
        let by = self.settings.core.ipvs.rules;
        let choice = self.choice.as_ref().map_or_else(|| format!("rules by {by}"), ToString::to_string);
        let (of_reserved, reserved) = neighbours::shown(&neighbours::reserved(configured, kernel).await);
        let dropping = ipvs::dropping_input(&self.settings.core, &mut kernel.ports());
        let text = [format!("{report}{choice}\n"), self.families().0, of_reserved, lines(&dropping)].concat();
        let mut json = json!(report);
        json["input"] = json!(dropping);
        json["rules"] = json!(by.name());
        json["rules_reason"] = json!(self.choice.as_ref().and_then(|choice| choice.reason.as_deref()));
        json["reserved"] = reserved;
        (text, json)
    }
}

/// What is tried of a mode in each family.
fn tried_part(mode: Kind) -> &'static str {
    match mode {
        Kind::Nftables => "chains, sets and rules",
        Kind::Iptables => "rules of ",
        Kind::Userspace => "sockets and routes",
        Kind::Ipvs => "table of IPVS mode",
    }
}

#[derive(Serialize)]
struct Requirement {
    what: String,
    /// Whether it is met.
    verdict: Answer,
    /// Reason why it is not met, and what to do.
    fix: String,
}

/// The rows of a mode in the table.
#[derive(Serialize)]
struct ModeRows {
    mode: &'static str,
    serves: bool,
    requirements: Vec<Requirement>,
}

impl ModeRows {
    fn new(mode: Kind, tried: Result<&TriedMode, &Untried>) -> Self {
        let requirements = match tried {
            Ok(tried) => tried.requirements(),
            Err((what, problems)) => {
                let of = |problem: &Problem| Requirement {
                    what: (*what).to_owned(),
                    verdict: Answer::No,
                    fix: problem.to_string(),
                };
                problems.iter().map(of).collect()
            }
        };
        ModeRows { mode: mode.name(), serves: tried.is_ok_and(TriedMode::serves), requirements }
    }
}

/// The mode in which `run` would serve.
fn chosen(configured: &Configured, all: &[ModeRows]) -> Option<Kind> {
    let asked = configured.settings.asked;
    let mut candidates = candidates(asked, !configured.no_fallback, choose::programs());
    if asked == RequestedMode::Auto {
        choose::prefer_iptables(&mut candidates, configured);
    }
    candidates.into_iter().find(|mode| all.iter().any(|rows| rows.mode == mode.name() && rows.serves))
}

fn table(all: &[ModeRows], asked: RequestedMode, chosen: Option<Kind>) -> String {
    let mut text = format!("\n{:<10} {:<36} {:<8} {}\n", "MODE", "REQUIREMENT", "VERDICT", "FIX");
    for rows in all {
        for Requirement { what, verdict, fix } in &rows.requirements {
            let line = format!("{:<10} {what:<36} {:<8} {fix}", rows.mode, verdict.to_string());
            text.extend([line.trim_end(), "\n"]);
        }
    }
    let serves = chosen.map_or_else(|| "run cannot serve".to_owned(), |mode| format!("run serves in mode {mode}"));
    let _cannot_fail = writeln!(text, "mode {asked} is asked for: {serves}");
    text
}

/// Prints the requirements of the configured mode (for `auto`: of IPVS mode) and a table of all modes; or JSON. Exit code 0: that mode can serve
/// here; for `auto`, one can. 1: no, or unknown.
pub async fn probe(configured: &Configured) -> Result<ExitCode, Stopped> {
    let settings = &configured.settings;
    let mut kernel = kernel::open_to_look()?;
    let own = TriedMode::new(settings.mode, configured, &mut kernel).map_err(|(_, problems)| problems)?;
    let (text, mut json) = match &own.report {
        Some(report) => own.details_of_ipvs(report, configured, &mut kernel).await,
        None => own.details(),
    };
    let all = Kind::ALL.map(|mode| {
        if mode == settings.mode {
            return ModeRows::new(mode, Ok(&own));
        }
        ModeRows::new(mode, TriedMode::new(mode, configured, &mut kernel).as_ref())
    });
    let chosen = chosen(configured, &all);
    let mut ports = kernel.ports();
    let host = ports.links.addresses();
    let fast_path = match &host {
        _ if !settings.mode.facts().translates_packets => None,
        Ok(host) => fast_path::trial(&settings.core, host, ports.tables),
        Err(error) => settings.core.fast_path.is_some().then(|| Err(error.clone())),
    };
    let host = host.unwrap_or_default();
    let facts = NodeFacts::new(&settings.core, &Node::new(&settings.node_name), &host);
    let leftovers = beside(chosen, &facts, &mut ports);
    let of_fast_path = |tried: &Result<(), PortError>| match tried {
        Ok(()) => "fastPath: the kernel takes the flow table".to_owned(),
        Err(error) => format!("fastPath: all packets to Services take the usual way: {error}"),
    };
    let table = || table(&all, settings.asked, chosen);
    let text = || [text, lines(fast_path.iter().map(of_fast_path)), table(), lines(&leftovers)].concat();
    let json = || {
        (json["modes"], json["serves"]) = (json!(all), chosen.map(Kind::name).into());
        json["leftovers"] = json!(leftovers);
        if let Some(tried) = &fast_path {
            let reason = tried.as_ref().err().map(ToString::to_string);
            json["fastPath"] = json!({"works": tried.is_ok(), "reason": reason});
        }
        json
    };
    let is_printed = configured.output.print(text, json);
    let works = if settings.asked == RequestedMode::Auto { chosen.is_some() } else { own.serves() };
    Ok(exit_code(is_printed && works, &[]))
}

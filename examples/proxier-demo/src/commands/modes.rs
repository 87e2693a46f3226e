//! Requirements of each mode, whether this machine meets them, and what to do if not: the table of `probe`.

use std::fmt::Write as _;

use kmod_probe::Answer;
use proxier_core::config::RulesBy;
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::Kind;
use proxier_core::modes::select::{RequestedMode, candidates};
use serde::Serialize;
use serde_json::{Value, json};

use crate::engine::{self, choose, needs};
use crate::settings::Settings;
use crate::settings::cli::Configured;

#[derive(Serialize)]
struct Requirement {
    what: String,
    /// Whether it is met.
    verdict: Answer,
    /// Reason why it is not met, and what to do.
    fix: String,
}

impl Requirement {
    fn from_outcome(what: String, outcome: Result<(), String>) -> Self {
        let verdict = if outcome.is_ok() { Answer::Yes } else { Answer::No };
        Requirement { what, verdict, fix: outcome.err().unwrap_or_default() }
    }
}

#[derive(Serialize)]
struct ModeResult {
    mode: &'static str,
    /// Whether it can serve at least one address family here.
    serves: bool,
    requirements: Vec<Requirement>,
}

impl ModeResult {
    fn cannot_serve(mode: Kind, what: &str, reasons: Vec<String>) -> Self {
        let of = |reason| Requirement::from_outcome(what.to_owned(), Err(reason));
        ModeResult { mode: mode.name(), serves: false, requirements: reasons.into_iter().map(of).collect() }
    }
}

/// All modes, best first.
pub(crate) struct Modes {
    all: Vec<ModeResult>,
    /// The mode in which `run` would serve.
    pub(crate) chosen: Option<Kind>,
    asked: RequestedMode,
}

impl Modes {
    /// Tries all modes. Changes nothing, but the kernel may load modules when asked about them.
    pub(crate) fn try_all(configured: &Configured, kernel: &mut KernelPorts) -> Self {
        let all: Vec<ModeResult> = Kind::ALL.into_iter().map(|mode| try_mode(mode, configured, kernel)).collect();
        let asked = configured.settings.asked;
        let mut candidates = candidates(asked, !configured.no_fallback, choose::programs());
        if asked == RequestedMode::Auto {
            choose::prefer_iptables(&mut candidates, configured);
        }
        let serves = |mode: &Kind| all.iter().any(|result| result.mode == mode.name() && result.serves);
        Modes { chosen: candidates.into_iter().find(serves), asked, all }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("\n{:<10} {:<36} {:<8} {}\n", "MODE", "REQUIREMENT", "VERDICT", "FIX");
        for result in &self.all {
            for requirement in &result.requirements {
                let Requirement { what, verdict, fix } = requirement;
                let line = format!("{:<10} {what:<36} {:<8} {fix}", result.mode, verdict.to_string());
                text.extend([line.trim_end(), "\n"]);
            }
        }
        let serves = match self.chosen {
            Some(mode) => format!("run serves in mode {mode}"),
            None => "run cannot serve".to_owned(),
        };
        let _cannot_fail = writeln!(text, "mode {} is asked for: {serves}", self.asked);
        text
    }

    pub(crate) fn json(&self) -> Value {
        json!(self.all)
    }
}

fn try_mode(mode: Kind, configured: &Configured, kernel: &mut KernelPorts) -> ModeResult {
    let configured = match configured.in_mode(mode) {
        Ok(configured) => configured,
        Err(problems) => {
            let reasons = problems.iter().map(ToString::to_string).collect();
            return ModeResult::cannot_serve(mode, "its configuration", reasons);
        }
    };
    let settings = &engine::with_rules(&configured.settings, &mut kernel.ports(), choose::Preparing::Nothing).0;
    if mode != Kind::Ipvs {
        return of_trials(mode, settings, kernel);
    }
    let report = match needs::check(settings, kernel) {
        Ok(report) => report,
        Err(problem) => return ModeResult::cannot_serve(mode, "its scheduler", vec![problem.to_string()]),
    };
    let verdict = report.verdict.answer;
    let by_nft = settings.core.ipvs.rules == RulesBy::Nftables;
    let what = if by_nft { "modules, nf_tables" } else { "modules, sets, iptables programs" };
    let mut reasons = report.verdict.reasons.clone();
    if reasons.is_empty() {
        reasons.push(String::new());
    }
    let of = |fix| Requirement { what: what.to_owned(), verdict, fix };
    let mut requirements: Vec<Requirement> = reasons.into_iter().map(of).collect();
    let mut serves = verdict == Answer::Yes;
    if by_nft {
        let table = of_trials(mode, settings, kernel);
        serves &= table.serves;
        requirements.extend(table.requirements);
    }
    ModeResult { mode: mode.name(), serves, requirements }
}

fn of_trials(mode: Kind, settings: &Settings, kernel: &mut KernelPorts) -> ModeResult {
    let what = match mode {
        Kind::Nftables => "chains, sets and rules",
        Kind::Iptables => "rules of ",
        Kind::Userspace => "sockets and routes",
        Kind::Ipvs => "table of IPVS mode",
    };
    let tried = match needs::try_mode(mode, settings, kernel) {
        Ok(tried) => tried,
        Err(error) => return ModeResult::cannot_serve(mode, what, vec![error.to_string()]),
    };
    let serves = tried.iter().any(|(_, trials)| needs::serves(trials));
    let requirements = tried.into_iter().flat_map(|(family, trials)| {
        trials.into_iter().map(move |of| {
            let what = format!("{family}: {what}{}", of.what.unwrap_or_default());
            Requirement::from_outcome(what, of.outcome.map_err(|error| error.to_string()))
        })
    });
    ModeResult { mode: mode.name(), serves, requirements: requirements.collect() }
}

//! Checks the requirements of each mode on this machine by trying.

use kmod_probe::{ActiveAnswer, ActiveProbe, Answer, Capability, Families, Loader, Probe, Profile, Report};
use proxier_core::config::{Families as Served, NamePrefix, RulesBy};
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::{Kind, iptables, ipvs, nftables};
use proxier_core::net::Family;
use proxier_core::ports::{NamedSet, PortError, PortErrorKind};
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::{HostAddresses, Node};

use crate::engine::userspace;
use crate::problem::Problem;
use crate::settings::Settings;
use crate::settings::cli::Configured;

/// Checks all requirements of IPVS mode. Loads and writes nothing, but newer kernels load IPVS when asked about it.
///
/// A missing family is not an obstacle if the kernel has the other one: `run` then serves that one.
/// Errors: no kernel module can have the configured scheduler's name.
pub(crate) fn check(settings: &Settings, kernel: &mut KernelPorts) -> Result<Report, Problem> {
    Ok(find(settings, &mut |capability: &Capability| ask(kernel, capability))?.report)
}

/// Checks that IPVS mode, if it may serve, has an existing scheduler: one of the kernel's own tree, or one whose module
/// this machine shows a trace of. Falling back to another mode would hide a misspelt name.
/// Errors: this machine does not know it; the problem lists the names.
pub fn check_scheduler(configured: &Configured) -> Result<(), Problem> {
    let scheduler = configured.settings.core.ipvs.scheduler;
    if !configured.may_serve_in(Kind::Ipvs) || Profile::known_schedulers().any(|name| name == scheduler.name()) {
        return Ok(());
    }
    let names: Vec<&str> = Profile::known_schedulers().collect();
    let unknown = format!("{:?} is not a scheduler of IPVS ({})", scheduler.name(), names.join(", "));
    let Ok(profile) = Profile::default().scheduler(scheduler.name()) else {
        return Err(configured.given.problem("ipvs.scheduler", unknown));
    };
    let report = Probe::new().profile(profile).run();
    let finding = report.finding(&format!("scheduler {scheduler}"));
    // A line that names the scheduler is evidence for it; a complete list without it is evidence against it.
    if finding.and_then(|finding| finding.evidence.as_ref()).is_some_and(|seen| seen.line.is_some()) {
        return Ok(());
    }
    let fix = finding.and_then(|finding| finding.fix.as_ref()).map(|fix| format!("; {fix}")).unwrap_or_default();
    let reason = format!("{unknown}, and there is no sign of a module ip_vs_{scheduler}{fix}");
    Err(configured.given.problem("ipvs.scheduler", reason))
}

/// Result of the checks, and the desired families that this kernel can serve.
pub(crate) struct Findings {
    pub(crate) report: Report,
    pub(crate) families: Served,
}

/// Checks files, and asks the kernel.
pub(crate) fn find(settings: &Settings, active: &mut dyn ActiveProbe) -> Result<Findings, Problem> {
    let profile = Profile::default()
        .scheduler(&settings.core.ipvs.scheduler.to_string())
        .map_err(|error| Problem::new("ipvs.scheduler", error.to_string()))?;
    let by_nft = settings.core.ipvs.rules == RulesBy::Nftables;
    let profile = profile.strict_arp(settings.host.strict_arp).without_iptables(by_nft);
    let families = settings.core.families;
    let mut probe = |families| {
        let families = match families {
            Served::V4 => Families::Ipv4,
            Served::V6 => Families::Ipv6,
            Served::Dual => Families::Dual,
        };
        Probe::new().profile(profile.clone().families(families)).run_with(active)
    };
    let report = probe(families);
    if families != Served::Dual || report.verdict.answer != Answer::No {
        return Ok(Findings { report, families });
    }
    for (family, other) in [(Served::V4, "IPv6"), (Served::V6, "IPv4")] {
        let mut alone = probe(family);
        if alone.verdict.answer == Answer::Yes {
            let reasons = report.verdict.reasons.iter().map(|reason| format!("{other} is not served: {reason}"));
            alone.verdict.caveats.extend(reasons);
            return Ok(Findings { report: alone, families: family });
        }
    }
    Ok(Findings { report, families })
}

impl Findings {
    /// Required parts that are permanently missing, each with its fix; empty if `run` can serve. Settings below
    /// `/proc/sys` are not included: writing them shows whether that works.
    pub(crate) fn obstacles(&self) -> Vec<Problem> {
        let report = &self.report;
        if report.verdict.answer != Answer::No {
            return Vec::new();
        }
        let settings: Vec<&str> = report.sysctls.iter().map(|sysctl| sysctl.name.as_str()).collect();
        let of_kernel = |reason: &&String| !settings.iter().any(|name| reason.starts_with(name));
        report.verdict.reasons.iter().filter(of_kernel).map(|reason| Problem::new("", reason.clone())).collect()
    }
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
            let first = NamedSet::all(Family::V4, NamePrefix::KUBE).next();
            let read = first.map(|set| ports.sets.entries(set)).transpose();
            answer(read.map(|_entries| "it answers".to_owned()))
        }
        _ => ActiveAnswer::Unknown("not asked".to_owned()),
    }
}

/// Makes the mode available, or reports what is missing. Loads modules if the kernel does not respond without them.
/// Errors: the mode cannot be used: each obstacle with its fix.
pub(crate) fn require(settings: &Settings, kernel: &mut KernelPorts) -> Result<(), Vec<Problem>> {
    match settings.mode {
        // Opening the engine tries this and reports the same. A trial of a table costs the kernel a grace period.
        Kind::Nftables | Kind::Userspace => return Ok(()),
        Kind::Iptables => return require_iptables(settings, kernel),
        Kind::Ipvs => {}
    }
    let Err(error) = kernel.ports().ipvs.timeouts() else { return Ok(()) };
    if error.kind() == PortErrorKind::Permission {
        return Err(vec![Problem::new("", format!("{error}; run as root, or with CAP_NET_ADMIN and CAP_NET_RAW"))]);
    }
    let report = check(settings, kernel)?;
    for outcome in Loader::new().load_all(&report.to_load()) {
        tracing::debug!("module {}: {:?}", outcome.module, outcome.result);
    }
    let Err(error) = kernel.ports().ipvs.timeouts() else { return Ok(()) };
    let mut reasons = report.verdict.reasons;
    // The reasons of a kernel without IPVS say more than its answer.
    if reasons.is_empty() || error.kind() != PortErrorKind::Unavailable {
        reasons.insert(0, error.to_string());
    }
    if let Some(first) = reasons.first_mut() {
        first.insert_str(0, "IPVS cannot be used: ");
    }
    Err(reasons.into_iter().map(|reason| Problem::new("", reason)).collect())
}

/// Checks by a trial that iptables mode can serve at least one family. Temporary failures, such as a held lock, are not
/// obstacles.
fn require_iptables(settings: &Settings, kernel: &mut KernelPorts) -> Result<(), Vec<Problem>> {
    families(settings, kernel, Vec::new())?;
    let mut problems = Vec::new();
    for family in settings.core.families.iter() {
        let trials = try_iptables(family, &facts(settings), kernel).into_iter();
        let refused: Vec<PortError> = trials.filter(|of| of.is_needed).filter_map(|of| of.outcome.err()).collect();
        if refused.iter().all(may_pass) {
            return Ok(());
        }
        problems.extend(refused.iter().map(|error| Problem::new("", format!("{family}: {error}"))));
    }
    Err(problems)
}

/// Whether a failure may be temporary. The next pass reports it if not.
fn may_pass(error: &PortError) -> bool {
    matches!(error.kind(), PortErrorKind::Busy | PortErrorKind::Unknown)
}

/// Whether the kernel supports the table of IPVS mode, by family.
pub(crate) type Tried = Vec<(Family, Result<(), PortError>)>;

/// The configured families that the mode supports here, and notes on the others.
/// Errors: no family can be served; the problem shows what is refused.
/// `tried`: outcomes of the trials, if they were made just now.
pub(crate) fn families(
    settings: &Settings,
    kernel: &mut KernelPorts,
    tried: Tried,
) -> Result<(Served, Vec<String>), Problem> {
    let by_programs = settings.mode.needs_rule_programs(&settings.core);
    let (otherwise, tried) = if by_programs {
        let ports = kernel.ports();
        let tried =
            settings.core.families.iter().map(|family| whole((family, ports.rules.has_random_fully(family).map(drop))));
        ("cannot write rules".to_owned(), tried.collect())
    } else {
        let otherwise = match settings.mode {
            Kind::Ipvs => "nf_tables cannot guard virtual servers".to_owned(),
            mode => format!("{mode} mode cannot be used"),
        };
        let tried = match tried.as_slice() {
            [] => try_mode(settings.mode, settings, kernel),
            _ => Ok(tried.into_iter().map(whole).collect()),
        };
        let tried = tried.map_err(|error| Problem::new("", format!("{otherwise}: {error}")))?;
        (otherwise, tried)
    };
    let may_pass = |error: &PortError| match settings.mode {
        _ if by_programs => error.kind() != PortErrorKind::Unavailable,
        Kind::Userspace => false,
        _ => may_pass(error),
    };
    let (mut served, mut notes) = (Vec::new(), Vec::new());
    for (family, trials) in tried {
        match trials.into_iter().find_map(|trial| trial.outcome.err()).filter(|error| !may_pass(error)) {
            None => served.push(family),
            Some(error) => notes.push(format!("{family} is not served: {error}")),
        }
    }
    let families = match served.as_slice() {
        [] => return Err(Problem::new("", format!("{otherwise}: {}", notes.join("; ")))),
        [Family::V4] => Served::V4,
        [Family::V6] => Served::V6,
        _ => Served::Dual,
    };
    Ok((families, notes))
}

/// The outcome of an attempt to do what a mode needs in a family.
pub(crate) struct Trial {
    /// The part that was tried; `None`: everything.
    pub(crate) what: Option<&'static str>,
    /// Whether nothing can be served without it.
    pub(crate) is_needed: bool,
    pub(crate) outcome: Result<(), PortError>,
}

/// Whether a family with these outcomes can be served.
pub(crate) fn serves(trials: &[Trial]) -> bool {
    trials.iter().all(|trial| !trial.is_needed || trial.outcome.is_ok())
}

fn facts(settings: &Settings) -> NodeFacts {
    NodeFacts::new(&settings.core, &Node::new(&settings.node_name), &HostAddresses::default())
}

/// Tries what a mode needs, by family: sockets, trial rules or trial tables. In IPVS mode, the table that guards virtual
/// servers.
pub(crate) fn try_mode(
    mode: Kind,
    settings: &Settings,
    kernel: &mut KernelPorts,
) -> Result<Vec<(Family, Vec<Trial>)>, PortError> {
    let (families, facts) = (settings.core.families.iter(), facts(settings));
    let tried = match mode {
        Kind::Nftables => nftables::trials(families, &facts, kernel.ports().tables),
        Kind::Ipvs => ipvs::trials(families, &facts, kernel.ports().tables),
        Kind::Userspace => userspace::attempt(settings, kernel)?,
        Kind::Iptables => return Ok(families.map(|family| (family, try_iptables(family, &facts, kernel))).collect()),
    };
    Ok(tried.into_iter().map(whole).collect())
}

/// A trial of everything in a family.
fn whole((family, outcome): (Family, Result<(), PortError>)) -> (Family, Vec<Trial>) {
    (family, vec![Trial { what: None, is_needed: true, outcome }])
}

/// Answers of the programs and the kernel to trial rules of iptables mode.
fn try_iptables(family: Family, facts: &NodeFacts, kernel: &mut KernelPorts) -> Vec<Trial> {
    let tried = iptables::trial(family, facts, kernel.ports().rules).into_iter();
    tried.map(|of| Trial { what: Some(of.what), is_needed: of.is_needed_by_all, outcome: of.outcome }).collect()
}

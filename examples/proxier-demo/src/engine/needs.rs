//! Checks the requirements of each mode on this machine by trying.

use kmod_probe::{ActiveAnswer, ActiveProbe, Answer, Capability, Families, Loader, Probe, Profile, Report};
use proxier_core::config::{Families as Served, NamePrefix, RulesBy};
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::{Kind, iptables, ipvs, nftables};
use proxier_core::net::Family;
use proxier_core::ports::{NamedSet, PortError, PortErrorKind};
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::{HostAddresses, Node};

use crate::problem::Problem;
use crate::settings::Settings;
use crate::settings::cli::Configured;

/// Checks all requirements of IPVS mode. Loads and writes nothing, but newer kernels load IPVS when asked about it.
///
/// A missing family is not an obstacle if the kernel has the other one: `run` then serves that one.
///
/// # Errors
///
/// No kernel module can have the configured scheduler's name.
pub(crate) fn check(settings: &Settings, kernel: &mut KernelPorts) -> Result<Report, Problem> {
    let mut ask = |capability: &Capability| ask(kernel, capability);
    Ok(Requirements::from_settings(settings)?.check(&mut ask).report)
}

/// Checks that IPVS mode, if it may serve, has an existing scheduler: one of the kernel's own tree, or one whose module
/// this machine shows a trace of. Falling back to another mode would hide a misspelt name.
///
/// # Errors
///
/// This machine does not know it; the problem lists the names.
pub fn check_scheduler(configured: &Configured) -> Result<(), Problem> {
    let scheduler = configured.settings.core.ipvs.scheduler;
    if !configured.may_serve_in(Kind::Ipvs) || Profile::known_schedulers().any(|name| name == scheduler.name()) {
        return Ok(());
    }
    let names: Vec<&str> = Profile::known_schedulers().collect();
    let unknown = format!("{:?} is not a scheduler of IPVS ({})", scheduler.name(), names.join(", "));
    let Ok(profile) = Profile::default().scheduler(scheduler.name()) else {
        return Err(configured.problem("ipvs.scheduler", unknown));
    };
    let report = Probe::new().profile(profile).run();
    let finding = report.finding(&format!("scheduler {scheduler}"));
    // A line that names the scheduler is evidence for it; a complete list without it is evidence against it.
    if finding.and_then(|finding| finding.evidence.as_ref()).is_some_and(|seen| seen.line.is_some()) {
        return Ok(());
    }
    let fix = finding.and_then(|finding| finding.fix.as_ref()).map(|fix| format!("; {fix}")).unwrap_or_default();
    let reason = format!("{unknown}, and there is no sign of a module ip_vs_{scheduler}{fix}");
    Err(configured.problem("ipvs.scheduler", reason))
}

/// Requirements to check.
pub(crate) struct Requirements {
    profile: Profile,
    families: Served,
}

/// Result of the checks, and the desired families that this kernel can serve.
pub(crate) struct Findings {
    pub(crate) report: Report,
    pub(crate) families: Served,
}

impl Requirements {
    pub(crate) fn from_settings(settings: &Settings) -> Result<Self, Problem> {
        let profile = Profile::default()
            .scheduler(&settings.core.ipvs.scheduler.to_string())
            .map_err(|error| Problem::new("ipvs.scheduler", error.to_string()))?;
        let by_nft = settings.core.ipvs.rules == RulesBy::Nftables;
        let profile = profile.strict_arp(settings.host.strict_arp).without_iptables(by_nft);
        Ok(Requirements { profile, families: settings.core.families })
    }

    /// Checks files, and asks the kernel.
    pub(crate) fn check(self, active: &mut dyn ActiveProbe) -> Findings {
        let Requirements { profile, families } = self;
        let mut probe = |families| Probe::new().profile(profile.clone().families(families)).run_with(active);
        let of_kernel = |families| match families {
            Served::V4 => Families::Ipv4,
            Served::V6 => Families::Ipv6,
            Served::Dual => Families::Dual,
        };
        let report = probe(of_kernel(families));
        if families != Served::Dual || report.verdict.answer != Answer::No {
            return Findings { report, families };
        }
        for (family, other) in [(Served::V4, "IPv6"), (Served::V6, "IPv4")] {
            let mut alone = probe(of_kernel(family));
            if alone.verdict.answer == Answer::Yes {
                let reasons = report.verdict.reasons.iter().map(|reason| format!("{other} is not served: {reason}"));
                alone.verdict.caveats.extend(reasons);
                return Findings { report: alone, families: family };
            }
        }
        Findings { report, families }
    }
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
///
/// # Errors
///
/// The mode cannot be used: each obstacle with its fix.
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
    let report = check(settings, kernel).map_err(|problem| vec![problem])?;
    for outcome in Loader::new().load_all(&report.to_load()) {
        tracing::debug!("module {}: {:?}", outcome.module, outcome.result);
    }
    let Err(error) = kernel.ports().ipvs.timeouts() else { return Ok(()) };
    let mut problems = vec![Problem::new("", format!("IPVS cannot be used: {error}"))];
    problems.extend(report.verdict.reasons.iter().map(|reason| Problem::new("", reason.clone())));
    Err(problems)
}

/// Checks by a trial that iptables mode can serve at least one family. Temporary failures, such as a held lock, are not
/// obstacles.
fn require_iptables(settings: &Settings, kernel: &mut KernelPorts) -> Result<(), Vec<Problem>> {
    rule_families(kernel, settings.core.families).map_err(|problem| vec![problem])?;
    let mut problems = Vec::new();
    for (family, all) in try_iptables(settings, kernel) {
        let needed = all.into_iter().filter(|tried| tried.is_needed_by_all);
        let refused: Vec<PortError> = needed.filter_map(|tried| tried.outcome.err()).collect();
        if refused.iter().all(|error| matches!(error.kind(), PortErrorKind::Busy | PortErrorKind::Unknown)) {
            return Ok(());
        }
        problems.extend(refused.iter().map(|error| Problem::new("", format!("{family}: {error}"))));
    }
    Err(problems)
}

/// The requested families that this machine can serve: rules need iptables for each.
pub(crate) fn rule_families(kernel: &mut KernelPorts, wanted: Served) -> Result<(Served, Vec<String>), Problem> {
    let ports = kernel.ports();
    let mut notes = Vec::new();
    let (mut v4, mut v6) = (false, false);
    for family in wanted.iter() {
        let is_v4 = family == Family::V4;
        match ports.rules.has_random_fully(family) {
            // Any other failure may be temporary; the next pass reports it if not.
            Ok(_random) => *(if is_v4 { &mut v4 } else { &mut v6 }) = true,
            Err(error) if error.kind() != PortErrorKind::Unavailable => {
                *(if is_v4 { &mut v4 } else { &mut v6 }) = true;
            }
            Err(error) => notes.push(format!("{family} is not served: {error}")),
        }
    }
    let families = match (v4, v6) {
        (true, true) => Served::Dual,
        (true, false) => Served::V4,
        (false, true) => Served::V6,
        (false, false) => return Err(Problem::new("", format!("cannot write rules: {}", notes.join("; ")))),
    };
    Ok((families, notes))
}

/// The configured families that nftables mode supports here, and notes on the others.
///
/// # Errors
///
/// No family can be served; the problem shows what the kernel refuses.
pub(crate) fn nftables_families(
    settings: &Settings,
    kernel: &mut KernelPorts,
) -> Result<(Served, Vec<String>), Problem> {
    families_of(try_nftables(settings, kernel), "nftables mode cannot be used")
}

fn families_of(tried: Vec<(Family, Result<(), PortError>)>, otherwise: &str) -> Result<(Served, Vec<String>), Problem> {
    let (mut served, mut notes) = (Vec::new(), Vec::new());
    for (family, outcome) in tried {
        match outcome {
            Ok(()) => served.push(family),
            // The failure may be temporary; the next pass reports it if not.
            Err(error) if matches!(error.kind(), PortErrorKind::Busy | PortErrorKind::Unknown) => served.push(family),
            Err(error) => notes.push(format!("{} is not served: {error}", family.name())),
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

/// The configured families whose virtual servers nf_tables can guard here, and notes on the others.
///
/// # Errors
///
/// No family can be guarded; the problem shows what the kernel refuses.
pub(crate) fn ipvs_table_families(
    settings: &Settings,
    kernel: &mut KernelPorts,
) -> Result<(Served, Vec<String>), Problem> {
    let what = "nf_tables cannot guard virtual servers";
    families_of(try_ipvs_table(settings, kernel), what)
}

/// The kernel's answer to a trial table of IPVS mode, by family.
pub(crate) fn try_ipvs_table(settings: &Settings, kernel: &mut KernelPorts) -> Vec<(Family, Result<(), PortError>)> {
    let facts = NodeFacts::new(&settings.core, &Node::new(&settings.node_name), &HostAddresses::default());
    let ports = kernel.ports();
    ipvs::trials(settings.core.families.iter(), &facts, ports.tables)
}

/// The kernel's answer to a trial table of nftables mode, by family.
pub(crate) fn try_nftables(settings: &Settings, kernel: &mut KernelPorts) -> Vec<(Family, Result<(), PortError>)> {
    let facts = NodeFacts::new(&settings.core, &Node::new(&settings.node_name), &HostAddresses::default());
    let ports = kernel.ports();
    nftables::trials(settings.core.families.iter(), &facts, ports.tables)
}

/// Answers of the programs and the kernel to trial rules of iptables mode, by family; each family is tried lazily.
pub(crate) fn try_iptables(
    settings: &Settings,
    kernel: &mut KernelPorts,
) -> impl Iterator<Item = (Family, Vec<iptables::Tried>)> {
    let facts = NodeFacts::new(&settings.core, &Node::new(&settings.node_name), &HostAddresses::default());
    settings.core.families.iter().map(move |family| (family, iptables::trial(family, &facts, kernel.ports().rules)))
}

//! The probe: reads the lists, judges every requirement and reaches a verdict.

use std::path::PathBuf;

use crate::Answer;
use crate::active::{ActiveProbe, NoActiveProbe};
use crate::profile::{Family, Profile};
use crate::report::{Finding, Fix, Report, State, Verdict};
use crate::requirement::{Backend, Need};
use crate::resolve;
use crate::root::Root;
use crate::sources::Sources;
use crate::sysctl::{self, Access, SysctlFinding, SysctlState};

/// Finds out what a kernel supports. It only reads files: it starts no program, loads no module and writes nothing.
#[derive(Clone, Debug)]
pub struct Probe {
    root: PathBuf,
    profile: Profile,
}

impl Default for Probe {
    fn default() -> Self {
        Self::new()
    }
}

impl Probe {
    /// Probes this machine, for the default [`Profile`].
    #[must_use]
    pub fn new() -> Self {
        Self { root: PathBuf::from("/"), profile: Profile::default() }
    }

    /// Reads all paths below another directory: the host's root mounted in a container, an image, a captured tree.
    /// Symbolic links, even absolute ones, never lead out of it.
    #[must_use]
    pub fn root(mut self, root: impl Into<PathBuf>) -> Self {
        self.root = root.into();
        self
    }

    /// Sets the required parts of the kernel.
    #[must_use]
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Looks, with files alone.
    #[must_use]
    pub fn run(&self) -> Report {
        self.run_with(&mut NoActiveProbe)
    }

    /// Probes, and also asks the running kernel. Each capability is asked for at most once.
    #[must_use]
    pub fn run_with(&self, active: &mut dyn ActiveProbe) -> Report {
        let sources = Sources::read(Root::new(self.root.clone()));
        let requirements = self.profile.requirements();
        let findings: Vec<Finding> =
            requirements.iter().map(|requirement| resolve::finding(&sources, requirement, active)).collect();
        let backends = [Backend::Nft, Backend::Legacy].map(|backend| (backend, self.backend(backend, &findings)));
        let sysctls = sysctl::findings(&sources, &self.profile);
        let verdict =
            Judge { profile: &self.profile, findings: &findings, backends: &backends, sysctls: &sysctls }.verdict();
        let is_without_rules = self.profile.is_own() || self.profile.without_iptables;
        Report {
            subject: self.profile.subject().to_owned(),
            root: sources.root.path().display().to_string(),
            release: sources.release.get().cloned(),
            module_support: sources.module_support,
            findings,
            backends: if is_without_rules { Vec::new() } else { backends.to_vec() },
            sysctls,
            sources: sources.statuses(),
            verdict,
        }
    }

    /// Whether a backend has everything for the requested families.
    fn backend(&self, backend: Backend, findings: &[Finding]) -> Answer {
        let rows = findings.iter().filter(|finding| needed_by(&self.profile, backend, finding));
        rows.map(|finding| match finding.state {
            State::Missing => Answer::No,
            // A part that cannot be checked is not an obstacle.
            State::Unknown if !finding.is_feature => Answer::Unknown,
            _ => Answer::Yes,
        })
        .fold(Answer::Yes, |worst, answer| match (worst, answer) {
            (Answer::No, _) | (_, Answer::No) => Answer::No,
            (Answer::Unknown, _) | (_, Answer::Unknown) => Answer::Unknown,
            _ => Answer::Yes,
        })
    }
}

/// Inputs of the verdict.
struct Judge<'a> {
    profile: &'a Profile,
    findings: &'a [Finding],
    backends: &'a [(Backend, Answer)],
    sysctls: &'a [SysctlFinding],
}

impl Judge<'_> {
    fn verdict(&self) -> Verdict {
        let mut verdict = Verdict { answer: Answer::Yes, reasons: Vec::new(), caveats: Vec::new() };
        self.judge_findings(&mut verdict);
        self.judge_backends(&mut verdict);
        for sysctl in self.sysctls {
            judge_sysctl(sysctl, &mut verdict);
        }
        if verdict.answer == Answer::No {
            // Unknowns no longer matter, but missing parts do.
            verdict.reasons.retain(|reason| !reason.starts_with(NOT_KNOWN));
        }
        verdict
    }

    /// One reason for each missing part; unknown parts with the same cause share one.
    fn judge_findings(&self, verdict: &mut Verdict) {
        let mut unknown: Vec<(String, Vec<&str>)> = Vec::new();
        let mut causes: Vec<&Fix> = Vec::new();
        for finding in self.findings.iter().filter(|finding| finding.need == Need::Required) {
            let fix = fix_of(finding);
            match finding.state {
                // One reason is enough for a module and its parts.
                State::Missing | State::Unknown if finding.is_feature && !self.is_usable(finding.module.as_ref()) => {}
                // The same for a module and those that depend on it.
                State::Missing if finding.fix.as_ref().is_some_and(|fix| causes.contains(&fix)) => {}
                State::Missing => {
                    let of_one_module = |fix: &&Fix| matches!(fix, Fix::RestoreFile { .. } | Fix::Allow { .. });
                    causes.extend(finding.fix.as_ref().filter(of_one_module));
                    obstacle(verdict, Answer::No, format!("{} is missing ({}){fix}", finding.name, finding.why));
                }
                State::Unknown if finding.is_feature => {
                    verdict.caveats.push(format!("{} could not be checked{fix}", finding.name));
                }
                State::Unknown => match unknown.iter_mut().find(|(known, _)| *known == fix) {
                    Some((_, names)) => names.push(&finding.name),
                    None => unknown.push((fix, vec![&finding.name])),
                },
                State::Loaded | State::BuiltIn | State::Working | State::Loadable => {}
            }
        }
        for (fix, names) in unknown {
            obstacle(verdict, Answer::Unknown, format!("{NOT_KNOWN}{}{fix}", names.join("; ")));
        }
    }

    fn is_usable(&self, module: Option<&crate::ModuleName>) -> bool {
        let host = self.findings.iter().find(|finding| !finding.is_feature && finding.module.as_ref() == module);
        host.is_none_or(|finding| finding.state.is_usable())
    }

    fn judge_backends(&self, verdict: &mut Verdict) {
        let answers = self.backends;
        if answers.iter().any(|(_, answer)| *answer == Answer::Yes) {
            return;
        }
        let unknown = answers.iter().any(|(_, answer)| *answer == Answer::Unknown);
        let (state, answer, says) = if unknown {
            (State::Unknown, Answer::Unknown, format!("{NOT_KNOWN}iptables rules"))
        } else {
            (State::Missing, Answer::No, "iptables rules cannot be written".to_owned())
        };
        let mut details = Vec::new();
        let mut fix = String::new();
        for (backend, of) in answers.iter().filter(|(_, of)| *of == answer) {
            let rows: Vec<_> = self
                .findings
                .iter()
                .filter(|finding| finding.state == state && needed_by(self.profile, *backend, finding))
                .collect();
            if fix.is_empty() {
                fix = rows.first().map(|finding| fix_of(finding)).unwrap_or_default();
            }
            let names: Vec<_> = rows.iter().map(|finding| finding.name.as_str()).collect();
            let word = if *of == Answer::No { "lacks" } else { "could not be checked for" };
            details.push(format!("iptables-{} {word} {}", backend.as_str(), names.join("; ")));
        }
        obstacle(verdict, answer, format!("{says}: {}{fix}", details.join("; ")));
    }
}

/// Whether a backend needs a finding for the requested families.
fn needed_by(profile: &Profile, backend: Backend, finding: &Finding) -> bool {
    finding.backend.is_some_and(|(of, families)| {
        let wanted = profile.families;
        of == backend && [Family::Ipv4, Family::Ipv6].iter().any(|family| families.has(*family) && wanted.has(*family))
    })
}

/// The fix as the end of a sentence.
fn fix_of(finding: &Finding) -> String {
    finding.fix.as_ref().map(|fix| format!(": {fix}")).unwrap_or_default()
}

/// Prefix of every reason that is a doubt rather than an obstacle.
const NOT_KNOWN: &str = "not known: ";

fn obstacle(verdict: &mut Verdict, answer: Answer, reason: String) {
    if verdict.answer != Answer::No {
        verdict.answer = answer;
    }
    verdict.reasons.push(reason);
}

fn judge_sysctl(sysctl: &SysctlFinding, verdict: &mut Verdict) {
    // Those of IPVS appear when its module is loaded.
    if sysctl.state == SysctlState::Absent && !sysctl.name.starts_with("net/ipv4/vs/") {
        verdict.caveats.push(format!("sysctl {} does not exist ({})", sysctl.name, sysctl.why));
    }
    if sysctl.state != SysctlState::Wrong || sysctl.access == Access::Writable {
        return;
    }
    let current = sysctl.current.as_deref().unwrap_or_default();
    let says = format!("{} is {current}, should be {} ({})", sysctl.name, sysctl.wanted, sysctl.why);
    match (sysctl.need, sysctl.access) {
        (Need::Required, Access::ReadOnly) => obstacle(
            verdict,
            Answer::No,
            format!("{says}, and /proc/sys is read-only here: set it on the host, or run privileged"),
        ),
        (_, Access::ReadOnly) => verdict.caveats.push(format!("{says}; /proc/sys is read-only here")),
        _ => verdict.caveats.push(format!("{says}; this process may not change it")),
    }
}

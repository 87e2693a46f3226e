//! The result: the state of each requirement, the evidence, what to do, and one verdict.

use std::fmt;

use crate::modules::ModuleName;
use crate::profile::Families;
use crate::requirement::{Backend, Need};
use crate::root::Failure;
use crate::sources::COMMAND_LINE;
use crate::sysctl::SysctlFinding;
use crate::version::KernelRelease;

/// Yes, no, or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Answer {
    /// Yes.
    Yes,
    /// No, with proof.
    No,
    /// The evidence is not sufficient for either.
    Unknown,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        })
    }
}

/// State of a requirement in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum State {
    /// The module is loaded.
    Loaded,
    /// It is built into the kernel image.
    BuiltIn,
    /// The running kernel supports it, whether loaded or built in.
    Working,
    /// The module can be loaded, by the kernel at first use or by [`Loader`](crate::Loader).
    Loadable,
    /// The kernel does not have it.
    Missing,
    /// The evidence is not sufficient.
    Unknown,
}

impl State {
    /// Whether it can be used, now or after loading a module.
    #[must_use]
    pub fn is_usable(self) -> bool {
        matches!(self, Self::Loaded | Self::BuiltIn | Self::Working | Self::Loadable)
    }

    /// The word for it in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Loaded => "loaded",
            Self::BuiltIn => "built in",
            Self::Working => "working",
            Self::Loadable => "loadable",
            Self::Missing => "missing",
            Self::Unknown => "unknown",
        }
    }
}

/// What shows the state of a requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Evidence {
    /// The file, as seen inside the root.
    pub path: String,
    /// The line (or record) of the file, from 1.
    pub line: Option<usize>,
    /// Content of the line, or the answer.
    pub says: String,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.says.is_empty() {
            write!(f, " {}", self.says)?;
        }
        Ok(())
    }
}

/// Remedy for a requirement that cannot be used. `Display` is one sentence.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Fix {
    /// Load the module.
    Load(ModuleName),
    /// `modules.dep` lists a file that does not exist.
    RestoreFile {
        /// The module's file, as seen inside the root.
        path: String,
        /// The kernel release.
        release: String,
    },
    /// The kernel was built with it as a module, which is not installed.
    InstallModule {
        /// The module.
        module: ModuleName,
        /// The kernel release.
        release: String,
    },
    /// The modules' directory has no usable `modules.dep`.
    RunDepmod(String),
    /// The directory with this kernel's modules is not visible.
    MountModules {
        /// The kernel release.
        release: String,
        /// Releases whose modules are visible.
        others: Vec<String>,
    },
    /// The kernel's configuration is not visible.
    ShowConfig(String),
    /// The kernel was built without it.
    KernelWith(String),
    /// Module loading is disabled until the next boot.
    ModulesDisabled(ModuleName),
    /// `modprobe.d` or the kernel's command line forbids loading the module.
    Allow {
        /// The forbidden module: this one, or a dependency.
        module: ModuleName,
        /// The file that forbids it, as seen inside the root.
        path: String,
    },
    /// This process may not read a file.
    GrantRead(String),
    /// The kernel release cannot be read.
    ShowRelease,
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load(module) => write!(f, "load with: modprobe {module}"),
            Self::RestoreFile { path, release } => {
                write!(f, "{path} is gone: reinstall the modules of kernel {release}, then run: depmod -a {release}")
            }
            Self::InstallModule { module, release } => write!(
                f,
                "install the package with module {module} of kernel {release} (often linux-modules-extra or \
                 kernel-modules), or use a kernel that has it"
            ),
            Self::RunDepmod(release) => write!(f, "run: depmod -a {release}"),
            Self::MountModules { release, others } if others.is_empty() => {
                write!(
                    f,
                    "mount the host's /lib/modules read-only: modules of kernel {release} cannot be seen from here"
                )
            }
            Self::MountModules { release, others } => write!(
                f,
                "modules are installed for {} but not for the running {release}: restart into that kernel, or mount the \
                 host's /lib/modules read-only",
                others.join(", ")
            ),
            Self::ShowConfig(release) => {
                write!(f, "make the kernel's configuration readable: /proc/config.gz or /boot/config-{release}")
            }
            Self::KernelWith(symbol) => write!(f, "this kernel was built without CONFIG_{symbol}: use one that has it"),
            Self::ModulesDisabled(module) => {
                write!(f, "kernel.modules_disabled is 1: restart, and load {module} before it is set")
            }
            Self::Allow { module, path } if path == COMMAND_LINE => {
                write!(f, "{path} forbids module {module} (module_blacklist={module}): start the kernel without it")
            }
            Self::Allow { module, path } => {
                write!(f, "{path} forbids module {module} (install {module} …): remove that line")
            }
            Self::GrantRead(path) => write!(f, "let this process read {path} (run it as root)"),
            Self::ShowRelease => f.write_str("mount /proc: the kernel release cannot be read"),
        }
    }
}

/// Result for one requirement.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Finding {
    /// Name of the requirement: a module (`xt_set`), `scheduler rr`, `set hash:ip`, or a feature such as `ip_vs: UDP`.
    pub name: String,
    /// Purpose of the requirement.
    pub why: String,
    /// Importance of the requirement.
    pub need: Need,
    /// Its iptables backend, and the families that need it.
    pub backend: Option<(Backend, Families)>,
    /// State in the kernel.
    pub state: State,
    /// The module that provides it, or would.
    pub module: Option<ModuleName>,
    /// Whether it is a part of `module` that the kernel's configuration switches, rather than a module.
    pub is_feature: bool,
    /// What shows the state; `None` if nothing was found.
    pub evidence: Option<Evidence>,
    /// Remedy; `None` if nothing needs to be done.
    pub fix: Option<Fix>,
}

/// Outcome of reading one list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SourceStatus {
    /// The file or directory, as seen inside the root.
    pub path: String,
    /// Why the list was not used, if so.
    pub failure: Option<Failure>,
    /// Whether all of it was valid. What an incomplete list does not contain may still exist.
    pub complete: bool,
}

/// Whether IPVS mode, or the [subject of the profile](crate::Profile::own), can be used with this profile.
#[doc(alias = "CanUseIPVSProxier")]
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Verdict {
    /// The answer. [`Answer::No`] and [`Answer::Unknown`] come with reasons.
    pub answer: Answer,
    /// Why the answer is not yes: every obstacle with its remedy.
    pub reasons: Vec<String>,
    /// Facts that do not change the answer: something that could not be checked, a contradiction, a value that this
    /// process may not change.
    pub caveats: Vec<String>,
}

/// The result of a probe.
///
/// `Display` prints the table of [`Report::table`].
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Report {
    /// Subject of the verdict: `IPVS mode`, or the profile's own.
    pub subject: String,
    /// The directory below which all paths are.
    pub root: String,
    /// The kernel release, if it could be read.
    pub release: Option<KernelRelease>,
    /// Whether the kernel can load modules. With [`Answer::No`] only built-in parts can be used.
    pub module_support: Answer,
    /// One finding a requirement.
    pub findings: Vec<Finding>,
    /// iptables backends, and whether they have everything for the requested families.
    pub backends: Vec<(Backend, Answer)>,
    /// Sysctls that IPVS mode needs.
    pub sysctls: Vec<SysctlFinding>,
    /// Outcome of reading each list.
    pub sources: Vec<SourceStatus>,
    /// The answer.
    pub verdict: Verdict,
}

impl Report {
    /// The finding with this name (`ip_vs`, `scheduler rr`, `set hash:ip,port`).
    #[must_use]
    pub fn finding(&self, name: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.name == name)
    }

    /// Modules that are not loaded but could be, for [`Loader::load_all`](crate::Loader::load_all). These are those of
    /// required findings and of the first usable iptables backend, without duplicates, in the order of the findings.
    #[must_use]
    pub fn to_load(&self) -> Vec<ModuleName> {
        let backend = self.backends.iter().find(|(_, answer)| *answer == Answer::Yes).map(|(backend, _)| *backend);
        let mut modules = Vec::new();
        for finding in &self.findings {
            let needed = match finding.need {
                Need::Required => true,
                Need::Either => finding.backend.is_some_and(|(of, _)| Some(of) == backend),
                Need::Wanted => false,
            };
            if let (true, State::Loadable, Some(module)) = (needed, finding.state, &finding.module)
                && !modules.contains(module)
            {
                modules.push(module.clone());
            }
        }
        modules
    }
}

//! Probe of the running kernel for the parts that IPVS, ipset and iptables need, with the evidence for each.
//!
//! A node that should run a service proxy in IPVS mode needs some forty things from its kernel: `ip_vs` and a
//! scheduler, sets of five types, a dozen iptables matches, a dummy device. Each may be a module, be built in, be
//! switched off, be installed but not visible from a container, or have another name in an older kernel. [`Probe`] looks
//! for each of them and says for each what was found, in which file and line, and what to do if it is not there.
//!
//! ```
//! use kmod_probe::{Answer, Families, Probe, Profile};
//!
//! let profile = Profile::default().scheduler("mh")?.families(Families::Dual);
//! let report = Probe::new().profile(profile).run();
//!
//! println!("{report}");
//! match report.verdict.answer {
//!     Answer::Yes => println!("IPVS mode can be used"),
//!     Answer::No => println!("it cannot: {}", report.verdict.reasons.join("; ")),
//!     Answer::Unknown => println!("not known: {}", report.verdict.reasons.join("; ")),
//! }
//! # Ok::<(), kmod_probe::Error>(())
//! ```
//!
//! Requirements of a caller's own are judged and reported in the same way, with those of IPVS mode or without: see [`Profile::own`] and
//! [`Requirement`].
//!
//! # What there is
//!
//! | task | here |
//! | --- | --- |
//! | look at this machine, or at another root | [`Probe`], [`Profile`] |
//! | what was found, why, and what to do | [`Report`], [`Finding`], [`Evidence`], [`Fix`], [`Verdict`] |
//! | requirements of a caller's own | [`Profile::own`], [`Requirement`] |
//! | questions to the kernel itself, by the caller | [`ActiveProbe`], [`Capability`] |
//! | load modules | [`Loader`] |
//! | settings below `/proc/sys` | [`SysctlFinding`] |
//! | the sources, one by one | [`Kconfig`], [`LoadedModules`], [`LoadableModules`], [`BuiltinModules`], [`KernelRelease`] |
//!
//! # What it does not do
//!
//! * No netlink. What the kernel itself can be asked is put to an [`ActiveProbe`] that the caller brings.
//! * Nothing is loaded, written or started by looking. [`Loader`] runs `modprobe`, and only when it is called.
//! * Of `modprobe.d`, it reads only what forbids a module (`install MODULE /bin/false`). One that is blacklisted or replaced by
//!   another command is still reported as loadable.
//! * It does not look into module files: one that the kernel refuses (signature, wrong build) is loadable here too.
//!
//! # Which evidence counts
//!
//! In this order; the first that decides is [`Finding::evidence`]:
//!
//! 1. `/proc/modules` or `/sys/module/<name>/initstate`: **loaded**;
//! 2. `/sys/module/<name>` without `initstate`, `modules.builtin`, or the configuration's `=y`: **built in**;
//! 3. an [`ActiveProbe`] that works: **working**;
//! 4. `modules.dep` names it: **loadable**, or **missing** when its file is gone, when `modprobe.d` forbids it, when either holds for a
//!    module that it needs, or when module loading is switched off for good;
//! 5. the configuration's "is not set", or a whole configuration that does not mention it: **missing**;
//! 6. whole lists of modules without it, and the configuration's `=m` or a whole list of what is built in: **missing**;
//! 7. an [`ActiveProbe`] that is refused: **missing**;
//! 8. nothing: **unknown**. Where `/lib/modules` cannot be seen, as in most containers, a module that is not loaded is unknown: the kernel loads
//!    modules from the host's file system, not from this one.
//!
//! A list that is cut off, has lines that make no sense, or may not be read never proves that something is missing. A
//! switch inside a module (`CONFIG_IP_VS_IPV6`) that cannot be checked because there is no configuration is a caveat of
//! the verdict, not an obstacle; distributions have them on.

#![forbid(unsafe_code)]

mod active;
mod error;
mod kconfig;
mod load;
mod modules;
mod probe;
mod profile;
mod report;
mod requirement;
mod resolve;
mod root;
mod sources;
mod sysctl;
mod table;
mod text;
mod version;

pub use active::{ActiveAnswer, ActiveProbe, Capability, NoActiveProbe};
pub use error::{Error, ErrorKind};
pub use kconfig::{Kconfig, Setting};
pub use load::{LoadOutcome, LoadResult, Loader, RunOutcome, Runner, SystemRunner};
pub use modules::{BuiltinModules, LoadableModules, LoadedModules, ModuleName, ModuleState};
pub use probe::Probe;
pub use profile::{Families, Family, Profile};
pub use report::{Answer, Evidence, Finding, Fix, Report, SourceStatus, State, Verdict};
pub use requirement::{Backend, Need, Requirement};
pub use root::Failure;
pub use sysctl::{Access, SysctlFinding, SysctlState};
pub use version::KernelRelease;

/// The example of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

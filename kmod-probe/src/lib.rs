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
//! | settings below `/proc/sys` | [`Sysctl`], [`SysctlFinding`] |
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
//! In this order; what comes first decides, and the rest stays in [`Finding::evidence`]:
//!
//! 1. `/proc/modules` or `/sys/module/<name>/initstate`: **loaded**;
//! 2. `/sys/module/<name>` without `initstate`, `modules.builtin`, `modules.builtin.modinfo` of this release: **built in**;
//! 3. the configuration's `=y`: **built in**;
//! 4. an [`ActiveProbe`] that works, or a file that only this part of the kernel makes (`/proc/net/ip_vs`): **working**,
//!    unless 1 to 3 know better whether it is loaded or built in. It beats everything below;
//! 5. `modules.dep` names it and the file is there: **loadable** (the file gone, or module loading switched off for good:
//!    **missing**);
//! 6. the configuration's "is not set", or a whole configuration that does not mention it: **missing**;
//! 7. the configuration's `=m`, and a whole `modules.dep` without it: **missing**, its package is not installed. Where
//!    `/lib/modules` cannot be seen, as in most containers, it is **unknown**: the kernel loads modules from the host's
//!    file system, not from this one;
//! 8. whole lists of modules and of what is built in, and neither names it: **missing**;
//! 9. nothing: **unknown**.
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
mod own;
mod policy;
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
pub use profile::{Families, Family, Profile, Scheduler};
pub use report::{Answer, Evidence, EvidenceKind, Finding, Fix, ModuleSupport, Report, SourceStatus, State, Verdict};
pub use requirement::{Backend, Need, Provider, Requirement};
pub use root::Failure;
pub use sysctl::{Access, Sysctl, SysctlFinding, SysctlState};
pub use version::{IpsetVersion, KernelRelease};

/// The example of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

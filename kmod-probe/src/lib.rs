//! Finds out whether the running kernel has the parts that IPVS, ipset and iptables need, with the evidence for each.
//!
//! A service proxy in IPVS mode needs about forty parts of the kernel: `ip_vs` and a scheduler, sets of five types, a
//! dozen iptables matches, a dummy device. Each may be a module, built in, disabled, invisible from a container, or
//! named differently in an older kernel. [`Probe`] reports the state of each, the file and line that shows it, and what
//! to do if it is missing.
//!
//! It does not:
//! * use netlink: questions for the kernel itself go to an [`ActiveProbe`] that you provide;
//! * load, write or start anything, except in [`Loader`], which runs `modprobe` when you call it;
//! * interpret all of `modprobe.d`: it only reads lines that forbid a module (`install MODULE /bin/false`), so a
//!   blacklisted or replaced module is still reported as loadable;
//! * open module files: one that the kernel would refuse (signature, wrong build) is reported as loadable.
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
//! You can add your own requirements, with or without those of IPVS mode: see [`Profile::own`] and [`Requirement`].
//!
//! # Where to look next
//!
//! | task | API |
//! | --- | --- |
//! | probe this machine, or another root | [`Probe`], [`Profile`] |
//! | read the result: what, why, and what to do | [`Report`], [`Finding`], [`Evidence`], [`Fix`], [`Verdict`] |
//! | add your own requirements | [`Profile::own`], [`Requirement`] |
//! | let the kernel itself answer | [`ActiveProbe`], [`Capability`] |
//! | load modules | [`Loader`] |
//! | check settings below `/proc/sys` | [`SysctlFinding`] |
//! | read single sources | [`Kconfig`], [`LoadedModules`], [`LoadableModules`], [`BuiltinModules`], [`KernelRelease`] |
//!
//! # Order of evidence
//!
//! The first of these that decides is [`Finding::evidence`]:
//!
//! 1. `/proc/modules` or `/sys/module/<name>/initstate`: **loaded**;
//! 2. `/sys/module/<name>` without `initstate`, `modules.builtin`, or the configuration's `=y`: **built in**;
//! 3. an [`ActiveProbe`] that works: **working**;
//! 4. `modules.dep` lists it: **loadable**. Or **missing**, if its file is missing, if `modprobe.d` or the kernel's
//!    `module_blacklist=` forbids it, if either holds for one of its dependencies, or if module loading is disabled
//!    until the next boot;
//! 5. the configuration's "is not set", or a complete configuration that does not mention it: **missing**;
//! 6. complete lists of modules without it, and the configuration's `=m` or a complete list of built-in modules:
//!    **missing**;
//! 7. an [`ActiveProbe`] that is refused: **missing**;
//! 8. nothing: **unknown**. If `/lib/modules` is not visible, as in most containers, a module that is not loaded is
//!    unknown, because the kernel loads modules from the host's file system.
//!
//! A list that is truncated, has invalid lines or may not be read never proves that something is missing. A switch
//! inside a module (`CONFIG_IP_VS_IPV6`) that cannot be checked without a configuration is a caveat of the verdict, not
//! an obstacle, because distributions enable these.

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

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

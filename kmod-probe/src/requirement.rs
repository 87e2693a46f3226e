//! Requirements as data, and the ways to meet them. Their list is in `table.rs`.

use std::borrow::Cow;

use crate::active::Capability;
use crate::modules::ModuleName;
use crate::profile::Families;
use crate::version::KernelRelease;

/// Importance of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Need {
    /// Without it the [subject of the profile](crate::Profile::own), or IPVS mode, does not work.
    Required,
    /// One of two ways to write iptables rules: all rows of at least one [`Backend`] are required.
    Either,
    /// Only what [`Requirement::why`] names does not work without it.
    Wanted,
}

/// Kernel interface by which iptables rules reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Backend {
    /// `iptables-legacy`: the kernel's `ip_tables`. Off by default in kernels from 6.17 on.
    Legacy,
    /// `iptables-nft`: `nf_tables` with `nft_compat`.
    Nft,
}

impl Backend {
    /// `legacy` or `nft`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nft => "nft",
        }
    }
}

/// A file whose presence or content proves that something is in the running kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// This path exists.
    Path(&'static str),
    /// This file has a line that is exactly this word.
    Word(&'static str, &'static str),
}

/// One way to meet a requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// The module, or the module that a feature is part of. `None`: an option of the kernel itself, a file, or the kernel's version.
    pub module: Option<ModuleName>,
    /// Symbol of the kernel configuration without `CONFIG_`. `None` for a module this crate has never heard of.
    pub symbol: Option<String>,
    /// For a symbol that switches code inside `module` on and off (`CONFIG_IP_VS_IPV6`) instead of building a module: the
    /// symbol that builds the module (`IP_VS`).
    pub part_of: Option<String>,
    /// First upstream kernel that has it, `None`: older than 3.10.
    pub since: Option<(u64, u64)>,
    /// First upstream kernel that no longer has it.
    pub until: Option<(u64, u64)>,
    pub(crate) markers: &'static [Marker],
    /// Files that a caller named as such.
    pub(crate) files: Vec<String>,
}

impl Provider {
    /// Nothing that could be looked for.
    pub(crate) const NONE: Self =
        Self { module: None, symbol: None, part_of: None, since: None, until: None, markers: &[], files: Vec::new() };

    /// Whether it is a part of `module` that the configuration switches, not a module.
    #[must_use]
    pub fn is_feature(&self) -> bool {
        self.part_of.is_some()
    }

    /// Whether an upstream kernel of this version has it; an unknown version may.
    #[must_use]
    pub fn is_expected_in(&self, release: Option<&KernelRelease>) -> bool {
        let young_enough =
            |release: &KernelRelease| self.since.is_none_or(|(major, minor)| release.at_least(major, minor));
        release.is_none_or(young_enough) && !self.is_gone_from(release)
    }

    /// Whether an upstream kernel of this version no longer has it.
    pub(crate) fn is_gone_from(&self, release: Option<&KernelRelease>) -> bool {
        let until = self.until.zip(release);
        until.is_some_and(|((major, minor), release)| release.at_least(major, minor))
    }
}

/// Something the kernel has to have, and why. Those of IPVS mode come from [`Profile::requirements`](crate::Profile::requirements); a caller
/// makes others, for [`Profile::require`](crate::Profile::require).
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Name in reports: a module (`xt_set`), `scheduler rr`, `set hash:ip`, or a feature such as `ip_vs: UDP`.
    pub name: String,
    /// Purpose of the requirement.
    pub why: Cow<'static, str>,
    /// Importance of the requirement.
    pub need: Need,
    /// For [`Need::Either`]: the backend it belongs to, and the families that need it.
    pub backend: Option<(Backend, Families)>,
    /// Ways to meet it; one is enough.
    pub providers: Vec<Provider>,
    /// Question for an [`ActiveProbe`](crate::ActiveProbe); `None` if it has none.
    pub capability: Option<Capability>,
}

//! Requirements as data. `table.rs` has those of IPVS mode.

use std::borrow::Cow;

use crate::active::Capability;
use crate::error::{Error, ErrorKind, shown};
use crate::modules::ModuleName;
use crate::profile::Families;

/// Importance of a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Need {
    /// Without it IPVS mode, or the [subject of the profile](crate::Profile::own), does not work.
    Required,
    /// One of two ways to write iptables rules. At least one [`Backend`] must have all its rows.
    Either,
    /// Only the feature in [`Requirement::why`] does not work without it.
    Wanted,
}

/// How iptables rules reach the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Backend {
    /// `iptables-legacy`: the kernel's `ip_tables`. Off by default since Linux 6.17.
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

/// Something that the kernel must have, and why. [`Profile::requirements`](crate::Profile::requirements) has those of
/// IPVS mode; you can add others with [`Profile::require`](crate::Profile::require).
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Name in reports: a module (`xt_set`), `scheduler rr`, `set hash:ip`, or a feature such as `ip_vs: UDP`.
    pub name: String,
    /// Purpose of the requirement.
    pub why: Cow<'static, str>,
    /// Importance of the requirement.
    pub need: Need,
    /// For [`Need::Either`]: the backend, and the families that need it.
    pub backend: Option<(Backend, Families)>,
    /// The module, or the module that contains a feature; `None` for an unknown set type.
    pub module: Option<ModuleName>,
    /// Symbol of the kernel configuration without `CONFIG_`, if known.
    pub symbol: Option<String>,
    /// If the symbol switches code inside `module` (`CONFIG_IP_VS_IPV6`): the symbol that builds the module (`IP_VS`).
    pub part_of: Option<String>,
    /// Question for an [`ActiveProbe`](crate::ActiveProbe), if any.
    pub capability: Option<Capability>,
}

impl Requirement {
    /// Requires a module, by the name that `modprobe` accepts. The module's name is also the requirement's.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidModuleName`].
    pub fn module(name: &str, why: impl Into<Cow<'static, str>>) -> Result<Self, Error> {
        let module = ModuleName::new(name)?;
        Ok(Self {
            name: name.to_owned(),
            why: why.into(),
            need: Need::Required,
            backend: None,
            module: Some(module),
            symbol: None,
            part_of: None,
            capability: None,
        })
    }

    /// Sets the configuration option that builds the module, with or without `CONFIG_`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRequirement`] unless it is 1 to 128 letters, digits or `_`.
    pub fn symbol(mut self, symbol: &str) -> Result<Self, Error> {
        let plain = symbol.strip_prefix("CONFIG_").unwrap_or(symbol);
        if !(1..=128).contains(&plain.len()) || !plain.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let says = "expected 1 to 128 letters, digits or _, such as \"NF_FLOW_TABLE\"";
            return Err(Error::new(ErrorKind::InvalidRequirement, format!("option \"{}\"; {says}", shown(symbol))));
        }
        self.symbol = Some(plain.to_owned());
        Ok(self)
    }

    /// Makes it optional: without it the verdict can still be yes.
    #[must_use]
    pub fn wanted(mut self) -> Self {
        self.need = Need::Wanted;
        self
    }

    /// Sets a question for an [`ActiveProbe`](crate::ActiveProbe).
    #[must_use]
    pub fn asks(mut self, capability: Capability) -> Self {
        self.capability = Some(capability);
        self
    }
}

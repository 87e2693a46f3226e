//! Requirements as data. Those of IPVS mode are in `table.rs`.

use std::borrow::Cow;

use crate::active::Capability;
use crate::error::{Error, ErrorKind, shown};
use crate::modules::ModuleName;
use crate::profile::Families;

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
    /// The module, or the module that a feature is part of; `None` for a set type that this crate does not know.
    pub module: Option<ModuleName>,
    /// Symbol of the kernel configuration without `CONFIG_`, when it is known.
    pub symbol: Option<String>,
    /// For a symbol that switches code inside `module` on and off (`CONFIG_IP_VS_IPV6`) instead of building a module: the
    /// symbol that builds the module (`IP_VS`).
    pub part_of: Option<String>,
    /// Question for an [`ActiveProbe`](crate::ActiveProbe); `None` if it has none.
    pub capability: Option<Capability>,
}

impl Requirement {
    /// A module, by the name that `modprobe` takes. Required; the module's name is the row's.
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

    /// The same with the option of the configuration that builds the module, with or without `CONFIG_`.
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

    /// The same, only wanted: without it the verdict may still be yes.
    #[must_use]
    pub fn wanted(mut self) -> Self {
        self.need = Need::Wanted;
        self
    }

    /// The same with a question for an [`ActiveProbe`](crate::ActiveProbe).
    #[must_use]
    pub fn asks(mut self, capability: Capability) -> Self {
        self.capability = Some(capability);
        self
    }
}

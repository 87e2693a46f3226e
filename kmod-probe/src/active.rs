//! Questions to the kernel itself. This crate has no netlink, so the caller asks them.

use std::borrow::Cow;

/// A question for the running kernel.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Capability {
    /// Does this generic-netlink family exist? (`IPVS`)
    GenlFamily(Cow<'static, str>),
    /// Does a virtual server with this scheduler work? Best tried in a separate network namespace.
    Scheduler(Cow<'static, str>),
    /// Does the kernel's ipset answer? (`IPSET_CMD_PROTOCOL`)
    Ipset,
    /// Does the kernel have this set type? (`IPSET_CMD_TYPE` answers with its revisions)
    SetType(Cow<'static, str>),
    /// Can a link of this kind be created? (`dummy`)
    LinkKind(Cow<'static, str>),
    /// Does the kernel have this iptables match? (`set`)
    XtMatch(Cow<'static, str>),
    /// Does the kernel have this iptables target? (`MASQUERADE`)
    XtTarget(Cow<'static, str>),
}

/// Answer of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActiveAnswer {
    /// The part works. The text tells how this was determined ("family id 33").
    Works(String),
    /// The kernel refused; the text has the error. This does not prove that a module cannot be loaded.
    Refused(String),
    /// Not asked, or the question failed for a reason that is not about the kernel (no privileges).
    Unknown(String),
}

/// A way to ask the kernel. Closures implement it. [`ActiveAnswer::Works`] takes precedence over all lists.
pub trait ActiveProbe {
    /// Asks for one capability.
    fn ask(&mut self, capability: &Capability) -> ActiveAnswer;
}

impl<F: FnMut(&Capability) -> ActiveAnswer> ActiveProbe for F {
    fn ask(&mut self, capability: &Capability) -> ActiveAnswer {
        self(capability)
    }
}

/// Asks nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoActiveProbe;

impl ActiveProbe for NoActiveProbe {
    fn ask(&mut self, _: &Capability) -> ActiveAnswer {
        ActiveAnswer::Unknown("not asked".to_owned())
    }
}

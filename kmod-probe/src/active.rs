//! Asking the kernel itself. This crate has no netlink, so the caller brings the questions to the kernel.

use std::borrow::Cow;

/// Something the running kernel can be asked.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum Capability {
    /// Does this generic-netlink family resolve? (`IPVS`)
    GenlFamily(Cow<'static, str>),
    /// Does a virtual server with this scheduler work? Best asked in a network namespace of its own.
    Scheduler(Cow<'static, str>),
    /// Does the kernel's ipset answer at all? (`IPSET_CMD_PROTOCOL`)
    Ipset,
    /// Has the kernel this set type? (`IPSET_CMD_TYPE` answers with its revisions)
    SetType(Cow<'static, str>),
    /// Can a link of this kind be made? (`dummy`)
    LinkKind(Cow<'static, str>),
    /// Has the kernel this iptables match? (`set`)
    XtMatch(Cow<'static, str>),
    /// Has the kernel this iptables target? (`MASQUERADE`)
    XtTarget(Cow<'static, str>),
}

/// Answer of the running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActiveAnswer {
    /// The part works; the text tells how this was seen ("family id 33").
    Works(String),
    /// The kernel refused; the text says with what error. This is no proof that a module cannot be loaded.
    Refused(String),
    /// Not asked, or the question failed for a reason that says nothing about the kernel (no privileges).
    Unknown(String),
}

/// A way to ask the kernel; a closure is one. [`ActiveAnswer::Works`] wins over everything the lists say.
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

//! Chains.

use std::fmt;
use std::str::FromStr;

use super::{ChainKey, Family, InvalidValue};

/// Where in a packet's path a base chain is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Hook {
    /// Before the routing decision.
    Prerouting,
    /// Packets for this host.
    Input,
    /// Packets forwarded by this host.
    Forward,
    /// Packets from this host.
    Output,
    /// After the routing decision.
    Postrouting,
    /// Packets arriving at a device. In families `inet` and `netdev`.
    Ingress,
    /// Packets leaving a device. In family `netdev`, since Linux 5.16.
    Egress,
    /// A hook that this crate does not know.
    Other(u32),
}

impl Hook {
    /// The hook's number in this family; `None` if the family does not have it.
    pub fn number(self, family: Family) -> Option<u32> {
        match (self, family) {
            (Hook::Other(number), _) => Some(number),
            (Hook::Ingress, Family::Netdev) | (Hook::Input, Family::Arp) => Some(0),
            (Hook::Egress, Family::Netdev) | (Hook::Output, Family::Arp) => Some(1),
            (Hook::Ingress, Family::Inet) => Some(5),
            (Hook::Ingress | Hook::Egress, _) | (_, Family::Arp | Family::Netdev) => None,
            (Hook::Prerouting, _) => Some(0),
            (Hook::Input, _) => Some(1),
            (Hook::Forward, _) => Some(2),
            (Hook::Output, _) => Some(3),
            (Hook::Postrouting, _) => Some(4),
        }
    }

    /// The hook with this number in this family.
    pub fn from_number(family: Family, number: u32) -> Self {
        match (family, number) {
            (Family::Netdev, 0) | (Family::Inet, 5) => Hook::Ingress,
            (Family::Netdev, 1) => Hook::Egress,
            (Family::Arp, 0) => Hook::Input,
            (Family::Arp, 1) | (_, 3) => Hook::Output,
            (_, 0) => Hook::Prerouting,
            (_, 1) => Hook::Input,
            (_, 2) => Hook::Forward,
            (_, 4) => Hook::Postrouting,
            (_, other) => Hook::Other(other),
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Hook::Prerouting => "prerouting",
            Hook::Input => "input",
            Hook::Forward => "forward",
            Hook::Output => "output",
            Hook::Postrouting => "postrouting",
            Hook::Ingress => "ingress",
            Hook::Egress => "egress",
            Hook::Other(number) => return write!(f, "{number}"),
        })
    }
}

/// nft's word, or a number.
impl FromStr for Hook {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        const KNOWN: [Hook; 7] = [
            Hook::Prerouting,
            Hook::Input,
            Hook::Forward,
            Hook::Output,
            Hook::Postrouting,
            Hook::Ingress,
            Hook::Egress,
        ];
        let known = KNOWN.into_iter().find(|hook| hook.to_string() == text);
        let number = || text.parse().ok().map(Hook::Other);
        known.or_else(number).ok_or_else(|| {
            let known = "it is none of prerouting, input, forward, output, postrouting, ingress, egress";
            InvalidValue::new(format!("hook {text:?}"), known)
        })
    }
}

/// Order among the base chains at a hook: smaller numbers run first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Priority(pub i32);

impl Priority {
    /// Before connection tracking.
    pub const RAW: Priority = Priority(-300);
    /// Packets are changed.
    pub const MANGLE: Priority = Priority(-150);
    /// Destinations are translated.
    pub const DSTNAT: Priority = Priority(-100);
    /// Packets are filtered.
    pub const FILTER: Priority = Priority(0);
    /// Security labels.
    pub const SECURITY: Priority = Priority(50);
    /// Sources are translated.
    pub const SRCNAT: Priority = Priority(100);
}

/// The type of a base chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum ChainType {
    /// Accepts or drops packets.
    Filter,
    /// Translates addresses. Sees only the first packet of a connection.
    Nat,
    /// Routes packets again if its rules changed them. At hook `output`.
    Route,
    /// A type that this crate does not know.
    Other(String),
}

impl ChainType {
    /// The name.
    pub fn name(&self) -> &str {
        match self {
            ChainType::Filter => "filter",
            ChainType::Nat => "nat",
            ChainType::Route => "route",
            ChainType::Other(name) => name,
        }
    }

    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "filter" => ChainType::Filter,
            "nat" => ChainType::Nat,
            "route" => ChainType::Route,
            other => ChainType::Other(other.to_owned()),
        }
    }
}

/// Verdict for packets that reach the end of a base chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Policy {
    /// Packets pass.
    #[default]
    Accept,
    /// Packets are dropped.
    Drop,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Policy::Accept { "accept" } else { "drop" })
    }
}

/// `accept` or `drop`.
impl FromStr for Policy {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "accept" => Ok(Policy::Accept),
            "drop" => Ok(Policy::Drop),
            _ => Err(InvalidValue::new(format!("policy {text:?}"), "it is neither accept nor drop")),
        }
    }
}

/// Type, hook, priority and policy of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BaseChain {
    /// The type.
    pub kind: ChainType,
    /// Where in a packet's path the chain is attached.
    pub hook: Hook,
    /// Order among the chains at the hook.
    pub priority: Priority,
    /// Verdict for packets that reach the chain's end.
    #[cfg_attr(feature = "serde", serde(default))]
    pub policy: Policy,
    /// Devices, for hooks `ingress` and `egress`. `eth*`: all devices with this prefix, including later ones (Linux
    /// 6.16).
    #[cfg_attr(feature = "serde", serde(default))]
    pub devices: Vec<String>,
}

impl BaseChain {
    /// A chain at this hook, with policy `accept`.
    pub fn new(kind: ChainType, hook: Hook, priority: Priority) -> Self {
        BaseChain { kind, hook, priority, policy: Policy::Accept, devices: Vec::new() }
    }
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Chain {
    /// Identity of the chain.
    pub key: ChainKey,
    /// Hook of a base chain; `None` for a chain to which rules jump.
    pub base: Option<BaseChain>,
    /// A comment. nft accepts at most 128 bytes, the kernel stores up to 253. Kept since Linux 5.10.
    pub comment: Option<String>,
    /// The chain is deleted with the rule that jumps to it: nft's `jump { … }`. Its own rules must come before that
    /// one. Since Linux 5.9.
    #[cfg_attr(feature = "serde", serde(default))]
    pub bound: bool,
}

impl Chain {
    /// A chain to which rules jump.
    pub fn regular(key: ChainKey) -> Self {
        Chain { key, base: None, comment: None, bound: false }
    }

    /// A base chain.
    pub fn base(key: ChainKey, base: BaseChain) -> Self {
        Chain { key, base: Some(base), comment: None, bound: false }
    }

    /// Sets the policy of a base chain; no effect on other chains.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        if let Some(base) = &mut self.base {
            base.policy = policy;
        }
        self
    }
}

/// A chain as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedChain {
    /// The chain.
    pub chain: Chain,
    /// The kernel's handle.
    pub handle: u64,
    /// Number of its rules and of jumps to it.
    pub references: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_and_policies_come_back_from_their_text() {
        let hooks = [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];
        for hook in hooks.into_iter().chain([Hook::Ingress, Hook::Egress, Hook::Other(9)]) {
            assert_eq!(hook.to_string().parse(), Ok(hook));
        }
        for policy in [Policy::Accept, Policy::Drop] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("INPUT".parse::<Hook>().is_err() && "".parse::<Hook>().is_err() && "queue".parse::<Policy>().is_err());
    }
}

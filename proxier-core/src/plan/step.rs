//! The steps of a plan, one for each operation, as text and as data.

use std::fmt;

use crate::named::named;
use crate::net::Family;
pub(crate) use crate::service::Names;

/// Verb of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// Makes an object.
    Add,
    /// Changes an object in place.
    Change,
    /// Sets a real server's weight to 0: it gets no new connections, and existing ones continue.
    Drain,
    /// Removes an object.
    Delete,
}

impl Action {
    pub(crate) fn sign(self) -> char {
        match self {
            Action::Add => '+',
            Action::Change => '~',
            Action::Drain => '>',
            Action::Delete => '-',
        }
    }
}

named! {
    /// Kind of object that a step changes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
    #[serde(rename_all = "camelCase")]
    #[non_exhaustive]
    pub enum Part {
        /// The dummy device.
        Device = "device",
        /// A value below `/proc/sys`.
        Sysctl = "sysctl",
        /// The timeouts of IPVS.
        Timeouts = "timeouts",
        /// A set.
        Set = "set",
        /// An entry of a set.
        Entry = "entry",
        /// The rules of a family.
        Rules = "rules",
        /// A virtual server.
        VirtualServer = "virtualServer",
        /// A real server of a virtual server.
        RealServer = "realServer",
        /// An address on the dummy device.
        Address = "address",
        /// An nf_tables table, with its chains and rules.
        Table = "table",
        /// A Frontend in an nf_tables table, or in rules of iptables mode.
        Frontend = "frontend",
        /// An address and port on which this process listens.
        Listener = "listener",
        /// A local route.
        Route = "route",
        /// Tracked UDP flows.
        Flows = "flows",
    }
}

impl Part {
    fn words(self) -> &'static str {
        match self {
            Part::VirtualServer => "virtual server",
            Part::RealServer => "real server",
            other => other.name(),
        }
    }
}

/// An operation of a plan as text and data.
///
/// Prints on one line: `+ virtual server TCP 10.96.0.10:53 rr  (kube-system/kube-dns:dns-tcp)`.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Step {
    /// Verb.
    pub action: Action,
    /// Kind of object.
    pub part: Part,
    /// Name of the object, as in `ipvsadm`, `ipset`, `ip` and `sysctl`.
    pub name: String,
    /// Values; may be empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The Service and port that the virtual server is for: `namespace/name:port`. `None` if it belongs to none, and
    /// for other parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Added and removed rules, prefixed with `+` and `-`. In iptables mode: the input of `iptables-restore`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
}

impl Step {
    /// The family of the iptables rules or the nf_tables table; `None` for other parts.
    pub(crate) fn family(&self) -> Option<Family> {
        let is_of = |family: &Family| match self.part {
            Part::Rules => self.name == family.name(),
            Part::Table => self.name.starts_with(if *family == Family::V4 { "ip " } else { "ip6 " }),
            _ => false,
        };
        Family::ALL.into_iter().find(is_of)
    }

    pub(crate) fn new(action: Action, part: Part, name: impl fmt::Display) -> Self {
        Step { action, part, name: name.to_string(), detail: String::new(), service: None, lines: Vec::new() }
    }

    pub(crate) fn with(mut self, detail: impl fmt::Display) -> Self {
        self.detail = detail.to_string();
        self
    }

    pub(crate) fn of_service(mut self, service: Option<String>) -> Self {
        self.service = service;
        self
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.action.sign(), self.part.words(), self.name)?;
        if !self.detail.is_empty() {
            write!(f, " {}", self.detail)?;
        }
        if let Some(service) = &self.service {
            write!(f, "  ({service})")?;
        }
        self.lines.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

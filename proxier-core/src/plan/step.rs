//! The steps of a plan, one for each operation, as text and as data, and the names of Services in them.

use std::fmt;

use crate::named::named;
use crate::net::{EndpointKey, Family, FrontendKey};
use crate::service::{Desired, Frontend, Roles};
use crate::snapshot::Store;

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

/// Looks up names of Services.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    of: Option<(&'a Store, &'a Desired)>,
}

impl<'a> Names<'a> {
    /// No names: for operations on objects that belong to no Service.
    pub(crate) const NONE: Names<'static> = Names { of: None };

    /// Looks up names of desired objects.
    pub fn new(store: &'a Store, desired: &'a Desired) -> Self {
        Names { of: Some((store, desired)) }
    }

    /// The Service and port that a Frontend is for: `namespace/name:port`, without `:port` if the port has no name.
    /// `None` if it belongs to no Service. At address 0 it is a node port's, which costs O(Frontends) to find.
    pub fn service_of(&self, key: &FrontendKey) -> Option<String> {
        let (store, desired) = self.of?;
        if key.address.is_unspecified() {
            let at = |address| FrontendKey { address, ..*key };
            let is_it = |of: &&Frontend| of.roles.contains(Roles::NODE_PORT) && of.key == at(of.key.address);
            let mut frontends = desired.frontends().filter(|of| of.key.family() == key.family());
            return frontends.find(is_it).and_then(|of| self.service_of(&of.key));
        }
        let owner = desired.owner(key)?;
        let frontend = desired.frontend(key)?;
        let ports = store.service(owner).map_or(&[][..], |service| &service.ports);
        let number = Some(frontend.key.port);
        let of = |node_port: bool| {
            ports.iter().find(|port| {
                let its = if node_port { port.node_port } else { Some(port.port) };
                port.protocol == frontend.key.protocol && its == number
            })
        };
        let port = of(frontend.roles.contains(Roles::NODE_PORT)).or_else(|| of(false));
        Some(match port.map(|port| &*port.name) {
            None | Some("") => owner.to_string(),
            Some(name) => format!("{owner}:{name}"),
        })
    }

    /// Whether a desired endpoint has weight 0 on purpose, so that it gets no new connections.
    pub(crate) fn rests(&self, key: &FrontendKey, endpoint: &EndpointKey) -> bool {
        self.of.and_then(|(_, desired)| desired.frontend(key)).is_some_and(|frontend| !frontend.takes(&[*endpoint]))
    }
}

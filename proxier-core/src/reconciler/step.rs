//! The steps of a plan, one for each operation, as text and as data.

use std::fmt;
use std::net::IpAddr;

use ipset::Element;
use ipvs::model::{Persistence, TimeoutsUpdate, VirtualServer, Weight};
use ipvs::{Operation, RealServer, VirtualServerKey};

use crate::config::Config;
use crate::modes::ipvs::plan::{Plan, RulesChange};
use crate::modes::ipvs::sets::SetKey;
use crate::modes::ipvs::wanted::Wanted;
use crate::modes::shared::sysctls::SysctlChange;
use crate::ports::UdpServices;
use crate::snapshot::Store;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Action {
    /// Something new is made.
    Add,
    /// Something is changed in place.
    Change,
    /// A real server gets weight 0: no new connections, existing ones go on.
    Drain,
    /// Something is removed.
    Delete,
}

impl Action {
    /// The name in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Action::Add => "add",
            Action::Change => "change",
            Action::Drain => "drain",
            Action::Delete => "delete",
        }
    }

    /// `+`, `~`, `>`, `-`.
    pub fn sign(self) -> char {
        match self {
            Action::Add => '+',
            Action::Change => '~',
            Action::Drain => '>',
            Action::Delete => '-',
        }
    }
}

/// What it is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum Part {
    /// The dummy device.
    Device,
    /// A value below `/proc/sys`.
    Sysctl,
    /// The timeouts of IPVS.
    Timeouts,
    /// A set.
    Set,
    /// An entry of a set.
    Entry,
    /// The rules of a family.
    Rules,
    /// A virtual server.
    VirtualServer,
    /// A real server of a virtual server.
    RealServer,
    /// An address on the dummy device.
    Address,
    /// Tracked UDP flows.
    Flows,
}

impl Part {
    /// The name in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Part::Device => "device",
            Part::Sysctl => "sysctl",
            Part::Timeouts => "timeouts",
            Part::Set => "set",
            Part::Entry => "entry",
            Part::Rules => "rules",
            Part::VirtualServer => "virtualServer",
            Part::RealServer => "realServer",
            Part::Address => "address",
            Part::Flows => "flows",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Part::VirtualServer => "virtual server",
            Part::RealServer => "real server",
            other => other.name(),
        }
    }
}

/// One operation.
///
/// Prints on one line: `+ virtual server TCP 10.96.0.10:53 rr  (kube-system/kube-dns:dns-tcp)`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Step {
    /// What is done.
    pub action: Action,
    /// What kind of thing it is done to.
    pub part: Part,
    /// To which one, as `ipvsadm`, `ipset`, `ip` and `sysctl` name it.
    pub name: String,
    /// Values; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The Service and port that the virtual server is for: `namespace/name:port`. `None` when none wants it, and for other
    /// parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The added and removed rules, with `+` and `-` in front; for rules only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
}

impl Step {
    fn new(action: Action, part: Part, name: impl fmt::Display) -> Self {
        Step { action, part, name: name.to_string(), detail: String::new(), service: None, lines: Vec::new() }
    }

    fn with(mut self, detail: impl fmt::Display) -> Self {
        self.detail = detail.to_string();
        self
    }

    fn of(mut self, names: &Names<'_>, key: &VirtualServerKey) -> Self {
        self.service = names.service_of(key);
        self
    }

    pub(crate) fn device() -> Self {
        Step::new(Action::Add, Part::Device, Config::DUMMY_DEVICE).with("type dummy")
    }

    pub(crate) fn delete_device() -> Self {
        Step::new(Action::Delete, Part::Device, Config::DUMMY_DEVICE)
    }

    pub(crate) fn sysctl(change: &SysctlChange) -> Self {
        let old = change.from.as_deref().unwrap_or("unknown");
        Step::new(Action::Change, Part::Sysctl, &change.path).with(format_args!("= {} (was {old})", change.to))
    }

    pub(crate) fn timeouts(update: &TimeoutsUpdate) -> Self {
        let secs = |secs: Option<u32>| secs.map_or_else(|| "kept".to_owned(), |secs| format!("{secs} s"));
        let detail = format!(
            "tcp {}, tcpfin {}, udp {}",
            secs(update.tcp_secs),
            secs(update.tcp_fin_secs),
            secs(update.udp_secs)
        );
        Step::new(Action::Change, Part::Timeouts, "ipvs").with(detail)
    }

    pub(crate) fn create_set(set: SetKey) -> Self {
        Step::new(Action::Add, Part::Set, set).with(set.kind.set_type())
    }

    pub(crate) fn destroy_set(set: SetKey) -> Self {
        Step::new(Action::Delete, Part::Set, set)
    }

    pub(crate) fn entry(action: Action, set: SetKey, element: &Element) -> Self {
        Step::new(action, Part::Entry, set).with(element)
    }

    pub(crate) fn rules(change: &RulesChange) -> Self {
        let lines = change.changes.lines();
        let count = lines.len();
        let family = change.family.name();
        let mut step = Step::new(Action::Change, Part::Rules, family).with(format_args!("{count} lines differ"));
        step.lines = lines.iter().map(ToString::to_string).collect();
        step
    }

    pub(crate) fn operation(operation: &Operation, names: &Names<'_>) -> Self {
        let real = |action, key: &VirtualServerKey, server: &RealServer| {
            let step = Step::new(action, Part::RealServer, format_args!("{key} -> {}", server.key));
            step.with(format_args!("weight {}", server.config.weight)).of(names, key)
        };
        let virtual_server = |action, server: &VirtualServer| {
            Step::new(action, Part::VirtualServer, server.key).with(Shown(server)).of(names, &server.key)
        };
        match operation {
            Operation::AddVirtualServer(server) => virtual_server(Action::Add, server),
            Operation::UpdateVirtualServer(server) => virtual_server(Action::Change, server),
            Operation::DeleteVirtualServer(key) => Step::new(Action::Delete, Part::VirtualServer, key).of(names, key),
            Operation::AddRealServer(key, server) => real(Action::Add, key, server),
            Operation::UpdateRealServer(key, server) if server.config.weight == Weight::DRAIN => {
                real(Action::Drain, key, server)
            }
            Operation::UpdateRealServer(key, server) => real(Action::Change, key, server),
            Operation::DeleteRealServer(key, real) => {
                Step::new(Action::Delete, Part::RealServer, format_args!("{key} -> {real}")).of(names, key)
            }
            // Other operations are never planned.
            other => Step::new(Action::Change, Part::VirtualServer, other.subject()),
        }
    }

    pub(crate) fn address(action: Action, address: IpAddr) -> Self {
        Step::new(action, Part::Address, address).with(format_args!("on {}", Config::DUMMY_DEVICE))
    }

    pub(crate) fn flows(services: &UdpServices) -> Self {
        Step::new(Action::Delete, Part::Flows, "UDP")
            .with(format_args!("to {} places that none of their endpoints answers", services.len()))
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

/// A virtual server's configuration: `rr`, `mh persistent 10800`.
struct Shown<'a>(&'a VirtualServer);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.0.config;
        write!(f, "{}", config.scheduler)?;
        if let Some(Persistence { timeout_secs, .. }) = config.persistence {
            write!(f, " persistent {timeout_secs} s")?;
        }
        Ok(())
    }
}

/// Looks up names of Services.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    store: &'a Store,
    wanted: &'a Wanted,
}

impl<'a> Names<'a> {
    /// Names for what is wanted.
    pub fn new(store: &'a Store, wanted: &'a Wanted) -> Self {
        Names { store, wanted }
    }

    /// The Service and port that want a virtual server: `namespace/name:port`, without `:port` when the port has no name.
    pub fn service_of(&self, key: &VirtualServerKey) -> Option<String> {
        let owner = self.wanted.owner(key)?;
        let frontend = self.wanted.frontend(key)?;
        let ports = self.store.service(owner).map_or(&[][..], |service| &service.ports);
        let number = Some(frontend.key.port);
        let of = |node_port: bool| {
            ports.iter().find(|port| {
                let its = if node_port { port.node_port } else { Some(port.port) };
                port.protocol == frontend.key.protocol && its == number
            })
        };
        let port = of(frontend.roles.contains(crate::service::Roles::NODE_PORT)).or_else(|| of(false));
        Some(match port.map(|port| &*port.name) {
            None | Some("") => owner.to_string(),
            Some(name) => format!("{owner}:{name}"),
        })
    }
}

impl Plan {
    /// The operations, in the order in which they are carried out.
    pub fn steps<'a>(&'a self, names: &'a Names<'a>) -> impl Iterator<Item = Step> + 'a {
        let entries = |action, (set, elements): (&'a SetKey, &'a Vec<Element>)| {
            elements.iter().map(move |of| Step::entry(action, *set, of))
        };
        let addresses = |action, of: &'a [IpAddr]| of.iter().map(move |address| Step::address(action, *address));
        let operations = |of: &'a [Operation]| of.iter().map(move |operation| Step::operation(operation, names));
        self.create_device
            .then(Step::device)
            .into_iter()
            .chain(self.sysctls.iter().map(Step::sysctl))
            .chain(self.timeouts.iter().map(Step::timeouts))
            .chain(self.create_sets.iter().copied().map(Step::create_set))
            .chain(self.add_entries.iter().flat_map(move |of| entries(Action::Add, of)))
            .chain(operations(&self.serve_first))
            .chain(addresses(Action::Add, &self.bind_first))
            .chain(operations(&self.retire_first))
            .chain(self.rules.iter().map(Step::rules))
            .chain(operations(&self.serve))
            .chain(addresses(Action::Add, &self.bind))
            .chain(operations(&self.retire))
            .chain(self.delete_entries.iter().rev().flat_map(move |of| entries(Action::Delete, of)))
            .chain(self.relax.iter().map(Step::rules))
            .chain(addresses(Action::Delete, &self.unbind))
    }
}

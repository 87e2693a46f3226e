//! Modes: each turns the meaning of Services into the state of one part of the kernel.
//!
//! A mode translates the Frontends into its kernel part's objects, reads what the kernel holds, compares the two, and
//! carries out the difference. Modes do not know each other; what several need is in `shared`.

pub mod cleanup;
pub mod fast_path;
pub mod forward;
pub(crate) mod inspection;
pub mod iptables;
pub mod ipvs;
pub mod localhost_relay;
pub mod nftables;
pub mod select;
pub(crate) mod shared;
pub mod userspace;

pub(crate) use nftables::served_by_others;
pub use shared::cleaned::Cleaned;
pub use shared::networks::other_addresses;
pub use shared::sysctls::HostSettings;
pub use shared::table::can_own_tables;

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::config::{Config, Families, RulesBy};
use crate::modes::shared::listeners::ListenerChange;
use crate::modes::shared::sysctls;
use crate::net::{Family, FrontendKey, Protocol};
use crate::plan::operation::Operation;
use crate::plan::report::{Applied, Refused, Report, Unread};
use crate::plan::step::Step;
use crate::ports::{
    Conntrack, LocalNetworks, PortErrorKind, Ports, Result, SysctlChange, Sysctls, Tables, UdpServices,
};
use crate::safeguard::{Kernel, Loss};
use crate::service::{Changes, Compiled, Desired, Frontend, Names, NodeFacts};
use crate::snapshot::{Abilities, HostAddresses};
use crate::time::Moment;

/// The part of the kernel that serves Services. Exhaustive, so that the compiler finds all code that must handle a new
/// mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// IPVS virtual servers. Default.
    #[default]
    Ipvs,
    /// Tables of nf_tables.
    Nftables,
    /// iptables chains and rules.
    Iptables,
    /// Sockets of this process, without the kernel's help.
    Userspace,
}

impl Kind {
    /// All modes, best first.
    pub const ALL: [Kind; 4] = [Kind::Ipvs, Kind::Nftables, Kind::Iptables, Kind::Userspace];

    /// The facts about it that other code depends on.
    pub fn facts(self) -> &'static Facts {
        match self {
            Kind::Ipvs => &Facts::IPVS,
            Kind::Nftables => &Facts::NFTABLES,
            Kind::Iptables => &Facts::IPTABLES,
            Kind::Userspace => &Facts::USERSPACE,
        }
    }

    /// The name in configuration files: `ipvs`, `nftables`, `iptables`, `userspace`.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The families in which it can serve node ports on the loopback address. For IPv6 only a listening process can,
    /// because the kernel forwards nothing from `::1` to an endpoint. In nftables mode this process listens for TCP.
    /// IPVS mode serves none, as in kube-proxy.
    pub fn localhost(self, iptables: &iptables::IptablesOptions) -> &'static [Family] {
        match self {
            Kind::Ipvs => &[],
            Kind::Iptables if !iptables.localhost_node_ports => &[],
            Kind::Iptables => &[Family::V4],
            Kind::Nftables | Kind::Userspace => &Family::ALL,
        }
    }

    /// The name of the nf_tables tables that it writes, if any.
    pub fn table_name(self, config: &Config) -> Option<String> {
        match self {
            Kind::Nftables => Some(config.names.table.to_string()),
            Kind::Ipvs if config.ipvs.rules == RulesBy::Nftables => Some(config.names.ipvs_table().to_string()),
            _ => None,
        }
    }

    /// Whether it writes rules with the iptables programs.
    pub fn needs_rule_programs(self, config: &Config) -> bool {
        !self.facts().is_process && self.table_name(config).is_none()
    }

    /// Adds to the node facts what the mode decides about compiling Services.
    pub(crate) fn describe(self, facts: &mut NodeFacts, iptables: iptables::IptablesOptions) {
        facts.serve_localhost(self.localhost(&iptables));
        facts.ends_connections = self.facts().has_virtual_servers;
        facts.most_with_affinity = self.facts().most_with_affinity;
        facts.has_slots = self == Kind::Nftables;
    }

    /// Whether routes make the addresses of Services local; they also set the source of this host's own packets to
    /// them.
    pub fn makes_addresses_local_by_routes(self, config: &Config) -> bool {
        self == Kind::Ipvs && config.binds_by_routes()
    }
}

/// Facts about a mode that other code depends on.
#[expect(clippy::struct_excessive_bools, reason = "each is one question about the mode")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Facts {
    /// The name in configuration files.
    pub(crate) name: &'static str,
    /// Whether it has virtual servers with schedulers and counters, and draining real servers.
    pub has_virtual_servers: bool,
    /// Whether it serves by sockets of this process, while that runs. Otherwise the kernel translates or forwards
    /// packets, and tracks connections.
    pub is_process: bool,
    /// Whether it makes the addresses of Services local. The other modes only translate them.
    pub makes_addresses_local: bool,
    /// Whether connection tracking translates the packets of connections. Then flow tables can do so too, and only
    /// connection tracking has their endpoints.
    pub translates_packets: bool,
    /// Whether counters of rules, as the iptables programs list them, show the traffic of Services.
    pub counts_by_rule: bool,
    /// Whether ports of a cluster IP that belong to no Service are refused. Otherwise packets to them are forwarded.
    pub closes_cluster_ips: bool,
    /// Largest number of endpoints with session affinity; `None` for no limit.
    pub(crate) most_with_affinity: Option<usize>,
    /// How endpoints are selected if a Service requests nothing else.
    pub choice: &'static str,
    /// The setting or program without which connections to Frontends are not counted, for a message; empty if there is
    /// none.
    pub how_to_count: &'static str,
    /// The policy of Services that it supports.
    pub(crate) abilities: Abilities,
}

impl Facts {
    const IPVS: Facts = Facts {
        name: "ipvs",
        has_virtual_servers: true,
        is_process: false,
        makes_addresses_local: true,
        translates_packets: false,
        counts_by_rule: false,
        closes_cluster_ips: true,
        most_with_affinity: None,
        choice: "by the scheduler of IPVS",
        how_to_count: "",
        abilities: Abilities::Ipvs,
    };
    const NFTABLES: Facts = Facts {
        name: "nftables",
        has_virtual_servers: false,
        makes_addresses_local: false,
        translates_packets: true,
        most_with_affinity: Some(1 << 12),
        choice: "at random",
        how_to_count: ": set nftables.countConnections",
        abilities: Abilities::Nftables,
        ..Facts::IPVS
    };
    const IPTABLES: Facts = Facts {
        name: "iptables",
        counts_by_rule: true,
        closes_cluster_ips: false,
        most_with_affinity: None,
        how_to_count: "",
        abilities: Abilities::None,
        ..Facts::NFTABLES
    };
    const USERSPACE: Facts = Facts {
        name: "userspace",
        has_virtual_servers: false,
        is_process: true,
        choice: "in turn",
        how_to_count: ": the metrics server of the process that serves does not answer",
        abilities: Abilities::None,
        ..Facts::IPVS
    };

    /// Whether it follows policy in annotations of Services, EndpointSlices and Nodes. Other modes do exactly what
    /// kube-proxy's do.
    pub fn follows_policy(&self) -> bool {
        self.abilities != Abilities::None
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The values below `/proc/sys` that a mode needs before any Service exists, and that differ. These are those to write,
/// and optional ones that may not be written from here. What iptables and nftables mode set once their rules guard it
/// (`route_localnet`) is not among them.
pub fn sysctl_changes(
    mode: Kind,
    settings: &HostSettings,
    sysctls: &mut dyn Sysctls,
) -> (Vec<SysctlChange>, Vec<SysctlChange>) {
    let wanted = match mode {
        Kind::Ipvs => sysctls::wanted(settings, &sysctls.get(sysctls::OSRELEASE).unwrap_or_default()),
        Kind::Nftables | Kind::Iptables => sysctls::of_every_mode(settings),
        Kind::Userspace => sysctls::of_arp(settings),
    };
    sysctls::changes(sysctls, wanted)
}

#[expect(clippy::struct_excessive_bools, reason = "each is one question about the pass")]
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) names: Names<'a>,
    pub(crate) desired: &'a Desired,
    /// Differences from the last written state.
    pub(crate) changes: &'a Changes,
    pub(crate) facts: &'a NodeFacts,
    pub(crate) host: &'a HostAddresses,
    /// Whether connection tracking treats packets outside a connection's window as valid, as the last full pass found.
    pub(crate) tcp_is_liberal: bool,
    /// Compare everything, not only changes.
    pub(crate) full: bool,
    /// The plan is only shown, so the mode keeps its tracked state.
    pub(crate) is_preview: bool,
    /// Whether differences not caused by the input are other programs' changes.
    pub(crate) tells_drift: bool,
    /// Check all UDP flows, including those to these addresses and ports, which another mode served.
    pub(crate) sweep: Option<&'a BTreeSet<SocketAddr>>,
    /// Addresses and ports whose UDP flows could not be forgotten yet.
    pub(crate) unforgotten: &'a BTreeSet<SocketAddr>,
    pub(crate) now: Moment,
}

impl Pass<'_> {
    pub(crate) fn config(&self) -> &Config {
        self.facts.config()
    }

    pub(crate) fn families(&self) -> impl Iterator<Item = Family> + use<> {
        let families: Families = self.config().families;
        families.iter()
    }
}

/// The plan of a pass: values below `/proc/sys` first, then the mode's work, then what its rules guard, then UDP flows.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Plan {
    pub(crate) sysctls: Vec<SysctlChange>,
    pub(crate) work: Option<Box<dyn Work>>,
    /// Whether the rules guard programs that listen on loopback addresses, and need `route_localnet`.
    pub(crate) routes_localhost: bool,
    /// Values to write once the rules of IPv4 exist, which guard them.
    pub(crate) guarded: Vec<SysctlChange>,
    pub(crate) fast_path: Option<Box<fast_path::FlowtableChange>>,
    /// Changes of listeners of nftables mode.
    pub(crate) listeners: Vec<ListenerChange>,
    pub(crate) forget: UdpServices,
}

pub(crate) trait Work: Any + Send + Sync {
    fn is_empty(&self) -> bool;

    /// The operations, in the order in which they run.
    fn operations(&self) -> Box<dyn Iterator<Item = Operation<'_>> + '_>;

    /// Whether it replaces what another mode serves.
    fn takes_over(&self) -> bool {
        false
    }
}

impl fmt::Debug for dyn Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.operations()).finish()
    }
}

impl dyn Work {
    /// The plan in the type of the mode that made it; empty in any other type.
    pub(crate) fn into_plan<P: Work + Default>(self: Box<Self>) -> P {
        let work: Box<dyn Any> = self;
        work.downcast().map_or_else(|_| P::default(), |plan| *plan)
    }
}

impl Plan {
    /// A mode's part of the plan.
    pub(crate) fn of_mode(work: impl Work, forget: UdpServices) -> Self {
        Plan { work: Some(Box::new(work)), forget, ..Plan::default() }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let works = self.work.as_ref().is_some_and(|work| !work.is_empty());
        !works && self.sysctls.is_empty() && self.last_operations().next().is_none()
    }

    pub(crate) fn takes_over(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.takes_over())
    }

    fn last_operations(&self) -> impl Iterator<Item = Operation<'_>> {
        let listeners = self.listeners.iter().map(ListenerChange::operation);
        let fast_path = self.fast_path.iter().map(|change| Operation::Whole(&**change));
        let flows = (!self.forget.is_empty()).then_some(Operation::Flows(Protocol::Udp, &self.forget));
        self.guarded.iter().map(Operation::Sysctl).chain(listeners).chain(fast_path).chain(flows)
    }

    /// The operations, in the order in which they run.
    pub fn steps<'a>(&'a self, names: &'a Names<'a>) -> impl Iterator<Item = Step> + 'a {
        let work = self.work.iter().flat_map(|work| work.operations());
        let operations = self.sysctls.iter().map(Operation::Sysctl).chain(work).chain(self.last_operations());
        operations.map(|operation| operation.step(names))
    }

    /// Removes addresses and ports without UDP flows to forget. A pass searches only when it forgets them.
    pub(crate) fn look_for_flows(&mut self, conntrack: &mut dyn Conntrack) -> Result<()> {
        if self.forget.is_empty() {
            return Ok(());
        }
        let found = match conntrack.find_udp(&self.forget) {
            // A pass could not forget any.
            Err(error) if error.kind() == PortErrorKind::Unavailable => BTreeSet::new(),
            found => found?,
        };
        self.forget.retain(|place, _| found.contains(place));
        Ok(())
    }
}

/// Receives the losses that a plan would cause, and returns the Frontends that it must leave unchanged.
pub(crate) type Hold<'a> = &'a mut dyn FnMut(Vec<(FrontendKey, Loss)>, &dyn Kernel) -> BTreeSet<FrontendKey>;

/// The parts that could not be read.
pub(crate) type Reading = Result<(), Vec<Unread>>;

pub(crate) type FrontendRef<'a> = Option<&'a Arc<Frontend>>;

pub(crate) struct CarryOut<'a> {
    pub(crate) names: Names<'a>,
    pub(crate) desired: &'a Desired,
    /// Differences from the last written state. Written ones are removed.
    pub(crate) changes: &'a mut Changes,
    pub(crate) report: &'a mut Report,
    pub(crate) clock: &'a dyn Fn() -> Moment,
}

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) applied: Applied,
    /// Whether the kernel contradicted the tracked state. It is read again at once, but not twice in a row.
    pub(crate) surprised: bool,
    /// Whether the kernel must be read again at once.
    pub(crate) read_again: bool,
    /// Families of which nothing was written, so that the kernel serves as before.
    pub(crate) unwritten: BTreeSet<Family>,
}

/// A node's mode, from pass to pass. It owns its tracked kernel state.
///
/// A new mode implements the methods without a body. Those with a body are for modes whose kernel part has more to it:
/// devices, routes, draining real servers.
pub(crate) trait Mode: Send + Sync {
    fn kind(&self) -> Kind;

    /// Whether Services are compiled with their ports. The answer must not change.
    fn needs_ports(&self) -> bool {
        false
    }

    /// As [`FrontendObserver::service`](crate::service::FrontendObserver::service).
    fn index_service(&mut self, _before: Option<&Compiled>, _after: Option<&Compiled>) {}

    /// Follows a Frontend that is new, removed or different. `written`: as it was written last.
    fn index_frontend(&mut self, _written: FrontendRef<'_>, _before: FrontendRef<'_>, _after: FrontendRef<'_>) {}

    /// Rebuilds all stored state to release memory.
    fn compact(&mut self) {}

    /// Whether a pass for changes is enough.
    fn knows_kernel(&self) -> bool;

    /// Makes the next pass read the kernel.
    fn forget_kernel(&mut self);

    /// Reads the kernel, unless its parts are read when a plan is made for them. After a failure its state is unknown.
    fn read(&mut self, _: &Desired, _: &HostAddresses, _: &NodeFacts, _: &mut Ports<'_>) -> Reading {
        Ok(())
    }

    fn kernel(&self) -> Option<&dyn Kernel>;

    /// Compares, reads what the differences require, and makes its part of the plan. `None` if the kernel's state is
    /// unknown.
    fn plan(&mut self, pass: Pass<'_>, hold: Hold<'_>, report: &mut Report, ports: &mut Ports<'_>) -> Option<Plan>;

    /// Carries out planned work, and removes from the changes what was written.
    fn carry_out(&mut self, work: Box<dyn Work>, arguments: CarryOut<'_>, ports: &mut Ports<'_>) -> Outcome;

    /// When the mode has work even if no input changes.
    fn next_wake(&self) -> Option<Moment> {
        None
    }

    /// Requests of Services that this mode cannot fulfil, though another may.
    fn refused(&self, _desired: &Desired) -> Vec<Refused> {
        Vec::new()
    }

    /// Frontends whose session affinity is not applied because the tables are full.
    fn without_affinity(&self) -> BTreeSet<FrontendKey> {
        BTreeSet::new()
    }

    fn facts_changed(&mut self) {}

    fn has_read_tables(&self) -> bool {
        false
    }

    /// Puts back at once nf_tables tables that guard Frontends which are served without them too, if another program
    /// has changed them.
    fn restore_tables(&mut self, _tables: &mut dyn Tables) {}

    /// Whether the mode's device is missing or has other addresses than known.
    fn device_differs(&self, _host: &HostAddresses) -> bool {
        false
    }

    /// Whether the mode's routes differ from the tracked ones. If not checked here, full passes compare them.
    fn routes_differ(&self, _routes: &mut dyn LocalNetworks) -> bool {
        false
    }

    /// The addresses on which an earlier process served node ports, if connections end when such an address is lost.
    fn served_node_addresses(&self, _families: Families) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Whether a cold start may serve some Services before the rest is compiled. The mode is then faster, and the
    /// kernel, as far as known, has nothing of an earlier process.
    fn may_serve_first(&self, _host: &HostAddresses) -> bool {
        false
    }

    /// Ends the pauses between retries.
    fn retry_at_once(&mut self) {}

    fn servers<'a>(&'a self, _desired: &'a Desired) -> Option<ipvs::Servers<'a>> {
        None
    }
}

impl fmt::Debug for dyn Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.kind(), f)
    }
}

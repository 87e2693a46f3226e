//! Modes: each turns the meaning of Services into the state of one part of the kernel.
//!
//! A mode lowers the Frontends to its kernel's words, reads what the kernel holds, compares the two, and carries out
//! the difference. Modes do not know each other; what several need is in [`shared`].

pub mod cleanup;
pub mod iptables;
pub mod ipvs;
pub mod look;
pub mod nftables;
pub(crate) mod others;
pub mod select;
pub mod shared;
pub mod trace;
pub mod userspace;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::config::{Config, Families};
use crate::modes::shared::names::Names;
use crate::modes::shared::sysctls::{self, HostSettings};
use crate::net::{Family, FrontendKey};
use crate::plan::report::{Refused, Report, Unread};
use crate::plan::step::Step;
use crate::ports::{Conntrack, LocalNetworks, PortError, PortErrorKind, Ports, Tables};
use crate::safeguard::Safeguard;
use crate::service::{Desired, NodeFacts};
use crate::snapshot::{HostAddresses, ObjectKey, Store};
use crate::time::Moment;

/// Which part of the kernel serves Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Virtual servers of IPVS. Default.
    #[default]
    Ipvs,
    /// Tables of nf_tables.
    Nftables,
    /// Chains and rules of iptables.
    Iptables,
    /// Nothing: this process listens itself.
    Userspace,
}

impl Kind {
    /// All, best first.
    pub const ALL: [Kind; 4] = [Kind::Ipvs, Kind::Nftables, Kind::Iptables, Kind::Userspace];

    /// The name in configuration files: `ipvs`, `nftables`, `iptables`, `userspace`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ipvs => "ipvs",
            Kind::Nftables => "nftables",
            Kind::Iptables => "iptables",
            Kind::Userspace => "userspace",
        }
    }

    /// The families in which it can serve node ports on the loopback address. For IPv6 only a process that listens there can: the kernel
    /// sends nothing from `::1` to an endpoint. IPVS serves none, as in kube-proxy.
    pub fn localhost(self, iptables: &iptables::Options) -> &'static [Family] {
        match self {
            Kind::Ipvs => &[],
            Kind::Iptables if !iptables.localhost_node_ports => &[],
            Kind::Nftables | Kind::Iptables => &[Family::V4],
            Kind::Userspace => &Family::ALL,
        }
    }

    /// Whether it makes the addresses of Services this host's own. The other modes only translate them.
    pub fn makes_addresses_local(self) -> bool {
        matches!(self, Kind::Ipvs | Kind::Userspace)
    }
}

/// As [`Kind::name`].
impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The values below `/proc/sys` that a mode needs on a kernel of this release, before any Service is there. What iptables mode sets once its
/// rules guard it (`route_localnet`) is not among them.
///
/// ```
/// use proxier_core::modes::shared::sysctls::HostSettings;
/// use proxier_core::modes::{Kind, wanted_sysctls};
///
/// let of = |mode| wanted_sysctls(mode, &HostSettings::default(), "6.1.0").into_iter().map(|one| one.path).collect::<Vec<_>>();
/// assert!(of(Kind::Ipvs).contains(&"net/ipv4/vs/conntrack"));
/// assert_eq!((of(Kind::Nftables), of(Kind::Iptables)), (vec!["net/ipv4/ip_forward"], vec!["net/ipv4/ip_forward"]));
/// assert!(of(Kind::Userspace).is_empty()); // nothing is forwarded
/// ```
pub fn wanted_sysctls(mode: Kind, settings: &HostSettings, release: &str) -> Vec<sysctls::Wanted> {
    match mode {
        Kind::Ipvs => sysctls::wanted(settings, release),
        Kind::Nftables | Kind::Iptables => sysctls::of_every_mode(settings),
        Kind::Userspace => userspace::wanted_sysctls(settings),
    }
}

/// The arguments that all parts of a pass share.
#[expect(clippy::struct_excessive_bools, reason = "each is one question about the pass")]
#[derive(Clone, Copy)]
pub(crate) struct Pass<'a> {
    pub(crate) store: &'a Store,
    pub(crate) facts: &'a NodeFacts,
    pub(crate) host: &'a HostAddresses,
    pub(crate) settings: &'a HostSettings,
    /// Packets outside a connection's window are valid to connection tracking, as the last full pass found.
    pub(crate) tcp_is_liberal: bool,
    /// Compare everything, not only what changed.
    pub(crate) full: bool,
    /// A full pass has succeeded.
    pub(crate) settled: bool,
    /// The last pass failed.
    pub(crate) failing: bool,
    /// All UDP flows are looked at, also those to these addresses and ports, which another mode served.
    pub(crate) sweep: Option<&'a BTreeSet<SocketAddr>>,
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

/// What a refresh changed, as far as the reconciler has to know.
#[derive(Debug, Default)]
pub(crate) struct Refreshed {
    /// Frontends that are new, gone or different.
    pub(crate) frontends: Vec<FrontendKey>,
    /// Whether a health check is new, gone or different.
    pub(crate) health_checks: bool,
}

impl Refreshed {
    /// Adds what a later refresh changed.
    pub(crate) fn extend(&mut self, later: Refreshed) {
        self.frontends.extend(later.frontends);
        self.health_checks |= later.health_checks;
    }
}

/// What a pass would do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Plan {
    /// In IPVS mode.
    Ipvs(Box<ipvs::plan::Plan>),
    /// In nftables mode.
    Nftables(Box<nftables::Plan>),
    /// In iptables mode.
    Iptables(Box<iptables::Plan>),
    /// In userspace mode.
    Userspace(Box<userspace::Plan>),
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        match self {
            Plan::Ipvs(plan) => plan.is_empty(),
            Plan::Nftables(plan) => plan.is_empty(),
            Plan::Iptables(plan) => plan.is_empty(),
            Plan::Userspace(plan) => plan.is_empty(),
        }
    }

    /// The operations, in the order in which they are carried out.
    pub fn steps<'a>(&'a self, names: &'a Names<'a>) -> Box<dyn Iterator<Item = Step> + 'a> {
        match self {
            Plan::Ipvs(plan) => Box::new(plan.steps(names)),
            Plan::Nftables(plan) => Box::new(plan.steps(names)),
            Plan::Iptables(plan) => Box::new(plan.steps(names)),
            Plan::Userspace(plan) => Box::new(plan.steps(names)),
        }
    }
}

impl Plan {
    /// Leaves out addresses and ports to which there are no UDP flows to forget. A pass looks for them only when it forgets them.
    pub(crate) fn look_for_flows(&mut self, conntrack: &mut dyn Conntrack) -> Result<(), PortError> {
        let forget = match self {
            Plan::Ipvs(plan) => &mut plan.forget,
            Plan::Nftables(plan) => &mut plan.forget,
            Plan::Iptables(plan) => &mut plan.forget,
            Plan::Userspace(plan) => &mut plan.forget,
        };
        if forget.is_empty() {
            return Ok(());
        }
        let found = match conntrack.find_udp(forget) {
            // A pass could forget none.
            Err(error) if error.kind() == PortErrorKind::Unavailable => BTreeSet::new(),
            found => found?,
        };
        forget.retain(|place, _| found.contains(place));
        Ok(())
    }
}

impl Default for Plan {
    fn default() -> Self {
        Plan::Ipvs(Box::default())
    }
}

/// The mode of a node, from pass to pass.
#[derive(Debug)]
pub(crate) enum Mode {
    Ipvs(Box<ipvs::Mode>),
    Nftables(Box<nftables::Mode>),
    Iptables(Box<iptables::Mode>),
    Userspace(Box<userspace::Mode>),
}

/// A plan, and what follows from carrying it out.
#[derive(Debug)]
pub(crate) enum Prepared {
    Ipvs(Box<ipvs::Prepared>),
    Nftables(Box<nftables::Prepared>),
    Iptables(Box<iptables::Prepared>),
    Userspace(Box<userspace::Prepared>),
}

impl Prepared {
    pub(crate) fn into_plan(self) -> Plan {
        match self {
            Prepared::Ipvs(prepared) => Plan::Ipvs(Box::new(prepared.plan)),
            Prepared::Nftables(prepared) => Plan::Nftables(Box::new(prepared.plan)),
            Prepared::Iptables(prepared) => Plan::Iptables(Box::new(prepared.plan)),
            Prepared::Userspace(prepared) => Plan::Userspace(Box::new(prepared.plan)),
        }
    }
}

impl Mode {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            Mode::Ipvs(_) => Kind::Ipvs,
            Mode::Nftables(_) => Kind::Nftables,
            Mode::Iptables(_) => Kind::Iptables,
            Mode::Userspace(_) => Kind::Userspace,
        }
    }

    pub(crate) fn desired(&self) -> &Desired {
        match self {
            Mode::Ipvs(mode) => mode.wanted().desired(),
            Mode::Nftables(mode) => mode.wanted().desired(),
            Mode::Iptables(mode) => mode.wanted().desired(),
            Mode::Userspace(mode) => mode.wanted().desired(),
        }
    }

    /// What Services ask for and this mode does not do, though another may.
    pub(crate) fn refused(&self) -> Vec<Refused> {
        match self {
            Mode::Userspace(mode) => mode.refused().collect(),
            Mode::Ipvs(_) | Mode::Nftables(_) | Mode::Iptables(_) => Vec::new(),
        }
    }

    pub(crate) fn facts_changed(&mut self) {
        match self {
            Mode::Ipvs(mode) => mode.facts_changed(),
            // Each pass compares the layout of the one, the settings of the other.
            Mode::Nftables(_) | Mode::Userspace(_) => {}
            Mode::Iptables(mode) => mode.facts_changed(),
        }
    }

    /// Whether a pass for changes is enough.
    pub(crate) fn knows_kernel(&self) -> bool {
        match self {
            Mode::Ipvs(mode) => mode.observed().is_some(),
            Mode::Nftables(mode) => mode.knows_kernel(),
            Mode::Iptables(mode) => mode.knows_kernel(),
            Mode::Userspace(mode) => mode.knows_kernel(),
        }
    }

    /// Whether the mode has tables of nf_tables, and has read them.
    pub(crate) fn has_read_tables(&self) -> bool {
        match self {
            Mode::Ipvs(mode) => mode.has_read_tables(),
            Mode::Nftables(mode) => mode.has_read(),
            Mode::Iptables(_) | Mode::Userspace(_) => false,
        }
    }

    /// Puts back at once tables of nf_tables that guard what is served without them, if somebody else has changed them.
    pub(crate) fn restore_tables(&mut self, config: &Config, tables: &mut dyn Tables) {
        if let Mode::Ipvs(mode) = self {
            mode.restore_tables(config, tables);
        }
    }

    /// The next pass reads the kernel.
    pub(crate) fn forget_kernel(&mut self) {
        match self {
            Mode::Ipvs(mode) => mode.forget_kernel(),
            Mode::Nftables(mode) => mode.forget_kernel(),
            Mode::Iptables(mode) => mode.forget_kernel(),
            Mode::Userspace(mode) => mode.forget_kernel(),
        }
    }

    pub(crate) fn compact(&mut self) {
        match self {
            Mode::Ipvs(mode) => mode.compact(),
            Mode::Nftables(mode) => mode.compact(),
            Mode::Iptables(mode) => mode.compact(),
            Mode::Userspace(mode) => mode.compact(),
        }
    }

    /// When the mode has work even if no input changes.
    pub(crate) fn next_wake(&self) -> Option<Moment> {
        match self {
            Mode::Ipvs(mode) => mode.next_wake(),
            Mode::Nftables(_) => None,
            Mode::Iptables(mode) => mode.next_wake(),
            Mode::Userspace(mode) => mode.next_wake(),
        }
    }

    pub(crate) fn refresh(&mut self, store: &Store, facts: &NodeFacts, services: &BTreeSet<ObjectKey>) -> Refreshed {
        match self {
            Mode::Ipvs(mode) => mode.refresh(store, facts, services),
            Mode::Nftables(mode) => mode.refresh(store, facts, services),
            Mode::Iptables(mode) => mode.refresh(store, facts, services),
            Mode::Userspace(mode) => mode.refresh(store, facts, services),
        }
    }

    /// Whether the mode's device has other addresses than known, or is gone.
    pub(crate) fn device_differs(&self, host: &HostAddresses) -> bool {
        match self {
            Mode::Ipvs(mode) => mode.device_differs(host),
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => false,
        }
    }

    /// Whether the kernel holds anything of an earlier process, as far as known.
    pub(crate) fn serves_something(&self, host: &HostAddresses) -> bool {
        match self {
            Mode::Ipvs(mode) => mode.serves_something(host),
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => true,
        }
    }

    /// The next pass tries again what waits for a pause to end.
    pub(crate) fn retry_at_once(&mut self) {
        if let Mode::Ipvs(mode) = self {
            mode.retry_at_once();
        }
    }

    /// Whether the mode's routes are others than known.
    pub(crate) fn routes_differ(&self, routes: &mut dyn LocalNetworks) -> bool {
        match self {
            Mode::Ipvs(mode) => mode.routes_differ(routes),
            // Full passes compare them.
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => false,
        }
    }

    /// The addresses on which an earlier process served node ports, if connections end when such an address is given
    /// up.
    pub(crate) fn served_node_addresses(&self, families: Families) -> Vec<IpAddr> {
        match self {
            Mode::Ipvs(mode) => mode.served_node_addresses(families).collect(),
            // Connection tracking keeps them, or they ended with that process.
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => Vec::new(),
        }
    }

    /// Reads the kernel.
    pub(crate) fn read(
        &mut self,
        host: &HostAddresses,
        facts: &NodeFacts,
        ports: &mut Ports<'_>,
    ) -> Result<(), Vec<Unread>> {
        match self {
            Mode::Ipvs(mode) => mode.read(host, facts.config(), ports),
            Mode::Nftables(mode) => mode.read(facts, ports),
            // It reads each family when it prepares a plan for it.
            Mode::Iptables(_) => Ok(()),
            Mode::Userspace(mode) => mode.read(ports),
        }
    }

    /// Compares, reads what else has to be read, and makes the plan. `None` when the kernel is unknown.
    pub(crate) fn prepare(
        &mut self,
        pass: Pass<'_>,
        safeguard: &mut Safeguard,
        report: &mut Report,
        ports: &mut Ports<'_>,
    ) -> Option<Prepared> {
        Some(match self {
            Mode::Ipvs(mode) => Prepared::Ipvs(Box::new(mode.prepare(pass, safeguard, report, ports)?)),
            Mode::Nftables(mode) => Prepared::Nftables(Box::new(mode.prepare(pass, safeguard, report, ports)?)),
            Mode::Iptables(mode) => Prepared::Iptables(Box::new(mode.prepare(pass, safeguard, report, ports)?)),
            Mode::Userspace(mode) => Prepared::Userspace(Box::new(mode.prepare(pass, safeguard, report, ports)?)),
        })
    }

    /// The state that planning changes, to be restored by [`Mode::after_preview`].
    pub(crate) fn before_preview(&self) -> Option<ipvs::drain::Drains> {
        match self {
            Mode::Ipvs(mode) => Some(mode.drains().clone()),
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => None,
        }
    }

    /// Takes back a plan that is not carried out: the next pass reads the kernel.
    pub(crate) fn after_preview(&mut self, before: Option<ipvs::drain::Drains>) {
        if let (Mode::Ipvs(mode), Some(drains)) = (&mut *self, before) {
            mode.set_drains(drains);
            mode.forget_rules();
        }
        self.forget_kernel();
    }

    /// Carries out a plan. Returns whether the kernel contradicted what was known, so that it has to be read again at
    /// once.
    pub(crate) fn carry_out(
        &mut self,
        prepared: Prepared,
        store: &Store,
        report: &mut Report,
        clock: &dyn Fn() -> Moment,
        ports: &mut Ports<'_>,
    ) -> bool {
        match (self, prepared) {
            (Mode::Ipvs(mode), Prepared::Ipvs(prepared)) => mode.carry_out(*prepared, store, report, clock, ports),
            (Mode::Nftables(mode), Prepared::Nftables(prepared)) => mode.carry_out(*prepared, store, report, ports),
            (Mode::Iptables(mode), Prepared::Iptables(prepared)) => {
                mode.carry_out(*prepared, store, report, clock, ports)
            }
            (Mode::Userspace(mode), Prepared::Userspace(prepared)) => {
                mode.carry_out(*prepared, store, report, ports);
                false
            }
            // A plan is carried out by the mode that made it.
            _ => true,
        }
    }
}

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
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::config::{Config, Families};
use crate::modes::shared::names::Names;
use crate::modes::shared::sysctls::{self, HostSettings};
use crate::net::Family;
use crate::plan::report::{Refused, Report, Unread};
use crate::plan::step::Step;
use crate::ports::{Conntrack, LocalNetworks, PortError, PortErrorKind, Ports, Tables};
use crate::safeguard::{Kernel, Safeguard};
use crate::service::{Changes, Compiled, Desired, Frontend, NodeFacts};
use crate::snapshot::{HostAddresses, Store};
use crate::time::Moment;

/// Part of the kernel that serves Services.
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
    /// No part of the kernel: this process listens itself.
    Userspace,
}

impl Kind {
    /// All modes, best first.
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

/// Prints the name, as [`Kind::name`].
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The values below `/proc/sys` that a mode needs on a kernel of this release, before any Service is there. What iptables and nftables
/// mode set once their rules guard it (`route_localnet`) is not among them.
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
    /// Frontends of all Services.
    pub(crate) desired: &'a Desired,
    /// Differences from what was written last.
    pub(crate) changes: &'a Changes,
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

/// Plan of a pass.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Plan {
    /// Plan of IPVS mode.
    Ipvs(Box<ipvs::plan::Plan>),
    /// Plan of nftables mode.
    Nftables(Box<nftables::Plan>),
    /// Plan of iptables mode.
    Iptables(Box<iptables::Plan>),
    /// Plan of userspace mode.
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

/// A mode of one node, from pass to pass. It owns what it knows of the kernel, and the plan between [`Mode::prepare`] and
/// [`Mode::carry_out`].
///
/// A new mode implements the methods without a body. Those with one are for a mode whose kernel part has more to it: devices, routes, real
/// servers that drain.
pub(crate) trait Mode: fmt::Debug + Send + Sync {
    /// The name.
    fn kind(&self) -> Kind;

    /// Whether Services are compiled with their ports. The answer is always the same.
    fn needs_ports(&self) -> bool {
        false
    }

    /// Follows a Service that is new, gone or compiled to something else ([`Follower::service`](crate::service::Follower::service)).
    fn index_service(&mut self, _before: Option<&Compiled>, _after: Option<&Compiled>) {}

    /// Follows a Frontend that is new, gone or different. `written`: as it was written last.
    fn index_frontend(
        &mut self,
        _written: Option<&Arc<Frontend>>,
        _before: Option<&Arc<Frontend>>,
        _after: Option<&Arc<Frontend>>,
    ) {
    }

    /// Reduces memory by rebuilding everything that is kept.
    fn compact(&mut self) {}

    /// Whether a pass for changes is enough.
    fn knows_kernel(&self) -> bool;

    /// The next pass reads the kernel.
    fn forget_kernel(&mut self);

    /// Reads the kernel.
    ///
    /// # Errors
    /// The parts that could not be read. The kernel's state is unknown then.
    fn read(
        &mut self,
        desired: &Desired,
        host: &HostAddresses,
        facts: &NodeFacts,
        ports: &mut Ports<'_>,
    ) -> Result<(), Vec<Unread>>;

    /// State of the kernel, as far as known.
    fn kernel(&self) -> Option<&dyn Kernel>;

    /// Compares, reads what else has to be read, and makes the plan. `None` when the kernel is unknown.
    fn prepare(
        &mut self,
        pass: Pass<'_>,
        safeguard: &mut Safeguard,
        report: &mut Report,
        ports: &mut Ports<'_>,
    ) -> Option<()>;

    /// Carries out the plan that was made last, and takes from the changes what was written. Returns whether the kernel contradicted what
    /// was known, so that it has to be read again at once.
    fn carry_out(
        &mut self,
        objects: (&Store, &Desired),
        changes: &mut Changes,
        report: &mut Report,
        clock: &dyn Fn() -> Moment,
        ports: &mut Ports<'_>,
    ) -> bool;

    /// The next plan is for showing: [`Mode::end_preview`] takes it back.
    fn begin_preview(&mut self) {}

    /// Takes the plan that was made last, which is not carried out; empty if there is none. The next pass reads the kernel.
    fn end_preview(&mut self) -> Plan;

    /// Time at which the mode has work even if no input changes.
    fn next_wake(&self) -> Option<Moment> {
        None
    }

    /// Wishes of Services that this mode does not fulfil, though another may.
    fn refused(&self, _desired: &Desired) -> Vec<Refused> {
        Vec::new()
    }

    /// The node facts are new.
    fn facts_changed(&mut self) {}

    /// Whether the mode has tables of nf_tables, and has read them.
    fn has_read_tables(&self) -> bool {
        false
    }

    /// Puts back at once tables of nf_tables that guard Frontends which are served without them too, if another program has changed them.
    fn restore_tables(&mut self, _config: &Config, _tables: &mut dyn Tables) {}

    /// Whether the mode's device has other addresses than known, or is gone.
    fn device_differs(&self, _host: &HostAddresses) -> bool {
        false
    }

    /// Whether the mode's routes differ from the known ones. Where it does not look, full passes compare them.
    fn routes_differ(&self, _routes: &mut dyn LocalNetworks) -> bool {
        false
    }

    /// The addresses on which an earlier process served node ports, if connections end when such an address is given up: not where
    /// connection tracking keeps them, or they ended with that process.
    fn served_node_addresses(&self, _families: Families) -> Vec<IpAddr> {
        Vec::new()
    }

    /// Whether a cold start may serve some Services before the rest is compiled: the mode is faster then, and the kernel, as far as it
    /// is known, holds nothing of an earlier process.
    fn may_serve_first(&self, _host: &HostAddresses) -> bool {
        false
    }

    /// Whether the plan that was made last replaces what serves by another mode's.
    fn takes_over(&self) -> bool {
        false
    }

    /// The next pass tries again what waits for a pause to end.
    fn retry_at_once(&mut self) {}

    /// IPVS mode, for what only it has: virtual servers, real servers that drain.
    fn ipvs(&self) -> Option<&ipvs::Mode> {
        None
    }
}

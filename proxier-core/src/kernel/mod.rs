//! The ports over the running kernel (feature `kernel`).
//!
//! [`KernelPorts`] has one of each. Many addresses are sent at once; listeners run on threads that start at first use.
//!
//! Errors become [`PortErrorKind`](crate::ports::PortErrorKind)s by the kinds that the clients report, not by their
//! text.
//!
//! Sockets are opened at first use, in the calling thread's network namespace, and again after a failure that leaves a
//! connection in doubt. A missing part of the kernel therefore only fails its own calls.
//!
//! In addition, [`Monitor`] reports changed addresses and devices, and [`TableMonitor`] reports writes to a table.
//!
//! # An agent's loop
//!
//! An agent waits for the first of these: the next pass, an added or removed address, another program's change of a
//! table.
//!
//! ```no_run
//! use std::os::fd::AsFd;
//! use std::time::{Duration, Instant};
//! use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
//! use proxier_core::kernel::{KernelOptions, KernelPorts, Monitor, TableMonitor};
//! use proxier_core::modes::Kind;
//! use proxier_core::engine::{Options, Reconciler};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = Options::default();
//! options.mode = Kind::Nftables;
//! let origin = Instant::now();
//! let mut proxier = Reconciler::new("node-a", options, Duration::ZERO);
//!
//! // Opened before anything is read, so that nothing is missed.
//! let mut monitor = Monitor::open()?;
//! let mut tables = TableMonitor::open(&proxier.table_name().ok_or("no tables in this mode")?)?;
//! let mut kernel = KernelPorts::open(&KernelOptions::default())?;
//!
//! proxier.start(origin.elapsed());
//! while let Some(at) = proxier.next_wake() {
//!     let wait = PollTimeout::try_from(at.saturating_sub(origin.elapsed())).unwrap_or(PollTimeout::MAX);
//!     let mut readable =
//!         [PollFd::new(monitor.as_fd(), PollFlags::POLLIN), PollFd::new(tables.as_fd(), PollFlags::POLLIN)];
//!     poll(&mut readable, wait)?;
//!
//!     let changes = monitor.drain()?;
//!     if !changes.is_empty() {
//!         proxier.addresses_seen(changes.came, origin.elapsed());
//!         proxier.host_changed(origin.elapsed());
//!     }
//!     let written = tables.drain()?;
//!     if !written.is_empty() {
//!         proxier.tables_changed(&written.generations, written.lost, kernel.ports().tables, origin.elapsed());
//!     }
//!     if let Some(report) = proxier.pass(&|| origin.elapsed(), &mut kernel.ports()) {
//!         println!("{} operations, {} failed", report.writes(), report.applied.failures.len());
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod conntrack;
mod counters;
mod error;
mod ipvs;
mod lazy;
mod relay;
mod release;
mod rtnetlink;
mod rules;
mod sets;
mod sysctl;
mod table_monitor;
mod tables;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use iptables::{Backend, BackendChoice, Limits, System};

use crate::net::FrontendKey;
use crate::ports::{Ports, Result, Settings, lend};

pub use counters::PacketCounters;
pub(crate) use error::errno_kind;
pub use rtnetlink::{Changes, Monitor, Presence};
#[cfg(feature = "testing")]
pub(crate) use sysctl::check as check_sysctl;
pub use table_monitor::{TableChanges, TableMonitor};

/// Single ports, for this crate and its tests.
#[doc(hidden)]
pub use {
    conntrack::ConntrackPort,
    ipvs::IpvsPort,
    relay::Relay,
    rtnetlink::{LinksPort, RoutesPort},
    rules::RulesPort,
    sets::SetsPort,
    sysctl::SysctlsPort,
    tables::TablesPort,
};

/// How the kernel is accessed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KernelOptions {
    /// Paths of the iptables programs and their lock. By default the usual places.
    pub system: System,
    /// Back end of iptables. By default the one that the host uses.
    pub backend: BackendChoice,
    /// Time limits for the lock of iptables and for its programs.
    pub limits: Limits,
    /// Mount point of `/proc/sys`, or a directory with its `net`. The rest is read from `/proc/sys`, where containers
    /// can read it.
    pub sysctl_root: PathBuf,
}

impl Default for KernelOptions {
    fn default() -> Self {
        KernelOptions {
            system: System::new(),
            backend: BackendChoice::Detect,
            limits: Limits::default(),
            sysctl_root: PathBuf::from("/proc/sys"),
        }
    }
}

/// The ports to the running kernel, in the network namespace of the thread that uses them.
///
/// Sockets stay in the namespace in which they were opened; programs, and files below `/proc/sys/net`, use the calling
/// thread's. Threads that share one value must therefore share a namespace, as threads of a process do by default. For
/// another namespace, such as a pod's, start a thread, enter the namespace there (`setns` with `CAP_SYS_ADMIN`), and
/// open, use and drop the value on that thread. A [`Monitor`] or [`TableMonitor`] opened there may be drained on any
/// thread. There is no `open_in`, since programs and sysctls would still use the caller's namespace.
#[derive(Debug)]
pub struct KernelPorts {
    ipvs: IpvsPort,
    sets: SetsPort,
    rules: RulesPort<System>,
    links: LinksPort,
    sysctls: SysctlsPort,
    tables: TablesPort,
    conntrack: ConntrackPort,
    routes: RoutesPort,
    relays: Relay,
}

impl KernelPorts {
    /// Opens the ports in the calling thread's network namespace.
    ///
    /// Only opens rtnetlink at once, which every kernel has. If anything else is missing (a module, a family, a
    /// program), the calls that need it report [`PortErrorKind::Unavailable`](crate::ports::PortErrorKind::Unavailable)
    /// with the reason. The next call tries again.
    ///
    /// # Errors
    /// If no socket can be opened: too many open files, or a sandbox without netlink.
    pub fn open(options: &KernelOptions) -> Result<Self> {
        let mut links = LinksPort::default();
        links.open()?;
        Ok(KernelPorts {
            ipvs: IpvsPort::new(::ipvs::Client::open),
            sets: SetsPort::new(ipset::Client::open),
            rules: RulesPort::new(options.system.clone(), options.backend, options.limits),
            links,
            sysctls: SysctlsPort::new(&options.sysctl_root),
            tables: TablesPort::new(nftables::Client::open),
            conntrack: ConntrackPort::default(),
            routes: RoutesPort::default(),
            relays: Relay::new(Settings::default()),
        })
    }

    /// Lends the ports to a pass.
    pub fn ports(&mut self) -> Ports<'_> {
        lend!(self)
    }

    /// Stops listening in this process, and waits at most `patience` for all connections to end. Returns the number of
    /// connections left.
    pub fn finish(&mut self, patience: Duration) -> usize {
        self.relays.finish(patience)
    }

    /// Sets the listeners of another process, the node's proxy, which plans here then omit.
    pub fn set_elsewhere(&mut self, listening: BTreeSet<FrontendKey>) {
        self.relays.set_elsewhere(listening);
    }

    /// The iptables back end in use, once rules were read or written.
    pub fn iptables_backend(&self) -> Option<Backend> {
        self.rules.backend()
    }
}

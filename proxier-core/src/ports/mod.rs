//! The interface of a pass to the outside world: one small trait per kernel part, with only the methods used.
//!
//! Feature `kernel` implements them with this project's clients. Feature `testing` has fakes that follow the kernel's
//! rules and pass the same tests. Every method blocks until the kernel has answered. None of them logs, retries for
//! long or makes decisions: failures, such as an incomplete reading, are returned as [`PortError`]. A method names the
//! kinds that mean something to a pass.
//!
//! # A custom port
//!
//! A pass uses [`Ports`], which are assembled field by field, so you can replace one and keep the rest. This one leaves
//! values below `/proc/sys` to another program:
//!
//! ```
//! use std::time::Duration;
//! use proxier_core::fake::FakeKernel;
//! use proxier_core::ports::{PortError, PortErrorKind, Ports, Sysctls};
//! use proxier_core::engine::{Options, Reconciler};
//!
//! struct AlreadySet(Vec<String>);
//!
//! impl Sysctls for AlreadySet {
//!     fn get(&mut self, path: &str) -> Result<String, PortError> {
//!         Err(PortError::new(PortErrorKind::NotFound, format!("{path}: not asked for")))
//!     }
//!
//!     fn can_set(&mut self, _path: &str) -> bool {
//!         false
//!     }
//!
//!     fn set(&mut self, path: &str, value: &str) -> Result<(), PortError> {
//!         self.0.push(format!("{path} = {value}"));
//!         Ok(())
//!     }
//! }
//!
//! let (mut kernel, now) = (FakeKernel::new(), Duration::ZERO);
//! let mut sysctls = AlreadySet(Vec::new());
//! let mut proxier = Reconciler::new("node-a", Options::default(), now);
//! proxier.start(now);
//! let mut ports = Ports { sysctls: &mut sysctls, ..kernel.ports() };
//! let report = proxier.pass(&|| now, &mut ports).ok_or("not due")?;
//! assert!(report.is_done());
//! assert!(sysctls.0.contains(&"net/ipv4/ip_forward = 1".to_owned()));
//! assert_eq!(kernel.writes().sysctls, 0);
//! # Ok::<(), &str>(())
//! ```

mod error;
mod listener;
mod named_set;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipset::Element;
use ipvs::model::{ObservedRealServer, Snapshot, Timeouts, TimeoutsUpdate};
use ipvs::{Operation, VirtualServerKey};
use nftables::{ChainKey, ObservedChain, ObservedRule, Table, TableKey, TableSnapshot, Transaction};

use crate::net::{ByFamily, Family, FrontendKey, Network, Protocol};
use crate::snapshot::HostAddresses;

pub use error::{ItemFailures, PortError, PortErrorKind, Result};
pub use listener::{Counts, Listener, Settings};
pub use named_set::NamedSet;
pub use rules::Rules;

/// Names of sets, for this crate, its tests and its benches.
#[doc(hidden)]
pub use named_set::{SetKey, SetKind};
pub(crate) use named_set::{frontend_at, place_of, recorded};

/// The ports of all parts that a pass uses.
pub struct Ports<'a> {
    /// Virtual and real servers.
    pub ipvs: &'a mut dyn Ipvs,
    /// Sets.
    pub sets: &'a mut dyn Sets,
    /// Rules.
    pub rules: &'a mut dyn Rules,
    /// Dummy device and addresses.
    pub links: &'a mut dyn Links,
    /// Values below `/proc/sys`.
    pub sysctls: &'a mut dyn Sysctls,
    /// Tables of nf_tables.
    pub tables: &'a mut dyn Tables,
    /// Tracked connections.
    pub conntrack: &'a mut dyn Conntrack,
    /// Networks that are local as a whole.
    pub routes: &'a mut dyn LocalNetworks,
    /// Listeners in this process.
    pub relays: &'a mut dyn Relays,
}

impl Ports<'_> {
    /// The same ports, any of which may be replaced for a while.
    pub(crate) fn lend(&mut self) -> Ports<'_> {
        Ports {
            ipvs: self.ipvs,
            sets: self.sets,
            rules: self.rules,
            links: self.links,
            sysctls: self.sysctls,
            tables: self.tables,
            conntrack: self.conntrack,
            routes: self.routes,
            relays: self.relays,
        }
    }
}

/// Lends the ports of a value that has each in a field of the same name.
macro_rules! lend {
    ($owner:expr) => {
        $crate::ports::Ports {
            ipvs: &mut $owner.ipvs,
            sets: &mut $owner.sets,
            rules: &mut $owner.rules,
            links: &mut $owner.links,
            sysctls: &mut $owner.sysctls,
            tables: &mut $owner.tables,
            conntrack: &mut $owner.conntrack,
            routes: &mut $owner.routes,
            relays: &mut $owner.relays,
        }
    };
}
pub(crate) use lend;

impl fmt::Debug for Ports<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ports")
    }
}

/// Virtual and real servers.
pub trait Ipvs {
    /// Reads all virtual servers, including those of other programs; [`Unavailable`](PortErrorKind::Unavailable) on a
    /// kernel without the module `ip_vs`.
    fn snapshot(&mut self) -> Result<Snapshot>;

    /// Reads all virtual servers once: some may be missing or repeated if other programs change them meanwhile.
    fn snapshot_once(&mut self) -> Result<Snapshot> {
        self.snapshot()
    }

    /// Whether the virtual servers, without their real servers, are still those of a snapshot. If so, none was missing.
    fn is_still(&mut self, snapshot: &Snapshot) -> Result<bool> {
        // A complete snapshot needs no second check.
        let _ = snapshot;
        Ok(true)
    }

    /// Reads the real servers of one virtual server with their connections; [`NotFound`](PortErrorKind::NotFound) if it
    /// does not exist.
    fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>>;

    /// Carries out operations in order. A refused operation does not stop the following ones.
    fn run(&mut self, operations: &[&Operation]) -> ItemFailures;

    /// Timeouts of connections.
    fn timeouts(&mut self) -> Result<Timeouts>;

    /// Changes timeouts.
    fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<()>;
}

/// The sets that rules use. No other sets are ever read or written.
pub trait Sets {
    /// The entries of a set; `None` if it does not exist. [`Invalid`](PortErrorKind::Invalid) if a set of this name has
    /// another type or family, and so belongs to another program.
    fn entries(&mut self, set: NamedSet) -> Result<Option<BTreeSet<Element>>>;

    /// Whether any set may exist, of any program: asking for one loads the module. Default yes.
    fn may_exist(&mut self) -> bool {
        true
    }

    /// Creates a set with room for at least this many entries, unless one of this type and family exists.
    /// [`Invalid`](PortErrorKind::Invalid) if it exists with another type, [`Unavailable`](PortErrorKind::Unavailable)
    /// without the module.
    fn create(&mut self, set: NamedSet, room: usize) -> Result<()>;

    /// Adds entries. An existing one counts as added.
    fn add(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures;

    /// Deletes entries. A missing one counts as deleted.
    fn delete(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures;

    /// Brings a set to exactly these entries, atomically for packets, with more room if needed. Rules that use it stay
    /// valid, and no entry that is still desired is missing at any moment, not even after an error. A missing set is
    /// created with all entries at once.
    fn replace(&mut self, set: NamedSet, elements: &[&Element]) -> Result<()>;

    /// Whether a process that was killed while it created or replaced this set left an unfinished one behind;
    /// [`Sets::destroy`] removes both. The set itself may be missing. Default: no.
    fn has_unfinished(&mut self, set: NamedSet) -> Result<bool> {
        let _ = set;
        Ok(false)
    }

    /// Destroys a set, if it exists; [`Busy`](PortErrorKind::Busy) while a rule uses it.
    fn destroy(&mut self, set: NamedSet) -> Result<()>;
}

/// The dummy device, and this host's addresses and gateways.
pub trait Links {
    /// Whether the dummy device exists. [`Invalid`](PortErrorKind::Invalid) if a device of another type has its name; its
    /// addresses belong to another program.
    fn has_device(&mut self, name: &str) -> Result<bool>;

    /// Creates the dummy device, unless it exists. It stays down, which does not affect its addresses.
    /// [`Invalid`](PortErrorKind::Invalid) if another device has its name, [`Unavailable`](PortErrorKind::Unavailable)
    /// without the module.
    fn create_device(&mut self, name: &str) -> Result<()>;

    /// Deletes the dummy device with its addresses, if it exists; [`Invalid`](PortErrorKind::Invalid) if the device of
    /// this name is not a dummy device.
    fn delete_device(&mut self, name: &str) -> Result<()>;

    /// Reads the addresses of every interface, including interfaces without any.
    fn addresses(&mut self) -> Result<HostAddresses>;

    /// Whether a device is a bridge. `false` by default, and for a device that is missing or cannot be read.
    fn is_bridge(&mut self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Reads the gateways of the default routes of both families: of routes for at least an eighth of all addresses.
    fn gateways(&mut self) -> Result<BTreeSet<IpAddr>>;

    /// Adds addresses to the device, as `/32` or `/128`. An existing one counts as added.
    fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures;

    /// Deletes addresses from the device. A missing one counts as deleted.
    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures;
}

/// A value to write.
#[derive(Clone, Debug, PartialEq)]
pub struct SysctlChange {
    /// Path below `/proc/sys`, such as `net/ipv4/ip_forward`.
    pub path: String,
    /// Current value; `None` if it could not be read.
    pub from: Option<String>,
    /// Required value.
    pub to: String,
}

/// Values below `/proc/sys`.
pub trait Sysctls {
    /// Reads a value, without surrounding white space; [`NotFound`](PortErrorKind::NotFound) if this kernel does not have
    /// it. `path` is below `/proc/sys`: `net/ipv4/ip_forward`.
    fn get(&mut self, path: &str) -> Result<String>;

    /// Whether it can be written. Some values belong to the whole host and are read-only in a network namespace.
    fn can_set(&mut self, path: &str) -> bool;

    /// Writes a value.
    fn set(&mut self, path: &str, value: &str) -> Result<()>;
}

/// A transaction that the kernel refused as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct NotCommitted {
    /// The kernel's error.
    pub error: PortError,
    /// Index of the refused operation, from 0, and of its element if the kernel reported one.
    pub refused: Option<(usize, Option<usize>)>,
}

/// nf_tables tables.
pub trait Tables {
    /// The generation of the rule set, which grows with every change by any program;
    /// [`Unavailable`](PortErrorKind::Unavailable) without nf_tables.
    fn generation(&mut self) -> Result<u32>;

    /// Reads a table with all its contents in one generation; `None` if it does not exist.
    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>>;

    /// Reads a table without its contents; `None` if it does not exist.
    fn table(&mut self, table: &TableKey) -> Result<Option<Table>> {
        Ok(self.read(table)?.map(|read| read.table.table))
    }

    /// Whether a table has a chain of this name. `false` without the table.
    fn has_chain(&mut self, table: &TableKey, chain: &str) -> Result<bool> {
        Ok(self.chains(table)?.iter().any(|found| found.chain.key.name.as_str() == chain))
    }

    /// Lists all tables, of all programs. Default: none.
    fn list(&mut self) -> Result<Vec<TableKey>> {
        Ok(Vec::new())
    }

    /// Lists the chains of a table; none if it does not exist.
    fn chains(&mut self, table: &TableKey) -> Result<Vec<ObservedChain>> {
        Ok(self.read(table)?.map(|read| read.chains).unwrap_or_default())
    }

    /// Lists the rules of a chain, in order; none if it does not exist.
    fn rules(&mut self, chain: &ChainKey) -> Result<Vec<ObservedRule>> {
        let rules = self.read(&chain.table)?.map(|read| read.rules).unwrap_or_default();
        Ok(rules.into_iter().filter(|rule| rule.chain == *chain).collect())
    }

    /// Lets the kernel check all changes without applying them.
    fn check(&mut self, transaction: &Transaction) -> Result<(), NotCommitted>;

    /// Applies all changes atomically, or none; [`Unknown`](PortErrorKind::Unknown) if the kernel may have applied them.
    fn commit(&mut self, transaction: &Transaction) -> Result<(), NotCommitted>;
}

/// Flows to forget, by destination of the client's packets, with the endpoints whose flows continue.
///
/// A flow is forgotten if its original destination is one of the keys, with the given protocol, and its endpoint is not
/// among the value's addresses.
pub type UdpServices = BTreeMap<SocketAddr, BTreeSet<SocketAddr>>;

/// A number of flows, by family.
pub type Flows = ByFamily<usize>;

impl Flows {
    /// The number of both families together.
    pub fn total(self) -> usize {
        self.v4.saturating_add(self.v6)
    }

    /// Adds these numbers.
    pub(crate) fn add(&mut self, more: Flows) {
        self.v4 = self.v4.saturating_add(more.v4);
        self.v6 = self.v6.saturating_add(more.v6);
    }
}

/// Tracked connections.
pub trait Conntrack {
    /// Deletes a family's flows of a protocol to these addresses and ports that none of the listed endpoints answers.
    /// Returns their number. For TCP, the kernel then treats the next packet of a connection as the first of a new one.
    /// Lists the kernel's table once for any number of addresses, and not at all if none is of the family.
    fn forget_flows(&mut self, protocol: Protocol, family: Family, services: &UdpServices) -> Result<usize>;

    /// The addresses and ports with UDP flows that [`forget_flows`](Conntrack::forget_flows) would delete. Read-only.
    fn find_udp(&mut self, services: &UdpServices) -> Result<BTreeSet<SocketAddr>>;
}

/// The mode that created a local route. Each has its own number in the kernel (`proto` and `metric` of `ip route`),
/// which outlives the process. So neither mode mistakes the other's routes for its own, and both may have one for the
/// same network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteOwner {
    /// Userspace mode.
    Userspace,
    /// IPVS mode, when it binds addresses with routes.
    Ipvs,
}

impl RouteOwner {
    /// Both owners.
    pub const ALL: [RouteOwner; 2] = [RouteOwner::Userspace, RouteOwner::Ipvs];

    /// The number: 118 or 119, which no program registered in iproute2's `rt_protos` has. As a metric it distinguishes
    /// the route from the kernel's own for a bound address, which has metric 0 and is preferred.
    pub const fn number(self) -> u8 {
        match self {
            RouteOwner::Userspace => 118,
            RouteOwner::Ipvs => 119,
        }
    }
}

/// A route that makes a network, or a single address, local.
///
/// Prints in `ip route`'s format: `local 10.96.0.0/12 dev lo src 192.0.2.10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LocalRoute {
    /// The network.
    pub network: Network,
    /// The source of this host's own packets to these addresses, if the program has not chosen one. It must be an
    /// address of this host. `None`: with IPv4 the destination itself, with IPv6 one that the kernel chooses.
    pub source: Option<IpAddr>,
}

impl LocalRoute {
    /// Creates a route without a source.
    pub fn new(network: Network) -> Self {
        LocalRoute { network: network.trunc(), source: None }
    }
}

impl fmt::Display for LocalRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "local {} dev lo", self.network)?;
        self.source.map_or(Ok(()), |source| write!(f, " src {source}"))
    }
}

/// Our own local routes: `ip route add local 10.96.0.0/12 dev lo proto 118 metric 118`. Packets to every address of
/// such a network end on this host, without binding any address.
pub trait LocalNetworks {
    /// Networks of this owner's routes, with the source address of each. Other programs' routes are not listed.
    fn networks(&mut self, owner: RouteOwner) -> Result<BTreeMap<Network, Option<IpAddr>>>;

    /// Makes networks local. A network that this owner already has gets this source, without an interruption.
    ///
    /// A source that is not an address of this host fails ([`Invalid`](PortErrorKind::Invalid)). With IPv4 the
    /// kernel deletes the route when the host loses the source.
    fn add(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures;

    /// Deletes routes of this owner. A missing one counts as deleted.
    fn delete(&mut self, owner: RouteOwner, networks: &[Network]) -> ItemFailures;
}

/// Listeners of this process for Services, with their endpoints. They end with the process.
pub trait Relays {
    /// The current listeners, by Frontend.
    fn listeners(&mut self) -> BTreeMap<FrontendKey, Listener>;

    /// Frontends on which another process, the node's proxy, listens, for a plan of the remaining work; `None` without
    /// such a process. Their endpoints are unknown.
    fn elsewhere(&mut self) -> Option<BTreeSet<FrontendKey>> {
        None
    }

    /// Applies settings to all listeners. Fails if this process cannot relay at all: no descriptor.
    fn configure(&mut self, settings: &Settings) -> Result<()>;

    /// Listens, or changes the endpoints of a listener. [`AlreadyExists`](PortErrorKind::AlreadyExists) if another
    /// program has the port; nothing listens there then.
    fn serve(&mut self, listener: &Listener) -> Result<()>;

    /// Stops listening; not an error if nothing listens there. Connections continue until either side closes them.
    fn close(&mut self, key: &FrontendKey);

    /// Addresses of closed listeners that still have connections. Default: none.
    fn busy(&mut self) -> BTreeSet<IpAddr> {
        BTreeSet::new()
    }

    /// Connections and UDP flows started, by listener, since it was opened. Empty if nothing counts them.
    fn begun(&mut self) -> BTreeMap<FrontendKey, u64> {
        BTreeMap::new()
    }

    /// Messages for people since the last call: limits that were reached, endpoints that do not answer.
    /// Default: none.
    fn notices(&mut self) -> Vec<String> {
        Vec::new()
    }
}

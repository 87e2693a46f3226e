//! A simulated kernel behind the ports (feature `testing`).
//!
//! It consists of the fakes of the lower crates and of small models of devices, sysctls and tracked connections. Those
//! fakes use the kernel's byte format and pass the same tests as the kernel. The ports are those of
//! [`kernel`](crate::kernel), so tests also cover how these interpret the kernel's answers. `tests/ports` runs on this
//! kernel and on real ones.
//!
//! ```
//! use proxier_core::fake::{Call, FakeKernel, Fault};
//! use proxier_core::ports::PortErrorKind;
//!
//! let mut kernel = FakeKernel::new();
//! let vip = ["10.96.0.1".parse()?];
//! let ports = kernel.ports();
//! ports.links.create_device("kube-ipvs0").map_err(|error| error.to_string())?;
//! assert!(ports.links.bind("kube-ipvs0", &vip).is_empty());
//! assert_eq!(kernel.state().devices["kube-ipvs0"], vip);
//! assert_eq!(kernel.writes().links, 2);
//!
//! kernel.fail(Fault::new(Call::LinksUnbind, PortErrorKind::Busy).item(0));
//! assert_eq!(kernel.ports().links.unbind("kube-ipvs0", &vip)[0].error.kind(), PortErrorKind::Busy);
//!
//! // A process that dies after one more write leaves what it wrote.
//! kernel.crash_after(1);
//! let more = ["10.96.0.2".parse()?, "10.96.0.3".parse()?];
//! assert_eq!(kernel.ports().links.bind("kube-ipvs0", &more).len(), 1);
//! kernel.restart();
//! assert_eq!(kernel.state().devices["kube-ipvs0"].len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod conntrack;
mod control;
mod host;
mod links;
mod ports;
mod shared;
mod transport;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipset::fake::FakeIpset;
use iptables::fake::FakeHost;
use iptables::{Backend, Family};
use ipvs::fake::FakeIpvs;
use ipvs::{RealServerKey, VirtualServerKey};
use nftables::fake::FakeNftables;

use crate::net::{FrontendKey, Network};
use crate::ports::{Listener, LocalRoute, PortErrorKind, Ports, RouteOwner, Settings};
use crate::sketch::SYSCTLS;
use control::Control;
use host::Host;
use links::Interfaces;
use ports::{FakePorts, FakeRelays};
use shared::Shared;

pub use conntrack::Flow;
pub use control::{Call, Fault, Objection, Writes};

/// State of a simulated kernel, for comparison. It does not depend on how the state was reached.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct KernelState {
    /// Virtual and real servers in the format of `ipvsadm --save --numeric`, sorted by key; empty without IPVS.
    pub ipvs: String,
    /// Sets by name: the command that creates each, and its entries, in the format of `ipset save`.
    pub sets: BTreeMap<String, (String, BTreeSet<String>)>,
    /// Rules by family and back end, in the format of `iptables-save`.
    pub rules: BTreeMap<(Family, Backend), String>,
    /// nf_tables tables by family and name, as `nft list table` prints them.
    pub tables: BTreeMap<String, String>,
    /// Addresses by device, in the order in which they were added.
    pub devices: BTreeMap<String, Vec<IpAddr>>,
    /// Values below `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// Tracked connections.
    pub flows: BTreeSet<Flow>,
    /// The routes that make networks local, and their owners.
    pub routes: BTreeSet<(RouteOwner, LocalRoute)>,
}

/// State shared by all handles of one kernel.
#[derive(Clone)]
struct Parts {
    ipvs: FakeIpvs,
    sets: FakeIpset,
    host: Host,
    links: Shared<Interfaces>,
    sysctls: Shared<BTreeMap<String, String>>,
    /// Packet counters; `None` if the kernel does not support them.
    counters: Shared<Option<BTreeSet<String>>>,
    tables: FakeTables,
    flows: Shared<BTreeSet<Flow>>,
    relays: Shared<FakeRelays>,
    control: Shared<Control>,
}

#[derive(Clone, Debug, Default)]
struct FakeTables(FakeNftables);

impl FakeTables {
    fn client(&self) -> nftables::Client {
        nftables::Client::with_transport(self.0.transport())
    }

    /// All tables, as `nft list ruleset` prints them.
    fn dump(&self) -> BTreeMap<String, String> {
        let mut client = self.client();
        // The fake never refuses to list.
        let tables = client.list_tables(None).unwrap_or_default();
        let keys = tables.into_iter().map(|table| table.table.key);
        keys.filter_map(|key| Some((key.to_string(), client.snapshot(&key).ok()?.to_string()))).collect()
    }
}

/// A simulated kernel. Clones share it, each with its own connections.
pub struct FakeKernel {
    parts: Parts,
    ports: FakePorts,
}

impl Default for FakeKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for FakeKernel {
    fn clone(&self) -> Self {
        Self::from_parts(self.parts.clone())
    }
}

impl fmt::Debug for FakeKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeKernel").field("control", &self.parts.control).finish_non_exhaustive()
    }
}

impl FakeKernel {
    /// A new kernel: `lo`, all modules, iptables 1.8.9 of both back ends.
    pub fn new() -> Self {
        Self::with_iptables(FakeHost::new)
    }

    /// A kernel with other iptables programs. `make` may be called repeatedly and must always return the same.
    #[doc(hidden)]
    pub fn with_iptables(make: impl Fn() -> FakeHost + Send + Sync + 'static) -> Self {
        let sets = FakeIpset::new();
        let control = Shared::<Control>::default();
        let sysctls = SYSCTLS.into_iter().map(|(path, value)| (path.to_owned(), value.to_owned())).collect();
        Self::from_parts(Parts {
            ipvs: FakeIpvs::new(),
            host: Host::new(Arc::new(make), sets.clone(), control.clone()),
            sets,
            links: Shared::default(),
            sysctls: Shared::new(sysctls),
            counters: Shared::new(None),
            tables: FakeTables::default(),
            flows: Shared::default(),
            relays: Shared::default(),
            control,
        })
    }

    fn from_parts(parts: Parts) -> Self {
        FakeKernel { ports: FakePorts::new(&parts), parts }
    }

    /// Lends the ports to a pass.
    pub fn ports(&mut self) -> Ports<'_> {
        self.ports.lend()
    }

    /// The whole state. Injected failures do not affect it.
    pub fn state(&self) -> KernelState {
        let (devices, routes) = {
            let links = self.parts.links.lock();
            (links.all(), links.saved_routes())
        };
        KernelState {
            ipvs: self.parts.ipvs.dump().unwrap_or_default(),
            sets: self.saved_sets(),
            rules: self.parts.host.dump(),
            tables: self.parts.tables.dump(),
            devices,
            sysctls: self.parts.sysctls.lock().clone(),
            flows: self.parts.flows.lock().clone(),
            routes,
        }
    }

    fn saved_sets(&self) -> BTreeMap<String, (String, BTreeSet<String>)> {
        let sets = ipset::Client::with_transport(self.parts.sets.transport()).and_then(|mut client| client.list_sets());
        let set = |set: ipset::ObservedSet| {
            let entries = set.entries.iter().map(ToString::to_string).collect();
            (set.spec.name.as_str().to_owned(), (set.spec.to_string(), entries))
        };
        // The fake never refuses to list.
        sets.unwrap_or_default().into_iter().map(set).collect()
    }

    /// Writes of the ports so far, including failed ones. Changes by the methods below do not count.
    pub fn writes(&self) -> Writes {
        self.parts.control.lock().writes
    }

    /// Injects a failure.
    #[doc(hidden)]
    pub fn fail(&self, fault: Fault) {
        self.parts.control.lock().add(fault);
    }

    /// Refuses these operations on virtual and real servers until [`FakeKernel::clear_faults`]. Other operations of the
    /// same call are carried out.
    pub fn refuse(&self, what: Objection, kind: PortErrorKind) {
        self.parts.control.lock().objection = Some((what, kind));
    }

    /// Removes the injected failures that have not happened yet.
    #[doc(hidden)]
    pub fn clear_faults(&self) {
        self.parts.control.lock().clear();
    }

    /// Kills the process after this many more writes: the rest of that call, and every later call, fails without
    /// effect. Operations, entries, addresses and tables count, and within
    /// [`Sets::replace`](crate::ports::Sets::replace) the messages that change sets, so a set may be left half
    /// replaced.
    #[doc(hidden)]
    pub fn crash_after(&self, writes: u64) {
        self.parts.control.lock().crash_after(writes);
    }

    /// Whether the process has died.
    #[doc(hidden)]
    pub fn has_crashed(&self) -> bool {
        self.parts.control.lock().has_crashed()
    }

    /// Starts a new process on the same kernel: calls work again, and nothing listens.
    #[doc(hidden)]
    pub fn restart(&self) {
        self.parts.control.lock().restart();
        self.parts.relays.lock().listeners.clear();
    }

    /// The virtual and real servers, to change them as another program would.
    pub fn ipvs(&self) -> &FakeIpvs {
        &self.parts.ipvs
    }

    /// Sets the active and inactive connections of a real server. Returns whether it exists.
    #[doc(hidden)]
    pub fn set_connections(&self, key: &VirtualServerKey, real: &RealServerKey, active: u32, inactive: u32) -> bool {
        self.parts.ipvs.set_counters(key, Some((real, active, inactive)), 0, 0)
    }

    /// A client of the sets, to change them as another program would.
    ///
    /// # Errors
    /// None: the fake always answers.
    pub fn ipset(&self) -> Result<ipset::Client, ipset::Error> {
        ipset::Client::with_transport(self.parts.sets.transport())
    }

    /// A client of nf_tables, to change tables as another program would.
    pub fn nftables(&self) -> nftables::Client {
        self.parts.tables.client()
    }

    /// The simulated nf_tables, to inject refusals.
    pub fn nf_tables(&self) -> &FakeNftables {
        &self.parts.tables.0
    }

    /// Commits another program's transaction just before the port's next one. Several are each committed before another
    /// one.
    #[doc(hidden)]
    pub fn commit_before(&self, transaction: nftables::Transaction) {
        self.parts.control.lock().others.push_back(transaction);
    }

    /// The iptables programs, to change rules as another program would, or to hold the lock, which only the programs of
    /// the legacy back end take.
    #[doc(hidden)]
    pub fn with_host<T>(&self, change: impl FnOnce(&FakeHost) -> T) -> T {
        self.parts.host.with(change)
    }

    /// Gives an interface other than the dummy device exactly these addresses; creates it if necessary.
    pub fn set_interface(&self, name: &str, addresses: &[IpAddr]) {
        self.parts.ipvs.add_interface(name);
        self.parts.links.lock().set(name, addresses);
    }

    /// The gateways of the default routes. Initially none.
    #[doc(hidden)]
    pub fn set_gateways(&self, gateways: impl IntoIterator<Item = IpAddr>) {
        self.parts.links.lock().gateways = gateways.into_iter().collect();
    }

    /// Removes an interface of any kind with its addresses. Returns whether it existed.
    #[doc(hidden)]
    pub fn remove_interface(&self, name: &str) -> bool {
        self.parts.links.lock().remove(name)
    }

    /// Adds or deletes a local route as another program would.
    #[doc(hidden)]
    pub fn set_route(&self, owner: RouteOwner, network: Network, present: bool) {
        let mut links = self.parts.links.lock();
        if present {
            links.routes.insert((owner, network.trunc()), None);
        } else {
            links.routes.remove(&(owner, network.trunc()));
        }
    }

    /// Sets whether dummy devices can be created.
    #[doc(hidden)]
    pub fn set_dummy_present(&self, present: bool) {
        self.parts.links.lock().has_dummy = present;
    }

    /// Whether IPv6 addresses can be bound and IPv6 virtual servers added.
    #[doc(hidden)]
    pub fn set_ipv6(&self, present: bool) {
        self.parts.links.lock().has_ipv6 = present;
        self.parts.ipvs.set_ipv6(present);
    }

    /// Adds support for packet counters (nfacct), which is initially missing.
    #[doc(hidden)]
    pub fn set_counters(&self) {
        *self.parts.counters.lock() = Some(BTreeSet::new());
    }

    /// The existing packet counters; `None` if the kernel does not support them.
    #[doc(hidden)]
    pub fn counters(&self) -> Option<BTreeSet<String>> {
        self.parts.counters.lock().clone()
    }

    /// Sets a value below `/proc/sys`; `None` removes it.
    pub fn set_sysctl(&self, path: &str, value: Option<&str>) {
        let mut sysctls = self.parts.sysctls.lock();
        match value {
            Some(value) => sysctls.insert(path.to_owned(), value.to_owned()),
            None => sysctls.remove(path),
        };
    }

    /// Listeners of the process for Services.
    #[doc(hidden)]
    pub fn listeners(&self) -> BTreeMap<FrontendKey, Listener> {
        self.parts.relays.lock().listeners.clone()
    }

    /// Settings of all listeners.
    #[doc(hidden)]
    pub fn relay_settings(&self) -> Settings {
        self.parts.relays.lock().settings.clone()
    }

    /// Gives a port to another program, or takes it back.
    #[doc(hidden)]
    pub fn set_port_taken(&self, key: FrontendKey, taken: bool) {
        let mut relays = self.parts.relays.lock();
        if taken {
            relays.taken.insert(key)
        } else {
            relays.taken.remove(&key)
        };
    }

    /// Starts or ends a connection to an address that this process relays.
    #[doc(hidden)]
    pub fn set_connected(&self, address: IpAddr, connected: bool) {
        let mut relays = self.parts.relays.lock();
        if connected {
            relays.connected.insert(address)
        } else {
            relays.connected.remove(&address)
        };
    }

    /// Adds a tracked connection.
    pub fn add_flow(&self, flow: Flow) {
        self.parts.flows.lock().insert(flow);
    }
}

//! A simulated kernel behind the ports (feature `testing`).
//!
//! It consists of the fakes of the lower crates and of small models of devices, sysctls and tracked connections. Those
//! fakes use the kernel's byte format and pass the same tests as the kernel. The ports are those of
//! [`kernel`](crate::kernel), so tests also cover how these interpret the kernel's answers. `tests/ports` runs on this
//! kernel and on real ones.

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

use ipset::fake::FakeIpset;
use iptables::fake::FakeHost;
use ipvs::fake::FakeIpvs;
use ipvs::{RealServerKey, VirtualServerKey};
use nftables::fake::FakeNftables;

use crate::net::{FrontendKey, Network};
use crate::pack::put;
use crate::ports::{Listener, PortErrorKind, Ports, RouteOwner};
use crate::sketch::{KernelState, Listeners, Values};
use control::Control;
use host::Host;
use links::LinksAndRoutes;
use ports::FakePorts;
use shared::Shared;

pub use conntrack::Flow;
pub use control::{Call, Fault, Objection, Writes};

/// State shared by all handles of one kernel.
#[derive(Clone)]
struct Parts {
    ipvs: FakeIpvs,
    sets: FakeIpset,
    host: Host,
    links: Shared<LinksAndRoutes>,
    sysctls: Shared<BTreeMap<String, String>>,
    /// Packet counters; `None` if the kernel does not support them.
    counters: Shared<Option<BTreeSet<String>>>,
    tables: FakeNftables,
    flows: Shared<BTreeSet<Flow>>,
    relays: Shared<Listeners>,
    control: Shared<Control>,
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

    fn from_parts(parts: Parts) -> Self {
        FakeKernel { ports: FakePorts::new(&parts), parts }
    }

    /// Lends the ports to a pass.
    pub fn ports(&mut self) -> Ports<'_> {
        self.ports.lend()
    }

    /// The whole state, without tracked connections. Injected failures do not affect it.
    pub fn state(&self) -> KernelState {
        let (devices, routes) = {
            let links = self.parts.links.lock();
            (links.interfaces().all(), links.routes.all())
        };
        KernelState {
            ipvs: self.parts.ipvs.dump().unwrap_or_default(),
            sets: self.saved_sets(),
            rules: self.parts.host.dump(),
            tables: self.saved_tables(),
            devices,
            sysctls: self.parts.sysctls.lock().clone(),
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

    /// All tables, as `nft list ruleset` prints them.
    fn saved_tables(&self) -> BTreeMap<String, String> {
        let mut client = self.nftables();
        // The fake never refuses to list.
        let tables = client.list_tables(None).unwrap_or_default();
        let keys = tables.into_iter().map(|table| table.table.key);
        keys.filter_map(|key| Some((key.to_string(), client.snapshot(&key).ok()?.to_string()))).collect()
    }

    /// Writes of the ports so far, including failed ones. Changes by the methods below do not count.
    pub fn writes(&self) -> Writes {
        self.parts.control.lock().writes
    }

    /// Refuses these operations on virtual and real servers until [`FakeKernel::clear_faults`]. Other operations of the
    /// same call are carried out.
    pub fn refuse(&self, what: Objection, kind: PortErrorKind) {
        self.parts.control.lock().objection = Some((what, kind));
    }

    /// The virtual and real servers, to change them as another program would.
    pub fn ipvs(&self) -> &FakeIpvs {
        &self.parts.ipvs
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
        nftables::Client::with_transport(self.parts.tables.transport())
    }

    /// The simulated nf_tables, to inject refusals.
    pub fn nf_tables(&self) -> &FakeNftables {
        &self.parts.tables
    }

    /// Gives an interface other than the dummy device exactly these addresses; creates it if necessary.
    pub fn set_interface(&self, name: &str, addresses: &[IpAddr]) {
        self.parts.ipvs.add_interface(name);
        self.parts.links.lock().change(|links| {
            links.by_name.entry(name.to_owned()).or_default().addresses = addresses.to_vec();
        });
    }

    /// Sets a value below `/proc/sys`; `None` removes it.
    pub fn set_sysctl(&self, path: &str, value: Option<&str>) {
        let mut sysctls = self.parts.sysctls.lock();
        match value {
            Some(value) => sysctls.insert(path.to_owned(), value.to_owned()),
            None => sysctls.remove(path),
        };
    }

    /// Tracked connections.
    pub fn flows(&self) -> BTreeSet<Flow> {
        self.parts.flows.lock().clone()
    }

    /// Adds a tracked connection.
    pub fn add_flow(&self, flow: Flow) {
        self.parts.flows.lock().insert(flow);
    }
}

/// For tests of this project.
#[doc(hidden)]
impl FakeKernel {
    pub fn with_iptables(make: impl FnOnce() -> FakeHost) -> Self {
        let sets = FakeIpset::new();
        let control = Shared::<Control>::default();
        Self::from_parts(Parts {
            ipvs: FakeIpvs::new(),
            host: Host::new(make(), sets.clone(), control.clone()),
            sets,
            links: Shared::default(),
            sysctls: Shared::new(Values::default().0),
            counters: Shared::new(None),
            tables: FakeNftables::default(),
            flows: Shared::default(),
            relays: Shared::default(),
            control,
        })
    }

    pub fn fail(&self, fault: Fault) {
        self.parts.control.lock().faults.push(fault);
    }

    pub fn clear_faults(&self) {
        let mut control = self.parts.control.lock();
        (control.faults, control.objection) = (Vec::new(), None);
    }

    /// Kills the process after this many more writes: the rest of that call, and every later call, fails without
    /// effect. Operations, entries, addresses and tables count, and within
    /// [`Sets::replace`](crate::ports::Sets::replace) the messages that change sets, so a set may be left half
    /// replaced.
    pub fn crash_after(&self, writes: u64) {
        self.parts.control.lock().left = Some(writes);
    }

    pub fn has_crashed(&self) -> bool {
        self.parts.control.lock().crashed
    }

    /// Starts a new process on the same kernel: calls work again, and nothing listens.
    pub fn restart(&self) {
        let mut control = self.parts.control.lock();
        (control.left, control.crashed) = (None, false);
        self.parts.relays.lock().open.clear();
    }

    /// Sets the active and inactive connections of a real server. Returns whether it exists.
    pub fn set_connections(&self, key: &VirtualServerKey, real: &RealServerKey, active: u32, inactive: u32) -> bool {
        self.parts.ipvs.set_counters(key, Some((real, active, inactive)), 0, 0)
    }

    /// Commits another program's transaction just before the port's next one. Several are each committed before another
    /// one.
    pub fn commit_before(&self, transaction: nftables::Transaction) {
        self.parts.control.lock().others.push_back(transaction);
    }

    /// The iptables programs, to change rules as another program would, or to hold the lock, which only the programs of
    /// the legacy back end take.
    pub fn with_host<T>(&self, change: impl FnOnce(&FakeHost) -> T) -> T {
        self.parts.host.with(change)
    }

    pub fn set_gateways(&self, gateways: impl IntoIterator<Item = IpAddr>) {
        self.parts.links.lock().change(|links| links.gateways = gateways.into_iter().collect());
    }

    /// Removes an interface of any kind with its addresses. Returns whether it existed.
    pub fn remove_interface(&self, name: &str) -> bool {
        self.parts.links.lock().change(|links| links.by_name.remove(name).is_some())
    }

    pub fn set_route(&self, owner: RouteOwner, network: Network, present: bool) {
        let mut links = self.parts.links.lock();
        if present {
            links.routes.0.insert((owner, network.trunc()), None);
        } else {
            links.routes.0.remove(&(owner, network.trunc()));
        }
    }

    pub fn set_dummy_present(&self, present: bool) {
        self.parts.links.lock().change(|links| links.has_dummy = present);
    }

    /// Whether IPv6 addresses can be bound and IPv6 virtual servers added.
    pub fn set_ipv6(&self, present: bool) {
        self.parts.links.lock().change(|links| links.has_ipv6 = present);
        self.parts.ipvs.set_ipv6(present);
    }

    /// Adds support for packet counters (nfacct), which is initially missing.
    pub fn set_counters(&self) {
        *self.parts.counters.lock() = Some(BTreeSet::new());
    }

    pub fn counters(&self) -> Option<BTreeSet<String>> {
        self.parts.counters.lock().clone()
    }

    pub fn listeners(&self) -> BTreeMap<FrontendKey, Listener> {
        self.parts.relays.lock().open.clone()
    }

    pub fn set_port_taken(&self, key: FrontendKey, taken: bool) {
        put(&mut self.parts.relays.lock().taken, key, taken);
    }

    /// Starts or ends a connection to an address that this process relays.
    pub fn set_connected(&self, address: IpAddr, connected: bool) {
        put(&mut self.parts.relays.lock().connected, address, connected);
    }
}

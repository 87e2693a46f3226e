//! A kernel in memory behind the ports: feature `testing`.
//!
//! It is put together of the fakes of the crates below, which speak the kernel's bytes and pass the same tests as the kernel,
//! and of small models of devices, sysctls and tracked connections. The ports are those of [`kernel`](crate::kernel), so what
//! they make of the kernel's answers is tested too; `tests/ports` runs on this kernel and on real ones.
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
use ipvs::testing::FakeIpvs;

pub use conntrack::Flow;
pub use control::{Call, Fault, Writes};

use crate::ports::Ports;
use control::Control;
use host::Host;
use links::Interfaces;
use ports::FakePorts;
use shared::Shared;

/// Everything a fake kernel holds, to be compared. Two kernels that hold the same are equal, however they came to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelState {
    /// Virtual and real servers in the words of `ipvsadm --save --numeric`, sorted by key; empty without IPVS.
    pub ipvs: String,
    /// Sets by name: how each was created, and its entries, in the words of `ipset save`.
    pub sets: BTreeMap<String, (String, BTreeSet<String>)>,
    /// Rules by family and back end, in the words of `iptables-save`.
    pub rules: BTreeMap<(Family, Backend), String>,
    /// Addresses by device, in the order they were added.
    pub devices: BTreeMap<String, Vec<IpAddr>>,
    /// Values below `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// Tracked connections.
    pub flows: BTreeSet<Flow>,
}

/// A kernel in memory. Clones share it, each with connections of its own.
pub struct FakeKernel {
    ipvs: FakeIpvs,
    sets: FakeIpset,
    host: Host,
    links: Shared<Interfaces>,
    sysctls: Shared<BTreeMap<String, String>>,
    flows: Shared<BTreeSet<Flow>>,
    control: Shared<Control>,
    ports: FakePorts,
}

/// Values of a fresh network namespace of Linux 6.1, as far as a proxy looks at them.
const SYSCTLS: [(&str, &str); 14] = [
    ("kernel/osrelease", "6.1.0-fake"),
    ("net/ipv4/conf/all/arp_announce", "0"),
    ("net/ipv4/conf/all/arp_ignore", "0"),
    ("net/ipv4/conf/all/route_localnet", "0"),
    ("net/ipv4/ip_forward", "0"),
    ("net/ipv4/vs/conn_reuse_mode", "1"),
    ("net/ipv4/vs/conntrack", "0"),
    ("net/ipv4/vs/expire_nodest_conn", "0"),
    ("net/ipv4/vs/expire_quiescent_template", "0"),
    ("net/netfilter/nf_conntrack_max", "65536"),
    ("net/netfilter/nf_conntrack_tcp_be_liberal", "0"),
    ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", "60"),
    ("net/netfilter/nf_conntrack_tcp_timeout_established", "432000"),
    ("net/netfilter/nf_conntrack_udp_timeout", "30"),
];

impl Default for FakeKernel {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for FakeKernel {
    fn clone(&self) -> Self {
        Self::joined(
            self.ipvs.clone(),
            self.sets.clone(),
            self.host.clone(),
            self.links.clone(),
            (self.sysctls.clone(), self.flows.clone(), self.control.clone()),
        )
    }
}

impl fmt::Debug for FakeKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeKernel").field("control", &self.control).finish_non_exhaustive()
    }
}

type Rest = (Shared<BTreeMap<String, String>>, Shared<BTreeSet<Flow>>, Shared<Control>);

impl FakeKernel {
    /// A kernel in which nobody has done anything yet: `lo`, all modules, iptables 1.8.9 of both back ends.
    pub fn new() -> Self {
        Self::with_iptables(FakeHost::new)
    }

    /// One with other iptables programs. `make` may be called more than once and must give the same each time.
    pub fn with_iptables(make: impl Fn() -> FakeHost + Send + Sync + 'static) -> Self {
        let sets = FakeIpset::new();
        let control = Shared::<Control>::default();
        let host = Host::new(Arc::new(make), sets.clone(), control.clone());
        let sysctls = SYSCTLS.into_iter().map(|(path, value)| (path.to_owned(), value.to_owned())).collect();
        let rest = (Shared::new(sysctls), Shared::default(), control);
        Self::joined(FakeIpvs::new(), sets, host, Shared::default(), rest)
    }

    fn joined(ipvs: FakeIpvs, sets: FakeIpset, host: Host, links: Shared<Interfaces>, rest: Rest) -> Self {
        let (sysctls, flows, control) = rest;
        let ports = FakePorts::new(&ipvs, &sets, &host, &links, (&sysctls, &flows, &control));
        FakeKernel { ipvs, sets, host, links, sysctls, flows, control, ports }
    }

    /// What a pass works on.
    pub fn ports(&mut self) -> Ports<'_> {
        self.ports.lend()
    }

    /// Everything it holds. What is arranged to go wrong does not disturb this.
    pub fn state(&self) -> KernelState {
        KernelState {
            ipvs: self.ipvs.dump().unwrap_or_default(),
            sets: self.saved_sets(),
            rules: self.host.dump(),
            devices: self.links.lock().all(),
            sysctls: self.sysctls.lock().clone(),
            flows: self.flows.lock().clone(),
        }
    }

    fn saved_sets(&self) -> BTreeMap<String, (String, BTreeSet<String>)> {
        let sets = ipset::Client::with_transport(self.sets.transport()).and_then(|mut client| client.list_sets());
        let set = |set: ipset::ObservedSet| {
            let entries = set.entries.iter().map(ToString::to_string).collect();
            (set.spec.name.as_str().to_owned(), (set.spec.to_string(), entries))
        };
        // The fake refuses no listing.
        sets.unwrap_or_default().into_iter().map(set).collect()
    }

    /// What was written so far, or tried to, by port. What the methods below change does not count.
    pub fn writes(&self) -> Writes {
        self.control.lock().writes
    }

    /// Arranges a failure.
    pub fn fail(&self, fault: Fault) {
        self.control.lock().add(fault);
    }

    /// Takes back the failures that have not happened.
    pub fn clear_faults(&self) {
        self.control.lock().clear();
    }

    /// After so many more writes the process dies: the rest of the call it was in, and every call after it, fails with nothing
    /// done. Counted are operations, entries, addresses, tables, and within [`Sets::replace`](crate::ports::Sets::replace) the
    /// messages that change sets; so a set may be left half replaced.
    pub fn crash_after(&self, writes: u64) {
        self.control.lock().crash_after(writes);
    }

    /// Whether the process has died.
    pub fn has_crashed(&self) -> bool {
        self.control.lock().has_crashed()
    }

    /// A new process on the same kernel: calls work again.
    pub fn restart(&self) {
        self.control.lock().restart();
    }

    /// Virtual and real servers, to be changed behind the ports' back.
    pub fn ipvs(&self) -> &FakeIpvs {
        &self.ipvs
    }

    /// A client of the sets, to change them behind the ports' back.
    ///
    /// # Errors
    /// None: the fake always answers.
    pub fn ipset(&self) -> Result<ipset::Client, ipset::Error> {
        ipset::Client::with_transport(self.sets.transport())
    }

    /// The iptables programs, to change rules or hold the lock behind the ports' back.
    pub fn with_host<T>(&self, change: impl FnOnce(&FakeHost) -> T) -> T {
        self.host.with(change)
    }

    /// Gives an interface that is no dummy device these addresses and no others; creates it if need be.
    pub fn set_interface(&self, name: &str, addresses: &[IpAddr]) {
        self.links.lock().set(name, addresses);
    }

    /// Removes an interface of any kind with its addresses. Returns whether there was one.
    pub fn remove_interface(&self, name: &str) -> bool {
        self.links.lock().remove(name)
    }

    /// Whether dummy devices can be created.
    pub fn set_dummy_present(&self, present: bool) {
        self.links.lock().has_dummy = present;
    }

    /// Whether addresses of IPv6 can be bound, and virtual servers of IPv6 added.
    pub fn set_ipv6(&self, present: bool) {
        self.links.lock().has_ipv6 = present;
        self.ipvs.set_ipv6(present);
    }

    /// Changes a value below `/proc/sys`; `None` takes it away.
    pub fn set_sysctl(&self, path: &str, value: Option<&str>) {
        let mut sysctls = self.sysctls.lock();
        match value {
            Some(value) => sysctls.insert(path.to_owned(), value.to_owned()),
            None => sysctls.remove(path),
        };
    }

    /// Tracks a connection.
    pub fn add_flow(&self, flow: Flow) {
        self.flows.lock().insert(flow);
    }
}

//! The ports of the simulated kernel: the real ones over fake transports where the kernel uses bytes, behind injected
//! failures.

/// Methods that return what the port's method of the same name returns, unless a failure is injected.
macro_rules! gated {
    ($port:ident: $($call:ident, $family:expr => $name:ident($($given:ident: $of:ty),*) -> $answer:ty;)*) => {$(
        fn $name(&mut self, $($given: $of),*) -> Result<$answer> {
            self.gate.call(Call::$call, $family, || self.$port.$name($($given),*))
        }
    )*};
}

mod gate;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipset::Element;
use iptables::{BackendChoice, Limits};
use ipvs::model::{ObservedRealServer, Snapshot, Timeouts, TimeoutsUpdate};
use ipvs::{Operation, VirtualServerKey};
use nftables::{TableKey, TableSnapshot};

use super::Parts;
use super::conntrack::Flow;
use super::control::Call;
use super::links::LinksAndRoutes;
use super::shared::Shared;
use super::transport::MortalSocket;
use crate::kernel::{IpvsPort, RulesPort, SetsPort, TablesPort, check_sysctl};
use crate::net::{Family, FrontendKey, Network, Protocol};
use crate::ports::{
    Conntrack, Ipvs, ItemFailures, Links, Listener, LocalNetworks, LocalRoute, NamedSet, NotCommitted, PortError,
    PortErrorKind, Ports, Relays, Result, RouteOwner, Sets, Settings, Sysctls, Tables, UdpServices, lend,
};
use crate::sketch::Listeners;
use crate::snapshot::HostAddresses;
use gate::{Gate, at_places};
use rules::FakeRulesPort;

/// A port, or the state behind it, and the failures that are injected before it.
struct Gated<T> {
    gate: Gate,
    inner: T,
}

pub(super) struct FakePorts {
    ipvs: Gated<IpvsPort>,
    sets: FakeSetsPort,
    rules: FakeRulesPort,
    links: Gated<Shared<LinksAndRoutes>>,
    sysctls: Gated<Shared<BTreeMap<String, String>>>,
    tables: FakeTablesPort,
    conntrack: Gated<Shared<BTreeSet<Flow>>>,
    routes: Gated<Shared<LinksAndRoutes>>,
    relays: Gated<Shared<Listeners>>,
}

impl FakePorts {
    pub(super) fn new(parts: &Parts) -> Self {
        let gate = || Gate(parts.control.clone());
        let counting = Shared::new(false);
        let (ipvs, sets, tables) = (parts.ipvs.clone(), parts.sets.clone(), parts.tables.clone());
        let (control, noticing) = (parts.control.clone(), counting.clone());
        let open_sets = move || {
            let (inner, control, counting) = (sets.transport(), control.clone(), noticing.clone());
            ipset::Client::with_transport(MortalSocket { inner, control, counting })
        };
        FakePorts {
            ipvs: Gated { gate: gate(), inner: IpvsPort::new(move || ipvs.client()) },
            sets: FakeSetsPort { gate: gate(), port: SetsPort::new(open_sets), counting },
            rules: FakeRulesPort {
                gate: gate(),
                port: RulesPort::new(parts.host.clone(), BackendChoice::Detect, Limits::default()),
                host: parts.host.clone(),
                counters: parts.counters.clone(),
            },
            links: Gated { gate: gate(), inner: parts.links.clone() },
            sysctls: Gated { gate: gate(), inner: parts.sysctls.clone() },
            tables: FakeTablesPort {
                gate: gate(),
                other: nftables::Client::with_transport(tables.transport()),
                port: TablesPort::new(move || Ok(nftables::Client::with_transport(tables.transport()))),
            },
            conntrack: Gated { gate: gate(), inner: parts.flows.clone() },
            routes: Gated { gate: gate(), inner: parts.links.clone() },
            relays: Gated { gate: gate(), inner: parts.relays.clone() },
        }
    }

    pub(super) fn lend(&mut self) -> Ports<'_> {
        lend!(self)
    }
}

impl Ipvs for Gated<IpvsPort> {
    gated! { inner:
        IpvsSnapshot, None => snapshot() -> Snapshot;
        IpvsRealServers, None => real_servers(key: &VirtualServerKey) -> Vec<ObservedRealServer>;
        IpvsTimeouts, None => timeouts() -> Timeouts;
        IpvsSetTimeouts, None => set_timeouts(timeouts: &TimeoutsUpdate) -> ();
    }

    fn run(&mut self, operations: &[&Operation]) -> ItemFailures {
        let objection = self.gate.0.lock().objection;
        self.gate.items(Call::IpvsRun, None, operations, |operations| {
            let is_refused = |operation: &Operation| objection.is_some_and(|(refuses, _)| refuses(operation));
            let refused = operations.iter().enumerate().filter(|(_, operation)| is_refused(operation));
            let (places, allowed): (Vec<usize>, Vec<&Operation>) =
                operations.iter().copied().enumerate().filter(|(_, operation)| !is_refused(operation)).unzip();
            let mut failures = at_places(self.inner.run(&allowed), &places);
            failures.extend(refused.map(|(index, operation)| {
                let kind = objection.map_or(PortErrorKind::Other, |(_, kind)| kind);
                (index, PortError::new(kind, format_args!("{operation}: refused for a test")))
            }));
            failures
        })
    }
}

struct FakeSetsPort {
    gate: Gate,
    port: SetsPort,
    /// Whether the messages of a replacement are counted individually.
    counting: Shared<bool>,
}

impl Sets for FakeSetsPort {
    gated! { port:
        SetsEntries, Some(set.key.family) => entries(set: NamedSet) -> Option<BTreeSet<Element>>;
        SetsCreate, Some(set.key.family) => create(set: NamedSet, room: usize) -> ();
        SetsEntries, Some(set.key.family) => has_unfinished(set: NamedSet) -> bool;
        SetsDestroy, Some(set.key.family) => destroy(set: NamedSet) -> ();
    }

    fn add(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        self.gate.items(Call::SetsAdd, Some(set.key.family), elements, |elements| self.port.add(set, elements))
    }

    fn delete(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        self.gate.items(Call::SetsDelete, Some(set.key.family), elements, |elements| self.port.delete(set, elements))
    }

    fn replace(&mut self, set: NamedSet, elements: &[&Element]) -> Result<()> {
        let counting = &self.counting;
        self.gate.weighing(Call::SetsReplace, Some(set.key.family), elements.len().max(1), false, || {
            *counting.lock() = self.gate.0.lock().left.is_some();
            let outcome = self.port.replace(set, elements);
            *counting.lock() = false;
            outcome
        })
    }
}

impl Links for Gated<Shared<LinksAndRoutes>> {
    fn has_device(&mut self, name: &str) -> Result<bool> {
        self.inner.lock().change(|links| links.has_device(name))
    }

    fn create_device(&mut self, name: &str) -> Result<()> {
        self.gate.call(Call::LinksCreateDevice, None, || self.inner.lock().change(|links| links.create_device(name)))
    }

    fn delete_device(&mut self, name: &str) -> Result<()> {
        self.gate.call(Call::LinksDeleteDevice, None, || self.inner.lock().change(|links| links.delete_device(name)))
    }

    fn addresses(&mut self) -> Result<HostAddresses> {
        self.gate.call(Call::LinksAddresses, None, || self.inner.lock().change(Links::addresses))
    }

    fn gateways(&mut self) -> Result<BTreeSet<IpAddr>> {
        self.gate.call(Call::LinksGateways, None, || self.inner.lock().change(Links::gateways))
    }

    fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        let bind = |addresses: &[IpAddr]| self.inner.lock().change(|links| links.bind(device, addresses));
        self.gate.items(Call::LinksBind, None, addresses, bind)
    }

    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        let unbind = |addresses: &[IpAddr]| self.inner.lock().change(|links| links.unbind(device, addresses));
        self.gate.items(Call::LinksUnbind, None, addresses, unbind)
    }
}

impl LocalNetworks for Gated<Shared<LinksAndRoutes>> {
    fn networks(&mut self, owner: RouteOwner) -> Result<BTreeMap<Network, Option<IpAddr>>> {
        self.gate.call(Call::RoutesNetworks, None, || self.inner.lock().networks(owner))
    }

    fn add(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures {
        self.gate.items(Call::RoutesAdd, None, routes, |routes| self.inner.lock().add(owner, routes))
    }

    fn delete(&mut self, owner: RouteOwner, networks: &[Network]) -> ItemFailures {
        self.gate.items(Call::RoutesDelete, None, networks, |networks| self.inner.lock().delete(owner, networks))
    }
}

fn no_sysctl(path: &str) -> PortError {
    PortError::new(PortErrorKind::NotFound, format!("{path}: this kernel does not have it"))
}

impl Sysctls for Gated<Shared<BTreeMap<String, String>>> {
    fn get(&mut self, path: &str) -> Result<String> {
        self.gate.call(Call::SysctlsGet, None, || {
            check_sysctl(path)?;
            self.inner.lock().get(path).cloned().ok_or_else(|| no_sysctl(path))
        })
    }

    fn can_set(&mut self, path: &str) -> bool {
        self.inner.lock().contains_key(path)
    }

    fn set(&mut self, path: &str, value: &str) -> Result<()> {
        self.gate.call(Call::SysctlsSet, None, || {
            check_sysctl(path)?;
            let mut values = self.inner.lock();
            let Some(place) = values.get_mut(path) else { return Err(no_sysctl(path)) };
            let value = value.trim();
            if value.parse::<i64>().is_err() {
                return Err(PortError::new(PortErrorKind::Invalid, format!("{path}: {value:?} is not a number")));
            }
            value.clone_into(place);
            Ok(())
        })
    }
}

struct FakeTablesPort {
    gate: Gate,
    other: nftables::Client,
    port: TablesPort,
}

impl Tables for FakeTablesPort {
    gated! { port:
        TablesGeneration, None => generation() -> u32;
        TablesRead, family_of(table) => read(table: &TableKey) -> Option<TableSnapshot>;
        TablesTable, family_of(table) => table(table: &TableKey) -> Option<nftables::Table>;
        TablesHasChain, family_of(table) => has_chain(table: &TableKey, chain: &str) -> bool;
    }

    fn list(&mut self) -> Result<Vec<TableKey>> {
        self.port.list()
    }

    fn check(&mut self, transaction: &nftables::Transaction) -> Result<(), NotCommitted> {
        let port = &mut self.port;
        committing(&self.gate, Call::TablesCheck, || port.check(transaction))
    }

    fn commit(&mut self, transaction: &nftables::Transaction) -> Result<(), NotCommitted> {
        let theirs = self.gate.0.lock().others.pop_front();
        if let Some(theirs) = theirs {
            // A refused transaction has no effect, as on a kernel.
            drop(self.other.commit(&theirs));
        }
        let port = &mut self.port;
        committing(&self.gate, Call::TablesCommit, || port.commit(transaction))
    }
}

fn committing(gate: &Gate, call: Call, commit: impl FnOnce() -> Result<(), NotCommitted>) -> Result<(), NotCommitted> {
    let mut refused = None;
    let outcome = gate.call(call, None, || {
        commit().map_err(|not| {
            refused = not.refused;
            not.error
        })
    });
    outcome.map_err(|error| NotCommitted { error, refused })
}

fn family_of(table: &TableKey) -> Option<Family> {
    match table.family {
        nftables::Family::Ip => Some(Family::V4),
        nftables::Family::Ip6 => Some(Family::V6),
        _ => None,
    }
}

impl Conntrack for Gated<Shared<BTreeSet<Flow>>> {
    fn forget_flows(&mut self, protocol: Protocol, family: Family, services: &UdpServices) -> Result<usize> {
        self.gate.call(Call::ConntrackForgetFlows, None, || {
            let is_of_family = |flow: &Flow| Family::of(flow.destination.ip()) == family;
            let mut flows = self.inner.lock();
            let before = flows.len();
            flows.retain(|flow| !is_of_family(flow) || !flow.is_stale(protocol.into(), services));
            Ok(before.saturating_sub(flows.len()))
        })
    }

    fn find_udp(&mut self, services: &UdpServices) -> Result<BTreeSet<SocketAddr>> {
        self.gate.call(Call::ConntrackFindUdp, None, || {
            let (udp, flows) = (ipvs::model::Protocol::Udp, self.inner.lock());
            Ok(flows.iter().filter(|flow| flow.is_stale(udp, services)).map(|flow| flow.destination).collect())
        })
    }
}

impl Relays for Gated<Shared<Listeners>> {
    fn listeners(&mut self) -> BTreeMap<FrontendKey, Listener> {
        self.inner.lock().listeners()
    }

    fn configure(&mut self, settings: &Settings) -> Result<()> {
        self.gate.call(Call::RelaysConfigure, None, || self.inner.lock().configure(settings))
    }

    fn serve(&mut self, listener: &Listener) -> Result<()> {
        self.gate.call(Call::RelaysServe, None, || self.inner.lock().serve(listener))
    }

    fn close(&mut self, key: &FrontendKey) {
        self.inner.lock().close(key);
    }

    fn busy(&mut self) -> BTreeSet<IpAddr> {
        self.inner.lock().busy()
    }
}

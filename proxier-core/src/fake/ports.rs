//! The ports of the fake kernel: the real ones over fake transports where the kernel speaks bytes, with arranged failures
//! in front.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipset::Element;
use iptables::{BackendChoice, Dump, Limits, Transaction};
use ipvs::fake::FakeIpvs;
use ipvs::model::{ObservedRealServer, Snapshot, Timeouts, TimeoutsUpdate};
use ipvs::{Operation, VirtualServerKey};
use nftables::{TableKey, TableSnapshot};

use super::conntrack::{Flow, forget_udp};
use super::control::{Call, Control, Fate, Verdict};
use super::host::Host;
use super::links::Interfaces;
use super::shared::Shared;
use super::transport::{Watched, Written};
use super::{Changed, Parts};
use crate::kernel::{IpvsPort, RulesPort, SetsPort, TablesPort, check_sysctl};
use crate::modes::ipvs::sets::NamedSet;
use crate::modes::userspace::{Listener, Settings};
use crate::net::{Family, FrontendKey, Network};
use crate::ports::{
    Conntrack, Flows, Ipvs, ItemFailure, ItemFailures, Links, LocalNetworks, LocalRoute, NotCommitted, PortError,
    PortErrorKind, Ports, Relays, RouteOwner, Rules, Sets, Sysctls, Tables, UdpServices,
};
use crate::snapshot::HostAddresses;

pub(super) struct FakePorts {
    ipvs: FakeIpvsPort,
    sets: FakeSetsPort,
    rules: FakeRulesPort,
    links: FakeLinksPort,
    sysctls: FakeSysctlsPort,
    tables: FakeTablesPort,
    conntrack: FakeConntrackPort,
    routes: FakeRoutesPort,
    relays: FakeRelaysPort,
}

impl FakePorts {
    pub(super) fn new(parts: &Parts) -> Self {
        let gate = || Gate(parts.control.clone());
        let counting = Shared::new(false);
        let (ipvs, sets, written) = (parts.ipvs.clone(), parts.sets.clone(), parts.written.clone());
        let tables = parts.tables.clone();
        let (control, noticing) = (parts.control.clone(), counting.clone());
        let open_sets = move || {
            let socket = sets.transport();
            ipset::Client::with_transport(Watched::mortal(socket, written.clone(), control.clone(), noticing.clone()))
        };
        FakePorts {
            ipvs: FakeIpvsPort {
                gate: gate(),
                port: IpvsPort::new(move || ipvs.client()),
                kernel: parts.ipvs.clone(),
                changed: parts.changed.clone(),
                seen: None,
            },
            sets: FakeSetsPort {
                gate: gate(),
                port: SetsPort::new(open_sets),
                counting,
                written: parts.written.clone(),
                seen: BTreeMap::new(),
            },
            rules: FakeRulesPort {
                gate: gate(),
                port: RulesPort::new(parts.host.clone(), BackendChoice::Detect, Limits::default()),
                host: parts.host.clone(),
                seen: BTreeMap::new(),
            },
            links: FakeLinksPort { gate: gate(), links: parts.links.clone() },
            sysctls: FakeSysctlsPort { gate: gate(), values: parts.sysctls.clone() },
            tables: FakeTablesPort { gate: gate(), port: TablesPort::new(move || Ok(tables.client())) },
            conntrack: FakeConntrackPort { gate: gate(), flows: parts.flows.clone() },
            routes: FakeRoutesPort { gate: gate(), links: parts.links.clone() },
            relays: FakeRelaysPort { gate: gate(), relays: parts.relays.clone() },
        }
    }

    pub(super) fn lend(&mut self) -> Ports<'_> {
        Ports {
            ipvs: &mut self.ipvs,
            sets: &mut self.sets,
            rules: &mut self.rules,
            links: &mut self.links,
            sysctls: &mut self.sysctls,
            tables: &mut self.tables,
            conntrack: &mut self.conntrack,
            routes: &mut self.routes,
            relays: &mut self.relays,
        }
    }
}

/// Where arranged failures happen.
struct Gate(Shared<Control>);

impl Gate {
    /// A call without items.
    fn call<T>(
        &self,
        call: Call,
        family: Option<Family>,
        ask: impl FnOnce() -> Result<T, PortError>,
    ) -> Result<T, PortError> {
        self.weighing(call, family, 1, true, ask)
    }

    fn weighing<T>(
        &self,
        call: Call,
        family: Option<Family>,
        writes: usize,
        spends: bool,
        ask: impl FnOnce() -> Result<T, PortError>,
    ) -> Result<T, PortError> {
        let verdict = self.0.lock().decide(call, family, writes, spends);
        let (error, done) = match verdict {
            Verdict::Plain => return ask(),
            Verdict::Fail(error, done) => (error, done),
            Verdict::Items(fates) => match fates.into_iter().next() {
                Some(Fate::Fail(error)) => (error, false),
                Some(Fate::DoneAndFail(error)) => (error, true),
                _ => return ask(),
            },
        };
        if done {
            // The answer is lost.
            drop(ask());
        }
        Err(error)
    }

    /// A call with items.
    fn items<T: Clone>(
        &self,
        call: Call,
        family: Option<Family>,
        items: &[T],
        write: impl FnOnce(&[T]) -> ItemFailures,
    ) -> ItemFailures {
        let verdict = self.0.lock().decide(call, family, items.len(), true);
        let fates = match verdict {
            Verdict::Plain => return write(items),
            Verdict::Fail(error, true) => vec![Fate::DoneAndFail(error); items.len()],
            Verdict::Fail(error, false) => vec![Fate::Fail(error); items.len()],
            Verdict::Items(fates) => fates,
        };
        let sent = fates.iter().enumerate().filter(|(_, fate)| !matches!(fate, Fate::Fail(_)));
        let (places, sent): (Vec<usize>, Vec<T>) =
            sent.filter_map(|(place, _)| Some((place, items.get(place)?.clone()))).unzip();
        let mut failures = BTreeMap::new();
        if !sent.is_empty() {
            for failure in write(&sent) {
                if let Some(place) = places.get(failure.index) {
                    failures.insert(*place, failure.error);
                }
            }
        }
        for (place, fate) in fates.into_iter().enumerate() {
            if let Fate::Fail(error) | Fate::DoneAndFail(error) = fate {
                failures.insert(place, error);
            }
        }
        failures.into_iter().map(|(index, error)| ItemFailure { index, error }).collect()
    }
}

struct FakeIpvsPort {
    gate: Gate,
    port: IpvsPort,
    kernel: FakeIpvs,
    changed: Shared<Changed>,
    /// The last reading, and its generation.
    seen: Option<(u64, Snapshot)>,
}

impl Ipvs for FakeIpvsPort {
    fn snapshot(&mut self) -> Result<Snapshot, PortError> {
        let (port, kernel, changed, seen) = (&mut self.port, &self.kernel, &self.changed, &mut self.seen);
        self.gate.call(Call::IpvsSnapshot, None, || {
            let (generation, quiet_from) = {
                let changed = changed.lock();
                (changed.generation, changed.quiet_from)
            };
            let quiet = quiet_from == 0 || kernel.messages() >= quiet_from;
            if let Some((_, snapshot)) = seen.as_ref().filter(|(at, _)| quiet && *at == generation) {
                return Ok(snapshot.clone());
            }
            let snapshot = port.snapshot()?;
            *seen = Some((generation, snapshot.clone()));
            Ok(snapshot)
        })
    }

    fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>, PortError> {
        self.gate.call(Call::IpvsRealServers, None, || self.port.real_servers(key))
    }

    fn run(&mut self, operations: &[Operation]) -> ItemFailures {
        let mut changed = self.changed.lock();
        changed.generation = changed.generation.saturating_add(1);
        drop(changed);
        let objection = self.gate.0.lock().objection;
        self.gate.items(Call::IpvsRun, None, operations, |operations| {
            let is_refused = |operation: &Operation| objection.is_some_and(|(refuses, _)| refuses(operation));
            let refused = operations.iter().enumerate().filter(|(_, operation)| is_refused(operation));
            let (places, allowed): (Vec<usize>, Vec<Operation>) =
                operations.iter().copied().enumerate().filter(|(_, operation)| !is_refused(operation)).unzip();
            let mut failures: ItemFailures = refused
                .map(|(index, operation)| {
                    let kind = objection.map_or(PortErrorKind::Other, |(_, kind)| kind);
                    ItemFailure { index, error: PortError::new(kind, format_args!("{operation}: refused for a test")) }
                })
                .collect();
            for failure in self.port.run(&allowed) {
                if let Some(index) = places.get(failure.index).copied() {
                    failures.push(ItemFailure { index, ..failure });
                }
            }
            failures
        })
    }

    fn timeouts(&mut self) -> Result<Timeouts, PortError> {
        self.gate.call(Call::IpvsTimeouts, None, || self.port.timeouts())
    }

    fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<(), PortError> {
        self.gate.call(Call::IpvsSetTimeouts, None, || self.port.set_timeouts(timeouts))
    }
}

struct FakeSetsPort {
    gate: Gate,
    port: SetsPort,
    /// Whether the messages of a replacement are counted, one by one.
    counting: Shared<bool>,
    written: Shared<Written>,
    /// The last reading of each set, and its generation.
    seen: BTreeMap<NamedSet, Seen>,
}

/// The generation of a set, and its entries.
type Seen = ((u64, u64), Option<BTreeSet<Element>>);

impl Sets for FakeSetsPort {
    fn entries(&mut self, set: NamedSet) -> Result<Option<BTreeSet<Element>>, PortError> {
        let (port, written, seen) = (&mut self.port, &self.written, &mut self.seen);
        self.gate.call(Call::SetsEntries, Some(set.key.family), || {
            let generation = written.lock().generation(&set.name());
            if let Some((_, entries)) = seen.get(&set).filter(|(at, _)| *at == generation) {
                return Ok(entries.clone());
            }
            let entries = port.entries(set)?;
            seen.insert(set, (generation, entries.clone()));
            Ok(entries)
        })
    }

    fn create(&mut self, set: NamedSet, room: usize) -> Result<(), PortError> {
        self.gate.call(Call::SetsCreate, Some(set.key.family), || self.port.create(set, room))
    }

    fn add(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        self.gate.items(Call::SetsAdd, Some(set.key.family), elements, |elements| self.port.add(set, elements))
    }

    fn delete(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        self.gate.items(Call::SetsDelete, Some(set.key.family), elements, |elements| self.port.delete(set, elements))
    }

    fn replace(&mut self, set: NamedSet, elements: &[&Element]) -> Result<(), PortError> {
        let counting = &self.counting;
        self.gate.weighing(Call::SetsReplace, Some(set.key.family), elements.len().max(1), false, || {
            *counting.lock() = self.gate.0.lock().is_armed();
            let outcome = self.port.replace(set, elements);
            *counting.lock() = false;
            outcome
        })
    }

    fn has_unfinished(&mut self, set: NamedSet) -> Result<bool, PortError> {
        self.gate.call(Call::SetsEntries, Some(set.key.family), || self.port.has_unfinished(set))
    }

    fn destroy(&mut self, set: NamedSet) -> Result<(), PortError> {
        self.gate.call(Call::SetsDestroy, Some(set.key.family), || self.port.destroy(set))
    }
}

struct FakeRulesPort {
    gate: Gate,
    port: RulesPort<Host>,
    host: Host,
    /// The last reading by family, and its generation: writing and reading the text takes time.
    seen: BTreeMap<Family, (u64, Dump)>,
}

impl Rules for FakeRulesPort {
    fn has_random_fully(&mut self, family: Family) -> Result<bool, PortError> {
        self.gate.call(Call::RulesHasRandomFully, Some(family), || self.port.has_random_fully(family))
    }

    fn dump(&mut self, family: Family) -> Result<Dump, PortError> {
        let (host, seen, port) = (&self.host, &mut self.seen, &mut self.port);
        self.gate.call(Call::RulesDump, Some(family), || {
            let generation = host.generation();
            if let Some((_, dump)) = seen.get(&family).filter(|(at, _)| *at == generation) {
                return Ok(dump.clone());
            }
            let dump = port.dump(family)?;
            seen.insert(family, (generation, dump.clone()));
            Ok(dump)
        })
    }

    fn has_tables(&mut self, family: Family) -> Option<bool> {
        // Those of both back ends: the fake's are no tables of its nf_tables.
        Some(self.host.dump().into_keys().any(|(of, _)| of == family.into()))
    }

    fn check(&mut self, family: Family, transaction: &Transaction) -> Result<(), PortError> {
        self.gate.call(Call::RulesCheck, Some(family), || self.port.check(family, transaction))
    }

    fn restore(&mut self, family: Family, transaction: &Transaction) -> Result<(), PortError> {
        // Every table ends in a `COMMIT`; a transaction that cannot be written is refused below.
        let text = transaction.to_restore_text().unwrap_or_default();
        let tables = text.lines().filter(|line| *line == "COMMIT").count();
        self.gate.weighing(Call::RulesRestore, Some(family), tables, false, || self.port.restore(family, transaction))
    }
}

struct FakeLinksPort {
    gate: Gate,
    links: Shared<Interfaces>,
}

impl Links for FakeLinksPort {
    fn has_device(&mut self, name: &str) -> Result<bool, PortError> {
        self.links.lock().has(name)
    }

    fn create_device(&mut self, name: &str) -> Result<(), PortError> {
        self.gate.call(Call::LinksCreateDevice, None, || self.links.lock().create(name))
    }

    fn delete_device(&mut self, name: &str) -> Result<(), PortError> {
        self.gate.call(Call::LinksDeleteDevice, None, || self.links.lock().delete(name))
    }

    fn addresses(&mut self) -> Result<HostAddresses, PortError> {
        self.gate.call(Call::LinksAddresses, None, || Ok(self.links.lock().addresses()))
    }

    fn gateways(&mut self) -> Result<BTreeSet<IpAddr>, PortError> {
        self.gate.call(Call::LinksGateways, None, || Ok(self.links.lock().gateways.clone()))
    }

    fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        self.gate.items(Call::LinksBind, None, addresses, |addresses| self.links.lock().bind(device, addresses))
    }

    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        self.gate.items(Call::LinksUnbind, None, addresses, |addresses| self.links.lock().unbind(device, addresses))
    }
}

struct FakeSysctlsPort {
    gate: Gate,
    values: Shared<BTreeMap<String, String>>,
}

fn no_sysctl(path: &str) -> PortError {
    PortError::new(PortErrorKind::NotFound, format!("{path}: this kernel does not have it"))
}

impl Sysctls for FakeSysctlsPort {
    fn get(&mut self, path: &str) -> Result<String, PortError> {
        self.gate.call(Call::SysctlsGet, None, || {
            check_sysctl(path)?;
            self.values.lock().get(path).cloned().ok_or_else(|| no_sysctl(path))
        })
    }

    fn can_set(&mut self, path: &str) -> bool {
        self.values.lock().contains_key(path)
    }

    fn set(&mut self, path: &str, value: &str) -> Result<(), PortError> {
        self.gate.call(Call::SysctlsSet, None, || {
            check_sysctl(path)?;
            let mut values = self.values.lock();
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

struct FakeConntrackPort {
    gate: Gate,
    flows: Shared<BTreeSet<Flow>>,
}

impl Conntrack for FakeConntrackPort {
    fn forget_udp(&mut self, services: &UdpServices) -> Result<Flows, PortError> {
        self.gate.call(Call::ConntrackForgetUdp, None, || Ok(forget_udp(&mut self.flows.lock(), services)))
    }
}

struct FakeTablesPort {
    gate: Gate,
    port: TablesPort,
}

impl Tables for FakeTablesPort {
    fn generation(&mut self) -> Result<u32, PortError> {
        self.gate.call(Call::TablesGeneration, None, || self.port.generation())
    }

    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>, PortError> {
        self.gate.call(Call::TablesRead, family_of(table), || self.port.read(table))
    }

    fn table(&mut self, table: &TableKey) -> Result<Option<nftables::Table>, PortError> {
        self.gate.call(Call::TablesTable, family_of(table), || self.port.table(table))
    }

    fn has_chain(&mut self, table: &TableKey, chain: &str) -> Result<bool, PortError> {
        self.gate.call(Call::TablesHasChain, family_of(table), || self.port.has_chain(table, chain))
    }

    fn check(&mut self, transaction: &nftables::Transaction) -> Result<(), NotCommitted> {
        let port = &mut self.port;
        committing(&self.gate, Call::TablesCheck, || port.check(transaction))
    }

    fn commit(&mut self, transaction: &nftables::Transaction) -> Result<(), NotCommitted> {
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

struct FakeRoutesPort {
    gate: Gate,
    links: Shared<Interfaces>,
}

impl LocalNetworks for FakeRoutesPort {
    fn networks(&mut self, owner: RouteOwner) -> Result<BTreeMap<Network, Option<IpAddr>>, PortError> {
        self.gate.call(Call::RoutesNetworks, None, || Ok(self.links.lock().networks(owner)))
    }

    fn add(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures {
        self.gate.items(Call::RoutesAdd, None, routes, |routes| self.links.lock().add_routes(owner, routes))
    }

    fn delete(&mut self, owner: RouteOwner, networks: &[Network]) -> ItemFailures {
        self.gate.items(Call::RoutesDelete, None, networks, |networks| self.links.lock().delete_routes(owner, networks))
    }
}

/// What a process listens on. It ends with the process.
#[derive(Debug, Default)]
pub(super) struct FakeRelays {
    pub(super) listeners: BTreeMap<FrontendKey, Listener>,
    pub(super) settings: Settings,
    /// Ports that other programs have.
    pub(super) taken: BTreeSet<FrontendKey>,
    /// Addresses at which a connection goes on, whatever is listened on.
    pub(super) connected: BTreeSet<IpAddr>,
}

struct FakeRelaysPort {
    gate: Gate,
    relays: Shared<FakeRelays>,
}

impl Relays for FakeRelaysPort {
    fn listeners(&mut self) -> BTreeMap<FrontendKey, Listener> {
        self.relays.lock().listeners.clone()
    }

    fn configure(&mut self, settings: &Settings) -> Result<(), PortError> {
        self.gate.call(Call::RelaysConfigure, None, || {
            self.relays.lock().settings = settings.clone();
            Ok(())
        })
    }

    fn serve(&mut self, listener: &Listener) -> Result<(), PortError> {
        self.gate.call(Call::RelaysServe, None, || {
            let mut relays = self.relays.lock();
            if relays.taken.contains(&listener.key) {
                relays.listeners.remove(&listener.key);
                let message = format!("listening on {}: another program has the port", listener.key);
                return Err(PortError::new(PortErrorKind::AlreadyExists, message));
            }
            relays.listeners.insert(listener.key, listener.clone());
            Ok(())
        })
    }

    fn close(&mut self, key: &FrontendKey) {
        self.relays.lock().listeners.remove(key);
    }

    fn busy(&mut self) -> BTreeSet<IpAddr> {
        let relays = self.relays.lock();
        let is_served = |address: &IpAddr| relays.listeners.keys().any(|key| key.address == *address);
        relays.connected.iter().copied().filter(|address| !is_served(address)).collect()
    }

    fn leaving(&mut self) -> usize {
        0
    }

    fn notices(&mut self) -> Vec<String> {
        Vec::new()
    }
}

fn family_of(table: &TableKey) -> Option<Family> {
    match table.family {
        nftables::Family::Ip => Some(Family::V4),
        nftables::Family::Ip6 => Some(Family::V6),
        _ => None,
    }
}

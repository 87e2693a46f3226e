//! The ports of the simulated kernel: the real ones over fake transports where the kernel uses bytes, behind injected
//! failures.

mod conntrack;
mod gate;
mod ipvs;
mod links;
mod relays;
mod routes;
mod rules;
mod sets;
mod sysctls;
mod tables;

use std::collections::BTreeMap;

use iptables::{BackendChoice, Limits};

use super::Parts;
use super::shared::Shared;
use super::transport::RecordingSocket;
use crate::kernel::{IpvsPort, RulesPort, SetsPort, TablesPort};
use crate::ports::Ports;
use conntrack::FakeConntrackPort;
use gate::Gate;
use ipvs::FakeIpvsPort;
use links::FakeLinksPort;
use relays::FakeRelaysPort;
use routes::FakeRoutesPort;
use rules::FakeRulesPort;
use sets::FakeSetsPort;
use sysctls::FakeSysctlsPort;
use tables::FakeTablesPort;

pub(super) use relays::FakeRelays;

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
            ipset::Client::with_transport(RecordingSocket::mortal(
                socket,
                written.clone(),
                control.clone(),
                noticing.clone(),
            ))
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
                counters: parts.counters.clone(),
            },
            links: FakeLinksPort { gate: gate(), links: parts.links.clone() },
            sysctls: FakeSysctlsPort { gate: gate(), values: parts.sysctls.clone() },
            tables: FakeTablesPort {
                gate: gate(),
                other: tables.client(),
                port: TablesPort::new(move || Ok(tables.client())),
            },
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

//! Keeps the objects of virtual servers that the safeguard holds back: themselves, their addresses and entries in sets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipset::Element;
use ipvs::VirtualServerKey;
use ipvs::model::Protocol;

use crate::modes::ipvs::diff::{Changes, VirtualServerChange};
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::ipvs::split;
use crate::net::{Family, FrontendKey, Network};
use crate::safeguard::{Kernel, Loss};

/// Frontends that these changes take away. The virtual server of a mark does not count: its Frontend has another.
pub fn losing(changes: &Changes) -> impl Iterator<Item = (FrontendKey, Loss)> {
    changes.virtual_servers.iter().filter_map(|(key, change)| {
        let loss = match change {
            VirtualServerChange::Delete => Some(Loss::Everything),
            VirtualServerChange::Update { remove, .. } if !remove.is_empty() => Some(Loss::Endpoints),
            _ => None,
        };
        Some((FrontendKey::try_from(*key).ok()?, loss?))
    })
}

impl Kernel for Observed {
    fn serves(&self, key: &FrontendKey) -> Option<bool> {
        self.virtual_servers.get(&(*key).into()).map(|there| !there.real_servers.is_empty())
    }
}

/// Removes held-back deletions from the changes: of the virtual servers, their real servers, and the addresses and entries
/// they need. The rest stays: wanted virtual servers follow their endpoints as always.
///
/// Rules of iptables are no part of these changes. Those that guard what is held back have to stay too:
/// [`Kept`](crate::modes::ipvs::rules::Kept) names them.
pub fn hold(held: &BTreeSet<FrontendKey>, changes: &mut Changes, observed: &Observed) {
    let mut needs = Needs::default();
    let marks: BTreeMap<FrontendKey, VirtualServerKey> =
        observed.records().filter_map(|record| Some((split::recorded(record)?.0, split::server_of(record)?))).collect();
    let of_mark = |frontend: &FrontendKey| marks.get(frontend).copied();
    let all = |frontend: FrontendKey| [Some(frontend.into()), of_mark(&frontend)].into_iter().flatten();
    for key in held.iter().copied().flat_map(all) {
        needs.add(&key, observed);
        match changes.virtual_servers.get_mut(&key) {
            Some(VirtualServerChange::Delete) => drop(changes.virtual_servers.remove(&key)),
            Some(VirtualServerChange::Update { config, add, set, remove }) => {
                remove.clear();
                if config.is_none() && add.is_empty() && set.is_empty() {
                    changes.virtual_servers.remove(&key);
                }
            }
            _ => {}
        }
    }
    changes.delete_addresses.retain(|address| !needs.address(address));
    changes.delete_routes.retain(|network| !needs.any_in(network));
    changes.delete_entries.retain(|(set, element)| !needs.entry(*set, element));
    // Connections to it would be rejected although it keeps its real servers.
    changes.add_entries.retain(|(set, element)| set.kind != SetKind::NoEndpoint || !needs.entry(*set, element));
}

/// Addresses and entries that have to stay as long as some virtual servers do: those that mark these as this proxy's, those that
/// guard them (source ranges), and the hairpin entries of their real servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    addresses: BTreeSet<IpAddr>,
    /// Protocol, address and port: of virtual servers, and of their real servers.
    endpoints: BTreeSet<(u8, IpAddr, u16)>,
    node_ports: BTreeSet<(Family, u16)>,
    /// Virtual servers of marks.
    marks: BTreeSet<VirtualServerKey>,
}

impl Needs {
    /// Adds a virtual server as the kernel holds it.
    pub(crate) fn add(&mut self, key: &VirtualServerKey, observed: &Observed) {
        let protocol = match *key {
            VirtualServerKey::Address { protocol, addr, port } => {
                self.addresses.insert(addr);
                self.node_ports.insert((Family::of(addr), port));
                self.endpoints.insert((protocol.number(), addr, port));
                protocol
            }
            VirtualServerKey::Fwmark { .. } => {
                self.marks.insert(*key);
                let Some(frontend) = observed.frontend_of_mark(key) else { return };
                frontend.protocol.into()
            }
        };
        let server = observed.virtual_servers.get(key);
        for real in server.into_iter().flat_map(|server| server.real_servers.iter()) {
            self.endpoints.insert((protocol.number(), real.key.addr, real.key.port));
        }
    }

    /// Whether one of them needs this address.
    pub(crate) fn address(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address)
    }

    /// Whether one of them needs an address of this network.
    pub(crate) fn any_in(&self, network: &Network) -> bool {
        self.addresses.range(network.network()..=network.broadcast()).next().is_some()
    }

    /// Whether one of them needs this entry.
    pub(crate) fn entry(&self, set: SetKey, element: &Element) -> bool {
        if set.kind.has_marks() && split::server_of(element).is_some_and(|key| self.marks.contains(&key)) {
            return true;
        }
        match element {
            Element::Ip(span) => self.addresses.contains(&span.first()),
            Element::IpPort(span, ports) | Element::IpPortIp(span, ports, _) => {
                let protocol = Protocol::from(ports.protocol().number());
                self.endpoints.contains(&(protocol.number(), span.first(), ports.ports().first()))
            }
            Element::Port(ports) => self.node_ports.contains(&(set.family, ports.first())),
            _ => false,
        }
    }
}

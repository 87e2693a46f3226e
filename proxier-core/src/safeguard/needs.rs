//! What virtual servers need besides themselves: their addresses, and entries in sets.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::net::Family;
use ipset::Element;
use ipvs::VirtualServerKey;
use ipvs::model::Protocol;

use crate::observed::Observed;
use crate::sets::SetKey;

/// Addresses and entries that have to stay as long as some virtual servers do: those that mark them as ours, those that
/// guard them (source ranges), and the hairpin entries of their real servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    addresses: BTreeSet<IpAddr>,
    /// Protocol, address and port: of virtual servers, and of their real servers.
    endpoints: BTreeSet<(u8, IpAddr, u16)>,
    node_ports: BTreeSet<(Family, u16)>,
}

impl Needs {
    /// Adds a virtual server as the kernel holds it.
    pub(crate) fn add(&mut self, key: &VirtualServerKey, observed: &Observed) {
        let VirtualServerKey::Address { protocol, addr, port } = *key else { return };
        self.addresses.insert(addr);
        self.node_ports.insert((Family::of(addr), port));
        self.endpoints.insert((protocol.number(), addr, port));
        let server = observed.virtual_servers.get(key);
        for real in server.into_iter().flat_map(|server| server.real_servers.iter()) {
            self.endpoints.insert((protocol.number(), real.key.addr, real.key.port));
        }
    }

    /// Whether one of them needs this address.
    pub(crate) fn address(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address)
    }

    /// Whether one of them needs this entry.
    pub(crate) fn entry(&self, set: SetKey, element: &Element) -> bool {
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

//! Frontends: each protocol, address and port that a Service answers on, and its entries in the sets.

use std::net::IpAddr;
use std::sync::Arc;

use crate::net::Family;
use bitflags::bitflags;
use ipset::{Element, IpSpan, Ports};
use ipvs::model::VirtualServerConfig;
use ipvs::{RealServer, RealServerKey, VirtualServer, VirtualServerKey};

use crate::net::Protocol;
use crate::sets::{SetKey, SetKind};
use crate::snapshot::TrafficPolicy;

bitflags! {
    /// What kind of address of its Service a Frontend has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Roles: u8 {
        /// Cluster IP.
        const CLUSTER_IP = 1;
        /// External IP.
        const EXTERNAL_IP = 2;
        /// Address of a load balancer.
        const LOAD_BALANCER = 4;
        /// Address of this host, with a node port.
        const NODE_PORT = 8;
    }
}

/// One protocol, address and port that a Service answers on. It becomes one virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frontend {
    /// What kind of address this is; several when the Service lists it as several.
    pub roles: Roles,
    /// Address.
    pub address: IpAddr,
    /// Protocol.
    pub protocol: Protocol,
    /// Port.
    pub port: u16,
    /// Configuration of the virtual server.
    pub config: VirtualServerConfig,
    /// Its real servers, sorted by address and port.
    pub real_servers: Arc<[RealServer]>,
    /// Whether the address has to be bound to the dummy device: it is not a node port's, and no other interface has it.
    pub bound: bool,
    /// The policy that chose the real servers: the internal one for a cluster IP, else the external one.
    pub policy: TrafficPolicy,
    /// The networks that may connect; `None` for everybody. Load-balancer addresses only.
    pub source_ranges: Option<Arc<[IpSpan]>>,
    /// Whether this node itself is in the source ranges.
    pub node_may_use: bool,
}

impl Frontend {
    /// What identifies the virtual server.
    pub fn key(&self) -> VirtualServerKey {
        VirtualServerKey::Address { protocol: self.protocol.into(), addr: self.address, port: self.port }
    }

    /// Whether this is one of its real servers.
    pub fn has_real_server(&self, key: &RealServerKey) -> bool {
        self.real_servers.binary_search_by(|server| server.key.cmp(key)).is_ok()
    }

    /// Whether the address is not bound because another interface has it.
    pub fn is_elsewhere(&self) -> bool {
        !self.bound && self.roles != Roles::NODE_PORT
    }

    /// The virtual server.
    pub fn virtual_server(&self) -> VirtualServer {
        VirtualServer { key: self.key(), config: self.config }
    }

    /// Whether this node's own traffic to it has to be dropped (chain `KUBE-IPVS-OUT-FILTER`): the load balancer's address
    /// is local here, so such traffic would have that address as its source and pass every source range.
    pub fn is_barred_from_node(&self) -> bool {
        self.source_ranges.is_some() && !self.node_may_use
    }

    /// The entries it has in the sets.
    pub fn entries(&self) -> Vec<(SetKey, Element)> {
        let host = IpSpan::host(self.address);
        let ports = Ports::port(self.protocol.into(), self.port);
        let at = Element::IpPort(host, ports);
        let local = self.policy == TrafficPolicy::Local;
        let mut entries = Entries { family: Family::of(self.address), list: Vec::new() };
        if self.roles.contains(Roles::CLUSTER_IP) {
            entries.add(SetKind::ClusterIp, at.clone());
        }
        if self.roles.contains(Roles::EXTERNAL_IP) {
            entries.add(if local { SetKind::ExternalIpLocal } else { SetKind::ExternalIp }, at.clone());
        }
        if self.roles.contains(Roles::LOAD_BALANCER) {
            entries.add(SetKind::LoadBalancer, at.clone());
            if local {
                entries.add(SetKind::LoadBalancerLocal, at.clone());
            }
            if let Some(ranges) = &self.source_ranges {
                entries.add(SetKind::LoadBalancerFirewall, at.clone());
                for range in ranges.iter() {
                    entries.add(SetKind::LoadBalancerSourceCidr, Element::IpPortIp(host, ports, *range));
                }
                if self.node_may_use {
                    entries.add(SetKind::LoadBalancerSourceIp, Element::IpPortIp(host, ports, host));
                }
            }
        }
        if self.roles.contains(Roles::NODE_PORT) {
            let (all, local_only, element) = match self.protocol {
                Protocol::Tcp => (SetKind::NodePortTcp, SetKind::NodePortLocalTcp, Element::Port(self.port.into())),
                Protocol::Udp => (SetKind::NodePortUdp, SetKind::NodePortLocalUdp, Element::Port(self.port.into())),
                Protocol::Sctp => (SetKind::NodePortSctp, SetKind::NodePortLocalSctp, at.clone()),
            };
            if local {
                entries.add(local_only, element.clone());
            }
            entries.add(all, element);
            if self.protocol != Protocol::Sctp {
                entries.add(SetKind::NodePortServed, at);
            }
        }
        if self.bound {
            entries.add(SetKind::IpvsIps, Element::Ip(host));
        }
        entries.list
    }
}

struct Entries {
    family: Family,
    list: Vec<(SetKey, Element)>,
}

impl Entries {
    fn add(&mut self, kind: SetKind, element: Element) {
        self.list.push((SetKey::new(self.family, kind), element));
    }
}

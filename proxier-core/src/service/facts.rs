//! Node facts: inputs that are the same for every Service, such as addresses of this host. Computed once.

use crate::net::is_reachable;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::config::{Config, InterfaceName, LocalTraffic, MayAskFor, NodePortAddresses};
use crate::net::{EndpointKey, Family, Network};
use crate::snapshot::{HostAddresses, Node};

/// Addresses of a family on which a port is open to every client that may use node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenOn {
    /// All addresses of this host, including future ones.
    All,
    /// Only these addresses, sorted; none if empty.
    These(Vec<IpAddr>),
}

impl OpenOn {
    /// Whether it is open on no address.
    pub fn is_nowhere(&self) -> bool {
        matches!(self, OpenOn::These(addresses) if addresses.is_empty())
    }
}

/// Input of the compiler in addition to the Service. Computed again when configuration, Node object or addresses of the
/// host change. If the result differs, every Service must be compiled again.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFacts {
    pub(crate) config: Config,
    pub(crate) zone: Option<Box<str>>,
    node_addresses: Vec<IpAddr>,
    on_interfaces: BTreeSet<IpAddr>,
    absent: BTreeSet<IpAddr>,
    node_port_addresses: BTreeSet<IpAddr>,
    pod_cidrs: Vec<Network>,
    node_weights: Arc<BTreeMap<Box<str>, u16>>,
    service_cidrs: Arc<[Network]>,
    /// Whether the mode itself ends TCP connections to removed endpoints.
    pub(crate) ends_connections: bool,
    pub(crate) most_with_affinity: Option<usize>,
    /// Whether the mode has an object for each slot of an endpoint.
    pub(crate) has_slots: bool,
}

impl NodeFacts {
    /// Whether clients can stay with one of these endpoints: there are not too many of them.
    pub(crate) fn lets_stay(&self, cluster: &[EndpointKey], local: &[EndpointKey]) -> bool {
        self.most_with_affinity.is_none_or(|most| cluster.len().max(local.len()) <= most)
    }

    /// Computes the node facts.
    pub fn new(config: &Config, node: &Node, host: &HostAddresses) -> Self {
        NodeFacts::with_absent(config, node, host, [])
    }

    /// Like [`NodeFacts::new`], with addresses that an interface has just lost and may get again: they keep serving
    /// node ports, so that connections survive.
    pub(crate) fn with_absent(
        config: &Config,
        node: &Node,
        host: &HostAddresses,
        absent: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let on_interfaces: BTreeSet<IpAddr> = host
            .interfaces
            .iter()
            .filter(|(interface, _)| !config.names.is_of_a_proxy(interface))
            .flat_map(|(_, addresses)| addresses)
            .map(IpAddr::to_canonical)
            .filter(|address| is_reachable(*address))
            .collect();
        let absent: BTreeSet<IpAddr> =
            absent.into_iter().filter(|address| is_reachable(*address) && !on_interfaces.contains(address)).collect();
        // The first address of each family is the primary one.
        let node_addresses: Vec<IpAddr> = config.node_address.iter().chain(&node.addresses).copied().collect();
        let first_of = |family| node_addresses.iter().copied().find(|address| Family::of(*address) == family);
        let asked = &config.node_port_addresses;
        let has_primary = matches!(asked, NodePortAddresses::Primary | NodePortAddresses::PrimaryAnd(_));
        let primary = Family::ALL.into_iter().filter_map(first_of).filter(|_| has_primary);
        let networks = Family::ALL.map(|family| (family, asked.networks(family)));
        let is_asked_for = |address: &IpAddr| {
            let mut of_family = networks.iter().filter(|(family, _)| *family == Family::of(*address));
            of_family.any(|(_, within)| within.as_ref().is_none_or(|all| all.iter().any(|one| one.contains(address))))
        };
        let node_port_addresses = on_interfaces.union(&absent).copied().filter(is_asked_for).chain(primary).collect();
        NodeFacts {
            config: config.clone(),
            zone: node.zone.as_deref().map(Box::from),
            node_addresses,
            on_interfaces,
            absent,
            node_port_addresses,
            pod_cidrs: node.pod_cidrs.clone(),
            node_weights: Arc::default(),
            service_cidrs: Arc::default(),
            ends_connections: false,
            most_with_affinity: None,
            has_slots: false,
        }
    }

    /// Sets the weights of nodes by name. Their endpoints get them if the configuration allows annotations to decide it
    /// ([`MayAskFor::NODE_WEIGHTS`]) and the store keeps nodes
    /// ([`Store::of_mode`](crate::snapshot::Store::of_mode)).
    pub(crate) fn set_node_weights(&mut self, weights: Arc<BTreeMap<Box<str>, u16>>) {
        if self.config.lets(MayAskFor::NODE_WEIGHTS) {
            self.node_weights = weights;
        }
    }

    /// Sets the families in which the mode can serve node ports on the loopback address
    /// ([`Kind::localhost`](crate::modes::Kind::localhost)). [`NodeFacts::node_port_addresses`] then includes it if the
    /// configuration names it ([`NodePortAddresses::names_localhost`]).
    #[doc(hidden)]
    pub fn serve_localhost(&mut self, families: &[Family]) {
        let asked = &self.config.node_port_addresses;
        let named = families.iter().filter(|family| asked.names_localhost(**family));
        self.node_port_addresses.extend(named.map(|family| family.localhost()));
    }

    /// Whether node ports of a family are served on the loopback address because the configuration names it.
    pub(crate) fn serves_localhost(&self, family: Family) -> bool {
        self.node_port_addresses.contains(&family.localhost())
    }

    /// The node weights that differ from 1, by node name.
    pub fn node_weights(&self) -> &BTreeMap<Box<str>, u16> {
        &self.node_weights
    }

    pub(crate) fn set_service_cidrs(&mut self, networks: Arc<[Network]>) {
        self.service_cidrs = networks;
    }

    /// The networks of cluster IPs: those announced by the cluster, otherwise the configured ones.
    pub(crate) fn service_cidrs_or<'a>(&'a self, configured: &'a [Network]) -> &'a [Network] {
        if self.service_cidrs.is_empty() { configured } else { &self.service_cidrs }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Addresses on which node ports of a family are served, sorted.
    pub fn node_port_addresses(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.node_port_addresses.iter().copied().filter(move |address| Family::of(*address) == family)
    }

    /// Addresses on which health-check ports of a family are open, which are those of node ports. None in a family that
    /// is not served, or in which no address of this host serves node ports.
    pub fn health_checks_open_on(&self, family: Family) -> OpenOn {
        let served = self.config.families.has(family);
        let addresses: Vec<IpAddr> = self.node_port_addresses(family).filter(|_| served).collect();
        match &self.config.node_port_addresses {
            NodePortAddresses::All if !addresses.is_empty() => OpenOn::All,
            _ => OpenOn::These(addresses),
        }
    }

    /// Whether `nodePortAddresses` has networks, but none of this family, in which this host has addresses. Node ports
    /// and health-check ports are then open on all of them, as in kube-proxy.
    pub fn is_open_unnamed(&self, family: Family) -> bool {
        let NodePortAddresses::Within(networks) = &self.config.node_port_addresses else { return false };
        let is_named = networks.iter().any(|network| Family::of(network.addr()) == family);
        !networks.is_empty() && !is_named && !self.health_checks_open_on(family).is_nowhere()
    }

    /// The node's primary address of a family: the configured one ([`Config::node_address`]), otherwise that of the
    /// Node object.
    #[doc(hidden)]
    pub fn node_address(&self, family: Family) -> Option<IpAddr> {
        self.node_addresses.iter().copied().find(|address| Family::of(*address) == family)
    }

    /// Whether the node's primary address of a family is in these networks.
    pub(crate) fn is_node_in(&self, networks: Option<&[Network]>, family: Family) -> bool {
        let is_in = |node: IpAddr| networks.is_some_and(|networks| networks.iter().any(|of| of.contains(&node)));
        self.node_address(family).is_some_and(is_in)
    }

    /// The first network of this node's pods of a family in the Node object.
    pub fn pod_cidr(&self, family: Family) -> Option<Network> {
        self.pod_cidrs.iter().copied().find(|network| Family::of(network.addr()) == family)
    }

    /// The network of all pods of a family and this node's part, if both are known and sources identify pod traffic.
    pub(crate) fn other_pods(&self, family: Family) -> Option<(Network, Network)> {
        let LocalTraffic::ClusterCidrs(networks) = &self.config.local_traffic else { return None };
        networks.iter().copied().find(|network| Family::of(network.addr()) == family).zip(self.pod_cidr(family))
    }

    /// This node's own addresses: those for which [`NodeFacts::is_own_address`] holds. May contain duplicates.
    pub(crate) fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.on_interfaces.iter().chain(&self.absent).chain(&self.node_addresses).copied()
    }

    pub(crate) fn pod_cidrs(&self) -> impl Iterator<Item = Network> {
        self.pod_cidrs.iter().copied()
    }

    /// Whether an interface other than proxies' devices ([`KernelNames`](crate::config::KernelNames)) has this address.
    pub fn is_on_interface(&self, address: IpAddr) -> bool {
        self.on_interfaces.contains(&address)
    }

    /// Whether an interface other than proxies' devices has this address, or had it a moment ago.
    pub(crate) fn is_here(&self, address: IpAddr) -> bool {
        self.is_on_interface(address) || self.absent.contains(&address)
    }

    /// Whether an address is this node's own. That is so if an interface other than proxies' devices has it or had it a
    /// moment ago, or if it is in the Node object or the configuration.
    pub(crate) fn is_own_address(&self, address: IpAddr) -> bool {
        self.is_here(address) || self.node_addresses.contains(&address)
    }
}

/// How a family's traffic of this node's pods is detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodTraffic {
    /// It is not detected.
    Unknown,
    /// Sources in this network.
    Network(Network),
    /// Packets that arrive on this device.
    Interface(InterfaceName),
    /// Packets that arrive on devices with this name prefix.
    Prefix(InterfaceName),
}

impl PodTraffic {
    pub(crate) fn from_facts(facts: &NodeFacts, family: Family) -> Self {
        let network = match &facts.config().local_traffic {
            LocalTraffic::ClusterCidrs(networks) => {
                networks.iter().copied().find(|network| Family::of(network.addr()) == family)
            }
            LocalTraffic::NodeCidr => facts.pod_cidr(family),
            LocalTraffic::BridgeInterface(name) => return PodTraffic::Interface(name.clone()),
            LocalTraffic::InterfaceNamePrefix(name) => return PodTraffic::Prefix(name.clone()),
        };
        network.map_or(PodTraffic::Unknown, PodTraffic::Network)
    }
}

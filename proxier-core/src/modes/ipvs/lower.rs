//! A Frontend as a virtual server with real servers, whose lists take little memory if all have the usual
//! configuration; and as the set entries that Services and Frontends need.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use ipset::{Element, IpSpan, Ports};
use ipvs::model::{RealServerConfig, Thresholds, VirtualServerConfig, Weight};
use ipvs::{RealServer, RealServerKey, VirtualServerKey};

use super::split;
use crate::net::{EndpointKey, Family, FrontendKey, Network, Protocol};
use crate::pack::Gather as _;
use crate::ports::{SetKey, SetKind, place_of};
use crate::service::{Compiled, Frontend, Roles};
use crate::snapshot::TrafficPolicy;

/// Conversions from the names of one crate to those of another.
macro_rules! names {
    ($($from:ty => $to:ty { $($one:ident = $other:ident),* })*) => {$(
        impl From<$from> for $to {
            fn from(of: $from) -> Self {
                match of {
                    $(<$from>::$one => <$to>::$other,)*
                }
            }
        }
    )*};
}

names! {
    ipvs::model::Family => Family { V4 = V4, V6 = V6 }
    Family => ipvs::model::Family { V4 = V4, V6 = V6 }
    Family => ipset::Family { V4 = Inet, V6 = Inet6 }
    Family => iptables::Family { V4 = Ipv4, V6 = Ipv6 }
    Family => nftables::Family { V4 = Ip, V6 = Ip6 }
    Protocol => ipvs::model::Protocol { Tcp = Tcp, Udp = Udp, Sctp = Sctp }
    Protocol => ipset::Protocol { Tcp = TCP, Udp = UDP, Sctp = SCTP }
}

impl From<FrontendKey> for VirtualServerKey {
    fn from(key: FrontendKey) -> Self {
        VirtualServerKey::Address { protocol: key.protocol.into(), addr: key.address, port: key.port }
    }
}

/// Fails for a firewall mark, and for a protocol that Services do not have.
impl TryFrom<VirtualServerKey> for FrontendKey {
    type Error = VirtualServerKey;

    fn try_from(key: VirtualServerKey) -> Result<Self, Self::Error> {
        let VirtualServerKey::Address { protocol, addr, port } = key else { return Err(key) };
        let is_it = |known: &Protocol| ipvs::model::Protocol::from(*known) == protocol;
        let protocol = Protocol::ALL.into_iter().find(is_it).ok_or(key)?;
        Ok(FrontendKey { protocol, address: addr, port })
    }
}

impl From<EndpointKey> for RealServerKey {
    fn from(key: EndpointKey) -> Self {
        RealServerKey { addr: key.address, port: key.port }
    }
}

impl From<RealServerKey> for EndpointKey {
    fn from(key: RealServerKey) -> Self {
        EndpointKey { address: key.addr, port: key.port }
    }
}

/// The real servers of one virtual server, sorted by address and port.
///
/// Nearly all have the usual configuration: masquerading with weight 1, without limits. A list of these takes only the
/// memory of its addresses and ports, and none if it is shared with the desired endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RealServers {
    keys: Arc<[EndpointKey]>,
    /// Endpoints with another configuration, sorted.
    unusual: Box<[(EndpointKey, RealServerConfig)]>,
}

/// A virtual server without its key: as it is desired, or as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub config: VirtualServerConfig,
    /// Its real servers. In the kernel they share their list with the desired ones if both are equal.
    pub real_servers: RealServers,
}

impl RealServers {
    /// The real servers of these endpoints, which are sorted, as a Frontend asks for them.
    pub(super) fn of_frontend(frontend: &Frontend, keys: Arc<[EndpointKey]>) -> Self {
        let mut config = RealServerConfig::default();
        if let Some(asked) = &frontend.balancing {
            config.forwarding_method = asked.forwarding.filter(|_| frontend.returns_directly).unwrap_or_default();
            // The kernel uses three quarters of it as the lower limit if that is 0.
            let most = asked.max_connections.map_or(0, NonZeroU32::get);
            config.thresholds = Thresholds::new(most, 0).unwrap_or_default();
        }
        let weights = frontend.weights.as_deref().unwrap_or_default();
        if weights.is_empty() && config == RealServerConfig::default() {
            return RealServers { keys, unusual: Box::default() };
        }
        let weight_of = |key: &EndpointKey| {
            let place = weights.binary_search_by_key(key, |(endpoint, _)| *endpoint).ok()?;
            Weight::new(weights.get(place)?.1.into()).ok()
        };
        let configured =
            keys.iter().map(|key| (*key, weight_of(key).map_or(config, |weight| config.with_weight(weight))));
        let unusual = configured.filter(|(_, config)| *config != RealServerConfig::default()).collect();
        RealServers { keys, unusual }
    }

    /// Shares the list of `wanted` if both are equal.
    pub(crate) fn sorted(real_servers: &[RealServer], wanted: Option<&Arc<[EndpointKey]>>) -> Self {
        let keys = || real_servers.iter().map(|real| EndpointKey::from(real.key));
        let keys = match wanted {
            Some(wanted) if wanted.iter().copied().eq(keys()) => wanted.clone(),
            _ => keys().collect(),
        };
        let unusual = real_servers.iter().filter(|real| real.config != RealServerConfig::default());
        RealServers { keys, unusual: unusual.map(|real| (real.key.into(), real.config)).collect() }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = RealServer> {
        self.keys.iter().map(|key| self.real_server(*key))
    }

    pub fn keys(&self) -> &Arc<[EndpointKey]> {
        &self.keys
    }

    pub fn get(&self, key: &RealServerKey) -> Option<RealServer> {
        let place = self.keys.binary_search(&(*key).into()).ok()?;
        self.keys.get(place).map(|key| self.real_server(*key))
    }

    pub(crate) fn are_usual(&self) -> bool {
        self.unusual.is_empty()
    }

    /// The real server with this key, which must be in the list.
    pub(crate) fn real_server(&self, key: EndpointKey) -> RealServer {
        if self.unusual.is_empty() {
            return RealServer { key: key.into(), config: RealServerConfig::default() };
        }
        let unusual = self.unusual.binary_search_by_key(&key, |(key, _)| *key).ok();
        let config = unusual.and_then(|place| self.unusual.get(place)).map(|(_, config)| *config);
        RealServer { key: key.into(), config: config.unwrap_or_default() }
    }

    /// Whether both are equal; immediate if they share their list.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.unusual == other.unusual && (Arc::ptr_eq(&self.keys, &other.keys) || self.keys == other.keys)
    }
}

pub(crate) fn span(network: Network) -> IpSpan {
    // Does not fail, because the length fits the family.
    IpSpan::network(network.addr(), network.prefix_len()).unwrap_or_else(|_| IpSpan::host(network.addr()))
}

/// A Service's entries that belong to no Frontend: hairpins and the health check.
pub(super) fn service_entries(compiled: &Compiled) -> BTreeSet<(SetKey, Element)> {
    let hairpins = compiled.extras().hairpins.iter().map(|(protocol, endpoint)| {
        let set = SetKey::new(Family::of(endpoint.address), SetKind::LoopBack);
        let host = IpSpan::host(endpoint.address);
        (set, Element::IpPortIp(host, Ports::port((*protocol).into(), endpoint.port), host))
    });
    let port = compiled.health_check().map(|check| Element::Port(check.port.into()));
    let open_in = compiled.extras().health_check_open_in.iter();
    let checks = open_in.filter_map(|family| Some((SetKey::new(*family, SetKind::HealthCheckNodePort), port.clone()?)));
    hairpins.chain(checks).gather()
}

/// A Frontend's entries in the sets. An nf_tables table accepts no overlapping networks, and has a set of those that
/// this node may not use. `mark`: the virtual server of its mark, if it is split.
pub(crate) fn frontend_entries(
    frontend: &Frontend,
    by_table: bool,
    mark: Option<VirtualServerKey>,
) -> Vec<(SetKey, Element)> {
    let FrontendKey { protocol, address, port } = frontend.key;
    let (host, ports) = place_of(&frontend.key);
    let at = Element::IpPort(host, ports);
    let local = frontend.policy == TrafficPolicy::Local;
    // The source stays, because the endpoint is on this node, or answers the client directly.
    let keeps_source = local || frontend.returns_directly;
    let family = Family::of(address);
    let mut list = Vec::new();
    let mut add = |kind, element| list.push((SetKey::new(family, kind), element));
    if frontend.roles.contains(Roles::CLUSTER_IP) {
        add(SetKind::ClusterIp, at.clone());
    }
    if frontend.roles.contains(Roles::EXTERNAL_IP) {
        add(if keeps_source { SetKind::ExternalIpLocal } else { SetKind::ExternalIp }, at.clone());
    }
    if frontend.roles.contains(Roles::LOAD_BALANCER) {
        add(SetKind::LoadBalancer, at.clone());
        if keeps_source {
            add(SetKind::LoadBalancerLocal, at.clone());
        }
        if let Some(ranges) = &frontend.source_ranges {
            add(SetKind::LoadBalancerFirewall, at.clone());
            let ranges = if by_table { Network::aggregate(&ranges.to_vec()) } else { ranges.to_vec() };
            for range in ranges {
                add(SetKind::LoadBalancerSourceCidr, Element::IpPortIp(host, ports, span(range)));
            }
            if frontend.node_may_use {
                add(SetKind::LoadBalancerSourceIp, Element::IpPortIp(host, ports, host));
            } else if by_table {
                add(SetKind::LoadBalancerNotNode, Element::IpPortIp(host, ports, host));
            }
        }
    }
    if frontend.roles.contains(Roles::NODE_PORT) {
        let (all, local_only, element) = match protocol {
            Protocol::Tcp => (SetKind::NodePortTcp, SetKind::NodePortLocalTcp, Element::Port(port.into())),
            Protocol::Udp => (SetKind::NodePortUdp, SetKind::NodePortLocalUdp, Element::Port(port.into())),
            Protocol::Sctp => (SetKind::NodePortSctp, SetKind::NodePortLocalSctp, at.clone()),
        };
        if local {
            add(local_only, element.clone());
        }
        add(all, element);
        if protocol != Protocol::Sctp {
            add(SetKind::NodePortServed, at.clone());
        }
    }
    if frontend.is_virtual() {
        add(SetKind::IpvsIps, Element::Ip(host));
    }
    if by_table && !serves(frontend, mark.is_some()) {
        add(SetKind::NoEndpoint, at);
    }
    if let Some(VirtualServerKey::Fwmark { mark, .. }) = mark {
        list.extend(entries_of_mark(frontend, mark));
    }
    list
}

fn serves(frontend: &Frontend, is_split: bool) -> bool {
    if is_split { frontend.has_endpoints() } else { frontend.takes(frontend.endpoints()) }
}

/// What decides the entries of a Frontend, besides its key and mark, and whether its address is bound. Changes of
/// endpoints alone rarely change it.
pub(super) fn exposure(frontend: &Frontend, by_table: bool, is_split: bool) -> impl PartialEq {
    let Frontend { roles, policy, returns_directly, on_interface, source_ranges, node_may_use, .. } = frontend;
    let serves = !by_table || serves(frontend, is_split);
    (*roles, *policy, *returns_directly, *on_interface, source_ranges, *node_may_use, serves)
}

pub(super) fn entries_of_mark(frontend: &Frontend, mark: NonZeroU32) -> [(SetKey, Element); 2] {
    [split::active_entry(&frontend.key), split::record(&frontend.key, mark)]
}

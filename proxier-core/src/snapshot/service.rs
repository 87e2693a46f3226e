//! A Service with every value checked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::{
    Abilities, Balancing, ObjectKey, ObjectKind, Rejection, Reporter, check_port, is_usable_by_service, parse_address,
    parse_network,
};
use crate::net::{ByFamily, Family, Network, Protocol};
use crate::objects::{ServiceObject, ServicePortObject, ServiceSpec};

/// How a Service is published. Headless and ExternalName Services have nothing to program and no value here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServiceType {
    /// Served on its cluster IPs. Default.
    #[default]
    ClusterIp,
    /// Served on a port of each node too.
    NodePort,
    /// Served on load balancers too.
    LoadBalancer,
}

/// Endpoints that traffic may reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Endpoints of the whole cluster. Default.
    #[default]
    Cluster,
    /// Endpoints on this node.
    Local,
}

/// A port of a Service. Its endpoints are those of slice ports with the same name and protocol; `targetPort` is
/// ignored.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServicePort {
    /// Name; may be empty.
    pub name: Box<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Port on cluster, external and load-balancer addresses.
    pub port: u16,
    /// Port on the nodes' addresses.
    pub node_port: Option<u16>,
}

/// When an object was created, to order Services that claim one address and port. Two without a date are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CreationTime(u64);

impl CreationTime {
    /// Later than every date: for objects without one.
    pub(crate) const UNKNOWN: CreationTime = CreationTime(u64::MAX / 2);

    /// Later than every object: for Frontends of agents, in the order of their calls.
    pub(crate) fn of_agent(order: u64) -> Self {
        CreationTime(Self::UNKNOWN.0.saturating_add(1).saturating_add(order))
    }

    /// Parses `2026-01-31T23:59:59Z`, with or without a fraction of a second.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('Z')?;
        let whole = text.split_once('.').map_or(text, |(whole, _fraction)| whole);
        let shape = whole.bytes().zip(*b"0000-00-00T00:00:00").all(|(byte, pattern)| match pattern {
            b'0' => byte.is_ascii_digit(),
            _ => byte == pattern,
        });
        let digits: String = whole.chars().filter(char::is_ascii_digit).collect();
        (shape && digits.len() == 14 && whole.len() == 19).then(|| digits.parse().map(CreationTime).ok()).flatten()
    }
}

type SourceRanges = Option<Arc<[Network]>>;

/// A Service with something to program.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Namespace and name.
    pub key: ObjectKey,
    pub(crate) created: CreationTime,
    /// Cluster IPs, at most one per family. A family without one is not programmed at all.
    pub cluster_ips: Box<[IpAddr]>,
    /// Addresses that others route to the nodes, sorted.
    pub external_ips: Box<[IpAddr]>,
    /// Load-balancer addresses with which packets arrive (`ipMode` `VIP`), sorted.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// Ports. No two have the same protocol and number, or the same protocol and name.
    pub ports: Box<[ServicePort]>,
    /// Seconds that a client stays with its endpoint after its last connection: 1 to 86,400.
    pub affinity_secs: Option<u32>,
    /// Policy of external addresses and node ports. `Local` applies to types NodePort and LoadBalancer, and to
    /// ClusterIP with external IPs (Kubernetes 1.29).
    pub external_policy: TrafficPolicy,
    /// Policy of cluster IPs.
    pub internal_policy: TrafficPolicy,
    /// Networks that may use the load balancer's addresses, by family; `None`: all clients.
    pub(crate) source_ranges: ByFamily<SourceRanges>,
    /// Port on which this node reports whether it has local endpoints: type LoadBalancer with external policy `Local`.
    pub health_check_node_port: Option<u16>,
    /// Load-balancing settings that differ from the configuration.
    pub balancing: Option<Arc<Balancing>>,
    /// Annotated with `service.kubernetes.io/topology-mode` or its predecessor; see
    /// [`Topology::AnnotatedHints`](crate::config::Topology).
    pub topology_annotation: bool,
}

/// Label of Services of another proxy; its value is ignored.
const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";

const DEFAULT_AFFINITY_SECS: u32 = 10_800;
const MAX_AFFINITY_SECS: u32 = 86_400;

impl Service {
    /// Checks a Service. `None` if there is nothing to program: it is headless, an ExternalName, another proxy's, or
    /// has no usable cluster IP.
    ///
    /// Ignores and reports impossible values; the rest counts.
    ///
    /// `abilities`: the policies that the mode supports; others are reported.
    pub(crate) fn check(object: &ServiceObject, abilities: Abilities, rejections: &mut Vec<Rejection>) -> Option<Self> {
        let key = ObjectKey::of(&object.metadata);
        let report = &mut Reporter { kind: ObjectKind::Service, key: &key, rejections };
        let spec = &object.spec;
        if object.metadata.labels.get(PROXY_NAME_LABEL).is_some() || is_headless(spec) {
            return None;
        }
        let service_type = check_type(spec, report)?;
        let cluster_ips = check_cluster_ips(spec, report);
        if cluster_ips.is_empty() {
            return None;
        }
        let external_ips = check_external_ips(&spec.external_ips, report);
        let publishes = service_type != ServiceType::ClusterIp || !external_ips.is_empty();
        let asked = check_policy(spec.external_traffic_policy.as_deref(), "spec.externalTrafficPolicy", report);
        let external_policy = if publishes { asked } else { TrafficPolicy::Cluster };
        let ports = check_ports(&spec.ports, report);
        let affinity_secs = check_affinity(spec, report);
        let balancing = Balancing::check(&object.metadata.annotations, affinity_secs.is_some(), abilities, report);
        let load_balancer_ips = check_ingress(object, report);
        let source_ranges = check_source_ranges(&spec.load_balancer_source_ranges, &load_balancer_ips, report);
        Some(Service {
            key: key.clone(),
            created: check_created(object, report),
            cluster_ips: cluster_ips.into(),
            external_ips: external_ips.into(),
            load_balancer_ips: load_balancer_ips.into(),
            ports: ports.into(),
            affinity_secs,
            balancing,
            external_policy,
            internal_policy: check_policy(
                spec.internal_traffic_policy.as_deref(),
                "spec.internalTrafficPolicy",
                report,
            ),
            source_ranges,
            health_check_node_port: check_health_port(spec, service_type, external_policy, report),
            topology_annotation: has_topology_annotation(object),
        })
    }

    /// The cluster IP of a family.
    pub fn cluster_ip(&self, family: Family) -> Option<IpAddr> {
        self.cluster_ips.iter().copied().find(|address| Family::of(*address) == family)
    }
}

fn is_headless(spec: &ServiceSpec) -> bool {
    let first = spec.cluster_ip.as_deref().or(spec.cluster_ips.first().map(String::as_str));
    matches!(first, None | Some("" | "None"))
}

fn check_type(spec: &ServiceSpec, report: &mut Reporter<'_>) -> Option<ServiceType> {
    match spec.service_type.as_deref() {
        None | Some("" | "ClusterIP") => Some(ServiceType::ClusterIp),
        Some("NodePort") => Some(ServiceType::NodePort),
        Some("LoadBalancer") => Some(ServiceType::LoadBalancer),
        Some("ExternalName") => None,
        Some(other) => {
            report.reject("spec.type", other, "not a type of Service; taken as ClusterIP");
            Some(ServiceType::ClusterIp)
        }
    }
}

/// Checks the cluster IPs. With `ipFamilies`, `clusterIPs[i]` is of family `ipFamilies[i]`. Without (objects older than
/// dual stack), `clusterIP` is used.
fn check_cluster_ips(spec: &ServiceSpec, report: &mut Reporter<'_>) -> Vec<IpAddr> {
    let legacy = spec.ip_families.is_empty() || spec.cluster_ips.is_empty();
    let listed = if legacy { spec.cluster_ip.as_slice() } else { &spec.cluster_ips };
    let mut cluster_ips: Vec<IpAddr> = Vec::new();
    for (index, text) in listed.iter().enumerate() {
        let field = || if legacy { "spec.clusterIP".to_owned() } else { format!("spec.clusterIPs[{index}]") };
        let Some(address) = parse_address(text).filter(|address| is_usable_by_service(*address)) else {
            report.reject(field(), text, "not an address a Service can have; left out");
            continue;
        };
        let family = Family::of(address);
        let named = family.name();
        if !legacy && spec.ip_families.get(index).is_none_or(|family| family != named) {
            report.reject(field(), text, "not of the family in spec.ipFamilies; left out");
        } else if cluster_ips.iter().any(|earlier| Family::of(*earlier) == family) {
            report.reject(field(), text, "a second address of its family; left out");
        } else {
            cluster_ips.push(address);
        }
    }
    cluster_ips
}

fn check_external_ips(texts: &[String], report: &mut Reporter<'_>) -> Vec<IpAddr> {
    let usable = |text: &str| parse_address(text).filter(|address| is_usable_by_service(*address));
    let reason = "not an address a Service can have; left out";
    let mut addresses = report.read_all("spec.externalIPs", texts, usable, reason);
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn check_ingress(object: &ServiceObject, report: &mut Reporter<'_>) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for (index, ingress) in object.status.load_balancer.ingress.iter().enumerate() {
        let field = |name: &str| format!("status.loadBalancer.ingress[{index}].{name}");
        let Some(text) = ingress.ip.as_deref().filter(|text| !text.is_empty()) else { continue };
        match ingress.ip_mode.as_deref() {
            None | Some("" | "VIP") => {}
            Some("Proxy") => continue,
            Some(other) => {
                report.reject(field("ipMode"), other, "neither VIP nor Proxy; the address is left out");
                continue;
            }
        }
        match parse_address(text).filter(|address| is_usable_by_service(*address)) {
            Some(address) => addresses.push(address),
            None => report.reject(field("ip"), text, "not an address a Service can have; left out"),
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// The networks that may use the load balancer's addresses, by family; `None` if all clients may.
///
/// All may if no range is of this family, or one has prefix length 0. If no range could be parsed at all, no client may:
/// an unreadable restriction must not open access. An address of a family without a range is reported, since all clients
/// may use it, as in kube-proxy.
fn check_source_ranges(texts: &[String], addresses: &[IpAddr], report: &mut Reporter<'_>) -> ByFamily<SourceRanges> {
    let reason = "not a network (ADDRESS/PREFIX); no client is let in by it";
    let mut ranges = report.read_all("spec.loadBalancerSourceRanges", texts, parse_network, reason);
    ranges.sort_unstable();
    ranges.dedup();
    let nobody = ranges.is_empty() && !texts.is_empty();
    let has = |family| ranges.iter().any(|range| Family::of(range.addr()) == family);
    for (family, reason) in [
        (Family::V4, "no network of IPv4, so everybody may use the IPv4 addresses; add those who may, or 0.0.0.0/0"),
        (Family::V6, "no network of IPv6, so everybody may use the IPv6 addresses; add those who may, or ::/0"),
    ] {
        if !ranges.is_empty() && !has(family) && addresses.iter().any(|address| Family::of(*address) == family) {
            report.reject("spec.loadBalancerSourceRanges", texts.join(","), reason);
        }
    }
    let of = |family| {
        let of: Arc<[Network]> = ranges.iter().filter(|range| Family::of(range.addr()) == family).copied().collect();
        let everybody = of.iter().any(|range| range.prefix_len() == 0) || of.is_empty() && !nobody;
        (!everybody).then_some(of)
    };
    ByFamily { v4: of(Family::V4), v6: of(Family::V6) }
}

fn check_ports(objects: &[ServicePortObject], report: &mut Reporter<'_>) -> Vec<ServicePort> {
    let mut ports: Vec<ServicePort> = Vec::with_capacity(objects.len());
    // Indexes by key and by number, since a Service may have tens of thousands of ports.
    let mut names: BTreeMap<(Protocol, &str), usize> = BTreeMap::new();
    let mut numbers: BTreeMap<(Protocol, u16), usize> = BTreeMap::new();
    for (index, object) in objects.iter().enumerate() {
        let field = |name: &str| format!("spec.ports[{index}].{name}");
        let Some(protocol) = Protocol::check(object.protocol.as_deref()) else {
            let text = object.protocol.as_deref().unwrap_or_default();
            report.reject(field("protocol"), text, "not TCP, UDP or SCTP; the port is left out");
            continue;
        };
        let Some(port) = check_port(object.port) else {
            report.reject(field("port"), object.port, "not a port (1 to 65535); the port is left out");
            continue;
        };
        let node_port = object.node_port.filter(|number| *number != 0);
        let checked = node_port.and_then(check_port);
        if let Some(number) = node_port.filter(|_| checked.is_none()) {
            report.reject(field("nodePort"), number, "not a port (1 to 65535); the node port is left out");
        }
        let name = object.name.as_deref().unwrap_or_default();
        let new = ServicePort { name: name.into(), protocol, port, node_port: checked };
        let named = names.get(&(protocol, name)).copied();
        let numbered = numbers.get(&(protocol, port)).copied();
        if numbered.is_some() && numbered != named {
            report.reject(field("port"), port, "the number of an earlier port of this protocol; the port is left out");
        } else if let Some(place) = named {
            // As in kube-proxy; the API server accepts no such Service.
            report.reject(field("name"), name, "the name of an earlier port, which this one replaces");
            if let Some(earlier) = ports.get_mut(place) {
                numbers.remove(&(protocol, earlier.port));
                *earlier = new;
            }
            numbers.insert((protocol, port), place);
        } else {
            names.insert((protocol, name), ports.len());
            numbers.insert((protocol, port), ports.len());
            ports.push(new);
        }
    }
    ports
}

fn check_affinity(spec: &ServiceSpec, report: &mut Reporter<'_>) -> Option<u32> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => None,
        Some("ClientIP") => {
            let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
            let asked = config.and_then(|client_ip| client_ip.timeout_seconds);
            let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            let secs = |secs: i64| secs.try_into().ok().filter(|secs| (1..=MAX_AFFINITY_SECS).contains(secs));
            report.read(field, asked, secs, "not 1 to 86400 seconds; taken as 10800").or(Some(DEFAULT_AFFINITY_SECS))
        }
        Some(other) => {
            report.reject("spec.sessionAffinity", other, "neither None nor ClientIP; taken as None");
            None
        }
    }
}

fn check_policy(text: Option<&str>, field: &str, report: &mut Reporter<'_>) -> TrafficPolicy {
    match text {
        None | Some("" | "Cluster") => TrafficPolicy::Cluster,
        Some("Local") => TrafficPolicy::Local,
        Some(other) => {
            report.reject(field, other, "neither Cluster nor Local; taken as Cluster");
            TrafficPolicy::Cluster
        }
    }
}

fn check_health_port(
    spec: &ServiceSpec,
    service_type: ServiceType,
    external_policy: TrafficPolicy,
    report: &mut Reporter<'_>,
) -> Option<u16> {
    if service_type != ServiceType::LoadBalancer || external_policy != TrafficPolicy::Local {
        return None;
    }
    let number = spec.health_check_node_port.unwrap_or(0);
    let port = check_port(number);
    if port.is_none() {
        let reason = "not a port (1 to 65535), though externalTrafficPolicy is Local; no health check is served";
        report.reject("spec.healthCheckNodePort", number, reason);
    }
    port
}

fn check_created(object: &ServiceObject, report: &mut Reporter<'_>) -> CreationTime {
    let Some(text) = object.metadata.creation_timestamp.as_deref() else { return CreationTime::UNKNOWN };
    CreationTime::parse(text).unwrap_or_else(|| {
        report.reject("metadata.creationTimestamp", text, "not a time (RFC 3339, UTC); taken as the newest");
        CreationTime::UNKNOWN
    })
}

/// The older annotation wins, even if it is empty. Any text except `disabled` turns hints on.
fn has_topology_annotation(object: &ServiceObject) -> bool {
    let annotations = &object.metadata.annotations;
    let hints = annotations.get("service.kubernetes.io/topology-aware-hints");
    let mode = hints.or_else(|| annotations.get("service.kubernetes.io/topology-mode"));
    mode.is_some_and(|mode| !matches!(mode, "" | "disabled" | "Disabled"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_an_order_and_hostile_texts_are_refused() {
        let at = |text| CreationTime::parse(text).unwrap();
        assert!(at("2023-12-31T23:59:59Z") < at("2024-01-01T00:00:00Z"));
        assert!(at("2024-01-01T00:00:00.5Z") < CreationTime::UNKNOWN);
        for text in ["", "Z", "2024-01-01", "2024-01-01T00:00:00", "2024-01-01T00:00:00+01:00", "٢024-01-01T00:00:00Z"]
        {
            assert_eq!(CreationTime::parse(text), None, "{text}");
        }
    }
}

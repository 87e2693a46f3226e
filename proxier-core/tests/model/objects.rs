//! Objects of a small cluster and their changes, each encoded in a few bytes, so that they shrink.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proxier_core::engine::Reconciler;
use proxier_core::objects::{
    ClientIpConfig, EndpointConditions, EndpointObject, EndpointPortObject, EndpointSliceObject, LoadBalancerIngress,
    Metadata, NodeAddress, NodeObject, ServiceObject, ServicePortObject, SessionAffinityConfig,
};
use proxier_core::snapshot::ObjectKey;

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Service([u8; 10]),
    DeleteService(u8),
    Slice([u8; 7]),
    DeleteSlice(u8),
}

pub(crate) fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        11 => any::<[u8; 10]>().prop_map(Change::Service),
        3 => any::<u8>().prop_map(Change::DeleteService),
        12 => any::<[u8; 7]>().prop_map(Change::Slice),
        2 => any::<u8>().prop_map(Change::DeleteSlice),
    ]
}

/// The objects that there are.
#[derive(Clone, Default)]
pub(crate) struct Objects {
    pub(crate) services: BTreeMap<ObjectKey, ServiceObject>,
    pub(crate) slices: BTreeMap<ObjectKey, EndpointSliceObject>,
}

impl Objects {
    /// Makes a change, and tells it to a process.
    pub(crate) fn take(&mut self, change: &Change, proxier: &mut Reconciler, now: Duration) {
        match change {
            Change::Service(bytes) => {
                let object = service(*bytes);
                proxier.upsert_service(&object, now);
                self.services.insert(ObjectKey::of(&object.metadata), object);
            }
            Change::DeleteService(which) => {
                let (namespace, name) = SERVICES[usize::from(*which) % SERVICES.len()];
                let key = ObjectKey::new(namespace, name);
                self.services.remove(&key);
                proxier.delete_service(&key, now);
            }
            Change::Slice(bytes) => {
                let object = slice(*bytes);
                proxier.upsert_slice(&object, now);
                self.slices.insert(ObjectKey::of(&object.metadata), object);
            }
            Change::DeleteSlice(which) => {
                let place = usize::from(*which) % self.slices.len().max(1);
                let Some(key) = self.slices.keys().nth(place).cloned() else { return };
                self.slices.remove(&key);
                proxier.delete_slice(&key, now);
            }
        }
    }
}

const SERVICES: [(&str, &str); 5] =
    [("default", "kubernetes"), ("kube-system", "kube-dns"), ("demo", "a"), ("demo", "b"), ("demo", "c")];
const SLICES: u8 = 6;

/// Name, protocol, port of the Service, port of the endpoints.
const PORTS: [(&str, &str, i64, i64); 4] =
    [("http", "TCP", 80, 8080), ("dns", "UDP", 53, 5353), ("sig", "SCTP", 9000, 9000), ("dns-tcp", "TCP", 53, 5353)];

/// External addresses: two that only Services have, one that an interface may have, one of IPv6.
const OUTSIDE: [&str; 4] = ["203.0.113.1", "203.0.113.2", "192.0.2.11", "2001:db8:e::1"];

/// Annotations of Services. No weight is 0: a real server with that drains, as far as the checks know.
const ANNOTATIONS: [(&str, &str); 5] = [
    ("proxier/forwarding", "ipip"),
    ("proxier/persistence-seconds", "60"),
    ("proxier/scheduler", "wlc"),
    ("proxier/zone-weights", "*=3"),
    ("proxier/max-connections", "9"),
];

fn chosen<T: Clone>(from: &[T], mask: u8) -> impl Iterator<Item = T> {
    from.iter().enumerate().filter(move |(place, _)| mask >> place & 1 == 1).map(|(_, value)| value.clone())
}

fn metadata(namespace: &str, name: &str) -> Metadata {
    Metadata { namespace: namespace.to_owned(), name: name.to_owned(), ..Metadata::default() }
}

/// A Service: which, type, families, cluster IP, ports, node port, external IPs, ingress, policies and affinity, ranges and annotations.
pub(crate) fn service(bytes: [u8; 10]) -> ServiceObject {
    let [which, kind, families, ip, ports, node_port, external, ingress, flags, ranges] = bytes;
    let (namespace, name) = SERVICES[usize::from(which) % SERVICES.len()];
    let mut object = ServiceObject { metadata: metadata(namespace, name), ..ServiceObject::default() };
    // Addresses are not unique: several Services may claim one, and the older gets it.
    object.metadata.annotations =
        chosen(&ANNOTATIONS, ranges >> 3).map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    object.metadata.creation_timestamp = (flags & 1 == 1).then(|| "2024-01-01T00:00:00Z".to_owned());
    let kind =
        ["ClusterIP", "NodePort", "LoadBalancer", "ClusterIP", "LoadBalancer", "ExternalName"][usize::from(kind % 6)];
    object.spec.service_type = Some(kind.to_owned());
    let (v4, v6) = (format!("10.96.0.{}", 1 + ip % 4), format!("fd96::{}", 1 + ip % 4));
    object.spec.cluster_ips = match families % 4 {
        0 | 3 => vec![v4],
        1 => vec![v6],
        _ => vec![v4, v6],
    };
    if ip % 16 == 15 {
        object.spec.cluster_ips = vec!["None".to_owned()];
    }
    object.spec.cluster_ip = object.spec.cluster_ips.first().cloned();
    let ports = if ports.trailing_zeros() >= 4 { 1 } else { ports };
    object.spec.ports = chosen(&PORTS, ports)
        .enumerate()
        .map(|(place, (name, protocol, port, _))| ServicePortObject {
            name: Some(name.to_owned()),
            protocol: Some(protocol.to_owned()),
            port,
            node_port: (kind == "NodePort" || kind == "LoadBalancer")
                .then(|| 30_000 + i64::from(node_port % 3) * 10 + i64::try_from(place).unwrap()),
        })
        .collect();
    object.spec.external_ips = chosen(&OUTSIDE, external & external >> 4).map(str::to_owned).collect();
    if kind == "LoadBalancer" {
        let ingress = chosen(&OUTSIDE, ingress);
        object.status.load_balancer.ingress =
            ingress.map(|ip| LoadBalancerIngress { ip: Some(ip.to_owned()), ip_mode: None }).collect();
        object.spec.load_balancer_source_ranges = match ranges % 6 {
            1 => vec!["198.51.100.0/24".to_owned()],
            2 => vec!["192.0.2.0/24".to_owned(), "2001:db8:f::/64".to_owned()],
            3 => vec!["192.0.2.0/24".to_owned(), "198.51.100.0/25".to_owned()],
            _ => Vec::new(),
        };
    }
    let policy = |local: bool| Some(if local { "Local" } else { "Cluster" }.to_owned());
    object.spec.external_traffic_policy = policy(flags & 2 == 2);
    object.spec.internal_traffic_policy = policy(flags & 0xc == 0xc);
    if kind == "LoadBalancer" && flags & 2 == 2 {
        object.spec.health_check_node_port = Some(31_000 + i64::from(node_port % 2));
    }
    if flags & 0x30 == 0x30 {
        object.spec.session_affinity = Some("ClientIP".to_owned());
        let client_ip = Some(ClientIpConfig { timeout_seconds: Some(if flags & 0x40 == 0 { 100 } else { 200 }) });
        object.spec.session_affinity_config = Some(SessionAffinityConfig { client_ip });
    }
    object
}

/// A slice: which, of which Service, family, then one byte for each endpoint.
pub(crate) fn slice(bytes: [u8; 7]) -> EndpointSliceObject {
    let [which, service, family, endpoints @ ..] = bytes;
    let (namespace, service) = SERVICES[usize::from(service) % SERVICES.len()];
    let mut object = EndpointSliceObject {
        metadata: metadata(namespace, &format!("slice-{}", which % SLICES)),
        ..EndpointSliceObject::default()
    };
    if which & 0x80 == 0x80 {
        object.metadata.annotations.insert("proxier/weights".to_owned(), "10.244.0.1=3, fd44::2=5".to_owned());
    }
    object.metadata.labels.insert("kubernetes.io/service-name".to_owned(), service.to_owned());
    let v6 = family & 1 == 1;
    if v6 { "IPv6" } else { "IPv4" }.clone_into(&mut object.address_type);
    object.ports = PORTS
        .iter()
        .map(|(name, protocol, _, port)| EndpointPortObject {
            name: Some((*name).to_owned()),
            protocol: Some((*protocol).to_owned()),
            port: Some(*port),
        })
        .collect();
    for (place, state) in endpoints.into_iter().enumerate() {
        let address = if v6 { format!("fd44::{}", place + 1) } else { format!("10.244.0.{}", place + 1) };
        let conditions = match state % 8 {
            0 | 1 => continue,
            2..=5 => EndpointConditions::default(),
            6 => EndpointConditions { ready: Some(false), serving: Some(true), terminating: Some(true) },
            _ => EndpointConditions { ready: Some(false), serving: Some(false), terminating: Some(false) },
        };
        let node = if state & 8 == 0 { "node-a" } else { "node-b" };
        object.endpoints.push(EndpointObject {
            addresses: vec![address],
            conditions,
            node_name: Some(node.to_owned()),
            zone: None,
            hints: None,
        });
    }
    object
}

/// The Node object, in one of a few forms.
pub(crate) fn node(which: u8) -> NodeObject {
    let mut object = NodeObject { metadata: metadata("", "node-a"), ..NodeObject::default() };
    let addresses: &[&str] = match which % 4 {
        0 => &[],
        1 => &["192.0.2.10"],
        2 => &["192.0.2.10", "2001:db8:f::10"],
        _ => &["198.51.100.7"],
    };
    let address = |text: &&str| NodeAddress { address_type: "InternalIP".to_owned(), address: (*text).to_owned() };
    object.status.addresses = addresses.iter().map(address).collect();
    object
}

/// The addresses of interface `eth0`, in one of a few forms.
pub(crate) fn host(which: u8) -> Vec<std::net::IpAddr> {
    let texts: &[&str] = match which % 5 {
        0 => &["192.0.2.10"],
        1 => &["192.0.2.10", "2001:db8:f::10"],
        2 => &["192.0.2.10", "192.0.2.11"],
        3 => &["192.0.2.10", "203.0.113.1", "2001:db8:e::1"],
        _ => &[],
    };
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

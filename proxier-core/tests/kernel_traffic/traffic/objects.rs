//! Services and their endpoints, dual-stack, with every transport and every kind of address.

use std::net::{IpAddr, SocketAddr};

use proxier_core::net::Family;
use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use serde_json::{Value, json};
use testkit::witness::Transport;

use super::net::{self, FAMILIES, Pair};

/// The names of the node and of its neighbour.
pub(crate) const HERE: &str = "node-1";
pub(crate) const THERE: &str = "node-2";

/// Kind of a Service's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vip {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

impl Vip {
    pub(crate) const ALL: [Vip; 4] = [Vip::ClusterIp, Vip::ExternalIp, Vip::LoadBalancer, Vip::NodePort];

    /// The address and port of the Service with this number.
    pub(crate) fn of(self, number: u16, family: Family) -> SocketAddr {
        let (v4, v6) = match self {
            Vip::ClusterIp => (format!("10.96.0.{number}"), format!("fd00:96::{number}")),
            Vip::ExternalIp => (format!("203.0.113.{number}"), format!("2001:db8:f::{number}")),
            Vip::LoadBalancer => (format!("203.0.113.{}", 100 + number), format!("2001:db8:f::{}", 100 + number)),
            Vip::NodePort => return (net::NODE.of(family), node_port(number)).into(),
        };
        let address: IpAddr = if family == Family::V4 { v4 } else { v6 }.parse().unwrap();
        (address, 80).into()
    }
}

pub(crate) fn node_port(number: u16) -> u16 {
    30_000 + number
}

fn port_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
        Transport::Sctp => "sctp",
    }
}

/// The Service with this number; `more` is added to its `spec`.
pub(crate) fn service(name: &str, number: u16, more: &Value) -> ServiceObject {
    let both = |vip: Vip| FAMILIES.map(|family| vip.of(number, family).ip().to_string());
    let ports = Transport::ALL.map(|transport| {
        let name = port_name(transport);
        json!({ "name": name, "protocol": name.to_uppercase(), "port": 80, "nodePort": node_port(number) })
    });
    let mut object = json!({
        "metadata": { "namespace": "demo", "name": name },
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": both(Vip::ClusterIp)[0],
            "clusterIPs": both(Vip::ClusterIp),
            "ipFamilies": ["IPv4", "IPv6"],
            "externalIPs": both(Vip::ExternalIp),
            "ports": ports,
        },
        "status": { "loadBalancer": { "ingress": both(Vip::LoadBalancer).map(|ip| json!({ "ip": ip })) } },
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

/// An endpoint: its addresses and the node it is on.
pub(crate) type Pod = (Pair, &'static str);

pub(crate) const A: Pod = (net::POD_A, HERE);
pub(crate) const B: Pod = (net::POD_B, HERE);
pub(crate) const R: Pod = (net::POD_R, THERE);

/// The slices of a Service, one for each family.
pub(crate) fn slices(service: &str, pods: &[Pod]) -> [EndpointSliceObject; 2] {
    FAMILIES.map(|family| {
        let endpoints: Vec<Value> = pods
            .iter()
            .map(|(pod, node)| json!({ "addresses": [pod.of(family).to_string()], "nodeName": node }))
            .collect();
        let ports = Transport::ALL.map(|transport| {
            let name = port_name(transport);
            json!({ "name": name, "protocol": name.to_uppercase(), "port": net::POD_PORT })
        });
        let address_type = if family == Family::V4 { "IPv4" } else { "IPv6" };
        slice(service, address_type, &json!(ports), &json!(endpoints))
    })
}

pub(crate) fn slice(service: &str, address_type: &str, ports: &Value, endpoints: &Value) -> EndpointSliceObject {
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "demo",
            "name": format!("{service}-{}", address_type.to_lowercase()),
            "labels": { "kubernetes.io/service-name": service },
        },
        "addressType": address_type,
        "ports": ports,
        "endpoints": endpoints,
    }))
    .unwrap()
}

pub(crate) fn node() -> NodeObject {
    serde_json::from_value(json!({
        "metadata": { "name": HERE },
        "spec": { "podCIDRs": ["10.244.1.0/24", "fd00:244:1::/48"] },
        "status": {
            "addresses": FAMILIES.map(|family| json!({ "type": "InternalIP", "address": net::NODE.of(family).to_string() })),
        },
    }))
    .unwrap()
}

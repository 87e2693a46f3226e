//! A cluster of any size, with the same objects for every bench.

use std::net::Ipv4Addr;

use proxier_core::objects::{
    EndpointObject, EndpointPortObject, EndpointSliceObject, Metadata, ServiceObject, ServicePortObject,
};

/// Endpoint addresses that one Service may use: its number times this is its first.
const STRIDE: u32 = 16;

/// The cluster IP of a Service: 10.96.0.1 and up.
pub(crate) fn cluster_ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a60_0001 + number)
}

/// The address of an endpoint: 10.128.0.1 and up.
pub(crate) fn endpoint_address(number: u32, endpoint: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a80_0001 + number * STRIDE + endpoint)
}

pub(crate) fn service_name(number: u32) -> String {
    format!("service-{number:05}")
}

/// A Service with a cluster IP and port 80.
pub(crate) fn service(number: u32) -> ServiceObject {
    let port = ServicePortObject { name: Some("http".into()), port: 80, ..ServicePortObject::default() };
    let mut object = ServiceObject { metadata: metadata(service_name(number)), ..ServiceObject::default() };
    object.spec.cluster_ip = Some(cluster_ip(number).to_string());
    object.spec.ports = vec![port];
    object
}

/// Its EndpointSlice: this many endpoints on port 8080, on other nodes.
pub(crate) fn slice(number: u32, endpoints: u32) -> EndpointSliceObject {
    of(number, "x7k2p", 0..endpoints)
}

/// Its EndpointSlice with these endpoints.
pub(crate) fn slice_of(number: u32, endpoints: &[u32]) -> EndpointSliceObject {
    of(number, "x7k2p", endpoints.iter().copied())
}

/// One of several EndpointSlices of a Service, with these endpoints.
pub(crate) fn part(number: u32, part: u32, endpoints: &[u32]) -> EndpointSliceObject {
    of(number, &format!("x{part:04}"), endpoints.iter().copied())
}

fn of(number: u32, suffix: &str, endpoints: impl Iterator<Item = u32>) -> EndpointSliceObject {
    let mut metadata = metadata(format!("{}-{suffix}", service_name(number)));
    metadata.labels.insert("kubernetes.io/service-name".into(), service_name(number));
    let port = EndpointPortObject { name: Some("http".into()), port: Some(8080), ..EndpointPortObject::default() };
    let endpoint = |endpoint| EndpointObject {
        addresses: vec![endpoint_address(number, endpoint).to_string()],
        node_name: Some(format!("node-{}", endpoint % 10 + 10)),
        ..EndpointObject::default()
    };
    EndpointSliceObject {
        metadata,
        address_type: "IPv4".into(),
        ports: vec![port],
        endpoints: endpoints.map(endpoint).collect(),
    }
}

fn metadata(name: String) -> Metadata {
    Metadata { namespace: "demo".into(), name, ..Metadata::default() }
}

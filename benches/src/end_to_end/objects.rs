//! The cluster's objects as an API server has them: including what controllers write and a proxy does not read.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::world::{cluster_ip, service_name};

/// Endpoint addresses that one Service may use.
const STRIDE: u32 = 64;
/// Number of the endpoint that replaces the last one at an odd change.
pub(super) const OTHER: u32 = STRIDE - 1;
/// The node that the proxy serves.
pub(super) const NODE: &str = "node-a";

/// The address of an endpoint: 10.128.0.0 and up.
pub(super) fn address(number: u32, endpoint: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0a80_0000 + number * STRIDE + endpoint)
}

fn uid(kind: u32, number: u32) -> String {
    format!("{kind:08x}-2491-4e16-9c70-{number:012x}")
}

fn managed(manager: &str, fields: &Value) -> Value {
    json!([{
        "manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-01-21T04:55:24Z",
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    }])
}

pub(super) fn node() -> Value {
    json!({
        "kind": "Node",
        "metadata": {"name": NODE, "uid": uid(3, 0), "labels": {"topology.kubernetes.io/zone": "zone-a"}},
        "spec": {"podCIDR": "10.127.0.0/24", "podCIDRs": ["10.127.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": NODE}]},
    })
}

/// A Service with a cluster IP and port 80.
pub(super) fn service(number: u32) -> Value {
    let fields = json!({
        "f:spec": {"f:internalTrafficPolicy": {}, "f:sessionAffinity": {}, "f:type": {}, "f:selector": {}, "f:ports": {
            ".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": {
                ".": {}, "f:name": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {},
            },
        }},
    });
    json!({
        "kind": "Service",
        "metadata": {
            "name": service_name(number), "namespace": "demo", "uid": uid(1, number),
            "creationTimestamp": "2026-01-21T04:55:24Z", "managedFields": managed("kubectl-create", &fields),
        },
        "spec": {
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
            "selector": {"app": service_name(number)},
            "clusterIP": cluster_ip(number), "clusterIPs": [cluster_ip(number)], "type": "ClusterIP",
            "sessionAffinity": "None", "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
        },
        "status": {"loadBalancer": {}},
    })
}

/// Sets an annotation.
pub(super) fn with_annotation(number: u32, name: &str, value: &str) -> Value {
    let mut service = service(number);
    service["metadata"]["annotations"] = json!({ name: value });
    service
}

/// Its EndpointSlice: this many endpoints on other nodes, port 8080. If `changed`, the last endpoint is another one.
pub(super) fn slice(number: u32, endpoints: u32, changed: bool) -> Value {
    let place = |place| (number, if changed && place + 1 == endpoints { OTHER } else { place });
    endpoint_slice(number, "x7k2p", (0..endpoints).map(place))
}

/// Endpoints of the Service that is rolled, in slices of 100, as the cluster's controller creates them.
pub(super) const BIG: u32 = 1_000;
/// Endpoints of a slice.
pub(super) const FULL: u32 = 100;
/// Endpoints that one step of a rolling update replaces.
pub(super) const STEP: u32 = 10;

/// Service number and index of an endpoint of the big Service.
fn big_place(place: u32, is_other: bool) -> (u32, u32) {
    (120_000 + place / 32, place % 32 + if is_other { 32 } else { 0 })
}

/// The address of an endpoint of the big Service, in one of two generations.
pub(super) fn big_address(place: u32, is_other: bool) -> Ipv4Addr {
    let (number, place) = big_place(place, is_other);
    address(number, place)
}

/// A slice of the big Service with this number, of which this many endpoints are of the other generation.
pub(super) fn big_slice(number: u32, part: u32, moved: u32, is_other: bool) -> Value {
    let places = (part * FULL..(part + 1) * FULL).map(|place| big_place(place, (place < moved) != is_other));
    endpoint_slice(number, &format!("big{part:02}"), places)
}

/// A slice of a Service, with endpoints by Service number and index.
fn endpoint_slice(number: u32, suffix: &str, places: impl Iterator<Item = (u32, u32)>) -> Value {
    let name = service_name(number);
    let endpoint = |(of, place): (u32, u32)| {
        json!({
            "addresses": [address(of, place)],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "targetRef": {
                "kind": "Pod", "namespace": "demo", "name": format!("{name}-6d4cf56db6-{place:05}"),
                "uid": uid(2, of * STRIDE + place),
            },
            "nodeName": format!("node-{}", place % 10 + 10),
            "zone": "zone-a",
        })
    };
    let fields = json!({
        "f:addressType": {}, "f:endpoints": {}, "f:ports": {}, "f:metadata": {
            "f:annotations": {".": {}, "f:endpoints.kubernetes.io/last-change-trigger-time": {}},
            "f:generateName": {}, "f:ownerReferences": {".": {}, "k:{\"uid\":\"\"}": {}},
            "f:labels": {
                ".": {}, "f:endpointslice.kubernetes.io/managed-by": {}, "f:kubernetes.io/service-name": {},
            },
        },
    });
    json!({
        "kind": "EndpointSlice",
        "metadata": {
            "name": format!("{name}-{suffix}"), "generateName": format!("{name}-"), "namespace": "demo",
            "uid": uid(4, number), "generation": 2, "creationTimestamp": "2026-01-21T04:55:24Z",
            "labels": {
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                "kubernetes.io/service-name": name,
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-21T04:55:24Z"},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": name, "uid": uid(1, number),
                "controller": true, "blockOwnerDeletion": true,
            }],
            "managedFields": managed("kube-controller-manager", &fields),
        },
        "addressType": "IPv4",
        "endpoints": places.map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    })
}

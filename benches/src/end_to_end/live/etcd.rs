//! Objects written into the API server's etcd, past the server: kube-apiserver 1.36 lists all cluster IPs for each that it allocates
//! (`ipallocator`, `Used`), so 50,000 Services would take it hours. The server reads them like any other, and its repair loop finds nothing to do.

use std::net::Ipv4Addr;

use data_encoding::BASE64;
use kube::{Client, Config};
use serde_json::{Value, json};

use super::super::objects;
use super::cluster::{asked, request, slice};
use crate::Failure;
use crate::world;

/// Services of a transaction: three objects each, of the 128 operations that etcd takes by default (`--max-txn-ops`).
const AT_ONCE: u32 = 42;
/// Addresses of the service network that are left to the server: its own Service has the first one.
const LEFT_OUT: u32 = 256;

/// etcd's JSON gateway.
pub(super) struct Etcd(Client);

/// Keys and values of a Service's objects, as the server stores them below `/registry`.
fn stored(number: u32, endpoints: u32, namespace: &str) -> Result<[(String, Value); 3], Failure> {
    let address = cluster_ip(number)?;
    let service = objects::service(number);
    let name = service.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let created = |mut object: Value, version: &str, from: &Value| {
        object["apiVersion"] = version.into();
        for field in ["uid", "creationTimestamp"] {
            object["metadata"][field] = from["metadata"][field].clone();
        }
        object
    };
    let mut given = created(asked(service.clone(), namespace), "v1", &service);
    given["spec"]["clusterIP"] = address.to_string().into();
    given["spec"]["clusterIPs"] = json!([address]);
    let full = objects::slice(number, endpoints, false);
    let slice = created(slice(number, endpoints, false, namespace), "discovery.k8s.io/v1", &full);
    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    let parent = json!({"resource": "services", "namespace": namespace, "name": name});
    let ip =
        json!({"kind": "IPAddress", "metadata": {"name": address, "labels": labels}, "spec": {"parentRef": parent}});
    let slice_name = slice["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    Ok([
        (format!("services/specs/{namespace}/{name}"), given),
        (format!("endpointslices/{namespace}/{slice_name}"), slice),
        (format!("ipaddresses/{address}"), created(ip, "networking.k8s.io/v1", &service)),
    ])
}

/// Cluster IP of a Service.
fn cluster_ip(number: u32) -> Result<Ipv4Addr, Failure> {
    Ok(world::cluster_ip(number + LEFT_OUT).parse()?)
}

fn key(path: &str) -> String {
    BASE64.encode(format!("/registry/{path}").as_bytes())
}

impl Etcd {
    /// Of the runtime that is entered.
    pub(super) fn new(url: &str) -> Result<Self, Failure> {
        Ok(Etcd(Client::try_from(Config::new(url.parse()?))?))
    }

    async fn transaction(&self, operations: Vec<Value>) -> Result<(), String> {
        let body = json!({ "success": operations });
        request(self.0.clone(), "POST", "/v3/kv/txn".to_owned(), Some(body)).await.map(drop)
    }

    /// Writes so many Services with their EndpointSlices and addresses; gives the cluster IPs.
    pub(super) async fn fill(&self, services: u32, endpoints: u32, namespace: &str) -> Result<Vec<Ipv4Addr>, Failure> {
        for first in (0..services).step_by(AT_ONCE as usize) {
            let mut operations = Vec::new();
            for number in first..services.min(first + AT_ONCE) {
                for (path, object) in stored(number, endpoints, namespace)? {
                    let value = BASE64.encode(object.to_string().as_bytes());
                    operations.push(json!({"requestPut": {"key": key(&path), "value": value}}));
                }
            }
            self.transaction(operations).await?;
        }
        (0..services).map(cluster_ip).collect()
    }

    /// Deletes all that [`fill`](Self::fill) has written.
    pub(super) async fn clear(&self, services: &[Ipv4Addr], namespace: &str) -> Result<(), Failure> {
        for addresses in services.chunks(AT_ONCE as usize) {
            let one =
                |address: &Ipv4Addr| json!({"requestDeleteRange": {"key": key(&format!("ipaddresses/{address}"))}});
            self.transaction(addresses.iter().map(one).collect()).await?;
        }
        let below = |kind: &str| {
            // `0` follows `/`.
            let (first, end) = (key(&format!("{kind}/{namespace}/")), key(&format!("{kind}/{namespace}0")));
            json!({"requestDeleteRange": {"key": first, "range_end": end}})
        };
        self.transaction(["services/specs", "endpointslices"].map(below).to_vec()).await.map_err(Into::into)
    }
}

//! Writes objects directly into the API server's etcd. kube-apiserver 1.36 lists all cluster IPs for each one that it
//! allocates (`ipallocator`, `Used`), so 50,000 Services would take hours. The server reads these objects like any
//! other, and its repair loop finds almost nothing to do.

use std::net::Ipv4Addr;
use std::time::Duration;

use data_encoding::BASE64;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::super::objects;
use super::cluster::{asked, name_of, request};
use crate::Failure;
use crate::world;

/// Transactions at a time.
const AT_A_TIME: usize = 16;
/// Addresses of the service network that are left to the server, whose own Service has the first one.
const LEFT_OUT: u32 = 256;

/// Time for the server to learn of the allocations. It creates those that a Service lacks (`repairip.go`,
/// `syncService`), ten per second, and writes an Event for each.
const PAUSE: Duration = Duration::from_secs(5);
/// After this time etcd deletes the objects, if nothing else does.
const PATIENCE: Duration = Duration::from_secs(6 * 3_600);

/// The server's etcd, through its JSON gateway. Allocations are added first and deleted last.
pub(super) struct Etcd {
    pub(super) allocations: Lease,
    pub(super) objects: Lease,
}

/// Keys that go together.
pub(super) struct Lease {
    client: Client,
    id: String,
}

/// Key below `/registry`, and object.
type Stored = (String, Value);

/// A simulated object as the server stores it.
fn created(object: Value, namespace: &str) -> Value {
    let metadata = object["metadata"].clone();
    let mut object = asked(object, namespace);
    for field in ["uid", "creationTimestamp"] {
        object["metadata"][field] = metadata[field].clone();
    }
    object
}

/// The allocation of a Service's cluster IP.
fn allocation(number: u32, namespace: &str) -> Stored {
    let (address, service) = (cluster_ip(number), objects::service(number));
    let labels = json!({"ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
    let object = json!({
        "kind": "IPAddress", "apiVersion": "networking.k8s.io/v1",
        "metadata": {
            "name": address, "labels": labels, "uid": service["metadata"]["uid"],
            // For a minute the server keeps an allocation whose Service it has not seen (`syncIPAddress`).
            "creationTimestamp": Time(Timestamp::now()),
        },
        "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": name_of(&service)}},
    });
    (format!("ipaddresses/{address}"), object)
}

fn service(number: u32, namespace: &str) -> Stored {
    let address = cluster_ip(number);
    let mut object = created(objects::service(number), namespace);
    object["spec"]["clusterIP"] = json!(address);
    object["spec"]["clusterIPs"] = json!([address]);
    (format!("services/specs/{namespace}/{}", name_of(&object)), object)
}

fn slice(number: u32, endpoints: u32, namespace: &str) -> Stored {
    let object = created(objects::slice(number, endpoints, false), namespace);
    (format!("endpointslices/{namespace}/{}", name_of(&object)), object)
}

fn cluster_ip(number: u32) -> Ipv4Addr {
    world::cluster_ip(number + LEFT_OUT)
}

fn encoded(text: &str) -> String {
    BASE64.encode(text.as_bytes())
}

impl Etcd {
    /// Asks etcd for leases.
    pub(super) async fn new(url: &str) -> Result<Self, Failure> {
        let client = Client::try_from(Config::new(url.parse()?))?;
        let (allocations, objects) = (Lease::grant(&client).await?, Lease::grant(&client).await?);
        Ok(Etcd { allocations, objects })
    }

    /// Writes this many Services with their EndpointSlices and allocations; returns the cluster IPs. Fails if one
    /// exists already.
    pub(super) async fn fill(&self, services: u32, endpoints: u32, namespace: &str) -> Result<Vec<Ipv4Addr>, Failure> {
        self.allocations.put((0..services).map(|number| vec![allocation(number, namespace)])).await?;
        std::thread::sleep(PAUSE);
        let objects = |number| vec![service(number, namespace), slice(number, endpoints, namespace)];
        self.objects.put((0..services).map(objects)).await?;
        Ok((0..services).map(cluster_ip).collect())
    }
}

impl Lease {
    async fn grant(client: &Client) -> Result<Self, Failure> {
        let asked = json!({ "TTL": PATIENCE.as_secs() });
        let granted = request(client.clone(), "POST", "/v3/lease/grant".to_owned(), Some(asked)).await?;
        let granted: Value = serde_json::from_str(&granted)?;
        let id = granted["ID"].as_str().ok_or_else(|| format!("etcd grants no lease: {granted}"))?.to_owned();
        Ok(Lease { client: client.clone(), id })
    }

    /// Writes objects that do not exist yet. A transaction has at most one of each resource: the server watches by
    /// revision, and a watch restarted after one object would skip others with the same revision.
    async fn put(&self, transactions: impl Iterator<Item = Vec<Stored>>) -> Result<(), Failure> {
        let mut tasks = JoinSet::new();
        for objects in transactions {
            if tasks.len() >= AT_A_TIME {
                tasks.join_next().await.transpose()?.transpose()?;
            }
            tasks.spawn(write(self.client.clone(), self.id.clone(), objects));
        }
        tasks.join_all().await.into_iter().collect::<Result<(), String>>().map_err(Failure::from)
    }

    /// Deletes what was written and not changed since.
    pub(super) async fn revoke(&self) -> Result<(), String> {
        let lease = json!({ "ID": self.id });
        request(self.client.clone(), "POST", "/v3/lease/revoke".to_owned(), Some(lease)).await.map(drop)
    }
}

/// Writes these objects, if none of them exists.
async fn write(client: Client, lease: String, objects: Vec<Stored>) -> Result<(), String> {
    let (mut absent, mut puts) = (Vec::new(), Vec::new());
    for (path, object) in &objects {
        let (key, value) = (encoded(&format!("/registry/{path}")), encoded(&object.to_string()));
        absent.push(json!({"key": key, "target": "CREATE", "createRevision": 0}));
        puts.push(json!({"requestPut": {"key": key, "value": value, "lease": lease}}));
    }
    let answer =
        request(client, "POST", "/v3/kv/txn".to_owned(), Some(json!({"compare": absent, "success": puts}))).await?;
    let answer: Value = serde_json::from_str(&answer).map_err(|error| error.to_string())?;
    if answer["succeeded"] == true {
        return Ok(());
    }
    let paths: Vec<&String> = objects.iter().map(|(path, _)| path).collect();
    Err(format!("etcd has one of these already, and keeps it: {paths:?}"))
}

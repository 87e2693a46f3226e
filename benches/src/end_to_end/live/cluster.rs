//! A real cluster: what the bench makes in it, changes, and takes away again.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::{AbortHandle, JoinSet};

use super::super::objects::{self, OTHER, address};
use crate::Failure;

/// Requests that make objects at a time.
const AT_A_TIME: u32 = 16;
/// Resources whose requests are counted.
const RESOURCES: [&str; 5] = ["services", "endpointslices", "nodes", "servicecidrs", "events"];

/// Whether somebody has asked this program to end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Fails when this program is to end.
pub(super) fn not_interrupted() -> Result<(), Failure> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
}

/// Requests by verb and resource.
pub(super) type Counts = BTreeMap<(String, String), f64>;

/// A cluster with Services of the bench's. They go when it is dropped.
pub(super) struct Cluster {
    runtime: Runtime,
    client: Client,
    kubeconfig: Kubeconfig,
    /// Host and port of the API server.
    server: (String, u16),
    namespace: String,
    /// Name of the node that the proxies serve.
    pub(super) node: String,
    /// Whether the bench has made it.
    made_node: bool,
    endpoints: u32,
    /// Cluster IPs of the Services, and whether the last endpoint of each is another one.
    pub(super) services: Vec<(Ipv4Addr, bool)>,
}

/// A request; fails with what the server says.
async fn request(client: Client, method: &'static str, path: String, body: Option<Value>) -> Result<String, String> {
    let what = format!("{method} {path}");
    let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body);
    let request = request.map_err(|error| format!("{what}: {error}"))?;
    client.request_text(request).await.map_err(|error| {
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        causes.fold(what, |text, error| format!("{text}: {error}"))
    })
}

/// The fields that a client may set of an object of the stand-in, in this namespace.
fn asked(mut object: Value, namespace: &str) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|name, _| ["name", "labels", "annotations"].contains(&name.as_str()));
        metadata.insert("namespace".to_owned(), namespace.into());
        if let Some(by) =
            metadata.get_mut("labels").and_then(|labels| labels.get_mut("endpointslice.kubernetes.io/managed-by"))
        {
            // Else the cluster's controller would take it for its own.
            *by = "proxier-bench".into();
        }
    }
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|name, _| !["clusterIP", "clusterIPs", "selector"].contains(&name.as_str()));
    }
    object
}

fn cluster_ip(service: &str) -> Result<Ipv4Addr, Failure> {
    let service: Value = serde_json::from_str(service)?;
    Ok(service.pointer("/spec/clusterIP").and_then(Value::as_str).unwrap_or_default().parse()?)
}

/// Makes a Service and its EndpointSlice; gives the Service.
async fn make(client: Client, namespace: String, number: u32, endpoints: u32) -> Result<String, String> {
    let path = format!("/api/v1/namespaces/{namespace}/services");
    let service = request(client.clone(), "POST", path, Some(asked(objects::service(number), &namespace))).await?;
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    request(client, "POST", path, Some(slice(number, endpoints, false, &namespace))).await?;
    Ok(service)
}

/// The EndpointSlice of a Service, as [`objects::slice`] has it.
fn slice(number: u32, endpoints: u32, changed: bool, namespace: &str) -> Value {
    let mut slice = asked(objects::slice(number, endpoints, changed), namespace);
    if let Some(fields) = slice.as_object_mut() {
        fields.insert("apiVersion".to_owned(), "discovery.k8s.io/v1".into());
    }
    slice
}

impl Cluster {
    /// Makes the namespace, a node if there is none, and the Services.
    pub(super) fn fill(kubeconfig: &Path, services: u32, endpoints: u32) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
        let options = KubeConfigOptions::default();
        let config = runtime.block_on(Config::from_custom_kubeconfig(kubeconfig.clone(), &options))?;
        let url = &config.cluster_url;
        let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("http") { 80 } else { 443 });
        let server = (url.host().unwrap_or_default().trim_matches(['[', ']']).to_owned(), port);
        let client = {
            let _in_runtime = runtime.enter();
            Client::try_from(config)?
        };
        runtime.spawn(async {
            let terminate = tokio::signal::unix::SignalKind::terminate();
            if let Ok(mut terminate) = tokio::signal::unix::signal(terminate) {
                tokio::select! { _ = tokio::signal::ctrl_c() => {}, _ = terminate.recv() => {} }
                INTERRUPTED.store(true, Ordering::Relaxed);
            }
        });
        let namespace = format!("proxier-bench-{}", std::process::id());
        let object = json!({"metadata": {"name": namespace}});
        let made = runtime.spawn(request(client.clone(), "POST", "/api/v1/namespaces".to_owned(), Some(object)));
        runtime.block_on(made)??;
        let mut cluster = Cluster {
            runtime,
            client,
            kubeconfig,
            server,
            node: namespace.clone(),
            namespace,
            made_node: false,
            endpoints,
            services: Vec::new(),
        };
        cluster.choose_node()?;
        cluster.make_services(services)?;
        Ok(cluster)
    }

    /// A request from this machine's own network, whatever namespace the calling thread is in.
    fn call(&self, method: &'static str, path: String, body: Option<Value>) -> Result<String, Failure> {
        let answer = self.runtime.spawn(request(self.client.clone(), method, path, body));
        Ok(self.runtime.block_on(answer)??)
    }

    /// Takes any node of the cluster, or makes one.
    fn choose_node(&mut self) -> Result<(), Failure> {
        let nodes: Value = serde_json::from_str(&self.call("GET", "/api/v1/nodes?limit=1".to_owned(), None)?)?;
        if let Some(name) = nodes.pointer("/items/0/metadata/name").and_then(Value::as_str) {
            name.clone_into(&mut self.node);
            return Ok(());
        }
        let mut node = objects::node();
        if let Some(fields) = node.as_object_mut() {
            fields.insert("metadata".to_owned(), json!({"name": self.node}));
        }
        self.call("POST", "/api/v1/nodes".to_owned(), Some(node.clone()))?;
        self.made_node = true;
        self.call("PUT", format!("/api/v1/nodes/{}/status", self.node), Some(node)).map(drop)
    }

    fn make_services(&mut self, services: u32) -> Result<(), Failure> {
        let mut tasks = JoinSet::new();
        for first in 0..AT_A_TIME {
            let (client, namespace, endpoints) = (self.client.clone(), self.namespace.clone(), self.endpoints);
            let task = async move {
                let mut made = Vec::new();
                for number in (first..services).step_by(AT_A_TIME as usize) {
                    not_interrupted().map_err(|error| error.to_string())?;
                    made.push((number, make(client.clone(), namespace.clone(), number, endpoints).await?));
                }
                Ok::<_, String>(made)
            };
            tasks.spawn_on(task, self.runtime.handle());
        }
        let mut made = BTreeMap::new();
        for answer in self.runtime.block_on(tasks.join_all()) {
            made.extend(answer?);
        }
        for service in made.values() {
            self.services.push((cluster_ip(service)?, false));
        }
        Ok(())
    }

    /// All endpoints' addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        let last = self.endpoints - 1;
        (0..).zip(&self.services).flat_map(move |(number, (_, changed))| {
            (0..=last)
                .map(move |place| if *changed && place == last { OTHER } else { place })
                .map(move |place| address(number, place).into())
        })
    }

    /// Replaces the last endpoint of a Service, or puts it back; gives the address that comes.
    pub(super) fn change(&mut self, number: u32) -> Result<Ipv4Addr, Failure> {
        let (_, changed) = self.services.get_mut(number as usize).ok_or("no such Service")?;
        *changed = !*changed;
        let changed = *changed;
        let slice = slice(number, self.endpoints, changed, &self.namespace);
        let name = slice.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/{name}", self.namespace);
        self.call("PUT", path, Some(slice))?;
        Ok(address(number, if changed { OTHER } else { self.endpoints - 1 }).into())
    }

    /// Makes one Service more; gives its cluster IP, and the address of its last endpoint.
    pub(super) fn add(&self, number: u32) -> Result<(Ipv4Addr, Ipv4Addr), Failure> {
        let made = self.runtime.spawn(make(self.client.clone(), self.namespace.clone(), number, self.endpoints));
        Ok((cluster_ip(&self.runtime.block_on(made)??)?, address(number, self.endpoints - 1).into()))
    }

    /// Takes it away.
    pub(super) fn delete(&self, number: u32) -> Result<(), Failure> {
        for (group, kind, object) in [
            ("/apis/discovery.k8s.io/v1", "endpointslices", objects::slice(number, self.endpoints, false)),
            ("/api/v1", "services", objects::service(number)),
        ] {
            let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            self.call("DELETE", format!("{group}/namespaces/{}/{kind}/{name}", self.namespace), None)?;
        }
        Ok(())
    }

    /// The API server's version.
    pub(super) fn version(&self) -> Result<String, Failure> {
        let version: Value = serde_json::from_str(&self.call("GET", "/version".to_owned(), None)?)?;
        Ok(version.pointer("/gitVersion").and_then(Value::as_str).unwrap_or("of unknown version").to_owned())
    }

    /// Reading requests that the API server has counted: watches once they have ended.
    pub(super) fn counts(&self) -> Result<Counts, Failure> {
        let mut counts = Counts::new();
        for line in self.call("GET", "/metrics".to_owned(), None)?.lines() {
            let Some((labels, value)) =
                line.strip_prefix("apiserver_request_total{").and_then(|rest| rest.rsplit_once("} "))
            else {
                continue;
            };
            let label = |name: &str| {
                labels
                    .split(',')
                    .find_map(|label| label.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
                    .unwrap_or_default()
            };
            let (verb, resource) = (label("verb"), label("resource"));
            if RESOURCES.contains(&resource) && (["GET", "LIST", "WATCH"].contains(&verb) || resource == "events") {
                *counts.entry((verb.to_owned(), resource.to_owned())).or_default() += value.trim().parse::<f64>()?;
            }
        }
        Ok(counts)
    }

    /// Passes connections to this listener, which may be in another network namespace, on to the API server; gives a kubeconfig for them.
    pub(super) fn relay(&self, listener: TcpListener) -> Result<(Relay, String), Failure> {
        let local = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let server = self.server.clone();
        let listener = {
            let _in_runtime = self.runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let task = self.runtime.spawn(async move {
            while let Ok((mut here, _)) = listener.accept().await {
                let server = server.clone();
                tokio::spawn(async move {
                    let mut there = TcpStream::connect((server.0.as_str(), server.1)).await?;
                    here.set_nodelay(true)?;
                    there.set_nodelay(true)?;
                    tokio::io::copy_bidirectional_with_sizes(&mut here, &mut there, 1 << 16, 1 << 16).await
                });
            }
        });
        let mut kubeconfig = self.kubeconfig.clone();
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            let scheme =
                if cluster.server.as_deref().is_some_and(|url| url.starts_with("http:")) { "http" } else { "https" };
            cluster.server = Some(format!("{scheme}://{local}"));
            cluster.tls_server_name.get_or_insert_with(|| self.server.0.clone());
        }
        Ok((Relay(task.abort_handle()), serde_json::to_string(&kubeconfig)?))
    }

    /// Takes away what the bench has made.
    fn clear(&self) -> Result<(), Failure> {
        for list in [
            format!("/api/v1/namespaces/{}/services", self.namespace),
            format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", self.namespace),
        ] {
            // A server ends a request after a minute, however much there is left.
            loop {
                let answer = self.call("DELETE", list.clone(), None);
                let left: Value = serde_json::from_str(&self.call("GET", format!("{list}?limit=1"), None)?)?;
                if left.pointer("/items/0").is_none() {
                    break;
                }
                if let Err(error) = answer {
                    eprintln!("{error}; once more");
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        }
        self.call("DELETE", format!("/api/v1/namespaces/{}", self.namespace), None)?;
        if self.made_node {
            self.call("DELETE", format!("/api/v1/nodes/{}", self.node), None)?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("the namespace {} and what is in it could not be deleted: {error}", self.namespace);
        }
    }
}

/// A relay that runs. It takes no more connections when it is dropped.
pub(super) struct Relay(AbortHandle);

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.abort();
    }
}

//! A real cluster: what the bench creates in it, changes, and deletes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::super::objects::{self, BIG, FULL, OTHER, STEP, address, big_address, big_slice};
use super::super::relay::Relay;
use super::Live;
use super::etcd::Etcd;
use crate::Failure;

/// Concurrent requests that create objects.
const AT_A_TIME: u32 = 16;
/// Number of the Service that is rolled; those of its endpoints follow.
const ROLLED: u32 = 119_999;
/// Between two steps of a rolling update.
const PACE: Duration = Duration::from_millis(50);

/// Whether this program was asked to end.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Fails if this program should end.
pub(super) fn not_interrupted() -> Result<(), Failure> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
}

/// A cluster with the bench's Services, which are deleted when it is dropped.
pub(super) struct Cluster {
    runtime: Runtime,
    client: Client,
    /// The server's store, if the Services are written there.
    etcd: Option<Etcd>,
    kubeconfig: Kubeconfig,
    /// Host and port of the API server.
    server: (String, u16),
    namespace: String,
    /// Name of the node that the proxies serve.
    pub(super) node: String,
    /// Whether the bench created it.
    made_node: bool,
    endpoints: u32,
    /// Cluster IPs of the Services, and whether the last endpoint of each was replaced.
    pub(super) services: Vec<(Ipv4Addr, bool)>,
    /// Whether the Service that is rolled has its other endpoints.
    rolled: bool,
}

/// Sends a request. Fails with the server's message.
pub(super) async fn request(
    client: Client,
    method: &'static str,
    path: String,
    body: Option<Value>,
) -> Result<String, String> {
    let what = format!("{method} {path}");
    let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body);
    let request = request.map_err(|error| format!("{what}: {error}"))?;
    client.request_text(request).await.map_err(|error| {
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        causes.fold(what, |text, error| format!("{text}: {error}"))
    })
}

/// The fields of a simulated object that a client may set, in this namespace.
pub(super) fn asked(mut object: Value, namespace: &str) -> Value {
    let is_slice = object["kind"] == "EndpointSlice";
    object["apiVersion"] = if is_slice { "discovery.k8s.io/v1" } else { "v1" }.into();
    object["metadata"]["namespace"] = namespace.into();
    if is_slice {
        // Otherwise the cluster's controller would treat it as its own.
        object["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = "proxier-bench".into();
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|name, _| ["name", "namespace", "labels", "annotations"].contains(&name.as_str()));
    }
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.retain(|name, _| !["clusterIP", "clusterIPs", "selector"].contains(&name.as_str()));
    }
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    object
}

pub(super) fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn cluster_ip(service: &str) -> Result<Ipv4Addr, Failure> {
    let service: Value = serde_json::from_str(service)?;
    Ok(service["spec"]["clusterIP"].as_str().unwrap_or_default().parse()?)
}

/// Creates a Service and its EndpointSlice; returns the Service.
async fn make(client: Client, namespace: String, number: u32, endpoints: u32) -> Result<String, String> {
    let path = format!("/api/v1/namespaces/{namespace}/services");
    let service = request(client.clone(), "POST", path, Some(asked(objects::service(number), &namespace))).await?;
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    request(client, "POST", path, Some(asked(objects::slice(number, endpoints, false), &namespace))).await?;
    Ok(service)
}

impl Cluster {
    /// Creates the namespace, a node if there is none, and the Services.
    pub(super) fn fill(live: &Live, kubeconfig: &Path) -> Result<Self, Failure> {
        let Live { services, endpoints, .. } = *live;
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
        let etcd = live.etcd.as_deref().map(|url| runtime.block_on(Etcd::new(url))).transpose()?;
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
            etcd,
            kubeconfig,
            server,
            node: namespace.clone(),
            namespace,
            made_node: false,
            endpoints,
            services: Vec::new(),
            rolled: false,
        };
        cluster.choose_node()?;
        let namespace = cluster.namespace.clone();
        let addresses = if let Some(etcd) = &cluster.etcd {
            cluster.runtime.block_on(etcd.fill(services, endpoints, &namespace))?
        } else {
            let made =
                cluster.each(services, move |client, number| make(client, namespace.clone(), number, endpoints))?;
            made.iter().map(|service| cluster_ip(service)).collect::<Result<_, _>>()?
        };
        cluster.services = addresses.into_iter().map(|address| (address, false)).collect();
        let rolled = asked(objects::service(ROLLED), &cluster.namespace);
        cluster.call("POST", cluster.services_path(), Some(rolled))?;
        for part in 0..BIG / FULL {
            cluster.call("POST", cluster.slices(), Some(cluster.part(part, 0)))?;
        }
        Ok(cluster)
    }

    /// A request from this machine's own network, regardless of the calling thread's namespace.
    fn call(&self, method: &'static str, path: String, body: Option<Value>) -> Result<String, Failure> {
        let answer = self.runtime.spawn(request(self.client.clone(), method, path, body));
        Ok(self.runtime.block_on(answer)??)
    }

    /// Uses any node of the cluster, or creates one.
    fn choose_node(&mut self) -> Result<(), Failure> {
        let nodes: Value = serde_json::from_str(&self.call("GET", "/api/v1/nodes?limit=1".to_owned(), None)?)?;
        if let Some(name) = nodes["items"][0]["metadata"]["name"].as_str() {
            name.clone_into(&mut self.node);
            return Ok(());
        }
        let mut node = objects::node();
        node["metadata"] = json!({"name": self.node});
        self.call("POST", "/api/v1/nodes".to_owned(), Some(node.clone()))?;
        self.made_node = true;
        self.call("PUT", format!("/api/v1/nodes/{}/status", self.node), Some(node)).map(drop)
    }

    /// Runs `work` for each number, several at a time, and returns the results in order.
    fn each<T, F>(&self, numbers: u32, work: impl Fn(Client, u32) -> F) -> Result<Vec<T>, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        for first in 0..AT_A_TIME {
            let mine = (first..numbers).step_by(AT_A_TIME as usize);
            let mine: Vec<_> = mine.map(|number| (number, work(self.client.clone(), number))).collect();
            let task = async move {
                let mut done = Vec::new();
                for (number, work) in mine {
                    not_interrupted().map_err(|error| error.to_string())?;
                    done.push((number, work.await?));
                }
                Ok::<_, String>(done)
            };
            tasks.spawn_on(task, self.runtime.handle());
        }
        let mut done = BTreeMap::new();
        for answer in self.runtime.block_on(tasks.join_all()) {
            done.extend(answer?);
        }
        Ok(done.into_values().collect())
    }

    /// All endpoints' addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        let last = self.endpoints - 1;
        let of_services = (0..).zip(&self.services).flat_map(move |(number, (_, changed))| {
            (0..=last)
                .map(move |place| if *changed && place == last { OTHER } else { place })
                .map(move |place| address(number, place))
        });
        of_services.chain((0..BIG).map(|place| big_address(place, self.rolled)))
    }

    fn services_path(&self) -> String {
        format!("/api/v1/namespaces/{}/services", self.namespace)
    }

    /// Path of the EndpointSlices.
    fn slices(&self) -> String {
        format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", self.namespace)
    }

    /// A slice of the rolled Service, of which this many endpoints were replaced.
    fn part(&self, part: u32, moved: u32) -> Value {
        asked(big_slice(ROLLED, part, moved, self.rolled), &self.namespace)
    }

    /// Replaces an EndpointSlice.
    fn put(&self, slice: Value) -> Result<(), Failure> {
        self.call("PUT", format!("{}/{}", self.slices(), name_of(&slice)), Some(slice)).map(drop)
    }

    /// Replaces all endpoints of one Service, a few at a time with pauses.
    pub(super) fn roll(&mut self) -> Result<(), Failure> {
        for moved in (STEP..=BIG).step_by(STEP as usize) {
            std::thread::sleep(PACE);
            self.put(self.part((moved - 1) / FULL, moved))?;
        }
        self.rolled = !self.rolled;
        Ok(())
    }

    /// Replaces the last endpoints of Services and restores them, about this many changes in total, as fast as the
    /// server accepts them. In the end each is the other one than before.
    pub(super) fn burst(&mut self, changes: u32) -> Result<(), Failure> {
        let all = u32::try_from(self.services.len())?.min(changes);
        let (times, slices, endpoints) = (changes.div_ceil(all) | 1, self.slices(), self.endpoints);
        let (namespace, before) = (self.namespace.clone(), self.services.clone());
        self.each(all, |client, number| {
            let (slices, namespace) = (slices.clone(), namespace.clone());
            let mut changed = before.get(number as usize).is_some_and(|(_, changed)| *changed);
            async move {
                for _ in 0..times {
                    changed = !changed;
                    let slice = asked(objects::slice(number, endpoints, changed), &namespace);
                    request(client.clone(), "PUT", format!("{slices}/{}", name_of(&slice)), Some(slice)).await?;
                }
                Ok(())
            }
        })?;
        self.services.iter_mut().take(all as usize).for_each(|(_, changed)| *changed = !*changed);
        Ok(())
    }

    /// Replaces the last endpoint of a Service, or restores it; returns the new address.
    pub(super) fn change(&mut self, number: u32) -> Result<Ipv4Addr, Failure> {
        let (_, changed) = self.services.get_mut(number as usize).ok_or("no such Service")?;
        *changed = !*changed;
        let changed = *changed;
        self.put(asked(objects::slice(number, self.endpoints, changed), &self.namespace))?;
        Ok(address(number, if changed { OTHER } else { self.endpoints - 1 }))
    }

    /// Adds one Service; returns its cluster IP and the address of its last endpoint.
    pub(super) fn add(&self, number: u32) -> Result<(Ipv4Addr, Ipv4Addr), Failure> {
        let made = self.runtime.spawn(make(self.client.clone(), self.namespace.clone(), number, self.endpoints));
        Ok((cluster_ip(&self.runtime.block_on(made)??)?, address(number, self.endpoints - 1)))
    }

    /// Takes it away.
    pub(super) fn delete(&self, number: u32) -> Result<(), Failure> {
        for (path, object) in [
            (self.slices(), objects::slice(number, self.endpoints, false)),
            (self.services_path(), objects::service(number)),
        ] {
            self.call("DELETE", format!("{path}/{}", name_of(&object)), None)?;
        }
        Ok(())
    }

    /// The API server's version.
    pub(super) fn version(&self) -> Result<String, Failure> {
        let version: Value = serde_json::from_str(&self.call("GET", "/version".to_owned(), None)?)?;
        Ok(version["gitVersion"].as_str().unwrap_or("of unknown version").to_owned())
    }

    /// A relay for connections to this listener, which may be in another network namespace, and a kubeconfig for it.
    pub(super) fn relay(&self, listener: TcpListener) -> Result<(Relay, String), Failure> {
        let local = listener.local_addr()?;
        let relay = Relay::start(&self.runtime, listener, self.server.clone())?;
        let mut kubeconfig = self.kubeconfig.clone();
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            let scheme =
                if cluster.server.as_deref().is_some_and(|url| url.starts_with("http:")) { "http" } else { "https" };
            cluster.server = Some(format!("{scheme}://{local}"));
            cluster.tls_server_name.get_or_insert_with(|| self.server.0.clone());
        }
        Ok((relay, serde_json::to_string(&kubeconfig)?))
    }

    /// Deletes what the bench created.
    fn clear(&self) -> Result<(), Failure> {
        if let Some(etcd) = &self.etcd {
            self.runtime.block_on(etcd.objects.revoke())?;
        }
        for list in [self.services_path(), self.slices()] {
            // A server ends a request after a minute, even if work is left.
            loop {
                let answer = self.call("DELETE", list.clone(), None);
                let left: Value = serde_json::from_str(&self.call("GET", format!("{list}?limit=1"), None)?)?;
                if left["items"][0].is_null() {
                    break;
                }
                if let Err(error) = answer {
                    eprintln!("{error}; once more");
                    std::thread::sleep(Duration::from_secs(1));
                }
            }
        }
        if let Some(etcd) = &self.etcd {
            self.runtime.block_on(etcd.allocations.revoke())?;
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

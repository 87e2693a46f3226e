//! Shared by the tests of `proxier-demo` on a live API: a world of Services on a server, and a witness that nothing wanted is ever missing from the
//! kernel.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ipvs::Client;
use serde_json::{Value, json};
use testkit::apiserver::ApiServer;

use crate::program::Folder;

/// Reads the kernel's table repeatedly, and checks that it has everything wanted each time.
pub(crate) struct Witness {
    wanted: Arc<Mutex<BTreeSet<String>>>,
    ends: Arc<AtomicBool>,
    looks: Arc<AtomicU64>,
    start: Instant,
    thread: Option<JoinHandle<()>>,
}

impl Witness {
    /// Starts in the network namespace of this thread.
    pub(crate) fn start() -> Self {
        let wanted = Arc::new(Mutex::new(BTreeSet::new()));
        let (ends, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (wanted, ends, looks) = (wanted.clone(), ends.clone(), looks.clone());
            std::thread::spawn(move || {
                let mut client = Client::open().unwrap();
                while !ends.load(Ordering::Relaxed) {
                    // Held while reading, so that the list is the one of that time.
                    let wanted = wanted.lock().unwrap();
                    let there = table(&mut client);
                    let missing: Vec<_> = wanted.difference(&there).collect();
                    assert!(missing.is_empty(), "wanted and not there: {missing:#?}\nthere: {there:#?}");
                    drop(wanted);
                    looks.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
            })
        };
        Witness { wanted, ends, looks, start: Instant::now(), thread: Some(thread) }
    }

    /// Requires these lines of `ipvsadm -Sn` from now on.
    pub(crate) fn want(&self, lines: BTreeSet<String>) {
        *self.wanted.lock().unwrap_or_else(|_| panic!("the witness has seen something")) = lines;
    }

    /// Keeps only these of the required lines.
    pub(crate) fn still_want(&self, lines: &BTreeSet<String>) {
        let mut wanted = self.wanted.lock().unwrap_or_else(|_| panic!("the witness has seen something"));
        wanted.retain(|line| lines.contains(line));
    }

    /// Stops it; fails when it saw something missing, or read less than once a second on average, which even a busy machine
    /// can do.
    pub(crate) fn end(mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let (looks, seconds) = (self.looks.load(Ordering::Relaxed), self.start.elapsed().as_secs());
        assert!(looks > seconds, "the witness has slept: {looks} looks in {seconds} s");
    }
}

/// The kernel's table as lines of `ipvsadm -Sn`.
fn table(client: &mut Client) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for entry in client.snapshot().unwrap().entries {
        let server = &entry.virtual_server.server;
        let key = server.key.to_string();
        let (protocol, place) = key.split_once(' ').unwrap();
        let option = if protocol == "UDP" { "-u" } else { "-t" };
        let persistence = server.config.persistence.as_ref();
        let persistence = persistence.map_or(String::new(), |persistence| format!(" -p {}", persistence.timeout_secs));
        lines.insert(format!("-A {option} {place} -s {}{persistence}", server.config.scheduler));
        for real in &entry.real_servers {
            let (key, weight) = (real.server.key, real.server.config.weight.get());
            lines.insert(format!("-a {option} {place} -r {key} -m -w {weight}"));
        }
    }
    lines
}

/// A Service with one port, as the API server has it and as `ipvsadm` prints it.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) protocol: &'static str,
    pub(crate) address: String,
    pub(crate) port: u16,
    pub(crate) target: u16,
    pub(crate) node_port: Option<u16>,
    /// External addresses.
    pub(crate) external: Vec<String>,
    /// Addresses of a load balancer.
    pub(crate) balancer: Vec<String>,
    pub(crate) affinity_secs: Option<u32>,
    pub(crate) endpoints: Vec<String>,
}

impl Service {
    pub(crate) fn new(name: &str, address: &str, endpoints: &[&str]) -> Self {
        Service {
            name: name.to_owned(),
            protocol: "TCP",
            address: address.to_owned(),
            port: 80,
            target: 8080,
            node_port: None,
            external: Vec::new(),
            balancer: Vec::new(),
            affinity_secs: None,
            endpoints: endpoints.iter().map(|&address| address.to_owned()).collect(),
        }
    }

    pub(crate) fn object(&self) -> Value {
        let mut object = json!({
            "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "demo", "name": self.name},
            "spec": {
                "type": "ClusterIP", "clusterIP": self.address, "clusterIPs": [self.address],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
                "ports": [{"name": "p", "port": self.port, "protocol": self.protocol, "targetPort": self.target}],
                "sessionAffinity": "None",
            },
            "status": {"loadBalancer": {}},
        });
        if let Some(port) = self.node_port {
            object["spec"]["type"] = "NodePort".into();
            object["spec"]["ports"][0]["nodePort"] = port.into();
        }
        if !self.external.is_empty() {
            object["spec"]["externalIPs"] = self.external.clone().into();
        }
        if !self.balancer.is_empty() {
            object["spec"]["type"] = "LoadBalancer".into();
            let ingress: Vec<Value> = self.balancer.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
            object["status"]["loadBalancer"]["ingress"] = ingress.into();
        }
        if let Some(seconds) = self.affinity_secs {
            object["spec"]["sessionAffinity"] = "ClientIP".into();
            object["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
        }
        object
    }

    pub(crate) fn slice(&self) -> Value {
        let endpoints: Vec<Value> = self
            .endpoints
            .iter()
            .map(|address| json!({"addresses": [address], "conditions": {"ready": true, "serving": true}}))
            .collect();
        json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": {
                "namespace": "demo", "name": format!("{}-1", self.name),
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "ports": [{"name": "p", "port": self.target, "protocol": self.protocol}],
            "endpoints": endpoints,
        })
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        let option = if self.protocol == "UDP" { "-u" } else { "-t" };
        let mut places = vec![format!("{}:{}", self.address, self.port)];
        places.extend(self.external.iter().chain(&self.balancer).map(|ip| format!("{ip}:{}", self.port)));
        places.extend(self.node_port.map(|port| format!("192.0.2.1:{port}")));
        let affinity = self.affinity_secs.map_or(String::new(), |seconds| format!(" -p {seconds}"));
        let mut lines = Vec::new();
        for place in places {
            lines.push(format!("-A {option} {place} -s rr{affinity}"));
            let reals = self.endpoints.iter();
            lines.extend(reals.map(|real| format!("-a {option} {place} -r {real}:{} -m -w 1", self.target)));
        }
        lines
    }
}

/// A Node as a kubelet and the controllers make it.
pub(crate) fn node() -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": "n1", "labels": {"kubernetes.io/hostname": "n1", "topology.kubernetes.io/zone": "a"}},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n1"}]},
    })
}

/// The truth: Services on a server that can go away, and a kubeconfig for it.
pub(crate) struct World {
    pub(crate) server: ApiServer,
    pub(crate) services: Vec<Service>,
    folder: Folder,
}

impl World {
    pub(crate) fn new(services: Vec<Service>) -> Self {
        Self::on(ApiServer::start(), services)
    }

    /// A world on this server.
    pub(crate) fn on(server: ApiServer, services: Vec<Service>) -> Self {
        let world = World { server, services, folder: Folder::new("world") };
        world.fill();
        world.folder.put("token", "first");
        let kubeconfig = world.server.kubeconfig(Some(&world.token()));
        world.folder.put("kubeconfig", &kubeconfig);
        world
    }

    pub(crate) fn token(&self) -> PathBuf {
        self.folder.0.join("token")
    }

    pub(crate) fn kubeconfig(&self) -> String {
        self.folder.0.join("kubeconfig").display().to_string()
    }

    fn fill(&self) {
        self.server.put(&node());
        for service in &self.services {
            self.server.put(&service.object());
            self.server.put(&service.slice());
        }
    }

    /// The server goes away: connections are refused.
    pub(crate) fn server_goes(self) -> Away {
        let World { server, services, folder } = self;
        let (address, version) = (server.address(), server.version());
        drop(server);
        Away { address, version, services, folder }
    }

    pub(crate) fn lines(&self) -> BTreeSet<String> {
        self.services.iter().flat_map(Service::lines).collect()
    }
}

/// A world whose server is unavailable.
pub(crate) struct Away {
    address: std::net::SocketAddr,
    version: u64,
    pub(crate) services: Vec<Service>,
    folder: Folder,
}

impl Away {
    /// Path of a kubeconfig for the server that went away.
    pub(crate) fn kubeconfig(&self) -> String {
        self.folder.0.join("kubeconfig").display().to_string()
    }

    /// A server at the same address, with the same objects, which refuses to let these be read.
    pub(crate) fn server_returns_without(self, resource: &str) -> World {
        let Away { address, services, folder, .. } = self;
        let server = ApiServer::start_away_on(address);
        server.forbid(resource, true);
        let world = World { server, services, folder };
        world.fill();
        world.server.outage(false);
        world
    }

    /// A server at the same address, with the same objects. Its versions continue from the old ones, plus `versions`.
    pub(crate) fn server_returns(self, versions: i64) -> World {
        let Away { address, version, services, folder } = self;
        let server = ApiServer::start_away_on(address);
        server.start_from(version.saturating_add_signed(versions));
        let world = World { server, services, folder };
        world.fill();
        world.server.start_from(world.server.version());
        world.server.outage(false);
        world
    }
}

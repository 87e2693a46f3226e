//! The source `cluster` against a simulated API server, with every failure between the two.
#![allow(clippy::wildcard_imports, reason = "parts of one suite, with the same world")]

mod credentials;
mod events;
mod lists;
mod nodes;
mod watches;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use proxier_core::config::MayAskFor;
use proxier_core::sketch::Sketch;
use proxier_core::snapshot::ObjectKind;
use proxier_demo::engine::Engine;
use proxier_demo::exit;
use proxier_demo::message::change::{Change, Snapshot};
use proxier_demo::message::{Event, channel};
use proxier_demo::settings::cli::Configured;
use proxier_demo::settings::kubeproxyconfig::KubeProxyConfiguration;
use proxier_demo::settings::{Origin, Settings, cli};
use proxier_demo::sources::cluster::{Cluster, Connection, Options};
use proxier_demo::sources::initial_list;
use serde_json::{Value, json};
use testkit::apiserver::tls::{Authority, Relay};
use testkit::apiserver::{ApiServer, Fault, Request, ServiceCidrs, Verb, recorded};
use tokio::sync::mpsc::Receiver;

use crate::program::{Folder, command, demo, ok, text};

/// A source that watches a server, and its reports.
struct Watching {
    changes: Receiver<Event>,
    cluster: Cluster,
}

fn quick() -> Options {
    let mut options = Options::default();
    options.first_pause = Duration::from_millis(10);
    options.longest_pause = Duration::from_millis(200);
    options.patience = Duration::from_millis(500);
    options.silence = Duration::from_secs(20);
    options.node_patience = Duration::from_millis(300);
    options
}

/// [`quick`] with a change.
fn with(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = quick();
    change(&mut options);
    options
}

/// Options for answers in JSON, whose sizes tests know.
fn in_json() -> Options {
    with(|options| options.protobuf = false)
}

/// The configuration of a command line, without the program's name.
fn configured(line: &str) -> Configured {
    let words = ["proxier-demo"].into_iter().chain(line.split_whitespace());
    cli::parse(words.map(Into::into)).unwrap().configure().unwrap()
}

/// A server with this number of Services.
fn crowd(services: usize) -> ApiServer {
    let server = ApiServer::start();
    for number in 0..services {
        server.put(&service(&format!("svc-{number:02}"), 80));
    }
    server
}

/// Lets the next requests of this kind fail, this often.
fn fail(server: &ApiServer, resource: &str, verb: Verb, fault: &Fault, times: usize) {
    for _ in 0..times {
        server.fail_next(resource, verb, fault.clone());
    }
}

/// The questions about Services so far.
fn questions(server: &ApiServer) -> Vec<String> {
    asked(server, "/services").iter().map(question).collect()
}

/// Options for each encoding of answers: protobuf, which is the default, and JSON.
fn in_both_encodings() -> [Options; 2] {
    [quick(), in_json()]
}

async fn watch(server: &ApiServer, options: Options) -> Watching {
    connect(Connection { master: Some(server.url()), ..Connection::default() }, options).await
}

async fn connect(connection: Connection, options: Options) -> Watching {
    let (sender, changes) = channel();
    let cluster = Cluster::start(connection, "n1", options, sender).await.unwrap();
    Watching { changes, cluster }
}

impl Watching {
    async fn next(&mut self) -> Change {
        loop {
            let event = tokio::time::timeout(Duration::from_secs(10), self.changes.recv()).await;
            let change = event.expect("a change within 10 s").expect("a source that runs").change;
            if !matches!(change, Change::Listing(_) | Change::Listed(_)) {
                return change;
            }
        }
    }

    async fn snapshot(&mut self) -> Snapshot {
        let snapshot = tokio::time::timeout(Duration::from_secs(20), complete(&mut self.changes)).await;
        snapshot.expect("a initial list within 20 s").expect("a source that runs")
    }

    /// A change as a short text.
    async fn line(&mut self) -> String {
        line(&self.next().await)
    }

    /// Checks that nothing more is reported: asks for a change that must come last.
    async fn ends_with(&mut self, server: &ApiServer) {
        server.put(&service("last", 9));
        assert_eq!(self.line().await, "+service default/last");
    }

    fn failures(&self) -> u64 {
        self.cluster.counters().failures.load(std::sync::atomic::Ordering::Relaxed)
    }
}

fn line(change: &Change) -> String {
    match change {
        Change::UpsertService(object) => format!("+service {}/{}", object.metadata.namespace, object.metadata.name),
        Change::UpsertSlice(object) => format!("+slice {}/{}", object.metadata.namespace, object.metadata.name),
        Change::DeleteService(key) => format!("-service {key}"),
        Change::Lost(kind, keys) => {
            let what = if *kind == ObjectKind::Service { "service" } else { "slice" };
            keys.iter().map(|key| format!("-{what} {key}")).collect::<Vec<_>>().join(" ")
        }
        Change::DeleteSlice(key) => format!("-slice {key}"),
        Change::Node(node) => format!("+node {} leaving {}", node.object.metadata.name, node.leaving),
        Change::NodeGone => "-node".to_owned(),
        Change::Synced => "synced".to_owned(),
        Change::Unreadable(of) => of.problem.to_string(),
        _ => "other".to_owned(),
    }
}

fn service(name: &str, port: i64) -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "default", "name": name},
        "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": port}]},
    })
}

fn with_version(mut object: Value, version: u64) -> Value {
    object["metadata"]["resourceVersion"] = version.to_string().into();
    object
}

/// Takes changes up to [`Change::Synced`]. `None` when the source ended before.
async fn complete(changes: &mut Receiver<Event>) -> Option<Snapshot> {
    let mut snapshot = Snapshot::default();
    loop {
        match changes.recv().await?.change {
            Change::Synced => return Some(snapshot),
            change => snapshot.apply(change),
        }
    }
}

fn names(snapshot: &Snapshot) -> BTreeSet<String> {
    snapshot.services.values().map(|service| service.metadata.name.clone()).collect()
}

/// The shop, recorded from a real server.
fn shop() -> ApiServer {
    let server = ApiServer::start();
    server.put_list(recorded::SERVICES);
    server.put_list(recorded::ENDPOINT_SLICES);
    server.put_list(recorded::NODE);
    server
}

/// The requests for a resource, by the end of its path.
fn asked(server: &ApiServer, path: &str) -> Vec<Request> {
    server.requests().into_iter().filter(|request| request.path.ends_with(path)).collect()
}

/// Number of watches, or else of lists.
fn requests(server: &ApiServer, path: &str, watches: bool) -> usize {
    asked(server, path).iter().filter(|request| request.is_watch() == watches).count()
}

async fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(10), "{what}: not within 10 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A source with the initial list of a server, which it watches.
async fn settled(server: &ApiServer, options: Options) -> Watching {
    settled_by(Connection { master: Some(server.url()), ..Connection::default() }, server, options).await
}

async fn settled_by(connection: Connection, server: &ApiServer, options: Options) -> Watching {
    let mut watching = connect(connection, options).await;
    watching.snapshot().await;
    watched(server).await;
    watching
}

async fn watched(server: &ApiServer) {
    wait_for("three watches", || {
        ["services", "endpointslices", "nodes"].iter().all(|resource| server.watches(resource) == 1)
    })
    .await;
}

/// The parameters of a request that tell one question from another.
fn question(request: &Request) -> String {
    let names = ["resourceVersion", "limit", "continue"];
    let values = names.iter().filter_map(|name| Some(format!(" {name}={}", request.parameter(name)?)));
    (if request.is_watch() { "watch" } else { "list" }).to_owned() + &values.collect::<String>()
}

//! The source `cluster` against a simulated API server, with every failure between the two.

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
use testkit::apiserver::{ApiServer, Fault, Request, ServiceCidrs, Streams, Verb, recorded};
use tokio::sync::mpsc::Receiver;

use crate::program::{Folder, demo, text};

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
    cli::parse(words.map(Into::into)).and_then(|invocation| invocation.configure()).unwrap()
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
        Change::LostServices(keys) => keys.iter().map(|key| format!("-service {key}")).collect::<Vec<_>>().join(" "),
        Change::LostSlices(keys) => keys.iter().map(|key| format!("-slice {key}")).collect::<Vec<_>>().join(" "),
        Change::DeleteSlice(key) => format!("-slice {key}"),
        Change::Node(node) => format!("+node {} leaving {}", node.object.metadata.name, node.leaving),
        Change::NodeGone => "-node".to_owned(),
        Change::Synced => "synced".to_owned(),
        Change::Unreadable(problem) => problem.to_string(),
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

/// Number of watches of changes, or else of requests for all objects.
fn requests(server: &ApiServer, path: &str, watches: bool) -> usize {
    asked(server, path).iter().filter(|request| request.asks_for_all() != watches).count()
}

async fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(10), "{what}: not within 10 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A server at this version, with one Service, and a source that watches it.
async fn watched_at(version: u64, streams: Streams) -> (ApiServer, Watching) {
    let server = shop();
    server.serve_streams(streams);
    server.start_from(version);
    server.put(&service("web", 80));
    let watching = settled(&server, quick()).await;
    (server, watching)
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

#[tokio::test]
async fn a_recorded_cluster_is_read_whole() {
    for options in in_both_encodings() {
        let server = shop();
        let mut watching = watch(&server, options).await;
        let snapshot = watching.snapshot().await;
        let list: Value = serde_json::from_str(recorded::SERVICES).unwrap();
        let recorded: BTreeSet<String> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(names(&snapshot), recorded);
        let slices: Value = serde_json::from_str(testkit::apiserver::recorded::ENDPOINT_SLICES).unwrap();
        assert_eq!(snapshot.slices.len(), slices["items"].as_array().unwrap().len());
        let node = snapshot.node.unwrap();
        assert_eq!(node.object.spec.pod_cidrs, ["10.244.1.0/24"]);
        assert_eq!(node.object.metadata.labels.get("topology.kubernetes.io/zone"), Some("zone-a"));
        assert!(!node.leaving);
        assert_eq!(snapshot.unreadable, []);
        let kept = snapshot.services.values().flat_map(|service| service.metadata.annotations.iter());
        assert_eq!(kept.filter(|(name, _)| name.starts_with("kubectl")).count(), 0, "kubectl's notes are not kept");
        assert_eq!(watching.failures(), 0);
    }
}

#[tokio::test]
async fn what_is_asked_for() {
    let server = shop();
    let _watching = settled(&server, quick()).await;
    for request in server.requests() {
        let parameter = |name| request.parameter(name).unwrap_or_default();
        assert_eq!(request.accepts, "application/vnd.kubernetes.protobuf, application/json");
        match request.path.as_str() {
            "/api/v1/services" => {
                assert_eq!(parameter("labelSelector"), "!service.kubernetes.io/service-proxy-name");
            }
            "/apis/discovery.k8s.io/v1/endpointslices" => {
                assert_eq!(parameter("labelSelector"), "!service.kubernetes.io/headless");
            }
            "/api/v1/nodes" => assert_eq!(parameter("fieldSelector"), "metadata.name=n1"),
            other => panic!("{other}"),
        }
        for (name, expected) in [
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
        ] {
            assert_eq!(parameter(name), expected, "{name}");
        }
        assert_eq!(request.parameter("resourceVersion"), None);
        let seconds: u64 = parameter("timeoutSeconds").parse().unwrap();
        assert!((300..=450).contains(&seconds), "{seconds}");
    }
    assert_eq!(server.requests().len(), 3, "one for each kind");
}

/// The encoding is that of the configuration; a server that has only JSON is read, too.
#[tokio::test]
async fn the_encoding_is_that_of_the_configuration() {
    let default = "application/vnd.kubernetes.protobuf, application/json";
    for (content_type, accepted, expected) in [
        ("", "", default),
        ("application/vnd.kubernetes.protobuf", "", default),
        ("application/json", "", "application/json"),
        ("application/json", "application/vnd.kubernetes.protobuf,application/json", default),
        ("application/vnd.kubernetes.protobuf", "application/json", "application/json"),
    ] {
        for only_json in [false, true] {
            let server = shop();
            if only_json {
                server.serve_only_json();
            }
            let mut configuration = KubeProxyConfiguration::default();
            configuration.client_connection.content_type = content_type.to_owned();
            configuration.client_connection.accept_content_types = accepted.to_owned();
            let settings = Settings::check(configuration, &Origin::default()).unwrap();
            let protobuf = Options::from_settings(&settings).protobuf;
            let mut watching = watch(&server, with(|options| options.protobuf = protobuf)).await;
            assert_eq!(watching.snapshot().await.services.len(), 6, "{content_type:?} {accepted:?}");
            assert_eq!(watching.failures(), 0);
            let is_as_expected = |request: &Request| request.accepts == expected;
            assert!(server.requests().iter().all(is_as_expected), "{content_type:?} {accepted:?} {only_json}");
        }
    }
}

/// The parameters of a request that tell one question from another.
fn question(request: &Request) -> String {
    let names = ["sendInitialEvents", "resourceVersion", "limit", "continue"];
    let values = names.iter().filter_map(|name| Some(format!(" {name}={}", request.parameter(name)?)));
    (if request.is_watch() { "watch" } else { "list" }).to_owned() + &values.collect::<String>()
}

/// A server that sends no objects in a watch is asked for a list from its memory, in one answer.
#[tokio::test]
async fn what_an_older_server_is_asked_for() {
    for (streams, patience) in [(Streams::Refused, 0), (Streams::Ignored, 500)] {
        let server = shop();
        server.serve_streams(streams);
        let start = Instant::now();
        let mut watching = watch(&server, quick()).await;
        let snapshot = watching.snapshot().await;
        assert!(start.elapsed() >= Duration::from_millis(patience));
        assert!(!snapshot.services.is_empty() && !snapshot.slices.is_empty() && snapshot.node.is_some());
        wait_for("a watch", || requests(&server, "/services", true) == 1).await;
        let version = server.version();
        let list = if streams == Streams::Refused { "list resourceVersion=0" } else { "list" };
        let expected = ["watch sendInitialEvents=true", list, &format!("watch resourceVersion={version}")];
        assert_eq!(questions(&server), expected, "{streams:?}");
        assert_eq!(watching.failures(), 0, "{streams:?}");
        // Too old a version: not older than that one.
        server.delete_silently("services", "shop", "dns");
        server.compact();
        server.cut_watches();
        assert_eq!(watching.line().await, "-service shop/dns");
        let questions = questions(&server);
        let since = format!("resourceVersion={version}");
        let expected = [format!("watch {since}"), format!("watch sendInitialEvents=true {since}")];
        assert_eq!(questions[3..5], expected, "{streams:?}");
        let fails_again = streams == Streams::Ignored;
        let list = if fails_again { "list".to_owned() } else { format!("list {since}") };
        assert_eq!(questions[5 + usize::from(fails_again)], list, "{streams:?}: {questions:?}");
    }
}

/// Options for JSON in pages, each and a whole list limited to this many bytes.
fn in_pages(page: usize, page_bytes: usize) -> Options {
    with(|options| (options.protobuf, options.page, options.page_bytes) = (false, page, page_bytes))
}

/// Pages are for answers that are too large.
#[tokio::test]
async fn lists_come_in_pages() {
    let server = crowd(7);
    server.serve_streams(Streams::Refused);
    let mut watching = watch(&server, in_pages(3, 800)).await;
    assert_eq!(watching.snapshot().await.services.len(), 7);
    let questions = questions(&server);
    assert_eq!(questions[..3], ["watch sendInitialEvents=true", "list resourceVersion=0", "list limit=3"]);
    assert!(questions[3..5].iter().all(|question| question.starts_with("list limit=3 continue=")), "{questions:?}");
}

#[tokio::test]
async fn changes_are_reported_as_they_come() {
    let server = shop();
    let mut watching = settled(&server, quick()).await;
    server.put(&service("new", 80));
    assert_eq!(watching.line().await, "+service default/new");
    server.delete("services", "default", "new");
    assert_eq!(watching.line().await, "-service default/new");
    server.delete("endpointslices", "shop", "web-abc12");
    let mut labelled = service("other", 80);
    server.put(&labelled);
    // Kinds do not wait for each other.
    let both = BTreeSet::from([watching.line().await, watching.line().await]);
    assert_eq!(both, ["+service default/other".to_owned(), "-slice shop/web-abc12".to_owned()].into());
    labelled["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "cilium"});
    server.put(&labelled);
    assert_eq!(watching.line().await, "-service default/other", "now another proxy's");
}

#[tokio::test]
async fn a_node_on_its_way_out_is_told() {
    let server = shop();
    let mut watching = settled(&server, quick()).await;
    let mut node: Value = serde_json::from_str(recorded::NODE).unwrap();
    let mut node = node["items"][0].take();
    node["kind"] = "Node".into();
    node["spec"]["taints"] = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    server.put(&node);
    assert_eq!(watching.line().await, "+node n1 leaving true");
    node["spec"]["taints"] = json!([]);
    server.put(&node);
    assert_eq!(watching.line().await, "+node n1 leaving false");
    node["metadata"]["deletionTimestamp"] = "2026-11-21T04:55:24Z".into();
    server.put(&node);
    assert_eq!(watching.line().await, "+node n1 leaving true");
    server.delete("nodes", "", "n1");
    assert_eq!(watching.line().await, "-node");
}

/// A watch that ends continues from its last version, so that no list is needed and no change is missed.
#[tokio::test]
async fn after_a_break_nothing_is_lost_and_nothing_repeated() {
    let server = shop();
    let mut watching = watch(&server, quick()).await;
    watching.snapshot().await;
    for round in 0..6 {
        watched(&server).await;
        if round % 2 == 0 {
            server.cut_watches();
        } else {
            server.end_watches();
        }
        let name = format!("svc-{round}");
        server.put(&service(&name, 80));
        assert_eq!(watching.line().await, format!("+service default/{name}"));
    }
    assert_eq!(requests(&server, "/services", false), 1, "listed once");
    watching.ends_with(&server).await;
}

/// The server, or something in front of it, does not watch. A watch that ends once at once is that of a server that stops.
#[tokio::test]
async fn watches_that_end_at_once_again_and_again_are_failures_and_lists_bring_the_changes() {
    for options in in_both_encodings() {
        let server = shop();
        let ends = |times| fail(&server, "services", Verb::Watch, &Fault::Text(String::new()), times);
        let mut watching = settled(&server, options).await;
        ends(1);
        server.end_watches();
        watched(&server).await;
        assert_eq!(watching.failures(), 0);
        ends(30);
        server.end_watches();
        while watching.failures() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server.put(&service("new", 80));
        assert_eq!(watching.line().await, "+service default/new");
        server.clear_faults();
        watched(&server).await;
        let failures = watching.failures();
        watching.ends_with(&server).await;
        assert_eq!(watching.failures(), failures);
    }
}

#[tokio::test]
async fn bookmarks_move_the_place_to_go_on_from() {
    let server = shop();
    let mut watching = settled(&server, quick()).await;
    server.compact();
    server.bookmark();
    let version = server.version();
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.end_watches();
    watched(&server).await;
    assert_eq!(requests(&server, "/services", false), 1, "no list: the bookmark was young enough");
    let last = server.requests().into_iter().rfind(|request| request.path.ends_with("/services")).unwrap();
    assert_eq!(last.parameter("resourceVersion"), Some(version.to_string().as_str()));
    watching.ends_with(&server).await;
}

/// 410 Gone, as an event and as a status: everything is listed again, and only the differences are reported.
#[tokio::test]
async fn a_version_too_old_is_a_new_list_and_its_difference() {
    for streams in [Streams::Served, Streams::Refused] {
        let server = shop();
        server.serve_streams(streams);
        for name in ["a", "b", "c"] {
            server.put(&service(name, 80));
        }
        let mut watching = settled(&server, quick()).await;
        for round in 0..2 {
            server.cut_watches();
            server.delete_silently("services", "default", ["a", "b"][round]);
            server.put(&service("c", 81 + i64::try_from(round).unwrap()));
            server.compact();
            if round == 1 {
                server.fail_next("services", Verb::Watch, Fault::Status(410, None));
            }
            let mut lines = [watching.line().await, watching.line().await];
            lines.sort();
            assert_eq!(lines, ["+service default/c".to_owned(), format!("-service default/{}", ["a", "b"][round])]);
            watched(&server).await;
        }
        watching.ends_with(&server).await;
    }
}

/// A server that calls every version too old, even that of the list just before, does not get list requests without a pause.
#[tokio::test]
async fn a_server_that_takes_every_version_for_too_old_is_given_time() {
    let all = added("web", 900) + &end_of_all(1000) + TOO_OLD;
    let lists = |server: &ApiServer| asked(server, "/services").iter().filter(|request| !request.is_watch()).count();
    let streams = |server: &ApiServer| requests(server, "/services", false);
    for (served, verb, fault, count) in [
        (Streams::Refused, Verb::Watch, Fault::Status(410, None), &lists as &dyn Fn(&ApiServer) -> usize),
        (Streams::Served, Verb::List, Fault::Text(all), &streams),
    ] {
        let server = shop();
        server.serve_streams(served);
        fail(&server, "services", verb, &fault, 200);
        let mut watching = watch(&server, quick()).await;
        watching.snapshot().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let count = count(&server);
        assert!((4..=25).contains(&count), "{served:?}: {count} times all Services in two seconds");
    }
}

/// The event of a Service at this version.
fn added(name: &str, version: u64) -> String {
    format!("{}\n", json!({"type": "ADDED", "object": with_version(service(name, 80), version)}))
}

/// The event after all objects.
fn end_of_all(version: u64) -> String {
    let metadata = json!({
        "resourceVersion": version.to_string(), "annotations": {"k8s.io/initial-events-end": "true"},
    });
    format!(
        "{}\n",
        json!({"type": "BOOKMARK", "object": {"kind": "Service", "apiVersion": "v1", "metadata": metadata}})
    )
}

/// A server restored from a backup counts its versions from further back: a watch from the earlier version would get nothing. The next bookmark shows
/// the restoration.
#[tokio::test]
async fn a_bookmark_from_the_past_is_a_new_list() {
    for streams in [Streams::Served, Streams::Refused] {
        let (server, mut watching) = watched_at(2000, streams).await;
        let before = asked(&server, "/services").len();
        server.start_from(500);
        server.put(&service("web", 81));
        server.bookmark();
        let Change::UpsertService(web) = watching.next().await else { panic!("not a Service") };
        assert_eq!(web.spec.ports[0].port, 81);
        // Of now, whatever was there before.
        let question = question(&asked(&server, "/services")[before]);
        assert_eq!(question, "watch sendInitialEvents=true", "{streams:?}");
        if streams == Streams::Refused {
            wait_for("a watch from there on", || requests(&server, "/services", true) == 2).await;
        }
        watching.ends_with(&server).await;
    }
}

/// The server forgets the version, and then comes back as one restored from a backup: it does not have that version yet.
#[tokio::test]
async fn a_server_that_is_behind_is_asked_for_what_it_has() {
    for streams in [Streams::Served, Streams::Refused] {
        let (server, mut watching) = watched_at(2000, streams).await;
        let since = format!("resourceVersion={}", server.version());
        server.fail_next("services", Verb::Watch, Fault::Status(410, None));
        server.start_from(500);
        server.put(&service("web", 81));
        let before = asked(&server, "/services").len();
        server.cut_watches();
        let Change::UpsertService(web) = watching.next().await else { panic!("not a Service") };
        assert_eq!(web.spec.ports[0].port, 81);
        let questions: Vec<String> = asked(&server, "/services")[before..].iter().map(question).collect();
        let all = "watch sendInitialEvents=true";
        let expected: &[String] = match streams {
            Streams::Served => &[format!("watch {since}"), format!("{all} {since}"), all.to_owned()],
            _ => &[
                format!("watch {since}"),
                format!("{all} {since}"),
                format!("list {since}"),
                all.to_owned(),
                "list".to_owned(),
            ],
        };
        assert_eq!(questions[..expected.len()], *expected);
        if streams == Streams::Refused {
            wait_for("a watch from there on", || requests(&server, "/services", true) == 3).await;
        }
        watching.ends_with(&server).await;
    }
}

/// A list begins anew if it expires between two pages, or if a later page is of another version: an empty answer in place of one would take away
/// everything that the first pages do not have.
#[tokio::test]
async fn a_list_that_changes_between_two_pages_begins_anew() {
    let other = r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#;
    for fault in [Fault::Status(410, None), Fault::Text(other.to_owned())] {
        let server = crowd(5);
        server.serve_streams(Streams::Refused);
        // The second page fails once, after an answer that is too large.
        fail(&server, "services", Verb::List, &Fault::Late(Duration::from_millis(1)), 2);
        server.fail_next("services", Verb::List, fault.clone());
        let mut watching = watch(&server, in_pages(2, 600)).await;
        assert_eq!(watching.snapshot().await.services.len(), 5);
        assert_eq!(watching.failures(), 2, "the size, and {fault:?}");
        let lists = asked(&server, "/services").iter().filter(|request| !request.is_watch()).count();
        assert_eq!(lists, 1 + 2 + 3, "{fault:?}");
    }
}

/// A process that starts while the first answer is empty by mistake would compare the kernel with nothing, or with the part of the next list that has
/// arrived.
#[tokio::test]
async fn an_empty_first_list_counts_only_when_its_version_can_be_watched() {
    for streams in [Streams::Served, Streams::Refused] {
        let server = shop();
        server.serve_streams(streams);
        server.compact();
        for resource in ["services", "endpointslices"] {
            server.fail_next(resource, Verb::List, Fault::Empty);
            server.fail_next(resource, Verb::List, Fault::Late(Duration::from_millis(200)));
        }
        let mut watching = watch(&server, quick()).await;
        let snapshot = watching.snapshot().await;
        assert!(!snapshot.services.is_empty() && !snapshot.slices.is_empty());
        // A cluster without any is believed all the same.
        let server = ApiServer::start();
        server.serve_streams(streams);
        let mut watching = watch(&server, quick()).await;
        let snapshot = watching.snapshot().await;
        assert!(snapshot.services.is_empty() && snapshot.slices.is_empty());
        watched(&server).await;
        watching.ends_with(&server).await;
    }
}

#[tokio::test]
async fn a_busy_server_is_given_the_time_it_asks_for() {
    let server = shop();
    server.fail_next("services", Verb::List, Fault::Status(429, Some(1)));
    let started = Instant::now();
    let mut watching = watch(&server, quick()).await;
    assert!(!watching.snapshot().await.services.is_empty());
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    watched(&server).await;
    server.fail_next("services", Verb::Watch, Fault::Status(503, Some(1)));
    let started = Instant::now();
    server.end_watches();
    wait_for("a watch again", || server.watches("services") == 1).await;
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(requests(&server, "/services", false), 2, "a busy server is not asked for everything");
}

#[tokio::test]
async fn failures_of_all_kinds_pass() {
    for streams in [Streams::Served, Streams::Refused] {
        for options in in_both_encodings() {
            all_failures_pass(streams, options).await;
        }
    }
}

async fn all_failures_pass(streams: Streams, options: Options) {
    let server = shop();
    server.serve_streams(streams);
    let text = |text: &str| Fault::Text(text.to_owned());
    for fault in [
        Fault::Status(500, None),
        Fault::Status(502, None),
        Fault::Status(504, None),
        Fault::Cut(1000),
        text(""),
        text("<html>a proxy's own page</html>"),
        text("{\"kind\":\"ServiceList\",\"items\":[]}"),
        text("{\"metadata\":{\"resourceVersion\":\"5\"},\"items\":{}}"),
        Fault::Silence,
    ] {
        server.fail_next("services", Verb::List, fault.clone());
        server.fail_next("endpointslices", Verb::List, fault);
    }
    let mut watching = watch(&server, options).await;
    let snapshot = watching.snapshot().await;
    assert!(!snapshot.services.is_empty() && !snapshot.slices.is_empty());
    assert_eq!(watching.failures(), 18);
    watched(&server).await;
    for fault in [Fault::Status(500, None), Fault::Cut(0), text("{\"type\":"), text("not an event\n"), Fault::Silence] {
        server.fail_next("services", Verb::Watch, fault);
        server.end_watches();
        watched(&server).await;
    }
    watching.ends_with(&server).await;
}

#[tokio::test]
async fn a_slow_server_is_waited_for() {
    let server = shop();
    server.fail_next("services", Verb::List, Fault::Slow(Duration::from_millis(8)));
    let started = Instant::now();
    let mut watching = watch(&server, in_json()).await;
    watching.snapshot().await;
    assert!(started.elapsed() > Duration::from_millis(600), "longer than the patience for one piece");
    assert_eq!(watching.failures(), 0);
}

/// A connection that is dead without notice: the kernel would not report it for hours.
#[tokio::test]
async fn a_silent_watch_is_taken_for_broken() {
    let server = shop();
    let mut watching = watch(&server, with(|options| options.silence = Duration::from_millis(200))).await;
    watching.snapshot().await;
    wait_for("three watches one after the other", || requests(&server, "/services", true) >= 3).await;
    watching.ends_with(&server).await;
    // Each silence brought no event, so after some of them a list makes sure.
    wait_for("a second list", || requests(&server, "/services", false) >= 2).await;
}

#[tokio::test]
async fn huge_answers_are_asked_for_in_smaller_pages() {
    let server = crowd(20);
    let options = in_pages(500, 1000);
    let mut watching = watch(&server, options.clone()).await;
    assert_eq!(watching.snapshot().await.services.len(), 20);
    assert_eq!(requests(&server, "/services", false), 1, "a watch has no size");
    server.serve_streams(Streams::Refused);
    let mut watching = watch(&server, options).await;
    assert_eq!(watching.snapshot().await.services.len(), 20);
    let limits: BTreeSet<String> =
        server.requests().iter().filter_map(|request| request.parameter("limit").map(str::to_owned)).collect();
    assert!(limits.contains("500") && limits.contains("1") | limits.contains("7"), "{limits:?}");

    server.fail_next("nodes", Verb::List, Fault::Padded(100_000));
    let mut watching = watch(&server, in_json()).await;
    assert_eq!(watching.snapshot().await.services.len(), 20, "large, but not too large");
}

#[tokio::test]
async fn repeated_and_late_events_change_nothing() {
    for options in in_both_encodings() {
        let server = ApiServer::start();
        let version = server.put(&service("web", 80));
        let mut watching = settled(&server, options).await;
        let event = |what: &str, object: &Value| json!({"type": what, "object": object}).to_string();
        let newer = with_version(service("web", 82), version + 10);
        server.send_raw("services", &event("MODIFIED", &newer));
        assert_eq!(watching.line().await, "+service default/web");
        server.send_raw("services", &event("MODIFIED", &newer));
        server.send_raw("services", &event("MODIFIED", &with_version(service("web", 81), version + 5)));
        server.send_raw("services", &event("DELETED", &with_version(service("web", 81), version + 6)));
        server.send_raw("services", &event("ADDED", &with_version(service("late", 80), version + 7)));
        assert_eq!(watching.line().await, "+service default/late", "late, but of another object");
        server.send_raw("services", &event("DELETED", &with_version(service("web", 82), version + 11)));
        assert_eq!(watching.line().await, "-service default/web");
        server.send_raw("services", &event("MODIFIED", &newer));
        server.send_raw("services", &event("DELETED", &with_version(service("web", 82), version + 11)));
        server.send_raw("services", &event("ADDED", &with_version(service("web", 83), version + 12)));
        let Change::UpsertService(web) = watching.next().await else { panic!("not a Service") };
        assert_eq!(web.spec.ports[0].port, 83, "a deleted Service comes back only when it is made anew");
    }
}

#[tokio::test]
async fn one_bad_object_stops_no_other() {
    let [protobuf, json] = in_both_encodings();
    let reason = "invalid type: string \"http\", expected i64";
    bad_object_stops_no_other(json, reason, str::to_owned).await;
    // Without an object no Event is sent.
    let named = |line: &str| line.replace("{}", "{\"metadata\":{}}").replace('7', "{\"metadata\":{}}");
    bad_object_stops_no_other(protobuf, "the protobuf message has another type at this field", named).await;
}

async fn bad_object_stops_no_other(options: Options, reason: &str, sent: impl Fn(&str) -> String) {
    let server = ApiServer::start();
    let mut bad = service("bad", 80);
    bad["spec"]["ports"][0]["port"] = "http".into();
    server.put(&bad);
    server.put(&service("good", 80));
    let mut watching = watch(&server, options).await;
    let snapshot = watching.snapshot().await;
    assert_eq!(names(&snapshot), ["good".to_owned()].into());
    let problems: Vec<String> = snapshot.unreadable.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 1);
    let expected = &*format!("API server: Service default/bad: spec.ports[0].port: {reason}");
    assert!(problems[0].starts_with(expected), "{problems:?}");

    watched(&server).await;
    for line in [
        "{\"type\":\"FOO\",\"object\":{\"metadata\":{\"name\":\"x\"}}}",
        "{\"type\":\"ADDED\",\"object\":{}}",
        "{\"type\":\"ADDED\",\"object\":7}",
    ] {
        server.send_raw("services", &sent(line));
        assert!(watching.line().await.starts_with("API server: "), "{line}");
    }
    server.put(&bad);
    assert!(watching.line().await.starts_with(expected));
    watching.ends_with(&server).await;
}

#[tokio::test]
async fn what_is_forbidden_is_tried_again_and_the_rest_goes_on() {
    let server = shop();
    server.forbid("endpointslices", true);
    server.forbid("nodes", true);
    let mut watching = watch(&server, quick()).await;
    wait_for("some tries", || requests(&server, "/endpointslices", false) >= 3).await;
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(300), watching.changes.recv()).await {
        assert_ne!(event.change, Change::Synced, "without slices the initial list is not complete");
    }
    server.forbid("endpointslices", false);
    let snapshot = watching.snapshot().await;
    assert!(!snapshot.slices.is_empty());
    assert_eq!(snapshot.node, None, "without the Node it is, after a while");
    server.forbid("nodes", false);
    assert_eq!(watching.line().await, "+node n1 leaving false");
}

#[tokio::test]
async fn a_new_token_is_read_when_the_old_one_does_not_count_any_more() {
    let server = shop();
    server.demand_token("first");
    let folder = Folder::new("token");
    // Editors write such line ends.
    let token = folder.put("token", "first\r\n");
    let kubeconfig = folder.put("kubeconfig", &server.kubeconfig(Some(&token)));
    let mut watching = settled_by(Connection { kubeconfig: Some(kubeconfig), master: None }, &server, quick()).await;
    assert_eq!(watching.failures(), 0);

    server.demand_token("second");
    server.end_watches();
    wait_for("the old token to be refused", || watching.failures() >= 3).await;
    // Half a token, with a byte that no header may have: no watch ends.
    std::fs::write(&token, "sec\0ond").unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    std::fs::write(&token, "second\n").unwrap();
    watched(&server).await;
    watching.ends_with(&server).await;
}

/// A server that rejects all credentials gets only the requests that each watch's growing pauses allow, whether the
/// credentials come from a file or from a program that prints others each time.
#[tokio::test]
async fn rejected_watches_do_not_wake_each_other() {
    let folder = Folder::new("rejected");
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "interactiveMode": "Never",
        "args": ["-c", "printf '{\"status\":{\"token\":\"wrong-%s\"}}' $$"],
    });
    let users = [json!({"tokenFile": folder.put("token", "wrong")}), json!({"exec": exec})];
    let options = with(|options| {
        (options.first_pause, options.longest_pause) = (Duration::from_secs(2), Duration::from_secs(60));
    });
    let begun = Instant::now();
    let mut all = Vec::new();
    for user in users {
        let server = shop();
        server.demand_token("right");
        let text = kubeconfig(&server.url(), &json!({}), &user);
        let kubeconfig = Some(folder.put(&format!("kubeconfig-{}", all.len()), &text));
        all.push((connect(Connection { kubeconfig, master: None }, options.clone()).await, server));
    }
    tokio::time::sleep(Duration::from_secs(10).saturating_sub(begun.elapsed())).await;
    // Each of the three at 0 s, after 2 to 3 s, and after 6 to 9 s.
    for (watching, server) in &all {
        assert_eq!(server.requests().len(), 9, "in {:?}", begun.elapsed());
        assert_eq!(watching.failures(), 9);
    }
}

fn kubeconfig(server: &str, cluster: &Value, user: &Value) -> String {
    let mut cluster = cluster.clone();
    cluster["server"] = server.into();
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
    .to_string()
}

/// The authority of the server changes, then that of clients, while both run: reconnecting does not wait for a pause once the files are there.
#[tokio::test]
async fn new_certificates_are_read_when_their_files_change() {
    let (server, folder) = (shop(), Folder::new("rotation"));
    let [old, new, clients, later_clients] = ["old", "new", "clients", "later"].map(Authority::new);
    let put_identity = |of: &Authority| {
        let identity = of.client("system:kube-proxy");
        (folder.put("client.crt", &identity.certificate), folder.put("client.key", &identity.key))
    };
    let (certificate, key) = put_identity(&clients);
    let authority = folder.put("ca.crt", &old.certificate());
    let relay = Relay::start(&old, server.address(), Some(&clients));
    let address = relay.address();
    let user = json!({"client-certificate": certificate, "client-key": key});
    let text = kubeconfig(&relay.url(), &json!({"certificate-authority": authority}), &user);
    let kubeconfig = folder.put("kubeconfig", &text);
    let options = with(|options| {
        (options.first_pause, options.longest_pause) = (Duration::from_secs(60), Duration::from_secs(60));
    });
    let mut watching = settled_by(Connection { kubeconfig: Some(kubeconfig), master: None }, &server, options).await;
    assert_eq!(watching.failures(), 0);
    let rotations: [(&Authority, &Authority, &dyn Fn()); 2] = [
        (&new, &clients, &|| drop(folder.put("ca.crt", &new.certificate()))),
        (&new, &later_clients, &|| drop(put_identity(&later_clients))),
    ];
    let mut relay = Some(relay);
    for (number, (authority, clients, rotate)) in rotations.into_iter().enumerate() {
        let before = watching.failures();
        drop(relay.take());
        relay = Some(Relay::start_on(address, authority, server.address(), Some(clients)));
        // The break of the watch, then a certificate that does not count.
        wait_for("failures of all three", || watching.failures() >= before + 3).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(watching.failures() < before + 9, "each pauses: {}", watching.failures() - before);
        // Half a certificate: the earlier one stays.
        folder.put("ca.crt", "-----BEGIN CERTIFICATE-----\nnonsense");
        tokio::time::sleep(Duration::from_secs(2)).await;
        folder.put("ca.crt", &authority.certificate());
        rotate();
        let name = format!("rotated-{number}");
        server.put(&service(&name, 80));
        assert_eq!(watching.line().await, format!("+service default/{name}"));
    }
}

/// Credentials that cannot be sent are bad input, with the place where they are; nothing panics.
#[tokio::test]
async fn credentials_that_cannot_be_used_are_named() {
    let folder = Folder::new("credentials");
    let program = |script: &str| {
        json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
            "interactiveMode": "Never",
        }})
    };
    let token = |name: &str, text: &str| json!({"tokenFile": folder.put(name, text)});
    let credential = |status: &str| program(&format!("printf '%s' '{{\"status\":{status}}}'"));
    for (user, expected) in [
        (token("split", "a\nb"), "/split cannot be sent: byte 2 of 3 is a control character"),
        (token("blank", " \n"), "/blank is empty"),
        (json!({"tokenFile": "/nonexistent/token"}), "the token cannot be read from /nonexistent/token: No such file"),
        (json!({"token": "a\n"}), "the token in the kubeconfig cannot be sent: byte 2 of 2"),
        (
            json!({"auth-provider": {"name": "oidc", "config": {"id-token": "\u{1}"}}}),
            "of auth-provider cannot be sent",
        ),
        (
            json!({"auth-provider": {"name": "gcp", "config": {"cmd-path": "yes"}}}),
            "auth-provider gcp is not supported",
        ),
        (program("printf 'kind: [ExecCredential'"), "prints no ExecCredential: "),
        (program("printf '\\377'"), "prints no ExecCredential: "),
        (credential("null"), "prints no ExecCredential: status is missing"),
        (credential("{}"), "it has neither a token nor a certificate"),
        (credential(r#"{"token":""}"#), "it has neither a token nor a certificate"),
        (credential(r#"{"token":5}"#), "status.token: invalid type"),
        (
            credential(r#"{"token":"a\nb"}"#),
            "the token in status.token cannot be sent: byte 2 of 3 is a control character",
        ),
        (credential(r#"{"token":"\u0000"}"#), "the token in status.token cannot be sent: byte 1 of 1"),
        (credential(r#"{"token":"ä"}"#), "the token in status.token cannot be sent: byte 1 of 2"),
        (credential(r#"{"clientKeyData":"x"}"#), "only one of clientCertificateData and clientKeyData is set"),
        (
            credential(r#"{"token":"a","expirationTimestamp":"soon"}"#),
            "status.expirationTimestamp: \"soon\" is not a time",
        ),
        (
            credential(r#"{"token":"a","expirationTimestamp":"10000-01-01T00:00:00Z"}"#),
            "status.expirationTimestamp: \"10000-01-01T00:00:00Z\" is not a time",
        ),
        (program("exec yes"), "(exec in the kubeconfig) failed: it prints more than 1048576 bytes"),
        (program("echo 'not logged in' >&2; exit 7"), "failed: exit status: 7: not logged in"),
        (json!({"as": "a\nb", "token": "a"}), "failed to parse header value"),
    ] {
        let kubeconfig = folder.put("kubeconfig", &kubeconfig("http://127.0.0.1:1", &json!({}), &user));
        let problem = refusal(&kubeconfig).await.unwrap();
        assert!(problem.starts_with("http://127.0.0.1:1/: ") && problem.contains(expected), "{user}: {problem}");
    }
    // YAML, which client-go accepts.
    let yaml = program("printf 'kind: ExecCredential\nstatus:\n  token: a\n'");
    let kubeconfig = folder.put("kubeconfig", &kubeconfig("http://127.0.0.1:1", &json!({}), &yaml));
    assert_eq!(refusal(&kubeconfig).await, None);
}

/// Why a source with this kubeconfig does not start.
async fn refusal(kubeconfig: &Path) -> Option<String> {
    let (sender, _changes) = channel();
    let connection = Connection { kubeconfig: Some(kubeconfig.to_owned()), master: None };
    let started = Cluster::start(connection, "n1", quick(), sender).await;
    started.err().map(|problem| problem.to_string())
}

#[tokio::test]
async fn errors_of_a_kubeconfig_are_named() {
    const GOOD: &str = "
apiVersion: v1
kind: Config
current-context: x
clusters: [{name: a, cluster: {server: 'http://127.0.0.1:1'}}]
contexts: [{name: x, context: {cluster: a, user: u}}]
users: [{name: u, user: {}}]
";
    let folder = Folder::new("kubeconfig");
    let replaced = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        GOOD.replacen(from, to, 1)
    };
    assert_eq!(refusal(&folder.put("kubeconfig", GOOD)).await, None);
    for (text, expected) in [
        (replaced("current-context: x", ""), "current-context: is missing; kubectl config use-context sets it"),
        (replaced("t: x\n", "t: y\n"), "current-context: there is no context \"y\"; there is x"),
        (replaced("cluster: a", "cluster: b"), "contexts.context.cluster: there is no cluster \"b\"; there is a"),
        (replaced("user: u", "user: v"), "contexts.context.user: there is no user \"v\"; there is u"),
        (
            replaced("http://127.0.0.1:1", "127.0.0.1:1"),
            "clusters.cluster.server: \"127.0.0.1:1\" is not a URL such as https://10.0.0.1:6443",
        ),
        (
            replaced("http://127.0.0.1:1", "::"),
            "not a usable kubeconfig: failed to parse cluster url: invalid authority",
        ),
        (
            replaced("'http://127.0.0.1:1'", "'https://127.0.0.1:1', certificate-authority-data: bm9uc2Vuc2UK"),
            "certificate-authority: there is no certificate in it",
        ),
        (String::new(), "not a kubeconfig: it has no contexts"),
    ] {
        let path = folder.put("kubeconfig", &text);
        assert_eq!(refusal(&path).await.unwrap(), format!("{}: {expected}", path.display()));
    }
    let malformed = refusal(&folder.put("kubeconfig", "a: [b")).await.unwrap();
    assert!(malformed.contains(": not a usable kubeconfig: ") && malformed.contains("line 1"), "{malformed}");
    let missing = refusal(Path::new("/nonexistent/config")).await.unwrap();
    assert!(missing.starts_with("/nonexistent/config: the kubeconfig cannot be read (No such file"), "{missing}");
}

/// A program whose child keeps its standard output; credentials that say "never" for their end, and ones that end soon.
#[tokio::test]
async fn a_program_gets_new_credentials_when_the_old_ones_end() {
    let (server, folder) = (shop(), Folder::new("ending"));
    server.demand_token("first");
    let (token, end) = (folder.put("token", "first"), folder.put("end", "9999-12-31T23:59:59Z"));
    let script = format!(
        "sleep 60 & echo asked >>{0}/asked; printf '{{\"status\":{{\"token\":\"%s\",\"expirationTimestamp\":\"%s\"}}}}' \
         $(cat {1}) $(cat {2})",
        folder.0.display(),
        token.display(),
        end.display()
    );
    let user =
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]}});
    let connection = || {
        let kubeconfig = folder.put("kubeconfig", &kubeconfig(&server.url(), &json!({}), &user));
        Connection { kubeconfig: Some(kubeconfig), master: None }
    };
    let asked = || std::fs::read_to_string(folder.0.join("asked")).unwrap().lines().count();
    let started = Instant::now();
    let watching = settled_by(connection(), &server, quick()).await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!((asked(), watching.failures()), (1, 0));
    server.end_watches();
    watched(&server).await;
    assert_eq!(asked(), 1);
    drop(watching);
    server.end_watches();
    // The credentials have ended: each request asks for new ones, and none is refused.
    folder.put("end", "2026-01-01T00:00:00Z");
    let watching = settled_by(connection(), &server, quick()).await;
    folder.put("token", "second");
    server.accept_token("second");
    server.end_watches();
    watched(&server).await;
    server.demand_token("second");
    server.end_watches();
    watched(&server).await;
    assert_eq!(watching.failures(), 0);
    assert!(asked() >= 4, "{}", asked());
}

#[tokio::test]
async fn a_server_that_is_not_there_yet_is_waited_for() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let connection = Connection { master: Some(format!("http://{address}")), ..Connection::default() };
    let watching = connect(connection, quick()).await;
    wait_for("some tries", || watching.failures() >= 6).await;
    assert!(watching.cluster.is_running());
}

#[tokio::test]
async fn what_cannot_work_is_said_at_once() {
    let (sender, _changes) = channel();
    for (connection, expected) in [
        (Connection { kubeconfig: None, master: Some("nowhere".into()) }, "--master: \"nowhere\" is not a URL such as"),
        (
            Connection::default(),
            "this is not a pod of a cluster (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set); give --kubeconfig",
        ),
    ] {
        let problem = Cluster::start(connection, "n1", quick(), sender.clone()).await.unwrap_err().to_string();
        assert!(problem.starts_with(expected), "{problem}");
    }
}

#[tokio::test]
async fn it_ends_when_nobody_listens() {
    let server = shop();
    let watching = watch(&server, quick()).await;
    wait_for("a list", || requests(&server, "/services", false) == 1).await;
    drop(watching);
    server.end_watches();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = server.requests().len();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(server.requests().len(), before);
}

/// The initial list is not complete before local pod traffic can be detected, with `detectLocalMode: NodeCIDR`.
#[tokio::test]
async fn the_node_s_network_of_pods_is_waited_for() {
    let node = |spec: Value| json!({"kind": "Node", "metadata": {"name": "n1"}, "spec": spec});
    let server = ApiServer::start();
    server.put(&service("web", 80));
    server.put_list(recorded::ENDPOINT_SLICES);
    server.put(&node(json!({})));
    let mut options = quick();
    options.needs_pod_cidr = true;
    let mut watching = watch(&server, options.clone()).await;
    let early = tokio::time::timeout(Duration::from_secs(1), complete(&mut watching.changes)).await;
    assert!(early.is_err(), "{early:?}");
    server.put(&node(json!({"podCIDR": "10.244.1.0/24"})));
    watching.snapshot().await;
    watching.cluster.giving_up().await.unwrap();

    // The network never comes.
    server.put(&node(json!({})));
    options.pod_cidr_patience = Duration::from_millis(500);
    let mut watching = watch(&server, options).await;
    let problem = watching.cluster.giving_up().await.unwrap_err().to_string();
    let expected =
        "spec.podCIDR of Node n1, for detectLocalMode NodeCIDR: missing after 0 s; set it, or another detectLocalMode";
    assert_eq!(problem, expected);
    let early = tokio::time::timeout(Duration::from_millis(100), complete(&mut watching.changes)).await;
    assert!(early.is_err(), "{early:?}");
}

/// The error about a server that stops in the middle says what arrived, what is missing, the limit, and how to raise it. A slow server that keeps
/// sending is waited for.
#[tokio::test]
async fn a_limit_that_says_what_it_is() {
    let server = ApiServer::start();
    server.put(&service("web", 1));
    let limited = |limit: &str| {
        configured(&format!("plan --hostname-override n1 --master {} --input-timeout {limit}", server.url()))
    };
    server.fail_next("endpointslices", Verb::List, Fault::Silence);
    let options = || with(|options| (options.protobuf, options.patience) = (false, Duration::from_secs(30)));
    let unread = initial_list::read(&limited("1500ms"), options()).await.unwrap_err();
    let [problem] = unread.problems.as_slice() else { unreachable!("{unread:?}") };
    assert_eq!(unread.code, exit::FAILED);
    assert_eq!(
        problem.to_string(),
        "the API server: no complete answer: 1 Services, 0 EndpointSlices came, then nothing for 1.5 s, while waiting for \
         endpointslices; the log says why; --input-timeout says how long to wait"
    );
    for number in 0..20 {
        server.put(&service(&format!("more-{number}"), 1));
    }
    server.fail_next("services", Verb::List, Fault::Slow(Duration::from_millis(60)));
    let start = Instant::now();
    let snapshot = initial_list::read(&limited("3s"), options()).await.unwrap();
    assert_eq!(snapshot.services.len(), 21);
    assert!(start.elapsed() > Duration::from_secs(3), "longer than the limit, all in all");
}

/// Neither failed requests nor new attempts count as answers.
#[tokio::test]
async fn a_limit_that_ends_where_nothing_answers() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = ApiServer::start();
    server.serve_streams(Streams::Refused);
    fail(&server, "services", Verb::List, &Fault::Status(500, None), 1000);
    for (master, options) in [(format!("http://{address}"), Options::default()), (server.url(), quick())] {
        let configured = configured(&format!("plan --hostname-override n1 --master {master} --input-timeout 2s"));
        let start = Instant::now();
        let unread = initial_list::read(&configured, options).await.unwrap_err();
        assert_eq!(unread.code, exit::FAILED, "{unread:?}");
        assert!((2.0..4.0).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn what_annotations_may_decide_arrives_and_all_nodes_are_watched_only_for_weights() {
    let server = shop();
    let mut web = service("web", 80);
    let asked = json!({"proxier/forwarding": "ipip", "kube-router.io/service.dsr": "tunnel"});
    web["metadata"]["annotations"] = asked.clone();
    web["metadata"]["annotations"]["example.com/long"] = "x".into();
    server.put(&web);
    let weights = json!({"proxier/weights": "10.244.0.1=3"});
    let labels = json!({"kubernetes.io/service-name": "web"});
    server.put(&json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {"namespace": "default", "name": "web-1", "labels": labels, "annotations": weights},
    }));
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.17"}]);
    let node = |weight: &str| {
        let labels = json!({"proxier/weight": weight, "example.com/long": "x"});
        let status = json!({"addresses": addresses});
        json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n7", "labels": labels}, "status": status})
    };
    server.put(&node("3"));
    let mut watching = watch(&server, quick()).await;
    let snapshot = watching.snapshot().await;
    assert!(snapshot.cluster_nodes.is_empty());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let kept =
        |value: &Value| value.as_object().unwrap().iter().map(|(name, value)| (name.clone(), text(value))).collect();
    let annotations = |name: &str| {
        snapshot.services.values().find(|of| of.metadata.name == name).unwrap().metadata.annotations.clone()
    };
    assert_eq!(annotations("web"), kept(&asked));
    let slice = snapshot.slices.values().find(|of| of.metadata.name == "web-1").unwrap();
    assert_eq!(slice.metadata.annotations, kept(&weights));

    let mut watching = watch(&server, with(|options| options.node_weights = true)).await;
    let snapshot = watching.snapshot().await;
    assert!(snapshot.cluster_nodes.len() > 1 && snapshot.node.is_some());
    assert_eq!(snapshot.cluster_nodes["n7"].metadata.labels, kept(&json!({"proxier/weight": "3"})));
    server.put(&node("4"));
    let weight = |change: &Change| match change {
        Change::ClusterNode(object) => object.metadata.labels.get("proxier/weight").map(str::to_owned),
        Change::ClusterNodeGone(name) => Some(format!("-{name}")),
        _ => None,
    };
    assert_eq!(weight(&watching.next().await).unwrap(), "4");
    server.delete("nodes", "", "n7");
    assert_eq!(weight(&watching.next().await).unwrap(), "-n7");

    // Addresses of Nodes are watched also without weights.
    server.put(&node("4"));
    let snapshot = watch(&server, with(|options| options.node_addresses = true)).await.snapshot().await;
    let of = |name: &str| {
        snapshot.cluster_nodes[name].status.addresses.iter().map(|of| of.address.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of("n7"), ["192.0.2.17"]);
}

/// Modes that make addresses local watch all Nodes; the rest do not.
#[test]
fn all_nodes_are_watched_where_addresses_are_made_local() {
    for (mode, watched) in
        [("ipvs", true), ("auto", true), ("userspace", true), ("nftables", false), ("iptables", false)]
    {
        let configured = configured(&format!("run --hostname-override=n1 --proxy-mode {mode}"));
        let options = Options::from_settings(&configured.settings);
        assert_eq!((options.node_addresses, options.node_weights), (watched, false), "{mode}");
        let mut settings = configured.settings;
        settings.core.ipvs.may_ask_for = MayAskFor::all();
        let weighs = !matches!(mode, "iptables" | "userspace");
        assert_eq!(Options::from_settings(&settings).node_weights, weighs, "{mode}");
    }
}

#[tokio::test]
async fn without_rights_to_nodes_services_are_served_without_weights() {
    let server = shop();
    server.forbid("nodes", true);
    let options = with(|options| (options.node_weights, options.node_addresses) = (true, true));
    let mut watching = watch(&server, options).await;
    let snapshot = watching.snapshot().await;
    assert!(snapshot.node.is_none() && snapshot.cluster_nodes.is_empty() && !snapshot.services.is_empty());
}

fn cidr(name: &str, cidrs: &[&str]) -> Value {
    json!({
        "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": name}, "spec": {"cidrs": cidrs},
    })
}

/// Local routes of IPVS mode on a node on paper.
fn routes(kernel: &Sketch) -> Vec<String> {
    kernel.state().routes.into_iter().map(|(_, route)| route.network.to_string()).collect()
}

/// The reconciler on a node on paper, which is fed from a server.
struct Serving {
    watching: Watching,
    engine: Engine<Sketch>,
    /// Time by which the engine's clock is ahead.
    ahead: Duration,
}

impl Serving {
    /// Starts a source and an engine, and runs the first pass.
    async fn start(server: &ApiServer, options: Options) -> Self {
        let line =
            "run --hostname-override n1 --proxy-mode ipvs --ipvs-binding routes --ipvs-service-cidrs 10.111.0.0/16";
        let configured = configured(line);
        assert!(Options::from_settings(&configured.settings).service_cidrs);
        let engine = Engine::in_memory(&configured, Sketch::default());
        let mut serving = Serving { watching: watch(server, options).await, engine, ahead: Duration::ZERO };
        serving.until(|change| *change == Change::Synced).await;
        serving
    }

    /// Takes changes until `is_last` holds for one; then runs a pass.
    async fn until(&mut self, is_last: impl Fn(&Change) -> bool) {
        loop {
            let change = self.watching.next().await;
            let done = is_last(&change);
            self.engine.apply_change(change, Instant::now());
            if done {
                break;
            }
        }
        // Removed routes need a second pass.
        for _ in 0..2 {
            self.ahead += Duration::from_secs(60);
            if let Some(report) = self.engine.pass_ahead(self.ahead) {
                assert!(!report.has_failed(), "{report:#?}");
            }
        }
    }
}

#[tokio::test]
async fn networks_of_services_are_those_of_the_cluster() {
    let server = ApiServer::start();
    for version in [ServiceCidrs::V1, ServiceCidrs::V1beta1] {
        server.serve_service_cidrs(version);
        server.put(&cidr("kubernetes", &["10.96.0.0/16", "fd00:10::/112"]));
        server.put(&service("web", 80));
        let mut serving = Serving::start(&server, with(|options| options.service_cidrs = true)).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.0/16", "fd00:10::/112"], "{version:?}");
        server.put(&cidr("more", &["10.97.0.0/16"]));
        serving.until(|change| matches!(change, Change::ServiceCidr(name, _) if name == "more")).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.0/16", "10.97.0.0/16", "fd00:10::/112"]);
        // A ServiceCIDR that cannot be read changes nothing.
        server.put(&cidr("more", &["10.97.0.0/16", "0.0.0.0/0"]));
        assert!(serving.watching.line().await.contains("ServiceCIDR more: spec.cidrs[1]"));
        // A break, in which one is deleted: the next list shows it.
        server.delete_silently("servicecidrs", "", "kubernetes");
        server.compact();
        server.end_watches();
        serving.until(|change| *change == Change::ServiceCidrGone("kubernetes".to_owned())).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.9/32", "10.97.0.0/16"], "the Service keeps its address");
        server.delete("servicecidrs", "", "more");
        serving.until(|change| *change == Change::ServiceCidrGone("more".to_owned())).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.9/32", "10.111.0.0/16"], "those of the configuration");
    }
}

/// A server that has no ServiceCIDRs, or forbids them: no failure, asked for seldom, and taken when they come.
#[tokio::test]
async fn a_server_without_networks_of_services_leaves_them_to_the_configuration() {
    for is_forbidden in [false, true] {
        let server = ApiServer::start();
        if is_forbidden {
            server.serve_service_cidrs(ServiceCidrs::V1);
            server.forbid("servicecidrs", true);
        }
        server.put(&cidr("kubernetes", &["10.96.0.0/16"]));
        server.put(&service("web", 80));
        let mut options = quick();
        // The Node never comes, and is waited for; these are not.
        options.node_patience = Duration::from_secs(1);
        options.service_cidrs = true;
        options.absent_pause = Duration::from_secs(2);
        let mut serving = Serving::start(&server, options).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.9/32", "10.111.0.0/16"]);
        assert_eq!(serving.watching.failures(), 0);
        let asked = || requests(&server, "servicecidrs", false);
        assert_eq!(asked(), if is_forbidden { 1 } else { 2 }, "in v1, and in v1beta1");
        server.serve_service_cidrs(ServiceCidrs::V1);
        server.forbid("servicecidrs", false);
        serving.until(|change| matches!(change, Change::ServiceCidr(..))).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.0/16"]);
    }
}

#[tokio::test]
async fn networks_of_services_are_not_asked_for_without_need() {
    let server = shop();
    server.serve_service_cidrs(ServiceCidrs::V1);
    let mut watching = watch(&server, quick()).await;
    watching.snapshot().await;
    assert!(server.requests().iter().all(|request| !request.path.contains("servicecidrs")));
    for line in ["--proxy-mode ipvs", "--proxy-mode nftables --ipvs-binding routes"] {
        let configured = configured(&format!("run --hostname-override n1 {line}"));
        assert!(!Options::from_settings(&configured.settings).service_cidrs, "{line}");
    }
}

/// Reports about Services until their list is complete, with the beginnings of lists.
async fn until_listed(watching: &mut Watching) -> String {
    let mut lines = Vec::new();
    loop {
        let event = tokio::time::timeout(Duration::from_secs(10), watching.changes.recv()).await;
        match event.expect("a change within 10 s").expect("a source that runs").change {
            Change::Listed(ObjectKind::Service) => return lines.join(" ").replace("service default/", ""),
            Change::Listing(ObjectKind::Service) => lines.push("list:".to_owned()),
            change if line(&change).contains("service ") => lines.push(line(&change)),
            _ => {}
        }
    }
}

/// Services a, b and c, in this order.
fn three_services() -> ApiServer {
    let server = ApiServer::start();
    for name in ["a", "b", "c"] {
        server.put(&service(name, 80));
    }
    server.put_list(recorded::ENDPOINT_SLICES);
    server.put_list(recorded::NODE);
    server
}

/// A bookmark as servers send it now and then.
fn bookmark(version: u64) -> String {
    let object = json!({"kind": "Service", "apiVersion": "v1", "metadata": {"resourceVersion": version.to_string()}});
    format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
}

/// A watch that breaks in the middle of all objects: those that came count, nothing is complete, and the same is asked again; then a list.
#[tokio::test]
async fn a_start_that_breaks_in_the_middle_goes_on() {
    let all = "watch sendInitialEvents=true";
    for (faults, reported, next) in [
        (vec![Fault::Cut(300)], "list: +a list: +b +c", all),
        (vec![Fault::Text(added("a", 1001))], "list: +a list: +b +c", all),
        (vec![Fault::Cut(300), Fault::Cut(300)], "list: +a list: list: +b +c", "list"),
        (vec![Fault::Text(added("a", 1001) + &bookmark(1003))], "list: +a list: +b +c", "list"),
        (vec![Fault::Status(500, None)], "list: +a +b +c", "list resourceVersion=0"),
        (vec![Fault::Status(429, Some(1))], "list: +a +b +c", all),
    ] {
        let server = three_services();
        for fault in &faults {
            server.fail_next("services", Verb::List, fault.clone());
        }
        let mut watching = watch(&server, in_json()).await;
        assert_eq!(until_listed(&mut watching).await, reported, "{faults:?}");
        let questions = questions(&server);
        assert_eq!(questions[faults.len()], next, "{faults:?}");
        assert!(questions[..faults.len()].iter().all(|question| question == all), "{questions:?}");
    }
}

#[tokio::test]
async fn a_later_list_that_breaks_in_the_middle_takes_nothing_away() {
    for (fault, of_now) in [
        (Fault::Cut(300), false),
        (Fault::Text(added("b", 1002)), false),
        (Fault::Text(added("b", 1002) + TOO_OLD), true),
    ] {
        let server = three_services();
        let mut watching = settled(&server, in_json()).await;
        let version = server.version();
        server.outage(true);
        server.delete("services", "default", "a");
        server.put(&service("d", 80));
        server.compact();
        server.fail_next("services", Verb::List, fault.clone());
        server.outage(false);
        assert_eq!(until_listed(&mut watching).await, "list: list: +d -a", "{fault:?}");
        let questions = questions(&server);
        let since = if of_now { String::new() } else { format!(" resourceVersion={version}") };
        let last = format!("watch sendInitialEvents=true{since}");
        assert_eq!(questions.last(), Some(&last), "{fault:?}: it goes on as a watch: {questions:#?}");
        watching.ends_with(&server).await;
    }
}

/// The event that ends a watch whose version the server has forgotten.
const TOO_OLD: &str =
    "{\"type\":\"ERROR\",\"object\":{\"code\":410,\"reason\":\"Expired\",\"message\":\"too old resource version\"}}\n";

/// Lists that are older than what is known, as of a server that lags behind another one.
#[tokio::test]
async fn time_does_not_go_backwards() {
    for streams in [Streams::Served, Streams::Refused] {
        let server = ApiServer::start();
        server.serve_streams(streams);
        server.start_from(2000);
        let version = server.put(&service("web", 80));
        server.put(&service("more", 80));
        let mut watching = watch(&server, quick()).await;
        watching.snapshot().await;
        wait_for("a watch", || server.watches("services") == 1).await;
        let lists = |items: &[(&str, u64)], version: u64| {
            if streams == Streams::Served {
                items.iter().map(|(name, version)| added(name, *version)).collect::<String>() + &end_of_all(version)
            } else {
                let items = items.iter().map(|(name, version)| with_version(service(name, 81), *version));
                let metadata = json!({"resourceVersion": version.to_string()});
                json!({"metadata": metadata, "items": items.collect::<Vec<_>>()}).to_string()
            }
        };
        // An older object in a list that claims to be new; then a whole list from the past, which the list of now follows.
        let now = server.version();
        server.compact();
        server.fail_next("services", Verb::List, Fault::Text(lists(&[("web", version - 1), ("more", now)], now)));
        server.fail_next("services", Verb::Watch, Fault::Status(410, None));
        server.fail_next("services", Verb::Watch, Fault::Status(410, None));
        server.fail_next("services", Verb::List, Fault::Text(lists(&[], now - 1)));
        server.cut_watches();
        wait_for("the list of now", || {
            let questions = questions(&server);
            let all = if streams == Streams::Served { "watch sendInitialEvents=true" } else { "list" };
            questions.iter().skip(1).any(|question| question == all)
        })
        .await;
        if streams == Streams::Refused {
            wait_for("a watch", || requests(&server, "/services", true) == 4).await;
        }
        watching.ends_with(&server).await;
    }
}

/// Requests and bytes of a start, and of one where all objects come in pages.
#[tokio::test]
async fn a_start_is_one_request_for_each_kind() {
    const SERVICES: usize = 1000;
    let server = crowd(SERVICES);
    server.put(&json!({"kind": "Node", "metadata": {"name": "n1"}}));
    server.serve_service_cidrs(ServiceCidrs::V1);
    let options = with(|options| (options.service_cidrs, options.patience) = (true, Duration::from_secs(10)));
    let latency = Duration::from_millis(50);
    server.set_latency(latency);
    for (streams, requests, in_turn) in [(Streams::Served, 4, 1), (Streams::Refused, 12, 2)] {
        server.serve_streams(streams);
        let (asked, sent, start) = (server.requests().len(), server.sent(), Instant::now());
        let mut watching = watch(&server, options.clone()).await;
        assert_eq!(watching.snapshot().await.services.len(), SERVICES);
        wait_for("all questions", || server.requests().len() - asked >= requests).await;
        assert_eq!(server.requests().len() - asked, requests, "{streams:?}");
        let took = start.elapsed();
        assert!(took >= latency * in_turn, "{took:?}");
        println!("{streams:?}: {requests} requests, {} bytes, {took:?}", server.sent() - sent);
    }
}

/// A server that repeats a page, or one behind a cache that does.
#[tokio::test]
async fn a_list_that_makes_no_progress_is_given_up_and_asked_for_with_pauses() {
    let server = shop();
    server.serve_streams(Streams::Refused);
    let item = with_version(service("web", 80), 3);
    let page =
        json!({"kind": "ServiceList", "metadata": {"resourceVersion": "5", "continue": "same"}, "items": [item]});
    fail(&server, "services", Verb::List, &Fault::Text(page.to_string()), 200);
    let mut watching = watch(&server, in_json()).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = requests(&server, "/services", false);
    assert!((3..60).contains(&asked), "{asked} requests");
    assert!(watching.failures() >= 3);
    server.clear_faults();
    assert!(!watching.snapshot().await.services.is_empty());
}

#[tokio::test]
async fn a_first_list_that_drips_is_asked_for_in_another_way() {
    for (streams, verb) in [(Streams::Served, Verb::Watch), (Streams::Refused, Verb::List)] {
        let server = shop();
        server.serve_streams(streams);
        server.fail_next("services", verb, Fault::Slow(Duration::from_millis(150)));
        let started = Instant::now();
        let mut watching = watch(&server, in_json()).await;
        let whole = server.requests().len();
        assert!(!watching.snapshot().await.services.is_empty(), "{whole}");
        assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
        assert!(requests(&server, "/services", false) >= 1);
        assert!(watching.failures() <= 2);
    }
}

/// Events of which nobody can tell the object are passed over, and all objects asked for again after the watch; a list with such an object takes
/// nothing away.
#[tokio::test]
async fn objects_without_names_take_nothing_away() {
    let server = ApiServer::start();
    let web = with_version(service("web", 80), server.put(&service("web", 80)));
    server.put(&service("gone", 80));
    let mut watching = settled(&server, in_json()).await;
    server.send_raw("services", "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":");
    assert!(watching.line().await.starts_with("API server: Service: an event that cannot be read: "));
    let new = with_version(service("new", 80), server.put(&service("new", 80)));
    assert_eq!(watching.line().await, "+service default/new", "the watch goes on");
    server.delete_silently("services", "default", "gone");
    let nameless = json!({"metadata": {"resourceVersion": "3", "namespace": "default"}, "spec": {}});
    let list = |items: Value, version: u64| {
        json!({"kind": "ServiceList", "metadata": {"resourceVersion": version.to_string()}, "items": items}).to_string()
    };
    let version = server.version();
    let items = json!([web, new, nameless]);
    server.serve_streams(Streams::Refused);
    server.fail_next("services", Verb::List, Fault::Text(list(items, version)));
    server.end_watches();
    assert_eq!(watching.line().await, "API server: Service: it has no name that can be read");
    // The next list is whole.
    watched(&server).await;
    server.send_raw("services", "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":");
    assert!(watching.line().await.starts_with("API server: Service: an event that cannot be read: "));
    server.end_watches();
    assert_eq!(watching.line().await, "-service default/gone");
    let Change::Readable(ObjectKind::Service, key) = watching.next().await else {
        panic!("the unnamed one is still there")
    };
    assert_eq!(key.name(), "");
}

#[tokio::test]
async fn a_service_that_cannot_be_read_is_explained() {
    let server = shop();
    let mut bad = service("bad", 80);
    bad["spec"]["ports"] = 5.into();
    server.put(&bad);
    let explain =
        move || text(&demo(&["explain", "default/bad", "--master", &server.url(), "--proxy-mode", "nftables"]).stderr);
    let said = tokio::task::spawn_blocking(explain).await.unwrap();
    assert!(said.contains("\nproxier-demo: Service default/bad: spec.ports"), "{said}");
    assert!(said.contains("a running proxy goes on serving it as it was when it could be read"), "{said}");
}

/// Each obstacle between the two ends of TLS is named; a certificate may be in the kubeconfig, and the server may have a name.
#[test]
fn what_is_wrong_with_tls_is_said() {
    let (server, folder) = (shop(), Folder::new("tls"));
    let [ours, theirs, clients] = ["ours", "theirs", "clients"].map(Authority::new);
    let relay = Relay::start(&ours, server.address(), Some(&clients));
    let identity = clients.client("system:kube-proxy");
    let known = json!({
        "client-certificate": folder.put("client.crt", &identity.certificate),
        "client-key": folder.put("client.key", &identity.key),
    });
    let [right, wrong] = [("ca.crt", &ours), ("other.crt", &theirs)]
        .map(|(name, of)| json!({"certificate-authority": folder.put(name, &of.certificate())}));
    let within = json!({"certificate-authority-data": ByteString(ours.certificate().into_bytes())});
    let (url, by_name) = (relay.url(), relay.url().replace("127.0.0.1", "localhost"));
    for (url, cluster, user, code, expected) in [
        (&url, &wrong, &known, 1, "not signed by the certificate-authority that is configured"),
        (&url, &right, &json!({}), 1, "it wants a client certificate"),
        (&url, &right, &known, 0, "Service shop/dns"),
        (&by_name, &within, &known, 0, "Service shop/dns"),
    ] {
        let path = folder.put("kubeconfig", &kubeconfig(url, cluster, user)).display().to_string();
        let explained = demo(&["explain", "shop/dns", "--kubeconfig", &path, "--input-timeout", "1s"]);
        let said = text(&explained.stdout) + &text(&explained.stderr);
        assert_eq!(explained.status.code(), Some(code), "{said}");
        assert!(said.contains(expected) && (code == 0 || said.contains(&format!("no answer from {url}"))), "{said}");
    }
}

/// Neither the log nor the counts by host have the user and the password of a URL.
#[tokio::test]
async fn a_password_in_the_servers_url_is_not_repeated() {
    let of = |url: &str| Connection { master: Some(url.to_owned()), ..Connection::default() };
    for url in ["http://user:PASSW0RD@127.0.0.1:1", "https://user:PASSW0RD@127.0.0.1:1/x", "http://user:PASSW0RD@"] {
        let (sender, _changes) = channel();
        let started = Cluster::start(of(url), "n1", quick(), sender).await;
        let said = started.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert!(!said.contains("PASSW0RD"), "{said}");
        assert_eq!(started.is_err(), url.ends_with('@'), "{said}");
        if let Ok(cluster) = &started {
            let failures = || cluster.counters().failures.load(std::sync::atomic::Ordering::Relaxed);
            wait_for("requests that fail", || failures() > 3).await;
        }
    }
    let page = proxier_demo::sources::cluster::requests::counted();
    assert!(!format!("{page:?}").contains("PASSW0RD"));
}

/// A version that is damaged on its way is not what the next watch begins at, nor what lists are asked for without end.
#[tokio::test]
async fn a_damaged_version_does_not_blind_the_watch() {
    let server = shop();
    let mut watching = settled(&server, in_json()).await;
    let mut damaged = service("damaged", 80);
    damaged["metadata"]["resourceVersion"] = "1\u{1}3".into();
    server.send_raw("services", &json!({"type": "ADDED", "object": damaged}).to_string());
    assert_eq!(watching.line().await, "+service default/damaged");
    server.end_watches();
    watching.ends_with(&server).await;
    let versions: Vec<Option<String>> =
        server.requests().iter().map(|request| request.parameter("resourceVersion").map(str::to_owned)).collect();
    assert!(versions.iter().flatten().all(|version| version.parse::<u64>().is_ok()), "{versions:?}");
}

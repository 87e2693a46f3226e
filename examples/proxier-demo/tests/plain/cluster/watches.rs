//! Changes: watches that end, fail, lag behind or bring nonsense.

use super::*;

/// A server at this version, with one Service, and a source that watches it.
async fn watched_at(version: u64) -> (ApiServer, Watching) {
    let server = shop();
    server.start_from(version);
    server.put(&service("web", 80));
    let watching = settled(&server, quick()).await;
    (server, watching)
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

/// A load balancer in front of the server cuts connections that are quiet.
#[tokio::test]
async fn quiet_watches_that_are_cut_after_a_while_need_no_list() {
    let server = shop();
    let mut watching = settled(&server, with(|options| options.longest_pause = Duration::from_millis(50))).await;
    for _ in 0..7 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.cut_watches();
        watched(&server).await;
    }
    assert_eq!(requests(&server, "/services", false), 1);
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
        server.bookmark();
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
    let server = shop();
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

/// A server that calls every version too old, even that of the list just before, does not get list requests without a pause.
#[tokio::test]
async fn a_server_that_takes_every_version_for_too_old_is_given_time() {
    let server = shop();
    fail(&server, "services", Verb::Watch, &Fault::Status(410, None), 200);
    let mut watching = watch(&server, quick()).await;
    watching.snapshot().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let count = requests(&server, "/services", false);
    assert!((4..=25).contains(&count), "{count} times all Services in two seconds");
}

/// A server restored from a backup counts its versions from further back: a watch from the earlier version would get nothing. The next bookmark shows
/// the restoration.
#[tokio::test]
async fn a_bookmark_from_the_past_is_a_new_list() {
    let (server, mut watching) = watched_at(2000).await;
    let before = asked(&server, "/services").len();
    server.start_from(500);
    server.put(&service("web", 81));
    server.bookmark();
    let Change::UpsertService(web) = watching.next().await else { panic!("not a Service") };
    assert_eq!(web.spec.ports[0].port, 81);
    // Of now, whatever was there before.
    assert_eq!(question(&asked(&server, "/services")[before]), "list");
    wait_for("a watch from there on", || requests(&server, "/services", true) == 2).await;
    watching.ends_with(&server).await;
}

/// The server forgets the version, and then comes back as one restored from a backup: it does not have that version yet.
#[tokio::test]
async fn a_server_that_is_behind_is_asked_for_what_it_has() {
    let (server, mut watching) = watched_at(2000).await;
    let since = format!("resourceVersion={}", server.version());
    server.fail_next("services", Verb::Watch, Fault::Status(410, None));
    server.start_from(500);
    server.put(&service("web", 81));
    let before = asked(&server, "/services").len();
    server.cut_watches();
    let Change::UpsertService(web) = watching.next().await else { panic!("not a Service") };
    assert_eq!(web.spec.ports[0].port, 81);
    let questions: Vec<String> = asked(&server, "/services")[before..].iter().map(question).collect();
    assert_eq!(questions[..3], [format!("watch {since}"), format!("list {since}"), "list".to_owned()]);
    wait_for("a watch from there on", || requests(&server, "/services", true) == 3).await;
    watching.ends_with(&server).await;
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
    for options in in_both_encodings() {
        all_failures_pass(options).await;
    }
}

async fn all_failures_pass(options: Options) {
    let server = shop();
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
    let reason = "invalid type: string \"http\", expected a whole number";
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
    let problems: Vec<String> = snapshot.unreadable.iter().map(|of| of.problem.to_string()).collect();
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

/// A list of Services on another port, with their versions, as of a version.
fn list_of(items: &[(&str, u64)], version: u64) -> Fault {
    let items = items.iter().map(|(name, version)| with_version(service(name, 81), *version));
    let metadata = json!({"resourceVersion": version.to_string()});
    Fault::Text(json!({"metadata": metadata, "items": items.collect::<Vec<_>>()}).to_string())
}

/// A list that is older than what is known, as of a server that lags behind another one: the list of now follows.
#[tokio::test]
async fn time_does_not_go_backwards() {
    let (server, mut watching) = watched_at(2000).await;
    server.fail_next("services", Verb::Watch, Fault::Status(410, None));
    server.fail_next("services", Verb::List, list_of(&[], server.version() - 1));
    server.cut_watches();
    wait_for("the list of now", || questions(&server).iter().any(|question| question == "list")).await;
    wait_for("a watch", || requests(&server, "/services", true) == 3).await;
    watching.ends_with(&server).await;
}

/// A server restored from a backup, whose versions go on after those before (`etcdutl snapshot restore --bump-revision`): objects are as they were,
/// with smaller versions, and deleted ones are back.
#[tokio::test]
async fn a_list_of_a_restored_server_counts_as_it_is() {
    let (server, mut watching) = watched_at(2000).await;
    let before = server.put(&service("gone", 80));
    assert_eq!(watching.line().await, "+service default/gone");
    server.delete("services", "default", "gone");
    assert_eq!(watching.line().await, "-service default/gone");
    server.compact();
    server.fail_next("services", Verb::Watch, Fault::Status(410, None));
    server.fail_next("services", Verb::List, list_of(&[("web", 1000), ("gone", before)], server.version()));
    server.cut_watches();
    for name in ["web", "gone"] {
        let Change::UpsertService(service) = watching.next().await else { panic!("not a Service") };
        assert_eq!((&*service.metadata.name, service.spec.ports[0].port), (name, 81));
    }
    assert!(watching.line().await.starts_with("-service shop/"));
    wait_for("a watch", || requests(&server, "/services", true) == 3).await;
    watching.ends_with(&server).await;
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

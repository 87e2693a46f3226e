//! All objects of a kind: what is asked for, in which pieces, and answers that break, drip, repeat or are too large.

use super::*;

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
        if !request.is_watch() {
            // From the server's memory, in one answer.
            assert_eq!((parameter("resourceVersion"), request.parameter("limit")), ("0", None));
            continue;
        }
        assert_eq!(parameter("allowWatchBookmarks"), "true");
        assert_eq!(parameter("resourceVersion"), server.version().to_string());
        let seconds: u64 = parameter("timeoutSeconds").parse().unwrap();
        assert!((300..=450).contains(&seconds), "{seconds}");
    }
    assert_eq!(server.requests().len(), 6, "a list and a watch of each kind");
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

#[tokio::test]
async fn a_version_that_is_too_old_is_asked_for_in_a_list() {
    let server = shop();
    let mut watching = watch(&server, quick()).await;
    watching.snapshot().await;
    wait_for("a watch", || requests(&server, "/services", true) == 1).await;
    let since = format!("resourceVersion={}", server.version());
    server.delete_silently("services", "shop", "dns");
    server.compact();
    server.cut_watches();
    assert_eq!(watching.line().await, "-service shop/dns");
    let questions = questions(&server);
    let expected = ["list resourceVersion=0".to_owned(), format!("watch {since}"), format!("watch {since}")];
    assert_eq!(questions[..3], expected);
    assert_eq!(questions[3], format!("list {since}"), "not older than that one");
}

/// Options for JSON in pages, each and a whole list limited to this many bytes.
fn in_pages(page: usize, page_bytes: usize) -> Options {
    with(|options| (options.protobuf, options.page, options.page_bytes) = (false, page, page_bytes))
}

/// Pages are for answers that are too large.
#[tokio::test]
async fn lists_come_in_pages() {
    let server = crowd(7);
    let mut watching = watch(&server, in_pages(3, 800)).await;
    assert_eq!(watching.snapshot().await.services.len(), 7);
    let questions = questions(&server);
    assert_eq!(questions[..2], ["list resourceVersion=0", "list limit=3"]);
    assert!(questions[2..4].iter().all(|question| question.starts_with("list limit=3 continue=")), "{questions:?}");
}

/// A list begins anew if it expires between two pages, or if a later page is of another version: an empty answer in place of one would take away
/// everything that the first pages do not have.
#[tokio::test]
async fn a_list_that_changes_between_two_pages_begins_anew() {
    let other = r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#;
    for fault in [Fault::Status(410, None), Fault::Text(other.to_owned())] {
        let server = crowd(5);
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
    let server = shop();
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
    let mut watching = watch(&server, quick()).await;
    let snapshot = watching.snapshot().await;
    assert!(snapshot.services.is_empty() && snapshot.slices.is_empty());
    watched(&server).await;
    watching.ends_with(&server).await;
}

/// The next list of a kind is empty by mistake, of a version that cannot be watched any more. Service `d` is new then.
fn answers_empty_once(server: &ApiServer, resource: &str) {
    let empty = json!({"metadata": {"resourceVersion": server.version().to_string()}, "items": []});
    server.outage(true);
    server.put(&service("d", 80));
    server.compact();
    server.fail_next(resource, Verb::List, Fault::Text(empty.to_string()));
    server.outage(false);
}

/// Something in front of the server mixes its answers up. What is known is not missing from a list of something else.
#[tokio::test]
async fn a_list_of_another_kind_takes_nothing_away() {
    let server = three_services();
    let mut watching = settled(&server, quick()).await;
    server.outage(true);
    let version = server.put(&service("d", 80));
    server.compact();
    let pods = json!({
        "kind": "PodList", "metadata": {"resourceVersion": version.to_string()},
        "items": [with_version(service("pod", 80), version)],
    });
    server.fail_next("services", Verb::List, Fault::Text(pods.to_string()));
    server.outage(false);
    assert_eq!(until_listed(&mut watching).await, "list: list: +d");
}

/// Few Services are removed at once, so an empty answer by mistake would take them all away for a moment.
#[tokio::test]
async fn an_empty_later_list_takes_nothing_away_before_its_version_can_be_watched() {
    let server = three_services();
    let mut watching = settled(&server, quick()).await;
    answers_empty_once(&server, "services");
    assert_eq!(until_listed(&mut watching).await, "list: list: +d");
    // One that can be watched is believed.
    server.outage(true);
    for name in ["a", "b", "c", "d"] {
        server.delete_silently("services", "default", name);
    }
    server.compact();
    server.outage(false);
    let gone = until_listed(&mut watching).await;
    assert!(gone.starts_with("list: -") && gone.matches(" -").count() == 4, "{gone}");
    watching.ends_with(&server).await;
}

/// Load balancers would leave this node.
#[tokio::test]
async fn an_empty_list_does_not_take_the_node_away_before_its_version_can_be_watched() {
    let server = three_services();
    let mut watching = settled(&server, quick()).await;
    answers_empty_once(&server, "nodes");
    watched(&server).await;
    assert_eq!(watching.line().await, "+service default/d");
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

#[tokio::test]
async fn huge_answers_are_asked_for_in_smaller_pages() {
    let server = crowd(20);
    let mut watching = watch(&server, in_pages(500, 1000)).await;
    assert_eq!(watching.snapshot().await.services.len(), 20);
    let limits: BTreeSet<String> =
        server.requests().iter().filter_map(|request| request.parameter("limit").map(str::to_owned)).collect();
    assert!(limits.contains("500") && limits.contains("1") | limits.contains("7"), "{limits:?}");

    server.fail_next("nodes", Verb::List, Fault::Padded(100_000));
    let mut watching = watch(&server, in_json()).await;
    assert_eq!(watching.snapshot().await.services.len(), 20, "large, but not too large");
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
    server.fail_next("services", Verb::List, Fault::Slow(Duration::from_millis(250)));
    let start = Instant::now();
    let snapshot =
        initial_list::read(&limited("3s"), with(|options| options.patience = Duration::from_secs(30))).await.unwrap();
    assert_eq!(snapshot.services.len(), 21);
    assert!(start.elapsed() > Duration::from_secs(3), "longer than the limit, all in all: {:?}", start.elapsed());
}

/// Neither failed requests nor new attempts count as answers.
#[tokio::test]
async fn a_limit_that_ends_where_nothing_answers() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = ApiServer::start();
    fail(&server, "services", Verb::List, &Fault::Status(500, None), 1000);
    for (master, options) in [(format!("http://{address}"), Options::default()), (server.url(), quick())] {
        let configured = configured(&format!("plan --hostname-override n1 --master {master} --input-timeout 2s"));
        let start = Instant::now();
        let unread = initial_list::read(&configured, options).await.unwrap_err();
        assert_eq!(unread.code, exit::FAILED, "{unread:?}");
        assert!((2.0..4.0).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
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

/// A list that breaks in the middle: the objects that came count, nothing is complete, and the same is asked again.
#[tokio::test]
async fn a_start_that_breaks_in_the_middle_goes_on() {
    for (faults, reported) in [
        (vec![Fault::Cut(100)], "list: +a list: +b +c"),
        (vec![Fault::Cut(100), Fault::Cut(100)], "list: +a list: list: +b +c"),
        (vec![Fault::Status(500, None)], "list: list: +a +b +c"),
        (vec![Fault::Status(429, Some(1))], "list: list: +a +b +c"),
    ] {
        let server = three_services();
        for fault in &faults {
            server.fail_next("services", Verb::List, fault.clone());
        }
        let mut watching = watch(&server, quick()).await;
        assert_eq!(until_listed(&mut watching).await, reported, "{faults:?}");
        let questions = questions(&server);
        let all = "list resourceVersion=0";
        assert!(questions[..=faults.len()].iter().all(|question| question == all), "{questions:?}");
    }
}

#[tokio::test]
async fn a_later_list_that_breaks_in_the_middle_takes_nothing_away() {
    for (fault, of_now) in [(Fault::Cut(100), false), (Fault::Status(410, None), true)] {
        let server = three_services();
        let mut watching = settled(&server, quick()).await;
        let version = server.version();
        server.outage(true);
        server.delete("services", "default", "a");
        server.put(&service("d", 80));
        server.compact();
        server.fail_next("services", Verb::List, fault.clone());
        server.outage(false);
        assert_eq!(until_listed(&mut watching).await, "list: list: +d -a", "{fault:?}");
        let mut lists = asked(&server, "/services").into_iter().filter(|request| !request.is_watch());
        let since = if of_now { String::new() } else { format!(" resourceVersion={version}") };
        assert_eq!(question(&lists.next_back().unwrap()), format!("list{since}"), "{fault:?}");
        watching.ends_with(&server).await;
    }
}

/// Requests and bytes of a start.
#[tokio::test]
async fn a_start_is_a_list_and_a_watch_of_each_kind() {
    const SERVICES: usize = 1000;
    let server = crowd(SERVICES);
    server.put(&json!({"kind": "Node", "metadata": {"name": "n1"}}));
    server.serve_service_cidrs(ServiceCidrs::V1);
    let options = with(|options| (options.service_cidrs, options.patience) = (true, Duration::from_secs(10)));
    let latency = Duration::from_millis(50);
    server.set_latency(latency);
    let start = Instant::now();
    let mut watching = watch(&server, options).await;
    assert_eq!(watching.snapshot().await.services.len(), SERVICES);
    let took = start.elapsed();
    assert!(took >= latency, "{took:?}");
    wait_for("all questions", || server.requests().len() >= 8).await;
    assert_eq!(server.requests().len(), 8);
    println!("{} bytes, {took:?}", server.sent());
}

/// A server that repeats a page, or one behind a cache that does.
#[tokio::test]
async fn a_list_that_makes_no_progress_is_given_up_and_asked_for_with_pauses() {
    let server = shop();
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
async fn a_first_list_that_drips_is_asked_for_again() {
    let server = shop();
    server.fail_next("services", Verb::List, Fault::Slow(Duration::from_millis(150)));
    let started = Instant::now();
    let mut watching = watch(&server, in_json()).await;
    assert!(!watching.snapshot().await.services.is_empty());
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    assert!(requests(&server, "/services", false) >= 2);
    assert!(watching.failures() <= 2);
}

//! The servers of health and metrics, and of Services' health checks, as their clients see them.
//!
//! A program of its own: ports are closed and opened again, and a program that another test starts holds them from its fork to its exec.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use proxier_core::config::{Config, Families, NodePortAddresses};
use proxier_core::modes::Kind;
use proxier_core::net::ByFamily;
use proxier_core::service::{HealthCheck, NodeFacts, OpenOn};
use proxier_core::snapshot::{HostAddresses, Node, ObjectKey};
use proxier_demo::settings::cli;
use proxier_demo::sources::cluster::Options;
use proxier_demo::sources::initial_list;
use proxier_demo::status::health::Health;
use proxier_demo::status::serve::{listen, serve_health, serve_metrics};
use proxier_demo::status::service_health::{ListenAddresses, ServiceHealth, listen_addresses};
use serde_json::{Value, json};
use testkit::apiserver::ApiServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct Got {
    status: u16,
    headers: String,
    body: String,
}

impl Got {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

async fn get(address: SocketAddr, path: &str) -> Got {
    ask(address, "GET", path).await.unwrap()
}

async fn ask(address: SocketAddr, method: &str, path: &str) -> std::io::Result<Got> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let (headers, body) = text.split_once("\r\n\r\n").unwrap();
    Ok(Got { status: headers[9..12].parse().unwrap(), headers: headers.to_lowercase(), body: body.to_owned() })
}

async fn local() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Nanoseconds of processor time that this thread has taken.
fn busy() -> u64 {
    let times = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    times.split(' ').next().unwrap().parse().unwrap()
}

/// A sandbox may let a program listen and not accept.
#[tokio::test]
async fn a_server_that_accepts_nothing_takes_no_processor_time() {
    let (listener, _) = local().await;
    // Each attempt to accept fails at once.
    nix::sys::socket::shutdown(listener.as_raw_fd(), nix::sys::socket::Shutdown::Read).unwrap();
    let before = busy();
    let health = Health::new(Duration::from_secs(30), Families::Dual);
    let served = tokio::time::timeout(Duration::from_millis(500), serve_health(listener, health)).await;
    let taken = Duration::from_nanos(busy() - before);
    assert!(served.is_err() && taken < Duration::from_millis(100), "{taken:?}");
}

/// Listens on these addresses.
fn on(addresses: &[IpAddr]) -> ListenAddresses {
    let of = |v4: bool| OpenOn::These(addresses.iter().copied().filter(|address| address.is_ipv4() == v4).collect());
    ListenAddresses { v4: of(true), v6: of(false) }
}

const EVERYWHERE: ListenAddresses = ListenAddresses { v4: OpenOn::All, v6: OpenOn::All };

fn has_ipv6() -> bool {
    std::net::TcpListener::bind("[::1]:0").is_ok()
}

/// A port that stays free. The kernel gives nobody a port below 32768 (`ip_local_port_range`), and other test programs
/// begin at another one.
async fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let offset = std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + u16::try_from(offset % 20_000).unwrap();
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.is_ok() {
            return port;
        }
    }
}

/// The check of a Service `demo/web`, with these numbers of endpoints here.
fn web(port: u16, v4: Option<usize>, v6: Option<usize>) -> BTreeMap<ObjectKey, HealthCheck> {
    BTreeMap::from([(ObjectKey::new("demo", "web"), HealthCheck { port, local_endpoints: ByFamily { v4, v6 } })])
}

#[tokio::test]
async fn healthz_and_livez_say_what_kube_proxy_says() {
    let health = Health::new(Duration::from_secs(30), Families::Dual);
    let (listener, address) = local().await;
    tokio::spawn(serve_health(listener, health.clone()));

    let got = get(address, "/healthz").await;
    assert_eq!(got.status, 200);
    assert!(got.headers.contains("content-type: application/json\r\n"), "{}", got.headers);
    assert!(got.headers.contains("x-content-type-options: nosniff"), "{}", got.headers);
    let body = got.json();
    assert_eq!(body["nodeEligible"], true);
    assert_eq!(body["healthy"], true);
    assert_eq!(body["lastUpdated"], body["currentTime"], "what is up to date is so now");
    assert_eq!(body["status"]["IPv4"]["healthy"], true);
    assert_eq!(body["status"]["IPv6"]["healthy"], true);
    let time = body["currentTime"].as_str().unwrap();
    assert!(time.len() > 19 && time.ends_with('Z') && time.as_bytes()[10] == b'T', "RFC 3339: {time}");
    assert!(get(address, "/livez").await.json().get("nodeEligible").is_none());

    // Pending for less than two sync periods is healthy.
    let now = Instant::now();
    let Some(earlier) = now.checked_sub(Duration::from_secs(61)) else { return };
    health.set_pending(Some(now));
    assert_eq!(get(address, "/healthz").await.status, 200);
    assert_eq!([59, 61].map(|secs| health.is_healthy(now + Duration::from_secs(secs))), [true, false]);
    health.updated(SystemTime::now() - Duration::from_secs(90));
    health.set_pending(Some(earlier));
    let got = get(address, "/healthz").await;
    assert_eq!((got.status, &got.json()["healthy"]), (503, &json!(false)));
    assert_ne!(got.json()["lastUpdated"], got.json()["currentTime"]);
    assert_eq!(get(address, "/livez").await.status, 503);
    // Only the reconciler's report ends it.
    health.updated(SystemTime::now());
    assert_eq!(get(address, "/livez").await.status, 503);
    // A restart would begin a long pass again. One that began too late, or hangs, is like one that fails.
    let secs = Duration::from_secs;
    for (pending, pass, status) in [(61, 60, 200), (599, 599, 200), (601, 601, 503), (120, 1, 503)] {
        let [Some(pending), Some(pass)] = [pending, pass].map(|ago| now.checked_sub(secs(ago))) else { return };
        health.set_pending(Some(pending));
        health.set_pass(Some(pass));
        assert_eq!(get(address, "/livez").await.status, status, "{pending:?}");
        assert_eq!(get(address, "/healthz").await.status, 503);
    }
    health.set_pass(None);
    health.set_pending(None);
    assert_eq!(get(address, "/livez").await.status, 200);

    health.set_node_eligible(false);
    let got = get(address, "/healthz").await;
    assert_eq!((got.status, &got.json()["nodeEligible"]), (503, &json!(false)));
    assert_eq!(get(address, "/livez").await.status, 200, "the proxy itself is well");
    assert_eq!(get(address, "/other").await.status, 404);
    assert_eq!(health.metrics(|metrics| (metrics.healthz, metrics.livez)), ([2, 6], [5, 4]));
}

#[tokio::test]
async fn readyz_waits_for_the_first_full_pass() {
    let health = Health::new(Duration::from_secs(30), Families::V4);
    let (listener, address) = local().await;
    tokio::spawn(serve_health(listener, health.clone()));
    let got = get(address, "/readyz").await;
    assert_eq!((got.status, got.json()), (503, json!({"ready": false})));
    assert_eq!(get(address, "/healthz").await.status, 200, "waiting for lists is healthy");
    health.set_ready();
    assert_eq!(get(address, "/readyz").await.status, 200);
    // A node that was ready and falls behind is unhealthy; it goes on serving.
    let Some(earlier) = Instant::now().checked_sub(Duration::from_secs(61)) else { return };
    health.set_pending(Some(earlier));
    assert_eq!((get(address, "/healthz").await.status, get(address, "/readyz").await.status), (503, 200));
}

#[tokio::test]
async fn the_metrics_server() {
    let health = Health::new(Duration::from_secs(30), Families::V4);
    health.metrics(|metrics| {
        metrics.totals.service_changes = 5;
        metrics.livez = [2, 0];
    });
    let configuration = json!({
        "mode": "ipvs", "nodePortAddresses": ["192.0.2.0/24", "primary"], "featureGates": {"AllowServiceExternalIPs": false},
    });
    let (listener, address) = local().await;
    tokio::spawn(serve_metrics(listener, health, Kind::Ipvs, configuration, None));
    let got = get(address, "/metrics").await;
    assert_eq!(got.status, 200);
    assert!(got.headers.contains("content-type: text/plain; version=0.0.4"), "{}", got.headers);
    assert!(got.body.contains("\nkubeproxy_sync_proxy_rules_service_changes_total 5\n"), "{}", got.body);
    let resident = got.body.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes ")).unwrap();
    assert!(resident.parse::<u64>().unwrap() > 100_000);
    let build = format!("\nproxier_build_info{{version=\"{}\",revision=\"", env!("CARGO_PKG_VERSION"));
    assert!(got.body.contains(&build), "{}", got.body);
    let got = get(address, "/proxyMode").await;
    assert_eq!((got.status, got.body.as_str()), (200, "ipvs"));
    assert!(got.headers.contains("content-type: text/plain") && got.headers.contains("nosniff"), "{}", got.headers);
    assert_eq!(get(address, "/healthz").await.body, "ok");
    assert_eq!(get(address, "/configz").await.json()["kubeproxy.config.k8s.io"]["mode"], "ipvs");
    assert_eq!(get(address, "/debug/pprof").await.status, 404);
    let got = get(address, "/metrics/slis").await;
    for line in [
        "kubernetes_healthcheck{name=\"proxier\",type=\"healthz\"} 1",
        "kubernetes_healthcheck{name=\"proxier\",type=\"livez\"} 1",
        "kubernetes_healthchecks_total{name=\"proxier\",type=\"livez\",status=\"success\"} 2",
        "kubernetes_healthchecks_total{name=\"proxier\",type=\"healthz\",status=\"error\"} 0",
    ] {
        assert!(got.body.lines().any(|printed| printed == line), "{line}: {}", got.body);
    }
    let got = get(address, "/flagz").await;
    assert!(got.headers.contains("content-type: text/plain"), "{}", got.headers);
    let mut lines = got.body.lines();
    assert_eq!((lines.next(), lines.next()), (Some(""), Some("proxier-demo flagz")));
    assert!(lines.next().unwrap().starts_with("Warning: This endpoint is not meant to be machine parseable"));
    let flags: Vec<&str> = lines.skip(1).collect();
    let names: Vec<&str> = flags.iter().map(|line| line.split('=').next().unwrap()).collect();
    assert!(names.is_sorted() && flags.contains(&"proxy-mode=ipvs"), "{flags:?}");
    assert!(flags.contains(&"nodeport-addresses=192.0.2.0/24,primary"), "{flags:?}");
    assert!(flags.contains(&"feature-gates=AllowServiceExternalIPs=false"), "{flags:?}");
    let got = get(address, "/statusz").await;
    assert!(got.body.contains("\nUp: 0 hr 00 min 0") && got.body.contains("\nStarted: 20"), "{}", got.body);
    assert!(got.body.contains(&format!("\nBinary version: {}\n", env!("CARGO_PKG_VERSION"))), "{}", got.body);
}

/// Requests to an API server are counted as client-go does.
#[tokio::test]
async fn requests_to_the_api_server_are_metrics() {
    let server = ApiServer::start();
    let url = server.url();
    let words = ["proxier-demo", "plan", "--hostname-override", "n1", "--master", &url].map(Into::into);
    let configured = cli::parse(words).unwrap().configure().unwrap();
    initial_list::read(&configured, Options::default()).await.unwrap();
    let answers = server.requests().iter().filter(|request| !request.is_watch()).count();
    assert!(answers > 2);
    let health = Health::new(Duration::from_secs(30), Families::Dual);
    health.set_api(Arc::default());
    let (listener, address) = local().await;
    tokio::spawn(serve_metrics(listener, health, Kind::Ipvs, json!({}), None));
    let page = get(address, "/metrics").await.body;
    let labels = format!("{{host=\"{}\",verb=\"GET\"}}", server.address());
    let value = |name: &str| -> f64 {
        let lines = page.lines().find_map(|line| line.strip_prefix(&format!("rest_client_{name}{labels} ")));
        lines.unwrap_or_else(|| panic!("{name}: {page}")).parse().unwrap()
    };
    assert_eq!(value("response_size_bytes_count").to_string(), answers.to_string());
    assert!(value("response_size_bytes_sum") > 20.0 * value("response_size_bytes_count"));
    assert!(value("request_size_bytes_count") >= value("response_size_bytes_count"));
    assert!(value("request_size_bytes_sum") < 1.0, "a GET has no body");
    assert!(!page.contains("request_retries_total"));
}

#[tokio::test]
async fn an_address_in_use_is_waited_for_or_the_end() {
    let (_holder, address) = local().await;
    let mut failures = Vec::new();
    let problem = listen("metrics", address, true, |problem| failures.push(problem.to_string())).await.unwrap_err();
    let expected =
        format!("metrics: cannot listen on {address} (Address already in use (os error 98)); another kube-proxy");
    assert!(problem.to_string().starts_with(&expected), "{problem}");
    assert_eq!(failures, [problem.to_string()]);
    let waiting = listen("metrics", address, false, |_| {});
    assert!(tokio::time::timeout(Duration::from_millis(200), waiting).await.is_err());
}

/// The default address is one of IPv4, and nodes of two families are checked by either.
#[tokio::test]
async fn every_address_is_of_both_families() {
    if !has_ipv6() {
        eprintln!("SKIPPED every_address_is_of_both_families: it needs IPv6");
        return;
    }
    let at = |address: &str, port| SocketAddr::new(address.parse().unwrap(), port);
    for every in ["0.0.0.0", "::"] {
        let listener = listen("health", at(every, 0), true, |_| {}).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(serve_health(listener, Health::new(Duration::from_secs(30), Families::Dual)));
        for own in ["127.0.0.1", "::1"] {
            assert_eq!(get(at(own, port), "/livez").await.status, 200, "{own} of {every}");
        }
    }
    // Another program has the port in IPv6.
    let other = TcpListener::bind("[::1]:0").await.unwrap();
    let port = other.local_addr().unwrap().port();
    let listener = listen("health", at("0.0.0.0", port), true, |_| {}).await.unwrap();
    assert_eq!(listener.local_addr().unwrap(), at("0.0.0.0", port));
}

#[tokio::test]
async fn the_server_of_a_service() {
    let health = Health::new(Duration::from_secs(30), Families::Dual);
    let mut servers = ServiceHealth::new(health.clone());
    let loopback = on(&[Ipv4Addr::LOCALHOST.into()]);
    let (port, other_port) = (free_port().await, free_port().await);
    let one = |port, number| web(port, Some(number), None);
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));

    assert_eq!(servers.update(&one(port, 3), &loopback).await, []);
    let got = get(at(port), "/anything").await;
    assert_eq!(got.status, 200);
    assert_eq!(
        got.body,
        "{\n\t\"service\": {\n\t\t\"namespace\": \"demo\",\n\t\t\"name\": \"web\"\n\t},\n\t\"localEndpoints\": 3,\n\t\
         \"serviceProxyHealthy\": true\n}"
    );
    for header in
        ["content-type: application/json", "x-content-type-options: nosniff", "x-load-balancing-endpoint-weight: 3"]
    {
        assert!(got.headers.contains(header), "{header}: {}", got.headers);
    }
    assert_eq!(ask(at(port), "POST", "/").await.unwrap().status, 200, "any method");

    servers.update(&one(port, 0), &loopback).await;
    let got = get(at(port), "/").await;
    assert_eq!((got.status, &got.json()["localEndpoints"]), (503, &json!(0)));
    servers.update(&one(port, 1), &loopback).await;
    let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(61)) else { return };
    health.set_pending(Some(long_ago));
    let got = get(at(port), "/").await;
    assert_eq!((got.status, &got.json()["serviceProxyHealthy"]), (503, &json!(false)));
    health.set_pending(None);
    health.set_node_eligible(false);
    assert_eq!(get(at(port), "/").await.status, 200, "without the Node's eligibility");

    servers.update(&one(other_port, 1), &loopback).await;
    assert!(ask(at(port), "GET", "/").await.is_err(), "another port: the old one is closed");
    assert_eq!(get(at(other_port), "/").await.status, 200);
    health.set_ending();
    assert_eq!(get(at(other_port), "/").await.status, 503, "new connections are refused");
    servers.update(&BTreeMap::new(), &loopback).await;
    assert!(ask(at(other_port), "GET", "/").await.is_err());
}

#[tokio::test]
async fn a_port_in_use_is_told_and_tried_again() {
    let mut servers = ServiceHealth::new(Health::new(Duration::from_secs(30), Families::Dual));
    let (holder, address) = local().await;
    let wanted = web(address.port(), Some(1), Some(1));
    let there = on(&[address.ip()]);
    let failed = servers.update(&wanted, &there).await;
    let [(service, note)] = &failed[..] else { panic!("{failed:?}") };
    assert_eq!(*service, ObjectKey::new("demo", "web"));
    assert!(note.starts_with(&format!("cannot listen on {address}: ")) && note.contains("in use"), "{note}");
    drop(holder);
    assert_eq!(servers.update(&wanted, &there).await, []);
    assert_eq!(get(address, "/").await.status, 200);
}

fn checks(checks: &[(&str, u16)]) -> BTreeMap<ObjectKey, HealthCheck> {
    let check = |(name, port): &(&str, u16)| {
        (
            ObjectKey::new("demo", name),
            HealthCheck { port: *port, local_endpoints: ByFamily { v4: Some(1), v6: Some(1) } },
        )
    };
    checks.iter().map(check).collect()
}

#[tokio::test]
async fn each_family_has_a_listener_of_its_own() {
    let mut servers = ServiceHealth::new(Health::new(Duration::from_secs(30), Families::Dual));
    let port = free_port().await;
    let wanted = checks(&[("web", port)]);
    let at_v4 = SocketAddr::from(([127, 0, 0, 1], port));
    let at_v6: SocketAddr = format!("[::1]:{port}").parse().unwrap();
    if !has_ipv6() {
        eprintln!("SKIPPED the half of each_family_has_a_listener_of_its_own that needs IPv6");
        assert_eq!(servers.update(&wanted, &ListenAddresses { v6: OpenOn::These(vec![]), ..EVERYWHERE }).await, []);
        assert_eq!(get(at_v4, "/").await.status, 200);
        return;
    }
    assert_eq!(servers.update(&wanted, &EVERYWHERE).await, []);
    assert_eq!(servers.update(&wanted, &EVERYWHERE).await, [], "open already");
    assert_eq!((get(at_v4, "/").await.status, get(at_v6, "/").await.status), (200, 200));
    // One family has no addresses, the other one all.
    for (listening, v4, v6) in [
        (ListenAddresses { v6: OpenOn::These(vec![]), ..EVERYWHERE }, true, false),
        (ListenAddresses { v4: OpenOn::These(vec![]), ..EVERYWHERE }, false, true),
        (on(&[]), false, false),
        (EVERYWHERE, true, true),
        (on(&[at_v4.ip()]), true, false),
        (on(&[at_v6.ip()]), false, true),
        (EVERYWHERE, true, true),
    ] {
        assert_eq!(servers.update(&wanted, &listening).await, [], "{listening:?}");
        let open = (ask(at_v4, "GET", "/").await.is_ok(), ask(at_v6, "GET", "/").await.is_ok());
        assert_eq!(open, (v4, v6), "{listening:?}");
    }
}

/// Each family's answer counts its own endpoints; a family that the Service does not have, or loses, refuses.
#[tokio::test]
async fn each_family_answers_for_its_own_endpoints() {
    if !has_ipv6() {
        eprintln!("SKIPPED each_family_answers_for_its_own_endpoints: it needs IPv6");
        return;
    }
    let mut servers = ServiceHealth::new(Health::new(Duration::from_secs(30), Families::Dual));
    let port = free_port().await;
    let at_v4 = SocketAddr::from(([127, 0, 0, 1], port));
    let at_v6: SocketAddr = format!("[::1]:{port}").parse().unwrap();
    for (v4, v6) in
        [(Some(1), Some(0)), (Some(0), Some(2)), (Some(3), None), (None, Some(3)), (Some(0), None), (Some(1), Some(1))]
    {
        assert_eq!(servers.update(&web(port, v4, v6), &EVERYWHERE).await, []);
        for (at, number) in [(at_v4, v4), (at_v6, v6)] {
            let Some(number) = number else {
                assert!(ask(at, "GET", "/").await.is_err(), "{at} with {v4:?} and {v6:?}");
                continue;
            };
            let got = get(at, "/").await;
            let status = if number > 0 { 200 } else { 503 };
            assert_eq!((got.status, &got.json()["localEndpoints"]), (status, &json!(number)), "{at}");
        }
    }
}

/// No port is open for a family without addresses that serve node ports. "None" is not "all".
#[test]
fn where_the_servers_listen() {
    let parsed = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
    let host = |texts: &[&str]| HostAddresses {
        interfaces: BTreeMap::from([
            ("eth0".to_owned(), parsed(texts)),
            ("lo".to_owned(), parsed(&["127.0.0.1", "::1"])),
            ("kube-ipvs0".to_owned(), parsed(&["10.96.0.1", "fd00:96::1"])),
        ]),
    };
    let both = host(&["192.0.2.1", "198.51.100.1", "2001:db8::1"]);
    let within = |texts: &[&str]| NodePortAddresses::Within(texts.iter().map(|text| text.parse().unwrap()).collect());
    let listening = |addresses: NodePortAddresses, host: &HostAddresses, families| {
        let mut config = Config::default();
        (config.node_port_addresses, config.families) = (addresses, families);
        let mut node = Node::new("n1");
        node.addresses = parsed(&["192.0.2.1"]);
        listen_addresses(&NodeFacts::new(&config, &node, host))
    };
    let all = NodePortAddresses::All;
    assert_eq!(listening(all.clone(), &both, Families::Dual), EVERYWHERE);
    let only_v4 = ListenAddresses { v6: OpenOn::These(vec![]), ..EVERYWHERE };
    assert_eq!(listening(all.clone(), &both, Families::V4), only_v4);
    assert_eq!(listening(all, &host(&["192.0.2.1"]), Families::Dual), only_v4);
    assert_eq!(listening(NodePortAddresses::Primary, &both, Families::Dual), on(&parsed(&["192.0.2.1"])));
    let nowhere = within(&["203.0.113.0/24", "2001:db8:1::/64"]);
    assert_eq!(listening(nowhere, &both, Families::Dual), on(&[]));
    let one_each = within(&["192.0.2.0/24", "2001:db8::/64"]);
    assert_eq!(listening(one_each, &both, Families::Dual), on(&parsed(&["192.0.2.1", "2001:db8::1"])));
    let none_of_v4 = within(&["203.0.113.0/24"]);
    let expected = on(&parsed(&["2001:db8::1"]));
    assert_eq!(listening(none_of_v4, &both, Families::Dual), expected, "a family without a network gets all");
}

#[tokio::test]
async fn a_port_passes_from_one_service_to_another() {
    let mut servers = ServiceHealth::new(Health::new(Duration::from_secs(30), Families::Dual));
    let (one, two) = (free_port().await, free_port().await);
    let loopback = on(&[Ipv4Addr::LOCALHOST.into()]);
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let name = |got: Got| got.json()["service"]["name"].as_str().unwrap().to_owned();
    let everywhere_v4 = ListenAddresses { v6: OpenOn::These(vec![]), ..EVERYWHERE };
    // Steps in both directions of the order of names; swapped; together with other addresses.
    let steps: [(&[(&str, u16)], &ListenAddresses); 7] = [
        (&[("b", one)], &loopback),
        (&[("a", one)], &loopback),
        (&[("b", one)], &loopback),
        (&[("a", one), ("b", two)], &loopback),
        (&[("a", two), ("b", one)], &loopback),
        (&[("a", one), ("b", two)], &everywhere_v4),
        (&[("a", two), ("b", one)], &loopback),
    ];
    let mut before: Vec<TcpStream> = Vec::new();
    for (wanted, listening) in steps {
        assert_eq!(servers.update(&checks(wanted), listening).await, [], "{wanted:?} {listening:?}");
        // Earlier connections get no more answers, least of all another Service's.
        for mut stream in before.drain(..) {
            let _closed = stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
            let mut rest = Vec::new();
            let _closed = stream.read_to_end(&mut rest).await;
            assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
        }
        for (service, port) in wanted {
            assert_eq!(name(get(at(*port), "/").await), *service);
            let mut stream = TcpStream::connect(at(*port)).await.unwrap();
            keep_alive(&mut stream).await.unwrap();
            before.push(stream);
        }
    }
}

/// Sends one request on a connection that stays.
async fn keep_alive(stream: &mut TcpStream) -> std::io::Result<String> {
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    let mut text = Vec::new();
    loop {
        let mut piece = [0; 4096];
        let bytes = stream.read(&mut piece).await?;
        if bytes == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        text.extend_from_slice(&piece[..bytes]);
        let so_far = String::from_utf8_lossy(&text);
        let Some((head, body)) = so_far.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            return Ok(so_far.into_owned());
        }
    }
}

/// A server of this process, on a thread of its own, as in the program.
fn server() -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = listen("health", SocketAddr::from(([127, 0, 0, 1], 0)), true, |_| {}).await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            serve_health(listener, Health::new(Duration::from_secs(30), Families::V4)).await;
        });
    });
    told.recv().unwrap()
}

/// New requests are answered in time: well below the ten seconds after which a silent client is dropped anyway.
async fn answers_in_time(address: SocketAddr, what: &str) {
    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        let begun = Instant::now();
        let got = tokio::time::timeout(Duration::from_secs(8), ask(address, "GET", "/livez")).await;
        let got = got.unwrap_or_else(|_| panic!("{what}: no answer within 8 s")).unwrap();
        assert_eq!(got.status, 200, "{what}");
        longest = longest.max(begun.elapsed());
    }
    println!("{what}: answered within {longest:?}");
}

#[tokio::test]
async fn there_is_always_room_for_a_new_request() {
    // Each number of clients on its own server; each client sends a request often, or every second.
    for clients in [64, 200, 1000] {
        for pause in [Duration::from_millis(20), Duration::from_secs(1)] {
            let address = server();
            let mut polling = tokio::task::JoinSet::new();
            let barrier = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
            for _ in 0..clients {
                let barrier = barrier.clone();
                polling.spawn(async move {
                    let mut stream = TcpStream::connect(address).await.unwrap();
                    let _idle_ones_may_be_closed = keep_alive(&mut stream).await;
                    barrier.add_permits(1);
                    loop {
                        if keep_alive(&mut stream).await.is_err() {
                            stream = TcpStream::connect(address).await.unwrap();
                        }
                        tokio::time::sleep(pause).await;
                    }
                });
            }
            let all = u32::try_from(clients).unwrap();
            drop(tokio::time::timeout(Duration::from_secs(60), barrier.acquire_many(all)).await.unwrap().unwrap());
            answers_in_time(address, &format!("{clients} clients, one request each {pause:?}")).await;
        }
    }
}

#[tokio::test]
async fn clients_that_say_nothing_or_half_take_nobodys_room() {
    for clients in [64, 200, 1000] {
        for start in ["", "GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: "] {
            let address = server();
            let mut silent = Vec::new();
            for _ in 0..clients {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(start.as_bytes()).await.unwrap();
                silent.push(stream);
            }
            answers_in_time(address, &format!("{clients} clients that have sent {start:?}")).await;
        }
    }
}

/// Clients that write a head one byte at a time, and clients that never read their answer.
#[tokio::test]
async fn slow_clients_take_nobodys_room() {
    let address = server();
    let mut slow = tokio::task::JoinSet::new();
    for number in 0..200 {
        slow.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let text = if number % 2 == 0 {
                "GET /livez HTTP/1.1\r\nHost: x\r\nX-Slow: ".to_owned()
            } else {
                "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n".repeat(20_000)
            };
            if number % 2 == 0 {
                for byte in text.bytes().cycle() {
                    if stream.write_all(&[byte]).await.is_err() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            } else {
                let _closed = stream.write_all(text.as_bytes()).await;
            }
            std::future::pending::<()>().await;
        });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    answers_in_time(address, "100 slow writers and 100 that do not read").await;
}

/// An idle connection is closed between two answers, never within one; and the one that has been idle longest.
#[tokio::test]
async fn the_longest_idle_connection_goes_first() {
    let address = server();
    let mut idle = Vec::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert!(keep_alive(&mut stream).await.unwrap().contains("200 OK"));
        idle.push(stream);
    }
    // The first is in use again; so the second has been idle longest.
    assert!(keep_alive(&mut idle[0]).await.is_ok());
    assert_eq!(get(address, "/livez").await.status, 200);
    let mut nothing = [0; 1];
    assert_eq!(idle[1].read(&mut nothing).await.unwrap(), 0, "an orderly end");
    for (number, stream) in idle.iter_mut().enumerate().filter(|(number, _)| *number != 1) {
        assert!(keep_alive(stream).await.is_ok(), "{number}");
    }
}

/// A head without end is refused, or its connection closed, in time.
#[tokio::test]
async fn an_endless_head_is_not_read() {
    let mut stream = TcpStream::connect(server()).await.unwrap();
    stream.write_all("x".repeat(100_000).as_bytes()).await.unwrap();
    let mut text = Vec::new();
    drop(tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut text)).await.unwrap());
}

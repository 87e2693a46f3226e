//! The health and metrics servers, and those of Services, as their clients see them.
#![cfg(feature = "proxier-demo")]
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use examples::proxier_demo::health::{Health, listen, serve_health, serve_metrics};
use examples::proxier_demo::service_health::{HealthCheck, ServiceHealth};
use proxier_core::config::Families;
use proxier_core::snapshot::ObjectKey;
use serde_json::{Value, json};
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

async fn free_port() -> u16 {
    local().await.1.port()
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

    // Waiting for less than two sync periods is no fault; the first request counts.
    let now = Instant::now();
    let Some(earlier) = now.checked_sub(Duration::from_secs(61)) else { return };
    health.waiting(now);
    health.waiting(earlier);
    assert_eq!(get(address, "/healthz").await.status, 200);
    health.updated(SystemTime::now() - Duration::from_secs(90));
    health.waiting(earlier);
    health.waiting(now);
    let got = get(address, "/healthz").await;
    assert_eq!((got.status, &got.json()["healthy"]), (503, &json!(false)));
    assert_ne!(got.json()["lastUpdated"], got.json()["currentTime"]);
    assert_eq!(get(address, "/livez").await.status, 503);
    health.updated(SystemTime::now());
    assert_eq!(get(address, "/livez").await.status, 200);

    health.set_node_eligible(false);
    let got = get(address, "/healthz").await;
    assert_eq!((got.status, &got.json()["nodeEligible"]), (503, &json!(false)));
    assert_eq!(get(address, "/livez").await.status, 200, "the proxy itself is well");
    assert_eq!(get(address, "/other").await.status, 404);
    assert_eq!(health.metrics(|metrics| (metrics.healthz, metrics.livez)), ([2, 2], [3, 1]));
}

#[tokio::test]
async fn the_metrics_server() {
    let health = Health::new(Duration::from_secs(30), Families::V4);
    health.metrics(|metrics| metrics.service_changes = 5);
    let (listener, address) = local().await;
    tokio::spawn(serve_metrics(listener, health, json!({"mode": "ipvs"})));
    let got = get(address, "/metrics").await;
    assert_eq!(got.status, 200);
    assert!(got.headers.contains("content-type: text/plain; version=0.0.4"), "{}", got.headers);
    assert!(got.body.contains("\nkubeproxy_sync_proxy_rules_service_changes_total 5\n"), "{}", got.body);
    let resident = got.body.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes ")).unwrap();
    assert!(resident.parse::<u64>().unwrap() > 100_000);
    let got = get(address, "/proxyMode").await;
    assert_eq!((got.status, got.body.as_str()), (200, "ipvs"));
    assert!(got.headers.contains("content-type: text/plain") && got.headers.contains("nosniff"), "{}", got.headers);
    assert_eq!(get(address, "/healthz").await.body, "ok");
    assert_eq!(get(address, "/configz").await.json()["kubeproxy.config.k8s.io"]["mode"], "ipvs");
    assert_eq!(get(address, "/debug/pprof").await.status, 404);
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

#[tokio::test]
async fn the_server_of_a_service() {
    let health = Health::new(Duration::from_secs(30), Families::Dual);
    let mut servers = ServiceHealth::new(health.clone());
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
    let (port, other_port) = (free_port().await, free_port().await);
    let key = ObjectKey::new("demo", "web");
    let one = |port, local_endpoints| BTreeMap::from([(key.clone(), HealthCheck { port, local_endpoints })]);
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));

    assert_eq!(servers.update(&one(port, 3), &loopback), []);
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

    servers.update(&one(port, 0), &loopback);
    let got = get(at(port), "/").await;
    assert_eq!((got.status, &got.json()["localEndpoints"]), (503, &json!(0)));
    servers.update(&one(port, 1), &loopback);
    let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(61)) else { return };
    health.waiting(long_ago);
    let got = get(at(port), "/").await;
    assert_eq!((got.status, &got.json()["serviceProxyHealthy"]), (503, &json!(false)));
    health.updated(SystemTime::now());
    health.set_node_eligible(false);
    assert_eq!(get(at(port), "/").await.status, 200, "without the Node's eligibility");

    servers.update(&one(other_port, 1), &loopback);
    tokio::task::yield_now().await;
    assert!(ask(at(port), "GET", "/").await.is_err(), "another port: the old one is closed");
    assert_eq!(get(at(other_port), "/").await.status, 200);
    servers.update(&BTreeMap::new(), &loopback);
    tokio::task::yield_now().await;
    assert!(ask(at(other_port), "GET", "/").await.is_err());
}

#[tokio::test]
async fn both_families_by_one_socket() {
    let mut servers = ServiceHealth::new(Health::new(Duration::from_secs(30), Families::Dual));
    let port = free_port().await;
    let wanted = BTreeMap::from([(ObjectKey::new("demo", "web"), HealthCheck { port, local_endpoints: 1 })]);
    assert_eq!(servers.update(&wanted, &[]), []);
    assert_eq!(servers.update(&wanted, &[]), [], "open already");
    assert_eq!(get(SocketAddr::from(([127, 0, 0, 1], port)), "/").await.status, 200);
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        assert_eq!(get(format!("[::1]:{port}").parse().unwrap(), "/").await.status, 200);
    }
}

#[tokio::test]
async fn a_port_in_use_is_told_and_tried_again() {
    let mut servers = ServiceHealth::new(Health::new(Duration::from_secs(30), Families::Dual));
    let (holder, address) = local().await;
    let key = ObjectKey::new("demo", "web");
    let wanted = BTreeMap::from([(key.clone(), HealthCheck { port: address.port(), local_endpoints: 1 })]);
    let failed = servers.update(&wanted, &[address.ip()]);
    assert_eq!((failed.len(), &failed[0].service, failed[0].address), (1, &key, address));
    assert!(failed[0].reason.contains("in use"), "{failed:?}");
    drop(holder);
    assert_eq!(servers.update(&wanted, &[address.ip()]), []);
    assert_eq!(get(address, "/").await.status, 200);
}

/// Clients that say nothing take no memory for ever, and nobody else's turn.
#[tokio::test]
async fn silent_clients_do_not_stop_the_server() {
    let (listener, address) = local().await;
    tokio::spawn(serve_health(listener, Health::new(Duration::from_secs(30), Families::V4)));
    let mut silent = Vec::new();
    for _ in 0..30 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(get(address, "/livez").await.status, 200);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all("x".repeat(100_000).as_bytes()).await.unwrap();
    let mut text = Vec::new();
    // Refused or closed, but answered.
    drop(tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut text)).await.unwrap());
    assert_eq!(get(address, "/livez").await.status, 200);
}

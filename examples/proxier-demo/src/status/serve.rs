//! The health and metrics servers of the proxy.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use proxier_core::kernel::PacketCounters;
use proxier_core::modes::Kind;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::problem::Problem;
use crate::status::health::Health;
use crate::status::logging::Limiter;
use crate::status::page::StatusPage;
use crate::status::server::{
    self, Answer, Answers, CONNECTIONS, HttpRequest, Slots, answer, bind, not_found, serve, text,
};
use crate::status::zpages;

/// Listens on an address. On failure reports that and retries every five seconds, as kube-proxy does; with `hard_fail`
/// it gives up at once. `failed` is called with each failure.
/// Errors: with `hard_fail`: the address cannot be bound.
pub async fn listen(
    what: &str,
    address: SocketAddr,
    hard_fail: bool,
    mut failed: impl FnMut(&Problem),
) -> Result<TcpListener, Problem> {
    let mut limiter = Limiter::default();
    loop {
        let error = match open(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse => "; another kube-proxy, or a second proxier-demo?",
            io::ErrorKind::AddrNotAvailable => "; this host has no such address",
            _ => "",
        };
        let problem = Problem::new(what, format!("cannot listen on {address} ({error}){advice}"));
        failed(&problem);
        if hard_fail {
            return Err(problem);
        }
        if limiter.pass(what, Instant::now()) {
            tracing::error!("{problem}; trying again in 5 s");
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// Binds an address. `0.0.0.0` means every address of IPv6 too, as in Go and so in kube-proxy, whose default it is: load
/// balancers check nodes of two families by either.
fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let both = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
    let opened = (address.ip() == Ipv4Addr::UNSPECIFIED).then(|| bind(both, server::Families::Both).ok()).flatten();
    // The kernel may lack IPv6, or another program have the port there.
    opened.map_or_else(|| bind(address, server::Families::Both), Ok)
}

/// Serves `/healthz`, `/livez` and `/readyz` until it is dropped.
pub async fn serve_health(listener: TcpListener, health: Arc<Health>) {
    let answers = move |path: &str| match path {
        "/healthz" | "/livez" => health.answer(path, Instant::now()),
        "/readyz" => health.answer_ready(),
        _ => not_found(),
    };
    serve(listener, Slots::new(CONNECTIONS), answers).await;
}

/// Serves `/metrics`, `/metrics/slis`, `/healthz`, `/proxyMode`, `/configz`, `/flagz` and `/statusz`, and the status
/// page if enabled, until it is dropped. `configuration` is the effective one.
pub async fn serve_metrics(
    listener: TcpListener,
    health: Arc<Health>,
    mode: Kind,
    configuration: Value,
    status: Option<StatusPage>,
) {
    let started = SystemTime::now();
    let counters = Mutex::new(PacketCounters::default());
    let answers = MetricsServer { health, mode, configuration, status, started, counters };
    serve(listener, Slots::new(CONNECTIONS), answers).await;
}

struct MetricsServer {
    health: Arc<Health>,
    mode: Kind,
    configuration: Value,
    status: Option<StatusPage>,
    started: SystemTime,
    counters: Mutex<PacketCounters>,
}

impl MetricsServer {
    /// The packets counted by rules; empty if the kernel does not count.
    fn packets(&self) -> BTreeMap<String, u64> {
        if !self.mode.facts().counts_by_rule {
            return BTreeMap::new();
        }
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).read().unwrap_or_default()
    }
}

/// Paths that `/statusz` lists.
const PATHS: [&str; 7] = ["/configz", "/flagz", "/healthz", "/metrics", "/metrics/slis", "/proxyMode", "/statusz"];

fn metrics(body: String) -> Answer {
    answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", body)
}

impl Answers for MetricsServer {
    async fn answer(&self, asked: HttpRequest) -> Answer {
        match asked.path() {
            "/metrics" => {
                let begun = match &self.status {
                    Some(status) if self.mode.facts().is_process => status.begun().await,
                    _ => Vec::new(),
                };
                metrics(self.health.page(self.packets(), begun))
            }
            "/metrics/slis" => metrics(self.health.slis(Instant::now())),
            "/healthz" => text(StatusCode::OK, "ok"),
            "/proxyMode" => text(StatusCode::OK, self.mode.name()),
            "/configz" => {
                server::json(StatusCode::OK, json!({"kubeproxy.config.k8s.io": self.configuration}).to_string())
            }
            "/flagz" => zpages::flags(&self.configuration, &asked),
            "/statusz" => zpages::status(self.started, &PATHS, &asked),
            _ => match &self.status {
                Some(status) => status.answer(&asked, &self.health).await.unwrap_or_else(not_found),
                None => not_found(),
            },
        }
    }
}

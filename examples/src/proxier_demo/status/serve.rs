//! The servers of the proxy's health and metrics: `/healthz`, `/livez`, `/readyz`, `/metrics`, `/proxyMode`, `/configz`, `/status`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use proxier_core::modes::Kind;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::proxier_demo::problem::Problem;
use crate::proxier_demo::status::health::Health;
use crate::proxier_demo::status::page::StatusPage;
use crate::proxier_demo::status::server::{self, Answer, Answers, Asked, CONNECTIONS, Places, bind, by_path, serve};

/// Listens on an address. If it cannot, reports that and retries every five seconds, as kube-proxy does; with `hard_fail`
/// it gives up at once. `failed` is called with each failure.
///
/// # Errors
///
/// With `hard_fail`: the address cannot be bound.
pub async fn listen(
    what: &str,
    address: SocketAddr,
    hard_fail: bool,
    mut failed: impl FnMut(&Problem),
) -> Result<TcpListener, Problem> {
    loop {
        let error = match bind(address, server::Families::Both) {
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
        tracing::error!("{problem}; trying again in 5 s");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// Serves `/healthz`, `/livez` and `/readyz`, for ever.
pub async fn serve_health(listener: TcpListener, health: Arc<Health>) {
    let answers = by_path(move |path| match path {
        "/healthz" | "/livez" => health.answer(path, Instant::now()),
        "/readyz" => health.answer_ready(),
        _ => Answer::not_found(),
    });
    serve(listener, Places::new(CONNECTIONS), answers).await;
}

/// Serves `/metrics`, `/healthz`, `/proxyMode` and `/configz`, and the status page if there is one, for ever. `configuration`
/// is the effective one.
pub async fn serve_metrics(
    listener: TcpListener,
    health: Arc<Health>,
    mode: Kind,
    configuration: Value,
    status: Option<StatusPage>,
) {
    let configuration = json!({"kubeproxy.config.k8s.io": configuration}).to_string();
    serve(listener, Places::new(CONNECTIONS), MetricsServer { health, mode, configuration, status }).await;
}

struct MetricsServer {
    health: Arc<Health>,
    mode: Kind,
    configuration: String,
    status: Option<StatusPage>,
}

impl Answers for MetricsServer {
    async fn answer(&self, asked: Asked) -> Answer {
        match asked.path.as_str() {
            "/metrics" => Answer {
                status: StatusCode::OK,
                kind: "text/plain; version=0.0.4; charset=utf-8",
                headers: vec![],
                body: self.health.page(),
            },
            "/healthz" => Answer::text("ok"),
            "/proxyMode" => Answer::text(self.mode.name()),
            "/configz" => Answer::json(StatusCode::OK, self.configuration.clone()),
            _ => match &self.status {
                Some(status) => status.answer(&asked, &self.health).await.unwrap_or_else(Answer::not_found),
                None => Answer::not_found(),
            },
        }
    }
}

//! Health of the proxy, and the servers' answers about it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use proxier_core::config::Families;
use serde_json::{Map, Value, json};

use crate::message::Begun;
use crate::sources::cluster::{Counters, requests};
use crate::status::board::{Board, text};
use crate::status::metrics::Metrics;
use crate::status::server::{self, Answer};
use crate::status::zpages;

/// Failing requests to the API server are reported after this time; before, it may just be restarting.
const NOTEWORTHY: Duration = Duration::from_secs(60);

/// A pass may take this long before `/livez` judges it like one that has failed: as long as the program that lists rules
/// may compute before it is killed ([`iptables::Limits::program`]).
const LONGEST_PASS: Duration = Duration::from_secs(600);

/// The proxy's state for the health servers, and its metrics. Shared; cheap to read.
#[derive(Debug)]
pub struct Health {
    timeout: Duration,
    state: Mutex<Conditions>,
    board: Mutex<Board>,
}

#[derive(Debug, Default)]
struct Conditions {
    /// When all requests were last done, in all served families.
    updated: Option<SystemTime>,
    /// Since when the kernel lacks a desired object.
    pending: Option<Instant>,
    /// When the pass that runs now started.
    pass: Option<Instant>,
    ready: bool,
    node_eligible: bool,
    is_ending: bool,
    metrics: Metrics,
    api: Option<Arc<Counters>>,
}

impl Health {
    /// Creates a healthy state with nothing pending. It becomes unhealthy once something is pending for two sync
    /// periods.
    pub fn new(sync_period: Duration, families: Families) -> Arc<Self> {
        let health = Arc::new(Health {
            timeout: sync_period * 2,
            board: Mutex::default(),
            state: Mutex::new(Conditions { node_eligible: true, ..Conditions::default() }),
        });
        health.set_families(families);
        health
    }

    /// Sets the served families, known once the mode is.
    pub fn set_families(&self, families: Families) {
        let mut state = self.state();
        (state.updated, state.metrics.families) = (Some(SystemTime::now()), families);
    }

    fn state(&self) -> MutexGuard<'_, Conditions> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets since when the kernel lacks something that is desired, as reported by the reconciler; `None`: nothing.
    /// Health depends only on the last value.
    pub fn set_pending(&self, since: Option<Instant>) {
        self.state().pending = since;
    }

    /// Records that a pass starts, or that it has ended.
    pub fn set_pass(&self, start: Option<Instant>) {
        self.state().pass = start;
    }

    /// A full pass has succeeded: this node serves everything in its lists. It stays ready.
    pub fn set_ready(&self) {
        self.state().ready = true;
    }

    /// Records that a pass was requested.
    pub fn queued(&self, now: SystemTime) {
        self.state().metrics.sync_last_queued_timestamp = seconds(now);
    }

    /// Records that a pass has ended, and that everything requested before it started is done.
    pub fn updated(&self, now: SystemTime) {
        let mut state = self.state();
        state.metrics.sync_last_timestamp = seconds(now);
        state.updated = Some(now);
    }

    /// Sets whether load balancers should send new connections to this node: not while its Node is being removed, nor
    /// before it was seen. Default yes.
    pub fn set_node_eligible(&self, eligible: bool) {
        self.state().node_eligible = eligible;
    }

    /// Records that this process no longer serves new connections, so that load balancers choose other nodes. It stays
    /// live.
    pub fn set_ending(&self) {
        let mut state = self.state();
        (state.is_ending, state.node_eligible, state.ready) = (true, false, false);
    }

    pub fn metrics<T>(&self, change: impl FnOnce(&mut Metrics) -> T) -> T {
        change(&mut self.state().metrics)
    }

    pub fn set_api(&self, counters: Arc<Counters>) {
        self.state().api = Some(counters);
    }

    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn summary(&self, now: Instant) -> Value {
        let state = self.state();
        json!({
            "healthy": self.is_in_time(state.pending, now),
            "nodeEligible": state.node_eligible,
            "pendingSeconds": state.pending.map(|since| now.saturating_duration_since(since).as_secs_f64()),
            "failedPasses": state.metrics.totals.failed_passes,
        })
    }

    /// State of the API server for the status page, from the first failure on; `None` if none is asked.
    pub(crate) fn api_server(&self) -> Option<Value> {
        let api = self.state().api.clone()?;
        let failing = api.failing_for(Duration::ZERO);
        let since = failing.iter().map(|(_, of)| of.since).min().map(text);
        let list: Vec<Value> = failing
            .iter()
            .map(|(kind, of)| json!({"kind": kind, "since": text(of.since), "error": of.error}))
            .collect();
        Some(json!({"answers": list.is_empty(), "failingSince": since, "failing": list}))
    }

    /// The metrics page, with the packets counted by rules, and the connections started by userspace mode.
    pub(super) fn page(&self, packets: BTreeMap<String, u64>, begun: Vec<Begun>) -> String {
        let state = self.state();
        let (mut metrics, api) = (state.metrics.clone(), state.api.clone());
        metrics.healthy = self.is_in_time(state.pending, Instant::now()).into();
        drop(state);
        if let Some(api) = api {
            metrics.api_failures = api.failures.load(Ordering::Relaxed);
            let failing = api.failing_for(NOTEWORTHY).into_iter().map(|(_, of)| of.lasts());
            metrics.api_failing_seconds = failing.max().unwrap_or_default().as_secs();
            metrics.requests = requests::counted();
        }
        metrics.iptables_packets = packets;
        metrics.begun = begun;
        metrics.render()
    }

    pub(super) fn slis(&self, now: Instant) -> String {
        let state = self.state();
        let healthy = self.is_in_time(state.pending, now);
        zpages::slis(&state.metrics, healthy && state.node_eligible, self.is_live(&state, now))
    }

    /// Whether nothing has been pending too long, and this process is not ending.
    pub fn is_healthy(&self, now: Instant) -> bool {
        let state = self.state();
        !state.is_ending && self.is_in_time(state.pending, now)
    }

    fn is_in_time(&self, pending: Option<Instant>, now: Instant) -> bool {
        pending.is_none_or(|since| now.saturating_duration_since(since) < self.timeout)
    }

    /// Whether a restart would not help: while a pass runs, as when it started, because a restart would begin it again.
    fn is_live(&self, state: &Conditions, now: Instant) -> bool {
        let running = state.pass.filter(|start| now.saturating_duration_since(*start) < LONGEST_PASS);
        self.is_in_time(state.pending, running.unwrap_or(now))
    }

    pub fn is_ready(&self) -> bool {
        self.state().ready
    }

    /// `/readyz`: not in kube-proxy.
    pub(super) fn answer_ready(&self) -> Answer {
        let ready = self.is_ready();
        let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        server::json(status, self.with_held(json!({"ready": ready})).to_string())
    }

    /// `/healthz` and `/livez`: the keys of kube-proxy 1.33, which include those of 1.28. Times are RFC 3339.
    pub(super) fn answer(&self, path: &str, now: Instant) -> Answer {
        let mut state = self.state();
        let current = SystemTime::now();
        let is_whole = path == "/healthz";
        let healthy = if is_whole { self.is_in_time(state.pending, now) } else { self.is_live(&state, now) };
        // A healthy node is up to date now.
        let updated = text(state.updated.filter(|_| !healthy).unwrap_or(current).min(current));
        // One reconciler serves both families.
        let of_family = json!({"lastUpdated": updated, "healthy": healthy});
        let families = state.metrics.families.iter().map(|family| (family.name().to_owned(), of_family.clone()));
        let families: Map<String, Value> = families.collect();
        let mut body = json!({
            "lastUpdated": updated, "currentTime": text(current), "healthy": healthy, "status": families,
        });
        // A failing API server does not make the node unhealthy, which continues to serve. The key is absent while the
        // server answers, as in kube-proxy.
        for (kind, of) in state.api.iter().flat_map(|api| api.failing_for(NOTEWORTHY)) {
            body["apiServerFailingSince"][kind] = text(of.since).into();
        }
        if is_whole {
            body["nodeEligible"] = Value::from(state.node_eligible);
        }
        let good = healthy && (state.node_eligible || !is_whole);
        let metrics = &mut state.metrics;
        let counters = if is_whole { &mut metrics.healthz } else { &mut metrics.livez };
        let [ok, unavailable] = counters;
        *if good { ok } else { unavailable } += 1;
        let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        server::json(status, self.with_held(body).to_string())
    }

    /// Adds why deletions are held back, which kube-proxy does not report.
    fn with_held(&self, mut body: Value) -> Value {
        if let Some(stopped) = &self.board().stopped {
            body["heldBack"] = json!(stopped);
        }
        body
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node continues to serve, so it stays healthy.
    #[test]
    fn an_api_server_that_fails_for_long_is_mentioned() {
        let health = Health::new(Duration::from_secs(30), Families::Dual);
        let api = Arc::new(Counters::default());
        health.set_api(api.clone());
        let said = || {
            let answer = health.answer("/healthz", Instant::now());
            assert_eq!(answer.status(), StatusCode::OK);
            let body: Value = serde_json::from_str(answer.body()).unwrap();
            body.get("apiServerFailingSince").cloned()
        };
        let (now, instant) = (SystemTime::now(), tokio::time::Instant::now());
        assert_eq!(health.api_server().unwrap(), json!({"answers": true, "failingSince": null, "failing": []}));
        api.failed("services", (now, instant), "refused");
        api.failed("nodes", (now - NOTEWORTHY * 2, instant - NOTEWORTHY * 2), "refused");
        api.failed("nodes", (now, instant), "timed out");
        let failing = || {
            let page = health.page(BTreeMap::new(), Vec::new());
            let line = page.lines().find(|line| line.starts_with("kubeproxy_api_failing_seconds")).unwrap();
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        let long_ago = text(now - NOTEWORTHY * 2);
        assert_eq!(said().unwrap(), json!({"nodes": long_ago}));
        let expected = json!({"answers": false, "failingSince": long_ago, "failing": [
            {"kind": "nodes", "since": long_ago, "error": "timed out"},
            {"kind": "services", "since": text(now), "error": "refused"},
        ]});
        assert_eq!(health.api_server().unwrap(), expected);
        assert!(failing() >= 120.0);
        // The clock is set back by an hour.
        api.failed("servicecidrs", (now + Duration::from_secs(3600), instant), "refused");
        api.failed("servicecidrs", (now, instant), "refused");
        assert_eq!(health.api_server().unwrap()["failing"].as_array().map(Vec::len), Some(3));
        api.worked("servicecidrs");
        api.worked("nodes");
        // It was far behind when requests began to fail.
        api.failed("servicecidrs", (SystemTime::UNIX_EPOCH, instant), "refused");
        assert_eq!((said(), failing()), (None, 0.0));
        api.worked("servicecidrs");
        api.worked("services");
        assert_eq!((said(), health.api_server().unwrap()["answers"].clone(), failing()), (None, json!(true), 0.0));
    }
}

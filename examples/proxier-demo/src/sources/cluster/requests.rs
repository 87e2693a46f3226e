//! Counts of all requests of this process to API servers, and of the programs that it starts for credentials, with the
//! labels of client-go's metrics.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Method, StatusCode};

use crate::histogram::Histogram;

/// client-go's bounds (component-base's metrics/prometheus/restclient/metrics.go).
static SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
static BYTES: [f64; 11] =
    [64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0];

#[derive(Clone, Debug, PartialEq)]
pub struct Outcomes {
    /// Number of requests by status; `<error>`: no answer.
    pub by_code: BTreeMap<String, u64>,
    /// Time until the head of the answer, or until the failure.
    pub took: Histogram,
    /// Bytes of the bodies of requests.
    pub sent: Histogram,
    /// Bytes of the bodies of answers, without watches.
    pub received: Histogram,
    /// Number of retried requests, by the status of the previous attempt.
    pub retries: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    /// Outcomes by host with port, and method.
    pub outcomes: BTreeMap<(String, String), Outcomes>,
    /// Runs of programs that get credentials, by exit code and outcome.
    pub programs: BTreeMap<(i32, &'static str), u64>,
}

static REQUESTS: Mutex<Requests> = Mutex::new(Requests { outcomes: BTreeMap::new(), programs: BTreeMap::new() });

fn requests() -> MutexGuard<'static, Requests> {
    REQUESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(host: &str, method: &Method, change: impl FnOnce(&mut Outcomes)) {
    let new = || Outcomes {
        by_code: BTreeMap::new(),
        took: Histogram::new(&SECONDS),
        sent: Histogram::new(&BYTES),
        received: Histogram::new(&BYTES),
        retries: BTreeMap::new(),
    };
    change(requests().outcomes.entry((host.to_owned(), method.to_string())).or_insert_with(new));
}

fn code(status: Option<StatusCode>) -> String {
    status.map_or_else(|| "<error>".to_owned(), |status| status.as_u16().to_string())
}

/// Counts a request with this many bytes. `status` is `None` if there was no answer.
pub(super) fn count(host: &str, method: &Method, sent: Option<u64>, status: Option<StatusCode>, took: Duration) {
    note(host, method, |outcomes| {
        *outcomes.by_code.entry(code(status)).or_default() += 1;
        outcomes.took.observe(took);
        if let Some(bytes) = sent {
            outcomes.sent.observe_number(bytes);
        }
    });
}

/// Counts the bytes of a complete answer.
pub(super) fn received(host: &str, method: &Method, bytes: u64) {
    note(host, method, |outcomes| outcomes.received.observe_number(bytes));
}

/// Counts a request that is retried after this outcome.
pub(super) fn again(host: &str, method: &Method, status: Option<StatusCode>) {
    note(host, method, |outcomes| *outcomes.retries.entry(code(status)).or_default() += 1);
}

/// Counts a run of a program that gets credentials.
pub(super) fn program(exit_code: i32, how: &'static str) {
    *requests().programs.entry((exit_code, how)).or_default() += 1;
}

pub fn counted() -> Requests {
    requests().clone()
}

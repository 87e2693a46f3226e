//! Counts of all requests of this process to API servers, by the labels of client-go's metrics.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::proxier_demo::histogram::Histogram;

/// client-go's bounds (component-base's metrics/prometheus/restclient/metrics.go).
static SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// The outcomes of requests to a server with a method.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcomes {
    /// Number of requests by status; `<error>`: there was no answer.
    pub by_code: BTreeMap<String, u64>,
    /// Time until the head of the answer, or until the failure.
    pub took: Histogram,
}

/// Outcomes by host with port, and method.
pub type Requests = BTreeMap<(String, String), Outcomes>;

static REQUESTS: Mutex<Requests> = Mutex::new(Requests::new());

fn requests() -> MutexGuard<'static, Requests> {
    REQUESTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a request. `status`: `None` if there was no answer.
pub(super) fn count(host: &str, method: &http::Method, status: Option<http::StatusCode>, took: Duration) {
    let mut requests = requests();
    let new = || Outcomes { by_code: BTreeMap::new(), took: Histogram::new(&SECONDS) };
    let outcomes = requests.entry((host.to_owned(), method.to_string())).or_insert_with(new);
    let code = status.map_or_else(|| "<error>".to_owned(), |status| status.as_u16().to_string());
    *outcomes.by_code.entry(code).or_default() += 1;
    outcomes.took.observe(took);
}

/// The counts so far.
pub(crate) fn counted() -> Requests {
    requests().clone()
}

//! Results of the last passes: a few lines, for any number of Services.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use proxier_core::plan::report::Report;
use serde_json::{Value, json};

const PASSES: usize = 30;
/// Number of failures of the last pass that are kept.
const FAILURES: usize = 50;

/// The last passes: the kernel's thread writes, the status page reads.
#[derive(Debug, Default)]
pub(crate) struct Board {
    /// Passes as JSON, the newest first.
    passes: VecDeque<Value>,
    failures: Vec<String>,
    all_failures: usize,
    /// Time of the first of the passes in a row that had failures.
    failing_since: Option<SystemTime>,
    /// The first failure of the last pass that had any, and when that ended.
    last_error: Option<(SystemTime, String)>,
    /// Why deletions are held back, according to the last pass.
    pub(super) stopped: Option<String>,
}

impl Board {
    /// Records a pass that has ended. Failures of earlier passes are dropped, because each pass retries them.
    pub(crate) fn passed(&mut self, report: &Report, took: Duration, now: SystemTime) {
        let failures = report.applied.failures.iter().map(ToString::to_string);
        let unread = report.unread.iter().map(ToString::to_string);
        let all_failures = report.applied.failures.len().saturating_add(report.unread.len());
        self.passes.truncate(PASSES.saturating_sub(1));
        self.passes.push_front(json!({
            "ended": text(now),
            "seconds": took.as_secs_f64(),
            "full": report.full,
            "changes": report.writes(),
            "failures": all_failures,
            "failed": report.has_failed(),
        }));
        self.failures = unread.chain(failures).take(FAILURES).collect();
        self.all_failures = all_failures;
        self.failing_since = self.failing_since.or(Some(now)).filter(|_| all_failures > 0);
        if let Some(first) = self.failures.first().cloned() {
            self.last_error = Some((now, first));
        }
        self.stopped = report.stopped.as_deref().map(str::to_owned);
    }

    /// The last passes, the first failures of the last one with their number, and the last failure of any.
    pub(super) fn json(&self) -> Value {
        let error = self.last_error.as_ref().map(|(at, error)| json!({"time": text(*at), "error": error}));
        let failures =
            json!({"count": self.all_failures, "list": self.failures, "since": self.failing_since.map(text)});
        json!({"passes": self.passes, "failures": failures, "lastError": error})
    }
}

/// A time as RFC 3339.
pub(super) fn text(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
mod tests {
    use proxier_core::ports::{PortError, PortErrorKind};

    use super::*;

    #[test]
    fn only_the_last_passes_are_kept() {
        let mut board = Board::default();
        let mut report = Report::default();
        for number in 0..100 {
            report.full = number == 99;
            board.passed(&report, Duration::from_millis(number), SystemTime::UNIX_EPOCH);
        }
        let passes = board.json()["passes"].clone();
        assert_eq!(passes.as_array().unwrap().len(), PASSES);
        let newest = json!({
            "ended": "1970-01-01T00:00:00Z", "seconds": 0.099, "full": true, "changes": 0, "failures": 0, "failed": false,
        });
        assert_eq!((&passes[0], &passes[1]["full"]), (&newest, &json!(false)));
        assert_eq!(board.json()["failures"], json!({"count": 0, "list": [], "since": null}));
        assert_eq!(board.json()["lastError"], Value::Null);
    }

    #[test]
    fn failures_have_the_time_of_the_first_and_the_last_error_stays() {
        let at = |secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        let (mut board, mut failing) = (Board::default(), Report::default());
        let error = PortError::new(PortErrorKind::Busy, "interrupted");
        let unread = serde_json::from_value(json!({"what": "nf_tables", "error": error}));
        failing.unread = vec![unread.unwrap()];
        for secs in [1, 2] {
            board.passed(&failing, Duration::ZERO, at(secs));
        }
        let error = board.json()["failures"]["list"][0].clone();
        assert_eq!(board.json()["failures"], json!({"count": 1, "list": [error], "since": "1970-01-01T00:00:01Z"}));
        board.passed(&Report::default(), Duration::ZERO, at(3));
        assert_eq!(board.json()["failures"], json!({"count": 0, "list": [], "since": null}));
        assert_eq!(board.json()["lastError"], json!({"time": "1970-01-01T00:00:02Z", "error": error}));
        board.passed(&failing, Duration::ZERO, at(4));
        assert_eq!(board.json()["failures"]["since"], "1970-01-01T00:00:04Z");
    }
}

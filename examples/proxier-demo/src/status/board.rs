//! Results of the last passes: a few lines, for any number of Services.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use proxier_core::plan::report::Report;
use serde_json::{Value, json};

/// Number of passes that are kept.
const PASSES: usize = 30;
/// Number of failures of the last pass that are kept.
const FAILURES: usize = 50;

/// The last passes, shared: the kernel's thread writes, the status page reads.
#[derive(Debug, Default)]
pub(crate) struct Board(Mutex<History>);

#[derive(Debug, Default)]
struct History {
    /// Passes, the newest first.
    passes: VecDeque<Pass>,
    failures: Vec<String>,
    all_failures: usize,
    stopped: Option<String>,
}

#[derive(Debug)]
struct Pass {
    ended: SystemTime,
    took: Duration,
    full: bool,
    writes: u64,
    failures: usize,
    failed: bool,
}

impl Board {
    fn kept(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a pass that has ended. Failures of earlier passes are forgotten: each pass tries them again.
    pub(crate) fn passed(&self, report: &Report, took: Duration, now: SystemTime) {
        let failures = report.applied.failures.iter().map(ToString::to_string);
        let unread = report.unread.iter().map(ToString::to_string);
        let all_failures = report.applied.failures.len().saturating_add(report.unread.len());
        let mut kept = self.kept();
        kept.passes.truncate(PASSES.saturating_sub(1));
        kept.passes.push_front(Pass {
            ended: now,
            took,
            full: report.full,
            writes: report.writes(),
            failures: all_failures,
            failed: report.has_failed(),
        });
        kept.failures = unread.chain(failures).take(FAILURES).collect();
        kept.all_failures = all_failures;
        kept.stopped = report.stopped.as_deref().map(str::to_owned);
    }

    /// Why deletions are held back, according to the last pass.
    pub(super) fn stopped(&self) -> Option<String> {
        self.kept().stopped.clone()
    }

    /// The passes, the newest first.
    pub(super) fn passes(&self) -> Value {
        let pass = |pass: &Pass| {
            json!({
                "ended": Timestamp::try_from(pass.ended).unwrap_or(Timestamp::UNIX_EPOCH).to_string(),
                "seconds": pass.took.as_secs_f64(),
                "full": pass.full,
                "changes": pass.writes,
                "failures": pass.failures,
                "failed": pass.failed,
            })
        };
        self.kept().passes.iter().map(pass).collect()
    }

    /// Failures of the last pass: the first of them, and the total number.
    pub(super) fn failures(&self) -> Value {
        let kept = self.kept();
        json!({"count": kept.all_failures, "list": kept.failures})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_passes_are_kept() {
        let board = Board::default();
        let mut report = Report::default();
        for number in 0..100 {
            report.full = number == 99;
            board.passed(&report, Duration::from_millis(number), SystemTime::UNIX_EPOCH);
        }
        let passes = board.passes();
        assert_eq!(passes.as_array().unwrap().len(), PASSES);
        let newest = json!({
            "ended": "1970-01-01T00:00:00Z", "seconds": 0.099, "full": true, "changes": 0, "failures": 0, "failed": false,
        });
        assert_eq!((&passes[0], &passes[1]["full"]), (&newest, &json!(false)));
        assert_eq!(board.failures(), json!({"count": 0, "list": []}));
    }
}

//! Which passes get their own line in the log, and the sums of the others.

use std::time::{Duration, Instant};

use crate::output::changes;

/// A pass that takes at least this long gets its own line.
const LONG: Duration = Duration::from_secs(1);
/// Interval between two sums of the others.
const SUMMED: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    pub(super) writes: u64,
    pub(super) took: Duration,
    pub(super) has_failed: bool,
}

/// The passes since the last summary.
#[derive(Debug, Default)]
pub(super) struct Passes {
    is_later: bool,
    since: Option<Instant>,
    count: u64,
    writes: u64,
    longest: Duration,
}

impl Passes {
    /// Whether a pass gets its own line: the first that writes, one that took long, and one that wrote and failed. And
    /// the sum of the others, when it is due.
    pub(super) fn note(&mut self, pass: Passed, now: Instant) -> (bool, Option<String>) {
        let is_first = pass.writes > 0 && !self.is_later;
        self.is_later |= pass.writes > 0;
        let is_told = is_first || pass.took >= LONG || pass.has_failed && pass.writes > 0;
        if pass.writes > 0 && !is_told {
            self.since.get_or_insert(now);
            self.count = self.count.saturating_add(1);
            self.writes = self.writes.saturating_add(pass.writes);
            self.longest = self.longest.max(pass.took);
        }
        let is_due = self.since.is_some_and(|since| now.saturating_duration_since(since) >= SUMMED);
        let summary = is_due.then(|| {
            let passes = if self.count == 1 { "pass" } else { "passes" };
            let longest = self.longest.as_secs_f64() * 1e3;
            let summary = format!(
                "{} {passes} in five minutes: {}, the longest in {longest:.1} ms",
                self.count,
                changes(self.writes)
            );
            *self = Passes { is_later: self.is_later, ..Passes::default() };
            summary
        });
        (is_told, summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarkable_passes_get_a_line_and_the_rest_a_summary() {
        let (mut passes, start) = (Passes::default(), Instant::now());
        let mut pass = |writes, millis, has_failed, secs| {
            let pass = Passed { writes, took: Duration::from_millis(millis), has_failed };
            passes.note(pass, start + Duration::from_secs(secs))
        };
        assert_eq!(pass(0, 2, false, 0), (false, None), "nothing was written");
        assert_eq!(pass(40, 9, false, 1), (true, None), "the first");
        for second in 2..100 {
            assert_eq!(pass(2, 3, false, second), (false, None));
        }
        assert_eq!(pass(7, 1000, false, 100), (true, None), "a long one");
        assert_eq!(pass(7, 2, true, 100), (true, None), "a failure");
        assert_eq!(pass(1, 4, false, 101), (false, None));
        let sum = "99 passes in five minutes: 197 changes, the longest in 4.0 ms";
        assert_eq!(pass(0, 1, false, 302), (false, Some(sum.to_owned())));
        assert_eq!(pass(0, 1, false, 999), (false, None), "a quiet time has no sum");
    }
}

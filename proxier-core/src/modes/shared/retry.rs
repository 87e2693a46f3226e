//! Time at which to retry rules that could not be restored.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::time::Moment;

/// Time to retry rules that could not be restored.
#[derive(Clone, Debug)]
pub(crate) struct RulesRetry {
    pub(crate) at: Moment,
    backoff: Backoff,
}

impl RulesRetry {
    /// The longest pause: what needs rules should not wait much longer than for the lock.
    const LONGEST: Duration = Duration::from_secs(5);

    pub(crate) fn new(seed: u64) -> Self {
        RulesRetry { at: Moment::ZERO, backoff: Backoff::new(Backoff::FIRST, Self::LONGEST, seed) }
    }

    pub(crate) fn failed(&mut self, now: Moment) {
        self.at = now.saturating_add(self.backoff.next_pause());
    }
}

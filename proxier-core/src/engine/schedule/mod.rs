//! When passes run.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::time::Moment;

/// Intervals between passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The shortest time from the end of a pass to the start of the next (`ipvs.minSyncPeriod`). Default 0: a change is
    /// programmed at once, and changes that arrive during a pass are programmed together after it.
    pub min_interval: Duration,
    /// The longest time from the end of a full pass to the start of the next (`ipvs.syncPeriod`), in which other
    /// programs' changes to the kernel are repaired. Default 30 s.
    ///
    /// A value below `min_interval` is raised to it, and the result to at least 10 ms. After a full pass that took more
    /// than a quarter of it, the next waits four times as long as that one took.
    pub max_interval: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { min_interval: Duration::ZERO, max_interval: Duration::from_secs(30) }
    }
}

/// Scope of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    /// Objects changed since the last pass.
    Changes,
    /// Everything: the kernel is read again. Includes changed objects.
    Full,
}

/// The next pass: time and scope.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Wake {
    /// The time from which the pass may start; a time in the past means now.
    pub at: Moment,
    /// The scope of the pass at that time.
    pub pass: Pass,
}

/// Decides when passes run. One runs at once after a request, but not before the shortest interval is over. A full one
/// runs at the start, after the longest interval, and after a failure.
///
/// There are no bursts. The shortest interval applies between any two passes, measured from the end of the first, as
/// with kube-proxy from 1.34. Passes do not overlap; a request that arrives while one runs counts for the next.
///
/// After a failure a full pass is due after a pause ([`Backoff`], at most the longest interval), repeatedly until a
/// full pass succeeds. Meanwhile requests are served as usual, so one object that cannot be programmed does not delay
/// the others. Only a successful full pass ends the failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    limits: Limits,
    backoff: Backoff,
    /// No pass starts before this time.
    earliest: Moment,
    /// When a full pass is due.
    full_at: Moment,
    /// Since when a request has waited for a pass to start.
    asked: Option<Moment>,
    /// Until when the pass waits for the rest of what was requested.
    incomplete_until: Option<Moment>,
    /// Since when requests have failed.
    failing: Option<Moment>,
    /// Whether a full pass is due soon to retry single objects.
    retrying: bool,
    running: Option<RunningPass>,
    /// When the last pass began.
    began: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RunningPass {
    pass: Pass,
    /// When the work of the pass was first requested.
    since: Moment,
}

impl Schedule {
    /// The longest wait for the rest of a new Service.
    const COMPLETION: Duration = Duration::from_millis(100);

    /// Creates a schedule with a full pass due at once. The seed keeps nodes apart; see [`Backoff`].
    pub fn new(limits: Limits, seed: u64, now: Moment) -> Self {
        let shortest = limits.min_interval.max(Backoff::SHORTEST);
        let limits = Limits { max_interval: limits.max_interval.max(shortest), ..limits };
        let first = Backoff::FIRST.min(limits.max_interval);
        Schedule {
            limits,
            backoff: Backoff::new(first, limits.max_interval, seed),
            earliest: now,
            full_at: now,
            asked: Some(now),
            incomplete_until: None,
            failing: None,
            retrying: false,
            running: None,
            began: None,
        }
    }

    /// Requests a pass after a change. It is due as soon as the shortest interval is over.
    pub fn request(&mut self, now: Moment) {
        self.asked.get_or_insert(now);
        self.incomplete_until = None;
    }

    /// Requests a pass after a change of a Service without EndpointSlices, which nearly always follow within
    /// milliseconds. After a pass without them they would have to wait for the shortest interval. The pass therefore
    /// waits for the next request, at most 100 ms, and not at all without a shortest interval.
    pub fn request_incomplete(&mut self, now: Moment) {
        if self.asked.is_some() {
            return;
        }
        self.request(now);
        self.incomplete_until = Some(now.saturating_add(Self::COMPLETION.min(self.limits.min_interval)));
    }

    /// Requests a full pass because the kernel may differ from its tracked state (a device vanished, a result is
    /// unknown). It is due as soon as the shortest interval is over.
    pub fn request_full(&mut self, now: Moment) {
        self.request(now);
        self.full_at = self.full_at.min(now);
    }

    /// Requests a full pass at this time.
    pub fn request_full_at(&mut self, at: Moment) {
        self.full_at = self.full_at.min(at);
    }

    /// When the next pass may start. `None` while one runs.
    pub fn next(&self) -> Option<Wake> {
        if self.running.is_some() {
            return None;
        }
        let asked = self.asked.map(|asked| self.incomplete_until.unwrap_or(asked));
        let at = asked.map_or(self.full_at, |asked| asked.min(self.full_at)).max(self.earliest);
        Some(Wake { at, pass: self.pass_at(at) })
    }

    fn pass_at(&self, at: Moment) -> Pass {
        if self.full_at <= at { Pass::Full } else { Pass::Changes }
    }

    /// Starts the pass that is due. `None` if none is, or one is running.
    pub fn start(&mut self, now: Moment) -> Option<Pass> {
        if self.next()?.at > now {
            return None;
        }
        // It may start late, when a full one is due as well.
        let pass = self.pass_at(now);
        if pass == Pass::Full {
            self.full_at = Moment::MAX;
        }
        let since = self.asked.take().unwrap_or(now);
        self.incomplete_until = None;
        self.running = Some(RunningPass { pass, since });
        self.began = Some(now);
        Some(pass)
    }

    /// Records that the running pass has read and compared everything, whatever it was started for.
    pub fn became_full(&mut self) {
        if let Some(running) = &mut self.running {
            running.pass = Pass::Full;
            self.full_at = Moment::MAX;
        }
    }

    /// Records that the pass has ended. Does nothing if none is running.
    ///
    /// `success`: everything was done; one failed operation makes it a failure.
    pub fn done(&mut self, now: Moment, success: bool) {
        let Some(running) = self.running.take() else { return };
        self.earliest = now.saturating_add(self.limits.min_interval);
        let full_at = match (running.pass, success) {
            (Pass::Full, true) => {
                self.backoff.reset();
                self.failing = None;
                self.retrying = false;
                // Changes wait while the kernel is read, which takes `iptables-nft-save` many seconds for 10,000 Services.
                let took = self.began.map_or(Duration::ZERO, |began| now.saturating_sub(began));
                now.saturating_add(self.limits.max_interval.max(took.saturating_mul(4)))
            }
            (Pass::Changes, true) => return,
            (Pass::Changes, false) if self.failing.is_some() => return, // a full one is due already
            (_, false) => {
                self.failing.get_or_insert(running.since);
                now.saturating_add(self.backoff.next_pause())
            }
        };
        // One may have been requested, or be due anyway, before that.
        self.full_at = self.full_at.min(full_at);
    }

    /// Records that the pass has ended and did what this node can do, but the kernel refused single objects. A full
    /// pass retries them after a pause ([`Backoff`]); they do not count as pending. Does nothing if no pass is running.
    pub fn done_but_for_objects(&mut self, now: Moment) {
        let Some(running) = self.running.take() else { return };
        self.earliest = now.saturating_add(self.limits.min_interval);
        match running.pass {
            Pass::Full => self.failing = None,
            // A full one is due already.
            Pass::Changes if self.retrying || self.failing.is_some() => return,
            Pass::Changes => {}
        }
        self.retrying = true;
        self.full_at = self.full_at.min(now.saturating_add(self.backoff.next_pause()));
    }

    /// Whether the last full pass failed, or a pass for changes since then.
    pub fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// When the last pass began.
    pub fn began(&self) -> Option<Moment> {
        self.began
    }

    /// The time before which no pass starts: the end of the last one plus the shortest interval.
    pub fn earliest(&self) -> Moment {
        self.earliest
    }

    /// Since when a request is not done: no pass has started yet, one is running, or it failed. `None` if all are done.
    pub fn pending_since(&self) -> Option<Moment> {
        [self.failing, self.running.map(|running| running.since), self.asked].into_iter().flatten().min()
    }

    /// Failures since the last full pass that succeeded, not counting passes for changes while a failure lasts.
    pub fn failures(&self) -> u32 {
        self.backoff.failures()
    }
}

#[cfg(test)]
mod tests;

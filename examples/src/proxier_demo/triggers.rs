//! How long endpoints take from their cause, a pod that became ready say, to the kernel: as kube-proxy measures it.

use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use proxier_core::objects::EndpointSliceObject;
use proxier_core::snapshot::ObjectKey;

/// When the last change was caused that a slice has in it (RFC 3339), by the controller that writes slices.
pub(super) const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// More are not measured one by one.
const MOST: usize = 10_000;

/// Causes of changes that the kernel does not have yet.
#[derive(Debug)]
pub(super) struct Triggers {
    /// What was caused before is not measured: it waited for this process to start.
    started: SystemTime,
    /// By slice; of the next pass.
    fresh: Vec<(ObjectKey, SystemTime)>,
    /// Of passes that failed: in the kernel when a full pass succeeds.
    overdue: Vec<(ObjectKey, SystemTime)>,
}

impl Triggers {
    pub(super) fn new(started: SystemTime) -> Self {
        Triggers { started, fresh: Vec::new(), overdue: Vec::new() }
    }

    /// The cause that a slice names, if that is to be measured.
    pub(super) fn of(&self, slice: &EndpointSliceObject) -> Option<(ObjectKey, SystemTime)> {
        let text = slice.metadata.annotations.get(ANNOTATION)?;
        let time = SystemTime::from(text.parse::<Timestamp>().ok()?);
        (time > self.started).then(|| (ObjectKey::of(&slice.metadata), time))
    }

    /// A slice has changed.
    pub(super) fn changed(&mut self, trigger: (ObjectKey, SystemTime)) {
        if self.fresh.len() + self.overdue.len() < MOST {
            self.fresh.push(trigger);
        }
    }

    /// A slice is gone. What it had told is not programmed any more, and its end has no time.
    pub(super) fn gone(&mut self, slice: &ObjectKey) {
        for triggers in [&mut self.fresh, &mut self.overdue] {
            triggers.retain(|(of, _)| of != slice);
        }
    }

    /// A pass has ended. How long each cause took that the kernel has an answer to now.
    pub(super) fn passed(&mut self, full: bool, failed: bool, now: SystemTime) -> Vec<Duration> {
        if failed {
            self.overdue.append(&mut self.fresh);
            return Vec::new();
        }
        let mut done = std::mem::take(&mut self.fresh);
        if full {
            done.append(&mut self.overdue);
        }
        // Clocks of several machines: what comes from the future took no time.
        done.into_iter().map(|(_, time)| now.duration_since(time).unwrap_or_default()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn slice(name: &str, annotation: Option<&str>) -> EndpointSliceObject {
        let mut slice = EndpointSliceObject::default();
        (slice.metadata.namespace, slice.metadata.name) = ("demo".to_owned(), name.to_owned());
        slice.metadata.annotations.extend(annotation.map(|text| (ANNOTATION.to_owned(), text.to_owned())));
        slice
    }

    struct Clock {
        triggers: Triggers,
        started: SystemTime,
    }

    impl Clock {
        fn new() -> Self {
            let started = SystemTime::UNIX_EPOCH + SECOND * 1_700_000_000;
            Clock { triggers: Triggers::new(started), started }
        }

        /// The slice changes, for a cause so many seconds after the start.
        fn change(&mut self, name: &str, at: u32) {
            let text = Timestamp::try_from(self.started + SECOND * at).unwrap().to_string();
            if let Some(trigger) = self.triggers.of(&slice(name, Some(&text))) {
                self.triggers.changed(trigger);
            }
        }

        fn pass(&mut self, full: bool, failed: bool, at: u32) -> Vec<Duration> {
            self.triggers.passed(full, failed, self.started + SECOND * at)
        }
    }

    #[test]
    fn each_cause_is_measured_once() {
        let mut clock = Clock::new();
        clock.change("a", 1);
        clock.change("a", 2);
        clock.change("b", 3);
        assert_eq!(clock.pass(false, false, 4), [SECOND * 3, SECOND * 2, SECOND]);
        assert!(clock.pass(true, false, 5).is_empty());
    }

    #[test]
    fn what_was_caused_before_the_start_or_has_no_time_is_not_measured() {
        let mut clock = Clock::new();
        clock.change("a", 0);
        for annotation in [None, Some("yesterday"), Some("2001-01-01T00:00:00Z")] {
            assert_eq!(clock.triggers.of(&slice("b", annotation)), None, "{annotation:?}");
        }
        assert!(clock.triggers.of(&slice("b", Some("2100-02-03T04:05:06.123456789+01:00"))).is_some());
        assert!(clock.pass(true, false, 4).is_empty());
    }

    #[test]
    fn a_slice_that_goes_takes_its_causes_with_it() {
        let mut clock = Clock::new();
        clock.change("a", 1);
        clock.change("b", 1);
        clock.triggers.gone(&ObjectKey::new("demo", "a"));
        clock.change("a", 3);
        assert_eq!(clock.pass(false, false, 4), [SECOND * 3, SECOND]);
    }

    #[test]
    fn what_a_failed_pass_had_waits_for_a_full_one() {
        let mut clock = Clock::new();
        clock.change("a", 1);
        assert!(clock.pass(false, true, 2).is_empty());
        clock.change("b", 3);
        assert_eq!(clock.pass(false, false, 4), [SECOND], "a pass for others says nothing of the first");
        assert!(clock.pass(true, true, 5).is_empty());
        assert_eq!(clock.pass(true, false, 11), [SECOND * 10]);
    }
}

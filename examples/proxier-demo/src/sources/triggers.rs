//! Measures how long a change of endpoints takes from its cause (for example, a pod became ready) to the kernel, as
//! kube-proxy does.

use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use proxier_core::net::Family;
use proxier_core::objects::EndpointSliceObject;
use proxier_core::snapshot::ObjectKey;

/// Annotation with the time of the cause of a slice's last change (RFC 3339), written by the slice's controller.
pub(crate) const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Most causes that are measured individually.
const MOST: usize = 10_000;

/// Causes of changes that are not in the kernel yet.
#[derive(Debug)]
pub(crate) struct Triggers {
    /// Earlier causes are not measured, since they waited for this process to start.
    started: SystemTime,
    /// Causes for the next pass.
    fresh: Vec<Trigger>,
    /// Causes from failed passes. They are in the kernel once a full pass succeeds.
    overdue: Vec<Trigger>,
}

/// The time of a slice's cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trigger {
    slice: ObjectKey,
    family: Family,
    time: SystemTime,
}

impl Triggers {
    pub(crate) fn new(started: SystemTime) -> Self {
        Triggers { started, fresh: Vec::new(), overdue: Vec::new() }
    }

    /// The cause of a slice's change, if it should be measured.
    pub(crate) fn trigger_of(&self, slice: &EndpointSliceObject) -> Option<Trigger> {
        let text = slice.metadata.annotations.get(ANNOTATION)?;
        let time = SystemTime::from(text.parse::<Timestamp>().ok()?);
        let family = Family::ALL.into_iter().find(|family| family.name() == slice.address_type)?;
        (time > self.started).then(|| Trigger { slice: ObjectKey::of(&slice.metadata), family, time })
    }

    /// Records that a slice has changed.
    pub(crate) fn changed(&mut self, trigger: Trigger) {
        if self.fresh.len() + self.overdue.len() < MOST {
            self.fresh.push(trigger);
        }
    }

    /// A slice was deleted. Its causes are never programmed, and its deletion has no time.
    pub(crate) fn gone(&mut self, slice: &ObjectKey) {
        for triggers in [&mut self.fresh, &mut self.overdue] {
            triggers.retain(|trigger| trigger.slice != *slice);
        }
    }

    /// Records that a pass has ended. Returns how long each cause took that is now in the kernel.
    pub(crate) fn passed(&mut self, full: bool, failed: bool, now: SystemTime) -> Vec<(Family, Duration)> {
        if failed {
            self.overdue.append(&mut self.fresh);
            return Vec::new();
        }
        let mut done = std::mem::take(&mut self.fresh);
        if full {
            done.append(&mut self.overdue);
        }
        // Clocks of machines differ: a cause in the future took no time.
        let took = |trigger: &Trigger| now.duration_since(trigger.time).unwrap_or_default();
        done.iter().map(|trigger| (trigger.family, took(trigger))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn slice(name: &str, annotation: Option<&str>) -> EndpointSliceObject {
        let mut slice = EndpointSliceObject::default();
        "IPv4".clone_into(&mut slice.address_type);
        (slice.metadata.namespace, slice.metadata.name) = ("demo".to_owned(), name.to_owned());
        slice.metadata.annotations =
            annotation.into_iter().map(|text| (ANNOTATION.to_owned(), text.to_owned())).collect();
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

        /// Changes the slice, with a cause this many seconds after the start.
        fn change(&mut self, name: &str, at: u32) {
            let text = Timestamp::try_from(self.started + SECOND * at).unwrap().to_string();
            if let Some(trigger) = self.triggers.trigger_of(&slice(name, Some(&text))) {
                self.triggers.changed(trigger);
            }
        }

        fn pass(&mut self, full: bool, failed: bool, at: u32) -> Vec<Duration> {
            let passed = self.triggers.passed(full, failed, self.started + SECOND * at);
            passed.into_iter().map(|(family, took)| (took, assert_eq!(family, Family::V4)).0).collect()
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
    fn changes_before_the_start_or_without_a_time_are_not_measured() {
        let mut clock = Clock::new();
        clock.change("a", 0);
        for annotation in [None, Some("yesterday"), Some("2001-01-01T00:00:00Z")] {
            assert_eq!(clock.triggers.trigger_of(&slice("b", annotation)), None, "{annotation:?}");
        }
        assert!(clock.triggers.trigger_of(&slice("b", Some("2100-02-03T04:05:06.123456789+01:00"))).is_some());
        assert!(clock.pass(true, false, 4).is_empty());
    }

    #[test]
    fn a_deleted_slice_takes_its_causes_with_it() {
        let mut clock = Clock::new();
        clock.change("a", 1);
        clock.change("b", 1);
        clock.triggers.gone(&ObjectKey::new("demo", "a"));
        clock.change("a", 3);
        assert_eq!(clock.pass(false, false, 4), [SECOND * 3, SECOND]);
    }

    #[test]
    fn causes_of_a_failed_pass_wait_for_a_full_one() {
        let mut clock = Clock::new();
        clock.change("a", 1);
        assert!(clock.pass(false, true, 2).is_empty());
        clock.change("b", 3);
        assert_eq!(clock.pass(false, false, 4), [SECOND], "a pass for others says nothing of the first");
        assert!(clock.pass(true, true, 5).is_empty());
        assert_eq!(clock.pass(true, false, 11), [SECOND * 10]);
    }
}

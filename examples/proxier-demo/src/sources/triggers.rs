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

    #[test]
    fn a_deleted_slice_takes_its_causes_with_it() {
        let started = SystemTime::UNIX_EPOCH;
        let mut triggers = Triggers::new(started);
        let key = |name: &str| ObjectKey::new("demo", name);
        let at = |secs| started + Duration::from_secs(secs);
        let change = |name: &str, secs| Trigger { slice: key(name), family: Family::V4, time: at(secs) };
        triggers.changed(change("a", 1));
        triggers.changed(change("b", 1));
        triggers.gone(&key("a"));
        triggers.changed(change("a", 3));
        let took: Vec<_> = triggers.passed(false, false, at(4)).into_iter().map(|(_, took)| took.as_secs()).collect();
        assert_eq!(took, [3, 1]);
    }
}

#![allow(clippy::arithmetic_side_effects, reason = "an overflow fails the test")]

use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn secs(secs: u64) -> Moment {
    Duration::from_secs(secs)
}

fn schedule(min_secs: u64, max_secs: u64) -> Schedule {
    Schedule::new(Limits { min_interval: secs(min_secs), max_interval: secs(max_secs) }, 1, secs(0))
}

/// Runs the pass that is due at this time and ends it at once.
fn run(schedule: &mut Schedule, now: Moment, success: bool) -> Pass {
    let pass = schedule.start(now).unwrap();
    schedule.done(now, success);
    pass
}

/// A Service and its EndpointSlices arrive one after the other, and one pass serves them.
#[test]
fn a_service_without_slices_waits_for_them() {
    let millis = Duration::from_millis;
    let mut schedule = schedule(5, 30);
    run(&mut schedule, secs(0), true);
    schedule.request_incomplete(secs(20));
    assert_eq!(schedule.start(secs(20) + millis(99)), None);
    assert_eq!(schedule.pending_since(), Some(secs(20)));
    schedule.request(secs(20) + millis(7));
    assert_eq!(run(&mut schedule, secs(20) + millis(7), true), Pass::Changes);
    // Nothing arrived, so clients are refused after 100 ms.
    schedule.request_incomplete(secs(26));
    schedule.request_incomplete(secs(26) + millis(50));
    assert_eq!(schedule.next(), Some(Wake { at: secs(26) + millis(100), pass: Pass::Changes }));
    run(&mut schedule, secs(26) + millis(100), true);
    // It delays no other request, and no pass without a shortest interval.
    schedule.request(secs(28));
    schedule.request_incomplete(secs(29));
    assert_eq!(schedule.next(), Some(Wake { at: secs(31) + millis(100), pass: Pass::Full }));
    let mut schedule = self::schedule(0, 30);
    run(&mut schedule, secs(0), true);
    schedule.request_incomplete(secs(10));
    assert_eq!(run(&mut schedule, secs(10), true), Pass::Changes);
}

#[test]
fn full_passes_take_at_most_a_fifth_of_the_time() {
    for (took, pause) in [(7, 30), (8, 32), (95, 380)] {
        let mut schedule = schedule(0, 30);
        assert_eq!(schedule.start(secs(0)), Some(Pass::Full));
        schedule.done(secs(took), true);
        assert_eq!(schedule.next(), Some(Wake { at: secs(took + pause), pass: Pass::Full }));
        // A change does not wait.
        schedule.request(secs(took));
        assert_eq!(run(&mut schedule, secs(took), true), Pass::Changes);
    }
}

#[test]
fn a_failure_is_tried_again_with_growing_pauses_and_changes_go_on() {
    let mut schedule = schedule(0, 30);
    run(&mut schedule, secs(0), true);
    schedule.request(secs(10));
    run(&mut schedule, secs(10), false);
    assert_eq!((schedule.failures(), schedule.pending_since()), (1, Some(secs(10))));
    let retry = schedule.next().unwrap();
    assert_eq!(retry.pass, Pass::Full);
    assert!(retry.at > secs(10) && retry.at <= secs(11));
    // Changes are programmed meanwhile. Whether they fail or not, the time of the retry stays.
    for success in [true, false] {
        schedule.request(secs(10));
        assert_eq!(run(&mut schedule, secs(10), success), Pass::Changes);
        assert_eq!(schedule.next(), Some(retry));
        assert_eq!(schedule.failures(), 1);
    }
    let mut now = retry.at;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        assert_eq!(run(&mut schedule, now, false), Pass::Full);
        let next = schedule.next().unwrap().at;
        pauses.push(next.saturating_sub(now));
        now = next;
    }
    assert!(pauses.iter().all(|pause| *pause <= secs(30)), "{pauses:?}");
    assert!(pauses.first().is_some_and(|first| *first <= secs(2)), "{pauses:?}");
    assert!(pauses.last().is_some_and(|last| *last >= secs(15)), "{pauses:?}");
    assert_eq!(schedule.pending_since(), Some(secs(10)));
    run(&mut schedule, now, true);
    assert_eq!((schedule.failures(), schedule.pending_since()), (0, None));
    assert_eq!(schedule.next().unwrap().at, now + secs(30));
}

/// kube-proxy's health check misses a periodic pass that keeps failing, because no change requested it.
#[test]
fn pending_requests_are_known() {
    let mut schedule = schedule(1, 30);
    assert_eq!(schedule.pending_since(), Some(secs(0)));
    schedule.start(secs(2)).unwrap();
    assert_eq!(schedule.pending_since(), Some(secs(0)), "a pass that hangs is one that does not succeed");
    schedule.request(secs(3));
    schedule.done(secs(4), true);
    assert_eq!(schedule.pending_since(), Some(secs(3)));
    run(&mut schedule, secs(5), true);
    assert_eq!(schedule.pending_since(), None);
    run(&mut schedule, secs(34), false); // periodic
    assert_eq!(schedule.pending_since(), Some(secs(34)));
}

#[test]
fn unusual_limits_still_end() {
    let limits = Limits { min_interval: Duration::ZERO, max_interval: Duration::ZERO };
    let schedule = Schedule::new(limits, 0, secs(0));
    assert_eq!(schedule.limits.max_interval, Backoff::SHORTEST);
    let limits = Limits { min_interval: secs(9), max_interval: secs(3) };
    assert_eq!(Schedule::new(limits, 0, secs(0)).limits.max_interval, secs(9));
    let limits = Limits { min_interval: Moment::MAX, max_interval: Moment::MAX };
    let mut schedule = Schedule::new(limits, 0, secs(5));
    run(&mut schedule, secs(5), true);
    assert_eq!(schedule.start(secs(u64::MAX)), None);
}

#[test]
fn an_end_without_a_pass_has_no_effect() {
    let mut schedule = schedule(5, 30);
    let before = schedule.clone();
    schedule.done(secs(3), false);
    assert_eq!(schedule, before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// A reconciler that follows the schedule, in simulated time, with requests at any moment.
    #[test]
    fn passes_run_never_too_often_and_never_too_late(
        events in vec((prop_oneof![0..50_u64, 0..20_000_u64], weighted(0.1)), 1..80),
        works in vec((0..3_000_u64, weighted(0.6)), 1..20),
        min_ms in 0..5_000_u64,
        max_ms in 0..40_000_u64,
        seed: u64,
    ) {
        let limits = Limits { min_interval: Duration::from_millis(min_ms), max_interval: Duration::from_millis(max_ms) };
        let mut schedule = Schedule::new(limits, seed, Moment::ZERO);
        let Limits { min_interval: min, max_interval: max } = schedule.limits;
        let mut works = works.iter().cycle();
        let mut now = Moment::ZERO;
        let mut events = events.iter().scan(Moment::ZERO, |at, (after_ms, full)| {
            *at += Duration::from_millis(*after_ms);
            Some((*at, *full))
        }).peekable();
        // Open requests and their start; the first pass counts as requested.
        let (mut asked, mut asked_full): (Option<Moment>, Option<Moment>) = (Some(now), Some(now));
        let mut last_end: Option<Moment> = None;
        let mut periodic: Option<Moment> = None;
        let mut failed_at: Option<Moment> = None;
        let mut passes = 0;
        while events.peek().is_some() || passes < 40 {
            let wake = schedule.next().unwrap();
            if let Some((at, full)) = events.next_if(|(at, _)| *at <= wake.at.max(now)) {
                now = now.max(at);
                if full { schedule.request_full(now) } else { schedule.request(now) }
                asked.get_or_insert(now);
                if full { asked_full.get_or_insert(now); }
                continue;
            }
            if wake.at > now {
                prop_assert_eq!(schedule.clone().start(wake.at.saturating_sub(Duration::from_nanos(1))), None);
            }
            now = now.max(wake.at);
            let pass = schedule.start(now);
            prop_assert_eq!(pass, Some(wake.pass));
            prop_assert_eq!(schedule.next(), None);
            passes += 1;
            // Not too often.
            let free = last_end.map_or(Moment::ZERO, |end| end + min);
            prop_assert!(now >= free);
            // Not without a reason.
            let is_full = pass == Some(Pass::Full);
            prop_assert!(asked.is_some() || failed_at.is_some() || periodic.is_some_and(|due| now >= due));
            // Not too late: a request as soon as the interval is over; a full pass when requested, after the longest
            // interval, or that long after a failure.
            if let Some(asked) = asked.take() {
                prop_assert!(now <= asked.max(free), "asked {:?}, free {:?}, now {:?}", asked, free, now);
            }
            let due = [asked_full, periodic, failed_at.map(|at| at + max)];
            if let Some(due) = due.into_iter().flatten().min() {
                prop_assert!(is_full || now < due.max(free));
            }
            // Requests while it runs.
            let (takes_ms, success) = *works.next().unwrap();
            let end = now + Duration::from_millis(takes_ms);
            if is_full { (asked_full, periodic) = (None, None) }
            while let Some((at, full)) = events.next_if(|(at, _)| *at <= end) {
                let at = at.max(now);
                if full { schedule.request_full(at) } else { schedule.request(at) }
                asked.get_or_insert(at);
                if full { asked_full.get_or_insert(at); }
            }
            now = end;
            schedule.done(now, success);
            last_end = Some(now);
            match (is_full, success) {
                (true, true) => {
                    let pause = max.max(Duration::from_millis(4 * takes_ms));
                    (periodic, failed_at) = (Some(now + pause), None);
                }
                (true, false) => failed_at = Some(now),
                (false, true) => {}
                (false, false) => { failed_at.get_or_insert(now); }
            }
            prop_assert_eq!(schedule.pending_since().is_none(), asked.is_none() && failed_at.is_none());
        }
    }
}

//! Whether a soak was passed: a function of what was recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::first;
use super::mode::Mode;
use super::watchers::{Followed, Miss, Notes, Sample, Scope, Use, Window};

/// Everything that the verdict depends on.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    pub(super) notes: Notes,
    /// The period in which the same process runs and must not grow. `None` if the mode changes; then this holds for
    /// each process that lives long enough.
    pub(super) calm: Option<(Duration, Duration)>,
    /// The kinds of faults that must occur.
    pub(super) deck: BTreeSet<&'static str>,
    /// Time from the proxy's start until the kernel had everything.
    pub(super) start: Duration,
    pub(super) events: u64,
    pub(super) planned_events: u64,
    /// Time until everything was as expected; `None` if it never was.
    pub(super) settled: Option<Duration>,
    /// The last output of `plan`, if it had something to do.
    pub(super) plan: Option<String>,
    /// Differences between the kernel and the model.
    pub(super) differences: Vec<String>,
    /// Other programs' objects that changed.
    pub(super) foreign: Vec<String>,
    /// Failures of the soak itself.
    pub(super) troubles: Vec<String>,
}

/// The longest times that a change, and a repair, may take. The proxy is stopped for up to 20 s. The lock of iptables
/// is held, and the API server is down, for up to 10 s. Repairs also wait for the next full pass, every 15 s. For a
/// slow machine, twice the time of the initial programming is added.
pub(super) fn limits(start: Duration) -> (Duration, Duration) {
    (Duration::from_secs(60) + start * 2, Duration::from_secs(90) + start * 2)
}

/// Percentage of the planned changes that must be made in the time.
const CHANGES_PERCENT: u64 = 80;
/// Limit for the growth of resident memory in the calm part, in percent and in KiB, to allow for the allocator's
/// variation.
const GROWTH_PERCENT: u64 = 8;
const GROWTH_KIB: u64 = 2_048;
/// In a short soak the process is still young.
const YOUNG_GROWTH_KIB: u64 = 6_144;
const YOUNG: Duration = Duration::from_secs(300);
/// Limit for the difference in open files, since connections to the API server vary.
const FILES: u64 = 4;
/// In userspace mode: 35 clients, with up to six files for a connection.
const FILES_OF_CLIENTS: u64 = 210;
/// With fewer samples, thirds say nothing.
const FEWEST: usize = 9;
/// The samples of the time in which a process reads everything and makes its first passes.
const START: usize = 10;

/// The verdict: what is wrong, and what was excused, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) wrong: Vec<String>,
    pub(super) excused: BTreeMap<String, u64>,
    pub(super) inexcusable: Vec<String>,
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Whether a window excuses a miss. `spent` has the excused new connections of each client.
fn excuses(number: usize, window: &Window, miss: &Miss, spent: &mut BTreeSet<(usize, usize)>) -> bool {
    if window.from > miss.until || window.until.is_some_and(|until| until < miss.from) {
        return false;
    }
    match &window.scope {
        // A mere delay does not explain a refusal, and other programs' virtual servers are not the proxy's.
        Scope::Waiting => miss.waited,
        Scope::Everybody => miss.what != Use::Foreign && miss.what != Use::Direct,
        Scope::Service(name) => *name == miss.service,
        Scope::Address(address) => miss.address == Some(*address) && miss.what != Use::Flapping,
        Scope::Uses(uses) => uses.contains(&miss.what),
        Scope::OneEach => {
            matches!(miss.what, Use::Short | Use::Datagram | Use::Node) && spent.insert((number, miss.client))
        }
    }
}

pub(super) fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let notes = &evidence.notes;
    connections(notes, &mut verdict);
    let wrong = &mut verdict.wrong;
    wrong.extend(notes.breakdowns.iter().cloned());
    wrong.extend(evidence.troubles.iter().map(|trouble| format!("the soak itself: {trouble}")));
    for window in &notes.windows {
        let Some(limit) = window.limit else { continue };
        let what = format!("{}, at {}", window.reason, seconds(window.from));
        match window.until.map(|until| until.saturating_sub(window.from)) {
            None => wrong.push(format!("never repaired: {what}")),
            Some(took) if took > limit => wrong.push(format!("repaired only after {}: {what}", seconds(took))),
            Some(_) => {}
        }
    }
    changes(&notes.followed, limits(evidence.start).0, wrong);
    match evidence.calm {
        Some(calm) => memory_and_files(&notes.samples, calm, wrong),
        None => processes(&notes.samples, wrong),
    }
    if evidence.events * 100 < evidence.planned_events * CHANGES_PERCENT {
        wrong.push(format!("only {} of {} changes were made in time", evidence.events, evidence.planned_events));
    }
    let kinds: BTreeSet<&str> = notes.faults.iter().map(|fault| fault.kind).collect();
    let never: Vec<&str> = evidence.deck.difference(&kinds).copied().collect();
    if !never.is_empty() {
        let (number, all) = (never.len(), evidence.deck.len());
        wrong.push(format!("{number} of {all} kinds of faults were not made: {}", never.join(", ")));
    }
    if evidence.settled.is_none() {
        wrong.push("the kernel did not become as it has to be".to_owned());
    }
    wrong.extend(evidence.plan.iter().map(|plan| format!("proxier-demo plan: {}", plan.replace('\n', " / "))));
    for (what, lines) in [("not as the model has it", &evidence.differences), ("of others", &evidence.foreign)] {
        if !lines.is_empty() {
            wrong.push(format!("{what}: {} differences: {}", lines.len(), first(lines, 12)));
        }
    }
    verdict
}

/// Number of failed connections without an excuse so far.
pub(super) fn unexcused(notes: &Notes) -> usize {
    let mut verdict = Verdict::default();
    connections(notes, &mut verdict);
    verdict.inexcusable.len()
}

fn connections(notes: &Notes, verdict: &mut Verdict) {
    let mut spent = BTreeSet::new();
    for miss in &notes.misses {
        let excuse =
            notes.windows.iter().enumerate().find(|(number, window)| excuses(*number, window, miss, &mut spent));
        match excuse.map(|(_, window)| window.reason) {
            Some(reason) => *verdict.excused.entry(reason.to_owned()).or_default() += 1,
            // The pod could not be reached directly either, so the proxy is not at fault.
            None if miss.waited && direct_too(miss, &notes.misses) => {
                *verdict.excused.entry("pods were out of reach without a Service too".to_owned()).or_default() += 1;
            }
            None => {
                let (time, Miss { what, place, service, error, .. }) = (seconds(miss.from), miss);
                let until = seconds(miss.until);
                verdict.inexcusable.push(format!("{what:?} {place} of {service}, {time} to {until}: {error}"));
            }
        }
    }
    let number = verdict.inexcusable.len();
    if number > 0 {
        verdict.wrong.push(format!("{number} connections failed, or succeeded, without an excuse"));
    }
    for what in [Use::Short, Use::Long, Use::Datagram, Use::Node, Use::Foreign, Use::Direct] {
        if notes.made.get(&what).is_none_or(|number| *number == 0) {
            verdict.wrong.push(format!("nobody was served: {what:?}"));
        }
    }
}

/// Whether a direct connection timed out at the same time.
fn direct_too(miss: &Miss, misses: &[Miss]) -> bool {
    let mut direct = misses.iter().filter(|other| other.what == Use::Direct && other.waited);
    miss.what != Use::Direct && direct.any(|other| other.from <= miss.until && other.until >= miss.from)
}

fn changes(followed: &[Followed], limit: Duration, wrong: &mut Vec<String>) {
    if followed.is_empty() {
        wrong.push("no change was followed into the kernel".to_owned());
    }
    for change in followed {
        if !change.arrived {
            wrong.push(format!("the change at {} never arrived in the kernel", seconds(change.from)));
        } else if change.took > limit {
            wrong.push(format!("the change at {} took {}", seconds(change.from), seconds(change.took)));
        }
    }
}

pub(super) fn median(mut numbers: Vec<u64>) -> Option<u64> {
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied()
}

fn memory_and_files(samples: &[Sample], calm: (Duration, Duration), wrong: &mut Vec<String>) {
    let within = |sample: &&Sample| (calm.0.as_secs_f64()..=calm.1.as_secs_f64()).contains(&sample.at_secs);
    let calm: Vec<&Sample> = samples.iter().filter(within).collect();
    if calm.len() < FEWEST {
        wrong.push("too few samples of the process".to_owned());
        return;
    }
    if calm.iter().any(|sample| calm.first().is_some_and(|first| first.process != sample.process)) {
        wrong.push("the process was another one in the part in which it has to stay".to_owned());
        return;
    }
    growth(&calm, wrong);
}

/// Each process that lived long enough, separately.
fn processes(samples: &[Sample], wrong: &mut Vec<String>) {
    let lives = samples.chunk_by(|one, next| one.process == next.process);
    let lives = lives.map(|life| life.iter().skip(START).collect::<Vec<_>>());
    let lives: Vec<_> = lives.filter(|life| life.len() >= FEWEST).collect();
    if lives.is_empty() {
        wrong.push("too few samples of any process".to_owned());
    }
    for life in lives {
        growth(&life, wrong);
    }
}

/// Checks for growth from the first third of these samples to the last.
fn growth(samples: &[&Sample], wrong: &mut Vec<String>) {
    let (Some(begin), Some(end)) = (samples.first(), samples.last()) else { return };
    let is_young = end.at_secs - begin.at_secs < YOUNG.as_secs_f64();
    let growth = if is_young { YOUNG_GROWTH_KIB } else { GROWTH_KIB };
    let third = samples.len() / 3;
    let (calm, mode) = (samples, begin.mode);
    let (first, last) = (calm.get(..third).unwrap_or_default(), calm.get(calm.len() - third..).unwrap_or_default());
    let of = |samples: &[&Sample], value: fn(&Sample) -> u64| {
        median(samples.iter().map(|sample| value(sample)).collect()).unwrap_or(0)
    };
    let resident = |samples| of(samples, |sample| sample.resident_kib);
    let (before, after) = (resident(first), resident(last));
    if after > before + before * GROWTH_PERCENT / 100 + growth {
        wrong.push(format!("resident memory grew from {before} to {after} KiB, in {mode} mode"));
    }
    let files = |samples| of(samples, |sample| sample.files);
    let (before, after) = (files(first), files(last));
    // In this mode listeners and connections are the process's own, so their number depends on the clients.
    let spread = if mode == Mode::Userspace { before / 4 + FILES_OF_CLIENTS } else { FILES };
    if after > before + spread {
        wrong.push(format!("open files grew from {before} to {after}, in {mode} mode"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::watchers::Fault;
    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn good() -> Evidence {
        let mut evidence = Evidence {
            calm: Some((secs(30), secs(100))),
            deck: BTreeSet::from(["kill"]),
            events: 10,
            planned_events: 10,
            settled: Some(secs(5)),
            ..Evidence::default()
        };
        let notes = &mut evidence.notes;
        for what in [Use::Short, Use::Long, Use::Datagram, Use::Node, Use::Foreign, Use::Direct] {
            notes.made.insert(what, 5);
        }
        notes.samples = (0..60_u32)
            .map(|number| Sample {
                at_secs: f64::from(number) * 2.0,
                mode: Mode::Ipvs,
                process: 7,
                resident_kib: 20_000,
                files: 20,
            })
            .collect();
        notes.followed.push(Followed { from: secs(1), took: secs(1), arrived: true });
        notes.faults.push(Fault { kind: "kill", detail: String::new(), from: secs(1), until: secs(2) });
        evidence
    }

    fn miss(what: Use, from: u64, until: u64) -> Miss {
        Miss {
            what,
            client: 1,
            service: "used-1".to_owned(),
            place: "TCP 10.96.0.2:80".to_owned(),
            address: Some([10, 96, 0, 2].into()),
            from: secs(from),
            until: secs(until),
            waited: false,
            error: "connection refused".to_owned(),
        }
    }

    fn window(scope: Scope, from: u64, until: Option<u64>) -> Window {
        Window {
            reason: "a virtual server was deleted",
            scope,
            from: secs(from),
            until: until.map(secs),
            limit: Some(secs(60)),
        }
    }

    #[test]
    fn a_clean_run_passes() {
        assert_eq!(judge(&good()), Verdict::default());
    }

    #[test]
    fn a_failed_connection_needs_an_excuse_for_its_time_and_service() {
        let mut evidence = good();
        evidence.notes.misses.push(miss(Use::Short, 50, 51));
        assert_eq!(judge(&evidence).wrong, ["1 connections failed, or succeeded, without an excuse"]);
        for (scope, from, until, excused) in [
            (Scope::Service("used-1".to_owned()), 45, Some(52), true),
            (Scope::Service("used-2".to_owned()), 45, Some(52), false),
            (Scope::Service("used-1".to_owned()), 45, Some(49), false),
            (Scope::Service("used-1".to_owned()), 52, Some(53), false),
            (Scope::Everybody, 45, Some(52), true),
            (Scope::Waiting, 45, Some(52), false),
            (Scope::Address([10, 96, 0, 2].into()), 45, Some(52), true),
            (Scope::Address([10, 96, 0, 3].into()), 45, Some(52), false),
            (Scope::Uses(&[Use::Long, Use::Short]), 45, Some(52), true),
            (Scope::Uses(&[Use::Long]), 45, Some(52), false),
            (Scope::OneEach, 45, Some(52), true),
        ] {
            evidence.notes.windows = vec![window(scope.clone(), from, until)];
            let verdict = judge(&evidence);
            assert_eq!(verdict.wrong.is_empty(), excused, "{scope:?} {from} {until:?}: {verdict:?}");
            assert_eq!(verdict.excused.values().sum::<u64>(), u64::from(excused));
        }
    }

    #[test]
    fn each_client_may_lose_one_new_connection_at_a_change_of_mode() {
        let mut evidence = good();
        evidence.notes.windows.push(window(Scope::OneEach, 45, Some(60)));
        let others = Miss { client: 2, ..miss(Use::Short, 50, 51) };
        evidence.notes.misses = vec![miss(Use::Short, 50, 51), others, miss(Use::Node, 52, 53)];
        assert_eq!(judge(&evidence).inexcusable.len(), 1);
        evidence.notes.windows.push(window(Scope::OneEach, 45, Some(60)));
        assert_eq!(judge(&evidence).inexcusable.len(), 0, "another change");
        evidence.notes.misses.push(miss(Use::Long, 52, 53));
        assert_eq!(judge(&evidence).inexcusable.len(), 1, "an open one");
    }

    #[test]
    fn with_mode_changes_no_process_may_grow() {
        let mut evidence = good();
        evidence.calm = None;
        evidence
            .notes
            .samples
            .iter_mut()
            .skip(25)
            .for_each(|sample| (sample.process, sample.resident_kib) = (8, 40_000));
        assert_eq!(judge(&evidence), Verdict::default());
        evidence.notes.samples.iter_mut().skip(50).for_each(|sample| sample.files = 25);
        assert_eq!(judge(&evidence).wrong, ["open files grew from 20 to 25, in ipvs mode"]);
        for sample in &mut evidence.notes.samples {
            sample.mode = Mode::Userspace;
        }
        assert_eq!(judge(&evidence), Verdict::default());
        evidence.notes.samples.iter_mut().skip(50).for_each(|sample| sample.files = 250);
        assert_eq!(judge(&evidence).wrong, ["open files grew from 20 to 250, in userspace mode"]);
        evidence.notes.samples.truncate(15);
        assert_eq!(judge(&evidence).wrong, ["too few samples of any process"]);
    }

    #[test]
    fn changes_to_foreign_objects_are_never_excused() {
        let mut evidence = good();
        evidence.notes.windows.push(window(Scope::Everybody, 1, Some(60)));
        evidence.notes.misses.push(miss(Use::Foreign, 50, 51));
        assert_eq!(judge(&evidence).inexcusable.len(), 1);
    }

    #[test]
    fn a_timeout_is_excused_when_pods_were_unreachable_directly() {
        let mut evidence = good();
        evidence.notes.misses.push(Miss { waited: true, ..miss(Use::Short, 50, 60) });
        assert_eq!(judge(&evidence).inexcusable.len(), 1);
        evidence.notes.misses.push(Miss { waited: true, ..miss(Use::Direct, 55, 65) });
        // The direct connection itself has no excuse.
        assert_eq!(judge(&evidence).inexcusable.len(), 1);
        assert_eq!(judge(&evidence).excused.len(), 1);
    }

    #[test]
    fn each_fault_is_found() {
        type Spoil = fn(&mut Evidence);
        let cases: [(&str, Spoil); 15] = [
            ("1 of 2 kinds of faults were not made: stop", |e| _ = e.deck.insert("stop")),
            ("never repaired", |e| e.notes.windows.push(window(Scope::Everybody, 50, None))),
            ("repaired only after", |e| e.notes.windows.push(window(Scope::Everybody, 10, Some(80)))),
            ("nobody was served: Long", |e| e.notes.made.retain(|what, _| *what != Use::Long)),
            ("ended by itself", |e| e.notes.breakdowns.push("proxier-demo ended by itself".to_owned())),
            ("took 61.0 s", |e| e.notes.followed.push(Followed { from: secs(1), took: secs(61), arrived: true })),
            ("never arrived", |e| e.notes.followed.push(Followed { from: secs(1), took: secs(9), arrived: false })),
            ("resident memory grew", |e| e.notes.samples.iter_mut().skip(45).for_each(|s| s.resident_kib = 28_000)),
            ("open files grew", |e| e.notes.samples.iter_mut().skip(38).for_each(|s| s.files = 25)),
            ("another one", |e| e.notes.samples.iter_mut().skip(38).for_each(|s| s.process = 8)),
            ("too few samples", |e| e.notes.samples.clear()),
            ("only 7 of 10 changes", |e| e.events = 7),
            ("did not become", |e| e.settled = None),
            ("not as the model has it: 1", |e| e.differences.push("ipvsadm -Sn: missing: x".to_owned())),
            ("of others: 1", |e| e.foreign.push("missing: x".to_owned())),
        ];
        for (words, spoil) in cases {
            let mut evidence = good();
            spoil(&mut evidence);
            let wrong = judge(&evidence).wrong;
            assert!(wrong.iter().any(|line| line.contains(words)), "{words}: {wrong:?}");
        }
    }
}

//! Results of tests: where each ran, and how it ended.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use crate::libtest::{Verdict, durations, parse_count, parse_line};

/// A test by the program it belongs to and its own name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    program: String,
    name: String,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.program, self.name)
    }
}

/// All tests on all kernels.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The kernels in the order in which they were used.
    places: Vec<String>,
    tests: BTreeMap<Test, Vec<(usize, Verdict)>>,
    /// Durations of tests, with the place of each.
    times: Vec<(Duration, usize, Test)>,
}

/// Reason why a test that takes long did not run.
const OTHER_SEED: &str = "takes long: its turn comes with another seed";

/// Number of the slowest tests that are printed.
const SLOWEST: usize = 15;

/// Number of tests, each counted once on all kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    /// Failed somewhere.
    pub(crate) failed: usize,
    /// Ran nowhere.
    pub(crate) skipped: usize,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

impl Report {
    /// Notes one result.
    pub(crate) fn add(&mut self, place: &str, program: &str, name: &str, verdict: Verdict) {
        let place = self.place(place);
        let test = Test { program: program.to_owned(), name: name.to_owned() };
        self.tests.entry(test).or_default().push((place, verdict));
    }

    /// Notes the results of one test program.
    pub(crate) fn add_program(&mut self, place: &str, program: &str, run: &ProgramRun) {
        for (name, verdict) in run.verdicts() {
            self.add(place, program, &name, verdict);
        }
        let place = self.place(place);
        for (name, took) in run.times() {
            self.times.push((took, place, Test { program: program.to_owned(), name }));
        }
    }

    /// Notes tests that take long and whose turn it is not.
    pub(crate) fn leave_to_other_seeds(&mut self, place: &str, program: &str, tests: &[String]) {
        for test in tests {
            self.add(place, program, test, Verdict::Skipped(OTHER_SEED.to_owned()));
        }
    }

    /// Durations of tests: whether on the first kernel, program, test, time.
    pub(crate) fn times(&self) -> impl Iterator<Item = (bool, &str, &str, Duration)> {
        self.times.iter().map(|(took, place, test)| (*place == 0, test.program.as_str(), test.name.as_str(), *took))
    }

    /// The tests of a program that have passed so far and failed nowhere, with the time that each took on the first kernel, zero when
    /// it did not run there.
    pub(crate) fn passed(&self, program: &str) -> BTreeMap<&str, Duration> {
        let mut passed = BTreeMap::new();
        for (test, results) in self.tests.iter().filter(|(test, _)| test.program == program) {
            let has = |wanted: &Verdict| results.iter().any(|(_, verdict)| verdict == wanted);
            if has(&Verdict::Passed) && !has(&Verdict::Failed) {
                let first = self.times.iter().find(|(_, place, timed)| *place == 0 && timed == test);
                passed.insert(test.name.as_str(), first.map(|(took, ..)| *took).unwrap_or_default());
            }
        }
        passed
    }

    /// The number of a place, which is new when it was not known.
    fn place(&mut self, place: &str) -> usize {
        self.places.iter().position(|known| known == place).unwrap_or_else(|| {
            self.places.push(place.to_owned());
            self.places.len() - 1
        })
    }

    /// The tests that took longest, the slowest first: seconds and more, place, test.
    fn slowest(&self) -> Vec<(Duration, &str, &Test)> {
        let mut times: Vec<_> = self
            .times
            .iter()
            .map(|(took, place, test)| (*took, self.places.get(*place).map_or("", String::as_str), test))
            .collect();
        times.sort_by(|a, b| b.cmp(a));
        times.truncate(SLOWEST);
        times
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals { passed: 0, failed: 0, skipped: 0 };
        for results in self.tests.values() {
            if results.iter().any(|(_, verdict)| *verdict == Verdict::Failed) {
                totals.failed += 1;
            } else if results.iter().any(|(_, verdict)| *verdict == Verdict::Passed) {
                totals.passed += 1;
            } else {
                totals.skipped += 1;
            }
        }
        totals
    }

    /// Tests that ran nowhere although a kernel of the right age would have done, and it was their turn: test and reason.
    pub(crate) fn unexcused(&self) -> Vec<(String, String)> {
        self.nowhere().filter(|(_, reason)| !reason.contains(" or newer") && reason != OTHER_SEED).collect()
    }

    fn nowhere(&self) -> impl Iterator<Item = (String, String)> {
        self.tests.iter().filter_map(|(test, results)| {
            let reasons: Vec<&str> = results
                .iter()
                .map(|(_, verdict)| match verdict {
                    Verdict::Skipped(reason) => Some(reason.as_str()),
                    Verdict::Passed | Verdict::Failed => None,
                })
                .collect::<Option<_>>()?;
            Some((test.to_string(), reasons.last().copied().unwrap_or_default().to_owned()))
        })
    }

    /// A table of the kernels, the slowest tests, the tests that failed and those that ran nowhere.
    pub(crate) fn print(&self) {
        println!("\n{:<44} {:>8} {:>8} {:>8}", "kernel", "passed", "failed", "not run");
        for (number, place) in self.places.iter().enumerate() {
            let mut counts = [0_usize; 3];
            for (_, verdict) in self.tests.values().flatten().filter(|(at, _)| *at == number) {
                match verdict {
                    Verdict::Passed => counts[0] += 1,
                    Verdict::Failed => counts[1] += 1,
                    Verdict::Skipped(_) => counts[2] += 1,
                }
            }
            println!("{place:<44} {:>8} {:>8} {:>8}", counts[0], counts[1], counts[2]);
        }
        println!("\nslowest tests");
        for (took, place, test) in self.slowest() {
            println!("{:>7.1} s  {test} (on {place})", took.as_secs_f64());
        }
        println!();
        for (test, results) in &self.tests {
            for (place, _) in results.iter().filter(|(_, verdict)| *verdict == Verdict::Failed) {
                println!("FAILED {test} (on {})", self.places.get(*place).map_or("", String::as_str));
            }
        }
        for (test, reason) in self.nowhere() {
            println!("RAN NOWHERE {test}: {reason}");
        }
    }
}

/// Output of one run of one test program, as far as it has come.
#[derive(Debug)]
pub(crate) struct ProgramRun {
    announced: usize,
    /// In the order in which the tests ended.
    results: Vec<(String, Verdict)>,
    /// Number of tests that run at a time; `None` when it is not known, and then the time of each is not known either.
    threads: Option<usize>,
    /// Time at which the tests started.
    start: Option<Instant>,
    /// Time of each of `results`, counted from the start.
    ends: Vec<Duration>,
    /// Tests that libtest counts as passed, but that said themselves that they could not run.
    skips: BTreeMap<String, String>,
    exit: Option<i32>,
}

impl ProgramRun {
    /// Nothing known yet. `threads` is how many of its tests run at a time, if that is known.
    pub(crate) fn new(threads: Option<usize>) -> Self {
        let (results, ends, skips) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { announced: 0, results, threads, start: None, ends, skips, exit: None }
    }

    /// A line of its output, and when it came.
    pub(crate) fn line(&mut self, line: &str, now: Instant) {
        if let Some(count) = parse_count(line) {
            self.announced += count;
            self.start = Some(now);
        } else if let Some(result) = parse_line(line) {
            self.results.push(result);
            self.ends.push(self.start.map(|start| now.saturating_duration_since(start)).unwrap_or_default());
        }
    }

    /// Duration of each test, without those that said themselves that they could not run.
    fn times(&self) -> Vec<(String, Duration)> {
        let Some(threads) = self.threads else { return Vec::new() };
        let ends: Vec<(&str, Duration)> =
            self.results.iter().map(|(name, _)| name.as_str()).zip(self.ends.iter().copied()).collect();
        durations(&ends, threads)
            .into_iter()
            .filter_map(|(index, took)| Some((self.results.get(index)?.0.clone(), took)))
            .filter(|(name, _)| !self.skips.contains_key(name))
            .collect()
    }

    /// A line of the file `TESTKIT_SKIPPED`: test, tab, reason.
    pub(crate) fn skipped(&mut self, line: &str) {
        if let Some((test, reason)) = line.split_once('\t') {
            self.skips.insert(test.to_owned(), reason.trim_end().to_owned());
        }
    }

    /// Its exit code, when it ended.
    pub(crate) fn exit(&mut self, code: Option<i32>) {
        self.exit = code;
    }

    /// Whether anything in it failed.
    pub(crate) fn failed(&self) -> bool {
        self.verdicts().iter().any(|(_, verdict)| *verdict == Verdict::Failed)
    }

    fn verdicts(&self) -> Vec<(String, Verdict)> {
        let mut verdicts: Vec<(String, Verdict)> = self
            .results
            .iter()
            .map(|(name, verdict)| match (verdict, self.skips.get(name)) {
                (Verdict::Passed, Some(reason)) => (name.clone(), Verdict::Skipped(reason.clone())),
                _ => (name.clone(), verdict.clone()),
            })
            .collect();
        // A skip under a name that no test has (a thread of its own) must not get lost.
        for (name, reason) in &self.skips {
            if !self.results.iter().any(|(known, _)| known == name) {
                verdicts.push((name.clone(), Verdict::Skipped(reason.clone())));
            }
        }
        let failures = self.results.iter().filter(|(_, verdict)| *verdict == Verdict::Failed).count();
        let without_result = self.announced.saturating_sub(self.results.len());
        if without_result > 0 {
            verdicts.push((format!("({without_result} tests without a result)"), Verdict::Failed));
        } else if self.exit != Some(0) && failures == 0 {
            let name = match self.exit {
                Some(code) => format!("(the program itself: exit code {code})"),
                None => "(the program itself: it did not end by itself)".to_owned(),
            };
            verdicts.push((name, Verdict::Failed));
        }
        verdicts
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    use super::{ProgramRun, Report, Totals};
    use crate::libtest::Verdict;

    fn run(lines: &[&str], exit: i32) -> ProgramRun {
        let mut run = ProgramRun::new(Some(2));
        for line in lines {
            run.line(line, Instant::now());
        }
        run.exit(Some(exit));
        run
    }

    #[test]
    fn a_test_counts_once_and_a_failure_anywhere_wins() {
        let mut report = Report::default();
        let skip = || Verdict::Skipped("no IPVS".into());
        for (place, name, verdict) in [
            ("host", "a", skip()),
            ("6.1", "a", Verdict::Passed),
            ("host", "b", Verdict::Passed),
            ("6.1", "b", Verdict::Failed),
            ("host", "c", skip()),
            ("6.1", "d", Verdict::Skipped("no kernel 6.12 or newer: this is 6.1".into())),
        ] {
            report.add(place, "ipvs kernel", name, verdict);
        }
        assert_eq!(report.totals(), Totals { passed: 1, failed: 1, skipped: 2 });
        assert_eq!(report.totals().to_string(), "1 passed, 1 failed, 2 skipped");
        assert_eq!(report.unexcused(), [("ipvs kernel c".to_owned(), "no IPVS".to_owned())]);
    }

    #[test]
    fn what_passed_is_told_by_program() {
        let mut report = Report::default();
        for (program, name, verdict) in [
            ("p", "a", Verdict::Passed),
            ("p", "b", Verdict::Skipped("no IPVS".into())),
            ("p", "c", Verdict::Passed),
            ("q", "d", Verdict::Passed),
        ] {
            report.add("host", program, name, verdict);
        }
        report.add("6.1", "p", "c", Verdict::Failed);
        assert_eq!(report.passed("p"), BTreeMap::from([("a", Duration::ZERO)]));
        assert_eq!(report.passed("q"), BTreeMap::from([("d", Duration::ZERO)]));
        assert!(report.passed("r").is_empty());
    }

    #[test]
    fn what_passed_is_told_with_its_time_on_the_first_kernel() {
        let start = Instant::now();
        let mut report = Report::default();
        for (place, test, seconds) in [("host", "a", 3), ("6.1", "a", 30), ("6.1", "b", 20)] {
            let mut run = ProgramRun::new(Some(1));
            run.line("running 1 test", start);
            run.line(&format!("test {test} ... ok"), start + Duration::from_secs(seconds));
            run.exit(Some(0));
            report.add_program(place, "p", &run);
        }
        assert_eq!(report.passed("p"), BTreeMap::from([("a", Duration::from_secs(3)), ("b", Duration::ZERO)]));
    }

    #[test]
    fn a_skip_turns_a_pass_into_not_run() {
        let mut run = run(&["running 2 tests", "test a ... ok", "test b ... ok"], 0);
        run.skipped("b\tno IPVS: not there");
        let mut report = Report::default();
        report.add_program("host", "p", &run);
        assert_eq!(report.totals(), Totals { passed: 1, failed: 0, skipped: 1 });
    }

    #[test]
    fn the_slowest_test_comes_first_and_a_skipped_one_not_at_all() {
        let mut run = ProgramRun::new(Some(2));
        let start = Instant::now();
        for (line, second) in
            [("running 3 tests", 0), ("test b ... ok", 2), ("test a ... FAILED", 5), ("test c ... ok", 9)]
        {
            run.line(line, start + Duration::from_secs(second));
        }
        run.skipped("b\tno IPVS");
        run.exit(Some(101));
        let mut report = Report::default();
        report.add_program("6.1", "p", &run);
        let slowest: Vec<_> =
            report.slowest().into_iter().map(|(took, place, test)| (took.as_secs(), place, test.to_string())).collect();
        assert_eq!(slowest, [(7, "6.1", "p c".to_owned()), (5, "6.1", "p a".to_owned())]);
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        for (lines, exit) in [
            (vec!["running 2 tests", "test a ... ok"], 134),
            (vec!["running 2 tests", "test a ... ok"], 0),
            (vec!["running 1 test", "test a ... ok"], 1),
            (vec![], 101),
        ] {
            let mut report = Report::default();
            report.add_program("host", "p", &run(&lines, exit));
            assert_eq!(report.totals().failed, 1, "{lines:?}");
        }
    }
}

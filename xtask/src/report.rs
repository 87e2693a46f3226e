//! Results of tests: where each ran, and how it ended.

use std::collections::BTreeMap;
use std::time::Duration;

/// Outcome of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// Did not run; the reason.
    Skipped(String),
}

/// Test, its outcome, and its time if known.
type TestResult = (String, Verdict, Option<Duration>);

/// Place of a run, its outcome, and its time.
type Run = (usize, Verdict, Option<Duration>);

/// All tests on all kernels.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The kernels in order of use.
    places: Vec<String>,
    /// By program and test: the place of each run.
    tests: BTreeMap<(String, String), Vec<Run>>,
}

/// Why a slow test did not run.
const OTHER_SEED: &str = "takes long: its turn comes with another seed";

/// Number of slowest tests to print.
const SLOWEST: usize = 15;

impl Report {
    pub(crate) fn add(&mut self, place: &str, program: &str, results: impl IntoIterator<Item = TestResult>) {
        let known = self.places.iter().position(|known| known == place);
        let place = known.unwrap_or_else(|| {
            self.places.push(place.to_owned());
            self.places.len() - 1
        });
        for (test, verdict, took) in results {
            self.tests.entry((program.to_owned(), test)).or_default().push((place, verdict, took));
        }
    }

    /// Records a failure that is not a test.
    pub(crate) fn add_failure(&mut self, place: &str, what: &str) {
        self.add(place, "xtask", [(what.to_owned(), Verdict::Failed, None)]);
    }

    /// Records a slow test that is skipped this time.
    pub(crate) fn leave_to_other_seeds(&mut self, place: &str, program: &str, test: &str) {
        self.add(place, program, [(test.to_owned(), Verdict::Skipped(OTHER_SEED.to_owned()), None)]);
    }

    /// Durations of tests: whether on the first kernel, program and test, time.
    pub(crate) fn times(&self) -> impl Iterator<Item = (bool, String, Duration)> {
        let runs = self.tests.iter().flat_map(|(test, runs)| runs.iter().map(move |run| (test, run)));
        runs.filter_map(|((program, test), (place, _, took))| {
            Some((*place == 0, format!("{program} {test}"), (*took)?))
        })
    }

    /// If a test has passed and failed nowhere, its time on the first kernel, or zero if it did not run there.
    pub(crate) fn passed(&self, program: &str, test: &str) -> Option<Duration> {
        let runs = self.tests.get(&(program.to_owned(), test.to_owned()))?;
        let first = || runs.iter().find(|(place, ..)| *place == 0).and_then(|(.., took)| *took).unwrap_or_default();
        (outcome(runs) == 0).then(first)
    }

    /// Number of tests that passed, that failed somewhere, and that ran nowhere, each counted once across kernels.
    pub(crate) fn totals(&self) -> [usize; 3] {
        let mut totals = [0; 3];
        for runs in self.tests.values() {
            totals[outcome(runs)] += 1;
        }
        totals
    }

    /// Number of tests that ran nowhere although a suitable kernel was used and they were not skipped by rotation.
    pub(crate) fn unexcused(&self) -> usize {
        self.nowhere().filter(|(_, reason)| !reason.contains(" or newer") && *reason != OTHER_SEED).count()
    }

    /// Number of slow tests that were skipped by rotation.
    pub(crate) fn left_to_other_seeds(&self) -> usize {
        self.nowhere().filter(|(_, reason)| *reason == OTHER_SEED).count()
    }

    /// Tests that ran nowhere, and why.
    fn nowhere(&self) -> impl Iterator<Item = (String, &str)> {
        let tests = self.tests.iter().filter(|(_, runs)| outcome(runs) == 2);
        tests.filter_map(|((program, test), runs)| match runs.last() {
            Some((_, Verdict::Skipped(reason), _)) => Some((format!("{program} {test}"), reason.as_str())),
            _ => None,
        })
    }

    /// Prints the kernels, the slowest tests, the failed tests and those that ran nowhere.
    pub(crate) fn print(&self) {
        println!("\n{:<44} {:>8} {:>8} {:>8}", "kernel", "passed", "failed", "not run");
        for (number, place) in self.places.iter().enumerate() {
            let mut counts = [0_usize; 3];
            let runs = self.tests.values().flatten().filter(|(at, ..)| *at == number);
            for run in runs {
                counts[outcome(std::slice::from_ref(run))] += 1;
            }
            println!("{place:<44} {:>8} {:>8} {:>8}", counts[0], counts[1], counts[2]);
        }
        println!("\nslowest tests");
        let mut slowest: Vec<_> = self.times().collect();
        slowest.sort_by_key(|(.., took)| std::cmp::Reverse(*took));
        for (is_first, test, took) in slowest.iter().take(SLOWEST) {
            println!(
                "{:>7.1} s  {test} ({})",
                took.as_secs_f64(),
                if *is_first { "here" } else { "in a virtual machine" }
            );
        }
        println!();
        for ((program, test), runs) in &self.tests {
            for (place, ..) in runs.iter().filter(|(_, verdict, _)| *verdict == Verdict::Failed) {
                println!("FAILED {program} {test} (on {})", self.places.get(*place).map_or("", String::as_str));
            }
        }
        for (test, reason) in self.nowhere().filter(|(_, reason)| *reason != OTHER_SEED) {
            println!("RAN NOWHERE {test}: {reason}");
        }
    }
}

/// 0 for passed, 1 for failed somewhere, 2 for ran nowhere.
fn outcome(runs: &[Run]) -> usize {
    let has = |wanted: &Verdict| runs.iter().any(|(_, verdict, _)| verdict == wanted);
    if has(&Verdict::Failed) {
        1
    } else if has(&Verdict::Passed) {
        0
    } else {
        2
    }
}

/// Parses the results of a program: its output, and the exit code unless it never ended. The lines `test, tab, reason`
/// are about tests that skipped themselves although libtest counts them as passed.
pub(crate) fn results(output: &str, skipped: &str, code: Option<i32>) -> Vec<TestResult> {
    let mut skips: BTreeMap<&str, &str> = skipped.lines().filter_map(|line| line.split_once('\t')).collect();
    let mut results: Vec<_> = output.lines().filter_map(parse_line).collect();
    for (name, verdict, took) in results.iter_mut().filter(|(_, verdict, _)| *verdict == Verdict::Passed) {
        if let Some(reason) = skips.remove(name.as_str()) {
            (*verdict, *took) = (Verdict::Skipped(reason.to_owned()), None);
        }
    }
    let announced: usize = output.lines().filter_map(parse_count).sum();
    let without_result = announced.saturating_sub(results.len());
    let has_failed = results.iter().any(|(_, verdict, _)| *verdict == Verdict::Failed);
    let failure = match code {
        _ if without_result > 0 => Some(format!("({without_result} tests without a result)")),
        Some(0) => None,
        _ if has_failed => None,
        Some(code) => Some(format!("(the program itself: exit code {code})")),
        None => Some("(the program itself: it did not end by itself)".to_owned()),
    };
    results.extend(failure.map(|what| (what, Verdict::Failed, None)));
    // A skip under an unknown name (of another thread) must not be lost.
    let others = skips.into_iter().filter(|(name, _)| !output.contains(&format!("\ntest {name} ... ")));
    results.extend(others.map(|(name, reason)| (name.to_owned(), Verdict::Skipped(reason.to_owned()), None)));
    results
}

/// Parses a line `test NAME ... RESULT <SECONDSs>` of libtest. rustdoc omits the time.
///
/// `None` for every other line, including a test's own output.
fn parse_line(line: &str) -> Option<TestResult> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let (result, took) = result.trim_end().split_once(" <").unwrap_or((result.trim_end(), ""));
    let verdict = match result.split_once(", ").unwrap_or((result, "")) {
        ("ok", "") => Verdict::Passed,
        ("FAILED", "") => Verdict::Failed,
        ("ignored", reason) => Verdict::Skipped(format!("marked as ignored {reason}")),
        _ => return None,
    };
    let took = took.strip_suffix("s>").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs_f64);
    // rustdoc and libtest append special properties of a test.
    let name = [" - should panic", " - compile fail", " - compile"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
    Some((name.to_owned(), verdict, took))
}

/// A line `running N tests`.
fn parse_count(line: &str) -> Option<usize> {
    let (number, rest) = line.strip_prefix("running ")?.split_once(' ')?;
    matches!(rest.trim_end(), "test" | "tests").then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_kinds_are_read() {
        let skipped = |reason: &str| Verdict::Skipped(format!("marked as ignored {reason}"));
        let time = |millis| Some(Duration::from_millis(millis));
        for (line, name, verdict, took) in [
            ("test a::b ... ok <1.500s>", "a::b", Verdict::Passed, time(1500)),
            ("test a::b ... FAILED <0.001s>", "a::b", Verdict::Failed, time(1)),
            ("test a ... ignored", "a", skipped(""), None),
            ("test a ... ignored, too slow", "a", skipped("too slow"), None),
            ("test a - should panic ... ok <0.000s>", "a", Verdict::Passed, time(0)),
            ("test src/lib.rs - x (line 3) - compile ... ok", "src/lib.rs - x (line 3)", Verdict::Passed, None),
        ] {
            assert_eq!(parse_line(line), Some((name.to_owned(), verdict, took)), "{line}");
        }
        for line in ["", "running 3 tests", "test result: ok. 3 passed; 0 failed", "test a ... what", "  test a ... ok"]
        {
            assert_eq!(parse_line(line), None, "{line}");
        }
        assert_eq!([parse_count("running 13 tests"), parse_count("running 1 test")], [Some(13), Some(1)]);
        assert_eq!(parse_count("running late"), None);
    }

    #[test]
    fn a_test_counts_once_and_a_failure_anywhere_wins() {
        let mut report = Report::default();
        let skip = || Verdict::Skipped("no IPVS".into());
        for (place, name, verdict, seconds) in [
            ("host", "a", skip(), None),
            ("6.1", "a", Verdict::Passed, Some(30)),
            ("host", "b", Verdict::Passed, Some(3)),
            ("6.1", "b", Verdict::Failed, None),
            ("host", "c", skip(), None),
            ("6.1", "d", Verdict::Skipped("no kernel 6.12 or newer: this is 6.1".into()), None),
            ("host", "e", Verdict::Passed, Some(3)),
        ] {
            report.add(place, "ipvs kernel", [(name.to_owned(), verdict, seconds.map(Duration::from_secs))]);
        }
        assert_eq!((report.totals(), report.unexcused()), ([2, 1, 2], 1));
        let passed = ["a", "b", "c", "e"].map(|test| report.passed("ipvs kernel", test).map(|took| took.as_secs()));
        assert_eq!(passed, [Some(0), None, None, Some(3)]);
    }

    #[test]
    fn a_crash_is_a_failure_and_a_skip_is_not_a_pass() {
        let failed = |output, code| {
            let results = results(output, "b\tno IPVS\nc\tin a thread", code);
            let verdicts = results.into_iter().map(|(_, verdict, _)| vec![(0, verdict, None)]);
            verdicts.fold([0; 3], |mut sums, runs| {
                sums[outcome(&runs)] += 1;
                sums
            })
        };
        assert_eq!(failed("running 2 tests\ntest a ... ok\ntest b ... ok <1s>", Some(0)), [1, 0, 2]);
        for (output, code, wanted) in [
            ("running 2 tests\ntest a ... ok", Some(134), [1, 1, 2]),
            ("running 2 tests\ntest a ... ok", Some(0), [1, 1, 2]),
            ("running 1 test\ntest a ... ok", Some(1), [1, 1, 2]),
            ("", Some(101), [0, 1, 2]),
            ("", None, [0, 1, 2]),
        ] {
            assert_eq!(failed(output, code), wanted, "{output}");
        }
    }
}

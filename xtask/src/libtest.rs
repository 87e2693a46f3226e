//! Reads what Rust's test programs print.

use std::time::Duration;

/// Outcome of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// Did not run, and why.
    Skipped(String),
}

/// A line `test NAME ... RESULT`.
///
/// `None` for every other line, also for what a test itself prints.
pub(crate) fn parse_line(line: &str) -> Option<(String, Verdict)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let verdict = match result.trim_end().split_once(", ") {
        None => match result.trim_end() {
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed,
            "ignored" => Verdict::Skipped("marked as ignored".to_owned()),
            _ => return None,
        },
        Some(("ignored", reason)) => Verdict::Skipped(format!("marked as ignored: {reason}")),
        Some(_) => return None,
    };
    // Rustdoc and libtest add what is special about a test.
    let name = [" - should panic", " - compile fail", " - compile"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
    Some((name.to_owned(), verdict))
}

/// A line `running N tests`.
pub(crate) fn parse_count(line: &str) -> Option<usize> {
    let (number, rest) = line.strip_prefix("running ")?.split_once(' ')?;
    matches!(rest.trim_end(), "test" | "tests").then(|| number.parse().ok())?
}

/// Duration of each test: its place in `ends` and the time.
///
/// Libtest says when a test ends, not when it starts. It starts tests in the order of their names, as many as it has
/// threads, and the next one when one ends: so the ends tell the starts. `ends` are names with the time since the program
/// started, in any order.
pub(crate) fn durations(ends: &[(&str, Duration)], threads: usize) -> Vec<(usize, Duration)> {
    let mut by_name: Vec<usize> = (0..ends.len()).collect();
    by_name.sort_by_key(|index| ends.get(*index).map(|(name, _)| *name));
    let mut times: Vec<Duration> = ends.iter().map(|(_, end)| *end).collect();
    times.sort_unstable();
    let freed = std::iter::repeat_n(Duration::ZERO, threads.max(1)).chain(times);
    let taken = by_name.into_iter().zip(freed);
    taken.filter_map(|(index, start)| Some((index, ends.get(index)?.1.saturating_sub(start)))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Verdict, durations, parse_count, parse_line};

    #[test]
    fn ends_of_tests_tell_their_durations() {
        fn seconds<'a>(ends: &[(&'a str, u64)], threads: usize) -> Vec<(&'a str, u64)> {
            let ends: Vec<_> = ends.iter().map(|(name, end)| (*name, Duration::from_secs(*end))).collect();
            let mut taken: Vec<_> =
                durations(&ends, threads).into_iter().map(|(index, took)| (ends[index].0, took.as_secs())).collect();
            taken.sort_unstable();
            taken
        }
        // Two threads: a and b start at 0, c when b ends, d when a ends.
        assert_eq!(seconds(&[("b", 2), ("a", 5), ("c", 7), ("d", 8)], 2), [("a", 5), ("b", 2), ("c", 5), ("d", 3)]);
        assert_eq!(seconds(&[("a", 3), ("b", 4)], 1), [("a", 3), ("b", 1)]);
        assert_eq!(seconds(&[("a", 3)], 4), [("a", 3)]);
        assert_eq!(seconds(&[], 2), []);
    }

    #[test]
    fn results_of_all_kinds() {
        let skipped = |reason: &str| Verdict::Skipped(reason.to_owned());
        for (line, name, verdict) in [
            ("test a::b ... ok", "a::b", Verdict::Passed),
            ("test a::b ... FAILED", "a::b", Verdict::Failed),
            ("test a ... ignored", "a", skipped("marked as ignored")),
            ("test a ... ignored, too slow", "a", skipped("marked as ignored: too slow")),
            ("test a - should panic ... ok", "a", Verdict::Passed),
            ("test src/lib.rs - x (line 3) - compile ... ok", "src/lib.rs - x (line 3)", Verdict::Passed),
        ] {
            assert_eq!(parse_line(line), Some((name.to_owned(), verdict)), "{line}");
        }
    }

    #[test]
    fn other_lines_are_left_alone() {
        for line in [
            "",
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed",
            "test a has been running for over 60 seconds",
            "test a ... what",
            "  test a ... ok",
        ] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }

    #[test]
    fn the_number_of_tests_is_announced() {
        assert_eq!(parse_count("running 13 tests"), Some(13));
        assert_eq!(parse_count("running 1 test"), Some(1));
        assert_eq!(parse_count("running late"), None);
    }
}

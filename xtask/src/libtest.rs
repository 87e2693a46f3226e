//! Reads what Rust's test programs print.

/// How one test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
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

#[cfg(test)]
mod tests {
    use super::{Verdict, parse_count, parse_line};

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

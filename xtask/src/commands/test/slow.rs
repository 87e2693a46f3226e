//! Slow tests, as measured by a run with `--record`. They run in rotation.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use anyhow::Result;
use fs_err as fs;

use super::programs::Program;
use crate::report::Report;
use crate::tools;
use crate::turns::Turns;

/// File with the times, below the repository's root.
const FILE: &str = "xtask/slow-tests.txt";

const HEAD: &str = "\
# Tests that take long, in seconds, on this machine's kernel (here) and on real kernels in a virtual machine (kernel). `cargo xtask
# test` runs each by turns: one that takes 40 s in one run of eight. Made by `cargo xtask test --record`.
";

/// Shortest time of a test in the file, in seconds. Shorter ones always run.
const SHORT: u64 = 10;

/// Average time per run for a test in the file, in seconds: one that takes N times as long runs in one of N runs.
const SHARE: u64 = 5;

/// On this machine's kernel.
pub(super) const HERE: &str = "here";
/// On a real kernel in a virtual machine.
pub(super) const KERNEL: &str = "kernel";

/// Seconds that tests take, by place, program and test: `kernel ipvs kernel restart::a`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Slow(BTreeMap<String, u64>);

impl Slow {
    /// The file in the repository; empty if there is none.
    pub(super) fn read() -> Self {
        Self::parse(&fs::read_to_string(tools::repository().join(FILE)).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let of_line = |line: &str| {
            let (seconds, test) = line.trim().split_once(' ')?;
            Some((test.to_owned(), seconds.parse().ok()?))
        };
        Self(text.lines().filter_map(of_line).collect())
    }

    fn seconds(&self, place: &str, program: &str, test: &str) -> u64 {
        self.0.get(&format!("{place} {program} {test}")).copied().unwrap_or(0)
    }

    /// Whether the test runs this time.
    pub(super) fn is_turn(&self, place: &str, program: &str, test: &str, turns: Turns) -> bool {
        let seconds = self.seconds(place, program, test);
        turns.takes(test.bytes().map(u64::from).sum(), seconds.div_ceil(SHARE))
    }

    /// Total time of a program's slow tests, as if they ran in sequence.
    pub(super) fn total(&self, place: &str, program: &Program) -> u64 {
        program.tests.iter().map(|test| self.seconds(place, &program.name, test)).sum()
    }

    /// Merges the times of a run and writes the file. Tests that did not run keep theirs, unless `every` test ran: then
    /// they no longer exist.
    pub(super) fn record(mut self, report: &Report, every: bool) -> Result<()> {
        if every {
            self.0.clear();
        }
        for (is_first, test, took) in report.times() {
            let key = format!("{} {test}", if is_first { HERE } else { KERNEL });
            if took.as_secs() < SHORT {
                self.0.remove(&key);
            } else {
                self.0.insert(key, took.as_secs());
            }
        }
        let mut lines: Vec<_> = self.0.iter().collect();
        lines.sort_by_key(|(test, seconds)| (test.starts_with(KERNEL), Reverse(**seconds)));
        let lines = lines.into_iter().map(|(test, seconds)| format!("{seconds:>4} {test}\n"));
        Ok(fs::write(tools::repository().join(FILE), HEAD.to_owned() + &lines.collect::<String>())?)
    }
}

#[cfg(test)]
mod tests {
    use super::{HERE, KERNEL, Slow};
    use crate::turns::Turns;

    #[test]
    fn slow_tests_take_turns_on_the_kernels_where_they_are_slow() {
        let slow = Slow::parse(
            "# head\n  40 kernel examples live a\n  11 here examples cluster b\n  90 kernel ipvs kernel c\n",
        );
        let runs = |place, program: &str, test: &str| {
            (0..360).filter(|seed| slow.is_turn(place, program, test, Turns(Some(*seed)))).count()
        };
        assert_eq!([runs(KERNEL, "examples live", "a"), runs(HERE, "examples live", "a")], [45, 360]);
        assert_eq!([runs(HERE, "examples cluster", "b"), runs(KERNEL, "ipvs kernel", "c")], [120, 20]);
        assert!(slow.is_turn(KERNEL, "ipvs kernel", "c", Turns(None)));
    }
}

//! Slow tests, as a run with `--record` found them: these run by turns.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::binaries::Binary;
use crate::error::{Context as _, Result};
use crate::report::Report;
use crate::turns::Turns;

/// File with the times, below the repository's root.
const FILE: &str = "xtask/slow-tests.txt";

const HEAD: &str = "\
# Tests that take long, in seconds, on this machine's kernel (here) and on real kernels in a virtual machine (kernel). `cargo xtask
# test` runs each by turns: one that takes 40 s in one run of eight. Made by `cargo xtask test --record`.
";

/// Shortest time of a test in the file; shorter ones always run.
const SHORT: Duration = Duration::from_secs(10);

/// Average time that a run spends on a test in the file: one that takes so many times as long runs in one run of so many.
const SHARE: Duration = Duration::from_secs(5);

/// Kernel that a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// On this machine's kernel.
    Here,
    /// On a real kernel in a virtual machine.
    Kernel,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Here => "here",
            Place::Kernel => "kernel",
        }
    }
}

/// Program and test, with the time that it takes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Slow(BTreeMap<(Place, String, String), Duration>);

impl Slow {
    /// The file in the repository; empty if there is none.
    pub(super) fn read(root: &Path) -> Self {
        Self::parse(&fs::read_to_string(root.join(FILE)).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let of_line = |line: &str| {
            let mut words = line.split_whitespace();
            let seconds = words.next()?.parse().ok()?;
            let place = match words.next()? {
                "here" => Place::Here,
                "kernel" => Place::Kernel,
                _ => return None,
            };
            let program = format!("{} {}", words.next()?, words.next()?);
            Some(((place, program, words.next()?.to_owned()), Duration::from_secs(seconds)))
        };
        Self(text.lines().filter_map(of_line).collect())
    }

    fn text(&self) -> String {
        let mut lines: Vec<_> = self.0.iter().collect();
        lines.sort_by_key(|((place, ..), took)| (*place, std::cmp::Reverse(**took)));
        let lines = lines
            .into_iter()
            .map(|((place, program, test), took)| format!("{:>4} {} {program} {test}\n", took.as_secs(), place.name()));
        HEAD.to_owned() + &lines.collect::<String>()
    }

    /// The tests of a program, or of its file, whose turn it is not.
    pub(super) fn left_out(&self, place: Place, binary: &Binary, turns: Turns) -> Vec<String> {
        let of_program = self
            .0
            .iter()
            .filter(|((at, program, test), _)| *at == place && *program == binary.name && binary.tests.contains(test));
        let others = of_program.filter(|((.., test), took)| {
            let times = took.as_secs().div_ceil(SHARE.as_secs().max(1));
            !turns.takes(test.bytes().map(u64::from).sum(), times)
        });
        others.map(|((.., test), _)| test.clone()).collect()
    }

    /// Time that tests take on a real kernel, those that take long: together, as if one came after the other.
    pub(super) fn on_kernel(&self, program: &str, tests: &[&str]) -> Duration {
        let known = |test: &&str| self.0.get(&(Place::Kernel, program.to_owned(), (*test).to_owned()));
        tests.iter().filter_map(known).sum()
    }

    /// Takes over the times of a run, and writes the file. Tests that did not run keep theirs, unless `every` test ran: then they
    /// are gone.
    pub(super) fn record(mut self, root: &Path, report: &Report, every: bool) -> Result<()> {
        if every {
            self.0.clear();
        }
        for (is_first, program, test, took) in report.times() {
            let place = if is_first { Place::Here } else { Place::Kernel };
            let key = (place, program.to_owned(), test.to_owned());
            if took < SHORT {
                self.0.remove(&key);
            } else {
                self.0.insert(key, took);
            }
        }
        let file = root.join(FILE);
        fs::write(&file, self.text()).context(|| format!("cannot write {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Binary, Duration, Place, Slow};
    use crate::turns::Turns;

    #[test]
    fn what_takes_long_runs_by_turns_where_it_does() {
        let text =
            "# head\n  40 kernel examples kernel_live a\n  11 here examples cluster b\n  90 kernel ipvs kernel c\n";
        let slow = Slow::parse(text);
        assert_eq!(Slow::parse(&slow.text()), slow);
        let binary = |name: &str| Binary {
            name: name.into(),
            tests: ["a", "b", "c"].map(str::to_owned).to_vec(),
            ..Binary::default()
        };
        let runs = |place, name: &str| {
            let turns = (0..360_u64).map(|seed| Turns::of(seed.to_string().as_ref()));
            turns.filter(|turns| slow.left_out(place, &binary(name), *turns).is_empty()).count()
        };
        assert_eq!(runs(Place::Kernel, "examples kernel_live"), 45);
        assert_eq!(runs(Place::Here, "examples kernel_live"), 360);
        assert_eq!(runs(Place::Here, "examples cluster"), 120);
        assert_eq!(runs(Place::Kernel, "ipvs kernel"), 20);
        assert!(slow.left_out(Place::Kernel, &binary("ipvs kernel"), Turns::ALL).is_empty());
        let file = Binary { tests: vec!["d".to_owned()], ..binary("ipvs kernel") };
        assert!(slow.left_out(Place::Kernel, &file, Turns::of("1".as_ref())).is_empty(), "the test is in another file");
        assert_eq!(slow.on_kernel("ipvs kernel", &["a", "c"]), Duration::from_secs(90));
    }
}

//! `cargo xtask test`: runs every test, including those on real kernels.

mod programs;
mod slow;

use std::cmp::Reverse;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use self::programs::{Program, collect, command};
use self::slow::{HERE, KERNEL, Slow};
use crate::kernel::{Kernel, Series, SeriesList};
use crate::report::Report;
use crate::turns::{SEED, Turns, seed};
use crate::vm::Vm;
use crate::{cargo, tools};

/// Run every test, those on real kernels too
///
/// Builds all tests once, and runs them and the documentation's examples here. Then it runs those for real kernels
/// (test programs whose name starts with `kernel`) in a virtual machine, one boot for each kernel. There, a test that
/// skips itself fails. Missing programs are installed with apt when this is root, else named.
///
/// Tests on random input, and which scenarios are in the sample, go by one seed, which is printed; PROPTEST_RNG_SEED=N in
/// the environment repeats a run's. PROXIER_SCENARIOS, PROXIER_KERNEL_MODEL_CASES, PROXIER_LACKS,
/// PROXIER_MODEL_CASES and TRAFFIC_KILLS are passed on.
/// The last line is `N passed, N failed, N skipped, N left to --full`: skipped tests lack something here, and the last ones take long and
/// run with another seed. Exit code 1 if any failed.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// 5.10, 6.1, 6.12, 7.x or several with commas between them, or all
    #[arg(long, value_name = "K[,K]...", default_value = "6.1")]
    kernel: SeriesList,
    /// These crates' tests on one more kernel (may be repeated)
    #[arg(long, value_name = "K:CRATE[,CRATE]...", value_parser = also)]
    also: Vec<(Series, Vec<String>)>,
    /// Every test on every kernel
    ///
    /// Without it, only a quarter of the tests that passed on one kernel (this machine's, for example) run again on each
    /// further one. Of those that took 2 to 4 s it is an eighth, and so on; the seed decides which. Tests that take 10 s
    /// or more (xtask/slow-tests.txt) are also skipped in most runs: one that takes 40 s runs in every eighth.
    #[arg(long)]
    every: bool,
    /// The whole matrix; takes hours
    ///
    /// All kernels, --every, all scenarios instead of a sample, and 100 kills in the test that kills the reconciler under load
    /// (TRAFFIC_KILLS, else 10).
    #[arg(long)]
    full: bool,
    /// Only tests whose name contains this
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Only this crate (may be repeated)
    #[arg(short, long = "package", value_name = "CRATE")]
    packages: Vec<String>,
    /// No virtual machine
    #[arg(long)]
    host_only: bool,
    /// A test that ran nowhere is a failure, unless it needs a newer kernel or its turn comes with another seed (also when CI=true)
    #[arg(long)]
    strict: bool,
    /// Write the times of this run's tests to xtask/slow-tests.txt; with --every, the file has no others then
    #[arg(long)]
    record: bool,
}

/// A kernel and crates: `6.12:ipvs,ipset`.
fn also(text: &str) -> Result<(Series, Vec<String>), &'static str> {
    let (series, crates) = text.split_once(':').ok_or("a kernel, a colon and crates, as in --also 6.12:ipvs,ipset")?;
    Ok((series.parse()?, crates.split(',').map(str::to_owned).collect()))
}

/// Time limit for all test programs on a kernel together, and the same if no test is left out.
const TIME_LIMITS: [Duration; 2] = [Duration::from_secs(2700), Duration::from_secs(4 * 3600)];

/// In MiB. Includes files written by tests.
const MEMORY: u32 = 2048;

/// Number of concurrent machines. In QEMU without KVM, two machines with one processor each do about twice as much as
/// one with two. The processors of one machine wait for each other at every change of a page table.
const MACHINES: usize = 2;

/// One in this many of the tests that passed on a real kernel runs again on each further kernel. QEMU without KVM is
/// ten times slower than this machine. Tests that cannot run here always run there; others run in rotation.
const AGAIN: u64 = 4;

/// Duration of a short test. A test of twice that is repeated half as often, and so on, so that a few long tests do not
/// dominate.
const SHORT: Duration = Duration::from_secs(2);

fn is_repeated(test: &str, took: Duration, turns: Turns) -> bool {
    let times = took.as_millis().div_ceil(SHORT.as_millis()).max(1);
    let one_in = AGAIN.saturating_mul(u64::try_from(times).unwrap_or(u64::MAX));
    turns.takes(test.bytes().map(u64::from).sum(), one_in)
}

/// Selection of the tests that run, for all programs.
struct Runs {
    turns: Turns,
    slow: Slow,
    all_scenarios: bool,
    environment: Vec<(String, String)>,
}

impl Runs {
    fn new(options: &Options) -> Self {
        // A test that is requested by name runs wherever it can.
        let has_all = options.every || options.full || options.filter.is_some();
        let seed = seed();
        let turns = if has_all { Turns(None) } else { Turns::of(&seed) };
        let passed_on = [
            "PROXIER_SCENARIOS",
            "TRAFFIC_KILLS",
            "PROXIER_KERNEL_MODEL_CASES",
            "PROXIER_LACKS",
            "PROXIER_MODEL_CASES",
        ];
        // Later ones override. libtest reports the time of each test only if it may use unstable options.
        let defaults: &[(&str, &str)] = if options.full { &[("TRAFFIC_KILLS", "100")] } else { &[] };
        let mut environment: Vec<(String, String)> =
            vec![(SEED.to_owned(), seed), ("RUSTC_BOOTSTRAP".into(), "1".into())];
        environment.extend(defaults.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        environment.extend(passed_on.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))));
        environment.extend(options.full.then(|| ("PROXIER_SCENARIOS".to_owned(), "all".to_owned())));
        Self { turns, slow: Slow::read(), all_scenarios: options.full, environment }
    }

    /// The programs without slow tests that are skipped this time; these are recorded in the report.
    fn chosen(&self, programs: &[Program], kind: &str, place: &str, report: &mut Report) -> Vec<Program> {
        let is_turn = |program: &Program, test: &str| self.slow.is_turn(kind, &program.name, test, self.turns);
        for program in programs {
            let others = program.tests.iter().filter(|test| !is_turn(program, test));
            others.for_each(|test| report.leave_to_other_seeds(place, &program.name, test));
        }
        programs.iter().filter_map(|program| program.with_tests(|test| is_turn(program, test))).collect()
    }
}

pub(crate) fn main(options: Options) -> Result<ExitCode> {
    let mut report = Report::default();
    // If the machine's programs are missing, the tests here still run, and those that ran nowhere are counted.
    let mut ready = tools::ensure(tools::ORACLES);
    if options.filter.is_none()
        && (options.packages.is_empty() || options.packages.iter().any(|name| name == "proxier-demo"))
    {
        // The test that needs it is counted as skipped.
        tools::ensure(tools::BROWSER).unwrap_or_else(|error| eprintln!("xtask: {error:#}"));
    }
    if !options.host_only {
        ready = ready.and(tools::ensure(tools::MACHINE));
    }
    let mut troubles: Vec<String> = ready.err().map(|error| format!("{error:#}")).into_iter().collect();
    if let Some(trouble) = troubles.first() {
        eprintln!("xtask: {trouble}");
    }
    let is_ready = troubles.is_empty();

    let packages = options.packages.iter().flat_map(|name| ["--package".to_owned(), name.clone()]);
    let selection: Vec<String> =
        if options.packages.is_empty() { vec!["--workspace".into()] } else { packages.collect() };
    let built = cargo::build_all(&selection)?;
    let mut tests: Vec<_> = built.iter().filter(|of| of.is_test).collect();
    tests.sort_by(|a, b| (a.package(), &a.name, &a.kind).cmp(&(b.package(), &b.name, &b.kind)));
    let mut programs = tests.into_iter().map(Program::list).collect::<Result<Vec<_>>>()?.concat();
    for name in options.also.iter().flat_map(|(_, crates)| crates) {
        // A misspelled name must not look like passed tests.
        let is_known = programs.iter().any(|program| program.needs_kernel && program.package == *name);
        ensure!(is_known, "--also: {name} has no tests for real kernels, or is not among the crates");
    }
    if let Some(filter) = &options.filter {
        programs = programs.iter().filter_map(|program| program.with_tests(|test| test.contains(filter))).collect();
    }
    let runs = Runs::new(&options);
    run_here(&programs, documentation(&options, &selection), &runs, &mut report)?;
    programs.retain(|program| program.needs_kernel);
    let kernels = if options.full { "all".parse().map_err(anyhow::Error::msg)? } else { options.kernel };
    let everywhere = kernels.0.iter().map(|series| (*series, programs.clone()));
    let some = options.also.iter().map(|(series, crates)| {
        (*series, programs.iter().filter(|program| crates.contains(&program.package)).cloned().collect())
    });
    for (series, chosen) in everywhere.chain(some).filter(|_| !options.host_only && is_ready && !programs.is_empty()) {
        println!("\n=== kernel {series} ===");
        if let Err(error) = run_in_machines(series, &chosen, &runs, &mut report) {
            eprintln!("xtask: kernel {series}: {error:#}");
            report.add_failure(&format!("kernel {series}"), "virtual machine");
        }
    }

    report.print();
    if options.record {
        let every = (options.every || options.full) && options.filter.is_none() && options.packages.is_empty();
        runs.slow.record(&report, every)?;
    }
    let [passed, failed, skipped] = report.totals();
    let mut has_failed = failed > 0;
    if options.strict || std::env::var("CI").is_ok_and(|value| value == "true") {
        troubles.extend(options.host_only.then(|| "no real kernel was asked for (--host-only)".to_owned()));
        let unexcused = report.unexcused();
        troubles.extend((unexcused > 0).then(|| format!("{unexcused} tests ran nowhere")));
        for trouble in &troubles {
            println!("STRICT: {trouble}");
        }
        has_failed |= !troubles.is_empty();
    }
    println!("random input and samples: {SEED}={}", runs.environment.first().map_or("", |(_, seed)| seed));
    let left = report.left_to_other_seeds();
    println!("{passed} passed, {failed} failed, {} skipped, {left} left to --full", skipped.saturating_sub(left));
    Ok(ExitCode::from(u8::from(has_failed)))
}

/// The examples in the documentation, which only cargo can build; `None` for crates without a library.
fn documentation(options: &Options, selection: &[String]) -> Option<Program> {
    // In a user's environment: cargo would rebuild everything if unstable options were allowed.
    let words = "env -u RUSTC_BOOTSTRAP -u CARGO_MANIFEST_DIR cargo test --doc --all-features --no-fail-fast";
    let mut command: Vec<String> = words.split(' ').map(str::to_owned).chain(selection.iter().cloned()).collect();
    command.push("--".to_owned());
    let has_libraries = options.packages.is_empty() || options.packages.iter().any(|name| name != "xtask");
    has_libraries.then(|| Program {
        name: "documentation".to_owned(),
        title: "documentation's examples".to_owned(),
        command,
        folder: tools::repository().to_owned(),
        tests: options.filter.iter().cloned().collect(),
        ..Program::default()
    })
}

/// Runs the programs on this machine's kernel, three at a time: tests on real kernels wait for most of their time.
fn run_here(programs: &[Program], more: Option<Program>, runs: &Runs, report: &mut Report) -> Result<()> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let place = format!("this machine ({})", release.trim());
    let mut programs = runs.chosen(programs, HERE, &place, report);
    programs.sort_by_cached_key(|program| (Reverse(runs.slow.total(HERE, program)), Reverse(program.tests.len())));
    programs.splice(0..0, more);
    let results = tools::scratch()?;
    let [shell, script] = command(&programs, results.path())?;
    let run = || {
        let mut shell = cargo::as_typed(shell.as_ref());
        shell.envs(runs.environment.iter().map(|(name, value)| (name, value))).stdin(std::process::Stdio::null());
        tools::succeeds(shell.arg(&script))
    };
    let outcomes = together(3, run);
    collect(&programs, results.path(), &place, report);
    outcomes.into_iter().collect::<Result<Vec<_>>>().map(drop)
}

/// Runs the same in several threads, and waits for all of them.
fn together<T: Send>(threads: usize, run: impl Fn() -> Result<T> + Sync) -> Vec<Result<T>> {
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(&run)).collect();
        let panicked = |_| Err(anyhow!("its thread panicked"));
        running.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}

/// Runs the programs on another kernel, in virtual machines that share them. It runs all tests that have not passed yet
/// and those to be repeated, except slow ones that are skipped this time.
fn run_in_machines(series: Series, programs: &[Program], runs: &Runs, report: &mut Report) -> Result<()> {
    let kernel = Kernel::get(series)?;
    let place = format!("kernel {series} ({})", kernel.release);
    let count = |programs: &[Program]| programs.iter().map(|program| program.tests.len()).sum::<usize>();
    let (all, programs) = (count(programs), runs.chosen(programs, KERNEL, &place, report));
    let is_left = |program: &Program, test: &str| {
        report.passed(&program.name, test).is_none_or(|took| is_repeated(test, took, runs.turns))
    };
    let left = programs.iter().filter_map(|program| program.with_tests(|test| is_left(program, test)));
    let mut programs: Vec<Program> = left.collect();
    if count(&programs) < all {
        let spared = all - count(&programs);
        println!(
            "{place}: without {spared} tests that passed on a kernel before or take long; --every runs all of them"
        );
    }
    if programs.is_empty() {
        return Ok(());
    }
    // Slow programs first, then those that start the whole proxy, then those with many tests, so that no machine is
    // left alone with a long one at the end.
    programs.sort_by_cached_key(|program| {
        let is_small = !program.name.starts_with("proxier-demo ");
        (Reverse(runs.slow.total(KERNEL, program)), is_small, Reverse(program.tests.len()), program.title.clone())
    });
    // The whole matrix takes long and uses more than one processor.
    let machines = if runs.all_scenarios { 1 } else { MACHINES.min(programs.len()) };
    let results = tools::scratch()?;
    let mut env = vec![("TESTKIT_REQUIRE".to_owned(), "all".to_owned()), ("RUST_BACKTRACE".to_owned(), "0".to_owned())];
    env.extend(runs.environment.iter().cloned());
    let vm = Vm {
        memory: MEMORY,
        processors: if machines == 1 { 2 } else { 1 },
        timeout: TIME_LIMITS[usize::from(runs.all_scenarios)],
        folder: "/".into(),
        env,
        shares: vec![results.path().to_owned()],
        ..Vm::new(kernel)?
    };
    vm.try_out()?;
    let line = command(&programs, results.path())?;
    let started = Instant::now();
    let outcomes = together(machines, || vm.run(&line));
    collect(&programs, results.path(), &place, report);
    for outcome in outcomes {
        let trouble = match &outcome {
            Ok(outcome) => outcome.trouble().inspect(|_| eprintln!("{}", outcome.console.trim_end())),
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(trouble) = trouble {
            report.add_failure(&place, &format!("virtual machine: {trouble}"));
        }
    }
    println!("{place}: {} s, {machines} at a time", started.elapsed().as_secs());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slower_tests_are_repeated_less_often() {
        let often =
            |millis| (0..80).filter(|seed| is_repeated("a", Duration::from_millis(millis), Turns(Some(*seed)))).count();
        assert_eq!([0, 2000, 2001, 4000, 10_000].map(often), [20, 20, 10, 10, 4]);
    }
}

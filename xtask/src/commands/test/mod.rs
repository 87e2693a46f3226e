//! `cargo xtask test`: every test, the ones on real kernels too.

pub(crate) mod binaries;
mod guest;
mod slow;

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use self::binaries::Binary;
use self::slow::{Place, Slow};
use crate::cargo;
use crate::error::{Context as _, Error, Result};
use crate::kernel::Series;
use crate::libtest::Verdict;
use crate::report::{ProgramRun, Report};
use crate::tools;
use crate::turns::{SEED, Turns, seed};

pub(crate) const HELP: &str = "\
Usage: cargo xtask test [OPTIONS]

Builds all tests once, runs them and the documentation's examples here, and then those on real kernels (test programs
whose name starts with `kernel`) in a virtual machine, one boot for each kernel. There, a test that skips itself fails.
Missing programs are installed with apt when this is root, else named.

  --kernel K[,K]...  5.10, 6.1, 6.12, 7.x or all; 6.1,6.12 unless told
  --also K:CRATE[,CRATE]...
                     these crates' tests on one more kernel (may be repeated)
  --every            every test on every kernel; without it, of the tests that passed on one kernel (this machine's, for
                     example), one in four runs again on each further one, another quarter for each seed; one in
                     eight of those that took 2 to 4 s, and so on; and of the tests that take 10 s or more
                     (xtask/slow-tests.txt), one that takes 40 s runs in one run of eight
  --full             the whole matrix: all kernels, --every, all scenarios instead of a sample, and 100 kills in the test
                     that kills the reconciler under load (TRAFFIC_KILLS, else 10); takes hours
  --filter NAME      only tests whose name contains NAME
  -p CRATE           only this crate (may be repeated)
  --host-only        no virtual machine
  --strict           a test that ran nowhere is a failure, unless it needs a newer kernel or its turn comes with another
                     seed (also when CI=true)
  --record           write the times of this run's tests to xtask/slow-tests.txt; with --every, the file has no others then

Tests on random input, and which scenarios are in the sample, go by one seed, which is printed; PROPTEST_RNG_SEED=N in
the environment repeats a run's. PROXIER_SCENARIOS, PROXIER_KERNEL_MODEL_CASES, PROXIER_LACKS,
PROXIER_MODEL_CASES, PROXIER_START_SERVICES and TRAFFIC_KILLS are passed on.
The last line is `N passed, N failed, N skipped`; skipped are those that ran nowhere. Exit code 1 if any failed.
";

/// Choice of the tests that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    /// Tests that passed on one kernel are repeated on others by turns; scenarios are samples.
    ByTurns,
    /// Every test on every kernel.
    Every,
    /// That, and all scenarios.
    Full,
}

/// The options of the command line.
#[derive(Debug)]
struct Options {
    kernels: Vec<Series>,
    /// Kernels on which only some crates' tests run.
    also: Vec<(Series, Vec<String>)>,
    extent: Extent,
    filter: Option<String>,
    crates: Vec<String>,
    host_only: bool,
    strict: bool,
    record: bool,
}

impl Options {
    /// Whether the test that takes a browser may run: it is one of the examples'.
    fn uses_browser(&self) -> bool {
        self.filter.is_none() && (self.crates.is_empty() || self.crates.iter().any(|name| name == "examples"))
    }
}

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let options = parse(arguments)?;
    let mut report = Report::default();
    let mut troubles = Vec::new();
    // Where the machine's programs are missing, the tests here still run, and those that ran nowhere are counted.
    let mut ready = tools::ensure(tools::ORACLES);
    if options.uses_browser()
        && let Err(error) = tools::ensure(tools::BROWSER)
    {
        // The test that lacks it is counted as skipped.
        eprintln!("xtask: {error}");
    }
    if !options.host_only {
        ready = ready.and(tools::ensure(tools::MACHINE));
    }
    if let Err(error) = &ready {
        eprintln!("xtask: {error}");
        troubles.push(error.to_string());
    }

    let root = repository()?;
    let runs = Runs { seed: seed(), all_scenarios: options.extent == Extent::Full };
    // Who names a test wants it wherever it can run.
    let repeats =
        if options.extent >= Extent::Every || options.filter.is_some() { Turns::ALL } else { Turns::of(&runs.seed) };
    let slow = Slow::read(&root);
    let mut binaries = binaries::build(&root, &options.crates)?.tests()?;
    for name in options.also.iter().flat_map(|(_, crates)| crates) {
        // A name that is mistyped must not look like tests that passed.
        if !binaries.iter().any(|binary| binary.needs_kernel && binary.package() == name) {
            return Err(Error::usage(format!(
                "--also: {name} has no tests for real kernels, or is not among the crates"
            )));
        }
    }
    if let Some(filter) = &options.filter {
        for binary in &mut binaries {
            binary.tests.retain(|test| test.contains(filter));
        }
        binaries.retain(|binary| !binary.tests.is_empty());
    }
    let host = format!("this machine ({})", host_release());
    // The real-kernel tiers come last: they are the ones that can take long.
    let (kernel, plain): (Vec<&Binary>, Vec<&Binary>) = binaries.iter().partition(|binary| binary.needs_kernel);
    for binary in plain.iter().chain(&kernel) {
        let left_out = slow.left_out(Place::Here, binary, repeats);
        let tests: Vec<&str> =
            binary.tests.iter().filter(|test| !left_out.contains(test)).map(String::as_str).collect();
        if !tests.is_empty() {
            report.add_program(&host, &binary.name, &run_here(binary, &tests, &runs)?);
        }
        report.leave_to_other_seeds(&host, &binary.name, &left_out);
    }
    documentation_examples(&root, &options, &host, &mut report)?;
    if !options.host_only && ready.is_ok() && !kernel.is_empty() {
        for (series, chosen) in on_kernels(&options, &kernel) {
            let place = format!("kernel {series}");
            println!("\n=== {place} ===");
            if let Err(error) =
                guest::run(series, &chosen, &runs, &guest::Selection { repeats, slow: &slow }, &mut report)
            {
                eprintln!("xtask: {place}: {error}");
                report.add(&place, "xtask", &format!("virtual machine with {place}"), Verdict::Failed);
            }
        }
    }

    report.print();
    if options.record {
        slow.record(&root, &report, repeats == Turns::ALL && options.filter.is_none() && options.crates.is_empty())?;
    }
    let totals = report.totals();
    let mut failed = totals.failed > 0;
    if options.strict {
        let unexcused = report.unexcused().len();
        if options.host_only {
            troubles.push("no real kernel was asked for (--host-only)".to_owned());
        }
        if unexcused > 0 {
            troubles.push(format!("{unexcused} tests ran nowhere"));
        }
        for trouble in &troubles {
            println!("STRICT: {trouble}");
        }
        failed |= !troubles.is_empty();
    }
    println!("random input and samples: {SEED}={}", runs.seed.display());
    println!("{totals}");
    Ok(ExitCode::from(u8::from(failed)))
}

/// The kernels to boot, in order, and the test programs to run on each.
fn on_kernels<'a>(options: &Options, binaries: &[&'a Binary]) -> Vec<(Series, Vec<&'a Binary>)> {
    let everything = options.kernels.iter().map(|series| (*series, binaries.to_vec()));
    let some = options.also.iter().map(|(series, crates)| {
        let chosen = binaries.iter().copied().filter(|binary| crates.iter().any(|name| name == binary.package()));
        (*series, chosen.collect())
    });
    everything.chain(some).collect()
}

/// Seed and amount of the tests, for all test programs, here and on real kernels.
#[derive(Debug)]
struct Runs {
    seed: OsString,
    all_scenarios: bool,
}

/// Environment variables that set how much the tests do.
const SCENARIOS: &str = "PROXIER_SCENARIOS";
const KILLS: &str = "TRAFFIC_KILLS";
const PASSED_ON: [&str; 6] =
    [SCENARIOS, KILLS, "PROXIER_KERNEL_MODEL_CASES", "PROXIER_LACKS", "PROXIER_MODEL_CASES", "PROXIER_START_SERVICES"];

impl Runs {
    fn environment(&self) -> Vec<(OsString, OsString)> {
        self.environment_with(|name| std::env::var_os(name))
    }

    fn environment_with(&self, told: impl Fn(&str) -> Option<OsString>) -> Vec<(OsString, OsString)> {
        let mut variables: Vec<(OsString, OsString)> =
            PASSED_ON.iter().filter_map(|name| Some(((*name).into(), told(name)?))).collect();
        if self.all_scenarios {
            variables.retain(|(name, _)| name != SCENARIOS);
            variables.push((SCENARIOS.into(), "all".into()));
            if told(KILLS).is_none() {
                variables.push((KILLS.into(), "100".into()));
            }
        }
        variables.push((SEED.into(), self.seed.clone()));
        variables
    }
}

fn parse(arguments: &[OsString]) -> Result<Options> {
    let mut options = Options {
        kernels: vec![Series::V6_1, Series::V6_12],
        also: Vec::new(),
        extent: Extent::ByTurns,
        filter: None,
        crates: Vec::new(),
        host_only: false,
        strict: std::env::var_os("CI").is_some_and(|value| value == "true"),
        record: false,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || -> Result<String> {
            let value = rest.next().and_then(|value| value.to_str());
            value.map(str::to_owned).ok_or_else(|| Error::usage(format!("{}: a value is missing", argument.display())))
        };
        match argument.to_str() {
            Some("--kernel") => {
                let names = value()?;
                options.kernels = if names == "all" {
                    Series::ALL.to_vec()
                } else {
                    names.split(',').map(Series::parse).collect::<Result<_>>()?
                };
            }
            Some("--also") => options.also.push(also(&value()?)?),
            Some("--every") => options.extent = options.extent.max(Extent::Every),
            Some("--full") => {
                options.extent = Extent::Full;
                options.kernels = Series::ALL.to_vec();
            }
            Some("--filter") => options.filter = Some(value()?),
            Some("-p" | "--package") => options.crates.push(value()?),
            Some("--host-only") => options.host_only = true,
            Some("--strict") => options.strict = true,
            Some("--record") => options.record = true,
            _ => return Err(Error::usage(format!("test: unknown option {}", argument.display()))),
        }
    }
    Ok(options)
}

/// A kernel and crates: `6.12:ipvs,ipset`.
fn also(text: &str) -> Result<(Series, Vec<String>)> {
    let (series, crates) = text.split_once(':').ok_or_else(|| {
        Error::usage(format!("--also {text}: a kernel, a colon and crates, as in --also 6.12:ipvs,ipset"))
    })?;
    let crates: Vec<String> = crates.split(',').map(str::to_owned).collect();
    if crates.iter().any(String::is_empty) {
        return Err(Error::usage(format!("--also {text}: a crate's name is empty")));
    }
    Ok((Series::parse(series)?, crates))
}

/// The root of the repository: cargo says where this crate lies.
pub(crate) fn repository() -> Result<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    here.and_then(|folder| folder.parent().map(Path::to_owned))
        .ok_or_else(|| Error::new("start this as `cargo xtask test`: cargo says where the repository is"))
}

fn host_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(|_| "?".to_owned(), |text| text.trim().to_owned())
}

/// Runs tests of a program on this machine's kernel.
fn run_here(binary: &Binary, tests: &[&str], runs: &Runs) -> Result<ProgramRun> {
    println!("\n--- {} ---", binary.title());
    let skips = std::env::temp_dir().join(format!("ipvs-rs-skips-{}", std::process::id()));
    drop(fs::remove_file(&skips));
    let mut command = Command::new("sh");
    // One stream for both outputs, so that what belongs together stays together.
    command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(&binary.executable).args(binary.arguments(tests));
    command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder).env("TESTKIT_SKIPPED", &skips);
    command.envs(runs.environment());
    let mut run = ProgramRun::new(Some(binary.threads()));
    let exit = stream(&mut command, |line| run.line(line, Instant::now()))?;
    run.exit(exit);
    for line in fs::read_to_string(&skips).unwrap_or_default().lines() {
        println!("SKIPPED {}", line.replace('\t', ": "));
        run.skipped(line);
    }
    drop(fs::remove_file(&skips));
    Ok(run)
}

/// The examples in the documentation, which only cargo knows how to build.
fn documentation_examples(root: &Path, options: &Options, place: &str, report: &mut Report) -> Result<()> {
    let mut command = cargo::in_shell("exec \"$0\" \"$@\" 2>&1");
    command.args(["test", "--doc", "--all-features", "--no-fail-fast"]).args(binaries::selection(&options.crates));
    command.arg("--").args(options.filter.as_deref()).current_dir(root);
    println!("\n--- documentation's examples ---");
    let mut program = "documentation".to_owned();
    let mut runs: Vec<(String, ProgramRun)> = Vec::new();
    let exit = stream(&mut command, |line| {
        if let Some(name) = line.trim_start().strip_prefix("Doc-tests ") {
            program = format!("{name} documentation");
            runs.push((program.clone(), ProgramRun::new(None)));
        } else if let Some((_, run)) = runs.last_mut() {
            run.line(line, Instant::now());
        }
    })?;
    // A crate without a library has no such examples, and cargo says so: no failure.
    let mut any_failed = false;
    for (program, mut run) in runs {
        run.exit(Some(0));
        any_failed |= run.failed();
        report.add_program(place, &program, &run);
    }
    if exit != Some(0) && !any_failed && !only_programs(&options.crates) {
        report.add(place, "documentation", "(cargo test --doc)", Verdict::Failed);
    }
    Ok(())
}

/// Whether the crates asked for are ones without a library.
fn only_programs(crates: &[String]) -> bool {
    !crates.is_empty() && crates.iter().all(|name| name == "xtask")
}

/// Runs a command, prints what it prints and hands each line on.
fn stream(command: &mut Command, mut line: impl FnMut(&str)) -> Result<Option<i32>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(|| format!("cannot start {}", command.get_program().display()))?;
    if let Some(pipe) = child.stdout.take() {
        let mut reader = BufReader::new(pipe);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let length = reader.read_until(b'\n', &mut bytes).or_else(|error| match error.kind() {
                io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            });
            if length.context(|| "cannot read a test program's output".to_owned())? == 0 {
                break;
            }
            let text = String::from_utf8_lossy(&bytes);
            print!("{text}");
            line(text.trim_end_matches('\n'));
        }
    }
    Ok(child.wait().context(|| "cannot wait for a test program".to_owned())?.code())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::PathBuf;

    use super::{Binary, Extent, Runs, on_kernels, parse, stream};

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn kernels_come_in_a_list() {
        let options = parse(&words("--kernel 5.10,7.x -p ipvs -p ipset --filter drain --strict")).unwrap();
        let names: Vec<&str> = options.kernels.iter().map(|series| series.name()).collect();
        assert_eq!(names, ["5.10", "7.x"]);
        assert_eq!(options.crates, ["ipvs", "ipset"]);
        assert_eq!(options.filter.as_deref(), Some("drain"));
        assert!(options.strict);
        assert_eq!(parse(&words("--kernel all")).unwrap().kernels.len(), 4);
        assert!(parse(&words("--kernel 6.1,4.4")).is_err());
        assert!(parse(&words("ipvs")).is_err());
    }

    #[test]
    fn how_much_to_do_is_passed_on() {
        let of = |all_scenarios, told: &[(&str, &str)]| {
            let runs = Runs { seed: "7".into(), all_scenarios };
            let told = |name: &str| told.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            let all = runs.environment_with(told).into_iter();
            all.map(|(name, value)| format!("{}={}", name.display(), value.display())).collect::<Vec<_>>()
        };
        assert_eq!(of(false, &[("OTHER", "1")]), ["PROPTEST_RNG_SEED=7"]);
        assert_eq!(of(false, &[("TRAFFIC_KILLS", "3")]), ["TRAFFIC_KILLS=3", "PROPTEST_RNG_SEED=7"]);
        assert_eq!(of(true, &[]), ["PROXIER_SCENARIOS=all", "TRAFFIC_KILLS=100", "PROPTEST_RNG_SEED=7"]);
        assert_eq!(
            of(true, &[("TRAFFIC_KILLS", "5"), ("PROXIER_SCENARIOS", "some")]),
            ["TRAFFIC_KILLS=5", "PROXIER_SCENARIOS=all", "PROPTEST_RNG_SEED=7"]
        );
    }

    #[test]
    fn some_crates_run_on_more_kernels() {
        let options = parse(&words("--kernel 6.1 --also 6.12:ipvs,ipset --also 7.x:ipvs")).unwrap();
        let binaries = ["ipset", "ipvs", "proxier-core"].map(|name| {
            let folder = PathBuf::from("/r").join(name);
            Binary { name: format!("{name} kernel"), folder, ..Binary::default() }
        });
        let binaries: Vec<&Binary> = binaries.iter().collect();
        let chosen: Vec<_> = on_kernels(&options, &binaries)
            .iter()
            .map(|(series, chosen)| {
                format!("{series}: {}", chosen.iter().map(|b| b.package()).collect::<Vec<_>>().join(" "))
            })
            .collect();
        assert_eq!(chosen, ["6.1: ipset ipvs proxier-core", "6.12: ipset ipvs", "7.x: ipvs"]);
        for line in ["--also 6.12", "--also 6.12:", "--also 4.4:ipvs", "--also 6.12:ipvs,", "--also"] {
            assert!(parse(&words(line)).is_err(), "{line}");
        }
    }

    #[test]
    fn the_whole_matrix_is_every_kernel_and_every_scenario() {
        let options = parse(&words("--full")).unwrap();
        assert_eq!(options.kernels.len(), 4);
        assert_eq!(options.extent, Extent::Full);
        let runs = Runs { seed: "7".into(), all_scenarios: options.extent == Extent::Full };
        let environment = runs.environment();
        assert!(environment.contains(&("PROXIER_SCENARIOS".into(), "all".into())));
        assert!(environment.contains(&("PROPTEST_RNG_SEED".into(), "7".into())));
    }

    #[test]
    fn lines_are_handed_on_with_the_exit_code() {
        let mut lines = Vec::new();
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "printf 'one\\n\\377two\\nthree'; exit 3"]);
        let exit = stream(&mut command, |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(exit, Some(3));
        assert_eq!(lines, ["one", "\u{fffd}two", "three"]);
    }
}

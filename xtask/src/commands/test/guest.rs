//! The tiers on real kernels, in virtual machines that share the test programs among them.

use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::Runs;
use super::binaries::Binary;
use super::slow::{Place, Slow};
use crate::error::{Context as _, Error, Result};
use crate::kernel::{Kernel, Series};
use crate::libtest::Verdict;
use crate::report::{ProgramRun, Report};
use crate::turns::Turns;
use crate::vm::{Outcome, Vm, quote};

/// Starts lines that are for this program alone.
const MARK: &str = "##xtask ";

/// For all test programs together.
const TIME_LIMIT: Duration = Duration::from_secs(2700);

/// The same when nothing is left out.
const TIME_LIMIT_OF_ALL: Duration = Duration::from_secs(4 * 3600);

/// In MiB. What tests write to files lies in it too.
const MEMORY: u32 = 2048;

/// Number of machines that run at a time. Emulated, two with one processor each do about twice as much as one with two, whose
/// processors wait for each other at every change of a page table.
const MACHINES: usize = 2;

/// A test program, or a file of it, with those of its tests that run on a kernel.
#[derive(Debug)]
struct Part<'a> {
    binary: &'a Binary,
    tests: Vec<&'a str>,
}

/// Rules for the tests that run on a further kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Selection<'a> {
    /// Turns by which tests that passed on a kernel before are repeated.
    pub(super) repeats: Turns,
    /// Slow tests, which run by the same turns.
    pub(super) slow: &'a Slow,
}

/// Repeats on a further kernel: one in so many of the tests that passed on a real kernel. An emulated kernel takes ten times as long for a
/// test as this machine's own: a test that cannot run here always runs there, one that can is repeated by turns.
const AGAIN: u64 = 4;

/// Duration of a short test. A test of twice that is repeated half as often, and so on, so that a few long tests do not take most of the time.
const SHORT: Duration = Duration::from_secs(2);

fn is_turn(test: &str, took: Duration, turns: Turns) -> bool {
    let times = took.as_millis().div_ceil(SHORT.as_millis()).max(1);
    let one_in = AGAIN.saturating_mul(u64::try_from(times).unwrap_or(u64::MAX));
    turns.takes(test.bytes().map(u64::from).sum(), one_in)
}

/// The programs with what is left to run of each, which is all tests that have not passed yet and those to be repeated, without
/// slow ones whose turn it is not; and how many tests that makes fewer.
fn parts<'a>(binaries: &[&'a Binary], selection: Selection<'_>, report: &Report) -> (Vec<Part<'a>>, usize) {
    let Selection { repeats, slow } = selection;
    let (mut parts, mut spared) = (Vec::new(), 0);
    for binary in binaries {
        let passed = report.passed(&binary.name);
        let left_out = slow.left_out(Place::Kernel, binary, repeats);
        let mut tests: Vec<&str> = binary.tests.iter().map(String::as_str).collect();
        tests.retain(|test| {
            passed.get(test).is_none_or(|took| is_turn(test, *took, repeats)) && !left_out.iter().any(|out| out == test)
        });
        spared += binary.tests.len() - tests.len();
        if !tests.is_empty() {
            parts.push(Part { binary, tests });
        }
    }
    (parts, spared)
}

/// Runs the test programs on one kernel.
pub(super) fn run(
    series: Series,
    binaries: &[&Binary],
    runs: &Runs,
    selection: &Selection<'_>,
    report: &mut Report,
) -> Result<()> {
    let kernel = Kernel::get(series)?;
    let place = format!("kernel {series} ({})", kernel.release);
    let (mut parts, spared) = parts(binaries, *selection, report);
    if spared > 0 {
        println!(
            "{place}: without {spared} tests that passed on a kernel before or take long; --every runs all of them"
        );
    }
    for binary in binaries {
        let left_out = selection.slow.left_out(Place::Kernel, binary, selection.repeats);
        report.leave_to_other_seeds(&place, &binary.name, &left_out);
    }
    if parts.is_empty() {
        return Ok(());
    }
    // First those that take long, then those that start the whole proxy, then those with many tests: then no machine is left alone
    // with one at the end.
    parts.sort_by_cached_key(|Part { binary, tests }| {
        let takes_long = selection.slow.on_kernel(&binary.name, tests);
        (Reverse(takes_long), !binary.name.starts_with("examples "), Reverse(tests.len()), binary.title())
    });
    // The whole matrix takes its time, and more than one processor.
    let machines = if runs.all_scenarios { 1 } else { MACHINES.min(parts.len()) };
    let claims = Claims::new()?;
    let mut vm = Vm::new(kernel)?;
    vm.memory = MEMORY;
    vm.processors = if machines == 1 { 2 } else { 1 };
    vm.timeout = if runs.all_scenarios { TIME_LIMIT_OF_ALL } else { TIME_LIMIT };
    vm.folder = "/".into();
    vm.env = vec![("TESTKIT_REQUIRE".into(), "all".into()), ("RUST_BACKTRACE".into(), "0".into())];
    vm.env.extend(runs.environment());
    vm.shares.push(claims.0.clone());
    vm.try_out()?;
    let script = script(&parts, &claims.0);
    let command: [OsString; 3] = ["/bin/sh".into(), "-c".into(), OsString::from_vec(script)];
    let (sender, lines) = channel();
    let started = Instant::now();
    let outcomes: Vec<Result<Outcome>> = thread::scope(|scope| {
        let running: Vec<_> = (0..machines)
            .map(|machine| {
                let output = Lines::new(machine, machines > 1, sender.clone());
                let (vm, command) = (&vm, &command);
                scope.spawn(move || vm.run_with(command, Box::new(output), Box::new(io::stderr())))
            })
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Error::new("the thread of a virtual machine panicked"))))
            .collect()
    });
    drop(sender);
    let results = collect(&lines, &parts, machines);
    for (part, run) in parts.iter().zip(&results) {
        report.add_program(&place, &part.binary.name, run);
    }
    for outcome in outcomes {
        let trouble = match &outcome {
            Ok(outcome) => outcome.trouble().inspect(|_| eprintln!("{}", outcome.console.trim_end())),
            Err(error) => Some(error.to_string()),
        };
        if let Some(trouble) = trouble {
            report.add(&place, "xtask", &format!("virtual machine: {trouble}"), Verdict::Failed);
        }
    }
    println!("{place}: {} s, {machines} at a time", started.elapsed().as_secs());
    Ok(())
}

/// A folder of this machine in which the virtual ones say what they have taken on; removed with it.
struct Claims(PathBuf);

impl Claims {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("ipvs-rs-claims-{}", std::process::id()));
        fs::create_dir(&path).context(|| format!("cannot create {}", path.display()))?;
        // Virtual machines see it below the same name.
        let path = path.canonicalize().context(|| format!("cannot resolve {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Runs one program after the other, with a marked line before and after each. Skips a program whose folder in `claims`
/// another machine has made.
fn script(parts: &[Part<'_>], claims: &Path) -> Vec<u8> {
    let mut script = b"claims=".to_vec();
    script.extend_from_slice(&quote(claims.as_os_str()));
    script.push(b'\n');
    for (number, Part { binary, tests }) in parts.iter().enumerate() {
        let skips = format!("/run/testkit-skipped-{number}");
        script.extend_from_slice(format!("if mkdir \"$claims/{number}\" 2>/dev/null; then\n").as_bytes());
        script.extend_from_slice(format!("echo '{MARK}begin {number}'; echo; echo ").as_bytes());
        script.extend_from_slice(&quote(OsStr::new(&format!("--- {} ---", binary.title()))));
        script.extend_from_slice(format!("\nexport TESTKIT_SKIPPED={skips} CARGO_MANIFEST_DIR=").as_bytes());
        script.extend_from_slice(&quote(binary.folder.as_os_str()));
        script.extend_from_slice(b"\ncd \"$CARGO_MANIFEST_DIR\"\n");
        script.extend_from_slice(&quote(binary.executable.as_os_str()));
        for argument in binary.arguments(tests) {
            script.push(b' ');
            script.extend_from_slice(&quote(OsStr::new(&argument)));
        }
        script.extend_from_slice(format!(" 2>&1\necho '{MARK}'\"end {number} $?\"\n").as_bytes());
        script.extend_from_slice(format!("[ ! -e {skips} ] || sed 's/^/{MARK}skip {number} /' {skips}\n").as_bytes());
        script.extend_from_slice(b"fi\n");
    }
    // The results are in the marked lines; the last command's exit code must not end up as the script's.
    script.extend_from_slice(b"exit 0\n");
    script
}

/// A line that a machine printed.
#[derive(Debug)]
struct Line {
    machine: usize,
    when: Instant,
    text: String,
}

/// Sorts the lines by the program they belong to.
fn collect(lines: &Receiver<Line>, parts: &[Part<'_>], machines: usize) -> Vec<ProgramRun> {
    let mut runs: Vec<ProgramRun> = parts.iter().map(|part| ProgramRun::new(Some(part.binary.threads()))).collect();
    // The program that each machine is running.
    let mut current: Vec<Option<usize>> = vec![None; machines];
    for Line { machine, when, text } in lines {
        let Some(current) = current.get_mut(machine) else { continue };
        let Some(marked) = text.strip_prefix(MARK) else {
            if let Some(run) = current.and_then(|number| runs.get_mut(number)) {
                run.line(&text, when);
            }
            continue;
        };
        let mut words = marked.splitn(3, ' ');
        let (verb, number, rest) = (words.next(), words.next(), words.next());
        let Some(number) = number.and_then(|number| number.parse().ok()) else { continue };
        let Some(run) = runs.get_mut(number) else { continue };
        match verb {
            Some("begin") => *current = Some(number),
            Some("end") => run.exit(rest.and_then(|code| code.parse().ok())),
            Some("skip") => run.skipped(rest.unwrap_or_default()),
            _ => {}
        }
    }
    runs
}

/// Prints lines and hands them on; marked ones are only handed on.
struct Lines {
    machine: usize,
    partial: Vec<u8>,
    /// Output of a program so far, where machines that run at the same time would mix their lines. `None`: lines are
    /// printed as they come.
    held: Option<String>,
    sender: Sender<Line>,
}

impl Lines {
    fn new(machine: usize, hold: bool, sender: Sender<Line>) -> Self {
        Self { machine, partial: Vec::new(), held: hold.then(String::new), sender }
    }

    fn take(&mut self, line: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(line).into_owned();
        if let Some(marked) = text.strip_prefix(MARK) {
            if marked.starts_with("end ") {
                self.print_held();
            }
        } else if let Some(held) = &mut self.held {
            held.push_str(&text);
            held.push('\n');
        } else {
            println!("{text}");
        }
        // The receiver outlives the machine.
        self.sender.send(Line { machine: self.machine, when: Instant::now(), text }).map_err(io::Error::other)
    }

    fn print_held(&mut self) {
        if let Some(held) = &mut self.held {
            // Not by a handle of standard output: that would not be caught when a test of this prints.
            print!("{}", std::mem::take(held));
        }
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        while let Some(at) = self.partial.iter().position(|byte| *byte == b'\n') {
            let rest = self.partial.split_off(at + 1);
            let mut line = std::mem::replace(&mut self.partial, rest);
            line.pop();
            self.take(&line)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let line = std::mem::take(&mut self.partial);
        if !line.is_empty() {
            self.take(&line).unwrap_or_default();
        }
        self.print_held();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::{Line, Lines, Part, Selection, Slow, collect, is_turn, parts, script};
    use crate::commands::test::binaries::Binary;
    use crate::libtest::Verdict;
    use crate::report::{Report, Totals};
    use crate::turns::Turns;

    fn binary(name: &str, tests: &[&str]) -> Binary {
        let tests = tests.iter().map(|&test| test.to_owned()).collect();
        Binary { name: name.into(), executable: name.into(), needs_kernel: true, tests, ..Binary::default() }
    }

    /// The programs with all their tests.
    fn whole(binaries: &[Binary]) -> Vec<Part<'_>> {
        let tests = binaries.iter().map(|binary| binary.tests.iter().map(String::as_str).collect());
        binaries.iter().zip(tests).map(|(binary, tests)| Part { binary, tests }).collect()
    }

    #[test]
    fn what_took_longer_is_repeated_less_often() {
        let often = |took: Duration| {
            let seeds = (0..80_u64).map(|seed| Turns::of(seed.to_string().as_ref()));
            seeds.filter(|turns| is_turn("a", took, *turns)).count()
        };
        let times = [0, 2000, 2001, 4000, 10_000].map(|millis| often(Duration::from_millis(millis)));
        assert_eq!(times, [20, 20, 10, 10, 4]);
    }

    #[test]
    fn a_test_that_passed_is_repeated_by_turns_and_one_that_did_not_always_runs() {
        let binaries = [binary("here", &["a", "b"]), binary("nowhere", &["a"]), binary("partly", &["a", "b", "c"])];
        let binaries: Vec<&Binary> = binaries.iter().collect();
        let mut report = Report::default();
        let missing = || Verdict::Skipped("no IPVS".into());
        for (program, name, verdict) in [
            ("here", "a", Verdict::Passed),
            ("here", "b", Verdict::Passed),
            ("partly", "a", Verdict::Passed),
            ("partly", "b", missing()),
            ("partly", "c", Verdict::Failed),
        ] {
            report.add("this machine", program, name, verdict);
        }
        let run = |repeats: Turns| -> Vec<String> {
            let slow = Slow::default();
            let (parts, spared) = parts(&binaries, Selection { repeats, slow: &slow }, &report);
            let mut lines: Vec<String> = parts
                .iter()
                .map(|part| format!("{}: {}", part.binary.name, part.binary.arguments(&part.tests).join(" ")))
                .collect();
            lines.push(spared.to_string());
            lines
        };
        let line = |name: &str, tests: &str| format!("{name}: --test-threads=2 --exact {tests}");
        let nowhere = line("nowhere", "a");
        assert_eq!(run(Turns::ALL), [line("here", "a b"), nowhere.clone(), line("partly", "a b c"), "0".to_owned()]);
        // The letters' numbers are 97 and 98.
        assert_eq!(run(Turns::of("0".as_ref())), [nowhere.clone(), line("partly", "b c"), "3".to_owned()]);
        assert_eq!(run(Turns::of("3".as_ref())), [line("here", "a"), nowhere, line("partly", "a b c"), "1".to_owned()]);
    }

    /// The script, run by the shell here, with stand-ins for test programs: one passes, one skips, one dies.
    #[test]
    fn lines_of_two_machines_are_told_apart() {
        let binaries = [binary("a", &["x", "z"]), binary("b", &["y"])];
        let parts = whole(&binaries);
        let (sender, receiver) = channel();
        for (machine, text) in [
            (0, "##xtask begin 0"),
            (1, "##xtask begin 1"),
            (1, "running 1 test"),
            (0, "running 2 tests"),
            (0, "test x ... ok"),
            (1, "test y ... FAILED"),
            (1, "##xtask end 1 101"),
            (0, "test z ... ok"),
            (0, "##xtask end 0 0"),
        ] {
            sender.send(Line { machine, when: Instant::now(), text: text.to_owned() }).unwrap();
        }
        drop(sender);
        let mut report = Report::default();
        for (part, run) in parts.iter().zip(&collect(&receiver, &parts, 2)) {
            report.add_program("here", &part.binary.name, run);
        }
        assert_eq!(report.totals(), Totals { passed: 2, failed: 1, skipped: 0 });
    }

    #[test]
    fn results_come_back_to_the_program_they_belong_to() {
        let folder = std::env::temp_dir().join(format!("xtask-guest-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = |name: &str, body: &str| {
            let executable = folder.join(name);
            std::fs::write(&executable, format!("#!/bin/sh\n{body}\n")).unwrap();
            assert!(Command::new("chmod").arg("+x").arg(&executable).status().unwrap().success());
            Binary { executable, folder: folder.clone(), ..binary(name, &["a"]) }
        };
        let binaries = [
            program("good's", "echo running 1 test; echo 'test a ... ok'"),
            program("dies", "echo running 2 tests; echo 'test a ... ok'; exit 134"),
        ];
        let parts = whole(&binaries);
        let claims = folder.join("claims");
        std::fs::create_dir(&claims).unwrap();
        let text = String::from_utf8(script(&parts, &claims)).unwrap();
        let text = text.replace("/run/", &format!("{}/", folder.display()));
        let (sender, receiver) = channel();
        for machine in 0..2 {
            // The first machine takes both; one is given back, and the second machine runs that one alone.
            if machine == 1 {
                std::fs::remove_dir(claims.join("1")).unwrap();
            }
            let output = Command::new("sh").arg("-c").arg(&text).output().unwrap();
            let printed = String::from_utf8(output.stdout.clone()).unwrap();
            assert_eq!(printed.contains("good"), machine == 0, "{printed}");
            // In two pieces that split a line.
            let mut lines = Lines::new(machine, true, sender.clone());
            let (head, tail) = output.stdout.split_at(output.stdout.len() / 2);
            lines.write_all(head).unwrap();
            lines.write_all(tail).unwrap();
        }
        drop(sender);
        let mut runs = collect(&receiver, &parts, 2);
        runs[0].skipped("a\tno kernel 9.9 or newer");
        let mut report = Report::default();
        for (part, run) in parts.iter().zip(&runs) {
            report.add_program("here", &part.binary.name, run);
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(report.totals(), Totals { passed: 1, failed: 1, skipped: 1 });
    }
}

//! `cargo xtask soak`: the proxy under load, changes and faults, on a real kernel, and a verdict.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use super::bench::HostLoad;
use crate::cargo;
use crate::error::{Context as _, Error, Result};
use crate::kernel::{Kernel, Series};
use crate::tools;
use crate::vm::Vm;

pub(crate) const HELP: &str = "\
Usage: cargo xtask soak [OPTIONS]

Boots a Debian kernel in QEMU and lets proxier-demo serve 2,000 Services there while they change 50 times a second, clients
connect all the time, and everything goes wrong that may: the API server, the process, the host, and others who edit the
kernel's tables. Passed, when no connection failed but those that a fault or a change of mode explains, memory and open files
stayed as they were, and at the end the kernel holds what a model of the truth says, what belongs to others, and nothing of
other modes. With --here, the same on this machine's own kernel, in namespaces of its own: no machine is booted, and root is
needed.

  --minutes N     how long, 60 unless told; less than 2 is too short for all kinds of faults
  --seed S        repeats the changes and faults of an earlier run; from the clock unless told
  --mode MODE     ipvs (default), nftables, iptables, userspace
  --change-mode-every SECS
                  after so many seconds the proxy is ended and started in another mode, in turns, for half as many
  --here          on this machine's kernel instead of one in QEMU
  --kernel K      5.10, 6.1 (default), 6.12 or 7.x
  --services N    2,000 unless told
  --rate N        changes a second, 50 unless told
  --backend B     rules by iptables' legacy (default) or nft
  --release       programs that are optimised; without it, those of the tests
  --spoil HOW     no-restart (a killed proxy stays dead) or wrong-truth (the model is wrong): shows that it can fail
  --no-result     keeps no result

The result is kept in benches/results, as soak-MODE-linux-K (soak-linux-K for ipvs) or soak-MODE-host, .md and .json; when it is
not passed, .log has the faults and the last words of the proxy.

Exit codes: 0 passed, 1 not passed, 2 bad usage, 3 not passed while this host's own hypervisor kept more than 15 % of the processors'
time, which says nothing about the proxy; 124 no end, 125 the machine could not start.
";

/// Time before and after the soak: to program everything, and to wait until the kernel is as it has to be.
const AROUND: Duration = Duration::from_secs(20 * 60);
/// The API server keeps every object several times, as texts and as values.
const MEMORY: u32 = 3072;

/// Memory management of the soak, not that of the proxy, which it starts without these. Whenever a program with many
/// threads gives memory back, each processor has to be told, and an emulated one is slow to answer: a third of the machine's
/// time went into that.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_MMAP_THRESHOLD_", "1073741824"), ("MALLOC_TRIM_THRESHOLD_", "1073741824"), ("MALLOC_ARENA_MAX", "2")];

#[derive(Debug)]
struct Options {
    minutes: f64,
    seed: Option<u64>,
    mode: String,
    here: bool,
    kernel: Series,
    release: bool,
    keep: bool,
    /// Passed on unchanged.
    more: Vec<String>,
}

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let options = parse(arguments)?;
    let root = super::test::repository()?;
    tools::ensure(tools::ORACLES)?;
    if options.here && !tools::is_root() {
        return Err(Error::new("soak --here needs root: it makes network namespaces (try sudo)"));
    }
    if !options.here {
        tools::ensure(tools::MACHINE)?;
    }
    let (program, proxy) = if options.release {
        // Two runs of cargo's: with the benches, the proxy would get the features that only they want.
        (cargo::build_release(&root, "benches", "benches")?, cargo::build_release(&root, "examples", "proxier-demo")?)
    } else {
        // As `cargo xtask test` builds them: after the tests, nothing is left to build.
        let built = super::test::binaries::build(&root, &[])?;
        (built.program("benches")?, built.program("proxier-demo")?)
    };
    let results = root.join("benches/results");
    let command = options.command(&program, &proxy, &results, &commit(&root));
    if options.here {
        return here(&command);
    }
    let mut vm = Vm::new(Kernel::get(options.kernel)?)?;
    vm.memory = MEMORY;
    vm.timeout = AROUND + Duration::from_secs_f64(options.minutes * 60.0 * 2.0);
    vm.shares.push(results.clone());
    let _load = HostLoad::tell(&mut vm)?;
    for (name, value) in ALLOCATOR {
        vm.env.push((name.into(), value.into()));
    }
    let before = Processors::now();
    let outcome = vm.run(&command)?;
    let stolen = Processors::now().stolen_since(before);
    if let Some(code) = outcome.failed() {
        return Ok(code);
    }
    if outcome.exit == Some(0) {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(failed(stolen))
}

/// On this machine's own kernel. The soak makes network namespaces; what it shares besides them lies in `/run` (the locks of
/// iptables and of the proxy), so it gets one of its own.
fn here(command: &[OsString]) -> Result<ExitCode> {
    let before = Processors::now();
    let script = "mount -t tmpfs -o mode=755 tmpfs /run && exec \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "--", "sh", "-c", script, "soak"]).args(command);
    let status = unshare.status().context(|| "cannot start unshare".to_owned())?;
    if status.success() { Ok(ExitCode::SUCCESS) } else { Ok(failed(Processors::now().stolen_since(before))) }
}

/// The exit code of a soak that is not passed.
fn failed(stolen: u64) -> ExitCode {
    if stolen > STOLEN_PERCENT {
        eprintln!("xtask: this host did not have {stolen} % of its processors' time: repeat it on one that does");
        return ExitCode::from(INCONCLUSIVE);
    }
    ExitCode::FAILURE
}

/// The commit of this checkout, and whether files differ from it; `unknown` without git.
fn commit(root: &Path) -> String {
    let git = |words: &[&str]| tools::run(Command::new("git").args(words).current_dir(root));
    let Ok(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return "unknown".to_owned() };
    let differs = git(&["status", "--porcelain", "--untracked-files=no"]).map_or(true, |files| !files.is_empty());
    format!("{}{}", commit.trim(), if differs { ", with changes" } else { "" })
}

/// With more, a soak that is not passed says nothing.
const STOLEN_PERCENT: u64 = 15;
/// The exit code for that.
const INCONCLUSIVE: u8 = 3;

/// The time of this host's processors since it started, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Processors {
    all: u64,
    /// Ticks that the hypervisor gave to others while something here wanted to run.
    stolen: u64,
}

impl Processors {
    /// The processors' times now; zero where they cannot be read.
    fn now() -> Self {
        std::fs::read_to_string("/proc/stat").map(|text| Self::read(&text)).unwrap_or_default()
    }

    /// From the first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal, and two that the
    /// first ones have in them.
    fn read(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let times: Vec<u64> = line.split_whitespace().skip(1).take(8).map_while(|word| word.parse().ok()).collect();
        Processors { all: times.iter().sum(), stolen: times.get(7).copied().unwrap_or_default() }
    }

    /// Percent of the time since then.
    fn stolen_since(self, before: Self) -> u64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen).saturating_mul(100) / all
    }
}

impl Options {
    /// Command line of the soak in the machine.
    fn command(&self, program: &Path, proxy: &Path, results: &Path, commit: &str) -> Vec<OsString> {
        let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = self.seed.unwrap_or_else(|| clock().map_or(1, |time| u64::from(time.subsec_nanos())));
        let release = if self.release { " --release" } else { "" };
        let more: String = self.more.iter().flat_map(|word| [" ", word]).collect();
        let place = if self.here { "--here".to_owned() } else { format!("--kernel {}", self.kernel) };
        let mode = &self.mode;
        let typed =
            format!("cargo xtask soak --minutes {} --seed {seed} --mode {mode} {place}{release}{more}", self.minutes);
        let mut command: Vec<OsString> = vec![program.into(), "soak".into()];
        command.extend(["--minutes".into(), self.minutes.to_string().into()]);
        command.extend(["--seed".into(), seed.to_string().into(), "--mode".into(), mode.into()]);
        command.extend(["--proxy".into(), proxy.into(), "--command".into(), typed.into()]);
        command.extend(["--commit".into(), commit.into()]);
        if self.keep {
            let mode = if mode == "ipvs" { String::new() } else { format!("-{mode}") };
            let place = if self.here { "host".to_owned() } else { format!("linux-{}", self.kernel) };
            command.extend(["--out".into(), results.join(format!("soak{mode}-{place}")).into()]);
        }
        command.extend(self.more.iter().map(OsString::from));
        command
    }
}

fn parse(arguments: &[OsString]) -> Result<Options> {
    let mut options = Options {
        minutes: 60.0,
        seed: None,
        mode: "ipvs".to_owned(),
        here: false,
        kernel: Series::V6_1,
        release: false,
        keep: true,
        more: Vec::new(),
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || -> Result<String> {
            let value = rest.next().and_then(|value| value.to_str());
            value.map(str::to_owned).ok_or_else(|| Error::usage(format!("{}: a value is missing", argument.display())))
        };
        match argument.to_str() {
            Some("--minutes") => {
                let minutes: Option<f64> = value()?.parse().ok().filter(|minutes| (0.1..=10_000.0).contains(minutes));
                options.minutes = minutes.ok_or_else(|| Error::usage("soak: --minutes takes 0.1 to 10000"))?;
            }
            Some("--seed") => {
                let seed =
                    value()?.parse().map_err(|_not_a_number| Error::usage("soak: --seed takes a whole number"))?;
                options.seed = Some(seed);
            }
            Some("--mode") => options.mode = one_of(&value()?, &["ipvs", "nftables", "iptables", "userspace"])?,
            Some("--here") => options.here = true,
            Some("--kernel") => options.kernel = Series::parse(&value()?)?,
            Some("--release") => options.release = true,
            Some("--no-result") => options.keep = false,
            Some(name @ ("--services" | "--rate" | "--change-mode-every")) => {
                let number: Option<u32> = value()?.parse().ok().filter(|number| *number > 0);
                let number = number.ok_or_else(|| Error::usage(format!("soak: {name} takes a positive number")))?;
                options.more.extend([name.to_owned(), number.to_string()]);
            }
            Some("--backend") => options.more.extend(["--backend".to_owned(), one_of(&value()?, &["legacy", "nft"])?]),
            Some("--spoil") => {
                options.more.extend(["--spoil".to_owned(), one_of(&value()?, &["no-restart", "wrong-truth"])?]);
                options.keep = false;
            }
            _ => return Err(Error::usage(format!("soak: unknown option {}", argument.display()))),
        }
    }
    Ok(options)
}

fn one_of(word: &str, known: &[&str]) -> Result<String> {
    let found = known.iter().find(|known| **known == word).map(|known| (*known).to_owned());
    found.ok_or_else(|| Error::usage(format!("soak: {word}: one of {}", known.join(", "))))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use super::{Processors, parse};

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_machine_is_told_everything_that_repeats_the_run() {
        let options = parse(&words("--minutes 2 --seed 9 --kernel 6.12 --services 500 --backend nft")).unwrap();
        let command = options.command(Path::new("/b"), Path::new("/p"), Path::new("/r"), "0123456789ab, with changes");
        let line: Vec<String> = command.iter().map(|word| word.to_str().unwrap().to_owned()).collect();
        assert_eq!(
            line.join(" "),
            "/b soak --minutes 2 --seed 9 --mode ipvs --proxy /p --command cargo xtask soak --minutes 2 --seed 9 --mode ipvs \
             --kernel 6.12 --services 500 --backend nft --commit 0123456789ab, with changes --out /r/soak-linux-6.12 \
             --services 500 --backend nft"
        );
        let options = parse(&words("--here --mode nftables --change-mode-every 180 --seed 9")).unwrap();
        let command = options.command(Path::new("/b"), Path::new("/p"), Path::new("/r"), "0");
        let line: Vec<String> = command.iter().map(|word| word.to_str().unwrap().to_owned()).collect();
        assert!(
            line.join(" ").ends_with(
                "--command cargo xtask soak --minutes 60 --seed 9 --mode nftables --here --change-mode-every 180 --commit 0 \
                 --out /r/soak-nftables-host --change-mode-every 180"
            ),
            "{line:?}"
        );
    }

    #[test]
    fn time_that_the_hypervisor_kept_is_counted() {
        let before = Processors::read("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1\n");
        let after = Processors::read("cpu  150 0 150 850 0 0 0 50 40 0\n");
        assert_eq!((before.all, after.stolen_since(before)), (1000, 25));
        assert_eq!(Processors::read("").stolen_since(before), 0);
    }

    #[test]
    fn a_spoilt_run_keeps_no_result() {
        assert!(!parse(&words("--spoil no-restart")).unwrap().keep);
        for line in [
            "--minutes 0",
            "--minutes",
            "--seed x",
            "--backend x",
            "--spoil x",
            "--services 0",
            "--mode x",
            "--mode",
            "x",
        ] {
            let error = parse(&words(line)).unwrap_err();
            assert_eq!(format!("{:?}", error.exit_code()), format!("{:?}", std::process::ExitCode::from(2)), "{line}");
        }
    }
}

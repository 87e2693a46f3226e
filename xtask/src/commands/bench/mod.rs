//! `cargo xtask bench`: measurements side by side, on real kernels.

mod host_load;
mod table;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

pub(super) use self::host_load::HostLoad;
use crate::cargo;
use crate::error::{Context as _, Error, Result};
use crate::kernel::{Kernel, Series};
use crate::tools;
use crate::turns::{Turns, seed};
use crate::vm::{Vm, quote};

pub(crate) const HELP: &str = "\
Usage: cargo xtask bench [NAME...] [OPTIONS]
       cargo xtask bench end-to-end --kubeconfig FILE [--kube-proxy PROGRAM] [--etcd URL] [--mode MODE]... [--services N] [--endpoints N] [--changes N]
       cargo xtask bench --check | --update
       cargo xtask bench table [--check]

Builds the benches and runs them, each comparison interleaved. Without NAME: all of them.

  reconcile         compile, diff and plan, in instructions counted by callgrind; on this machine
  memory            what the reconciler keeps in memory; on this machine
  nftables-fill     100,000 elements into a map; on this machine
  iptables-services Services in iptables mode: all from nothing, one change, against iptables-restore; on this machine
  nftables-services Services in nftables mode: all from nothing, one change, connecting; on this machine
  userspace         userspace mode: one stream, connections; on this machine
  modes             all modes that the kernel has, 10 to 10,000 Services; on this machine and in the virtual machine
  packets           packets through the rules of each mode and of kube-proxy, with the fast path, and directly; on this machine and in the
                    virtual machine
  fleet             a hundred of proxier-demo on one API server; on this machine
  ipset-fill        20,000 entries into a set; on this machine
  ipvs-program      programming 1,000 virtual servers with 10 real servers each; in the virtual machine
  drift             a full check of 10,000 Services, nothing changed; in the virtual machine
  policy            proxier-demo in IPVS mode: another scheduler for a Service; in the virtual machine
  cold-start        proxier-demo in IPVS mode: start with and without programs; in the virtual machine
  end-to-end        proxier-demo with an API server: start, changes, memory; in the virtual machine

  --kernel K      5.10, 6.1 (default), 6.12 or 7.x
  --rounds N      how often each side runs, 7 unless told
  --quick         3 rounds, fewer sizes: less than five minutes on a quiet machine
  --smoke         small numbers, 1 round, not optimised: shows only that the benches work, and keeps no results
  --kubeconfig F  end-to-end on a real cluster (benches/README.md), with --kube-proxy, which takes turns with proxier-demo;
                  on this machine, or with --kernel in a virtual one, where this one is 10.0.2.2; with --etcd the
                  Services are written into the server's etcd, past the server
  --by-turns      one bench in three, others for each PROPTEST_RNG_SEED in the environment
  --check         counts instructions and allocations of the pure parts, and fails when one is more than 5 % above
                  benches/counts.json; takes less than a minute once built
  --update        writes that file anew
  table           puts the figures of benches/results into the READMEs' tables; with --check, says whether they are there

Results are kept in benches/results, as JSON, Markdown and SVG; those of --quick in benches/results/quick.
";

/// Kernel that a bench runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Host,
    Machine,
    Both,
}

const BENCHES: [(&str, Place); 15] = [
    ("reconcile", Place::Host),
    ("memory", Place::Host),
    ("ipset-fill", Place::Host),
    ("nftables-fill", Place::Host),
    ("nftables-services", Place::Host),
    ("iptables-services", Place::Host),
    ("userspace", Place::Host),
    ("modes", Place::Both),
    ("packets", Place::Both),
    ("ipvs-program", Place::Machine),
    ("fleet", Place::Host),
    ("drift", Place::Machine),
    ("cold-start", Place::Machine),
    ("policy", Place::Machine),
    ("end-to-end", Place::Machine),
];

/// Length of the benches' runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Full,
    Quick,
    Smoke,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    Check,
    Update,
}

#[derive(Debug)]
struct Options {
    names: Vec<String>,
    /// 6.1 unless told.
    kernel: Option<Series>,
    rounds: Option<u32>,
    mode: Mode,
    counts: Option<Counts>,
    turns: Turns,
    /// Options of `end-to-end` about a real cluster, with their values.
    live: Vec<(String, String)>,
}

/// Options of a run on a real cluster.
const LIVE: [&str; 7] = ["--kubeconfig", "--kube-proxy", "--etcd", "--mode", "--services", "--endpoints", "--changes"];

/// Options that are part of a result's name.
const NAMED: [&str; 3] = ["--mode", "--services", "--endpoints"];

/// Number of runs of `--by-turns` that take every bench once.
const TURNS: u64 = 3;

impl Options {
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(match self.mode {
            Mode::Full => 7,
            Mode::Quick => 3,
            Mode::Smoke => 1,
        })
    }

    fn kernel(&self) -> Series {
        self.kernel.unwrap_or(Series::V6_1)
    }

    /// The command line that repeats this bench.
    fn command(&self, name: &str, place: Place) -> String {
        let kernel = if place == Place::Host { String::new() } else { format!(" --kernel {}", self.kernel()) };
        let quick = if self.mode == Mode::Quick { " --quick" } else { "" };
        let mut live = String::new();
        for (option, value) in &self.live {
            // Where somebody keeps files says nothing.
            let value = Path::new(value).file_name().and_then(|name| name.to_str()).unwrap_or_default();
            live.extend([" ", option, " ", value]);
        }
        format!("cargo xtask bench {name}{kernel}{quick}{live} --rounds {}", self.rounds())
    }

    /// End of the name of a real cluster's result, behind the bench's name.
    fn live_name(&self) -> String {
        let mut name = if self.live.is_empty() { String::new() } else { "-live".to_owned() };
        for (_, value) in self.live.iter().filter(|(option, _)| NAMED.contains(&option.as_str())) {
            name.extend(["-", value]);
        }
        name
    }

    /// Command line of the benches' program.
    fn arguments(&self, program: &Path, name: &str, place: Place, results: &Path) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![program.into(), name.into()];
        arguments.extend(["--rounds".into(), self.rounds().to_string().into()]);
        arguments.extend(["--command".into(), self.command(name, place).into()]);
        arguments.extend(self.live.iter().flat_map(|(option, value)| [option.into(), value.into()]));
        match self.mode {
            Mode::Full => {}
            Mode::Quick => arguments.push("--quick".into()),
            Mode::Smoke => arguments.push("--smoke".into()),
        }
        if self.mode != Mode::Smoke {
            let stem = match place {
                Place::Host if !self.live.is_empty() => format!("{name}{}", self.live_name()),
                Place::Host => format!("{name}-host"),
                _ => format!("{name}{}-linux-{}", self.live_name(), self.kernel()),
            };
            // Results of fewer sizes do not replace full ones.
            let folder = if self.mode == Mode::Quick { results.join("quick") } else { results.to_owned() };
            arguments.extend(["--out".into(), folder.join(stem).into()]);
        }
        arguments
    }
}

/// Runs a command of this machine to its end; whether it succeeded.
fn run_here(line: &[OsString]) -> Result<bool> {
    let (command, rest) = line.split_first().ok_or_else(|| Error::new("no command"))?;
    let status = Command::new(command).args(rest).status().context(|| format!("cannot start {}", command.display()))?;
    Ok(status.success())
}

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    if let Some((first, rest)) = arguments.split_first()
        && first == "table"
    {
        return table::main(rest);
    }
    let options = parse(arguments)?;
    let root = super::test::repository()?;
    if let Some(counts) = options.counts {
        tools::ensure(tools::COUNTERS)?;
        let program = cargo::build_release(&root, "benches", "benches")?;
        let mut line: Vec<OsString> = vec![program.into(), "counts".into()];
        line.push(root.join("benches/counts.json").into());
        line.extend((counts == Counts::Update).then(|| "--update".into()));
        return Ok(ExitCode::from(u8::from(!run_here(&line)?)));
    }
    tools::ensure(tools::ORACLES)?;
    tools::ensure(tools::MACHINE)?;
    tools::ensure(tools::COUNTERS)?;
    let program = build(&root, options.mode)?;
    let results = root.join("benches/results");
    let quick = results.join("quick");
    std::fs::create_dir_all(&quick).context(|| format!("cannot make {}", quick.display()))?;
    let wanted = |name: &str| options.names.is_empty() || options.names.iter().any(|wanted| wanted == name);
    let mut failed = Vec::new();
    let mut lines = Vec::new();
    for (number, (name, place)) in (0..).zip(BENCHES).filter(|(_, (name, _))| wanted(name)) {
        if !options.turns.takes(number, TURNS) {
            continue;
        }
        let place = match options.kernel {
            None if !options.live.is_empty() => Place::Host,
            _ => place,
        };
        if place != Place::Machine {
            if !run_here(&options.arguments(&program, name, Place::Host, &results))? {
                failed.push(name);
            }
            println!();
        }
        if place != Place::Host {
            lines.push((name, options.arguments(&program, name, Place::Machine, &results)));
        }
    }
    if options.mode == Mode::Full {
        for (name, line) in lines {
            if !run_in_machine(&options, &results, name, &line)? {
                failed.push(name);
            }
        }
    } else if !lines.is_empty() {
        // All in one machine, since booting takes a good part of the time of small numbers.
        let mut script = b"code=0\n".to_vec();
        for (name, line) in &lines {
            for word in line {
                script.extend(quote(word));
                script.push(b' ');
            }
            script.extend(format!("|| {{ code=1; echo 'failed: {name}' >&2; }}\necho\n").into_bytes());
        }
        script.extend(b"exit $code\n");
        let line: Vec<OsString> = vec!["sh".into(), "-c".into(), OsString::from_vec(script)];
        if !run_in_machine(&options, &results, "small benches", &line)? {
            failed.push("in the virtual machine");
        }
    }
    if !failed.is_empty() {
        eprintln!("xtask: failed: {}", failed.join(", "));
    }
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

/// Runs a command in a machine that has room for a bench; whether it succeeded.
fn run_in_machine(options: &Options, results: &Path, name: &str, line: &[OsString]) -> Result<bool> {
    let mut vm = Vm::new(Kernel::get(options.kernel())?)?;
    vm.timeout = Duration::from_secs(3600);
    // The API server of `end-to-end` holds 50,000 Services.
    vm.memory = if name == "end-to-end" { 6144 } else { 3072 };
    vm.network = !options.live.is_empty();
    vm.shares.push(results.to_owned());
    let _load = HostLoad::tell(&mut vm)?;
    let outcome = vm.run(line)?;
    if let Some(trouble) = outcome.trouble() {
        eprintln!("{}\nxtask: {name}: {trouble}", outcome.console.trim_end());
    }
    println!();
    Ok(outcome.exit == Some(0))
}

/// The C programs that the benches are measured against.
const C_PROGRAMS: [&str; 3] = ["ipvs_batch", "ipvs_dump", "nft_fill"];

/// Builds the benches, `proxier-demo` and the C programs they are measured against; gives the benches' path.
fn build(root: &Path, mode: Mode) -> Result<PathBuf> {
    let program = if mode == Mode::Smoke {
        // As `cargo xtask test` builds it: after the tests, nothing is left to build.
        let built = super::test::binaries::build(root, &[])?;
        built.program("proxier-demo")?;
        built.program("benches")?
    } else {
        let program = cargo::build_release(root, "benches", "benches")?;
        // In a run of cargo's of its own: with the benches it would get the features that only they want.
        cargo::build_release(root, "examples", "proxier-demo")?;
        program
    };
    for name in C_PROGRAMS {
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-Wall", "-o"]).arg(program.with_file_name(name)).arg(root.join(format!("benches/c/{name}.c")));
        tools::run_aloud(&mut cc)?;
    }
    Ok(program)
}

fn parse(arguments: &[OsString]) -> Result<Options> {
    let mut options = Options {
        names: Vec::new(),
        kernel: None,
        rounds: None,
        mode: Mode::Full,
        counts: None,
        turns: Turns::ALL,
        live: Vec::new(),
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || -> Result<String> {
            let value = rest.next().and_then(|value| value.to_str());
            value.map(str::to_owned).ok_or_else(|| Error::usage(format!("{}: a value is missing", argument.display())))
        };
        match argument.to_str() {
            Some("--kernel") => options.kernel = Some(Series::parse(&value()?)?),
            Some("--rounds") => {
                let rounds = value()?.parse().ok().filter(|rounds| *rounds > 0);
                options.rounds = Some(rounds.ok_or_else(|| Error::usage("--rounds takes a positive number"))?);
            }
            Some("--quick") => options.mode = Mode::Quick,
            Some("--smoke") => options.mode = Mode::Smoke,
            Some("--by-turns") => options.turns = Turns::of(&seed()),
            Some("--check") => options.counts = Some(Counts::Check),
            Some("--update") => options.counts = Some(Counts::Update),
            Some(option) if LIVE.contains(&option) => options.live.push((option.to_owned(), value()?)),
            Some(name) if BENCHES.iter().any(|(known, _)| *known == name) => options.names.push(name.to_owned()),
            _ => return Err(Error::usage(format!("bench: unknown bench or option {}", argument.display()))),
        }
    }
    if options.counts.is_some() && arguments.len() > 1 {
        return Err(Error::usage("bench: --check and --update stand alone"));
    }
    if !options.live.is_empty() && options.names != ["end-to-end"] {
        return Err(Error::usage("bench: only end-to-end runs on a real cluster"));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use super::{Counts, Mode, Place, parse};

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn benches_are_chosen_by_name() {
        let options = parse(&words("ipset-fill --kernel 6.12 --rounds 9")).unwrap();
        assert_eq!((options.rounds(), options.mode), (9, Mode::Full));
        assert_eq!(options.names, ["ipset-fill"]);
        assert_eq!(parse(&words("--check")).unwrap().counts, Some(Counts::Check));
        for line in [
            "nonsense",
            "--rounds 0",
            "--rounds",
            "--kernel 2.6",
            "--check drift",
            "--check --update",
            "drift --services 5",
        ] {
            assert!(parse(&words(line)).is_err(), "{line}");
        }
    }

    #[test]
    fn a_bench_is_told_its_command_and_where_results_go() {
        let results = Path::new("/r");
        let line = |text: &str, place| {
            let arguments = parse(&words(text)).unwrap().arguments(Path::new("p"), "drift", place, results);
            arguments.iter().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            line("--quick --kernel 6.12", Place::Machine),
            [
                "p",
                "drift",
                "--rounds",
                "3",
                "--command",
                "cargo xtask bench drift --kernel 6.12 --quick --rounds 3",
                "--quick",
                "--out",
                "/r/quick/drift-linux-6.12"
            ]
        );
        let live = line("end-to-end --kubeconfig /k/c --mode ipvs --services 5", Place::Host);
        assert_eq!(live[5], "cargo xtask bench drift --kubeconfig c --mode ipvs --services 5 --rounds 7");
        assert_eq!(
            live[6..],
            ["--kubeconfig", "/k/c", "--mode", "ipvs", "--services", "5", "--out", "/r/drift-live-ipvs-5"]
        );
        assert!(!line("--smoke", Place::Host).contains(&"--out".to_owned()), "small numbers are not kept");
    }
}

//! `cargo xtask bench`: side-by-side measurements on real kernels.

mod host_load;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::builder::PossibleValuesParser;
use fs_err as fs;

pub(super) use self::host_load::HostLoad;
use crate::kernel::{Kernel, Series};
use crate::turns::{Turns, seed};
use crate::vm::{Vm, quote_all};
use crate::{cargo, tools};

/// Measure side by side, on real kernels
///
/// Builds the benches and runs them, each comparison interleaved; docs/figures.md says what each measures. Results are kept in
/// benches/results, as JSON, Markdown and SVG; those of --quick in benches/results/quick.
///
/// With --kubeconfig, `end-to-end` runs on a real cluster (docs/figures.md): on this machine, or with --kernel in a virtual one, where this
/// one is 10.0.2.2.
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Benches to run; all of them unless told. `table` puts the figures of benches/results into the READMEs' tables; with --check,
    /// says whether they are there
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(BENCHES.map(|(name, _)| name).into_iter().chain(["table"])))]
    names: Vec<String>,
    /// 5.10, 6.1, 6.12 or 7.x; 6.1 unless told
    #[arg(long)]
    kernel: Option<Series>,
    /// How often each side runs, 7 unless told
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// 3 rounds, fewer sizes: less than five minutes on a quiet machine
    #[arg(long)]
    quick: bool,
    /// Small numbers, 1 round, not optimised: shows only that the benches work, and keeps no results
    #[arg(long, conflicts_with = "quick")]
    smoke: bool,
    /// One bench in three, others for each PROPTEST_RNG_SEED in the environment
    #[arg(long)]
    by_turns: bool,
    /// Counts instructions and allocations of the pure parts, and fails when one is more than 5 % above benches/counts.json; takes
    /// less than a minute once built
    #[arg(long, conflicts_with = "update")]
    check: bool,
    /// Writes that file anew
    #[arg(long)]
    update: bool,
    #[command(flatten)]
    live: Live,
}

/// Options of the benches' program for a real cluster.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "A real cluster (end-to-end)")]
struct Live {
    /// The API server and credentials
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,
    /// A kube-proxy that takes turns with proxier-demo
    #[arg(long, value_name = "PROGRAM", requires = "kubeconfig")]
    kube_proxy: Option<String>,
    /// Writes Services into this etcd of the server, past the server
    #[arg(long, value_name = "URL", requires = "kubeconfig")]
    etcd: Option<String>,
    /// nftables, iptables, ipvs or userspace (may be repeated)
    #[arg(long, requires = "kubeconfig")]
    mode: Vec<String>,
    /// Number of Services
    #[arg(long, value_name = "N", requires = "kubeconfig")]
    services: Option<String>,
    /// Endpoints of each
    #[arg(long, value_name = "N", requires = "kubeconfig")]
    endpoints: Option<String>,
    /// Single changes that are timed
    #[arg(long, value_name = "N", requires = "kubeconfig")]
    changes: Option<String>,
    /// Of proxier-demo alone: --argument=--ipvs-binding=routes (may be repeated)
    #[arg(long, requires = "kubeconfig", allow_hyphen_values = true)]
    argument: Vec<String>,
}

impl Live {
    /// The arguments for the benches' program.
    fn words(&self) -> Vec<String> {
        let Live { kubeconfig, kube_proxy, etcd, mode, services, endpoints, changes, argument } = self;
        let once = [("--kubeconfig", kubeconfig), ("--kube-proxy", kube_proxy), ("--etcd", etcd)];
        let sizes = [("--services", services), ("--endpoints", endpoints), ("--changes", changes)];
        let given = |(name, value): (_, &Option<String>)| Some((name, value.clone()?));
        let modes = mode.iter().map(|mode| ("--mode", mode.clone()));
        let words = once.into_iter().filter_map(given).chain(modes).chain(sizes.into_iter().filter_map(given));
        let arguments = argument.iter().map(|argument| format!("--argument={argument}"));
        words.flat_map(|(name, value)| [name.to_owned(), value]).chain(arguments).collect()
    }
}

/// Kernel that a bench runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Host,
    Machine,
    Both,
}

const BENCHES: [(&str, Place); 13] = [
    ("reconcile", Place::Host),
    ("memory", Place::Host),
    ("nftables-services", Place::Host),
    ("iptables-services", Place::Host),
    ("userspace", Place::Host),
    ("modes", Place::Machine),
    ("packets", Place::Both),
    ("ipvs-program", Place::Machine),
    ("fleet", Place::Host),
    ("drift", Place::Machine),
    ("cold-start", Place::Machine),
    ("policy", Place::Machine),
    ("end-to-end", Place::Machine),
];

/// Options of the benches' program that are part of a result's name.
const NAMED: [&str; 3] = ["--mode", "--services", "--endpoints"];

/// Number of `--by-turns` runs that cover every bench once.
const TURNS: u64 = 3;

/// The C programs with which the benches compare.
const C_PROGRAMS: [&str; 2] = ["ipvs_batch", "ipvs_dump"];

impl Options {
    fn kernel(&self) -> Result<Series> {
        self.kernel.map_or_else(|| "6.1".parse().map_err(anyhow::Error::msg), Ok)
    }

    /// Command line of the benches' program.
    fn arguments(&self, program: &Path, name: &str, place: Place) -> Result<Vec<String>> {
        let default = if self.smoke {
            1
        } else if self.quick {
            3
        } else {
            7
        };
        let (kernel, rounds) = (self.kernel()?, self.rounds.unwrap_or(default).to_string());
        // Paths of files are irrelevant to a result.
        let words = self.live.words();
        let live: Vec<_> = words.iter().map(|word| word.rsplit('/').next().unwrap_or(word)).collect();
        let place_typed = if place == Place::Machine { format!(" --kernel {kernel}") } else { String::new() };
        let quick = if self.quick { " --quick" } else { "" };
        let live_typed = if live.is_empty() { String::new() } else { format!(" {}", live.join(" ")) };
        let typed = format!("cargo xtask bench {name}{place_typed}{quick}{live_typed} --rounds {rounds}");
        let mut line = vec![program.display().to_string(), name.to_owned()];
        line.extend(["--rounds".to_owned(), rounds, "--command".to_owned(), typed]);
        line.extend(
            [("--quick", self.quick), ("--smoke", self.smoke)]
                .into_iter()
                .filter(|(_, is)| *is)
                .map(|(name, _)| name.to_owned()),
        );
        if !self.smoke {
            let mut stem = name.to_owned();
            if !live.is_empty() {
                stem += "-live";
            }
            let named = live.windows(2).filter_map(|pair| Some((*pair.first()?, *pair.last()?)));
            stem.extend(named.filter(|(option, _)| NAMED.contains(option)).flat_map(|(_, value)| ["-", value]));
            match place {
                Place::Machine => stem.extend(["-linux-", &kernel.to_string()]),
                _ if live.is_empty() => stem += "-host",
                _ => {}
            }
            // Results with fewer sizes do not replace full ones.
            let folder = if self.quick { results().join("quick") } else { results() };
            line.extend(["--out".to_owned(), folder.join(stem).display().to_string()]);
        }
        line.extend(self.live.words());
        Ok(line)
    }

    /// Builds the benches, `proxier-demo` and the C programs; returns the path of the benches.
    fn build(&self) -> Result<PathBuf> {
        let program = if self.smoke {
            // The same build as `cargo xtask test`, so after the tests nothing is left to build.
            cargo::program(&cargo::build_all(&["--workspace".to_owned()])?, "benches")?
        } else {
            // A separate run of cargo: together with the benches it would get features that only they need.
            cargo::build("proxier-demo", "proxier-demo", "release")?;
            cargo::build("benches", "benches", "release")?
        };
        for name in C_PROGRAMS {
            let source = tools::repository().join(format!("benches/c/{name}.c"));
            let mut cc = Command::new("cc");
            tools::run_aloud(cc.args(["-O2", "-Wall", "-o"]).arg(program.with_file_name(name)).arg(source))?;
        }
        Ok(program)
    }
}

fn results() -> PathBuf {
    tools::repository().join("benches/results")
}

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    if options.names == ["table"] {
        return table::main(options.check);
    }
    if options.check || options.update {
        tools::ensure(tools::COUNTERS)?;
        let mut counts = Command::new(cargo::build("benches", "benches", "release")?);
        counts.arg("counts").arg(tools::repository().join("benches/counts.json"));
        counts.args(options.update.then_some("--update"));
        return Ok(ExitCode::from(u8::from(!tools::succeeds(&mut counts)?)));
    }
    let is_live = options.live.kubeconfig.is_some();
    ensure!(!is_live || options.names == ["end-to-end"], "only end-to-end runs on a real cluster");
    for tools in [tools::ORACLES, tools::MACHINE, tools::COUNTERS] {
        tools::ensure(tools)?;
    }
    let program = options.build()?;
    fs::create_dir_all(results().join("quick"))?;
    let turns = if options.by_turns { Turns::of(&seed()) } else { Turns(None) };
    let mut failed = Vec::new();
    let mut lines = Vec::new();
    let chosen = (0..).zip(BENCHES).filter(|(number, (name, _))| {
        turns.takes(*number, TURNS) && (options.names.is_empty() || options.names.iter().any(|wanted| wanted == name))
    });
    for (_, (name, place)) in chosen {
        let place = if !is_live || options.kernel.is_some() { place } else { Place::Host };
        if place != Place::Machine {
            let line = options.arguments(&program, name, Place::Host)?;
            if !tools::succeeds(Command::new(&program).args(line.iter().skip(1)))? {
                failed.push(name);
            }
            println!();
        }
        if place != Place::Host {
            lines.push((name, options.arguments(&program, name, Place::Machine)?));
        }
    }
    // Small numbers all run in one machine, since booting takes much of their time.
    let mut small = "code=0\n".to_owned();
    for (name, line) in lines {
        if options.quick || options.smoke {
            small.extend([&quote_all(&line), " || { code=1; echo 'failed: ", name, "' >&2; }\necho\n"]);
        } else if !run_in_machine(options, name, &line)? {
            failed.push(name);
        }
    }
    let line = ["sh".to_owned(), "-c".to_owned(), small.clone() + "exit $code\n"];
    if small.len() > "code=0\n".len() && !run_in_machine(options, "small benches", &line)? {
        failed.push("in the virtual machine");
    }
    if !failed.is_empty() {
        eprintln!("xtask: failed: {}", failed.join(", "));
    }
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

/// Runs a command in a machine with enough memory for a bench; returns whether it succeeded.
fn run_in_machine(options: &Options, name: &str, line: &[String]) -> Result<bool> {
    let mut vm = Vm::new(Kernel::get(options.kernel()?)?)?;
    vm.timeout = Duration::from_secs(3600);
    // The API server of `end-to-end` holds 50,000 Services.
    vm.memory = if name == "end-to-end" { 6144 } else { 3072 };
    vm.network = options.live.kubeconfig.is_some().then(|| "user".to_owned());
    vm.shares.push(results());
    let _load = HostLoad::tell(&mut vm)?;
    let outcome = vm.run(line)?;
    if let Some(trouble) = outcome.trouble() {
        eprintln!("{}\nxtask: {name}: {trouble}", outcome.console.trim_end());
    }
    println!();
    Ok(outcome.exit == Some(0))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::{Options, Place};

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn a_bench_is_told_its_command_and_where_results_go() {
        let parse = |text: &str| Line::try_parse_from(format!("bench {text}").split(' ')).map(|line| line.options);
        for line in ["nonsense", "--rounds 0", "--rounds", "--kernel 2.6", "--check --update", "drift --services 5"] {
            assert!(parse(line).is_err(), "{line}");
        }
        let line =
            |text: &str, place| parse(text).unwrap().arguments(Path::new("p"), "drift", place).unwrap().join(" ");
        let quick = line("drift --quick --kernel 6.12", Place::Machine);
        let start =
            "p drift --rounds 3 --command cargo xtask bench drift --kernel 6.12 --quick --rounds 3 --quick --out /";
        assert!(quick.starts_with(start) && quick.ends_with("/benches/results/quick/drift-linux-6.12"), "{quick}");
        let live = line("end-to-end --kubeconfig /k/c --mode ipvs --services 5", Place::Host);
        let start = "p drift --rounds 7 --command cargo xtask bench drift --kubeconfig c --mode ipvs --services 5 --rounds 7 --out /";
        assert!(live.starts_with(start), "{live}");
        assert!(live.ends_with("/drift-live-ipvs-5 --kubeconfig /k/c --mode ipvs --services 5"), "{live}");
        assert!(!line("--smoke", Place::Host).contains("--out"), "small numbers are not kept");
    }
}

//! `cargo xtask soak`: runs the proxy under load, changes and faults, on a real kernel, and gives a verdict.

use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use clap::value_parser;

use super::bench::HostLoad;
use crate::kernel::{Kernel, Series};
use crate::vm::Vm;
use crate::{cargo, tools};

/// Load, changes and faults for a long time, on a real kernel
///
/// Boots a Debian kernel in QEMU. There proxier-demo serves 2,000 Services that change 50 times a second, while clients
/// connect all the time. Faults of every kind happen: of the API server, the process, the host, and other programs that
/// edit the kernel's tables. With --here, the same runs on this machine's own kernel, in new network namespaces, which
/// needs root.
/// Passed if every failed connection is explained by a fault or a change of mode, and if memory and open files did not
/// grow. At the end the kernel must hold what a model expects and what belongs to other programs, and nothing of other
/// modes.
///
/// The result is kept in benches/results, as soak-MODE-linux-K (soak-linux-K for ipvs) or soak-MODE-host, .md and
/// .json. If it is not passed, .log has the faults and the end of the proxy's log.
///
/// Exit codes: 0 passed, 1 not passed, 2 bad usage, 124 no end, 125 the machine could not start. With 3 the run does not
/// count: it was not passed, but this host's hypervisor kept more than 15 % of the processors' time.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How long; less than 2 is too short for all kinds of faults
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Repeats the changes and faults of an earlier run; from the clock unless told
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, default_value = "ipvs", value_parser = ["ipvs", "nftables", "iptables", "userspace"])]
    mode: String,
    /// Seconds before the proxy is started again in another mode, for half as long; the other modes take turns
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    change_mode_every: Option<u32>,
    /// On this machine's kernel instead of one in QEMU
    #[arg(long, conflicts_with = "kernel")]
    here: bool,
    /// 5.10, 6.1, 6.12 or 7.x
    #[arg(long, default_value = "6.1")]
    kernel: Series,
    /// 2,000 unless told
    #[arg(long, value_parser = value_parser!(u32).range(1..))]
    services: Option<u32>,
    /// A killed proxy stays dead, or the model is wrong: shows that it can fail
    #[arg(long, value_parser = ["no-restart", "wrong-truth"])]
    spoil: Option<String>,
    /// Keeps no result
    #[arg(long)]
    no_result: bool,
}

/// Time before and after the soak: to program everything, and to wait until the kernel settles.
const AROUND: Duration = Duration::from_secs(20 * 60);
/// The API server keeps every object several times, as text and as values.
const MEMORY: u32 = 3072;

/// Allocator settings of the soak. The proxy, which it starts, does not get them. Each time a program with many threads
/// frees memory, all processors are notified, which is slow in QEMU without KVM: it took a third of the machine's time.
const ALLOCATOR: [(&str, &str); 3] =
    [("MALLOC_MMAP_THRESHOLD_", "1073741824"), ("MALLOC_TRIM_THRESHOLD_", "1073741824"), ("MALLOC_ARENA_MAX", "2")];

/// With more stolen time, a failed soak is inconclusive.
const STOLEN_PERCENT: u64 = 15;
/// The exit code for an inconclusive soak.
const INCONCLUSIVE: u8 = 3;

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    ensure!((0.1..=10_000.0).contains(&options.minutes), "soak: --minutes takes 0.1 to 10000");
    ensure!(!options.here || tools::is_root(), "soak --here needs root: it makes network namespaces (try sudo)");
    tools::ensure(tools::ORACLES)?;
    if !options.here {
        tools::ensure(tools::MACHINE)?;
    }
    // The same build as `cargo xtask test`, so after the tests nothing is left to build.
    let built = cargo::build_all(&["--workspace".to_owned()])?;
    let (program, proxy) = (cargo::program(&built, "benches")?, cargo::program(&built, "proxier-demo")?);
    let mut line = vec![program.display().to_string(), "soak".to_owned()];
    line.extend(["--proxy".to_owned(), proxy.display().to_string()]);
    line.extend(["--commit".to_owned(), tools::commit(", with changes").unwrap_or_else(|| "unknown".to_owned())]);
    line.extend(options.arguments());
    let before = processors();
    let is_passed = if options.here {
        // The soak creates network namespaces. What they share is in `/run` (the locks of iptables and of the proxy),
        // so it gets its own.
        let script = "mount -t tmpfs -o mode=755 tmpfs /run && exec \"$@\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "--", "sh", "-c", script, "soak"]).args(line);
        tools::succeeds(&mut unshare)?
    } else {
        let mut vm = Vm::new(Kernel::get(options.kernel)?)?;
        vm.memory = MEMORY;
        vm.timeout = AROUND + Duration::from_secs_f64(options.minutes * 60.0 * 2.0);
        vm.shares.push(tools::repository().join("benches/results"));
        vm.env.extend(ALLOCATOR.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let _load = HostLoad::tell(&mut vm)?;
        let outcome = vm.run(&line)?;
        if let Some(code) = outcome.failed() {
            return Ok(code);
        }
        outcome.exit == Some(0)
    };
    let [all, stolen] = std::array::from_fn(|at| processors()[at].saturating_sub(before[at]));
    let stolen = stolen.saturating_mul(100) / all.max(1);
    if !is_passed && stolen > STOLEN_PERCENT {
        eprintln!("xtask: this host did not have {stolen} % of its processors' time: repeat it on one that does");
        return Ok(ExitCode::from(INCONCLUSIVE));
    }
    Ok(ExitCode::from(u8::from(!is_passed)))
}

/// Time of this host's processors since boot, in ticks: total, and stolen by the hypervisor. From the first line of
/// `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq, steal, and two that are included in the
/// first ones. Zero if it cannot be read.
fn processors() -> [u64; 2] {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let words = text.lines().next().unwrap_or_default().split_whitespace();
    let times: Vec<u64> = words.skip(1).take(8).map_while(|word| word.parse().ok()).collect();
    [times.iter().sum(), times.get(7).copied().unwrap_or_default()]
}

impl Options {
    /// Options of the benches' program that this command shares, and the command line that repeats this run.
    fn arguments(&self) -> Vec<String> {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| u64::from(time.subsec_nanos()));
        let numbers = [("change-mode-every", self.change_mode_every), ("services", self.services)];
        let mut all = vec![("minutes", self.minutes.to_string())];
        all.extend([("seed", self.seed.unwrap_or_else(clock).to_string()), ("mode", self.mode.clone())]);
        all.extend(numbers.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?.to_string()))));
        all.extend(self.spoil.clone().map(|spoil| ("spoil", spoil)));
        let mut line: Vec<String> = all.into_iter().flat_map(|(name, value)| [format!("--{name}"), value]).collect();
        let kernel = format!("--kernel {}", self.kernel);
        let place = if self.here { "--here" } else { &kernel };
        let typed = format!("cargo xtask soak {} {place}", line.join(" "));
        line.extend(["--command".to_owned(), typed]);
        if !self.no_result && self.spoil.is_none() {
            let mode = if self.mode == "ipvs" { String::new() } else { format!("-{}", self.mode) };
            let place = if self.here { "host".to_owned() } else { format!("linux-{}", self.kernel) };
            let stem = tools::repository().join(format!("benches/results/soak{mode}-{place}"));
            line.extend(["--out".to_owned(), stem.display().to_string()]);
        }
        line
    }
}

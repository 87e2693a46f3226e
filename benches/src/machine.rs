//! Describes the machine of a measurement.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::process::Command;
use std::str::FromStr;

use serde::Serialize;

use crate::Failure;

/// The machine, as far as it matters to figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    /// Runnable processes over the last minute, before and after. If there were more than processors, absolute times
    /// are those of a busy machine.
    pub(crate) load: [String; 2],
    /// Load and number of processors of the QEMU host, if this machine is emulated. Its load includes QEMU.
    pub(crate) host: Option<Host>,
    /// Versions of the programs compared, and of the compiler.
    pub(crate) versions: BTreeMap<&'static str, String>,
}

/// The host of a virtual machine, as far as known.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Host {
    pub(crate) cpus: usize,
    pub(crate) load: [String; 2],
}

/// Environment variable with a file in which the host updates its load and number of processors.
const HOST: &str = "BENCHES_HOST_LOAD";

/// The host's current load, and its number of processors.
fn host() -> Option<(String, usize)> {
    let text = std::fs::read_to_string(std::env::var_os(HOST)?).ok()?;
    let (load, cpus) = text.trim().split_once(' ')?;
    Some((load.to_owned(), cpus.parse().ok()?))
}

/// Whether this is a virtual machine started by xtask.
pub(crate) fn is_emulated() -> bool {
    std::env::var_os(HOST).is_some()
}

/// Time that processors have spent since the machine started, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    pub(crate) all: f64,
    pub(crate) busy: f64,
}

pub(crate) fn ticks() -> Option<Ticks> {
    let text = read("/proc/stat");
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, idle, wait, irq, softirq, ..] = ticks.as_slice() else { return None };
    let busy = user + nice + system + irq + softirq;
    // USER_HZ is 100 on every architecture that runs this.
    Some(Ticks { all: (busy + idle + wait) * 10.0, busy: busy * 10.0 })
}

/// The number after a name at the start of a line, as in files of `/proc`.
pub(crate) fn number<T: FromStr>(text: &str, name: &str) -> Result<T, Failure>
where
    Failure: From<T::Err>,
{
    let rest = text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("no {name}"))?;
    Ok(rest.split_whitespace().next().unwrap_or_default().parse()?)
}

/// KiB of kernel memory that tables and similar objects take.
pub(crate) fn unreclaimable() -> Option<f64> {
    let text = read("/proc/meminfo");
    ["SUnreclaim:", "VmallocUsed:"].into_iter().map(|kind| number::<f64>(&text, kind).ok()).sum()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn load() -> String {
    read("/proc/loadavg").split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// The first line of a program's version output.
pub(crate) fn version(program: impl AsRef<OsStr>) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(text.lines().next()?.trim().to_owned())
}

impl Machine {
    pub(crate) fn look() -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
        let programs = ["iptables", "ipset", "ipvsadm", "valgrind"];
        let mut versions: BTreeMap<_, _> =
            programs.into_iter().filter_map(|program| Some((program, version(program)?))).collect();
        versions.insert("rustc", option_env!("BENCHES_RUSTC").unwrap_or("unknown").to_owned());
        Machine {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: cpu.trim_start_matches(['\t', ' ', ':']).to_owned(),
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            load: [load(), load()],
            host: host().map(|(load, cpus)| Host { cpus, load: [load.clone(), load] }),
            versions,
        }
    }

    pub(crate) fn look_again(&mut self) {
        let [_, after] = &mut self.load;
        *after = load();
        if let (Some(host), Some((now, _))) = (&mut self.host, host()) {
            let [_, after] = &mut host.load;
            *after = now;
        }
    }

    /// Kernel, processors and load in a sentence.
    pub(crate) fn sentence(&self) -> String {
        let [before, after] = &self.load;
        let mut text = format!("Linux {}, {} x {}, load {before} to {after}", self.kernel, self.cpus, self.cpu);
        if let Some(Host { cpus, load: [before, after] }) = &self.host {
            let _infallible = write!(text, "; on a host with {cpus} processors, its load {before} to {after}");
        }
        text + "."
    }
}

/// KiB of this process's memory that are resident.
pub(crate) fn resident_kib() -> Result<f64, Failure> {
    number(&read("/proc/self/status"), "VmRSS:")
}

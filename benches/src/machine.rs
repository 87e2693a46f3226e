//! What a measurement was made on.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use serde::Serialize;

/// The machine, as far as it matters to figures.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    /// Runnable processes over the last minute, before and after: beyond the number of processors, absolute times are
    /// those of a busy machine.
    pub(crate) load: [String; 2],
    /// The same of the machine that emulates this one, and how many processors it has, where this one is emulated. Its load
    /// contains the emulator.
    pub(crate) host: Option<Host>,
    /// Versions of the programs compared, and of the compiler.
    pub(crate) versions: BTreeMap<&'static str, String>,
}

/// What a virtual machine runs on, as far as it tells.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Host {
    pub(crate) cpus: usize,
    pub(crate) load: [String; 2],
}

/// The name of a variable with a file that the host writes anew all the time: its load, and its number of processors.
const HOST: &str = "BENCHES_HOST_LOAD";

/// The host's load now, and its number of processors.
fn host() -> Option<(String, usize)> {
    let text = std::fs::read_to_string(std::env::var_os(HOST)?).ok()?;
    let (load, cpus) = text.trim().split_once(' ')?;
    Some((load.to_owned(), cpus.parse().ok()?))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn load() -> String {
    read("/proc/loadavg").split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// The first line that a program prints of itself.
fn version(program: &str) -> Option<String> {
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

//! `proxier-demo` in its own process: its output and its resources.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::objects::NODE;
use crate::Failure;
use crate::machine::number;
use crate::program::{Killed, get};

/// Time limit of any wait.
const PATIENCE: Duration = Duration::from_secs(600);
/// Address of the proxy's metrics by default.
const METRICS: &str = "127.0.0.1:10249";
/// Interval in which metrics are read while waiting.
const EVERY: Duration = Duration::from_millis(10);

/// A proxy that runs. It is killed when it is dropped.
pub(super) struct Proxy {
    /// The program's file name.
    name: String,
    child: Killed,
    pub(super) started: Instant,
    /// Lines of its standard error, with the time of each.
    lines: Receiver<(Instant, String)>,
    /// Lines read so far.
    pub(super) said: Vec<String>,
}

/// `proxier-demo`, which is next to this program.
pub(super) fn program() -> Result<PathBuf, Failure> {
    let path = std::env::current_exe()?.with_file_name("proxier-demo");
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("{} is missing: build it with --release --package proxier-demo", path.display()).into())
    }
}

impl Proxy {
    /// With rules by `iptables` or by `nftables`.
    pub(super) fn start(kubeconfig: &Path, rules: &str) -> Result<Self, Failure> {
        let mut command = Command::new(program()?);
        command.args(["run", "--proxy-mode", "ipvs", "--ipvs-rules", rules, "--hostname-override", NODE]);
        command.arg("--kubeconfig").arg(kubeconfig);
        Proxy::spawn(command)
    }

    /// Any proxy.
    pub(super) fn spawn(mut command: Command) -> Result<Self, Failure> {
        let name = Path::new(command.get_program()).file_name().unwrap_or_default().display().to_string();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        let stderr = BufReader::new(child.stderr.take().ok_or("no standard error")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        Ok(Proxy { name, child: Killed(child), started, lines, said: Vec::new() })
    }

    /// Number of the process.
    pub(super) fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Waits until it logs these words; returns when it did, and the line.
    pub(super) fn wait_for(&mut self, words: &str) -> Result<(Instant, String), Failure> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok((at, line)) => {
                    self.said.push(line.clone());
                    if line.contains(words) {
                        return Ok((at, line));
                    }
                }
                Err(_) => return Err(format!("{} never said {words:?}, but {:#?}", self.name, self.said).into()),
            }
        }
    }

    /// Lines since the last call.
    pub(super) fn heard(&mut self) -> Vec<String> {
        let lines: Vec<String> = self.lines.try_iter().map(|(_, line)| line).collect();
        self.said.extend(lines.iter().cloned());
        lines
    }

    /// Waits until its metrics show that the first full pass has ended; returns when that was seen.
    pub(super) fn wait_for_full_pass(&mut self) -> Result<Instant, Failure> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if full_passes().is_some_and(|count| count > 0) {
                return Ok(Instant::now());
            }
            self.still_runs()?;
            std::thread::sleep(EVERY);
        }
        Err("proxier-demo made no full pass".into())
    }

    /// Fails if it has ended.
    pub(super) fn still_runs(&mut self) -> Result<(), Failure> {
        match self.child.0.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let heard = self.heard();
                Err(format!("{} ended with {status}: {heard:#?}", self.name).into())
            }
        }
    }

    /// Waits until it has done nothing for 300 ms.
    pub(super) fn wait_until_idle(&self) -> Result<(), Failure> {
        let mut before = self.processor_ms()?;
        loop {
            std::thread::sleep(Duration::from_millis(300));
            let now = self.processor_ms()?;
            if now - before < 10.0 {
                return Ok(());
            }
            before = now;
        }
    }

    fn read(&self, file: &str) -> Result<String, Failure> {
        let path = format!("/proc/{}/{file}", self.id());
        std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}").into())
    }

    /// Processor time so far, of the process and the programs that it started.
    pub(super) fn processor_ms(&self) -> Result<f64, Failure> {
        let text = self.read("stat")?;
        let (_, fields) = text.rsplit_once(") ").ok_or("stat has no name")?;
        // utime, stime, cutime and cstime; USER_HZ is 100 on every architecture that runs this.
        let ticks = fields.split(' ').skip(11).take(4).map(str::parse::<f64>);
        Ok(ticks.sum::<Result<f64, _>>()? * 10.0)
    }

    /// KiB of its memory that are resident.
    pub(super) fn resident_kib(&self) -> Result<f64, Failure> {
        number(&self.read("status")?, "VmRSS:")
    }

    /// Ends it like a supervisor, and waits until it has ended.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        kill(Pid::from_raw(i32::try_from(self.child.0.id())?), Signal::SIGTERM)?;
        let status = self.child.0.wait()?;
        if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", self.name).into()) }
    }
}

fn full_passes() -> Option<u64> {
    let (_, text) = get(METRICS, "/metrics").ok()?;
    // kube-proxy's IPVS mode has no partial ones.
    ["full_proxy_rules", "proxy_rules"].into_iter().find_map(|name| {
        number(&text, &format!("kubeproxy_sync_{name}_duration_seconds_count{{ip_family=\"IPv4\"}} ")).ok()
    })
}

//! `proxier-demo` under a supervisor: started, stopped, killed, restarted, and continuously sampled.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::ground::{CLUSTER_CIDR, NODE_PORT_NETWORKS};
use super::mode::Mode;
use super::watchers::{Log, Sample};
use super::world::NODE;
use crate::Failure;
use crate::machine::number;
use crate::program::{Killed, get};

const METRICS: &str = "127.0.0.1:10249";
const HEALTH: &str = "127.0.0.1:10256";
/// Between two samples.
const EVERY: Duration = Duration::from_secs(2);
/// Number of the proxy's last log lines to keep.
const KEPT_LINES: usize = 4_000;

/// The flags of every command of the proxy here.
fn flags(mode: Mode) -> Vec<&'static str> {
    let mut flags = vec!["--proxy-mode", mode.name(), "--no-fallback", "--hostname-override", NODE];
    flags.extend(["--nodeport-addresses", NODE_PORT_NETWORKS, "--cluster-cidr", CLUSTER_CIDR]);
    // Frequent full passes, so that a short soak has many.
    match mode {
        Mode::Ipvs => {
            // The model has ipsets and rules of iptables.
            flags.extend(["--ipvs-rules", "iptables", "--ipvs-sync-period", "15s"]);
            // Shorter than the time until clients use a port again.
            flags.extend(["--ipvs-tcp-timeout", "120s", "--ipvs-tcpfin-timeout", "10s", "--ipvs-udp-timeout", "20s"]);
        }
        Mode::Iptables => flags.extend(["--iptables-sync-period", "15s"]),
        Mode::Nftables | Mode::Userspace => {}
    }
    flags
}

/// The proxy, and how it is started.
#[derive(Debug)]
pub(super) struct Supervisor {
    program: PathBuf,
    kubeconfig: PathBuf,
    mode: Mutex<Mode>,
    child: Mutex<Option<Killed>>,
    said: Arc<Mutex<Said>>,
    /// Counters of the process at the last sample, and of processes that have ended.
    counters: Mutex<(BTreeMap<String, f64>, BTreeMap<String, f64>)>,
}

/// The proxy's log.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) lines: VecDeque<String>,
    pub(super) levels: BTreeMap<String, u64>,
    /// Number of processes that have made their first pass.
    pub(super) served: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Supervisor {
    pub(super) fn new(program: &Path, kubeconfig: &Path, mode: Mode) -> Self {
        Supervisor {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            mode: Mutex::new(mode),
            child: Mutex::default(),
            said: Arc::default(),
            counters: Mutex::default(),
        }
    }

    /// The mode in which it runs, or will be started.
    pub(super) fn mode(&self) -> Mode {
        *lock(&self.mode)
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(verb).args(flags(self.mode()));
        command.env_remove("KUBERNETES_SERVICE_HOST").env_remove("KUBECONFIG").stdin(Stdio::null());
        // `cargo xtask soak` tunes this program's allocator; the proxy must use its default.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"MALLOC_")) {
            command.env_remove(name);
        }
        command
    }

    pub(super) fn start(&self) -> io::Result<()> {
        let mut command = self.command("run");
        command.arg("--kubeconfig").arg(&self.kubeconfig).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(stderr) = child.stderr.take() {
            let said = self.said.clone();
            std::thread::spawn(move || {
                let mut first = true;
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    let mut said = lock(&said);
                    if first && line.contains("full pass: ") {
                        first = false;
                        said.served += 1;
                    }
                    for level in [" ERROR ", " WARN "] {
                        if line.contains(level) {
                            *said.levels.entry(level.trim().to_lowercase()).or_default() += 1;
                        }
                    }
                    if line.contains(" ERROR ") {
                        eprintln!("proxier-demo: {line}");
                    }
                    said.lines.push_back(line);
                    if said.lines.len() > KEPT_LINES {
                        said.lines.pop_front();
                    }
                }
            });
        }
        *lock(&self.child) = Some(Killed(child));
        Ok(())
    }

    /// Its process id, while it runs.
    pub(super) fn process(&self) -> Option<u32> {
        lock(&self.child).as_ref().map(|child| child.0.id())
    }

    pub(super) fn signal(&self, signal: Signal) {
        let number = self.process().and_then(|number| i32::try_from(number).ok());
        // The sampler notices a process that has ended.
        if let Some(number) = number {
            kill(Pid::from_raw(number), signal).unwrap_or_default();
        }
    }

    /// Kills it if it still runs; it has ended when this returns.
    pub(super) fn kill(&self) {
        drop(lock(&self.child).take());
        let mut counters = lock(&self.counters);
        let ended = std::mem::take(&mut counters.0);
        for (name, value) in ended {
            *counters.1.entry(name).or_default() += value;
        }
    }

    /// Waits until more than `before` processes have made their first pass; returns whether that was in time.
    pub(super) fn wait_until_served(&self, before: u64, patience: Duration) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < patience {
            if self.said().served > before {
                return true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        false
    }

    /// Ends it, and starts it in another mode.
    pub(super) fn change_to(&self, mode: Mode) -> Result<(), Failure> {
        let ended = self.stop();
        *lock(&self.mode) = mode;
        self.start()?;
        ended
    }

    /// Ends it with SIGTERM; fails if it does not end properly.
    pub(super) fn stop(&self) -> Result<(), Failure> {
        self.look_at_metrics();
        // Taken first, so that the sampler does not see that it has ended.
        let Some(mut child) = lock(&self.child).take() else { return Err("proxier-demo was not running".into()) };
        kill(Pid::from_raw(child.0.id().try_into()?), Signal::SIGTERM)?;
        let status = child.0.wait()?;
        self.kill();
        if status.success() { Ok(()) } else { Err(format!("proxier-demo ended with {status} after SIGTERM").into()) }
    }

    /// Its last log lines, and the number of lines of each level.
    pub(super) fn said(&self) -> MutexGuard<'_, Said> {
        lock(&self.said)
    }

    /// The result of `plan`: whether it has nothing to do, and its output.
    pub(super) fn plan(&self) -> Result<(bool, String), Failure> {
        let output = self.command("plan").arg("--kubeconfig").arg(&self.kubeconfig).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        // 2: it could not read some objects. Only the deliberately unreadable ones are allowed.
        let is_ours = |line: &str| line.contains(" is not served: ") || line.contains("/bad-");
        let expected = match output.status.code() {
            Some(0) => true,
            Some(2) => errors.lines().filter(|line| line.starts_with("proxier-demo: API server: ")).all(is_ours),
            _ => false,
        };
        let nothing = expected && text.starts_with("nothing to do");
        let lines = text.lines().take(20).chain(errors.lines().filter(|line| !is_ours(line)).take(10));
        Ok((nothing, lines.collect::<Vec<_>>().join("\n")))
    }

    /// All counters, including those of processes that have ended.
    pub(super) fn counters(&self) -> BTreeMap<String, f64> {
        let counters = lock(&self.counters);
        let mut sum = counters.1.clone();
        for (name, value) in &counters.0 {
            *sum.entry(name.clone()).or_default() += value;
        }
        sum
    }

    /// The present value of a gauge.
    pub(super) fn gauge(name: &str) -> Option<f64> {
        number(&get(METRICS, "/metrics").ok()?.1, &format!("{name} ")).ok()
    }

    fn look_at_metrics(&self) {
        let Ok((200, text)) = get(METRICS, "/metrics") else { return };
        let mut counters = lock(&self.counters);
        let is_counter = |line: &&str| {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            name.ends_with("_count") || name.ends_with("_total")
        };
        let values = text.lines().filter(is_counter).filter_map(|line| line.rsplit_once(' '));
        counters.0.extend(values.filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?))));
    }

    fn sample(&self, log: &Log) {
        let Some(process) = self.process() else { return };
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let files = std::fs::read_dir(format!("/proc/{process}/fd")).map(Iterator::count);
        let (Ok(resident_kib), Ok(files)) = (number(&status, "VmRSS:"), files) else { return };
        let files = u64::try_from(files).unwrap_or(u64::MAX);
        let (at_secs, mode) = (log.now().as_secs_f64(), self.mode());
        log.notes().samples.push(Sample { at_secs, mode, process, resident_kib, files });
    }

    /// If it ended by itself, records that and restarts it, like a supervisor.
    fn attend(&self, log: &Log) {
        let Some(Ok(Some(ended))) = lock(&self.child).as_mut().map(|child| child.0.try_wait()) else { return };
        let last: Vec<String> = lock(&self.said).lines.iter().rev().take(3).rev().cloned().collect();
        log.notes().breakdowns.push(format!(
            "proxier-demo ended by itself at {:.0} s with {ended}: {}",
            log.now().as_secs_f64(),
            last.join(" / ")
        ));
        self.kill();
        if let Err(error) = self.start() {
            log.notes().breakdowns.push(format!("proxier-demo does not start: {error}"));
        }
    }

    /// Samples it until told to stop.
    pub(super) fn watch(self: &Arc<Self>, log: &Arc<Log>, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
        let (proxy, log, stop) = (self.clone(), log.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                proxy.attend(&log);
                proxy.sample(&log);
                proxy.look_at_metrics();
                let health = match get(HEALTH, "/healthz") {
                    Ok((code, _)) => code.to_string(),
                    Err(error) => format!("none ({:?})", error.kind()),
                };
                *log.notes().healthz.entry(health).or_default() += 1;
                std::thread::sleep(EVERY);
            }
        })
    }
}

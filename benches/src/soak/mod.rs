//! The soak test: runs `proxier-demo` for minutes or hours with many Services, many changes, continuously connecting
//! clients, and faults of every kind; then gives a verdict.
//!
//! `cargo xtask soak` runs it in a virtual machine, or in namespaces of this machine's kernel. A [model](world) that
//! shares no code with the proxy computes the expected state; the usual tools print the kernel's state.

mod canary;
mod faults;
mod ground;
mod held;
mod load;
mod mode;
mod proxy;
mod random;
mod result;
mod script;
mod truth;
mod verdict;
mod watchers;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser as _;
use nix::sys::signal::Signal;
use testkit::apiserver::ApiServer;
use testkit::{Need, missing};

use self::faults::Faults;
use self::ground::{Ground, foreign_state, has_ipvs, node_addresses};
use self::load::Load;
use self::mode::Mode;
use self::proxy::Supervisor;
use self::random::Random;
use self::result::kept;
use self::script::{Script, apply};
use self::truth::Tables;
use self::verdict::{Evidence, judge};
use self::watchers::Log;
use self::world::{Host, Way};
use crate::Failure;
use crate::machine::Machine;

/// Run proxier-demo for long under load, changes and faults, and give a verdict
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "benches soak")]
struct Options {
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 2_000)]
    services: usize,
    #[arg(long, default_value_t = Mode::Ipvs, value_parser = mode::named)]
    mode: Mode,
    /// Seconds in a mode before a change to another for a while
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    change_mode_every: Option<u32>,
    #[arg(long)]
    proxy: PathBuf,
    #[arg(long)]
    out: Option<PathBuf>,
    #[arg(long, default_value = "benches soak")]
    command: String,
    #[arg(long, default_value = "unknown")]
    commit: String,
    #[arg(long, value_enum)]
    spoil: Option<Spoil>,
}

/// Ways to make the soak fail, to check that it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Spoil {
    /// A killed proxy is not restarted.
    NoRestart,
    /// The model has an endpoint that the API server does not have.
    WrongTruth,
}

/// Changes a second.
const RATE: u32 = 50;
/// Time limit for the kernel to have everything, at the start and at the end.
const PATIENCE: Duration = Duration::from_secs(300);
/// With more unexplained failures than this, the rest of the time would show nothing new.
const HOPELESS: usize = 300;
/// Older versions are discarded, like on a real API server: five minutes of changes, in seconds.
const HISTORY_SECS: u64 = 300;

/// Runs the soak; fails if it is not passed.
pub(crate) fn run() -> Result<(), Failure> {
    let options = Options::parse_from(std::env::args_os().skip(1));
    if !options.proxy.exists() {
        return Err(format!("{} is missing: build it with --package proxier-demo", options.proxy.display()).into());
    }
    // A change of mode may select userspace mode, which needs two files per listener; Debian's machine starts with a
    // limit of 4,096.
    if let Some(lack) = missing(Need::OpenFiles(65_536)) {
        return Err(format!("the proxy needs 65536 open files: {lack}").into());
    }
    Soak::new(options)?.run()
}

/// A running soak.
struct Soak {
    options: Options,
    /// Has the kubeconfig.
    _folder: tempfile::TempDir,
    server: Arc<ApiServer>,
    proxy: Arc<Supervisor>,
    script: Script,
    changes: BTreeMap<String, u64>,
    evidence: Evidence,
    /// Dropped last: everything else runs in its network.
    ground: Ground,
}

/// The first of these lines, as one.
fn first(lines: &[String], number: usize) -> String {
    lines.get(..number.min(lines.len())).unwrap_or_default().join("; ")
}

fn say(text: &str) {
    eprintln!("soak: {text}");
}

impl Soak {
    fn new(options: Options) -> Result<Self, Failure> {
        let ground = Ground::new()?;
        if options.mode == Mode::Ipvs && !has_ipvs() {
            return Err("this kernel has no IPVS: take another --mode".into());
        }
        let folder = tempfile::tempdir()?;
        let server = Arc::new(ApiServer::start_on(SocketAddr::from(([127, 0, 0, 1], 6443))));
        let kubeconfig = folder.path().join("kubeconfig");
        std::fs::write(&kubeconfig, server.kubeconfig(None))?;
        let proxy = Arc::new(Supervisor::new(&options.proxy, &kubeconfig, options.mode));
        let script = Script::new(options.seed, options.services);
        let evidence = Evidence::default();
        Ok(Soak { options, _folder: folder, server, proxy, script, changes: BTreeMap::new(), evidence, ground })
    }

    /// The tables that the kernel should now have.
    fn truth(&self) -> Tables {
        let services = self.script.services().chain(&self.script.canaries);
        let mut truth = Tables::of(self.proxy.mode(), services, &node_addresses());
        if self.options.spoil == Some(Spoil::WrongTruth) {
            truth.add(truth::ADDRESSES, "10.96.255.254".to_owned());
        }
        truth
    }

    /// The modes to which it changes in rotation.
    fn others(&self) -> Vec<Mode> {
        let can = |mode: &Mode| *mode != self.options.mode && (*mode != Mode::Ipvs || has_ipvs());
        let changes = self.options.change_mode_every.is_some();
        Mode::ALL.into_iter().filter(|mode| changes && can(mode)).collect()
    }

    fn run(mut self) -> Result<(), Failure> {
        let Options { minutes, seed, services, mode, .. } = self.options;
        say(&format!("seed {seed}, {minutes} minutes, {mode} mode, {services} Services, {RATE} changes a second"));
        self.server.put(&world::node());
        for service in self.script.services().chain(&self.script.canaries) {
            for object in service.objects() {
                self.server.put(&object);
            }
        }
        self.server.compact();
        let foreign = foreign_state()?;
        let begin = Instant::now();
        self.proxy.start()?;
        // Checking costs processor time that the first pass can use.
        self.proxy.wait_until_served(0, PATIENCE);
        let different = self.wait_for_truth(false)?;
        if !different.is_empty() && self.options.spoil.is_none() {
            self.tell_last_words();
            return Err(format!("the kernel never became as it has to be: {}", different.join("; ")).into());
        }
        self.evidence.start = begin.elapsed();
        say(&format!("everything is in the kernel after {:.0} s", begin.elapsed().as_secs_f64()));

        let log = Arc::new(Log::new());
        let length = Duration::from_secs_f64(minutes * 60.0);
        let settled_in = Duration::from_secs(600).min(length / 4);
        self.evidence.calm = self.options.change_mode_every.is_none().then_some((settled_in, length * 85 / 100));
        // Shorter soaks have not enough time for all of them. A change of mode waits until all earlier damage is
        // repaired.
        if minutes >= if self.options.change_mode_every.is_some() { 10.0 } else { 2.0 } {
            self.evidence.deck = faults::kinds(mode);
            self.evidence.deck.extend(self.others().into_iter().map(mode::changed));
        }
        self.soak(&log, length)?;
        if self.proxy.mode() != mode {
            self.enter(mode)?;
        }

        self.settle(&log)?;
        self.go_round()?;
        // ipvsadm lists by position, so a virtual server that is deleted meanwhile hides another. A permanent loss
        // shows in every attempt.
        for pause in [0, 2, 5] {
            std::thread::sleep(Duration::from_secs(pause));
            self.evidence.foreign = differences(&foreign, &foreign_state()?);
            if self.evidence.foreign.is_empty() {
                break;
            }
        }
        if let Err(error) = self.proxy.stop() {
            self.evidence.troubles.push(error.to_string());
        }
        self.finish(&log)
    }

    /// Runs clients, changes and faults for this long.
    fn soak(&mut self, log: &Arc<Log>, length: Duration) -> Result<(), Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for number in 0..self.script.used.len() {
            self.note_endpoints(log, number, false);
        }
        let (limit, repair) = verdict::limits(self.evidence.start);
        let load = Load::start(&self.ground, log, &self.script, (self.options.seed, limit))?;
        let sampler = self.proxy.watch(log, &stop);
        let machine = log.watch_the_machine(&stop);
        let canaries = std::mem::take(&mut self.script.canaries);
        let (server, clients) = (self.server.clone(), &self.ground.client);
        let canary = canary::follow(clients, canaries, limit, server, log.clone(), stop.clone())?;
        let steady = self.script.used.iter().enumerate().filter(|(number, _)| Script::is_steady(*number));
        let breaking = Arc::new(AtomicBool::new(false));
        let faults = Faults {
            server: self.server.clone(),
            proxy: self.proxy.clone(),
            log: log.clone(),
            steady: steady.map(|(_, service)| service.clone()).collect(),
            calm: self.evidence.calm.unwrap_or_default(),
            others: self.others(),
            every: self.options.change_mode_every.map_or(length * 2, |secs| Duration::from_secs(secs.into())),
            hurried: length < Duration::from_secs(300),
            repair,
            no_restart: self.options.spoil == Some(Spoil::NoRestart),
            random: Random::new(self.options.seed, 2),
            stop: breaking.clone(),
            kind: "",
            repairs: Vec::new(),
        };
        let faults = faults.start();
        self.change(log, length);
        // The last damage gets time to be repaired, under load.
        breaking.store(true, Ordering::Relaxed);
        let failed = faults.join().map_err(|_panic| "the faults' thread has panicked")?;
        self.evidence.troubles.extend(failed.into_iter().map(|line| format!("a fault could not be made: {line}")));
        self.proxy.signal(Signal::SIGCONT);
        self.server.outage(false);
        self.server.clear_faults();
        load.end();
        stop.store(true, Ordering::Relaxed);
        sampler.join().map_err(|_panic| "the sampler has panicked")?;
        machine.join().map_err(|_panic| "the machine's watcher has panicked")?;
        self.script.canaries = canary.join().map_err(|_panic| "the canary has panicked")?;
        Ok(())
    }

    /// Records which pods may answer for a used Service: its pods, and before a change also its next ones.
    fn note_endpoints(&self, log: &Log, number: usize, is_done: bool) {
        let Some(service) = self.script.used.get(number) else { return };
        let now = log.now();
        let mut notes = log.notes();
        let mut hosts = service.hosts(Way::ClusterIp);
        hosts.extend(service.hosts(Way::NodePort));
        for pod in 0..world::PODS {
            let key = (service.name.clone(), pod);
            if hosts.contains(&Host::Pod(pod)) {
                notes.endpoints.insert(key, None);
            } else if is_done && let Some(gone) = notes.endpoints.get_mut(&key) {
                gone.get_or_insert(now);
            }
        }
    }

    /// Makes one change after the other, each at its time.
    fn change(&mut self, log: &Arc<Log>, length: Duration) {
        let planned = length.as_secs() * u64::from(RATE);
        self.evidence.planned_events = planned;
        let (mut told, mut number) = (Duration::ZERO, 0_u64);
        while number < planned && log.now() < length * 3 / 2 {
            let due = Duration::from_secs_f64(f64::from(u32::try_from(number).unwrap_or(u32::MAX)) / f64::from(RATE));
            std::thread::sleep(due.saturating_sub(log.now()));
            let event = self.script.step();
            if let Some(used) = event.used {
                self.note_endpoints(log, used, false);
            }
            {
                let _alone = held::nobody_writes();
                for write in &event.writes {
                    apply(&self.server, write);
                }
            }
            if let Some(used) = event.used {
                self.note_endpoints(log, used, true);
            }
            *self.changes.entry(event.kind.to_owned()).or_default() += 1;
            number += 1;
            if number.is_multiple_of(u64::from(RATE) * HISTORY_SECS) {
                self.server.compact();
                self.server.bookmark();
            }
            if log.now() > told + Duration::from_secs(30) {
                told = log.now();
                let unexcused = verdict::unexcused(&log.notes());
                tell_progress(log, number, unexcused);
                if unexcused > HOPELESS {
                    say("too much is wrong: this ends here");
                    break;
                }
            }
        }
        self.evidence.events = number;
    }

    /// Compares the kernel with the model until they match; returns the remaining differences.
    fn wait_for_truth(&self, plan_too: bool) -> Result<Vec<String>, Failure> {
        let truth = self.truth();
        let begin = Instant::now();
        let mut told = Duration::ZERO;
        let patience = if self.options.spoil.is_some() { Duration::from_secs(30) } else { PATIENCE };
        loop {
            let mode = self.proxy.mode();
            let mut last = match held::state(mode).and_then(|held| Ok((held, held::leftovers(mode)?))) {
                Ok((kernel, left)) => {
                    let left = left.into_iter().map(|line| format!("left of another mode: {line}"));
                    truth.differences(&kernel).into_iter().chain(left).collect()
                }
                // Before its first pass the device does not exist.
                Err(error) => vec![format!("the kernel could not be looked at: {error}")],
            };
            if last.is_empty() {
                let (nothing, plan) = if plan_too { self.proxy.plan()? } else { (true, String::new()) };
                if nothing {
                    return Ok(Vec::new());
                }
                last = vec![format!("proxier-demo plan: {plan}")];
            }
            if begin.elapsed() > told + Duration::from_secs(20) {
                told = begin.elapsed();
                say(&format!("waiting: {} differences: {}", last.len(), first(&last, 5)));
            }
            if begin.elapsed() > patience {
                let number = last.len();
                last.truncate(20);
                last.push(format!("{number} differences in all"));
                return Ok(last);
            }
            std::thread::sleep(Duration::from_secs(2));
        }
    }

    /// At the end: waits until the kernel matches the model and `plan` has nothing to do.
    fn settle(&mut self, log: &Log) -> Result<(), Failure> {
        let from = log.now();
        let held = Supervisor::gauge("kubeproxy_virtual_servers_held_back").unwrap_or(0.0);
        if held > 0.0 {
            // Confirm it, as an operator would if it is intended.
            say(&format!("{held} virtual servers are held back: confirmed"));
            self.proxy.signal(Signal::SIGUSR1);
        }
        let different = self.wait_for_truth(true)?;
        if different.is_empty() {
            self.evidence.settled = Some(log.now().saturating_sub(from));
        } else {
            let (mut plans, differences): (Vec<_>, _) =
                different.into_iter().partition(|line| line.starts_with("proxier-demo plan"));
            (self.evidence.plan, self.evidence.differences) = (plans.pop(), differences);
        }
        Ok(())
    }

    /// Ends the proxy, and starts it in this mode; returns when it serves.
    fn enter(&self, mode: Mode) -> Result<(), Failure> {
        let before = self.proxy.said().served;
        self.proxy.change_to(mode)?;
        self.proxy.wait_until_served(before, PATIENCE);
        Ok(())
    }

    /// Finally, each of the other modes shows its state without disturbance.
    fn go_round(&mut self) -> Result<(), Failure> {
        for mode in self.others() {
            self.enter(mode)?;
            let different = self.wait_for_truth(true)?;
            self.evidence.differences.extend(different.into_iter().map(|line| format!("{mode} mode: {line}")));
        }
        Ok(())
    }

    fn tell_last_words(&self) {
        for line in self.proxy.said().lines.iter().rev().take(30).rev() {
            eprintln!("proxier-demo: {line}");
        }
    }

    fn finish(mut self, log: &Arc<Log>) -> Result<(), Failure> {
        self.evidence.notes = std::mem::take(&mut *log.notes());
        let verdict = judge(&self.evidence);
        let asked = serde_json::json!({
            "command": self.options.command,
            // Shows how old a result is.
            "commit": self.options.commit,
            "machine": Machine::look().sentence(),
            "minutes": self.options.minutes,
            "seed": self.options.seed,
            "services": self.options.services,
            "changes_per_second": RATE,
            "mode": self.options.mode.name(),
            "change_mode_every_secs": self.options.change_mode_every,
        });
        let said = std::mem::take(&mut *self.proxy.said());
        let words: String = said.lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
        let kept = kept(&asked, &self.evidence, &verdict, &self.changes, (self.proxy.counters(), said.levels));
        print!("{}", result::markdown(&kept)?);
        if let Some(stem) = &self.options.out {
            let faults = self.evidence.notes.faults.iter().map(|fault| {
                let (from, until) = (fault.from.as_secs_f64(), fault.until.as_secs_f64());
                format!("{from:.1} to {until:.1} s: {}: {}\n", fault.kind, fault.detail)
            });
            result::write(&kept, stem, &(faults.collect::<String>() + &words))?;
        }
        if verdict.wrong.is_empty() {
            Ok(())
        } else {
            // Again, as the last lines, which are kept of a long output.
            let lines: Vec<String> = verdict.wrong.iter().chain(verdict.inexcusable.iter().take(30)).cloned().collect();
            Err(format!("the soak is not passed:\n* {}", lines.join("\n* ")).into())
        }
    }
}

fn differences(wanted: &BTreeSet<String>, there: &BTreeSet<String>) -> Vec<String> {
    let missing = wanted.difference(there).map(|line| format!("missing: {line}"));
    missing.chain(there.difference(wanted).map(|line| format!("not wanted: {line}"))).collect()
}

fn tell_progress(log: &Log, changes: u64, unexcused: usize) {
    let notes = log.notes();
    let served: u64 = notes.made.values().sum();
    let last = notes.samples.last();
    if let Some(miss) = notes.misses.last() {
        say(&format!(
            "the last that was not as it has to be: {:?} {} of {}: {}",
            miss.what, miss.place, miss.service, miss.error
        ));
    }
    say(&format!(
        "{:.0} s: {changes} changes, {} faults, {served} connections, {} not as they have to be ({unexcused} without an excuse), {} KiB, {} files ({} of the soak), \
         longest change {:.1} s",
        log.now().as_secs_f64(),
        notes.faults.len(),
        notes.misses.len(),
        last.map_or(0, |sample| sample.resident_kib),
        last.map_or(0, |sample| sample.files),
        std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
        notes.followed.iter().map(|change| change.took.as_secs_f64()).fold(0.0, f64::max),
    ));
}

//! Faults of the API server, the process and the host. Tests of the program and of proxier-core have other programs
//! change the kernel's tables.
//!
//! Faults are dealt from a deck, so that each kind occurs before one is repeated; the seed decides order and details.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::Signal;
use testkit::apiserver::{ApiServer, Fault as ApiFault, Verb};
use testkit::oracle;

use super::mode::Mode;
use super::proxy::Supervisor;
use super::random::Random;
use super::watchers::{Fault, Log, Scope};
use super::world::Family;
use crate::Failure;
use crate::network::tool;

/// A kind of fault: its name, and the function that makes it and returns details.
type Kind = (&'static str, fn(&mut Faults, &'static str) -> Result<String, Failure>);

const KILL: &str = "proxy killed and started again";

/// All kinds.
const KINDS: [Kind; 12] = [
    (KILL, |faults, kind| faults.kill(kind)),
    ("proxy stopped for a while (SIGSTOP)", |faults, kind| {
        let time = faults.seconds(8, 20);
        let window = faults.is_in_the_way().then(|| faults.log.open(kind, Scope::Waiting, None));
        faults.proxy.signal(Signal::SIGSTOP);
        faults.wait(time);
        faults.proxy.signal(Signal::SIGCONT);
        if let Some(window) = window {
            faults.log.close(window);
        }
        Ok(format!("{} s", time.as_secs()))
    }),
    ("lock of iptables held", |faults, _| faults.hold_lock()),
    ("address monitor overrun", |faults, _| faults.overrun()),
    ("watches cut", |faults, _| {
        faults.server.cut_watches();
        Ok(String::new())
    }),
    ("API server away", |faults, _| {
        let time = faults.seconds(2, 10);
        faults.server.outage(true);
        faults.wait(time);
        faults.server.outage(false);
        Ok(format!("{} s", time.as_secs()))
    }),
    ("versions too old (410)", |faults, _| Ok(faults.list_again(&[]))),
    ("API server answers 500 and 503", |faults, _| {
        for resource in ["services", "endpointslices"] {
            faults.server.fail_next(resource, Verb::Watch, ApiFault::Status(500, None));
        }
        Ok(faults.list_again(&[ApiFault::Status(500, None), ApiFault::Status(503, Some(1))]))
    }),
    ("API server answers late", |faults, _| {
        let late = faults.seconds(2, 6);
        Ok(faults.list_again(&[ApiFault::Late(late)]))
    }),
    ("lists cut in the middle", |faults, _| {
        Ok(faults.list_again(&[ApiFault::Cut(20_000), ApiFault::Text("<html>".to_owned())]))
    }),
    ("empty lists", |faults, _| {
        faults.server.compact();
        // The next list after the empty one is delayed. The versions are forgotten at once.
        Ok(faults.list_again(&[ApiFault::Empty, ApiFault::Late(Duration::from_secs(1))]))
    }),
    ("a node address flaps", |faults, kind| faults.flap(kind)),
];

/// The names of all kinds.
pub(super) fn kinds() -> BTreeSet<&'static str> {
    KINDS.iter().map(|(name, _)| *name).collect()
}

/// Makes the faults.
pub(super) struct Faults {
    pub(super) server: Arc<ApiServer>,
    pub(super) proxy: Arc<Supervisor>,
    pub(super) log: Arc<Log>,
    /// The period in which the process is not killed.
    pub(super) calm: (Duration, Duration),
    /// Whether a short soak leaves less time for each.
    pub(super) hurried: bool,
    /// The time limit for a start that serves again.
    pub(super) repair: Duration,
    pub(super) random: Random,
    pub(super) stop: Arc<AtomicBool>,
}

impl Faults {
    /// Makes one fault after another until told to stop; returns what could not be done.
    pub(super) fn start(mut self) -> JoinHandle<Vec<String>> {
        std::thread::spawn(move || {
            let mut failed = Vec::new();
            let mut deck: Vec<Kind> = Vec::new();
            let mut dealt = false;
            while !self.stop.load(Ordering::Relaxed) {
                if deck.is_empty() {
                    deck = KINDS.to_vec();
                    self.random.shuffle(&mut deck);
                    if !dealt {
                        // Kills come first, while they are allowed.
                        deck.sort_by_key(|(name, _)| *name == KILL);
                        dealt = true;
                    }
                }
                self.pause();
                let Some((kind, make)) = deck.pop() else { continue };
                let now = self.log.now();
                if kind == KILL && now > self.calm.0 && now < self.calm.1 || self.stop.load(Ordering::Relaxed) {
                    continue;
                }
                // Discard pending failures: the proxy waits longer after each failure, so several in a row would look
                // like a server that is down for minutes.
                self.server.clear_faults();
                match make(&mut self, kind) {
                    Ok(detail) => self.note(kind, detail, now),
                    Err(error) => failed.push(format!("{kind}: {error}")),
                }
            }
            failed
        })
    }

    fn note(&self, kind: &'static str, detail: String, from: Duration) {
        let until = self.log.now();
        self.log.notes().faults.push(Fault { kind, detail, from, until });
    }

    fn pause(&mut self) {
        let (least, most) = if self.hurried { (300, 1_200) } else { (3_000, 9_000) };
        let time = Duration::from_millis(self.random.between(least, most).into());
        self.wait(time);
    }

    /// Waits, unless the soak ends first.
    fn wait(&self, time: Duration) {
        let end = self.log.now() + time;
        while self.log.now() < end && !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn seconds(&mut self, least: u32, most: u32) -> Duration {
        let (least, most) = if self.hurried { (least / 2, most / 2) } else { (least, most) };
        Duration::from_millis(self.random.between(least * 1_000, most * 1_000).into())
    }

    /// Whether clients' traffic passes through the process.
    fn is_in_the_way(&self) -> bool {
        self.proxy.mode == Mode::Userspace
    }

    fn kill(&mut self, kind: &'static str) -> Result<String, Failure> {
        let window = self.is_in_the_way().then(|| self.log.open(kind, Scope::Everybody, Some(self.repair)));
        let before = self.proxy.said().served;
        self.proxy.kill();
        let time = Duration::from_millis(self.random.between(0, 3_000).into());
        self.wait(time);
        self.proxy.start()?;
        // A process that has just started would be killed by the next SIGTERM instead of ending properly.
        let serves = self.proxy.wait_until_served(before, self.repair);
        if let Some(window) = window.filter(|_| serves) {
            self.log.close(window);
        }
        Ok(format!("away for {} ms", time.as_millis()))
    }

    fn hold_lock(&mut self) -> Result<String, Failure> {
        let time = self.seconds(4, 10);
        let seconds = time.as_secs().max(1).to_string();
        // Waits until the current holder releases it.
        let status = Command::new("flock").args(["/run/xtables.lock", "sleep", &seconds]).status()?;
        if status.success() { Ok(format!("{seconds} s")) } else { Err(format!("flock: {status}").into()) }
    }

    /// More address changes than a socket's buffer holds, while they are not read.
    fn overrun(&mut self) -> Result<String, Failure> {
        let mut lines = Vec::new();
        for round in 0..12 {
            for verb in ["add", "del"] {
                lines.extend((1..=60).map(|last| format!("address {verb} 172.30.{round}.{last}/32 dev flood0")));
            }
        }
        self.proxy.signal(Signal::SIGSTOP);
        let flood = oracle::run("ip", &["-batch", "-"], Some(&lines.join("\n")));
        self.proxy.signal(Signal::SIGCONT);
        flood?;
        Ok(format!("{} changes", lines.len()))
    }

    /// The watches end and their versions are too old: the proxy lists again, and meets these faults first.
    fn list_again(&mut self, faults: &[ApiFault]) -> String {
        let which: &[&str] = match self.random.below(3) {
            0 => &["services"],
            1 => &["endpointslices"],
            _ => &["services", "endpointslices"],
        };
        for resource in which {
            self.server.fail_next(resource, Verb::Watch, ApiFault::Status(410, None));
            for fault in faults {
                self.server.fail_next(resource, Verb::List, fault.clone());
            }
        }
        self.server.cut_watches();
        which.join(" and ")
    }

    /// Removes and adds the node's second addresses a few times.
    fn flap(&mut self, kind: &'static str) -> Result<String, Failure> {
        let times = self.random.between(1, 4);
        let windows = Family::ALL.map(|family| self.log.open(kind, Scope::Address(family.flapping()), None));
        for _ in 0..times {
            for (verb, nodad) in [("del", ""), ("add", " nodad")] {
                for (family, bits) in Family::ALL.into_iter().zip([24, 64]) {
                    let nodad = if family == Family::V6 { nodad } else { "" };
                    tool(&format!("ip addr {verb} {}/{bits} dev eth0{nodad}", family.flapping()))?;
                }
                std::thread::sleep(Duration::from_millis(self.random.between(100, 1_500).into()));
            }
        }
        // New connections are served again once the proxy has noticed.
        std::thread::sleep(Duration::from_secs(5));
        for window in windows {
            self.log.close(window);
        }
        Ok(format!("{times} times"))
    }
}

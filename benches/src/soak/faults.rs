//! Faults of the API server, of the process and of the host, and what others do to the kernel's tables.
//!
//! They are dealt from a deck, so that each kind occurs before one is repeated; the seed decides order and details.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ipvs::{Client, VirtualServerKey};
use nix::sys::signal::Signal;
use testkit::apiserver::{ApiServer, Fault as ApiFault, Verb};
use testkit::oracle::{self, Backend};

use super::canary::serves;
use super::ground::{iptables, tool};
use super::proxy::Supervisor;
use super::random::Random;
use super::truth::{Tables, option, ways};
use super::watchers::{Fault, Log, Scope};
use super::world::{Family, Host, PODS, Protocol, Service, Way};
use crate::Failure;

/// How long the other entries may take after the first one is back.
const SLACK: Duration = Duration::from_secs(2);
/// Pause between two checks. Each may start a process, which an emulated machine does slowly.
const LOOK: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kill,
    Stop,
    Lock,
    Overrun,
    Cut,
    Away,
    Expired,
    ServerErrors,
    Slow,
    BrokenLists,
    EmptyLists,
    RealServerGoes,
    RealServerComes,
    WeightChanges,
    VirtualServerGoes,
    SetFlushed,
    ChainFlushed,
    AddressGoes,
    Flapping,
}

const DECK: [Kind; 19] = [
    Kind::Kill,
    Kind::Stop,
    Kind::Lock,
    Kind::Overrun,
    Kind::Cut,
    Kind::Away,
    Kind::Expired,
    Kind::ServerErrors,
    Kind::Slow,
    Kind::BrokenLists,
    Kind::EmptyLists,
    Kind::RealServerGoes,
    Kind::RealServerComes,
    Kind::WeightChanges,
    Kind::VirtualServerGoes,
    Kind::SetFlushed,
    Kind::ChainFlushed,
    Kind::AddressGoes,
    Kind::Flapping,
];

/// The number of kinds.
pub(super) const KINDS: usize = DECK.len();

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Kill => "proxy killed and started again",
            Kind::Stop => "proxy stopped for a while (SIGSTOP)",
            Kind::Lock => "lock of iptables held",
            Kind::Overrun => "address monitor overrun",
            Kind::Cut => "watches cut",
            Kind::Away => "API server away",
            Kind::Expired => "versions too old (410)",
            Kind::ServerErrors => "API server answers 500 and 503",
            Kind::Slow => "API server answers late",
            Kind::BrokenLists => "lists cut in the middle",
            Kind::EmptyLists => "empty lists",
            Kind::RealServerGoes => "a real server deleted",
            Kind::RealServerComes => "a real server added",
            Kind::WeightChanges => "a weight changed",
            Kind::VirtualServerGoes => "a virtual server deleted",
            Kind::SetFlushed => "a set flushed",
            Kind::ChainFlushed => "a chain flushed",
            Kind::AddressGoes => "a Service's address deleted",
            Kind::Flapping => "a node address flaps",
        }
    }
}

/// Makes the faults.
pub(super) struct Faults {
    pub(super) server: Arc<ApiServer>,
    pub(super) proxy: Arc<Supervisor>,
    pub(super) log: Arc<Log>,
    pub(super) backend: Backend,
    /// Services that only these faults change.
    pub(super) steady: Vec<Service>,
    /// The period in which the process is not killed.
    pub(super) calm: (Duration, Duration),
    /// Whether a short soak leaves less time for each.
    pub(super) hurried: bool,
    /// The time limit for repairing what others break.
    pub(super) repair: Duration,
    /// Whether a killed proxy stays dead, to check that this is noticed.
    pub(super) no_restart: bool,
    pub(super) random: Random,
    pub(super) stop: Arc<AtomicBool>,
}

/// One address of a steady Service.
#[derive(Clone, Debug)]
struct Place {
    service: Service,
    way: Way,
    family: Family,
    at: SocketAddr,
}

impl Place {
    fn key(&self) -> VirtualServerKey {
        if self.service.protocol == Protocol::Tcp {
            VirtualServerKey::tcp(self.at)
        } else {
            VirtualServerKey::udp(self.at)
        }
    }

    fn option(&self) -> &'static str {
        option(self.service.protocol)
    }

    fn reals(&self) -> Vec<SocketAddr> {
        let hosts = self.service.hosts(self.way);
        hosts.into_iter().map(|host| SocketAddr::new(host.address(self.family), self.service.target)).collect()
    }
}

impl Faults {
    /// Makes one fault after the other until told to stop; returns what could not be done.
    pub(super) fn start(mut self) -> JoinHandle<Vec<String>> {
        std::thread::spawn(move || {
            let mut failed = Vec::new();
            let mut repairs = Vec::new();
            let mut deck: Vec<Kind> = Vec::new();
            let mut dealt = false;
            while !self.stop.load(Ordering::Relaxed) {
                if deck.is_empty() {
                    deck = DECK.to_vec();
                    self.random.shuffle(&mut deck);
                    if !dealt {
                        // While it is allowed: a kill comes first.
                        deck.retain(|kind| *kind != Kind::Kill);
                        deck.push(Kind::Kill);
                        dealt = true;
                    }
                }
                self.pause();
                let Some(kind) = deck.pop() else { continue };
                let now = self.log.now();
                if kind == Kind::Kill && now > self.calm.0 && now < self.calm.1 || self.stop.load(Ordering::Relaxed) {
                    continue;
                }
                match self.make(kind, &mut repairs) {
                    Ok(detail) => {
                        let until = self.log.now();
                        self.log.notes().faults.push(Fault { kind: kind.name(), detail, from: now, until });
                    }
                    Err(error) => failed.push(format!("{}: {error}", kind.name())),
                }
            }
            for repair in repairs {
                repair.join().unwrap_or_default();
            }
            failed
        })
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

    fn make(&mut self, kind: Kind, repairs: &mut Vec<JoinHandle<()>>) -> Result<String, Failure> {
        // Arranged failures do not pile up: the proxy waits longer after each failure, so several in a row would look
        // like a server that is away for minutes.
        self.server.clear_faults();
        match kind {
            Kind::Kill => self.kill(),
            Kind::Stop => {
                let time = self.seconds(8, 20);
                self.proxy.signal(Signal::SIGSTOP);
                self.wait(time);
                self.proxy.signal(Signal::SIGCONT);
                Ok(format!("{} s", time.as_secs()))
            }
            Kind::Lock => self.hold_lock(),
            Kind::Overrun => self.overrun(),
            Kind::Cut => {
                self.server.cut_watches();
                Ok(String::new())
            }
            Kind::Away => {
                let time = self.seconds(2, 10);
                self.server.outage(true);
                self.wait(time);
                self.server.outage(false);
                Ok(format!("{} s", time.as_secs()))
            }
            Kind::Expired => Ok(self.list_again(&[])),
            Kind::ServerErrors => {
                for resource in ["services", "endpointslices"] {
                    self.server.fail_next(resource, Verb::Watch, ApiFault::Status(500, None));
                }
                Ok(self.list_again(&[ApiFault::Status(500, None), ApiFault::Status(503, Some(1))]))
            }
            Kind::Slow => {
                let late = self.seconds(2, 6);
                Ok(self.list_again(&[ApiFault::Late(late)]))
            }
            Kind::BrokenLists => Ok(self.list_again(&[ApiFault::Cut(20_000), ApiFault::Text("<html>".to_owned())])),
            Kind::EmptyLists => Ok(self.empty_lists()),
            Kind::RealServerGoes | Kind::RealServerComes | Kind::WeightChanges | Kind::VirtualServerGoes => {
                self.edit_servers(kind, repairs)
            }
            Kind::SetFlushed => self.flush_set(repairs),
            Kind::ChainFlushed => self.flush_chain(repairs),
            Kind::AddressGoes => self.delete_address(repairs),
            Kind::Flapping => self.flap(),
        }
    }

    fn kill(&mut self) -> Result<String, Failure> {
        self.proxy.kill();
        let time = Duration::from_millis(self.random.between(0, 3_000).into());
        self.wait(time);
        if !self.no_restart {
            self.proxy.start()?;
        }
        Ok(format!("away for {} ms", time.as_millis()))
    }

    fn hold_lock(&mut self) -> Result<String, Failure> {
        let time = self.seconds(4, 10);
        let seconds = time.as_secs().max(1).to_string();
        // Waits until the present holder releases it.
        let status = Command::new("flock").args(["/run/xtables.lock", "sleep", &seconds]).status()?;
        if status.success() { Ok(format!("{seconds} s")) } else { Err(format!("flock: {status}").into()) }
    }

    /// More changes of addresses than a socket's buffer holds, while nobody reads them.
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

    /// The watches end, and their versions are too old: the proxy lists again, with these faults first.
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

    /// Lists without any object, with a version that is forgotten at once.
    fn empty_lists(&mut self) -> String {
        let which: &[(&str, &str, &str)] =
            &[("services", "ServiceList", "v1"), ("endpointslices", "EndpointSliceList", "discovery.k8s.io/v1")];
        let which = match self.random.below(3) {
            0 => which.get(..1),
            1 => which.get(1..),
            _ => Some(which),
        };
        self.server.compact();
        let mut names = Vec::new();
        for (resource, kind, version) in which.unwrap_or_default() {
            let list = format!(
                r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{{"resourceVersion":"1"}},"items":[]}}"#
            );
            self.server.fail_next(resource, Verb::Watch, ApiFault::Status(410, None));
            self.server.fail_next(resource, Verb::List, ApiFault::Text(list));
            // The next list after the empty one is delayed.
            self.server.fail_next(resource, Verb::List, ApiFault::Late(Duration::from_secs(1)));
            names.push(*resource);
        }
        self.server.cut_watches();
        names.join(" and ")
    }

    fn place(&mut self) -> Result<Place, Failure> {
        let places: Vec<Place> = self
            .steady
            .iter()
            .flat_map(|service| {
                ways(service).map(|(way, family, at)| Place { service: service.clone(), way, family, at })
            })
            .collect();
        Ok(self.random.pick(&places).ok_or("no Service to do it to")?.clone())
    }

    /// Checks until it is repaired.
    fn repaired(
        &self,
        window: usize,
        repairs: &mut Vec<JoinHandle<()>>,
        whole: impl Fn(&mut Client) -> bool + Send + 'static,
    ) {
        let (log, patience) = (self.log.clone(), self.repair * 2);
        repairs.push(std::thread::spawn(move || {
            let Ok(mut client) = Client::open() else { return };
            let begin = log.now();
            while log.now().saturating_sub(begin) < patience {
                if whole(&mut client) {
                    std::thread::sleep(SLACK);
                    log.close(window);
                    return;
                }
                // Several may be waited for at once: check less often with time.
                let waited = log.now().saturating_sub(begin);
                std::thread::sleep((waited / 10).clamp(LOOK, LOOK * 5));
            }
        }));
    }

    fn edit_servers(&mut self, kind: Kind, repairs: &mut Vec<JoinHandle<()>>) -> Result<String, Failure> {
        let place = self.place()?;
        let (option, at, key) = (place.option(), place.at, place.key());
        let reals = place.reals();
        let real = *self.random.pick(&reals).ok_or("a steady Service without endpoints")?;
        let scope = Scope::Service(place.service.name.clone());
        let other = (0..PODS).map(|pod| SocketAddr::new(Host::Pod(pod).address(place.family), place.service.target));
        let others: Vec<SocketAddr> = other.filter(|other| !reals.contains(other)).collect();
        let line = match kind {
            Kind::RealServerGoes => format!("ipvsadm -d {option} {at} -r {real}"),
            Kind::RealServerComes => {
                let other = self.random.pick(&others).ok_or("no other pod")?;
                format!("ipvsadm -a {option} {at} -r {other} -m -w 5")
            }
            Kind::WeightChanges => format!("ipvsadm -e {option} {at} -r {real} -m -w 0"),
            _ => format!("ipvsadm -D {option} {at}"),
        };
        let window = self.log.open(kind.name(), scope, Some(self.repair));
        if let Err(error) = tool(&line) {
            // Missing, since somebody has broken it before.
            self.log.close(window);
            return Ok(format!("{line}: {error}"));
        }
        self.repaired(window, repairs, move |client| {
            let all = reals.iter().all(|real| serves(client, &key, *real));
            all && !others.iter().any(|other| serves(client, &key, *other))
        });
        Ok(line)
    }

    fn flush_set(&mut self, repairs: &mut Vec<JoinHandle<()>>) -> Result<String, Failure> {
        let entries: Vec<String> = Tables::of(&self.steady, &[]).entries.into_iter().collect();
        let entry = self.random.pick(&entries).ok_or("no entry")?.clone();
        let mut words = entry.split(' ').skip(1).map(str::to_owned);
        let (Some(set), Some(element)) = (words.next(), words.next()) else { return Err("no entry".into()) };
        let window = self.log.open(Kind::SetFlushed.name(), Scope::Everybody, Some(self.repair));
        tool(&format!("ipset flush {set}"))?;
        let name = set.clone();
        self.repaired(window, repairs, move |_| tool(&format!("ipset test {name} {element}")).is_ok());
        Ok(set)
    }

    fn flush_chain(&mut self, repairs: &mut Vec<JoinHandle<()>>) -> Result<String, Failure> {
        let chains = [
            ("nat", "KUBE-SERVICES"),
            ("nat", "KUBE-POSTROUTING"),
            ("nat", "KUBE-MARK-MASQ"),
            ("nat", "KUBE-LOAD-BALANCER"),
            ("nat", "KUBE-NODE-PORT"),
            ("filter", "KUBE-FORWARD"),
            ("filter", "KUBE-IPVS-FILTER"),
            ("filter", "KUBE-PROXY-FIREWALL"),
            ("filter", "KUBE-SOURCE-RANGES-FIREWALL"),
        ];
        let (table, chain) = *self.random.pick(&chains).ok_or("no chain")?;
        let programs = iptables(self.backend);
        let program = *self.random.pick(&programs).ok_or("no program")?;
        let rules = move || Some(tool(&format!("{program} -w 20 -t {table} -S {chain}")).ok()?.lines().count());
        // A missing chain cannot be flushed.
        let Some(before) = rules() else { return Ok(format!("{program} has no chain {chain}")) };
        let window = self.log.open(Kind::ChainFlushed.name(), Scope::Everybody, Some(self.repair));
        tool(&format!("{program} -w 20 -t {table} -F {chain}"))?;
        self.repaired(window, repairs, move |_| rules().is_some_and(|now| now >= before));
        Ok(format!("{program} {chain}"))
    }

    fn delete_address(&mut self, repairs: &mut Vec<JoinHandle<()>>) -> Result<String, Failure> {
        let mut place = self.place()?;
        while place.way == Way::NodePort {
            place = self.place()?;
        }
        let address: IpAddr = place.at.ip();
        let window =
            self.log.open(Kind::AddressGoes.name(), Scope::Service(place.service.name.clone()), Some(self.repair));
        let bits = if address.is_ipv4() { 32 } else { 128 };
        tool(&format!("ip addr del {address}/{bits} dev kube-ipvs0"))?;
        self.repaired(window, repairs, move |_| {
            tool(&format!("ip -o addr show dev kube-ipvs0 to {address}")).is_ok_and(|text| !text.trim().is_empty())
        });
        Ok(address.to_string())
    }

    /// The node's second addresses are removed and added back, a few times.
    fn flap(&mut self) -> Result<String, Failure> {
        let times = self.random.between(1, 4);
        let windows =
            Family::ALL.map(|family| self.log.open(Kind::Flapping.name(), Scope::Address(family.flapping()), None));
        for _ in 0..times {
            for (verb, nodad) in [("del", ""), ("add", " nodad")] {
                for (family, bits) in Family::ALL.into_iter().zip([24, 64]) {
                    let nodad = if family == Family::V6 { nodad } else { "" };
                    tool(&format!("ip addr {verb} {}/{bits} dev eth0{nodad}", family.flapping()))?;
                }
                std::thread::sleep(Duration::from_millis(self.random.between(100, 1_500).into()));
            }
        }
        // New connections are served again when the proxy has noticed.
        std::thread::sleep(Duration::from_secs(5));
        for window in windows {
            self.log.close(window);
        }
        Ok(format!("{times} times"))
    }
}

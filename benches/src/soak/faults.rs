//! Faults of the API server, the process and the host, and other programs' changes to the kernel's tables.
//!
//! Faults are dealt from a deck, so that each kind occurs before one is repeated; the seed decides order and details.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::Signal;
use testkit::apiserver::{ApiServer, Fault as ApiFault, Verb};
use testkit::oracle;

use super::ground::{IPTABLES, node_addresses};
use super::mode::{Mode, Moment, breaks, changed, stays};
use super::proxy::Supervisor;
use super::random::Random;
use super::truth::{SETS, Tables, lower, option, ways};
use super::watchers::{Fault, Log, Scope};
use super::world::{Family, Host, PODS, Service, Way, flapping};
use super::{first, held};
use crate::Failure;
use crate::network::tool;

/// How long the other entries may take once the first one is restored.
const SLACK: Duration = Duration::from_secs(2);
/// Pause between two checks. Each may start a process, which is slow in QEMU without KVM.
const LOOK: Duration = Duration::from_secs(1);

/// A kind of fault: its name, and the function that makes it and returns details.
type Kind = (&'static str, fn(&mut Faults) -> Result<String, Failure>);

/// Tables and chains of IPVS mode.
const IPVS_CHAINS: &[(&str, &str)] = &[
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

/// Tables and chains of iptables mode.
const IPTABLES_CHAINS: &[(&str, &str)] = &[
    ("nat", "KUBE-SERVICES"),
    ("nat", "KUBE-NODEPORTS"),
    ("nat", "KUBE-POSTROUTING"),
    ("nat", "KUBE-MARK-MASQ"),
    ("filter", "KUBE-FORWARD"),
    ("filter", "KUBE-PROXY-FIREWALL"),
];

/// Name of a change of mode.
const CHANGE: &str = "the mode changed";

const KILL: &str = "proxy killed and started again";

/// Faults of every mode.
const GENERAL: [Kind; 12] = [
    (KILL, Faults::kill),
    ("proxy stopped for a while (SIGSTOP)", |faults| {
        let time = faults.seconds(8, 20);
        let window = faults.is_in_the_way().then(|| faults.log.open(faults.kind, Scope::Waiting, None));
        faults.proxy.signal(Signal::SIGSTOP);
        faults.wait(time);
        faults.proxy.signal(Signal::SIGCONT);
        if let Some(window) = window {
            faults.log.close(window);
        }
        Ok(format!("{} s", time.as_secs()))
    }),
    ("lock of iptables held", Faults::hold_lock),
    ("address monitor overrun", Faults::overrun),
    ("watches cut", |faults| {
        faults.server.cut_watches();
        Ok(String::new())
    }),
    ("API server away", |faults| {
        let time = faults.seconds(2, 10);
        faults.server.outage(true);
        faults.wait(time);
        faults.server.outage(false);
        Ok(format!("{} s", time.as_secs()))
    }),
    ("versions too old (410)", |faults| Ok(faults.list_again(&[]))),
    ("API server answers 500 and 503", |faults| {
        for resource in ["services", "endpointslices"] {
            faults.server.fail_next(resource, Verb::Watch, ApiFault::Status(500, None));
        }
        Ok(faults.list_again(&[ApiFault::Status(500, None), ApiFault::Status(503, Some(1))]))
    }),
    ("API server answers late", |faults| {
        let late = faults.seconds(2, 6);
        Ok(faults.list_again(&[ApiFault::Late(late)]))
    }),
    ("lists cut in the middle", |faults| {
        Ok(faults.list_again(&[ApiFault::Cut(20_000), ApiFault::Text("<html>".to_owned())]))
    }),
    ("empty lists", |faults| {
        faults.server.compact();
        // The next list after the empty one is delayed. The versions are forgotten at once.
        Ok(faults.list_again(&[ApiFault::Empty, ApiFault::Late(Duration::from_secs(1))]))
    }),
    ("a node address flaps", Faults::flap),
];

/// Changes to a mode's tables by other programs.
fn edits(mode: Mode) -> &'static [Kind] {
    match mode {
        Mode::Ipvs => &[
            ("a real server deleted", Faults::edit_servers),
            ("a real server added", Faults::edit_servers),
            ("a weight changed", Faults::edit_servers),
            ("a virtual server deleted", Faults::edit_servers),
            ("a set flushed", Faults::flush_set),
            ("a chain flushed", |faults| faults.flush_chain(IPVS_CHAINS)),
            ("a Service's address deleted", Faults::delete_address),
        ],
        Mode::Nftables => &[
            ("an element deleted", Faults::edit_table),
            ("a map flushed", Faults::edit_table),
            ("a table deleted", Faults::edit_table),
            ("a chain flushed", Faults::edit_table),
            ("a rule deleted", Faults::edit_table),
            ("a rule added", Faults::edit_table),
        ],
        Mode::Iptables => &[
            ("a chain flushed", |faults| faults.flush_chain(IPTABLES_CHAINS)),
            ("a chain deleted", Faults::edit_rules),
            ("a rule deleted", Faults::edit_rules),
            ("a rule added", Faults::edit_rules),
        ],
        Mode::Userspace => &[("a Service's address deleted", Faults::delete_address)],
    }
}

/// The names of all kinds of faults in a mode.
pub(super) fn kinds(mode: Mode) -> BTreeSet<&'static str> {
    GENERAL.iter().chain(edits(mode)).map(|(name, _)| *name).collect()
}

/// Makes the faults.
pub(super) struct Faults {
    pub(super) server: Arc<ApiServer>,
    pub(super) proxy: Arc<Supervisor>,
    pub(super) log: Arc<Log>,
    /// Services that only these faults change.
    pub(super) steady: Vec<Service>,
    /// The period in which the process is not killed.
    pub(super) calm: (Duration, Duration),
    /// The modes to which it changes in rotation, and how long it stays in each.
    pub(super) others: Vec<Mode>,
    pub(super) every: Duration,
    /// Whether a short soak leaves less time for each.
    pub(super) hurried: bool,
    /// The time limit for repairing what other programs break.
    pub(super) repair: Duration,
    /// Whether a killed proxy is not restarted, to check that this is noticed.
    pub(super) no_restart: bool,
    pub(super) random: Random,
    pub(super) stop: Arc<AtomicBool>,
    /// The current fault.
    pub(super) kind: &'static str,
    /// Threads that wait for a repair.
    pub(super) repairs: Vec<JoinHandle<()>>,
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
    fn reals(&self) -> Vec<SocketAddr> {
        let hosts = self.service.hosts(self.way);
        hosts.into_iter().map(|host| SocketAddr::new(host.address(self.family), self.service.target)).collect()
    }

    /// nft's and ip's word for its family.
    fn ip(&self) -> &'static str {
        if self.family == Family::V4 { "ip" } else { "ip6" }
    }
}

impl Faults {
    /// Makes one fault after another until told to stop; returns what could not be done.
    pub(super) fn start(mut self) -> JoinHandle<Vec<String>> {
        std::thread::spawn(move || {
            let main = self.proxy.mode();
            let mut failed = Vec::new();
            let mut deck: Vec<Kind> = Vec::new();
            let mut dealt = false;
            let mut turns = std::mem::take(&mut self.others).into_iter().cycle();
            let mut next = self.log.now() + stays(main, main, self.every);
            while !self.stop.load(Ordering::Relaxed) {
                let mode = self.proxy.mode();
                if self.log.now() > next {
                    let to = if mode == main { turns.next() } else { Some(main) };
                    if let Some(to) = to {
                        // Let the proxy repair the old mode's tables first: the new mode ignores them.
                        self.wait_for_repairs();
                        failed.extend(self.change_mode(to).err().map(|error| format!("change to {to} mode: {error}")));
                        next = self.log.now() + stays(to, main, self.every);
                        // The general faults stay in the deck; those of a mode are dealt again.
                        deck.retain(|(name, _)| GENERAL.iter().any(|(known, _)| known == name));
                        deck.extend(edits(to));
                        self.random.shuffle(&mut deck);
                        continue;
                    }
                }
                if deck.is_empty() {
                    deck = [&GENERAL, edits(mode)].concat();
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
                self.kind = kind;
                match make(&mut self) {
                    Ok(detail) => self.note(kind, detail, now),
                    Err(error) => failed.push(format!("{kind}: {error}")),
                }
            }
            self.wait_for_repairs();
            failed
        })
    }

    /// Waits until all have seen their repair or given up.
    fn wait_for_repairs(&mut self) {
        for repair in self.repairs.drain(..) {
            repair.join().unwrap_or_default();
        }
    }

    fn note(&self, kind: &'static str, detail: String, from: Duration) {
        let until = self.log.now();
        self.log.notes().faults.push(Fault { kind, detail, from, until });
    }

    /// Ends the proxy and starts it in another mode; returns when it serves and nothing is left of the old mode.
    fn change_mode(&mut self, to: Mode) -> Result<(), Failure> {
        self.server.clear_faults();
        let (mode, begin) = (self.proxy.mode(), self.log.now());
        let breaks = breaks(mode, to);
        let mut open = Vec::new();
        let mut at = |moment: Moment, log: &Log| {
            // One that begins when another ends overlaps with it.
            let begun = breaks.iter().filter(|breaks| breaks.since == moment);
            let begun: Vec<_> =
                begun.map(|breaks| (breaks.until, log.open(CHANGE, breaks.scope.clone(), None))).collect();
            open.retain(|(until, window)| {
                if *until == moment {
                    log.close(*window);
                }
                *until != moment
            });
            open.extend(begun);
        };
        let changes = self.log.open(CHANGE, Scope::Uses(&[]), Some(self.repair));
        at(Moment::End, &self.log);
        let before = self.proxy.said().served;
        self.proxy.change_to(to)?;
        if !self.proxy.wait_until_served(before, self.repair * 2) {
            return Err("it never made its first pass".into());
        }
        at(Moment::Served, &self.log);
        let served = self.log.now();
        let mut left = held::leftovers(to)?;
        while !left.is_empty() && self.log.now().saturating_sub(served) < self.repair * 2 {
            std::thread::sleep(LOOK / 4);
            left = held::leftovers(to)?;
        }
        if !left.is_empty() {
            return Err(format!("left of other modes: {} things: {}", left.len(), first(&left, 5)).into());
        }
        at(Moment::Gone, &self.log);
        self.log.close(changes);
        let (served, gone) = (served.saturating_sub(begin), self.log.now().saturating_sub(begin));
        let detail = format!("serves after {:.1} s, alone after {:.1} s", served.as_secs_f64(), gone.as_secs_f64());
        self.note(changed(to), format!("from {mode}: {detail}"), begin);
        Ok(())
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
        self.proxy.mode() == Mode::Userspace
    }

    fn kill(&mut self) -> Result<String, Failure> {
        let window = self.is_in_the_way().then(|| self.log.open(self.kind, Scope::Everybody, Some(self.repair)));
        let before = self.proxy.said().served;
        self.proxy.kill();
        let time = Duration::from_millis(self.random.between(0, 3_000).into());
        self.wait(time);
        if !self.no_restart {
            self.proxy.start()?;
        }
        // A process that has just started would be killed by the next SIGTERM instead of ending properly.
        let serves = !self.no_restart && self.proxy.wait_until_served(before, self.repair);
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

    /// Another program changes something with these command lines; a thread checks until it is repaired.
    fn damage(
        &mut self,
        scope: Scope,
        lines: &[String],
        whole: impl Fn() -> bool + Send + 'static,
    ) -> Result<(), Failure> {
        let window = self.log.open(self.kind, scope, Some(self.repair));
        if let Some(error) = lines.iter().find_map(|line| tool(line).err()) {
            self.log.close(window);
            return Err(error);
        }
        let (log, patience) = (self.log.clone(), self.repair * 2);
        self.repairs.push(std::thread::spawn(move || {
            let begin = log.now();
            while log.now().saturating_sub(begin) < patience {
                if whole() {
                    std::thread::sleep(SLACK);
                    log.close(window);
                    return;
                }
                // Several may be pending: check less often over time.
                let waited = log.now().saturating_sub(begin);
                std::thread::sleep((waited / 10).clamp(LOOK, LOOK * 5));
            }
        }));
        Ok(())
    }

    fn edit_servers(&mut self) -> Result<String, Failure> {
        let place = self.place()?;
        let (option, at) = (option(place.service.protocol), place.at);
        let reals = place.reals();
        let real = *self.random.pick(&reals).ok_or("a steady Service without endpoints")?;
        let scope = Scope::Service(place.service.name.clone());
        let other = (0..PODS).map(|pod| SocketAddr::new(Host::Pod(pod).address(place.family), place.service.target));
        let others: Vec<SocketAddr> = other.filter(|other| !reals.contains(other)).collect();
        let line = match self.kind {
            "a real server deleted" => format!("ipvsadm -d {option} {at} -r {real}"),
            "a real server added" => {
                let other = self.random.pick(&others).ok_or("no other pod")?;
                format!("ipvsadm -a {option} {at} -r {other} -m -w 5")
            }
            "a weight changed" => format!("ipvsadm -e {option} {at} -r {real} -m -w 0"),
            _ => format!("ipvsadm -D {option} {at}"),
        };
        let lines = [line];
        let done = self.damage(scope, &lines, move || {
            let Ok(text) = tool(&format!("ipvsadm -Ln {option} {at}")) else { return false };
            let serves = |real: &SocketAddr| {
                let real = real.to_string();
                text.lines().any(|line| {
                    // "-> 10.244.1.12:8080 Masq 1 0 0", with the weight last but two.
                    let mut words = line.split_whitespace().skip(1);
                    words.next() == Some(&real) && words.nth(1).is_some_and(|weight| weight != "0")
                })
            };
            reals.iter().all(serves) && !others.iter().any(serves)
        });
        let [line] = lines;
        // An earlier fault may have deleted it.
        Ok(done.err().map_or_else(|| line.clone(), |error| format!("{line}: {error}")))
    }

    /// `more` holds, and all chains or elements of the steady Services exist, if the mode has them.
    fn whole(&self, more: impl Fn() -> bool + Send + 'static) -> impl Fn() -> bool + Send + 'static {
        let mode = self.proxy.mode();
        let wanted = Tables::of(mode, &self.steady, &node_addresses());
        let has_all = move || held::state(mode).is_ok_and(|kernel| wanted.missing(&kernel).next().is_none());
        move || more() && (mode == Mode::Ipvs || has_all())
    }

    /// Another program edits the table of nftables mode.
    fn edit_table(&mut self) -> Result<String, Failure> {
        // Missing objects cannot be edited.
        self.wait_for_repairs();
        let place = self.place()?;
        let ip = place.ip();
        let chains =
            ["services-by-port", "prerouting", "output", "postrouting", "forward-filter", "new-connections", "guard"];
        let chain = *self.random.pick(&chains).ok_or("no chain")?;
        let map = *self.random.pick(&["internal-4", "services", "endpoints", "allowed"]).ok_or("no map")?;
        let line = format!("timeout 20 nft -s list chain {ip} proxier {chain}");
        let list = move || {
            let _alone = held::nobody_writes();
            tool(&line)
        };
        let before = list()?;
        let (scope, line) = match self.kind {
            "an element deleted" => {
                let (at, protocol) = (place.at, lower(place.service.protocol));
                let key = format!("{} . {protocol} . {}", at.ip(), at.port());
                let sets =
                    ["internal-4", "internal-8", "internal-12", "external-4", "external-8", "external-12", "services"];
                let has = |set: &&&str| tool(&format!("nft get element {ip} proxier {set} {{ {key} }}")).is_ok();
                let set = sets.iter().find(has).ok_or("no element")?;
                (Scope::Service(place.service.name), format!("nft delete element {ip} proxier {set} {{ {key} }}"))
            }
            "a map flushed" => {
                // nft finds a map only as a map, and a set only as a set.
                let kind = if ["services", "endpoints"].contains(&map) { "map" } else { "set" };
                (Scope::Everybody, format!("nft flush {kind} {ip} proxier {map}"))
            }
            "a table deleted" => (Scope::Everybody, format!("nft delete table {ip} proxier")),
            "a chain flushed" => (Scope::Everybody, format!("nft flush chain {ip} proxier {chain}")),
            "a rule deleted" => {
                let alone = held::nobody_writes();
                let text = tool(&format!("nft -a list chain {ip} proxier {chain}"))?;
                drop(alone);
                let handle = text.lines().filter_map(|line| line.split_once(" # handle ")).next_back();
                let handle = handle.ok_or("a chain without rules")?.1;
                (Scope::Everybody, format!("nft delete rule {ip} proxier {chain} handle {handle}"))
            }
            // All packets pass its chains, including those to pods: the rule concerns the Service.
            _ => {
                let rule = format!("{ip} daddr {} counter drop", place.at.ip());
                (Scope::Everybody, format!("nft insert rule {ip} proxier {chain} {rule}"))
            }
        };
        let whole = self.whole(move || list().is_ok_and(|now| now == before));
        self.damage(scope, std::slice::from_ref(&line), whole)?;
        Ok(line)
    }

    /// Another program edits the rules of iptables mode.
    fn edit_rules(&mut self) -> Result<String, Failure> {
        self.wait_for_repairs();
        let program = *self.random.pick(&IPTABLES).ok_or("no program")?;
        let (scope, lines) = match self.kind {
            // No packet passes it. Without it, the proxy must detect that its chains may be missing.
            "a chain deleted" => (Scope::Uses(&[]), vec!["-F KUBE-PROXY-CANARY", "-X KUBE-PROXY-CANARY"]),
            "a rule deleted" => (Scope::Everybody, vec!["-D KUBE-SERVICES 1"]),
            _ => (Scope::Everybody, vec!["-I KUBE-SERVICES -j RETURN"]),
        };
        let lines: Vec<String> = lines.iter().map(|line| format!("{program} -w 20 -t nat {line}")).collect();
        let whole = self.whole(move || {
            let has = |line: &str| tool(&format!("{program} -w 20 -t nat {line}")).is_ok();
            has("-S KUBE-PROXY-CANARY") && !has("-C KUBE-SERVICES -j RETURN")
        });
        self.damage(scope, &lines, whole)?;
        Ok(lines.join(", "))
    }

    fn flush_set(&mut self) -> Result<String, Failure> {
        let wanted = Tables::of(Mode::Ipvs, &self.steady, &[]);
        let entries: Vec<String> = wanted.of_tool(SETS).cloned().collect();
        let entry = self.random.pick(&entries).ok_or("no entry")?.clone();
        let mut words = entry.split(' ').skip(1).map(str::to_owned);
        let (Some(set), Some(element)) = (words.next(), words.next()) else { return Err("no entry".into()) };
        let (flush, test) = (format!("ipset flush {set}"), format!("ipset test {set} {element}"));
        self.damage(Scope::Everybody, &[flush], move || tool(&test).is_ok())?;
        Ok(set)
    }

    fn flush_chain(&mut self, chains: &[(&str, &str)]) -> Result<String, Failure> {
        let (table, chain) = *self.random.pick(chains).ok_or("no chain")?;
        let program = *self.random.pick(&IPTABLES).ok_or("no program")?;
        let list = format!("{program} -w 20 -t {table} -S {chain}");
        let rules = move || Some(tool(&list).ok()?.lines().count());
        // A missing chain cannot be flushed.
        let Some(before) = rules() else { return Ok(format!("{program} has no chain {chain}")) };
        // In iptables mode each Service has rules there, and some are deleted meanwhile; those that stay are checked
        // one by one.
        let whole = self.whole(move || rules().is_some_and(|now| now * 4 >= before * 3));
        let flush = format!("{program} -w 20 -t {table} -F {chain}");
        self.damage(Scope::Everybody, &[flush], whole)?;
        Ok(format!("{program} {chain}"))
    }

    fn delete_address(&mut self) -> Result<String, Failure> {
        let mut place = self.place()?;
        while place.way == Way::NodePort {
            place = self.place()?;
        }
        let address: IpAddr = place.at.ip();
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let (line, show) = if self.is_in_the_way() {
            let route = if address.is_ipv4() { "ip route" } else { "ip -6 route" };
            let show = format!("{route} show table local exact {address}/{bits}");
            (format!("{route} del table local local {address}/{bits}"), show)
        } else {
            let device = "dev kube-ipvs0";
            (format!("ip addr del {address}/{bits} {device}"), format!("ip -o addr show {device} to {address}"))
        };
        let whole = move || tool(&show).is_ok_and(|text| !text.trim().is_empty());
        self.damage(Scope::Service(place.service.name), &[line], whole)?;
        Ok(address.to_string())
    }

    /// Removes and adds the node's second addresses a few times.
    fn flap(&mut self) -> Result<String, Failure> {
        let times = self.random.between(1, 4);
        let windows = Family::ALL.map(|family| self.log.open(self.kind, Scope::Address(flapping(family)), None));
        for _ in 0..times {
            for (verb, nodad) in [("del", ""), ("add", " nodad")] {
                for (family, bits) in Family::ALL.into_iter().zip([24, 64]) {
                    let nodad = if family == Family::V6 { nodad } else { "" };
                    tool(&format!("ip addr {verb} {}/{bits} dev eth0{nodad}", flapping(family)))?;
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

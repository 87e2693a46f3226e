//! Clients that keep connecting, and record each connection that failed or reached the wrong pod.
//!
//! Clients' connections do not reuse a port until all ports were used, not even to different destinations. IPVS finds
//! the connection of an answer by the real server and the client's address and port (`ip_vs_conn_out_get`). If two
//! connections share both, the younger gets all answers. That is the kernel's rule and not tested here.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use testkit::witness::{Conversation, Transport};

use super::ground::{self, FOREIGN, FOREIGN_PORT, Ground, has_ipvs};
use super::random::Random;
use super::script::Script;
use super::truth::{is_guarded, ways};
use super::watchers::{Log, Miss, Use};
use super::world::{Family, Host, POD_PORT, PODS, Protocol, Service, Way, flapping};
use crate::Failure;

/// Time limit of a client for a connection and for an answer: a lost first packet is sent again after 1, 3, 7 and 15 s.
const LIMIT: Duration = Duration::from_secs(20);
/// Time limit for each answer over UDP.
const UDP_LIMIT: Duration = Duration::from_secs(5);
/// How long to wait for an answer that must not come.
const SILENCE: Duration = Duration::from_secs(1);

/// Ports of short connections, and those of long ones.
const SHORT: (u32, u32) = (2_000, 46_000);
const LONG: (u32, u32) = (48_000, 14_000);
/// Ports of connections from the node: the proxy listens on lower ones, and clients of the API server use higher ones.
const NODE: (u32, u32) = (20_000, 9_000);

/// Target of a client's connection.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) service: String,
    pub(super) protocol: Protocol,
    pub(super) place: SocketAddr,
    pub(super) way: Way,
}

/// All running clients.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Clone)]
struct Client {
    number: usize,
    log: Arc<Log>,
    stop: Arc<AtomicBool>,
    ports: Arc<AtomicU32>,
    range: (u32, u32),
    /// How long a pod may still get new connections after it stopped being an endpoint: the proxy may be stopped
    /// meanwhile.
    stale: Duration,
}

impl Client {
    fn port(&self) -> u16 {
        let number = self.ports.fetch_add(1, Ordering::Relaxed) % self.range.1;
        u16::try_from(self.range.0 + number).unwrap_or(0)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits, unless the soak ends first.
    fn pause(&self, time: Duration) {
        let end = self.log.now() + time;
        while !self.stopped() && self.log.now() < end {
            std::thread::sleep(Duration::from_millis(250).min(end.saturating_sub(self.log.now())));
        }
    }

    fn miss(&self, what: Use, target: &Target, from: Duration, error: &io::Error) {
        let waited = error.kind() == io::ErrorKind::TimedOut;
        self.note(what, target, from, waited, error.to_string());
    }

    fn note(&self, what: Use, target: &Target, from: Duration, waited: bool, error: String) {
        let miss = Miss {
            what,
            client: self.number,
            service: target.service.clone(),
            place: format!("{} {}", target.protocol, target.place),
            address: Some(target.place.ip()),
            from,
            until: self.log.now(),
            waited,
            error,
        };
        self.log.notes().misses.push(miss);
    }

    fn done(&self, what: Use) {
        *self.log.notes().made.entry(what).or_default() += 1;
    }

    /// Connects from its next port.
    fn open(&self, target: &Target, from: Option<IpAddr>, limit: Duration) -> io::Result<Conversation> {
        let transport = if target.protocol == Protocol::Tcp { Transport::Tcp } else { Transport::Udp };
        Conversation::open_from_port(transport, from, self.port(), target.place, limit)
    }

    /// Asks once; returns the name of the pod that answered.
    fn ask(&self, target: &Target, from: Option<IpAddr>, limit: Duration) -> io::Result<String> {
        let mut conversation = self.open(target, from, limit)?;
        if target.protocol == Protocol::Tcp {
            return Ok(conversation.ask()?.name);
        }
        // As a resolver does. A query on its way to a removed pod may be lost, but the flow must not be.
        for _ in 0..2 {
            if let Ok(answer) = conversation.ask() {
                return Ok(answer.name);
            }
            self.log.notes().again += 1;
        }
        Ok(conversation.ask()?.name)
    }

    fn check(&self, target: &Target, name: &str, from: Duration) {
        let Ok(pod) = name.parse::<u16>() else { return };
        let known = self.log.notes().endpoints.get(&(target.service.clone(), pod)).copied();
        let gone = known.flatten();
        if known != Some(None) && gone.is_none_or(|gone| from.saturating_sub(gone) > self.stale) {
            self.note(Use::Stale, target, from, false, format!("pod {name} has answered, no endpoint since {gone:?}"));
        }
    }

    fn short(&self, targets: &[Target], what: Option<Use>, pause: Duration) {
        for target in targets.iter().cycle() {
            if self.stopped() || targets.is_empty() {
                return;
            }
            let of_protocol = if target.protocol == Protocol::Udp { Use::Datagram } else { Use::Short };
            let what = what.unwrap_or(of_protocol);
            let limit = if target.protocol == Protocol::Udp { UDP_LIMIT } else { LIMIT };
            // A client has two addresses, and the kernel would choose one; the node uses the destination address as
            // source.
            let source = (what != Use::Node).then(|| ground::client(Family::of(target.place.ip()), false));
            let from = self.log.now();
            match self.ask(target, source, limit) {
                Ok(name) => {
                    self.done(what);
                    if matches!(what, Use::Short | Use::Datagram | Use::Node) {
                        self.check(target, &name, from);
                    }
                }
                Err(error) => self.miss(what, target, from, &error),
            }
            self.pause(pause);
        }
    }

    /// Connections that stay open, even if their endpoint is removed.
    fn long(&self, targets: &[Target], what: Use, mut random: Random) {
        while !self.stopped() {
            let Some(target) = random.pick(targets) else { return };
            let mut well = self.log.now();
            let mut opened = false;
            let source = Some(ground::client(Family::of(target.place.ip()), false));
            let talk = self.open(target, source, LIMIT).and_then(|mut conversation| {
                let first = conversation.ask()?.name;
                opened = true;
                for _ in 0..random.between(5, 90) {
                    well = self.log.now();
                    if self.stopped() {
                        break;
                    }
                    self.pause(Duration::from_secs(1));
                    let name = conversation.ask()?.name;
                    if name != first {
                        return Err(io::Error::other(format!("pod {first} became pod {name}")));
                    }
                }
                Ok(())
            });
            match talk {
                Ok(()) => self.done(what),
                // One that was never open counts as a short one: an open one survives more.
                Err(error) if !opened => {
                    self.miss(Use::Short, target, well, &error);
                    self.pause(Duration::from_millis(500));
                }
                Err(error) => self.miss(what, target, well, &error),
            }
        }
    }

    /// Connects from an address outside the source ranges.
    fn intrude(&self, targets: &[Target]) {
        for target in targets.iter().cycle() {
            if self.stopped() || targets.is_empty() {
                return;
            }
            let stranger = ground::client(Family::of(target.place.ip()), true);
            let from = self.log.now();
            match self.open(target, Some(stranger), SILENCE).and_then(|mut conversation| conversation.ask()) {
                Ok(answer) => {
                    let name = answer.name;
                    self.note(Use::Stranger, target, from, false, format!("pod {name} has answered a stranger"));
                }
                Err(_) => self.done(Use::Stranger),
            }
            self.pause(Duration::from_millis(200));
        }
    }
}

impl Load {
    pub(super) fn start(
        ground: &Ground,
        log: &Arc<Log>,
        script: &Script,
        (seed, stale): (u64, Duration),
    ) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |range: (u32, u32)| Client {
            number: 0,
            log: log.clone(),
            stop: stop.clone(),
            ports: Arc::default(),
            range,
            stale,
        };
        let mut threads = Vec::new();
        let mut run = |client: &Client, work: Box<dyn FnOnce(Client) + Send>| -> Result<(), Failure> {
            let client = Client { number: threads.len(), ..client.clone() };
            threads.push(ground.client.spawn(move || work(client))?);
            Ok(())
        };
        let (short, long) = (client(SHORT), client(LONG));
        let of_service = |service: &Service| {
            let target =
                |(way, _, place)| Target { service: service.name.clone(), protocol: service.protocol, place, way };
            ways(service).map(target).collect::<Vec<_>>()
        };
        let all: Vec<Target> = script.used.iter().flat_map(of_service).collect();
        // About 25 connections per second, as many as QEMU without KVM can handle in addition.
        for number in 0..8 {
            let mut targets = all.clone();
            Random::new(seed, 100 + number).shuffle(&mut targets);
            run(&short, Box::new(move |client| client.short(&targets, None, Duration::from_millis(250))))?;
        }
        let streams: Vec<Target> = all.iter().filter(|target| target.protocol == Protocol::Tcp).cloned().collect();
        let mut flap = streams.clone();
        flap.retain(|target| target.way == Way::NodePort);
        for target in &mut flap {
            target.place.set_ip(flapping(Family::of(target.place.ip())));
        }
        for (count, first, what, targets) in [(12, 200, Use::Long, streams), (2, 300, Use::Flapping, flap)] {
            for number in first..first + count {
                let (targets, random) = (targets.clone(), Random::new(seed, number));
                run(&long, Box::new(move |client| client.long(&targets, what, random)))?;
            }
        }
        let strange = script.used.iter().filter(|service| is_guarded(service) && !service.ranges.has_node());
        let mut guarded: Vec<Target> = strange.flat_map(of_service).collect();
        guarded.retain(|target| target.way == Way::Balancer);
        run(&client((46_000, 2_000)), Box::new(move |client| client.intrude(&guarded)))?;
        let target = |service: &str, place: SocketAddr| Target {
            service: service.to_owned(),
            protocol: Protocol::Tcp,
            place,
            way: Way::ClusterIp,
        };
        let foreign_ports = has_ipvs().then_some(80).into_iter().chain([FOREIGN_PORT]);
        let of_others = |port| Ok(target("foreign", SocketAddr::new(FOREIGN.parse::<IpAddr>()?, port)));
        let foreign = foreign_ports.map(of_others).collect::<Result<Vec<_>, Failure>>()?;
        let pause = Duration::from_millis(500);
        run(&short, Box::new(move |client| client.short(&foreign, Some(Use::Foreign), pause)))?;
        let pods = (0..PODS).flat_map(|pod| Family::ALL.map(|family| Host::Pod(pod).address(family)));
        let direct: Vec<Target> = pods.map(|address| target("direct", SocketAddr::new(address, POD_PORT))).collect();
        run(&short, Box::new(move |client| client.short(&direct, Some(Use::Direct), pause)))?;
        // On the node, with its own ports.
        let on_node = Client { number: threads.len(), ..client(NODE) };
        let mut clusters = all;
        clusters.retain(|target| target.way == Way::ClusterIp);
        threads.push(std::thread::spawn(move || on_node.short(&clusters, Some(Use::Node), pause)));
        Ok(Load { stop, threads })
    }

    /// Ends all clients.
    pub(super) fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap_or_default();
        }
    }
}

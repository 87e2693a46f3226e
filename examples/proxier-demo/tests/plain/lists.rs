//! The source `cluster` and the reconciler together, with all kinds of faults between the API server and them: Services that do not change stay in
//! the kernel as they are, and in the end the kernel follows the server.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ipvs::model::Weight;
use proxier_core::engine;
use proxier_core::fake::FakeKernel;
use proxier_demo::engine::Engine;
use proxier_demo::message::{Event, channel};
use proxier_demo::sources::cluster::{Cluster, Connection, Options};
use serde_json::{Value, json};
use testkit::apiserver::{ApiServer, Fault, Verb};
use tokio::sync::mpsc::Receiver;

use crate::damaged::Memory;

/// Number of Services that never change: their names sort last, so that they come last.
const STEADY: u32 = 40;
/// Number of Services that change all the time.
const CROWD: u32 = 60;
/// Duration of the faults.
const TIME: Duration = Duration::from_secs(12);

/// Numbers that look random (a linear congruential generator), from the run's seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).unwrap() % end
    }
}

fn service(name: &str, address: &str) -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "default", "name": name},
        "spec": {"clusterIP": address, "ports": [{"name": "p", "port": 80}]},
    })
}

fn slice(name: &str, endpoints: &[String]) -> Value {
    let endpoints: Vec<Value> = endpoints.iter().map(|address| json!({"addresses": [address]})).collect();
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {
            "namespace": "default", "name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name},
        },
        "ports": [{"name": "p", "port": 8080}], "endpoints": endpoints,
    })
}

/// `TCP 10.96.0.1:80 -> 10.244.0.1:8080` for each real server that takes connections.
fn served(kernel: &FakeKernel) -> BTreeSet<String> {
    let mut kernel = kernel.clone();
    let snapshot = kernel.ports().ipvs.snapshot().unwrap();
    let mut lines = BTreeSet::new();
    for entry in snapshot.entries {
        let key = entry.virtual_server.server.key;
        let reals = entry.real_servers.iter().map(|real| real.server);
        lines.extend(
            reals.filter(|real| real.config.weight != Weight::DRAIN).map(|real| format!("{key} -> {}", real.key)),
        );
    }
    lines
}

fn steady() -> BTreeSet<String> {
    (1..=STEADY).map(|number| format!("TCP 10.96.9.{number}:80 -> 10.244.9.{number}:8080")).collect()
}

/// The kernel's thread of the program: takes changes, and does the work that is due.
fn follow(mut changes: Receiver<Event>, kernel: &FakeKernel, ends: &AtomicBool, lost: &Mutex<Vec<String>>) {
    let mut options = engine::Options::default();
    options.limits.max_interval = Duration::from_secs(3);
    // Longer than any list takes to come back here.
    options.mass_removal.patience = Some(Duration::from_secs(4));
    let mut engine = Engine::new("n1", options, Memory(kernel.clone()));
    let started = Instant::now();
    let mut complete = false;
    while !ends.load(Ordering::Relaxed) {
        let mut said = Vec::new();
        while let Ok(event) = changes.try_recv() {
            if let proxier_demo::message::change::Change::Lost(_, keys) = &event.change {
                said.push(format!("{} lost, first {}", keys.len(), keys[0]));
            }
            engine.apply_change(event.change, event.at);
        }
        if let Some(report) = engine.pass() {
            let there = served(kernel);
            let missing = steady().difference(&there).count();
            complete |= missing == 0;
            if complete && missing > 0 {
                let at = started.elapsed().as_millis();
                lost.lock().unwrap().push(format!(
                    "{at} ms: {missing} of {STEADY} missing, {} operations, stopped: {:?}; {said:?}",
                    report.writes(),
                    report.stopped
                ));
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Causes one fault.
fn fault(server: &ApiServer, random: &mut Random) {
    let kinds = ["services", "endpointslices"];
    let which = match random.below(3) {
        0 => &kinds[..1],
        1 => &kinds[1..],
        _ => &kinds[..],
    };
    let what = random.below(8);
    for resource in which {
        let watch = |fault| server.fail_next(resource, Verb::Watch, fault);
        let list = |fault| server.fail_next(resource, Verb::List, fault);
        match what {
            0 => {
                server.compact();
                watch(Fault::Status(410, None));
                list(Fault::Empty);
                list(Fault::Late(Duration::from_millis(100)));
            }
            1 => {
                watch(Fault::Status(410, None));
                list(Fault::Cut(3_000));
                list(Fault::Text("<html>".to_owned()));
            }
            2 => {
                watch(Fault::Status(500, None));
                list(Fault::Status(500, None));
                list(Fault::Status(503, Some(1)));
            }
            3 => watch(Fault::Status(410, None)),
            4 => server.compact(),
            5 => server.end_watches(),
            _ => {}
        }
    }
    if what == 7 {
        server.outage(true);
        std::thread::sleep(Duration::from_millis(u64::from(random.below(200))));
        server.outage(false);
    }
    server.cut_watches();
}

#[test]
fn what_nobody_changes_stays_whatever_goes_wrong() {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("PROPTEST_RNG_SEED={seed}");
    let mut random = Random(seed);
    let server = ApiServer::start();
    server.put(&json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}}));
    for number in 1..=STEADY {
        let name = format!("steady-{number:03}");
        server.put(&service(&name, &format!("10.96.9.{number}")));
        server.put(&slice(&name, &[format!("10.244.9.{number}")]));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut options = Options::default();
    options.first_pause = Duration::from_millis(10);
    options.longest_pause = Duration::from_millis(300);
    options.patience = Duration::from_millis(500);
    let connection = Connection { master: Some(server.url()), ..Connection::default() };
    let (sender, changes) = channel();
    let _cluster = runtime.block_on(Cluster::start(connection, "n1", options, sender)).unwrap();
    let (kernel, ends, lost) = (FakeKernel::new(), Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let follower = {
        let (kernel, ends, lost) = (kernel.clone(), ends.clone(), lost.clone());
        std::thread::spawn(move || follow(changes, &kernel, &ends, &lost))
    };
    let mut wanted: Vec<BTreeSet<String>> = vec![BTreeSet::new(); usize::try_from(CROWD).unwrap()];
    let start = Instant::now();
    let mut next_fault = Duration::from_secs(1);
    while start.elapsed() < TIME {
        let number = random.below(CROWD);
        let (name, address) = (format!("crowd-{number:03}"), format!("10.96.1.{number}"));
        let lines = &mut wanted[usize::try_from(number).unwrap()];
        lines.clear();
        if random.below(4) == 0 {
            server.delete("services", "default", &name);
            server.delete("endpointslices", "default", &format!("{name}-1"));
        } else {
            let endpoints: Vec<String> =
                (0..random.below(4)).map(|_| format!("10.244.1.{}", 1 + random.below(250))).collect();
            server.put(&service(&name, &address));
            server.put(&slice(&name, &endpoints));
            lines.extend(endpoints.iter().map(|endpoint| format!("TCP {address}:80 -> {endpoint}:8080")));
        }
        if start.elapsed() > next_fault {
            fault(&server, &mut random);
            next_fault = start.elapsed() + Duration::from_millis(u64::from(random.below(700)));
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    server.clear_faults();
    server.outage(false);
    let all: BTreeSet<String> = wanted.into_iter().flatten().chain(steady()).collect();
    let settling = Instant::now();
    // Services that were deleted while a list was empty stay for a while ([`proxier_core::safeguard::MassRemoval::patience`]).
    while !served(&kernel).is_superset(&all) {
        let there = served(&kernel);
        let missing: Vec<&String> = all.difference(&there).collect();
        assert!(
            settling.elapsed() < Duration::from_secs(20),
            "never served: {missing:#?}; {:#?}",
            lost.lock().unwrap()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    ends.store(true, Ordering::Relaxed);
    follower.join().unwrap();
    let lost = lost.lock().unwrap();
    assert!(lost.is_empty(), "{lost:#?}");
}

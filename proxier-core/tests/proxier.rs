//! The reconciler on a kernel in memory: what is there after a pass, and what was written for it.

use std::time::Duration;

use proxier_core::fake::FakeKernel;
use proxier_core::objects::{EndpointSliceObject, ServiceObject};
use proxier_core::proxier::{Options, Proxier};
use proxier_core::report::Report;
use proxier_core::snapshot::ObjectKey;
use serde_json::{Value, json};

struct World {
    kernel: FakeKernel,
    proxier: Proxier,
    now: Duration,
}

impl World {
    fn new() -> Self {
        let kernel = FakeKernel::new();
        kernel.set_interface("eth0", &["192.0.2.10".parse().unwrap()]);
        World { kernel, proxier: new_proxier(), now: Duration::ZERO }
    }

    fn service(&mut self, value: Value) {
        let object: ServiceObject = serde_json::from_value(value).unwrap();
        self.proxier.upsert_service(&object, self.now);
    }

    fn slice(&mut self, service: &str, addresses: &[&str]) {
        let endpoints: Vec<Value> = addresses.iter().map(|address| json!({ "addresses": [address] })).collect();
        let object: EndpointSliceObject = serde_json::from_value(json!({
            "metadata": {
                "namespace": "demo", "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": endpoints,
        }))
        .unwrap();
        self.proxier.upsert_slice(&object, self.now);
    }

    /// One pass, now. Panics when none is due.
    fn pass(&mut self) -> Report {
        let now = self.now;
        let report = self.proxier.pass(&|| now, &mut self.kernel.ports());
        report.unwrap_or_else(|| panic!("nothing is due at {now:?}, but at {:?}", self.proxier.next_wake()))
    }

    /// Passes until none is due before this much time has gone by.
    fn run(&mut self, time: Duration) -> Vec<Report> {
        let end = self.now + time;
        let mut reports = Vec::new();
        while let Some(at) = self.proxier.next_wake().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            reports.push(self.pass());
        }
        self.now = end;
        reports
    }

    fn servers(&mut self) -> String {
        let ports = self.kernel.ports();
        let snapshot = ports.ipvs.snapshot().unwrap();
        let mut lines = Vec::new();
        for entry in snapshot.entries {
            let server = entry.virtual_server.server;
            let mut reals: Vec<_> = entry.real_servers.iter().map(|real| real.server).collect();
            reals.sort_unstable();
            let reals: Vec<String> = reals.iter().map(|real| format!(" {}*{}", real.key, real.config.weight)).collect();
            lines.push(format!("{}{}", server.key, reals.concat()));
        }
        lines.sort();
        lines.join("\n")
    }
}

fn new_proxier() -> Proxier {
    Proxier::new("node-a", Options::default(), Duration::ZERO)
}

fn web() -> Value {
    json!({
        "metadata": {"namespace": "demo", "name": "web"},
        "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}]},
    })
}

#[test]
fn nothing_is_touched_before_the_lists_are_complete() {
    let mut world = World::new();
    world.service(web());
    assert_eq!(world.proxier.next_wake(), None);
    let now = world.now;
    assert!(world.proxier.pass(&|| now, &mut world.kernel.ports()).is_none());
    assert_eq!(world.kernel.writes().total(), 0);
}

#[test]
fn a_service_is_served_and_a_second_full_pass_writes_nothing() {
    let mut world = World::new();
    world.service(web());
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    let report = world.pass();
    assert!(report.full && report.is_done(), "{report:#?}");
    assert_eq!(world.servers(), "TCP 10.96.0.10:80 10.244.0.1:8080*1 10.244.0.2:8080*1");
    let before = world.kernel.writes().total();
    let reports = world.run(Duration::from_secs(31));
    assert_eq!(reports.len(), 1);
    assert!(reports[0].full && reports[0].is_done() && reports[0].drift.is_empty(), "{reports:#?}");
    assert_eq!(world.kernel.writes().total(), before);

    // Another process, same kernel.
    world.proxier = new_proxier();
    world.service(web());
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    assert!(world.pass().is_done());
    assert_eq!(world.kernel.writes().total(), before);
}

#[test]
fn an_endpoint_drains_comes_back_and_goes_in_the_end() {
    let mut world = World::new();
    world.service(web());
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    world.pass();
    let before = world.kernel.writes().total();
    world.slice("web", &["10.244.0.1"]);
    let report = world.pass();
    assert!(!report.full && report.is_done() && report.draining == 1, "{report:#?}");
    assert_eq!(world.kernel.writes().total(), before + 1);
    assert_eq!(world.servers(), "TCP 10.96.0.10:80 10.244.0.1:8080*1 10.244.0.2:8080*0");
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.pass();
    assert_eq!(world.kernel.writes().total(), before + 2);
    assert_eq!(world.servers(), "TCP 10.96.0.10:80 10.244.0.1:8080*1 10.244.0.2:8080*1");
    world.slice("web", &["10.244.0.1"]);
    world.pass();
    let reports = world.run(Duration::from_secs(2));
    assert_eq!(world.servers(), "TCP 10.96.0.10:80 10.244.0.1:8080*1", "{reports:#?}");
    assert!(world.proxier.drains().is_empty());
}

#[test]
fn a_deleted_service_leaves_nothing() {
    let mut world = World::new();
    world.proxier.start(world.now);
    world.pass();
    let empty = world.kernel.state();
    world.service(web());
    world.slice("web", &["10.244.0.1"]);
    world.pass();
    assert_ne!(world.kernel.state(), empty);
    world.proxier.delete_service(&ObjectKey::new("demo", "web"), world.now);
    assert!(world.pass().is_done());
    assert_eq!(world.kernel.state(), empty);
}

#[test]
fn what_vanishes_from_a_list_all_at_once_is_kept_and_what_is_deleted_goes() {
    let mut world = World::new();
    let services: Vec<ServiceObject> = (1..=20)
        .map(|number| {
            serde_json::from_value(json!({
                "metadata": {"namespace": "demo", "name": format!("web-{number}")},
                "spec": {"clusterIP": format!("10.96.0.{number}"), "ports": [{"port": 80}]},
            }))
            .unwrap()
        })
        .collect();
    world.proxier.replace_objects(&services, [], world.now);
    world.proxier.start(world.now);
    assert!(world.pass().is_done());
    let full = world.servers();
    world.proxier.replace_objects([], [], world.now);
    let report = world.pass();
    assert!(report.stopped.as_deref().is_some_and(|why| why.starts_with("20 of 20 ")), "{report:#?}");
    assert!(!report.is_done());
    assert_eq!(world.servers(), full);
    // It is back, and all is well.
    world.proxier.replace_objects(&services, [], world.now);
    assert!(world.run(Duration::from_secs(31)).last().is_some_and(|report| report.is_done() && report.writes() == 0));
    // Other Services in their place are no empty list.
    let mut others = services.clone();
    for other in &mut others {
        other.spec.cluster_ip = other.spec.cluster_ip.take().map(|ip| ip.replace("10.96.0.", "10.96.7."));
    }
    world.proxier.replace_objects(&others, [], world.now);
    assert!(world.pass().is_done());
    assert!(!world.servers().contains("10.96.0."));
    // One by one they may all go.
    for service in &others {
        world.proxier.delete_service(&ObjectKey::of(&service.metadata), world.now);
    }
    let report = world.pass();
    assert!(report.is_done(), "{report:#?}");
    assert_eq!(world.servers(), "");
}

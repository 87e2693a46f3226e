//! The reconciler on a kernel in memory: what is there after a pass, and what was written for it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::net::Ipv4Addr;
use std::time::Duration;

use ipvs::model::Family;
use ipvs::{Operation, RealServer};
use proxier_core::fake::{Call, FakeKernel, Fault, Flow};
use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use proxier_core::ports::PortErrorKind;
use proxier_core::proxier::{Options, Proxier};
use proxier_core::report::Report;
use proxier_core::snapshot::ObjectKey;
use proxier_core::step::Part;
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
        let protocol = if service == "dns" { "UDP" } else { "TCP" };
        let object: EndpointSliceObject = serde_json::from_value(json!({
            "metadata": {
                "namespace": "demo", "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "protocol": protocol, "port": 8080}],
            "endpoints": endpoints,
        }))
        .unwrap();
        self.proxier.upsert_slice(&object, self.now);
    }

    /// One pass, now. Panics when none is due.
    fn pass(&mut self) -> Report {
        let now = self.now;
        let report = self.proxier.pass(&|| now, &mut self.kernel.ports());
        // Which changes where things are kept, and nothing else.
        self.proxier.compact();
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

/// The rules of load balancers stay as long as the virtual servers do, whatever else passes.
#[test]
fn what_is_kept_keeps_its_rules() {
    let mut world = World::new();
    let balancer = |number: u8| -> ServiceObject {
        serde_json::from_value(json!({
            "metadata": {"namespace": "demo", "name": format!("web-{number}")},
            "spec": {
                "type": "LoadBalancer", "clusterIP": format!("10.96.1.{number}"), "ports": [{"port": 80}],
                "loadBalancerSourceRanges": ["192.0.2.0/24"],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": format!("203.0.113.{number}")}]}},
        }))
        .unwrap()
    };
    let services: Vec<ServiceObject> = (1..=20).map(balancer).collect();
    world.proxier.replace_objects(&services, [], world.now);
    world.proxier.start(world.now);
    assert!(world.pass().is_done());
    let full = world.kernel.state();
    world.proxier.replace_objects([], [], world.now);
    assert!(world.pass().stopped.is_some());
    assert_eq!(world.kernel.state(), full);
    assert_eq!(world.proxier.guard().held().count(), 40);
    // What is kept serves: the node is well, and nothing is tried again and again.
    assert_eq!((world.proxier.schedule().failures(), world.proxier.schedule().pending_since()), (0, None));
    assert_eq!((world.proxier.totals().failed_passes, world.proxier.totals().stopped_passes), (0, 1));
    // A new Service comes and goes.
    world.service(web());
    world.slice("web", &["10.244.0.1"]);
    assert!(world.run(Duration::from_secs(31)).iter().all(|report| report.stopped.is_some()));
    assert_eq!(world.kernel.state().rules, full.rules);
    world.proxier.delete_service(&ObjectKey::new("demo", "web"), world.now);
    assert!(world.run(Duration::from_secs(31)).iter().all(|report| report.stopped.is_some()));
    assert_eq!(world.kernel.state(), full);
    // They come back one after the other.
    for service in &services {
        world.proxier.upsert_service(service, world.now);
        world.run(Duration::from_secs(3));
        assert_eq!(world.kernel.state(), full);
    }
    assert!(world.run(Duration::from_secs(31)).last().is_some_and(Report::is_done));
    assert_eq!(world.kernel.state(), full);
}

/// A proxier that knows its node's address.
fn on_a_node() -> Proxier {
    let mut proxier = new_proxier();
    let node = json!({
        "metadata": {"name": "node-a"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.10"}]},
    });
    proxier.set_node(&serde_json::from_value::<NodeObject>(node).unwrap(), Duration::ZERO);
    proxier
}

/// A load balancer on port 80: `192.0.2.0/24` has this node in it.
fn balancer(number: u8, policy: &str, range: Option<&str>) -> ServiceObject {
    serde_json::from_value(json!({
        "metadata": {"namespace": "demo", "name": format!("lb-{number}")},
        "spec": {
            "type": "LoadBalancer", "clusterIP": format!("10.96.1.{number}"), "ports": [{"port": 80}],
            "externalTrafficPolicy": policy, "loadBalancerSourceRanges": range.map(|range| vec![range]),
        },
        "status": {"loadBalancer": {"ingress": [{"ip": format!("203.0.113.{number}")}]}},
    }))
    .unwrap()
}

/// What comes while something is kept gets its rules at once, and what is kept loses none: they are the rules of a
/// cluster that has both. So too when another process held it back.
#[test]
fn what_comes_while_something_is_kept_is_guarded_too() {
    let kinds =
        [("Cluster", None), ("Local", None), ("Cluster", Some("192.0.2.0/24")), ("Local", Some("198.51.100.0/24"))];
    let node_world = || World { proxier: on_a_node(), ..World::new() };
    let pairs = kinds.iter().flat_map(|kept| kinds.iter().map(move |new| [*kept, *new]));
    for (both_kinds, restarts) in pairs.flat_map(|pair| [(pair, false), (pair, true)]) {
        let [kept, new] = both_kinds;
        let kept: Vec<ServiceObject> = (1..=20).map(|number| balancer(number, kept.0, kept.1)).collect();
        let new = balancer(30, new.0, new.1);
        let both = |world: &mut World| {
            world.proxier.replace_objects(kept.iter().chain([&new]), [], world.now);
            world.proxier.start(world.now);
            assert!(world.run(Duration::from_secs(31)).last().is_some_and(Report::is_done));
            world.kernel.state().rules
        };
        let expected = both(&mut node_world());
        let mut world = node_world();
        world.proxier.replace_objects(&kept, [], world.now);
        world.proxier.start(world.now);
        assert!(world.pass().is_done());
        if restarts {
            world.proxier = on_a_node();
            world.proxier.start(world.now);
        } else {
            world.proxier.replace_objects([], [], world.now);
        }
        assert!(world.pass().stopped.is_some());
        world.proxier.upsert_service(&new, world.now);
        let report = world.run(Duration::from_secs(1)).pop().unwrap();
        assert!(report.stopped.is_some() && !report.has_failed(), "{report:#?}");
        assert_eq!(world.kernel.state().rules, expected, "kept {:?}, new {new:?}", kept[0].spec);
        // It stays so, and costs nothing.
        let reports = world.run(Duration::from_secs(100));
        assert!(reports.iter().all(|report| report.stopped.is_some() && report.writes() == 0), "{reports:#?}");
        assert_eq!(both(&mut world), expected);
        // Confirmed, only the new one is left; by another process it would have been as well.
        world.proxier.replace_objects([&new], [], world.now);
        assert!(world.run(Duration::from_secs(1)).pop().unwrap().stopped.is_some());
        assert_eq!(world.kernel.state().rules, expected);
        assert!(world.proxier.confirm_removal(world.now) > 0);
        world.run(Duration::from_secs(31));
        let mut alone = node_world();
        alone.proxier.upsert_service(&new, alone.now);
        alone.proxier.start(alone.now);
        assert!(alone.pass().is_done());
        assert_eq!(world.kernel.state().rules, alone.kernel.state().rules);
        // These are the rules that matter here.
        let ranges: Vec<&str> = both_kinds.iter().filter_map(|kind| kind.1).collect();
        let rules = format!("{expected:?}");
        assert_eq!(rules.contains("-j KUBE-SOURCE-RANGES-FIREWALL"), !ranges.is_empty(), "{rules}");
        assert_eq!(rules.contains("--vaddr"), ranges.contains(&"198.51.100.0/24"), "{rules}");
    }
}

fn node_port() -> Value {
    json!({
        "metadata": {"namespace": "demo", "name": "web"},
        "spec": {
            "type": "NodePort", "clusterIP": "10.96.0.10",
            "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
        },
    })
}

fn dns() -> Value {
    json!({
        "metadata": {"namespace": "demo", "name": "dns"},
        "spec": {"clusterIP": "10.96.0.53", "ports": [{"name": "http", "protocol": "UDP", "port": 53}]},
    })
}

/// `Skipped` of these parts, and how many of any other kind.
fn skipped(report: &Report) -> (Vec<Part>, usize) {
    let (skipped, others): (Vec<_>, Vec<_>) =
        report.applied.failures.iter().partition(|failure| failure.error.kind() == PortErrorKind::Skipped);
    let mut parts: Vec<Part> = skipped.iter().map(|failure| failure.step.part).collect();
    parts.sort();
    parts.dedup();
    (parts, others.len())
}

/// Without its entries and its address it would be taken for somebody else's, and stay for ever.
#[test]
fn a_virtual_server_that_cannot_be_deleted_keeps_what_tells_that_it_is_ours() {
    let mut world = World::new();
    world.proxier.start(world.now);
    world.pass();
    let empty = world.kernel.state();
    world.service(node_port());
    assert!(world.pass().is_done());
    world.kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Busy).every());
    world.proxier.delete_service(&ObjectKey::new("demo", "web"), world.now);
    let report = world.pass();
    assert_eq!(skipped(&report), (vec![Part::Entry, Part::Address], 2), "{report:#?}");
    assert_eq!(world.servers(), "TCP 10.96.0.10:80\nTCP 192.0.2.10:30080");

    // Another process finds it.
    world.kernel.clear_faults();
    world.proxier = new_proxier();
    world.proxier.start(world.now);
    assert!(world.pass().is_done());
    assert_eq!(world.kernel.state(), empty);
}

#[test]
fn what_could_not_be_marked_as_ours_goes_with_its_service() {
    let mut world = World::new();
    world.proxier.start(world.now);
    world.pass();
    let empty = world.kernel.state();
    world.kernel.fail(Fault::new(Call::SetsAdd, PortErrorKind::Busy).every());
    world.kernel.fail(Fault::new(Call::LinksBind, PortErrorKind::Busy).every());
    world.service(node_port());
    assert!(!world.pass().is_done());
    assert_eq!(world.servers(), "TCP 10.96.0.10:80\nTCP 192.0.2.10:30080");
    // Only a full pass after this: what was known before is forgotten.
    world.kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Unknown).item(0));
    world.proxier.delete_service(&ObjectKey::new("demo", "web"), world.now);
    assert!(!world.pass().is_done());
    world.kernel.clear_faults();
    world.run(Duration::from_secs(60));
    assert_eq!(world.kernel.state(), empty);
}

#[test]
fn a_preview_is_no_pass_and_what_it_compiled_is_no_drift() {
    let mut world = World::new();
    world.service(web());
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    assert!(world.pass().is_done());
    world.service(dns());
    world.slice("web", &["10.244.0.1", "10.244.0.3"]);
    let before = world.kernel.state();
    let (plan, report) = world.proxier.preview(world.now, &mut world.kernel.ports());
    assert!(!plan.is_empty() && report.drift.is_empty(), "{report:#?}");
    assert_eq!(world.kernel.state(), before);
    let report = world.pass();
    assert!(report.full && report.is_done() && report.drift.is_empty(), "{report:#?}");
    assert_eq!(report.draining, 1);
}

#[test]
fn flows_that_could_not_be_forgotten_are_forgotten_later() {
    let mut world = World::new();
    world.service(dns());
    world.slice("dns", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    assert!(world.pass().is_done());
    let at = |text: &str| text.parse().unwrap();
    let flow = Flow::udp(at("10.244.9.9:4000"), at("10.96.0.53:53"), at("10.244.0.2:8080"));
    world.kernel.add_flow(flow);
    world.kernel.fail(Fault::new(Call::ConntrackForgetUdp, PortErrorKind::Busy));
    world.slice("dns", &["10.244.0.1"]);
    let report = world.pass();
    assert!(!report.is_done());
    assert_eq!(world.kernel.state().flows.len(), 1);
    let reports = world.run(Duration::from_secs(5));
    assert!(world.kernel.state().flows.is_empty(), "{reports:#?}");
    let asked = world.kernel.writes().conntrack;
    world.run(Duration::from_secs(60));
    assert_eq!(world.kernel.writes().conntrack, asked);
}

#[test]
fn a_virtual_server_that_somebody_deleted_is_made_again_when_an_endpoint_comes() {
    let mut world = World::new();
    world.service(web());
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    world.pass();
    let key = "TCP 10.96.0.10:80".parse().unwrap();
    world.kernel.ipvs().apply(&Operation::DeleteVirtualServer(key)).unwrap();
    world.slice("web", &["10.244.0.1", "10.244.0.2", "10.244.0.3"]);
    let report = world.pass();
    assert!(!report.full && report.is_done(), "{report:#?}");
    assert_eq!(world.servers(), "TCP 10.96.0.10:80 10.244.0.1:8080*1 10.244.0.2:8080*1 10.244.0.3:8080*1");
    // What else somebody did is looked for at once.
    let reports = world.run(Duration::ZERO);
    assert!(reports.len() == 1 && reports[0].full && reports[0].writes() == 0, "{reports:#?}");
}

/// Somebody's virtual server at our place may have real servers of theirs.
#[test]
fn a_virtual_server_that_is_there_already_is_brought_to_what_is_wanted() {
    let mut world = World::new();
    world.proxier.start(world.now);
    world.pass();
    world.kernel.ipvs().load("-A -t 10.96.0.10:80 -s lc\n-a -t 10.96.0.10:80 -r 10.9.9.9:1 -m -w 3").unwrap();
    world.service(web());
    world.slice("web", &["10.244.0.1"]);
    assert!(world.pass().is_done());
    let reports = world.run(Duration::from_secs(2));
    assert!(reports[0].full, "{reports:#?}");
    assert_eq!(world.servers(), "TCP 10.96.0.10:80 10.244.0.1:8080*1");
    assert!(world.kernel.state().ipvs.contains("-s rr"));
}

#[test]
fn what_depends_on_what_failed_is_not_tried_and_says_so() {
    let mut world = World::new();
    world.service(web());
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    world.kernel.set_dummy_present(false);
    let report = world.pass();
    assert_eq!(skipped(&report), (vec![Part::Address], 1), "{report:#?}");
    world.kernel.set_dummy_present(true);
    world.run(Duration::from_secs(3));

    let mut world = World::new();
    world.service(web());
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    world.kernel.fail(Fault::new(Call::SetsCreate, PortErrorKind::Unavailable).family(Family::V4).every());
    let report = world.pass();
    assert_eq!(skipped(&report), (vec![Part::Entry, Part::Rules], 17), "{report:#?}");

    let mut world = World::new();
    world.service(web());
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    world.kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Busy).item(0));
    let report = world.pass();
    assert_eq!(skipped(&report), (vec![Part::RealServer, Part::Address], 1), "{report:#?}");
    assert!(world.run(Duration::from_secs(3)).last().is_some_and(Report::is_done));
}

#[test]
fn a_real_server_that_drains_and_gets_a_weight_from_somebody_loses_it_at_the_next_look() {
    let mut world = World::new();
    world.service(web());
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    world.pass();
    world.slice("web", &["10.244.0.1"]);
    world.pass();
    let key = "TCP 10.96.0.10:80".parse().unwrap();
    let server = RealServer::new("10.244.0.2:8080".parse().unwrap());
    world.kernel.ipvs().set_counters(&key, Some((&server.key, 2, 0)), 2, 2);
    world.kernel.ipvs().apply(&Operation::UpdateRealServer(key, server)).unwrap();
    world.run(Duration::from_secs(2));
    assert_eq!(world.servers(), "TCP 10.96.0.10:80 10.244.0.1:8080*1 10.244.0.2:8080*0");
    assert_eq!(world.proxier.drains().len(), 1);
}

/// Nobody else says that these real servers are gone: the virtual server is neither wanted nor there to be deleted.
#[test]
fn nothing_drains_where_somebody_deleted_the_virtual_server_of_a_service_that_went() {
    let mut world = World::new();
    world.service(web());
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.proxier.start(world.now);
    world.pass();
    world.slice("web", &["10.244.0.1"]);
    assert_eq!(world.pass().draining, 1);
    let key = "TCP 10.96.0.10:80".parse().unwrap();
    world.kernel.ipvs().apply(&Operation::DeleteVirtualServer(key)).unwrap();
    world.proxier.delete_service(&ObjectKey::new("demo", "web"), world.now);
    world.proxier.request_full(world.now);
    assert!(world.pass().is_done());
    world.run(Duration::from_secs(60));
    assert!(world.proxier.drains().is_empty(), "{:?}", world.proxier.drains());
}

/// An address that another interface got stays bound; when its Service goes, it goes, and nobody else did that.
#[test]
fn an_address_that_another_interface_has_too_goes_with_its_service() {
    let mut world = World::new();
    world.service(json!({
        "metadata": {"namespace": "demo", "name": "web"},
        "spec": {"clusterIP": "10.96.0.10", "externalIPs": ["203.0.113.1"], "ports": [{"name": "http", "port": 80}]},
    }));
    world.proxier.start(world.now);
    assert!(world.pass().is_done());
    world.kernel.set_interface("eth0", &["192.0.2.10".parse().unwrap(), "203.0.113.1".parse().unwrap()]);
    world.proxier.host_changed(world.now);
    assert!(world.pass().is_done());
    assert_eq!(world.kernel.state().devices["kube-ipvs0"].len(), 2);
    world.service(web());
    world.proxier.request_full(world.now);
    let report = world.pass();
    assert!(report.is_done() && report.drift.is_empty(), "{report:#?}");
    assert_eq!(world.kernel.state().devices["kube-ipvs0"].len(), 1);
}

/// kube-proxy's sets take 65,536 entries and no more.
#[test]
fn a_set_grows_beyond_what_it_was_made_for() {
    let guarded = |ranges: u32| {
        let range = |number: u32| format!("{}/32", Ipv4Addr::from(0x0b00_0000 + number));
        json!({
            "metadata": {"namespace": "demo", "name": "web"},
            "spec": {
                "type": "LoadBalancer", "clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}],
                "loadBalancerSourceRanges": (0..ranges).map(range).collect::<Vec<_>>(),
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
        })
    };
    let set = "KUBE-LOAD-BALANCER-SOURCE-CIDR";
    let size = |world: &World| world.kernel.state().sets[set].1.len();
    let mut world = World::new();
    world.service(guarded(10));
    world.proxier.start(world.now);
    assert!(world.pass().is_done());
    assert_eq!(size(&world), 10);
    world.service(guarded(70_000));
    let report = world.pass();
    assert!(!report.full && report.is_done(), "{:#?}", report.applied.failures.first());
    assert_eq!(size(&world), 70_000);
    let reports = world.run(Duration::from_secs(31));
    assert!(reports.iter().all(|report| report.is_done() && report.writes() == 0));

    // On a kernel with nothing in it the room is there from the start.
    let mut world = World::new();
    world.service(guarded(70_000));
    world.proxier.start(world.now);
    let report = world.pass();
    assert!(report.is_done(), "{:#?}", report.applied.failures.first());
    assert_eq!(size(&world), 70_000);
}

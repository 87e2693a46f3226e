//! The reconciler on a kernel in memory: the kernel's state after a pass, and the writes of the pass.

use std::net::Ipv4Addr;
use std::time::Duration;

use iptables::Family as Side;
use ipvs::Operation;
use proxier_core::engine::Options;
use proxier_core::fake::{Call, FakeKernel, Fault, Flow};
use proxier_core::net::Family;
use proxier_core::objects::ServiceObject;
use proxier_core::plan::report::Report;
use proxier_core::plan::step::Part;
use proxier_core::ports::PortErrorKind;
use serde_json::{Value, json};

use crate::node::{Node, kernel, service};

fn new() -> Node {
    Node::on(kernel(), Options::default())
}

fn web() -> Value {
    json!({"clusterIP": "10.96.0.10"})
}

/// A process with Service `web` and these endpoints.
fn with_web(endpoints: &[&str]) -> Node {
    let mut node = new();
    node.service("web", web());
    node.slice("web", endpoints);
    node
}

/// As [`with_web`], with two endpoints, served.
fn serving_web() -> Node {
    let mut node = with_web(&["10.244.0.1", "10.244.0.2"]);
    assert!(node.pass_now().is_done());
    node
}

fn servers(node: &Node) -> String {
    node.served().join("\n")
}

#[test]
fn nothing_is_touched_before_the_lists_are_complete() {
    let mut world = Node::begin(&kernel(), Options::default());
    world.service("web", web());
    assert_eq!(world.proxier.next_wake(), None);
    let now = world.now;
    assert!(world.proxier.pass(&|| now, &mut world.kernel.ports()).is_none());
    assert_eq!(world.kernel.writes().total(), 0);
}

/// A process that knows its node's address.
fn on_a_node(kernel: &FakeKernel) -> Node {
    let mut node = Node::begin(kernel, Options::default()).started();
    node.addresses(&["192.0.2.10"]);
    node
}

/// A load balancer on port 80; the range `192.0.2.0/24` includes this node.
fn balancer(number: u8, policy: &str, range: Option<&str>) -> ServiceObject {
    let spec = json!({
        "type": "LoadBalancer", "clusterIP": format!("10.96.1.{number}"), "externalTrafficPolicy": policy,
        "loadBalancerSourceRanges": range.map(|range| vec![range]),
        "status": {"loadBalancer": {"ingress": [{"ip": format!("203.0.113.{number}")}]}},
    });
    service(&format!("lb-{number}"), spec)
}

/// New Services get their rules while older ones are held back, and those lose none: the rules are those of a cluster that has both. The same holds
/// if another process held them back.
#[test]
fn what_comes_while_something_is_kept_is_guarded_too() {
    let kinds =
        [("Cluster", None), ("Local", None), ("Cluster", Some("192.0.2.0/24")), ("Local", Some("198.51.100.0/24"))];
    let node_world = || on_a_node(&kernel());
    let pairs = kinds.iter().flat_map(|kept| kinds.iter().map(move |new| [*kept, *new]));
    for (both_kinds, restarts) in pairs.flat_map(|pair| [(pair, false), (pair, true)]) {
        let [kept, new] = both_kinds;
        let kept: Vec<ServiceObject> = (1..=20).map(|number| balancer(number, kept.0, kept.1)).collect();
        let new = balancer(30, new.0, new.1);
        let both = |world: &mut Node| {
            world.proxier.replace_objects(kept.iter().chain([&new]), [], world.now);
            assert!(world.run(Duration::from_secs(31)).last().is_some_and(Report::is_done));
            world.kernel.state().rules
        };
        let expected = both(&mut node_world());
        let mut world = node_world();
        world.proxier.replace_objects(&kept, [], world.now);
        assert!(world.pass_now().is_done());
        if restarts {
            world.proxier = on_a_node(&world.kernel).proxier;
        } else {
            world.proxier.replace_objects([], [], world.now);
        }
        assert!(world.pass_now().stopped.is_some());
        world.proxier.upsert_service(&new, world.now);
        let report = world.run(Duration::from_secs(1)).pop().unwrap();
        assert!(report.stopped.is_some() && !report.has_failed(), "{report:#?}");
        assert_eq!(world.kernel.state().rules, expected, "kept {:?}, new {new:?}", kept[0].spec);
        // The state stays, and nothing is written.
        let reports = world.run(Duration::from_secs(100));
        assert!(reports.iter().all(|report| report.stopped.is_some() && report.writes() == 0), "{reports:#?}");
        assert_eq!(both(&mut world), expected);
        // Once confirmed, only the new one is left; the same as with another process.
        world.proxier.replace_objects([&new], [], world.now);
        assert!(world.run(Duration::from_secs(1)).pop().unwrap().stopped.is_some());
        assert_eq!(world.kernel.state().rules, expected);
        assert!(world.proxier.confirm_removal(world.now) > 0);
        world.run(Duration::from_secs(31));
        let mut alone = node_world();
        alone.proxier.upsert_service(&new, alone.now);
        assert!(alone.pass_now().is_done());
        assert_eq!(world.kernel.state().rules, alone.kernel.state().rules);
        // The rules that matter here.
        let ranges: Vec<&str> = both_kinds.iter().filter_map(|kind| kind.1).collect();
        let rules = format!("{expected:?}");
        assert_eq!(rules.contains("-j KUBE-SOURCE-RANGES-FIREWALL"), !ranges.is_empty(), "{rules}");
        assert_eq!(rules.contains("--vaddr"), ranges.contains(&"198.51.100.0/24"), "{rules}");
    }
}

fn dns() -> Value {
    json!({"clusterIP": "10.96.0.53", "ports": [{"name": "u", "protocol": "UDP", "port": 53}]})
}

/// Parts whose steps were skipped, and number of failures of any other kind.
fn skipped(report: &Report) -> (Vec<Part>, usize) {
    let (skipped, others): (Vec<_>, Vec<_>) =
        report.applied.failures.iter().partition(|failure| failure.error.kind() == PortErrorKind::Skipped);
    let mut parts: Vec<Part> = skipped.iter().map(|failure| failure.step.part).collect();
    parts.sort();
    parts.dedup();
    (parts, others.len())
}

#[test]
fn flows_that_could_not_be_forgotten_are_forgotten_later() {
    let mut world = new();
    world.service("dns", dns());
    world.slice("dns", &["10.244.0.1", "10.244.0.2"]);
    assert!(world.pass_now().is_done());
    let at = |text: &str| text.parse().unwrap();
    let flow = Flow::udp(at("10.244.9.9:4000"), at("10.96.0.53:53"), at("10.244.0.2:5353"));
    world.kernel.add_flow(flow);
    world.kernel.fail(Fault::new(Call::ConntrackForgetFlows, PortErrorKind::Busy));
    world.slice("dns", &["10.244.0.1"]);
    let report = world.pass_now();
    assert!(!report.is_done());
    assert_eq!(world.kernel.flows().len(), 1);
    let reports = world.run(Duration::from_secs(5));
    assert!(world.kernel.flows().is_empty(), "{reports:#?}");
    let asked = world.kernel.writes().conntrack;
    world.run(Duration::from_secs(60));
    assert_eq!(world.kernel.writes().conntrack, asked);
}

/// A kernel without `nf_conntrack_netlink`: serving works without it, so the pass has not failed.
#[test]
fn flows_that_cannot_be_forgotten_here_are_a_lack_and_no_failure() {
    let mut world = new();
    world.kernel.fail(Fault::new(Call::ConntrackForgetFlows, PortErrorKind::Unavailable).every());
    world.service("dns", dns());
    world.slice("dns", &["10.244.0.1", "10.244.0.2"]);
    let report = world.pass_now();
    assert!(report.is_done() && report.applied.failures.is_empty(), "{report:#?}");
    assert_eq!(report.applied.lacks.len(), 1, "{report:#?}");
    assert!(report.applied.lacks[0].to_string().starts_with("UDP flows to endpoints that are gone are not ended: "));
    let asked = world.kernel.writes().conntrack;
    assert!(world.run(Duration::from_secs(60)).iter().all(Report::is_done));
    assert_eq!(world.kernel.writes().conntrack, asked, "not tried again and again");
    assert_eq!(world.proxier.totals().failed_passes, 0);
}

/// A kernel that refuses rules may lack a match that is optional.
#[test]
fn rules_are_written_without_what_the_kernel_turns_out_to_lack() {
    let mut world = new();
    world.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Unavailable).family(Family::V4));
    world.service("web", json!({"clusterIP": "10.96.0.10", "externalIPs": ["198.51.100.1"]}));
    world.slice("web", &["10.244.0.1"]);
    let report = world.pass_now();
    assert!(report.is_done(), "{report:#?}");
    assert!(report.applied.lacks[0].to_string().starts_with("rules are written without match physdev"), "{report:#?}");
    let rules = world.rules(Side::Ipv4);
    assert!(rules.contains("-j KUBE-SERVICES") && !rules.contains("physdev"), "{rules}");
    // The match is left out for the other family too, from now on; it is reported once.
    let reports = world.run(Duration::from_secs(120));
    assert!(reports.iter().all(|report| report.is_done() && report.applied.lacks.is_empty()), "{reports:#?}");
    assert!(!world.rules(Side::Ipv6).contains("physdev"));
    assert_eq!(reports.last().unwrap().writes(), 0);

    // What was missing for a moment is not lacking.
    let mut world = new();
    world.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::NotFound).family(Family::V4));
    world.service("web", json!({"clusterIP": "10.96.0.10", "externalIPs": ["198.51.100.1"]}));
    let report = world.pass_now();
    assert!(report.is_done() && report.applied.lacks.is_empty(), "{report:#?}");
    assert!(world.rules(Side::Ipv4).contains("physdev"));

    // Refused with and without: a failure, and the match is still tried later.
    let mut world = new();
    world.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Invalid).family(Family::V4).every());
    world.service("web", json!({"clusterIP": "10.96.0.10", "externalIPs": ["198.51.100.1"]}));
    let report = world.pass_now();
    assert!(report.has_failed() && report.applied.lacks.is_empty(), "{report:#?}");
    world.kernel.clear_faults();
    world.run(Duration::from_secs(60));
    assert!(world.rules(Side::Ipv4).contains("physdev"));
}

#[test]
fn what_depends_on_what_failed_is_not_tried_and_says_so() {
    let mut world = with_web(&["10.244.0.1", "10.244.0.2"]);
    world.kernel.set_dummy_present(false);
    let report = world.pass_now();
    assert_eq!(skipped(&report), (vec![Part::Address], 1), "{report:#?}");
    world.kernel.set_dummy_present(true);
    world.run(Duration::from_secs(3));

    let mut world = with_web(&["10.244.0.1", "10.244.0.2"]);
    for call in [Call::SetsCreate, Call::SetsReplace] {
        world.kernel.fail(Fault::new(call, PortErrorKind::Unavailable).family(Family::V4).every());
    }
    let report = world.pass_now();
    assert_eq!(skipped(&report), (vec![Part::Entry, Part::Rules], 18), "{report:#?}");
    assert_eq!(*world.proxier.totals().restore_failures.of(Family::V4), 0, "no program was run");

    let mut world = with_web(&["10.244.0.1", "10.244.0.2"]);
    world.kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Busy).item(0));
    let report = world.pass_now();
    assert_eq!(skipped(&report), (vec![Part::RealServer, Part::Address], 1), "{report:#?}");
    assert!(world.run(Duration::from_secs(3)).last().is_some_and(Report::is_done));
}

/// Draining real servers are forgotten even if their virtual server is neither wanted nor there to be deleted.
#[test]
fn nothing_drains_where_somebody_deleted_the_virtual_server_of_a_service_that_went() {
    let mut world = serving_web();
    world.slice("web", &["10.244.0.1"]);
    assert_eq!(world.pass_now().draining, 1);
    let key = "TCP 10.96.0.10:80".parse().unwrap();
    world.kernel.ipvs().apply(&Operation::DeleteVirtualServer(key)).unwrap();
    world.no_service("web");
    assert!(world.full().is_done());
    world.run(Duration::from_secs(60));
    assert!(world.proxier.drains().unwrap().is_empty(), "{:?}", world.proxier.drains());
}

/// An address that another interface got stays bound; when its Service is deleted it is unbound, which is not drift.
#[test]
fn an_address_that_another_interface_has_too_goes_with_its_service() {
    let mut world = new();
    world.service("web", json!({"clusterIP": "10.96.0.10", "externalIPs": ["203.0.113.1"]}));
    assert!(world.pass_now().is_done());
    world.kernel.set_interface("eth0", &["192.0.2.10".parse().unwrap(), "203.0.113.1".parse().unwrap()]);
    world.proxier.host_changed(world.now);
    assert!(world.pass_now().is_done());
    assert_eq!(world.kernel.state().devices["kube-ipvs0"].len(), 2);
    world.service("web", web());
    let report = world.full();
    assert!(report.is_done() && report.drift.is_empty(), "{report:#?}");
    assert_eq!(world.kernel.state().devices["kube-ipvs0"].len(), 1);
}

/// kube-proxy's sets take 65,536 entries and no more.
#[test]
fn a_set_grows_beyond_what_it_was_made_for() {
    let guarded = |ranges: u32| {
        let range = |number: u32| format!("{}/32", Ipv4Addr::from(0x0b00_0000 + number));
        json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.10",
            "loadBalancerSourceRanges": (0..ranges).map(range).collect::<Vec<_>>(),
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
        })
    };
    let set = "KUBE-LOAD-BALANCER-SOURCE-CIDR";
    let size = |world: &Node| world.kernel.state().sets[set].1.len();
    let mut world = new();
    world.service("web", guarded(10));
    assert!(world.pass_now().is_done());
    assert_eq!(size(&world), 10);
    world.service("web", guarded(70_000));
    let report = world.pass_now();
    assert!(!report.full && report.is_done(), "{:#?}", report.applied.failures.first());
    assert_eq!(size(&world), 70_000);
    let reports = world.run(Duration::from_secs(31));
    assert!(reports.iter().all(|report| report.is_done() && report.writes() == 0));

    // The set is created large enough on an empty kernel.
    let mut world = new();
    world.service("web", guarded(70_000));
    let report = world.pass_now();
    assert!(report.is_done(), "{:#?}", report.applied.failures.first());
    assert_eq!(size(&world), 70_000);
}

/// The lock of iptables is held when the first load balancer with source ranges comes.
#[test]
fn what_cannot_be_guarded_is_not_served_and_nothing_else_waits() {
    let mut world = on_a_node(&kernel());
    world.service("web", web());
    world.slice("web", &["10.244.0.1"]);
    assert!(world.pass_now().is_done());
    world.run(Duration::from_secs(1));
    world.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Busy).every());
    world.proxier.upsert_service(&balancer(1, "Cluster", Some("198.51.100.0/24")), world.now);
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    let report = world.pass_now();
    let served = servers(&world);
    assert!(!served.contains("203.0.113.1:80"), "nobody is let in without the guard: {served}");
    assert!(served.contains("TCP 10.96.1.1:80"), "the rest of the Service is served: {served}");
    assert!(served.contains("10.244.0.2:8080*1"), "others are not concerned: {served}");
    assert!(!world.kernel.state().devices["kube-ipvs0"].contains(&"203.0.113.1".parse().unwrap()));
    assert!(report.has_failed() && !report.is_done());
    let why: Vec<String> = report.applied.failures.iter().map(ToString::to_string).collect();
    assert!(
        why.iter().any(|why| why.contains("203.0.113.1:80") && why.contains("loadBalancerSourceRanges")),
        "{why:#?}"
    );
    // Changes of endpoints do not retry the rules early.
    let tried = world.kernel.writes().rules;
    for number in 3..=6_u8 {
        world.slice("web", &["10.244.0.1", &format!("10.244.0.{number}")]);
        world.now += Duration::from_millis(20);
        let report = world.pass_now();
        assert!(report.has_failed(), "what is put off is not done");
        assert!(servers(&world).contains(&format!("10.244.0.{number}:8080*1")));
    }
    assert_eq!(world.kernel.writes().rules, tried);
    // Rules are retried in the end, each time after a longer pause, never more than some seconds apart.
    world.run(Duration::from_secs(60));
    let more = world.kernel.writes().rules - tried;
    assert!((12..60).contains(&more), "{more}");
    assert!(!servers(&world).contains("203.0.113.1:80"));
    world.kernel.clear_faults();
    world.run(Duration::from_secs(6));
    assert!(servers(&world).contains("TCP 203.0.113.1:80"), "{}", servers(&world));
    let last = world.run(Duration::from_secs(40)).pop().unwrap();
    assert!(last.is_done() && !world.proxier.schedule().is_failing());
}

/// The entries of a load balancer guard it as long as it exists.
#[test]
fn a_guarded_virtual_server_that_cannot_be_deleted_stays_guarded() {
    let mut world = on_a_node(&kernel());
    world.proxier.upsert_service(&balancer(1, "Cluster", Some("198.51.100.0/24")), world.now);
    assert!(world.pass_now().is_done());
    let guarded = |world: &Node| {
        let state = world.kernel.state();
        state
            .sets
            .iter()
            .filter(|(set, _)| set.starts_with("KUBE-LOAD-BALANCER-"))
            .map(|(_, (_, of))| of.len())
            .sum::<usize>()
    };
    let (entries, rules) = (guarded(&world), world.kernel.state().rules);
    assert!(entries >= 2, "{entries}");
    world.kernel.refuse(|operation| matches!(operation, Operation::DeleteVirtualServer(_)), PortErrorKind::Busy);
    world.no_service("lb-1");
    assert!(world.pass_now().has_failed());
    assert!(servers(&world).contains("TCP 203.0.113.1:80"), "{}", servers(&world));
    assert_eq!(guarded(&world), entries);
    assert_eq!(world.kernel.state().rules, rules);
    world.kernel.clear_faults();
    world.run(Duration::from_secs(65));
    assert_eq!((servers(&world).as_str(), guarded(&world)), ("", 0));
}

/// An endpoint that the kernel refuses: reported and retried, and the node stays healthy.
#[test]
fn one_object_that_the_kernel_refuses_does_not_make_the_node_unwell() {
    let mut world = new();
    world.service("web", web());
    world.service("odd", json!({"clusterIP": "10.96.0.11"}));
    world.slice("web", &["10.244.0.1"]);
    world.slice("odd", &["10.244.0.255"]);
    let is_broadcast = |operation: &Operation| matches!(operation, Operation::AddRealServer(_, server) if server.key.to_string() == "10.244.0.255:8080");
    world.kernel.refuse(is_broadcast, PortErrorKind::Invalid);
    let mut reports = world.run(Duration::from_secs(10));
    // A change elsewhere does not retry it.
    world.slice("web", &["10.244.0.1", "10.244.0.2"]);
    world.slice("web", &["10.244.0.1"]);
    world.service("new", json!({"clusterIP": "10.96.0.12"}));
    reports.extend(world.run(Duration::from_secs(1)));
    world.no_service("new");
    reports.extend(world.run(Duration::from_secs(110)));
    assert!(reports.iter().all(|report| !report.has_failed()), "{reports:#?}");
    assert!(reports.len() > 4, "it is tried again");
    let full: Vec<_> = reports.iter().filter(|report| report.full).collect();
    assert!(full.iter().all(|report| !report.is_done() && report.refused_by_kernel().count() == 1));
    assert!(full.iter().all(|report| report.drift.is_empty()), "nobody else has changed it");
    assert_eq!(world.proxier.schedule().pending_since(), None);
    assert_eq!(servers(&world), "TCP 10.96.0.10:80 10.244.0.1:8080*1\nTCP 10.96.0.11:80");
    // Pauses grow.
    assert!(full.len() < 12, "{}", full.len());
    // Only the refused object is left: the node can still serve.
    world.no_service("web");
    assert!(world.run(Duration::from_secs(60)).iter().all(|report| !report.has_failed()));
    world.kernel.clear_faults();
    let last = world.run(Duration::from_secs(60)).pop().unwrap();
    assert!(last.is_done());
    assert!(servers(&world).contains("10.244.0.255:8080*1"));
}

/// Another program deletes virtual servers, or makes one, of which the kernel refuses an endpoint: only that one is missing, and everything is compared at
/// once.
#[test]
fn a_refused_endpoint_does_not_hide_what_others_have_changed() {
    let mut world = new();
    for (name, address, endpoints) in
        [("web", "10.96.0.10", ["10.244.0.1"].as_slice()), ("odd", "10.96.0.11", &["10.244.0.2", "10.244.0.255"])]
    {
        world.service(name, json!({"clusterIP": address}));
        world.slice(name, endpoints);
    }
    let is_broadcast = |operation: &Operation| matches!(operation, Operation::AddRealServer(_, server) if server.key.to_string() == "10.244.0.255:8080");
    world.kernel.refuse(is_broadcast, PortErrorKind::Invalid);
    world.proxier.start(world.now);
    // Pauses between full passes have grown.
    world.run(Duration::from_secs(60));
    let before = "TCP 10.96.0.10:80 10.244.0.1:8080*1\nTCP 10.96.0.11:80 10.244.0.2:8080*1";
    assert_eq!(servers(&world), before);
    for key in ["TCP 10.96.0.10:80", "TCP 10.96.0.11:80"] {
        world.kernel.ipvs().apply(&Operation::DeleteVirtualServer(key.parse().unwrap())).unwrap();
    }
    world.slice("odd", &["10.244.0.2", "10.244.0.3", "10.244.0.255"]);
    let failed = |report: &Report| report.applied.failures.iter().map(|of| of.step.name.clone()).collect::<Vec<_>>();
    let refused = ["TCP 10.96.0.11:80 -> 10.244.0.255:8080"];
    let report = world.pass_now();
    assert_eq!((report.full, failed(&report)), (false, refused.map(str::to_owned).into()), "{report:#?}");
    assert!(world.pass_now().full, "the other Service is missing, too");
    assert_eq!(servers(&world), format!("{before} 10.244.0.3:8080*1"));

    world.run(Duration::from_secs(60));
    let theirs = "TCP 10.96.0.12:80".parse().unwrap();
    let theirs = ipvs::VirtualServer::new(theirs, ipvs::Scheduler::LeastConnection);
    world.kernel.ipvs().apply(&Operation::AddVirtualServer(theirs)).unwrap();
    world.service("new", json!({"clusterIP": "10.96.0.12"}));
    world.slice("new", &["10.244.0.2", "10.244.0.255"]);
    let report = world.pass_now();
    assert!(!report.full && report.applied.failures.len() == 1, "{report:#?}");
    assert!(servers(&world).ends_with("TCP 10.96.0.12:80 10.244.0.2:8080*1"), "{}", servers(&world));
    assert!(world.kernel.state().devices["kube-ipvs0"].contains(&"10.96.0.12".parse().unwrap()));
}

/// One permanent failure of the node, while another Service changes each second, which works.
#[test]
fn passes_that_work_do_not_hide_one_that_fails() {
    let mut world = new();
    world.service("web", web());
    world.kernel.fail(Fault::new(Call::SysctlsSet, PortErrorKind::Permission).every());
    world.run(Duration::from_secs(1));
    for number in 1..=120_u8 {
        world.slice("web", &[&format!("10.244.0.{number}")]);
        world.run(Duration::from_secs(1));
        assert!(
            world.proxier.schedule().pending_since().is_some_and(|since| since < Duration::from_secs(2)),
            "{number}"
        );
    }
}

/// IPVS without IPv6: of a dual-stack Service, IPv4 is served.
#[test]
fn a_family_that_ipvs_lacks_is_no_illness_of_the_node() {
    let mut world = new();
    let is_v6 = |operation: &Operation| matches!(operation, Operation::AddVirtualServer(server) if server.key.family() == ipvs::model::Family::V6);
    world.kernel.refuse(is_v6, PortErrorKind::Unavailable);
    let ips = json!(["10.96.0.10", "fd00::10"]);
    world.service("web", json!({"clusterIP": "10.96.0.10", "clusterIPs": ips, "ipFamilies": ["IPv4", "IPv6"]}));
    world.slice("web", &["10.244.0.1"]);
    let reports = world.run(Duration::from_secs(65));
    assert!(reports.iter().all(|report| !report.has_failed() && !report.is_done()), "{reports:#?}");
    assert_eq!(reports[0].refused_by_kernel().count(), 1, "{reports:#?}");
    assert_eq!(servers(&world), "TCP 10.96.0.10:80 10.244.0.1:8080*1");
    let bound = world.kernel.state().devices["kube-ipvs0"].clone();
    assert_eq!(bound, ["10.96.0.10".parse::<std::net::IpAddr>().unwrap()]);
}

/// A kernel whose IPVS refuses everything: the node cannot serve, for any reason.
#[test]
fn a_node_that_cannot_program_anything_is_unwell() {
    let mut world = new();
    world.kernel.refuse(|operation| matches!(operation, Operation::AddVirtualServer(_)), PortErrorKind::Unavailable);
    world.service("web", web());
    let report = world.pass_now();
    assert!(report.has_failed() && report.serves_nothing, "{report:#?}");
    assert!(world.proxier.schedule().pending_since().is_some());
}

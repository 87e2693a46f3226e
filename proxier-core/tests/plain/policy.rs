//! Policy by Service for endpoints: weights, forwarding methods, limits of connections and drain time by annotation; the output of `ipvsadm` and
//! `ipset`, on a kernel in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipvs::model::ForwardingMethod;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proxier_core::config::{Config, MayAskFor};
use proxier_core::engine::Options;
use proxier_core::fake::FakeKernel;
use proxier_core::inspect::{differences, inspect};
use proxier_core::modes::Kind;
use proxier_core::plan::report::Report;
use proxier_core::plan::step::{Action, Part};
use proxier_core::service::{Packet, Verdict};
use proxier_core::snapshot::{Balancing, FrontendSpec, ObjectKey, Roles};
use serde_json::{Value, json};

use crate::node::{Node, checked, kernel, options_of};

const CLUSTER_IP: &str = "10.96.0.1:80";
const EXTERNAL_IP: &str = "203.0.113.80:80";
const BALANCER: &str = "203.0.113.81:80";
const NODE_PORT: &str = "192.0.2.10:30080";
const ALL: [&str; 4] = [CLUSTER_IP, EXTERNAL_IP, BALANCER, NODE_PORT];

/// A Service and its slice: the parts that differ from test to test.
#[derive(Clone, Debug)]
struct Input {
    service: Value,
    slice: Value,
    spec: Value,
    /// The port of the endpoints.
    port: u16,
    endpoints: Vec<Value>,
}

fn endpoint(address: &str, zone: &str, node: &str) -> Value {
    json!({"addresses": [address], "zone": zone, "nodeName": node})
}

impl Input {
    fn new() -> Self {
        let endpoints = vec![
            endpoint("10.244.0.1", "a", "node-a"),
            endpoint("10.244.0.2", "b", "node-b"),
            endpoint("10.244.0.3", "c", "node-c"),
        ];
        Input { service: json!({}), slice: json!({}), spec: json!({}), port: 80, endpoints }
    }

    fn annotated(service: Value) -> Self {
        Input { service, ..Input::new() }
    }

    fn weighted(slice: &str) -> Self {
        Input { slice: json!({"proxier/weights": slice}), ..Input::new() }
    }
}

fn with(allowed: MayAskFor) -> Node {
    defaulting(allowed, &json!({}))
}

/// A node with these fields of `ipvs.defaults` in the configuration.
fn defaulting(allowed: MayAskFor, defaults: &Value) -> Node {
    let (mut config, rejected) = defaults_of(defaults);
    assert_eq!(rejected, [""; 0]);
    config.ipvs.may_ask_for = allowed;
    let mut options = Options::default();
    options.config = config;
    Node::on(kernel(), options)
}

fn new() -> Node {
    with(MayAskFor::all())
}

impl Node {
    fn give_input(&mut self, input: &Input) {
        let mut spec = json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalIPs": ["203.0.113.80"],
            "ports": [{"name": "p", "port": 80, "nodePort": 30080}]});
        for (name, value) in input.spec.as_object().unwrap() {
            spec[name] = value.clone();
        }
        spec["annotations"] = input.service.clone();
        spec["status"] = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.81"}]}});
        self.service("web", spec);
        let metadata = json!({"namespace": "demo", "name": "web-1", "annotations": input.slice,
            "labels": {"kubernetes.io/service-name": "web"}});
        self.take(json!({"metadata": metadata, "addressType": "IPv4", "ports": [{"name": "p", "port": input.port}],
            "endpoints": input.endpoints}));
    }

    fn serve_input(&mut self, input: &Input) -> Report {
        self.give_input(input);
        self.settles()
    }

    /// The real servers of a virtual server, as `ipvsadm --save` has them: address and options.
    fn real_servers(&self, key: &str) -> Vec<String> {
        let text = self.kernel.state().ipvs;
        let start = format!("-a -t {key} -r ");
        text.lines().filter_map(|line| line.strip_prefix(&start)).map(|line| line.trim_end().to_owned()).collect()
    }

    /// Whether a set of ipset has an address and port.
    fn set_has(&self, set: &str, key: &str) -> bool {
        let (address, port) = key.split_once(':').unwrap();
        let entry = format!("{address},tcp:{port}");
        self.kernel.state().sets[set].1.iter().any(|line| line.contains(&entry))
    }
}

/// A configuration, and its rejections.
fn defaults_of(defaults: &Value) -> (Config, Vec<String>) {
    let (config, rejections) = checked(json!({"ipvs": {"defaults": defaults}}));
    (config, rejections.iter().map(ToString::to_string).collect())
}

/// The weights of the three endpoints.
#[track_caller]
fn weigh(node: &Node, key: &str, weights: [u32; 3]) {
    let expected: Vec<String> =
        (1..=3).zip(weights).map(|(last, weight)| format!("10.244.0.{last}:80 -m -w {weight}")).collect();
    assert_eq!(node.real_servers(key), expected, "{key}");
}

/// The only writes to real servers are these many changes in place.
#[track_caller]
fn only_changes(report: &Report, changes: u64) {
    let of = |action| report.applied.done.get(&(Part::RealServer, action)).copied().unwrap_or(0);
    let done = [Action::Add, Action::Delete, Action::Drain, Action::Change].map(of);
    assert_eq!(done, [0, 0, 0, changes], "{report:#?}");
    for action in [Action::Add, Action::Delete] {
        assert_eq!(report.applied.done.get(&(Part::VirtualServer, action)), None, "{report:#?}");
    }
}

#[test]
fn changed_weights_are_changes_in_place() {
    let mut node = new();
    node.serve_input(&Input::new());
    for key in &ALL {
        weigh(&node, key, [1, 1, 1]);
    }
    for (input, weights, changed) in [
        (Input::weighted("10.244.0.1=3"), [3, 1, 1], 1),
        // A weight for a missing endpoint is not a mistake: endpoints are added and removed.
        (Input::weighted("10.244.0.1=3, 10.244.0.2 = 65535, 10.244.9.9=7"), [3, 65535, 1], 1),
        (Input::weighted("10.244.0.1=0"), [0, 1, 1], 2),
        (Input::annotated(json!({"proxier/zone-weights": "a=2,b=5"})), [2, 5, 1], 2),
        (Input::annotated(json!({"proxier/zone-weights": "a=2, *=0"})), [2, 0, 0], 2),
        (
            Input {
                slice: json!({"proxier/weights": "10.244.0.1=3,10.244.0.3=40000"}),
                ..Input::annotated(json!({"proxier/zone-weights": "a=2,c=2"}))
            },
            [6, 1, 65535],
            3,
        ),
        (Input::new(), [1, 1, 1], 2),
    ] {
        let report = node.serve_input(&input);
        for key in &ALL {
            weigh(&node, key, weights);
        }
        assert_eq!(node.rejections(), [""; 0], "{input:?}");
        only_changes(&report, 4 * changed);
    }
    // A pass that reads the kernel has nothing left to do.
    node.serve_input(&Input::weighted("10.244.0.1=3, 10.244.0.2=0"));
    node.proxier.request_full(node.now);
    let report = node.settles();
    assert!(report.full && report.writes() == 0 && report.drift.is_empty(), "{report:#?}");
}

#[test]
fn an_endpoint_with_weight_0_stays_and_drains_only_when_it_leaves() {
    let mut node = new();
    node.serve_input(&Input::weighted("10.244.0.1=0,10.244.0.2=4"));
    node.settle_for(Duration::from_secs(3600));
    weigh(&node, CLUSTER_IP, [0, 4, 1]);
    assert!(node.proxier.drains().unwrap().is_empty());
    // The real server is deleted by another program; it is added again, with its weight.
    let (key, real) = ("TCP 10.96.0.1:80".parse().unwrap(), "10.244.0.1:80".parse().unwrap());
    node.kernel.ipvs().apply(&ipvs::Operation::DeleteRealServer(key, real)).unwrap();
    node.serve_input(&Input::weighted("10.244.0.1=2,10.244.0.2=4"));
    node.kernel.ipvs().apply(&ipvs::Operation::DeleteRealServer(key, real)).unwrap();
    node.serve_input(&Input::weighted("10.244.0.1=0,10.244.0.2=4"));
    weigh(&node, CLUSTER_IP, [0, 4, 1]);

    assert!(node.kernel.set_connections(&key, &real, 1, 0));
    let mut fewer = Input::weighted("10.244.0.1=0,10.244.0.2=4");
    fewer.endpoints.remove(0);
    node.serve_input(&fewer);
    weigh(&node, CLUSTER_IP, [0, 4, 1]);
    assert!(node.proxier.drains().unwrap().is_draining(&key, &real));
    node.settle_for(Duration::from_secs(3600));
    assert_eq!(node.real_servers(CLUSTER_IP), ["10.244.0.2:80 -m -w 4", "10.244.0.3:80 -m -w 1"]);
}

/// Tells the weights of nodes, by annotation or label.
fn tell(node: &mut Node, name: &str, place: &str, weight: &str) {
    let object = json!({"metadata": {"name": name, place: {"proxier/weight": weight}}});
    node.proxier.upsert_cluster_node(&serde_json::from_value(object).unwrap(), node.now);
}

#[test]
fn nodes_give_their_endpoints_weights() {
    let mut node = new();
    node.serve_input(&Input::weighted("10.244.0.1=3"));
    tell(&mut node, "node-a", "annotations", "2");
    tell(&mut node, "node-b", "labels", "0");
    tell(&mut node, "node-x", "labels", "9");
    let report = node.settles();
    weigh(&node, CLUSTER_IP, [6, 0, 1]);
    only_changes(&report, 8);
    node.proxier.delete_cluster_node("node-a", node.now);
    tell(&mut node, "node-b", "annotations", "heavy");
    node.settles();
    weigh(&node, CLUSTER_IP, [3, 1, 1]);
    assert_eq!(
        node.rejections(),
        ["Node node-b: metadata.annotations[proxier/weight] heavy: not a weight, 0 to 65535; 1 counts"]
    );

    let mut node = with(MayAskFor::all().difference(MayAskFor::NODE_WEIGHTS));
    tell(&mut node, "node-a", "labels", "2");
    node.serve_input(&Input::new());
    weigh(&node, CLUSTER_IP, [1, 1, 1]);
    let mut node = with(MayAskFor::NODE_WEIGHTS);
    tell(&mut node, "node-a", "labels", "2");
    node.serve_input(&Input { service: json!({"proxier/zone-weights": "*=7"}), ..Input::weighted("10.244.0.2=5") });
    weigh(&node, CLUSTER_IP, [2, 1, 1]);
}

/// The option of the method, the same for all endpoints.
#[track_caller]
fn method(node: &Node, key: &str) -> String {
    let all = node.real_servers(key);
    let options = |line: &String| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ").replace(" -w 1", "");
    assert!(all.len() == 3 && all.iter().all(|line| options(line) == options(&all[0])), "{all:?}");
    options(&all[0])
}

#[test]
fn external_addresses_are_forwarded_as_asked_and_not_masqueraded() {
    let mut node = new();
    node.serve_input(&Input::new());
    for (name, value, option) in [
        ("proxier/forwarding", "direct-route", "-g"),
        ("proxier/forwarding", "ipip", "-i --tun-type ipip"),
        ("kube-router.io/service.dsr", "tunnel", "-i --tun-type ipip"),
        ("proxier/forwarding", "gre", "-i --tun-type gre --tun-nocsum"),
        ("proxier/forwarding", "gue:6080", "-i --tun-type gue --tun-port 6080 --tun-nocsum"),
        ("proxier/forwarding", "masquerade", "-m"),
    ] {
        let before = method(&node, BALANCER);
        let report = node.serve_input(&Input::annotated(json!({name: value})));
        let direct = value != "masquerade";
        for key in [EXTERNAL_IP, BALANCER] {
            assert_eq!(method(&node, key), option, "{value}");
        }
        for key in [CLUSTER_IP, NODE_PORT] {
            assert_eq!(method(&node, key), "-m", "{value}");
        }
        // Packets in the sets on the left are marked for masquerading, those on the right are not.
        assert_eq!(
            (node.set_has("KUBE-EXTERNAL-IP", EXTERNAL_IP), node.set_has("KUBE-EXTERNAL-IP-LOCAL", EXTERNAL_IP)),
            (!direct, direct)
        );
        assert_eq!(node.set_has("KUBE-LOAD-BALANCER-LOCAL", BALANCER), direct, "{value}");
        assert!(node.set_has("KUBE-LOAD-BALANCER", BALANCER), "{value}");
        assert_eq!(node.rejections(), [""; 0], "{value}");
        only_changes(&report, if before == method(&node, BALANCER) { 0 } else { 6 });
    }
    // An address that is a cluster IP too is masqueraded.
    let same = Input {
        spec: json!({"externalIPs": ["10.96.0.1"]}),
        ..Input::annotated(json!({"proxier/forwarding": "direct-route"}))
    };
    node.serve_input(&same);
    assert_eq!((method(&node, CLUSTER_IP), method(&node, BALANCER)), ("-m".to_owned(), "-g".to_owned()));
}

#[test]
fn what_only_masquerading_can_do_is_told_and_masqueraded() {
    for (annotation, value) in [("proxier/forwarding", "direct-route"), ("kube-router.io/service.dsr", "tunnel")] {
        let mut node = new();
        let good = Input::annotated(json!({annotation: value}));
        node.serve_input(&Input { port: 8080, ..good.clone() });
        assert_eq!(node.real_servers(BALANCER)[0], "10.244.0.1:8080 -m -w 1");
        assert!(node.set_has("KUBE-EXTERNAL-IP", EXTERNAL_IP) && !node.set_has("KUBE-LOAD-BALANCER-LOCAL", BALANCER));
        let said = node.rejections();
        let place = format!("Service demo/web: metadata.annotations[{annotation}] ");
        let port = "TCP 80, endpoint 10.244.0.1:8080: an endpoint's port differs";
        assert!(said.len() == 1 && said[0].starts_with(&place) && said[0].contains(port), "{said:?}");
        node.serve_input(&good);
        node.settle_for(Duration::from_secs(5));
        assert_eq!(node.rejections(), [""; 0]);
        assert_ne!(method(&node, BALANCER), "-m");
    }
}

#[test]
fn what_cannot_be_is_told() {
    for (name, value, reason) in [
        ("proxier/zone-weights", "a", "not a zone (or *) and its weight, 0 to 65535"),
        ("proxier/zone-weights", "a=65536", "not a zone (or *) and its weight, 0 to 65535"),
        ("proxier/zone-weights", "=1", "not a zone (or *) and its weight, 0 to 65535"),
        ("proxier/forwarding", "nat", "not masquerade, direct-route, ipip, gre or gue:PORT"),
        ("proxier/forwarding", "gue", "gue needs the UDP port"),
        ("proxier/forwarding", "gue:0", "gue needs the UDP port"),
        ("kube-router.io/service.dsr", "yes", "not masquerade, direct-route, ipip, gre or gue:PORT"),
        ("proxier/max-connections", "0", "not a number from 1"),
        ("proxier/max-connections", "4294967296", "not a number from 1"),
        ("proxier/drain-seconds", "-1", "not 0 to 2678400 seconds"),
        ("proxier/drain-seconds", "2678401", "not 0 to 2678400 seconds"),
        ("proxier/scheduler", "roundrobin", "not a scheduler of IPVS"),
        ("proxier/scheduler", "none", "not a scheduler of IPVS"),
        ("proxier/scheduler", "", "not a scheduler of IPVS"),
        ("kube-router.io/service.scheduler", "x", "not a scheduler of IPVS"),
        ("proxier/scheduler-flags", "sh-ports", "not flags of a scheduler"),
        ("proxier/persistence-seconds", "0", "not 1 to 2678400 seconds"),
        ("proxier/persistence-seconds", "2678401", "not 1 to 2678400 seconds"),
        ("proxier/persistence-seconds", "1h", "not 1 to 2678400 seconds"),
        ("proxier/schedular", "wlc", "no annotation of this name is read"),
        ("proxier/weights", "10.244.0.1=3", "EndpointSlices have it"),
        ("proxier/weight", "3", "Nodes have it"),
    ] {
        let mut node = new();
        node.serve_input(&Input::annotated(json!({name: value})));
        weigh(&node, BALANCER, [1, 1, 1]);
        assert_eq!(server(&node, BALANCER), "-s rr", "{name} {value}");
        let said = node.rejections();
        let start = format!("Service demo/web: metadata.annotations[{name}] ");
        assert!(said.len() == 1 && said[0].starts_with(&start) && said[0].contains(reason), "{name} {value}: {said:?}");
    }
    // The readable items of an annotation count.
    let mut node = new();
    node.serve_input(&Input::weighted("10.244.0.1=3, 10.244.0.2:80=2, fd00::1=4, 10.244.0.3=x"));
    weigh(&node, BALANCER, [3, 1, 1]);
    let said = node.rejections();
    let slice = |item: &str| format!("EndpointSlice demo/web-1: metadata.annotations[proxier/weights] {item}: ");
    assert!(said.len() == 2 && said[0].starts_with(&slice("10.244.0.2:80=2")), "{said:?}");
    assert!(said[1].starts_with(&slice("10.244.0.3=x")), "{said:?}");
}

/// Drain times are for endpoints that have left. One that hints or the traffic policy do not select any more, or that is being stopped, serves.
#[test]
fn connections_to_an_endpoint_that_serves_are_not_cut() {
    let (key, real) = ("TCP 10.96.0.1:80".parse().unwrap(), "10.244.0.1:80".parse().unwrap());
    let hint = |input: &mut Input, kind: &str, names: [&str; 3]| {
        for (endpoint, name) in input.endpoints.iter_mut().zip(names) {
            endpoint["hints"] = json!({kind: [{"name": name}]});
        }
    };
    let hinted = |input: &mut Input| hint(input, "forNodes", ["node-b", "node-a", "node-c"]);
    let of_zones = |input: &mut Input| hint(input, "forZones", ["a", "z", "c"]);
    let local = |input: &mut Input| {
        input.spec = json!({"internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local"});
    };
    let stopping = |input: &mut Input| {
        input.endpoints[0]["conditions"] = json!({"ready": false, "serving": true, "terminating": true});
    };
    let begin = |kernel: FakeKernel| {
        let mut node = Node::on(kernel, Options::default());
        let object = json!({"metadata": {"name": "node-a", "labels": {"topology.kubernetes.io/zone": "z"}}});
        node.proxier.set_node(&serde_json::from_value(object).unwrap(), node.now);
        node
    };
    let changes: [&dyn Fn(&mut Input); 4] = [&hinted, &of_zones, &local, &stopping];
    for (change, (annotations, secs)) in changes.into_iter().flat_map(|change| {
        let drain = |secs: u64| (json!({"proxier/drain-seconds": secs.to_string()}), secs);
        [(json!({}), 900), drain(20), drain(0)].map(|of| (change, of))
    }) {
        let mut node = begin(kernel());
        let mut input = Input::annotated(annotations);
        input.endpoints[0]["nodeName"] = json!("node-b");
        input.endpoints[1]["nodeName"] = json!("node-a");
        node.serve_input(&input);
        weigh(&node, CLUSTER_IP, [1, 1, 1]);
        assert!(node.kernel.set_connections(&key, &real, 1, 0));
        change(&mut input);
        node.serve_input(&input);
        node.settle_for(Duration::from_secs(3600));
        assert_eq!(node.real_servers(CLUSTER_IP)[0], "10.244.0.1:80 -m -w 0", "{secs}");
        // A new process does not know more than the old one.
        let mut node = begin(node.kernel.clone());
        node.serve_input(&input);
        node.settle_for(Duration::from_secs(3600));
        assert_eq!(node.real_servers(CLUSTER_IP)[0], "10.244.0.1:80 -m -w 0", "{secs}");
        input.endpoints.remove(0);
        node.serve_input(&input);
        let has = |node: &Node| node.real_servers(CLUSTER_IP)[0].starts_with("10.244.0.1:80");
        node.settle_for(Duration::from_secs(secs.saturating_sub(1)));
        assert_eq!(has(&node), secs > 0, "{secs}");
        node.settle_for(Duration::from_secs(2));
        assert!(!has(&node), "{secs}");
    }
}

#[test]
fn health_checks_count_the_endpoints_that_get_connections() {
    let spec = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32_000});
    let counted = |weights: &str, annotations: Value| {
        let mut node = new();
        node.serve_input(&Input { spec: spec.clone(), service: annotations, ..Input::weighted(weights) });
        node.proxier.desired().health_checks().next().unwrap().1.local_endpoints.v4
    };
    assert_eq!(counted("10.244.0.1=1", json!({})), Some(1));
    assert_eq!(counted("10.244.0.1=0, 10.244.0.2=1", json!({})), Some(0));
    assert_eq!(counted("10.244.0.2=0", json!({})), Some(1));
    assert_eq!(counted("", json!({"proxier/zone-weights": "a=0"})), Some(0));
}

/// Slices differ if the endpoints' ports do, and only one of them may have weights.
#[test]
fn health_checks_count_endpoints_that_get_connections_at_one_port() {
    let ports = json!([{"name": "p", "port": 80, "nodePort": 30080}, {"name": "q", "port": 443, "nodePort": 30443}]);
    let spec = json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32_000, "ports": ports});
    for (annotations, expected) in [(json!({}), 1), (json!({"proxier/weights": "10.244.0.1=0"}), 0)] {
        let mut node = new();
        node.give_input(&Input { spec: spec.clone(), ..Input::weighted("10.244.0.1=0") });
        let metadata = json!({"namespace": "demo", "name": "web-2", "annotations": annotations,
            "labels": {"kubernetes.io/service-name": "web"}});
        let endpoints = [endpoint("10.244.0.1", "a", "node-a")];
        node.take(json!({"metadata": metadata, "addressType": "IPv4", "ports": [{"name": "q", "port": 8443}],
            "endpoints": endpoints}));
        node.settles();
        let check = node.proxier.desired().health_checks().next().unwrap().1;
        assert_eq!(check.local_endpoints.v4, Some(expected), "{annotations}");
    }
}

#[test]
fn the_operator_decides_what_annotations_may_do() {
    let input = Input {
        slice: json!({"proxier/weights": "10.244.0.1=3"}),
        ..Input::annotated(
            json!({"proxier/forwarding": "ipip", "proxier/max-connections": "7", "proxier/scheduler": "lc",
            "proxier/persistence-seconds": "60"}),
        )
    };
    for (allowed, options, expected) in [
        (MayAskFor::empty(), "-s rr", "10.244.0.1:80 -m -w 1"),
        (MayAskFor::SCHEDULER, "-s lc", "10.244.0.1:80 -m -w 1"),
        (MayAskFor::PERSISTENCE, "-s rr -p 60", "10.244.0.1:80 -m -w 1"),
        (MayAskFor::WEIGHTS, "-s wrr", "10.244.0.1:80 -m -w 3"),
        (MayAskFor::FORWARDING, "-s rr", "10.244.0.1:80 -i -w 1 --tun-type ipip"),
        (MayAskFor::THRESHOLDS, "-s rr", "10.244.0.1:80 -m -w 1 -x 7"),
    ] {
        let mut node = with(allowed);
        node.serve_input(&input);
        assert_eq!(server(&node, BALANCER), options);
        assert_eq!(node.real_servers(BALANCER)[0], expected);
        let direct = allowed == MayAskFor::FORWARDING;
        assert_eq!(node.set_has("KUBE-LOAD-BALANCER-LOCAL", BALANCER), direct);
    }
}

#[test]
fn each_has_a_name_in_the_configuration() {
    let allowed = |names: &[&str]| {
        let (config, rejections) = checked(json!({"ipvs": {"allowedAnnotations": names}}));
        assert_eq!(rejections, []);
        config.ipvs.may_ask_for
    };
    let (names, settings): (Vec<_>, BTreeSet<_>) = MayAskFor::NAMED.iter().copied().unzip();
    assert_eq!(allowed(&names), MayAskFor::all());
    assert_eq!(names.iter().map(|name| allowed(&[*name])).collect::<BTreeSet<_>>(), settings);
    assert_eq!(settings.len(), names.len(), "each has a bit of its own");
    assert_eq!(Config::default().ipvs.may_ask_for, MayAskFor::all().difference(MayAskFor::NODE_WEIGHTS));
}

/// Serves Frontends of an agent: one whose endpoints may answer directly, and two that are masqueraded in any case, for another port or a cluster IP.
#[track_caller]
fn serve_agents(node: &mut Node, ask: impl Fn(&mut FrontendSpec), direct: [&str; 2], masqueraded: [&str; 2]) {
    let keys = ["203.0.113.1:80", "203.0.113.2:8080", "10.96.0.7:80"];
    let roles = [Roles::EXTERNAL_IP, Roles::LOAD_BALANCER, Roles::CLUSTER_IP];
    let endpoints = ["10.1.0.1:80", "10.1.0.2:80"].map(|at| at.parse().unwrap());
    let all = keys.into_iter().zip(roles).map(|(key, roles)| {
        let mut spec = FrontendSpec::new(format!("TCP {key}").parse().unwrap(), endpoints);
        spec.roles = roles;
        ask(&mut spec);
        spec
    });
    node.proxier.upsert_frontends(&ObjectKey::new("agent", "web"), all, node.now);
    node.settles();
    for (key, expected) in keys.into_iter().zip([direct, masqueraded, masqueraded]) {
        assert_eq!(node.real_servers(key), expected, "{key}");
    }
}

#[test]
fn agents_ask_for_the_same() {
    let mut node = new();
    let mut balancing = Balancing::default();
    balancing.forwarding = Some(ForwardingMethod::DirectRoute);
    let balancing = Arc::new(balancing);
    let ask = |spec: &mut FrontendSpec| {
        spec.balancing = Some(balancing.clone());
        spec.weights = vec![("10.1.0.2:80".parse().unwrap(), 9)];
    };
    let direct = ["10.1.0.1:80 -g -w 1", "10.1.0.2:80 -g -w 9"];
    serve_agents(&mut node, ask, direct, ["10.1.0.1:80 -m -w 1", "10.1.0.2:80 -m -w 9"]);
    assert!(node.set_has("KUBE-EXTERNAL-IP-LOCAL", "203.0.113.1:80"));
    assert_eq!(node.rejections().len(), 2, "{:?}", node.rejections());
}

/// The line of `ipvsadm --save` for a virtual server.
fn server(node: &Node, key: &str) -> String {
    let text = node.kernel.state().ipvs;
    let start = format!("-A -t {key} ");
    text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().trim_end().to_owned()
}

/// Flags replace those that a scheduler has otherwise. Maglev hashing keeps its fallback: without it, new connections are lost while
/// a real server drains.
#[test]
fn a_changed_scheduler_or_persistence_is_applied_in_place() {
    let mut node = new();
    node.serve_input(&Input::new());
    for (annotations, options) in [
        (json!({"proxier/scheduler": "wlc"}), "-s wlc"),
        (json!({"proxier/scheduler": "mh"}), "-s mh -b mh-fallback,mh-port"),
        // mh without its fallback would lose new connections while an endpoint drains.
        (json!({"proxier/scheduler": "mh", "proxier/scheduler-flags": "mh-port"}), "-s mh -b mh-fallback,mh-port"),
        (json!({"proxier/scheduler": "mh", "proxier/scheduler-flags": "mh-fallback"}), "-s mh -b mh-fallback"),
        (json!({"proxier/scheduler": "sh"}), "-s sh"),
        (json!({"proxier/scheduler": "sh", "proxier/scheduler-flags": "sh-port"}), "-s sh -b sh-port"),
        (
            json!({"proxier/scheduler": "sh", "proxier/scheduler-flags": "sh-port, sh-fallback"}),
            "-s sh -b sh-fallback,sh-port",
        ),
        (json!({"proxier/scheduler": "rr", "proxier/scheduler-flags": "flag-2"}), "-s rr -b flag-2"),
        (json!({"kube-router.io/service.scheduler": "dh"}), "-s dh"),
        (json!({"kube-router.io/service.scheduler": "dh", "proxier/scheduler": "lc"}), "-s lc"),
        (
            json!({"kube-router.io/service.scheduler": "sh", "kube-router.io/service.schedflags": "flag-1,flag-2"}),
            "-s sh -b sh-fallback,sh-port",
        ),
        (json!({"proxier/persistence-seconds": "120"}), "-s rr -p 120"),
        (json!({}), "-s rr"),
    ] {
        let report = node.serve_input(&Input::annotated(annotations.clone()));
        for key in ALL {
            assert_eq!(server(&node, key), options, "{annotations}: {key}: {:?}", node.rejections());
        }
        only_changes(&report, 0);
    }
}

/// A kernel without the scheduler that annotations request serves with the configured one, until its module is loaded.
#[test]
fn a_missing_scheduler_costs_no_virtual_server() {
    let is_reported = |report: &Report, scheduler: &str| {
        let failures = &report.applied.failures;
        let named = format!("no scheduler \"{scheduler}\"");
        let until = "the configured scheduler is used until then";
        let is_it = |failure: String| failure.contains(&named) && failure.ends_with(until);
        failures.len() == ALL.len() && failures.iter().all(|failure| is_it(failure.to_string()))
    };
    let persistent = || json!({"proxier/persistence-seconds": "60"});
    for (mut input, scheduler, weights) in [
        (Input::annotated(persistent()), "mh", [1, 1, 1]),
        (Input { service: persistent(), ..Input::weighted("10.244.0.1=3") }, "wrr", [3, 1, 1]),
    ] {
        if scheduler == "mh" {
            input.service["proxier/scheduler"] = scheduler.into();
        }
        let mut node = new();
        let module = format!("ip_vs_{scheduler}");
        node.kernel.ipvs().remove_module(&module);
        node.give_input(&input);
        let report = node.pass();
        assert!(is_reported(&report, scheduler), "{report:#?}");
        let is_served = |node: &Node, secs: u32| {
            for key in ALL {
                assert_eq!(server(node, key), format!("-s rr -p {secs}"), "{key}");
                weigh(node, key, weights);
            }
            let address = "10.96.0.1".parse().unwrap();
            assert!(node.kernel.state().devices["kube-ipvs0"].contains(&address));
        };
        is_served(&node, 60);
        for report in node.run(Duration::from_secs(60)) {
            assert!(is_reported(&report, scheduler) && report.drift.is_empty(), "{report:#?}");
        }
        is_served(&node, 60);
        // Another program removes everything, and so finds it without being read.
        node.kernel.ipvs().client().unwrap().flush_and_cut_everything().unwrap();
        node.full();
        is_served(&node, 60);
        // What else changes is applied.
        input.service["proxier/persistence-seconds"] = "70".into();
        node.give_input(&input);
        assert!(is_reported(&node.pass(), scheduler));
        is_served(&node, 70);
        node.kernel.ipvs().add_module(&module);
        node.run(Duration::from_secs(60));
        assert!(ALL.iter().all(|key| server(&node, key).starts_with(&format!("-s {scheduler} -p 70"))));
        node.settle();
    }
}

/// Slots multiply what a Service asks for: a small object could take all memory of each node.
#[test]
fn slots_count_for_the_size_of_a_service() {
    let ports: Vec<Value> = (1..=500).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let of_mode = |mode, scheduler: &str, weights: &str, affinity: &str| {
        let mut node = Node::on(kernel(), options_of(mode));
        let external: Vec<String> = (1..=4).map(|last| format!("203.0.113.{last}")).collect();
        node.service(
            "large",
            json!({"clusterIP": "10.96.0.1", "externalIPs": external, "ports": ports, "sessionAffinity": affinity,
                "annotations": {"proxier/scheduler": scheduler}}),
        );
        let metadata = json!({"namespace": "demo", "name": "large-1", "labels": {"kubernetes.io/service-name": "large"},
            "annotations": {"proxier/weights": weights}});
        // Not ready: they count, and take little of the kernel in memory.
        let mut endpoints = [endpoint("10.244.0.1", "a", "node-b"), endpoint("10.244.0.2", "b", "node-b")];
        for endpoint in &mut endpoints {
            endpoint["conditions"] = json!({"ready": false});
        }
        node.take(json!({"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints}));
        node.pass();
        node.proxier.desired().frontends().count()
    };
    // 5 addresses, each with so many slots, and one more.
    let with = |slots: usize| 524_288 / (5 * (slots + 1)) * 5;
    for (scheduler, weights, affinity, slots) in [
        ("mh", "", "None", 251),
        ("sh", "10.244.0.1=0", "None", 251),
        ("wrr", "10.244.0.1=65535", "None", 256),
        ("wrr", "10.244.0.1=65535", "ClientIP", 256),
        ("wrr", "10.244.0.1=3,10.244.0.2=9", "None", 4),
        ("rr", "10.244.0.1=65535", "None", 2),
        ("mh", "10.244.0.1=0,10.244.0.2=0", "None", 0),
        ("mh", "", "ClientIP", 2),
    ] {
        let expected = with(slots).min(2500);
        assert_eq!(of_mode(Kind::Nftables, scheduler, weights, affinity), expected, "{scheduler} {weights} {affinity}");
        assert_eq!(of_mode(Kind::Ipvs, scheduler, weights, affinity), 2500, "{scheduler} {weights} {affinity}");
    }
}

#[test]
fn the_configuration_says_what_no_annotation_says() {
    let defaults = json!({
        "schedulerFlags": "flag-1", "persistenceSeconds": 300, "zoneWeights": "a=3, *=2",
        "forwarding": "ipip", "maxConnections": 90, "drainSeconds": 0,
    });
    let mut node = defaulting(MayAskFor::all(), &defaults);
    node.serve_input(&Input::new());
    assert_eq!(server(&node, BALANCER), "-s rr -p 300 -b flag-1");
    assert_eq!(node.real_servers(BALANCER)[0], "10.244.0.1:80 -i -w 3 -x 90 --tun-type ipip");
    assert_eq!(node.real_servers(CLUSTER_IP)[1], "10.244.0.2:80 -m -w 2 -x 90");
    assert!(node.set_has("KUBE-LOAD-BALANCER-LOCAL", BALANCER));
    assert_eq!(node.rejections(), [""; 0]);
    // No time to drain: connections do not keep it.
    let (key, real) = ("TCP 10.96.0.1:80".parse().unwrap(), "10.244.0.1:80".parse().unwrap());
    assert!(node.kernel.set_connections(&key, &real, 1, 0));
    let mut fewer = Input::new();
    fewer.endpoints.remove(0);
    node.serve_input(&fewer);
    assert_eq!(node.real_servers(CLUSTER_IP).len(), 2);

    // Annotations go first, each for itself; a scheduler goes with its own flags.
    let asked = Input::annotated(json!({
        "proxier/scheduler": "wlc", "proxier/persistence-seconds": "60", "proxier/forwarding": "masquerade",
        "proxier/zone-weights": "*=7", "proxier/max-connections": "5",
    }));
    node.serve_input(&asked);
    assert_eq!(server(&node, BALANCER), "-s wlc -p 60");
    assert_eq!(node.real_servers(BALANCER)[0], "10.244.0.1:80 -m -w 7 -x 5");
    // Session affinity of the Service goes before a default time.
    node.serve_input(&Input { spec: json!({"sessionAffinity": "ClientIP"}), ..Input::new() });
    assert_eq!(server(&node, BALANCER), "-s rr -p 10800 -b flag-1");
    // The default is there again without the annotation; an annotation that is not allowed does not hide it.
    node.serve_input(&Input::new());
    assert_eq!(server(&node, BALANCER), "-s rr -p 300 -b flag-1");
    let mut strict = defaulting(MayAskFor::empty(), &defaults);
    strict.serve_input(&asked);
    assert_eq!(server(&strict, BALANCER), "-s rr -p 300 -b flag-1");
    assert_eq!(strict.real_servers(BALANCER)[0], "10.244.0.1:80 -i -w 3 -x 90 --tun-type ipip");

    // Only a Service whose ports fit returns directly; the default is named where it cannot be.
    node.serve_input(&Input { port: 8080, ..Input::new() });
    node.settle_for(Duration::from_secs(5));
    assert_eq!(node.real_servers(BALANCER)[0], "10.244.0.1:8080 -m -w 3 -x 90");
    let said = node.rejections();
    assert!(
        said.len() == 1 && said[0].starts_with("Service demo/web: ipvs.defaults.forwarding ipip for TCP 80"),
        "{said:?}"
    );
}

#[test]
fn wrong_defaults_are_named() {
    for (field, value, reason) in [
        ("schedulerFlags", json!("fast"), "not flags of a scheduler"),
        ("persistenceSeconds", json!(0), "not 1 to 2678400 seconds"),
        ("zoneWeights", json!("a"), "not a zone (or *) and its weight"),
        ("forwarding", json!("gue"), "gue needs the UDP port"),
        ("maxConnections", json!(-1), "not a number from 1"),
        ("drainSeconds", json!(2_678_401), "not 0 to 2678400 seconds"),
    ] {
        let (config, said) = defaults_of(&json!({field: value}));
        assert!(said.len() == 1 && said[0].contains(&format!("ipvs.defaults.{field} ")), "{field}: {said:?}");
        assert!(said[0].contains(reason), "{field}: {said:?}");
        assert_eq!(config.ipvs.defaults, None);
    }
}

#[test]
fn defaults_are_for_agents_as_well() {
    let mut node = defaulting(MayAskFor::all(), &json!({"forwarding": "direct-route", "maxConnections": 3}));
    let direct = ["10.1.0.1:80 -g -w 1 -x 3", "10.1.0.2:80 -g -w 1 -x 3"];
    serve_agents(&mut node, |_| {}, direct, ["10.1.0.1:80 -m -w 1 -x 3", "10.1.0.2:80 -m -w 1 -x 3"]);
}

#[test]
fn a_trace_knows_the_policy() {
    let mut node = new();
    let asked = json!({
        "proxier/forwarding": "ipip", "proxier/persistence-seconds": "300", "proxier/max-connections": "9",
    });
    let input = Input { slice: json!({"proxier/weights": "10.244.0.1=0, 10.244.0.2=3"}), ..Input::annotated(asked) };
    node.serve_input(&input);
    let outside: IpAddr = "198.51.100.7".parse().unwrap();
    let packet = |key: &str| Packet::new(outside, format!("TCP {key}").parse().unwrap());
    let to_balancer = node.traced(&packet(BALANCER));
    assert_eq!(to_balancer.verdict.to_string(), "10.244.0.2:80 (source kept, weight 3) or 10.244.0.3:80 (source kept)");
    assert_eq!((to_balancer.forwarding.as_deref(), to_balancer.affinity_secs), (Some("ipip"), Some(300)));
    let said = to_balancer.steps.join("\n");
    for step in [
        "Weight 0, so no new connections: 10.244.0.1:80.",
        "Forwarding ipip: the source stays, and the endpoint answers the client by itself.",
        "for 300 s this client stays",
        "An endpoint with 9 connections gets no new ones.",
    ] {
        assert!(said.contains(step), "{step}: {said}");
    }
    // A cluster IP is masqueraded in any case.
    let to_cluster = node.traced(&packet(CLUSTER_IP));
    assert_eq!(to_cluster.forwarding, None);
    assert!(!to_cluster.steps.join("\n").contains("Forwarding"));
    let of_node = Packet::from_node("203.0.113.81".parse().unwrap(), format!("TCP {BALANCER}").parse().unwrap());
    let said = node.traced(&of_node).steps.join("\n");
    assert!(said.contains("its programs have to use the cluster IP"), "{said}");
    // Other modes have weights and affinity; what they cannot do is left out.
    let mut elsewhere = Node::on(kernel(), options_of(Kind::Nftables));
    elsewhere.serve_input(&input);
    let elsewhere = elsewhere.traced(&packet(BALANCER));
    assert_eq!((elsewhere.forwarding, elsewhere.affinity_secs), (None, Some(300)));
    let weighed = "10.244.0.2:80 (masqueraded, weight 3) or 10.244.0.3:80 (masqueraded)";
    assert_eq!(elsewhere.verdict.to_string(), weighed);
    let said = elsewhere.steps.join("\n");
    assert!(!said.contains("9 connections"), "{said}");

    // An endpoint that reaches itself is not masqueraded where it answers by itself.
    let itself = Packet::new("10.244.0.2".parse().unwrap(), format!("TCP {BALANCER}").parse().unwrap());
    let Verdict::Endpoints(all) = node.traced(&itself).verdict else { panic!() };
    assert!(all.iter().all(|one| !one.masqueraded), "{all:?}");

    // No endpoint takes connections.
    node.serve_input(&Input::annotated(json!({"proxier/zone-weights": "*=0"})));
    let nobody = node.traced(&packet(CLUSTER_IP));
    assert_eq!((nobody.verdict, nobody.affinity_secs), (Verdict::Rejected, None));
    // Annotations that are not allowed are not traced.
    let mut strict = with(MayAskFor::empty());
    strict.serve_input(&input);
    let strict = strict.traced(&packet(BALANCER));
    assert_eq!((strict.forwarding, strict.affinity_secs), (None, None));
}

/// Flags and limits are compared too.
#[test]
fn what_a_kernel_has_otherwise_is_named_by_its_policy() {
    let key = "TCP 203.0.113.81:80".parse().unwrap();
    let held = |annotations: Value| {
        let mut node = new();
        node.serve_input(&Input::annotated(annotations));
        inspect(Kind::Ipvs, &key, node.proxier.facts(), &mut node.kernel.ports()).unwrap()
    };
    let base = json!({"proxier/persistence-seconds": "300"});
    for (name, value, expected) in [
        (
            "proxier/scheduler-flags",
            "flag-1",
            "differs: virtual server TCP 203.0.113.81:80: rr (flag-1) persistent 300 s",
        ),
        ("proxier/max-connections", "7", "differs: real server 10.244.0.1:80: weight 1, at most 7 connections"),
        ("proxier/forwarding", "direct-route", "differs: real server 10.244.0.1:80: weight 1, route in the kernel"),
    ] {
        let mut other = base.clone();
        other[name] = value.into();
        let said: Vec<String> =
            differences(&held(base.clone()), &held(other)).iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|line| line.starts_with(expected)), "{name}: {said:?}");
    }
}

/// Annotations of a Service: some of these, good and bad.
fn annotations() -> impl Strategy<Value = Value> {
    let values: [(&str, &[&str]); 9] = [
        ("proxier/scheduler", &["wrr", "mh", "sed", "none"]),
        ("proxier/scheduler-flags", &["mh-port", "flag-1", "x"]),
        ("proxier/persistence-seconds", &["60", "3600", "0"]),
        ("proxier/zone-weights", &["a=3,b=0", "*=2", "c=65535,*=7", "a"]),
        ("proxier/forwarding", &["direct-route", "ipip", "gre", "gue:6080", "masquerade", "gue"]),
        ("kube-router.io/service.dsr", &["tunnel", "no"]),
        ("proxier/max-connections", &["10", "7", "0"]),
        ("proxier/drain-seconds", &["0", "30", "x"]),
        ("example.com/other", &["x"]),
    ];
    let one = move |(name, all): (&'static str, &'static [&'static str])| (Just(name), select(all));
    subsequence(values.to_vec(), 0..=9)
        .prop_flat_map(move |some| some.into_iter().map(one).collect::<Vec<_>>())
        .prop_map(|some| json!(some.into_iter().collect::<BTreeMap<_, _>>()))
}

fn inputs() -> impl Strategy<Value = Input> {
    let weights = select(vec!["", "10.244.0.1=3", "10.244.0.1=0,10.244.0.3=9", "10.244.0.2=65535,x"]);
    let spec = select(vec![
        json!({}),
        json!({"externalTrafficPolicy": "Local", "healthCheckNodePort": 32000}),
        json!({"sessionAffinity": "ClientIP"}),
        json!({"externalIPs": ["10.96.0.1"]}),
        json!({"externalIPs": [], "loadBalancerSourceRanges": ["198.51.100.0/24"]}),
    ]);
    (annotations(), weights, spec, select(vec![80, 80, 8080])).prop_map(|(service, weights, spec, port)| Input {
        service,
        slice: if weights.is_empty() { json!({}) } else { json!({"proxier/weights": weights}) },
        spec,
        port,
        ..Input::new()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Earlier annotations and switches leave nothing behind.
    #[test]
    fn any_sequence_ends_where_a_fresh_start_with_its_last_input_ends(
        inputs in proptest::collection::vec(inputs(), 1..6),
        settings in proptest::sample::subsequence(MayAskFor::NAMED, 0..=MayAskFor::NAMED.len()),
    ) {
        let allowed = settings.iter().fold(MayAskFor::empty(), |all, (_, one)| all | *one);
        let mut node = with(allowed);
        for input in &inputs {
            node.give_input(input);
            if node.proxier.next_wake().is_some() {
                node.settles();
            }
            // Endpoints with another port replace these, which drain: none has connections.
            node.settle_for(Duration::from_secs(5));
        }
        let mut fresh = with(allowed);
        fresh.serve_input(inputs.last().unwrap());
        let (end, expected) = (node.kernel.state(), fresh.kernel.state());
        prop_assert_eq!(end.ipvs, expected.ipvs);
        prop_assert_eq!(end.sets, expected.sets);
        prop_assert_eq!(end.rules, expected.rules);
        // Addresses are listed in the order in which they were added.
        let sorted = |devices: BTreeMap<String, Vec<IpAddr>>| {
            devices.into_iter().map(|(name, all)| (name, BTreeSet::from_iter(all))).collect::<BTreeMap<_, _>>()
        };
        prop_assert_eq!(sorted(end.devices), sorted(expected.devices));
        prop_assert_eq!(node.rejections(), fresh.rejections());
    }
}

#[test]
fn real_servers_that_drain_follow_a_drain_time_that_changes() {
    let (key, real) = ("TCP 10.96.0.1:80".parse().unwrap(), "10.244.0.1:80".parse().unwrap());
    for (before, after, left_after_10) in [("4", "600", true), ("600", "1", false), ("600", "20", true)] {
        let mut node = new();
        let mut input = Input::annotated(json!({"proxier/drain-seconds": before}));
        node.serve_input(&input);
        assert!(node.kernel.set_connections(&key, &real, 1, 0));
        input.endpoints.remove(0);
        node.serve_input(&input);
        node.settle_for(Duration::from_secs(2));
        input.service = json!({"proxier/drain-seconds": after});
        node.serve_input(&input);
        node.settle_for(Duration::from_secs(8));
        assert_eq!(node.real_servers(CLUSTER_IP).len() == 3, left_after_10, "{before} to {after}");
        node.settle_for(Duration::from_secs(600));
        assert_eq!(node.real_servers(CLUSTER_IP).len(), 2, "{before} to {after}");
    }
}

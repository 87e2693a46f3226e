//! Policy by Service: annotations decide scheduler, flags and persistence; virtual servers as `ipvsadm` would print them, on a kernel in memory.

use std::time::Duration;

use proxier_core::config::MayAskFor;
use proxier_core::fake::FakeKernel;
use proxier_core::plan::report::Report;
use proxier_core::plan::step::{Action, Part};
use proxier_core::reconciler::{Options, Reconciler};
use serde_json::{Value, json};

struct Node {
    kernel: FakeKernel,
    proxier: Reconciler,
    now: Duration,
}

impl Node {
    fn with(options: Options) -> Self {
        let kernel = FakeKernel::new();
        kernel.set_interface("eth0", &["192.0.2.10".parse().unwrap()]);
        let mut proxier = Reconciler::new("node-a", options, Duration::ZERO);
        proxier.start(Duration::ZERO);
        Node { kernel, proxier, now: Duration::ZERO }
    }

    fn new() -> Self {
        Node::with(Options::default())
    }

    fn serve(&mut self, annotations: &Value, more: &Value) -> Report {
        let mut spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"name": "p", "port": 80}, {"name": "u", "port": 53, "protocol": "UDP"}]});
        for (name, value) in more.as_object().unwrap() {
            spec[name] = value.clone();
        }
        let metadata = json!({"namespace": "demo", "name": "web", "annotations": annotations});
        let service = json!({"metadata": metadata, "spec": spec});
        self.proxier.upsert_service(&serde_json::from_value(service).unwrap(), self.now);
        let slice = json!({"metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "p", "port": 8080}, {"name": "u", "port": 53, "protocol": "UDP"}],
            "endpoints": [{"addresses": ["10.244.0.1"]}]});
        self.proxier.upsert_slice(&serde_json::from_value(slice).unwrap(), self.now);
        self.now = self.now.max(self.proxier.next_wake().unwrap());
        let now = self.now;
        let report = self.proxier.pass(&|| now, &mut self.kernel.ports()).unwrap();
        assert!(report.is_done(), "{report:#?}");
        report
    }

    /// The configuration of each virtual server, as `ipvsadm --save` has it.
    fn servers(&self) -> Vec<String> {
        let text = self.kernel.state().ipvs;
        text.lines().filter_map(|line| line.strip_prefix("-A ")).map(|line| line.trim_end().to_owned()).collect()
    }

    fn rejections(&self) -> Vec<String> {
        self.proxier.rejections().map(ToString::to_string).collect()
    }
}

const TCP: &str = "-t 10.96.0.1:80";
const TCP6: &str = "-t [fd00::1]:80";
const UDP: &str = "-u 10.96.0.1:53";
const UDP6: &str = "-u [fd00::1]:53";

/// All four virtual servers, sorted as ipvsadm sorts them here, with these options each.
fn all(tcp: &str, udp: &str, tcp6: &str, udp6: &str) -> Vec<String> {
    let mut all =
        vec![format!("{TCP} {tcp}"), format!("{UDP} {udp}"), format!("{TCP6} {tcp6}"), format!("{UDP6} {udp6}")];
    all.sort();
    all
}

#[track_caller]
fn has(node: &Node, expected: &[String]) {
    let mut found = node.servers();
    found.sort();
    assert_eq!(found, expected);
}

#[test]
fn a_changed_policy_is_applied_in_place() {
    let mut node = Node::new();
    node.serve(&json!({}), &json!({}));
    has(&node, &all("-s rr", "-s rr", "-s rr", "-s rr"));
    for (annotations, options) in [
        (json!({"proxier/scheduler": "wlc"}), "-s wlc"),
        (json!({"proxier/scheduler": "mh"}), "-s mh -b mh-fallback,mh-port"),
        // mh without its fallback would lose new connections while an endpoint drains.
        (json!({"proxier/scheduler": "mh", "proxier/scheduler-flags": "mh-port"}), "-s mh -b mh-fallback,mh-port"),
        (
            json!({"proxier/scheduler": "sh", "proxier/scheduler-flags": "sh-port, sh-fallback"}),
            "-s sh -b sh-fallback,sh-port",
        ),
        (json!({"kube-router.io/service.scheduler": "dh"}), "-s dh"),
        (json!({"kube-router.io/service.scheduler": "dh", "proxier/scheduler": "lc"}), "-s lc"),
        (
            json!({"kube-router.io/service.scheduler": "sh", "kube-router.io/service.schedflags": "flag-1,flag-2"}),
            "-s sh -b sh-fallback,sh-port",
        ),
        (json!({"proxier/persistence-seconds": "120"}), "-s rr -p 120"),
        (json!({}), "-s rr"),
    ] {
        let report = node.serve(&annotations, &json!({}));
        has(&node, &all(options, options, options, options));
        assert_eq!(node.rejections(), [""; 0], "{annotations}");
        for action in [Action::Add, Action::Delete] {
            assert_eq!(report.applied.done.get(&(Part::VirtualServer, action)), None, "{annotations}: {report:#?}");
        }
    }
}

#[test]
fn clients_of_one_network_count_as_one() {
    let mut node = Node::new();
    let prefixes = json!({"proxier/persistence-prefix-ipv4": "24", "proxier/persistence-prefix-ipv6": "64"});
    node.serve(&prefixes, &json!({"sessionAffinity": "ClientIP"}));
    let (v4, v6) = ("-s rr -p 10800 -M 255.255.255.0", "-s rr -p 10800 -M 64");
    has(&node, &all(v4, v4, v6, v6));
    assert_eq!(node.rejections(), [""; 0]);
    node.serve(&prefixes, &json!({}));
    has(&node, &all("-s rr", "-s rr", "-s rr", "-s rr"));
    assert_eq!(node.rejections().len(), 2, "{:?}", node.rejections());
}

#[test]
fn datagrams_by_themselves() {
    let mut node = Node::new();
    node.serve(&json!({"proxier/one-packet": "true"}), &json!({}));
    has(&node, &all("-s rr", "-s rr -o", "-s rr", "-s rr -o"));
    node.serve(&json!({"proxier/one-packet": "true"}), &json!({"ports": [{"name": "p", "port": 80}]}));
    let said = node.rejections();
    assert!(said.len() == 1 && said[0].contains("needs a port of UDP"), "{said:?}");
}

#[test]
fn what_cannot_be_is_told_and_the_configuration_counts() {
    for (name, value, reason) in [
        ("proxier/scheduler", "roundrobin", "not a scheduler of IPVS"),
        ("proxier/scheduler", "none", "not a scheduler of IPVS"),
        ("proxier/scheduler", "", "not a scheduler of IPVS"),
        ("kube-router.io/service.scheduler", "x", "not a scheduler of IPVS"),
        ("proxier/scheduler-flags", "sh-ports", "not flags of a scheduler"),
        ("proxier/persistence-seconds", "0", "not 1 to 2678400 seconds"),
        ("proxier/persistence-seconds", "2678401", "not 1 to 2678400 seconds"),
        ("proxier/persistence-seconds", "1h", "not 1 to 2678400 seconds"),
        ("proxier/persistence-prefix-ipv4", "33", "not 0 to 32"),
        ("proxier/persistence-prefix-ipv6", "0", "not 1 to 128"),
        ("proxier/one-packet", "yes", "neither true nor false"),
        ("proxier/schedular", "wlc", "no annotation of this name is read"),
        ("proxier/weights", "10.244.0.1=3", "EndpointSlices have it"),
        ("proxier/weight", "3", "Nodes have it"),
    ] {
        let mut node = Node::new();
        node.serve(&json!({name: value}), &json!({}));
        has(&node, &all("-s rr", "-s rr", "-s rr", "-s rr"));
        let said = node.rejections();
        let names = format!("Service demo/web: metadata.annotations[{name}] ");
        assert!(said.len() == 1 && said[0].starts_with(&names) && said[0].contains(reason), "{name} {value}: {said:?}");
    }
}

#[test]
fn the_operator_decides_what_annotations_may_do() {
    let asked = json!({"proxier/scheduler": "lc", "proxier/persistence-seconds": "60", "proxier/one-packet": "true"});
    for (allowed, tcp, udp) in [
        (MayAskFor::empty(), "-s rr", "-s rr"),
        (MayAskFor::SCHEDULER, "-s lc", "-s lc"),
        (MayAskFor::PERSISTENCE, "-s rr -p 60", "-s rr -p 60"),
        (MayAskFor::ONE_PACKET, "-s rr", "-s rr -o"),
    ] {
        let mut options = Options::default();
        options.config.ipvs.may_ask_for = allowed;
        let mut node = Node::with(options);
        node.serve(&asked, &json!({}));
        has(&node, &all(tcp, udp, tcp, udp));
    }
}

//! Policy by Service: annotations decide scheduler, flags and persistence; virtual servers as `ipvsadm` would print them, on a kernel in memory.

use proxier_core::config::MayAskFor;
use proxier_core::plan::report::Report;
use proxier_core::plan::step::{Action, Part};
use proxier_core::reconciler::Options;
use serde_json::{Value, json};

use crate::node::{Node, kernel};

impl Node {
    fn serve_annotated(&mut self, annotations: &Value, more: &Value) -> Report {
        let mut spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"name": "p", "port": 80}, {"name": "u", "port": 53, "protocol": "UDP"}], "annotations": annotations});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.service("web", spec);
        self.slice("web", &["10.244.0.1"]);
        self.settles()
    }
}

fn new() -> Node {
    Node::on(kernel(), Options::default())
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

/// Each virtual server with its configuration, as `ipvsadm --save` has it.
#[track_caller]
fn has(node: &Node, expected: &[String]) {
    let text = node.kernel.state().ipvs;
    let mut found: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("-A ")).map(str::trim_end).collect();
    found.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn a_changed_policy_is_applied_in_place() {
    let mut node = new();
    node.serve_annotated(&json!({}), &json!({}));
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
        let report = node.serve_annotated(&annotations, &json!({}));
        has(&node, &all(options, options, options, options));
        assert_eq!(node.rejections(), [""; 0], "{annotations}");
        for action in [Action::Add, Action::Delete] {
            assert_eq!(report.applied.done.get(&(Part::VirtualServer, action)), None, "{annotations}: {report:#?}");
        }
    }
}

#[test]
fn clients_of_one_network_count_as_one() {
    let mut node = new();
    let prefixes = json!({"proxier/persistence-prefix-ipv4": "24", "proxier/persistence-prefix-ipv6": "64"});
    node.serve_annotated(&prefixes, &json!({"sessionAffinity": "ClientIP"}));
    let (v4, v6) = ("-s rr -p 10800 -M 255.255.255.0", "-s rr -p 10800 -M 64");
    has(&node, &all(v4, v4, v6, v6));
    assert_eq!(node.rejections(), [""; 0]);
    node.serve_annotated(&prefixes, &json!({}));
    has(&node, &all("-s rr", "-s rr", "-s rr", "-s rr"));
    assert_eq!(node.rejections().len(), 2, "{:?}", node.rejections());
}

#[test]
fn datagrams_by_themselves() {
    let mut node = new();
    node.serve_annotated(&json!({"proxier/one-packet": "true"}), &json!({}));
    has(&node, &all("-s rr", "-s rr -o", "-s rr", "-s rr -o"));
    node.serve_annotated(&json!({"proxier/one-packet": "true"}), &json!({"ports": [{"name": "p", "port": 80}]}));
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
        let mut node = new();
        node.serve_annotated(&json!({name: value}), &json!({}));
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
        let mut node = Node::on(kernel(), options);
        node.serve_annotated(&asked, &json!({}));
        has(&node, &all(tcp, udp, tcp, udp));
    }
}

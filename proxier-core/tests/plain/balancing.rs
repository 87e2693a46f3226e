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
        ("proxier/persistence-prefix-ipv4", "24", "no longer exists; each client counts for itself"),
        ("proxier/persistence-prefix-ipv6", "64", "no longer exists; each client counts for itself"),
        ("proxier/one-packet", "true", "no longer exists; UDP is served as usual, with answers"),
        ("proxier/min-connections", "3", "no longer exists; three quarters of proxier/max-connections count"),
        ("proxier/proxy-protocol", "v2", "no longer exists; with externalTrafficPolicy: Local"),
        ("proxier/proxy-protocol-ports", "80", "no longer exists"),
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
    let asked = json!({"proxier/scheduler": "lc", "proxier/persistence-seconds": "60"});
    for (allowed, options) in
        [(MayAskFor::empty(), "-s rr"), (MayAskFor::SCHEDULER, "-s lc"), (MayAskFor::PERSISTENCE, "-s rr -p 60")]
    {
        let mut of_node = Options::default();
        of_node.config.ipvs.may_ask_for = allowed;
        let mut node = Node::on(kernel(), of_node);
        node.serve_annotated(&asked, &json!({}));
        has(&node, &all(options, options, options, options));
    }
}

//! What holds in every mode.

use std::fmt::Write as _;
use std::sync::Arc;

use proxier_core::config::MayAskFor;
use proxier_core::modes::trace::trace;
use proxier_core::modes::{Kind, iptables};
use proxier_core::net::EndpointKey;
use proxier_core::objects::NodeObject;
use proxier_core::service::Packet;
use proxier_core::snapshot::{Balancing, FrontendSpec, ObjectKey};
use serde_json::{Value, json};

use crate::node::{Node, held, kernel, options_of, service, slice};

/// A Service and an agent's Frontend with their endpoints, and the cluster's Nodes; with policy or without.
fn serving(mode: Kind, is_asked: bool, annotations: &Value) -> Node {
    let mut options = options_of(mode);
    options.config.ipvs.may_ask_for = MayAskFor::all();
    let mut node = Node::on(kernel(), options);
    let annotations = if is_asked { annotations.clone() } else { json!({}) };
    let web = json!({
        "type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
        "externalIPs": ["203.0.113.7"], "ports": [{"name": "p", "port": 80, "nodePort": 30080}, {"name": "u", "port": 53, "protocol": "UDP"}],
        "annotations": annotations,
    });
    node.proxier.upsert_service(&service("web", web), node.now);
    let mut endpoints = slice("web", &["10.244.0.1@node-a", "10.244.0.2@node-b", "10.244.0.3@node-b"]);
    let agents = EndpointKey::new([10, 244, 0, 9].into(), 80);
    let mut spec = FrontendSpec::new("TCP 10.96.0.9:80".parse().unwrap(), [agents]);
    if is_asked {
        endpoints.metadata.annotations.insert("proxier/weights".into(), "10.244.0.1=0, 10.244.0.2=5".into());
        let mut balancing = Balancing::default();
        balancing.persistence_secs = Some(60);
        (spec.balancing, spec.weights) = (Some(Arc::new(balancing)), vec![(agents, 0)]);
    }
    node.proxier.upsert_slice(&endpoints, node.now);
    node.proxier.upsert_frontends(&ObjectKey::new("agent", "web"), [spec], node.now);
    let labels = if is_asked { json!({"proxier/weight": "7"}) } else { json!({}) };
    let other = json!({"metadata": {"name": "node-b", "labels": labels}});
    node.proxier.upsert_cluster_node(&serde_json::from_value::<NodeObject>(other).unwrap(), node.now);
    node.settles();
    node
}

/// What the kernel holds, what becomes of packets, and what load balancers are told.
fn effects(node: &Node) -> String {
    let mut said = format!("{:#?}\n{:#?}\n", node.kernel.state(), node.kernel.listeners());
    let known = (node.proxier.desired(), node.proxier.facts());
    for to in ["TCP 10.96.0.1:80", "UDP 10.96.0.1:53", "TCP 203.0.113.7:80", "TCP 192.0.2.10:30080", "TCP 10.96.0.9:80"]
    {
        for source in ["198.51.100.7", "10.244.0.1"] {
            let packet = Packet::new(source.parse().unwrap(), to.parse().unwrap());
            let traced = trace(node.proxier.mode(), node.proxier.store(), known, &packet, iptables::Options::default());
            writeln!(said, "{source} {to}: {traced:#?}").unwrap();
        }
    }
    let checks: Vec<_> = node.proxier.desired().health_checks().collect();
    write!(said, "{checks:?}").unwrap();
    said
}

/// iptables and userspace mode do what kube-proxy's do: policy changes nothing there, and each object that asks for any is told once.
#[test]
fn only_ipvs_and_nftables_mode_follow_policy() {
    let all = json!({
        "proxier/scheduler": "mh", "proxier/scheduler-flags": "mh-port", "proxier/persistence-seconds": "600", "proxier/zone-weights": "*=0",
        "proxier/max-connections": "2", "proxier/drain-seconds": "1", "kube-router.io/service.dsr": "tunnel",
    });
    for mode in Kind::ALL {
        let (asked, plain) = (serving(mode, true, &all), serving(mode, false, &all));
        assert_eq!(plain.rejections(), [""; 0], "{mode}");
        let follows = matches!(mode, Kind::Ipvs | Kind::Nftables);
        assert_eq!(effects(&asked) != effects(&plain), follows, "{mode}");
        let why = "ignored in this mode; ipvs and nftables mode follow it";
        let ignored: Vec<String> = asked.rejections().into_iter().filter(|said| said.contains(why)).collect();
        if follows {
            assert_eq!(ignored, [""; 0], "{mode}");
            continue;
        }
        let names = "proxier/scheduler, proxier/scheduler-flags, proxier/persistence-seconds, proxier/zone-weights, \
                     kube-router.io/service.dsr, proxier/max-connections, proxier/drain-seconds";
        let expected = [
            format!("Service demo/web: metadata.annotations {names}: {why}"),
            format!(
                "EndpointSlice demo/web-1: metadata.annotations[proxier/weights] 10.244.0.1=0, 10.244.0.2=5: {why}"
            ),
            format!("Frontends agent/web: [0] balancing, weights: {why}"),
        ];
        assert_eq!(asked.rejections(), expected, "{mode}");
    }
}

#[test]
fn a_misspelt_or_removed_annotation_is_named_in_every_mode() {
    for mode in Kind::ALL {
        let asked = json!({"proxier/one-packet": "true", "proxier/schedular": "rr"});
        let (asked, plain) = (serving(mode, true, &asked), serving(mode, true, &json!({})));
        assert_eq!(effects(&asked), effects(&plain), "{mode}");
        let told: Vec<String> =
            asked.rejections().into_iter().filter(|said| said.contains("Service demo/web")).collect();
        let field = "Service demo/web: metadata.annotations";
        let expected = [
            format!("{field}[proxier/one-packet] true: no longer exists; UDP is served as usual, with answers"),
            format!("{field}[proxier/schedular] rr: no annotation of this name is read; ignored"),
        ];
        assert_eq!(told, expected, "{mode}");
    }
}

#[test]
fn passes_say_whether_health_checks_change() {
    let checked = |port: u16| {
        json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalTrafficPolicy": "Local",
        "healthCheckNodePort": port})
    };
    for mode in Kind::ALL {
        let mut node = Node::on(kernel(), options_of(mode));
        node.settles();
        node.service("web", checked(32000));
        assert!(node.settles().health_checks_changed, "{mode}");
        node.slice("web", &["10.244.0.1", "10.244.0.2@node-a"]);
        assert!(node.settles().health_checks_changed, "{mode}");
        node.slice("web", &["10.244.0.3", "10.244.0.2@node-a"]);
        assert!(!node.settles().health_checks_changed, "{mode}: as many endpoints here as before");
        node.service("web", checked(32002));
        assert!(node.settles().health_checks_changed, "{mode}");
        // Two changes in one pass.
        node.no_service("web");
        node.service("web2", checked(32001));
        assert!(node.settles().health_checks_changed, "{mode}");
    }
}

#[test]
fn an_empty_list_takes_nothing_away_at_once() {
    for mode in Kind::ALL {
        let mut node = Node::on(kernel(), options_of(mode));
        node.serve_many(20, &["10.244.0.1"]);
        node.settles();
        let whole = held(&node.kernel);
        for number in 1..=20 {
            node.proxier.lose_service(&ObjectKey::new("demo", &format!("s{number}")), node.now);
            node.proxier.lose_slice(&ObjectKey::new("demo", &format!("s{number}-1")), node.now);
        }
        let report = node.pass();
        assert!(report.stopped.is_some(), "{mode}: {report:#?}");
        assert_eq!(held(&node.kernel), whole, "{mode}");
        assert!(whole.iter().any(|line| line.contains("10.96.0.1")), "{mode}: {whole:#?}");
        node.proxier.confirm_removal(node.now);
        node.settle();
        let rest = held(&node.kernel);
        assert!(!rest.iter().any(|line| line.contains("10.96.0.")), "{mode}: {rest:#?}");
    }
}

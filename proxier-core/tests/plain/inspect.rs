//! Entries of a kernel in memory for an address and port, compared with a kernel that has everything, in each mode.

use proxier_core::inspect::{Difference, Inspection, differences, inspect};
use proxier_core::modes::Kind;
use proxier_core::net::FrontendKey;
use proxier_core::ports::PortErrorKind;
use serde_json::json;

use crate::node::{Node, kernel, options_of};

/// A node that serves `demo/web`, with these endpoints, in a mode.
fn new(mode: Kind, endpoints: &[&str]) -> Node {
    let mut node = Node::on(kernel(), options_of(mode));
    let ports = json!([{"name": "p", "port": 80, "nodePort": 30080}]);
    node.service("web", json!({"clusterIP": "10.96.0.10", "type": "NodePort", "ports": ports}));
    node.slice("web", endpoints);
    node.settles();
    node
}

fn held(node: &mut Node, key: &str) -> Inspection {
    inspect(node.proxier.mode(), &key.parse().unwrap(), node.proxier.facts(), &mut node.kernel.ports()).unwrap()
}

const CLUSTER_IP: &str = "TCP 10.96.0.10:80";
const NODE_PORT: &str = "TCP 192.0.2.10:30080";
const IN_KERNEL: [Kind; 3] = [Kind::Ipvs, Kind::Nftables, Kind::Iptables];

/// Names of the parts that differ.
fn names(all: &[Difference]) -> Vec<String> {
    all.iter().map(|one| one.to_string().split(" (").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_way_of_a_packet_is_found_in_each_mode() {
    for mode in IN_KERNEL {
        let mut node = new(mode, &["10.244.0.5", "10.244.0.6"]);
        for place in [CLUSTER_IP, NODE_PORT] {
            let found = held(&mut node, place);
            for endpoint in ["10.244.0.5:8080", "10.244.0.6:8080"] {
                let has = found.parts.keys().any(|part| part.ends_with(endpoint));
                assert!(has, "{mode} {place} {endpoint}: {found:#?}");
            }
            assert_eq!(differences(&found, &held(&mut new(mode, &["10.244.0.5", "10.244.0.6"]), place)), []);
        }
        // An address without a Service has no entry.
        let nothing = held(&mut node, "TCP 10.96.0.99:80");
        assert_eq!(nothing, Inspection::default(), "{mode}");
    }
}

#[test]
fn an_endpoint_that_a_kernel_lacks_or_has_too_many_is_named() {
    for mode in IN_KERNEL {
        for (kernel, word) in
            [(&["10.244.0.5"][..], "missing"), (&["10.244.0.5", "10.244.0.6", "10.244.0.7"], "not expected")]
        {
            let expected = held(&mut new(mode, &["10.244.0.5", "10.244.0.6"]), CLUSTER_IP);
            let found = held(&mut new(mode, kernel), CLUSTER_IP);
            let named = names(&differences(&expected, &found));
            let other = if word == "missing" { "10.244.0.6:8080" } else { "10.244.0.7:8080" };
            let is_named = |line: &String| line.starts_with(word) && line.ends_with(other);
            assert!(named.iter().any(is_named), "{mode} {word}: {named:?}");
            assert!(
                !named.iter().any(|line| line.contains("10.244.0.5:8080") && line.contains("endpoint ")),
                "{named:?}"
            );
        }
        // A kernel without any entry lacks every part.
        let expected = held(&mut new(mode, &["10.244.0.5"]), CLUSTER_IP);
        let lacks = differences(&expected, &Inspection::default());
        assert_eq!(lacks.len(), expected.parts.len(), "{mode}");
        // No endpoints: clients are refused, in every mode in another way.
        let refused = held(&mut new(mode, &[]), CLUSTER_IP);
        assert!(!differences(&expected, &refused).is_empty(), "{mode}: {refused:#?}");
    }
}

/// History leaves traces that are no difference: a real server that drains, an endpoint in another slot.
#[test]
fn what_was_before_does_not_matter() {
    for mode in IN_KERNEL {
        let mut node = new(mode, &["10.244.0.4", "10.244.0.5", "10.244.0.6"]);
        if mode == Kind::Ipvs {
            let text = "-t 10.96.0.10:80 -r 10.244.0.4:8080";
            assert!(node.kernel.state().ipvs.contains(text));
        }
        node.slice("web", &["10.244.0.5", "10.244.0.6"]);
        node.settles();
        let expected = held(&mut new(mode, &["10.244.0.5", "10.244.0.6"]), CLUSTER_IP);
        let found = held(&mut node, CLUSTER_IP);
        assert_eq!(differences(&expected, &found), [], "{mode}: {found:#?}");
    }
}

#[test]
fn in_userspace_mode_there_is_nothing_in_the_kernel() {
    let mut node = new(Kind::Userspace, &["10.244.0.5"]);
    let key: FrontendKey = CLUSTER_IP.parse().unwrap();
    let refused = inspect(Kind::Userspace, &key, node.proxier.facts(), &mut node.kernel.ports()).unwrap_err();
    assert_eq!(refused.kind(), PortErrorKind::Unavailable);
}

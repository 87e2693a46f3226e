//! Entries of a kernel in memory for an address and port, compared with a kernel that has everything, in each mode.

use std::net::IpAddr;
use std::time::Duration;

use proxier_core::fake::FakeKernel;
use proxier_core::modes::Kind;
use proxier_core::modes::look::{Difference, Held, differences, look};
use proxier_core::net::FrontendKey;
use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use proxier_core::ports::PortErrorKind;
use proxier_core::reconciler::{Options, Reconciler};
use serde_json::json;

const NODE: &str = "192.0.2.1";

/// A node that serves `demo/web`, with these endpoints, in a mode.
struct Node {
    kernel: FakeKernel,
    proxier: Reconciler,
    now: Duration,
}

impl Node {
    fn new(mode: Kind, endpoints: &[&str]) -> Self {
        let kernel = FakeKernel::new();
        let own: Vec<IpAddr> = vec![NODE.parse().unwrap()];
        kernel.set_interface("eth0", &own);
        let mut options = Options::default();
        options.mode = mode;
        let mut node = Node { kernel, proxier: Reconciler::new("n1", options, Duration::ZERO), now: Duration::ZERO };
        let object: NodeObject = serde_json::from_value(json!({
            "metadata": {"name": "n1"}, "status": {"addresses": [{"type": "InternalIP", "address": NODE}]},
        }))
        .unwrap();
        node.proxier.set_node(&object, Duration::ZERO);
        let service: ServiceObject = serde_json::from_value(json!({
            "metadata": {"namespace": "demo", "name": "web"},
            "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": "p", "port": 80, "nodePort": 30080}], "type": "NodePort"},
        }))
        .unwrap();
        node.proxier.upsert_service(&service, Duration::ZERO);
        node.endpoints(endpoints);
        node.proxier.start(Duration::ZERO);
        node.pass();
        node
    }

    fn endpoints(&mut self, endpoints: &[&str]) {
        let endpoints: Vec<_> = endpoints.iter().map(|address| json!({"addresses": [address]})).collect();
        let slice: EndpointSliceObject = serde_json::from_value(json!({
            "metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints,
        }))
        .unwrap();
        self.proxier.upsert_slice(&slice, self.now);
    }

    fn pass(&mut self) {
        self.now += Duration::from_secs(60);
        let now = self.now;
        let report = self.proxier.pass(&|| now, &mut self.kernel.ports()).unwrap();
        assert!(report.is_done(), "{report:#?}");
    }

    fn held(&mut self, key: &str) -> Held {
        let key: FrontendKey = key.parse().unwrap();
        look(self.proxier.mode(), &key, self.proxier.facts(), &mut self.kernel.ports()).unwrap()
    }
}

const CLUSTER_IP: &str = "TCP 10.96.0.10:80";
const NODE_PORT: &str = "TCP 192.0.2.1:30080";
const IN_KERNEL: [Kind; 3] = [Kind::Ipvs, Kind::Nftables, Kind::Iptables];

/// Names of the parts that differ.
fn names(all: &[Difference]) -> Vec<String> {
    all.iter().map(|one| one.to_string().split(" (").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_way_of_a_packet_is_found_in_each_mode() {
    for mode in IN_KERNEL {
        let mut node = Node::new(mode, &["10.244.0.5", "10.244.0.6"]);
        for place in [CLUSTER_IP, NODE_PORT] {
            let held = node.held(place);
            for endpoint in ["10.244.0.5:8080", "10.244.0.6:8080"] {
                let has = held.parts.keys().any(|part| part.ends_with(endpoint));
                assert!(has, "{mode} {place} {endpoint}: {held:#?}");
            }
            assert_eq!(differences(&held, &Node::new(mode, &["10.244.0.5", "10.244.0.6"]).held(place)), []);
        }
        // An address without a Service has no entry.
        let nothing = node.held("TCP 10.96.0.99:80");
        assert_eq!(nothing, Held::default(), "{mode}");
    }
}

#[test]
fn an_endpoint_that_a_kernel_lacks_or_has_too_many_is_named() {
    for mode in IN_KERNEL {
        for (kernel, word) in
            [(&["10.244.0.5"][..], "missing"), (&["10.244.0.5", "10.244.0.6", "10.244.0.7"], "not expected")]
        {
            let expected = Node::new(mode, &["10.244.0.5", "10.244.0.6"]).held(CLUSTER_IP);
            let found = Node::new(mode, kernel).held(CLUSTER_IP);
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
        let expected = Node::new(mode, &["10.244.0.5"]).held(CLUSTER_IP);
        let lacks = differences(&expected, &Held::default());
        assert_eq!(lacks.len(), expected.parts.len(), "{mode}");
        // No endpoints: clients are refused, in every mode in another way.
        let refused = Node::new(mode, &[]).held(CLUSTER_IP);
        assert!(!differences(&expected, &refused).is_empty(), "{mode}: {refused:#?}");
    }
}

/// History leaves traces that are no difference: a real server that drains, an endpoint in another slot.
#[test]
fn what_was_before_does_not_matter() {
    for mode in IN_KERNEL {
        let mut node = Node::new(mode, &["10.244.0.4", "10.244.0.5", "10.244.0.6"]);
        if mode == Kind::Ipvs {
            let text = "-t 10.96.0.10:80 -r 10.244.0.4:8080";
            assert!(node.kernel.state().ipvs.contains(text));
        }
        node.endpoints(&["10.244.0.5", "10.244.0.6"]);
        node.pass();
        let expected = Node::new(mode, &["10.244.0.5", "10.244.0.6"]).held(CLUSTER_IP);
        let found = node.held(CLUSTER_IP);
        assert_eq!(differences(&expected, &found), [], "{mode}: {found:#?}");
    }
}

#[test]
fn in_userspace_mode_there_is_nothing_in_the_kernel() {
    let mut node = Node::new(Kind::Userspace, &["10.244.0.5"]);
    let key: FrontendKey = CLUSTER_IP.parse().unwrap();
    let refused = look(Kind::Userspace, &key, node.proxier.facts(), &mut node.kernel.ports()).unwrap_err();
    assert_eq!(refused.kind(), PortErrorKind::Unavailable);
}

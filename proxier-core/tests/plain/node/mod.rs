//! A node whose kernel is in memory, with Services of namespace `demo`, for tests of the modes.

use std::collections::BTreeMap;
use std::time::Duration;

use iptables::{Backend, Family as Side};
use proptest::prelude::*;
use proxier_core::fake::FakeKernel;
use proxier_core::modes::Kind;
use proxier_core::net::Family;
use proxier_core::objects::{EndpointSliceObject, ServiceObject};
use proxier_core::plan::report::Report;
use proxier_core::reconciler::{Options, Reconciler};
use proxier_core::snapshot::ObjectKey;
use serde_json::{Value, json};

pub(crate) struct Node {
    pub(crate) kernel: FakeKernel,
    pub(crate) proxier: Reconciler,
    pub(crate) now: Duration,
    /// Back end whose rules are looked at.
    pub(crate) backend: Backend,
}

/// A kernel with an address of each family.
pub(crate) fn prepared(kernel: FakeKernel) -> FakeKernel {
    kernel.set_interface("eth0", &["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()]);
    kernel
}

/// The options of a proxy in this mode.
pub(crate) fn options_of(mode: Kind) -> Options {
    let mut options = Options::default();
    options.mode = mode;
    options
}

/// A Service with port `p`, unless the specification has ports; `status` and `annotations` in it go to their places.
pub(crate) fn service(name: &str, mut spec: Value) -> ServiceObject {
    let fields = spec.as_object_mut().unwrap();
    fields.entry("ports").or_insert_with(|| json!([{"name": "p", "port": 80}]));
    let status = fields.remove("status").unwrap_or_default();
    let annotations = fields.remove("annotations").unwrap_or_else(|| json!({}));
    let metadata = json!({"namespace": "demo", "name": name, "annotations": annotations});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

/// Endpoints of a Service, each `address@node`.
pub(crate) fn slice(service: &str, endpoints: &[&str]) -> EndpointSliceObject {
    let one = |text: &&str| {
        let (address, node) = text.split_once('@').unwrap_or((text, "elsewhere"));
        json!({"addresses": [address], "nodeName": node})
    };
    let v6 = endpoints.first().is_some_and(|text| text.contains(':'));
    serde_json::from_value(json!({
        "metadata": {"namespace": "demo", "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": if v6 { "IPv6" } else { "IPv4" },
        "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}],
        "endpoints": endpoints.iter().map(one).collect::<Vec<_>>(),
    }))
    .unwrap()
}

impl Node {
    pub(crate) fn on(kernel: FakeKernel, options: Options) -> Self {
        let proxier = Reconciler::new("node-a", options, Duration::ZERO);
        let mut node = Node { kernel, proxier, now: Duration::ZERO, backend: Backend::NfTables };
        node.proxier.start(node.now);
        node
    }

    /// Another process on the same kernel, which knows nothing yet.
    pub(crate) fn next(&self, options: Options) -> Self {
        Node { backend: self.backend, ..Node::on(self.kernel.clone(), options) }
    }

    pub(crate) fn service(&mut self, name: &str, spec: Value) {
        self.proxier.upsert_service(&service(name, spec), self.now);
    }

    pub(crate) fn slice(&mut self, service: &str, endpoints: &[&str]) {
        self.proxier.upsert_slice(&slice(service, endpoints), self.now);
    }

    pub(crate) fn no_service(&mut self, name: &str) {
        self.proxier.delete_service(&ObjectKey::new("demo", name), self.now);
    }

    /// Runs the next pass, which may fail.
    pub(crate) fn pass(&mut self) -> Report {
        self.now = self.now.max(self.proxier.next_wake().unwrap());
        let now = self.now;
        self.proxier.pass(&|| now, &mut self.kernel.ports()).unwrap()
    }

    /// Runs the next pass, which has to do all that is wanted.
    #[track_caller]
    pub(crate) fn settles(&mut self) -> Report {
        let report = self.pass();
        assert!(report.is_done(), "{report:#?}");
        if self.proxier.mode() == Kind::Iptables {
            self.counts_are_true(&report);
        }
        report
    }

    pub(crate) fn full(&mut self) -> Report {
        self.proxier.request_full(self.now);
        self.pass()
    }

    /// Output of `iptables-save`.
    pub(crate) fn rules(&self, side: Side) -> String {
        self.kernel.state().rules.get(&(side, self.backend)).cloned().unwrap_or_default()
    }

    /// The numbers of rules that a pass reports are those that `iptables-save` prints.
    #[track_caller]
    pub(crate) fn counts_are_true(&self, report: &Report) {
        assert!(!report.rule_counts.is_empty(), "{report:#?}");
        for count in &report.rule_counts {
            let side = if count.family == Family::V4 { Side::Ipv4 } else { Side::Ipv6 };
            let text = self.rules(side);
            let table = text.split_once(&format!("*{}\n", count.table)).map_or("", |(_, rest)| rest);
            let table = table.split("COMMIT").next().unwrap();
            let ours = table.lines().filter(|line| line.contains("-A KUBE-") && !line.contains("-A KUBE-FIREWALL"));
            assert_eq!(count.total, ours.count(), "{count:?}: {table}");
        }
    }
}

/// A node without Services: its passes say whether health checks change.
pub(crate) fn passes_say_whether_health_checks_change(node: &mut Node) {
    let checked = |port: u16| {
        json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalTrafficPolicy": "Local",
        "healthCheckNodePort": port})
    };
    node.settles();
    node.service("web", checked(32000));
    assert!(node.settles().health_checks_changed);
    node.slice("web", &["10.244.0.1", "10.244.0.2@node-a"]);
    assert!(node.settles().health_checks_changed);
    node.slice("web", &["10.244.0.3", "10.244.0.2@node-a"]);
    assert!(!node.settles().health_checks_changed, "as many endpoints here as before");
    // Two changes in one pass.
    node.no_service("web");
    node.service("web2", checked(32001));
    assert!(node.settles().health_checks_changed);
}

/// A Service among few, so that they meet.
pub(crate) fn a_spec() -> impl Strategy<Value = Value> {
    let optional = |text: &'static str| prop_oneof![Just(None), Just(Some(text))];
    (1..5_u8, any::<bool>(), any::<bool>(), optional("203.0.113.1"), optional("198.18.0.1"), 0..4_u8, any::<bool>())
        .prop_map(|(ip, sticky, local, external, balancer, ranges, node_port)| {
            let mut port = json!({"name": "p", "port": 80});
            if node_port {
                port["nodePort"] = json!(30_000 + u32::from(ip));
            }
            let mut spec = json!({"clusterIP": format!("10.96.0.{ip}"), "type": "LoadBalancer", "ports": [port]});
            if sticky {
                spec["sessionAffinity"] = json!("ClientIP");
            }
            if local {
                spec["externalTrafficPolicy"] = json!("Local");
                spec["internalTrafficPolicy"] = json!(if ip % 2 == 0 { "Local" } else { "Cluster" });
                spec["healthCheckNodePort"] = json!(31_000 + u32::from(ip));
            }
            spec["externalIPs"] = json!(external.into_iter().collect::<Vec<_>>());
            if let Some(ip) = balancer {
                spec["status"] = json!({"loadBalancer": {"ingress": [{"ip": ip}]}});
            }
            let all = ["198.51.100.0/24", "198.51.100.7/32", "192.0.2.0/24"];
            spec["loadBalancerSourceRanges"] = json!(all[..usize::from(ranges)]);
            spec
        })
}

/// Objects after the steps of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Objects {
    pub(crate) services: BTreeMap<u8, Value>,
    pub(crate) slices: BTreeMap<u8, Vec<u8>>,
}

impl Objects {
    pub(crate) fn give(&self, node: &mut Node) {
        for (name, spec) in &self.services {
            node.service(&format!("s{name}"), spec.clone());
        }
        for (name, endpoints) in &self.slices {
            node.slice(&format!("s{name}"), &texts(endpoints));
        }
    }
}

/// Texts of endpoints, the first of which are on this node.
pub(crate) fn texts(endpoints: &[u8]) -> Vec<&'static str> {
    const ALL: [&str; 8] = [
        "10.244.0.1@node-a",
        "10.244.0.2@node-a",
        "10.244.0.3@node-a",
        "10.244.1.1",
        "10.244.1.2",
        "10.244.1.3",
        "10.244.1.4",
        "10.244.1.5",
    ];
    endpoints.iter().map(|of| ALL[usize::from(*of)]).collect()
}

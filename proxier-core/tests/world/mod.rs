//! A small cluster to put Services into: two zones, this node is `node-a` in `zone-a`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proxier_core::config::Config;
use proxier_core::modes::ipvs::wanted::{Changed, Recorded, Wanted};
use proxier_core::service::{Indexed, NodeFacts};
use proxier_core::snapshot::{HostAddresses, Node, ObjectKey, ObjectKind, Store};
use serde_json::{Value, json};

pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) config: Config,
    pub(crate) node: Node,
    pub(crate) host: HostAddresses,
    pub(crate) all: Indexed<Recorded>,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut node = Node::new("node-a");
        node.zone = Some("zone-a".into());
        node.addresses = vec!["192.168.0.10".parse().unwrap(), "2001:db8:1::10".parse().unwrap()];
        let addresses = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let interfaces = BTreeMap::from([
            ("lo".to_owned(), addresses(&["127.0.0.1", "::1"])),
            ("eth0".to_owned(), addresses(&["192.168.0.10", "2001:db8:1::10", "fe80::10"])),
            ("kube-ipvs0".to_owned(), addresses(&["10.96.0.77"])),
        ]);
        World {
            store: Store::new("node-a"),
            config: Config::default(),
            node,
            host: HostAddresses { interfaces },
            all: Indexed::new(Recorded::new(&Config::default())),
        }
    }

    pub(crate) fn facts(&self) -> NodeFacts {
        NodeFacts::new(&self.config, &self.node, &self.host)
    }

    pub(crate) fn wanted(&self) -> Wanted<'_> {
        self.all.wanted()
    }

    pub(crate) fn refresh(&mut self, services: &[ObjectKey]) -> Changed {
        let facts = self.facts();
        self.all.refresh(&self.store, &facts, services);
        std::mem::take(&mut self.all.index.changed)
    }

    /// A Service in namespace demo with these fields of `spec` (`status` is moved out of them).
    pub(crate) fn service(&mut self, name: &str, spec: Value) -> Changed {
        let mut spec = spec;
        let status = spec.as_object_mut().unwrap().remove("status").unwrap_or(Value::Null);
        self.service_object(json!({"metadata": {"namespace": "demo", "name": name}, "spec": spec, "status": status}))
    }

    pub(crate) fn service_object(&mut self, object: Value) -> Changed {
        let changed = self.store.upsert_service(&serde_json::from_value(object).unwrap());
        self.refresh(&changed)
    }

    /// A slice of a Service in namespace demo with ports `http` (TCP 8080) and these endpoints.
    pub(crate) fn slice(&mut self, name: &str, service: &str, endpoints: Value) -> Changed {
        let v6 = endpoints[0]["addresses"][0].as_str().is_some_and(|address| address.contains(':'));
        self.slice_object(json!({
            "metadata": {"namespace": "demo", "name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": if v6 { "IPv6" } else { "IPv4" },
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": endpoints,
        }))
    }

    pub(crate) fn slice_object(&mut self, object: Value) -> Changed {
        let changed = self.store.upsert_slice(&serde_json::from_value(object).unwrap());
        self.refresh(&changed)
    }

    pub(crate) fn refresh_all(&mut self) -> Changed {
        let facts = self.facts();
        self.all.refresh_all(&self.store, &facts);
        std::mem::take(&mut self.all.index.changed)
    }

    pub(crate) fn frontends(&self) -> Vec<String> {
        self.wanted().servers().map(|(key, _)| key.to_string()).collect()
    }

    /// The fields rejected of a Service or slice.
    pub(crate) fn rejected(&self, kind: ObjectKind, name: &str) -> Vec<&str> {
        let of = (kind, ObjectKey::new("demo", name));
        let rejections = self.store.rejections().filter(|rejection| (rejection.kind, &rejection.key) == (of.0, &of.1));
        rejections.map(|rejection| &*rejection.field).collect()
    }
}

/// An endpoint on a node, ready.
pub(crate) fn endpoint(address: &str, node: &str) -> Value {
    json!({"addresses": [address], "nodeName": node})
}

/// A ClusterIP Service's spec with port http.
pub(crate) fn cluster_ip(address: &str) -> Value {
    json!({"clusterIP": address, "ports": [{"name": "http", "port": 80}]})
}

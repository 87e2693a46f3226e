//! The cluster around the subject: objects, the node, the configuration, and how they change.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use proxier_core::config::{Config, Families, Neighbour, Topology, User};
use proxier_core::objects::{EndpointSliceObject, NodeAddress, NodeObject, ServiceObject};
use proxier_core::snapshot::{HostAddresses, ObjectKey, Rejection};
use serde::Deserialize;
use serde_json::{Value, json};

use super::format::{Fields, SERVICE, SLICE, Step};

/// The present state.
#[derive(Debug, Default)]
pub(crate) struct World {
    node: Fields,
    config: Fields,
    options: Fields,
    pub(crate) services: BTreeMap<ObjectKey, ServiceObject>,
    pub(crate) slices: BTreeMap<ObjectKey, EndpointSliceObject>,
}

/// The node.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    name: String,
    /// Empty for none.
    zone: String,
    /// Internal addresses of the Node object.
    addresses: Vec<String>,
    /// Addresses of this host by interface.
    interfaces: BTreeMap<String, Vec<IpAddr>>,
    #[serde(rename = "podCIDRs", default)]
    pod_cidrs: Vec<String>,
}

impl World {
    /// The usual node, without objects.
    pub(crate) fn new() -> Self {
        let addresses = json!(["192.168.0.10", "2001:db8:1::10"]);
        let Value::Object(node) = json!({
            "name": "node-a", "zone": "zone-a", "addresses": addresses,
            "interfaces": {"lo": ["127.0.0.1", "::1"], "eth0": addresses},
        }) else {
            panic!("not fields")
        };
        World { node, ..World::default() }
    }

    /// Takes a step.
    pub(crate) fn take(&mut self, step: &Step) {
        self.node.extend(step.node.clone());
        self.config.extend(step.config.clone());
        self.options.extend(step.options.clone());
        let services = step.applied::<ServiceObject>(SERVICE).into_iter();
        self.services.extend(services.map(|object| (ObjectKey::of(&object.metadata), object)));
        let slices = step.applied::<EndpointSliceObject>(SLICE).into_iter();
        self.slices.extend(slices.map(|object| (ObjectKey::of(&object.metadata), object)));
        for key in step.deleted(SERVICE) {
            assert!(self.services.remove(&key).is_some(), "there is no Service {key}");
        }
        for key in step.deleted(SLICE) {
            self.slices.remove(&key);
        }
    }

    fn fields(&self) -> Node {
        serde_json::from_value(Value::Object(self.node.clone())).unwrap()
    }

    /// The Node object.
    pub(crate) fn node(&self) -> NodeObject {
        let node = self.fields();
        let mut object = NodeObject::default();
        object.metadata.name = node.name;
        object.metadata.labels.insert("topology.kubernetes.io/zone".to_owned(), node.zone);
        let addresses = node.addresses.into_iter();
        object.status.addresses =
            addresses.map(|address| NodeAddress { address_type: "InternalIP".to_owned(), address }).collect();
        object.spec.pod_cidrs = node.pod_cidrs;
        object
    }

    /// The addresses of the host.
    pub(crate) fn host(&self) -> HostAddresses {
        HostAddresses { interfaces: self.fields().interfaces }
    }

    /// The configuration, and its rejected fields.
    pub(crate) fn config(&self) -> (Config, Vec<Rejection>) {
        let object = serde_json::from_value(Value::Object(self.config.clone())).unwrap();
        let mut rejections = Vec::new();
        let mut config = Config::check(&object, &mut rejections);
        for (name, value) in &self.options {
            match (name.as_str(), value.as_str().unwrap()) {
                ("families", "IPv4") => config.families = Families::V4,
                ("families", "IPv6") => config.families = Families::V6,
                ("families", "dual") => config.families = Families::Dual,
                ("topology", "Hints") => config.topology = Topology::Hints,
                ("topology", "AnnotatedHints") => config.topology = Topology::AnnotatedHints,
                ("apiServer", at) => {
                    let at: SocketAddr = at.parse().unwrap();
                    config.reserved.set_neighbours(User::ApiServer, [Neighbour::tcp(at.ip(), at.port())]);
                }
                other => panic!("{other:?}"),
            }
        }
        (config, rejections)
    }
}

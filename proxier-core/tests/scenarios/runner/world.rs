//! The cluster around the subject: objects, the node, the configuration, and how they change.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proxier_core::config::Config;
use proxier_core::config::{Neighbour, User};
use proxier_core::objects::{ConfigObject, EndpointSliceObject, NodeAddress, NodeObject, ServiceObject};
use proxier_core::snapshot::{HostAddresses, ObjectKey, Rejection};
use serde_json::Value;

use super::format::{KernelEdit, NodeChange, OptionsChange, Scenario, Step};

/// The present state.
#[derive(Clone, Debug)]
pub(crate) struct World {
    node: NodeChange,
    config: Value,
    options: OptionsChange,
    pub(crate) services: BTreeMap<ObjectKey, ServiceObject>,
    pub(crate) slices: BTreeMap<ObjectKey, EndpointSliceObject>,
}

/// Change by a step.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    /// The state after it.
    pub(crate) world: World,
    pub(crate) services: Vec<ServiceObject>,
    pub(crate) slices: Vec<EndpointSliceObject>,
    pub(crate) deleted_services: Vec<ObjectKey>,
    pub(crate) deleted_slices: Vec<ObjectKey>,
    /// Whether the Node object, the host's addresses or the configuration changed.
    pub(crate) node_changed: bool,
    pub(crate) config_changed: bool,
    pub(crate) restart: bool,
    pub(crate) kernel: &'a KernelEdit,
    pub(crate) seconds: Option<u64>,
    pub(crate) connections: &'a [String],
}

impl World {
    /// The usual node, changed as the scenario says; no objects yet.
    pub(crate) fn new(scenario: &Scenario) -> Self {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let usual = NodeChange {
            name: Some("node-a".to_owned()),
            zone: Some("zone-a".to_owned()),
            addresses: Some(texts(&["192.168.0.10", "2001:db8:1::10"])),
            interfaces: Some(BTreeMap::from([
                ("lo".to_owned(), texts(&["127.0.0.1", "::1"])),
                ("eth0".to_owned(), texts(&["192.168.0.10", "2001:db8:1::10"])),
            ])),
            pod_cidrs: None,
        };
        let mut world = World {
            node: usual,
            config: Value::Object(serde_json::Map::new()),
            options: OptionsChange::default(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
        };
        world.change_node(&scenario.node);
        world.change_config(scenario.config.as_ref());
        world.options.merge(&scenario.options);
        world
    }

    fn change_node(&mut self, change: &NodeChange) -> bool {
        fn take<T: Clone>(own: &mut Option<T>, new: Option<&T>) -> bool {
            if new.is_some() {
                *own = new.cloned();
            }
            new.is_some()
        }
        let own = &mut self.node;
        let changes = [
            take(&mut own.name, change.name.as_ref()),
            take(&mut own.zone, change.zone.as_ref()),
            take(&mut own.addresses, change.addresses.as_ref()),
            take(&mut own.interfaces, change.interfaces.as_ref()),
            take(&mut own.pod_cidrs, change.pod_cidrs.as_ref()),
        ];
        changes.contains(&true)
    }

    fn change_config(&mut self, change: Option<&Value>) -> bool {
        if let Some(change) = change {
            for (key, value) in change.as_object().unwrap() {
                self.config.as_object_mut().unwrap().insert(key.clone(), value.clone());
            }
        }
        change.is_some()
    }

    /// Takes a step.
    pub(crate) fn take<'a>(&mut self, step: &'a Step) -> Change<'a> {
        let node_changed = self.change_node(&step.node);
        let config_changed = self.change_config(step.config.as_ref()) | !step.options.is_empty();
        self.options.merge(&step.options);
        let (mut services, mut slices) = (Vec::new(), Vec::new());
        for value in &step.apply {
            match value["kind"].as_str() {
                Some("Service") => {
                    let object: ServiceObject = serde_json::from_value(value.clone()).unwrap();
                    self.services.insert(ObjectKey::of(&object.metadata), object.clone());
                    services.push(object);
                }
                Some("EndpointSlice") => {
                    let object: EndpointSliceObject = serde_json::from_value(value.clone()).unwrap();
                    self.slices.insert(ObjectKey::of(&object.metadata), object.clone());
                    slices.push(object);
                }
                other => panic!("an object of kind {other:?}"),
            }
        }
        let (mut deleted_services, mut deleted_slices) = (Vec::new(), Vec::new());
        for text in &step.delete {
            let (kind, key) = text.split_once(' ').unwrap();
            let (namespace, name) = key.split_once('/').unwrap();
            let key = ObjectKey::new(namespace, name);
            match kind {
                "Service" => {
                    assert!(self.services.remove(&key).is_some(), "there is no Service {key}");
                    deleted_services.push(key);
                }
                "EndpointSlice" => {
                    self.slices.remove(&key);
                    deleted_slices.push(key);
                }
                other => panic!("delete {other}"),
            }
        }
        Change {
            world: self.clone(),
            services,
            slices,
            deleted_services,
            deleted_slices,
            node_changed,
            config_changed,
            restart: step.restart,
            kernel: &step.kernel,
            seconds: step.seconds,
            connections: &step.connections,
        }
    }

    pub(crate) fn node_name(&self) -> &str {
        self.node.name.as_deref().unwrap()
    }

    /// The Node object.
    pub(crate) fn node(&self) -> NodeObject {
        let mut object = NodeObject::default();
        self.node_name().clone_into(&mut object.metadata.name);
        let zone = self.node.zone.clone().unwrap();
        object.metadata.labels.insert("topology.kubernetes.io/zone".to_owned(), zone);
        for address in self.node.addresses.iter().flatten() {
            let address = NodeAddress { address_type: "InternalIP".to_owned(), address: address.clone() };
            object.status.addresses.push(address);
        }
        object.spec.pod_cidrs = self.node.pod_cidrs.clone().unwrap_or_default();
        object
    }

    /// The addresses of the host.
    pub(crate) fn host(&self) -> HostAddresses {
        let parse = |texts: &Vec<String>| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let interfaces = self.node.interfaces.iter().flatten();
        HostAddresses { interfaces: interfaces.map(|(name, texts)| (name.clone(), parse(texts))).collect() }
    }

    /// The configuration, and its rejected fields.
    pub(crate) fn config(&self) -> (Config, Vec<Rejection>) {
        let object: ConfigObject = serde_json::from_value(self.config.clone()).unwrap();
        let mut rejections = Vec::new();
        let mut config = Config::check(&object, &mut rejections);
        config.families = self.options.families();
        config.topology = self.options.topology();
        config.local_fallback = self.options.local_fallback();
        if let Some(at) = self.options.api_server() {
            config.reserved.set_neighbours(User::ApiServer, [Neighbour::tcp(at.ip(), at.port())]);
        }
        (config, rejections)
    }
}

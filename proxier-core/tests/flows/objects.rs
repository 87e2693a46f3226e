//! A scenario as this crate's inputs, for subjects that program the kernel through it.

use proxier_core::config::{Config, Families, Topology};
use proxier_core::objects::{ConfigObject, EndpointSliceObject, NodeAddress, NodeObject, ServiceObject};
use proxier_core::snapshot::HostAddresses;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::corpus::Scenario;
use crate::differences::Reference;

/// Inputs of a proxy on the scenario's node.
pub(crate) struct Objects {
    pub(crate) config: Config,
    pub(crate) services: Vec<ServiceObject>,
    pub(crate) slices: Vec<EndpointSliceObject>,
    /// Earlier inputs, one state after the other.
    pub(crate) before: Vec<(Vec<ServiceObject>, Vec<EndpointSliceObject>)>,
    pub(crate) node: NodeObject,
    /// The node's addresses; the node's namespace has the same.
    pub(crate) host: HostAddresses,
}

/// The inputs of a scenario, of both families where it is dual-stack.
pub(crate) fn objects(scenario: &Scenario) -> Objects {
    let input = &scenario.input;
    Objects {
        config: config(scenario.reference, input),
        services: read(&input["services"]),
        slices: read(&input["endpointSlices"]),
        before: scenario.before.iter().map(|of| (read(&of["services"]), read(&of["endpointSlices"]))).collect(),
        node: node(&input["node"]),
        host: HostAddresses { interfaces: scenario.interfaces.clone() },
    }
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

fn config(reference: Reference, input: &Value) -> Config {
    let mut object = ConfigObject::default();
    for (name, setting) in input["config"].as_object().unwrap() {
        match name.as_str() {
            "nodePortAddresses" => object.node_port_addresses = read(setting),
            "scheduler" => object.ipvs.scheduler = read(setting),
            "clusterCIDR" => object.cluster_cidr = read(setting),
            "masqueradeAll" => object.iptables.masquerade_all = read(setting),
            other => panic!("{other}"),
        }
    }
    let mut rejections = Vec::new();
    let mut config = Config::check(&object, &mut rejections);
    assert_eq!(rejections, []);
    config.families = match input["family"].as_str().unwrap() {
        "IPv4" => Families::V4,
        "IPv6" => Families::V6,
        "dual" => Families::Dual,
        other => panic!("{other}"),
    };
    if reference == Reference::Iptables28 {
        // This crate's default follows newer releases.
        config.topology = Topology::AnnotatedHints;
    }
    config
}

fn node(input: &Value) -> NodeObject {
    let mut node = NodeObject::default();
    node.metadata.name = input["name"].as_str().unwrap().into();
    if let Some(labels) = input.get("labels") {
        node.metadata.labels = read(labels);
    }
    for address in input["nodeIP"].as_object().unwrap().values() {
        node.status.addresses.push(NodeAddress { address_type: "InternalIP".to_owned(), address: read(address) });
    }
    node
}

//! Scenarios of the oracle corpus as input of this crate.

use std::io::Read as _;

use proxier_core::config::{Config, Families, Topology};
use proxier_core::objects::{ConfigObject, EndpointSliceObject, NodeAddress, NodeObject, ServiceObject};
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::{HostAddresses, Node, Store};
use serde_json::Value;

pub(crate) struct Scenario {
    pub(crate) id: String,
    pub(crate) value: Value,
    pub(crate) families: Families,
}

pub(crate) fn corpus() -> Vec<Scenario> {
    let mut text = String::new();
    let compressed = include_bytes!("../oracle/corpus.jsonl.gz");
    flate2::read::GzDecoder::new(&compressed[..]).read_to_string(&mut text).unwrap();
    text.lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line).unwrap();
            let families = match value["family"].as_str().unwrap() {
                "IPv4" => Families::V4,
                "IPv6" => Families::V6,
                "dual" => Families::Dual,
                other => panic!("{other}"),
            };
            Scenario { id: value["id"].as_str().unwrap().to_owned(), value, families }
        })
        .collect()
}

pub(crate) fn objects<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

pub(crate) fn facts(scenario: &Scenario) -> NodeFacts {
    let value = &scenario.value;
    let mut object = ConfigObject::default();
    for (name, setting) in value["config"].as_object().unwrap() {
        match name.as_str() {
            "nodePortAddresses" => object.node_port_addresses = objects(setting),
            "scheduler" => object.ipvs.scheduler = setting.as_str().map(str::to_owned),
            "clusterCIDR" => setting.as_str().unwrap().clone_into(&mut object.cluster_cidr),
            "masqueradeAll" => object.iptables.masquerade_all = setting.as_bool().unwrap(),
            other => panic!("{other}"),
        }
    }
    let mut rejections = Vec::new();
    let mut config = Config::check(&object, &mut rejections);
    config.families = scenario.families;
    // As 1.28; this crate's default follows newer releases.
    config.topology = Topology::AnnotatedHints;

    let mut node = NodeObject::default();
    node.metadata.name = value["node"]["name"].as_str().unwrap().into();
    if let Some(labels) = value["node"].get("labels") {
        node.metadata.labels = serde_json::from_value(labels.clone()).unwrap();
    }
    for address in value["node"]["nodeIP"].as_object().unwrap().values() {
        let address = address.as_str().unwrap().to_owned();
        node.status.addresses.push(NodeAddress { address_type: "InternalIP".to_owned(), address });
    }
    let node = Node::check(&node, &mut rejections);
    assert_eq!(rejections, [], "{}", scenario.id);
    let interfaces = serde_json::from_value(value["node"]["interfaces"].clone()).unwrap();
    NodeFacts::new(&config, &node, &HostAddresses { interfaces })
}

pub(crate) fn store(scenario: &Scenario) -> Store {
    let value = &scenario.value;
    let mut store = Store::new(value["node"]["name"].as_str().unwrap());
    for slice in objects::<EndpointSliceObject>(&value["endpointSlices"]) {
        store.upsert_slice(&slice);
    }
    for service in objects::<ServiceObject>(&value["services"]) {
        store.upsert_service(&service);
    }
    store
}

//! Scenarios of the oracle corpora as input of this crate.

use std::collections::BTreeMap;
use std::io::Read as _;

use proxier_core::config::{Config, Families, Topology};
use proxier_core::objects::{ConfigObject, EndpointSliceObject, NodeObject, ServiceObject};
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::{HostAddresses, Node, Store};
use serde_json::{Value, json};

pub(crate) struct Scenario {
    /// Whether it is from 1.36, not from 1.28.
    pub(crate) is_36: bool,
    pub(crate) id: String,
    pub(crate) value: Value,
    pub(crate) families: Families,
}

pub(crate) fn corpus() -> Vec<Scenario> {
    let values = lines(include_bytes!("../oracle/corpus.jsonl.gz"));
    values.into_iter().map(|value| scenario(value, false)).collect()
}

/// Scenarios of 1.36, with the results of its IPVS mode in the form of those of 1.28.
pub(crate) fn corpus_36() -> Vec<Scenario> {
    let mut expected: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in lines(include_bytes!("../oracle36/ipvs.K.jsonl.gz")) {
        expected.entry(line["id"].as_str().unwrap().to_owned()).or_default().push(line);
    }
    let mut values = lines(include_bytes!("../oracle36/K.scenarios.jsonl.gz"));
    for value in &mut values {
        for mut line in expected.remove(value["id"].as_str().unwrap()).unwrap() {
            let mut state = line["ipvs"].take();
            state["iptables"] = chains(state["iptables"].as_str().unwrap());
            value["expect"][line["family"].as_str().unwrap()] = state;
        }
    }
    values.into_iter().map(|value| scenario(value, true)).collect()
}

/// The text of a file of the corpora.
pub(crate) fn unpack(compressed: &[u8]) -> String {
    let mut text = String::new();
    flate2::read::GzDecoder::new(compressed).read_to_string(&mut text).unwrap();
    text
}

fn lines(compressed: &[u8]) -> Vec<Value> {
    unpack(compressed).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn families(value: &Value) -> Families {
    match value["family"].as_str().unwrap() {
        "IPv4" => Families::V4,
        "IPv6" => Families::V6,
        "dual" => Families::Dual,
        other => panic!("{other}"),
    }
}

fn scenario(value: Value, is_36: bool) -> Scenario {
    Scenario { is_36, id: value["id"].as_str().unwrap().to_owned(), families: families(&value), value }
}

/// Rules of kube-proxy's chains by table and chain, without comments, from a text of iptables-save. Jumps from foreign chains, whose comments have no
/// quotes, are left out.
fn chains(text: &str) -> Value {
    let mut tables = json!({});
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(":KUBE-") {
            tables[table][format!("KUBE-{}", chain.split(' ').next().unwrap())] = json!([]);
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rule| rule.split_once(' '))
            && chain.starts_with("KUBE-")
        {
            let rule = without_comment(rule);
            tables[table][chain].as_array_mut().unwrap().push(rule.into());
        }
    }
    tables
}

fn without_comment(rule: &str) -> String {
    let Some((before, rest)) = rule.split_once("-m comment --comment ") else { return rule.to_owned() };
    let after = match rest.strip_prefix('"') {
        Some(quoted) => quoted.split_once("\" ").unwrap().1,
        None => rest.find(" -").map_or("", |end| &rest[end + 1..]),
    };
    format!("{before}{after}")
}

pub(crate) fn objects<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The configuration of a scenario of either reference.
pub(crate) fn config(value: &Value, is_36: bool) -> Config {
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
    assert_eq!(rejections, []);
    config.families = families(value);
    if !is_36 {
        // This crate's default follows newer releases.
        config.topology = Topology::AnnotatedHints;
    }
    config
}

/// The Node object of a scenario.
pub(crate) fn node(value: &Value) -> NodeObject {
    let value = &value["node"];
    let address = |of: &Value| json!({"type": "InternalIP", "address": of});
    let addresses: Vec<Value> = value["nodeIP"].as_object().unwrap().values().map(address).collect();
    let labels = value.get("labels").cloned().unwrap_or_else(|| json!({}));
    let metadata = json!({"name": value["name"], "labels": labels});
    serde_json::from_value(json!({"metadata": metadata, "status": {"addresses": addresses}})).unwrap()
}

pub(crate) fn facts(scenario: &Scenario) -> NodeFacts {
    let value = &scenario.value;
    let mut rejections = Vec::new();
    let node = Node::check(&node(value), &mut rejections);
    assert_eq!(rejections, [], "{}", scenario.id);
    let interfaces = serde_json::from_value(value["node"]["interfaces"].clone()).unwrap();
    NodeFacts::new(&config(value, scenario.is_36), &node, &HostAddresses { interfaces })
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

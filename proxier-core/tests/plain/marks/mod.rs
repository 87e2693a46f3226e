//! A node of IPVS mode with a table of nf_tables, on a kernel in memory, and its firewall marks.

use std::collections::{BTreeMap, BTreeSet};

use ipvs::{RealServer, Scheduler, VirtualServer, VirtualServerKey};
use proxier_core::config::Config;
use proxier_core::engine::Options;
use proxier_core::fake::FakeKernel;
use serde_json::{Value, json};

use crate::node::{Node, delete_table};

pub(crate) const V4: &str = "ip proxier-ipvs";

/// A new process.
pub(crate) fn with(kernel: &FakeKernel, config: Config) -> Node {
    let mut options = Options::default();
    options.config = config;
    options.mass_removal.share = 1.0;
    let mut node = Node::begin(kernel, options);
    node.addresses(&["192.0.2.10"]);
    node
}

impl Node {
    /// A Service with policy `Local`; `more` is added to its spec.
    pub(crate) fn publish(&mut self, number: u16, more: &Value, nodes: &[&str]) {
        let mut spec = json!({
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "clusterIP": format!("10.96.0.{number}"),
            "ports": [{"name": "p", "port": 80, "nodePort": 30000 + number}],
            "status": {"loadBalancer": {"ingress": [{"ip": format!("198.51.100.{number}")}]}},
        });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.service(&format!("web-{number}"), spec);
        let endpoint = |node: &&str| {
            let network = if *node == "node-a" { "10.244.0" } else { "10.244.7" };
            format!("{network}.{number}@{node}")
        };
        let endpoints: Vec<String> = nodes.iter().map(endpoint).collect();
        self.slice(&format!("web-{number}"), &endpoints.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

/// Virtual servers as `ipvsadm` prints them, each with its real servers and their weights.
pub(crate) fn servers(kernel: &FakeKernel) -> BTreeMap<String, BTreeMap<String, u32>> {
    let mut all: BTreeMap<String, BTreeMap<String, u32>> = BTreeMap::new();
    for line in kernel.state().ipvs.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let reals = all.entry(format!("{} {}", words[1], words[2])).or_default();
        if words[0] == "-a" {
            let weight =
                words.iter().position(|word| *word == "-w").map_or(1, |place| words[place + 1].parse().unwrap());
            reals.insert(words[4].to_owned(), weight);
        }
    }
    all
}

/// The elements of a set or a map, out of the text of a table.
pub(crate) fn elements_of(table: &str, name: &str) -> BTreeSet<String> {
    let start = [format!("\tset {name} {{\n"), format!("\tmap {name} {{\n")];
    let text =
        start.iter().find_map(|start| table.split_once(&**start)).unwrap_or_else(|| panic!("no {name}: {table}")).1;
    let text = text.split_once("\n\t}").unwrap().0;
    let Some((_, text)) = text.split_once("elements = {") else { return BTreeSet::new() };
    let words = |one: &str| one.split_whitespace().collect::<Vec<_>>().join(" ");
    text.split_once('}').unwrap().0.split(',').map(words).filter(|one| !one.is_empty()).collect()
}

/// The elements in the table of IPv4; none without the table.
pub(crate) fn elements(kernel: &FakeKernel, name: &str) -> BTreeSet<String> {
    kernel.state().tables.get(V4).map(|table| elements_of(table, name)).unwrap_or_default()
}

/// The rules of a chain, out of the text of a table.
pub(crate) fn chain_of(table: &str, name: &str) -> Vec<String> {
    let start = format!("\tchain {name} {{\n");
    let text = table.split_once(&start).unwrap_or_else(|| panic!("no {name}: {table}")).1.split_once("\t}").unwrap().0;
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.starts_with("type ")).collect()
}

pub(crate) fn chain(kernel: &FakeKernel, name: &str) -> Vec<String> {
    chain_of(&kernel.state().tables[V4], name)
}

/// The marks by place, as the table records them: `198.51.100.1 . tcp . 80`.
pub(crate) fn marks(kernel: &FakeKernel) -> BTreeMap<String, u32> {
    let all = elements(kernel, "split-mark").into_iter();
    all.map(|element| {
        let (place, mark) = element.split_once(" : ").unwrap();
        (place.to_owned(), u32::from_str_radix(mark.trim_start_matches("0x"), 16).unwrap())
    })
    .collect()
}

pub(crate) fn reals(list: &[(&str, u32)]) -> BTreeMap<String, u32> {
    list.iter().map(|(real, weight)| ((*real).to_owned(), *weight)).collect()
}

pub(crate) fn foreign(mark: u32) -> VirtualServerKey {
    VirtualServerKey::fwmark(ipvs::model::Family::V4, mark).unwrap()
}

pub(crate) fn make_foreign(kernel: &FakeKernel, mark: u32) {
    let mut client = kernel.ipvs().client().unwrap();
    client.add_virtual_server(&VirtualServer::new(foreign(mark), Scheduler::RoundRobin)).unwrap();
    client.add_real_server(&foreign(mark), &RealServer::new("192.0.2.99:1".parse().unwrap())).unwrap();
}

/// `nft flush ruleset`.
pub(crate) fn flush_ruleset(kernel: &FakeKernel) {
    kernel.state().tables.into_keys().for_each(|name| delete_table(kernel, &name));
}

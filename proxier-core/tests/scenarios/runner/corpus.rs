//! Scenarios of `tests/oracle` in the form of the written ones: the results of kube-proxy 1.28, as the tools print them.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::net::IpAddr;

use ipset::Entry;
use proxier_core::config::Config;
use proxier_core::config::NamePrefix;
use proxier_core::modes::ipvs::sets::{SetKey, SetKind};
use proxier_core::net::Family;
use proxier_core::objects::ConfigObject;
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::{HostAddresses, Node};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::Scenario;
use crate::corpus::unpack;

/// All scenarios of the corpus, each with the deliberate differences; `plain/oracle.rs` has the reasons.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let text = unpack(include_bytes!("../../oracle/corpus.jsonl.gz"));
    text.lines().map(|line| scenario(&serde_json::from_str(line).unwrap())).collect()
}

fn scenario(line: &Value) -> Scenario {
    let node = &line["node"];
    let node_addresses: Vec<&Value> = node["nodeIP"].as_object().unwrap().values().collect();
    let zone = node["labels"]["topology.kubernetes.io/zone"].as_str().unwrap_or_default();
    let id = line["id"].as_str().unwrap();
    let mut scenario: Scenario = serde_json::from_value(json!({
        "title": id,
        "why": "the reference says so",
        "node": {"name": node["name"], "zone": zone, "addresses": node_addresses, "interfaces": node["interfaces"]},
        "config": config(&line["config"]),
        "options": {"families": line["family"], "topology": "AnnotatedHints"},
        "objects": objects(line),
        "expect": expect(line),
    }))
    .unwrap();
    scenario.file = format!("corpus {id}");
    scenario.check();
    scenario.without_reports();
    scenario
}

fn config(flat: &Value) -> Value {
    let mut config = json!({"ipvs": {}, "iptables": {}});
    for (name, value) in flat.as_object().unwrap() {
        let part = match name.as_str() {
            "scheduler" => &mut config["ipvs"],
            "masqueradeAll" => &mut config["iptables"],
            _ => &mut config,
        };
        part[name] = value.clone();
    }
    config
}

fn objects(line: &Value) -> Vec<Value> {
    let of = |list: &str, kind: &'static str| {
        let objects = line[list].as_array().unwrap().clone();
        objects.into_iter().map(move |mut object| {
            object["kind"] = kind.into();
            object
        })
    };
    of("services", "Service").chain(of("endpointSlices", "EndpointSlice")).collect()
}

fn expect(line: &Value) -> Value {
    let mut servers = String::new();
    let mut entries: BTreeMap<SetKey, Vec<String>> = BTreeMap::new();
    let mut addresses = Vec::new();
    let mut rules = Map::new();
    for (family, state) in line["expect"].as_object().unwrap() {
        let family = if family == "IPv4" { Family::V4 } else { Family::V6 };
        for (at, server) in state["virtualServers"].as_object().unwrap() {
            servers.push_str(&virtual_server(at, server));
        }
        for address in state["dummy"].as_array().unwrap() {
            let address: IpAddr = address.as_str().unwrap().parse().unwrap();
            addresses.push(format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 }));
        }
        for set in SetKey::all(family) {
            let texts = state["ipsets"][set.named(NamePrefix::KUBE).name()].as_array().cloned().unwrap_or_default();
            let parsed = texts.iter().map(|text| {
                let text: String = text.as_str().unwrap().chars().filter(|c| !c.is_whitespace()).collect();
                Entry::parse(set.kind.set_type(), &text).unwrap().to_string()
            });
            entries.entry(set).or_default().extend(parsed);
        }
        if !serves_node_ports(line, family) {
            // Health-check ports are open where node ports are.
            entries.retain(|set, _| set.family != family || set.kind != SetKind::HealthCheckNodePort);
        }
        let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
        rules.insert(program.to_owned(), chains(family, &state["iptables"], &entries).into());
    }
    let mut sets = String::new();
    for (set, entries) in entries {
        sets.extend(entries.iter().map(|entry| format!("add {} {entry}\n", set.named(NamePrefix::KUBE))));
    }
    let or_none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    let mut expect = json!({"ipvsadm": or_none(servers), "ipset": or_none(sets), "addresses": addresses});
    expect.as_object_mut().unwrap().extend(rules);
    expect
}

/// Whether an address of a family serves node ports.
fn serves_node_ports(line: &Value, family: Family) -> bool {
    let networks = line["config"]["nodePortAddresses"].clone();
    let object = ConfigObject { node_port_addresses: read(networks).unwrap_or_default(), ..ConfigObject::default() };
    let config = Config::check(&object, &mut Vec::new());
    let host = HostAddresses { interfaces: read(line["node"]["interfaces"].clone()).unwrap() };
    NodeFacts::new(&config, &Node::new(""), &host).node_port_addresses(family).next().is_some()
}

fn read<T: DeserializeOwned>(value: Value) -> Option<T> {
    serde_json::from_value(value).ok()
}

fn virtual_server(at: &str, server: &Value) -> String {
    let (at, protocol) = at.split_once('/').unwrap();
    let option = match protocol {
        "TCP" => "-t",
        "UDP" => "-u",
        _ => "--sctp-service",
    };
    let scheduler = server["scheduler"].as_str().unwrap();
    let flags = server["flags"].as_u64().unwrap();
    let persistence = if flags & 1 == 0 { String::new() } else { format!(" -p {}", server["timeout"]) };
    // Without mh-fallback new connections are lost while a real server drains.
    let scheduler_flags = if flags & 16 == 0 { "" } else { " -b mh-fallback,mh-port" };
    let mut text = format!("-A {option} {at} -s {scheduler}{persistence}{scheduler_flags}\n");
    for (real, weight) in server["realServers"].as_object().unwrap() {
        append(&mut text, format_args!("-a {option} {at} -r {real} -m -w {weight}\n"));
    }
    text
}

/// Writing to a String cannot fail.
fn append(text: &mut String, new: fmt::Arguments<'_>) {
    text.write_fmt(new).unwrap();
}

/// The chains as text, with the rule that external IPs with policy Local are not rejected. The later chain
/// `KUBE-IPVS-OUT-FILTER` is derived from the sets.
fn chains(family: Family, tables: &Value, entries: &BTreeMap<SetKey, Vec<String>>) -> String {
    let set = |end: &str| {
        SetKey::all(family).map(|set| set.named(NamePrefix::KUBE)).find(|set| set.name().ends_with(end)).unwrap()
    };
    let external = format!("-m set --match-set {} dst,dst -j RETURN", set("-EXTERNAL-IP"));
    let mut text = String::new();
    for (table, chains) in tables.as_object().unwrap() {
        append(&mut text, format_args!("*{table}\n"));
        for (chain, rules) in chains.as_object().unwrap() {
            append(&mut text, format_args!(":{chain} - [0:0]\n"));
            for rule in rules.as_array().unwrap().iter().map(|rule| rule.as_str().unwrap()) {
                append(&mut text, format_args!("-A {chain} {rule}\n"));
                if chain == "KUBE-IPVS-FILTER" && rule == external {
                    let local = set("-EXTERNAL-IP-LOCAL");
                    append(&mut text, format_args!("-A {chain} -m set --match-set {local} dst,dst -j RETURN\n"));
                }
            }
        }
        if table == "filter" {
            text.push_str(":KUBE-IPVS-OUT-FILTER - [0:0]\n");
            text.push_str(&barred(
                &entries[&set("-LOAD-BALANCER-FW").key],
                &entries[&set("-LOAD-BALANCER-SOURCE-IP").key],
            ));
        }
    }
    text
}

/// Load balancers whose source ranges exclude the node.
fn barred(guarded: &[String], open: &[String]) -> String {
    let mut rules = Vec::new();
    for entry in guarded {
        let (address, rest) = entry.split_once(',').unwrap();
        if !open.contains(&format!("{entry},{address}")) {
            let (protocol, port) = rest.split_once(':').unwrap();
            rules.push((address.parse::<IpAddr>().unwrap(), protocol, port.parse::<u16>().unwrap()));
        }
    }
    // The order is by protocol first, as virtual servers are sorted.
    let rank = |protocol: &str| ["tcp", "udp", "sctp"].iter().position(|of| *of == protocol);
    rules.sort_by_key(|(address, protocol, port)| (rank(protocol), *address, *port));
    let rule = |(address, protocol, port): (IpAddr, &str, u16)| {
        format!(
            "-A KUBE-IPVS-OUT-FILTER -s {address} -m ipvs --vaddr {address} --vproto {protocol} --vport {port} -j DROP\n"
        )
    };
    rules.into_iter().map(rule).collect()
}

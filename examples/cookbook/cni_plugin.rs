//! A CNI plugin that programs a pod's network namespace from outside: the pod accepts connections only on some ports.
//!
//! In a list of plugins, after the one that creates the interface: `{"type": "cni_plugin", "ports": [80, 443]}`.
//! Without a runtime: `CNI_COMMAND=ADD CNI_CONTAINERID=a CNI_IFNAME=eth0 CNI_NETNS=/run/netns/pod cni_plugin <
//! configuration.json`
//!
//! The plugin stays in the host's namespace: `open_in` opens only the netlink socket in the pod's. The table is deleted
//! with the namespace, so DEL deletes it only if the namespace still exists.
//!
//! Speaks CNI 1.0.0 as a chained plugin. Needs `CAP_SYS_ADMIN` (to enter the namespace), `CAP_NET_ADMIN` and nf_tables.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use nftables::{
    BaseChain, Chain, ChainType, Client, CtState, Element, Family, Hook, L4Protocol, Operand, Policy, Priority, Set,
    Table, TableKey, Transaction, Value as Bytes, rule,
};
use serde_json::{Value, json};

const VERSION: &str = "1.0.0";

/// Code and message of a CNI error.
type Failure = (u32, String);

/// A code for plugin errors; those below 100 are CNI's own.
fn failure(error: impl Into<Box<dyn std::error::Error>>) -> Failure {
    (100, error.into().to_string())
}

fn main() -> ExitCode {
    match run() {
        Ok(result) => {
            // Only ADD and VERSION have a result.
            if !result.is_null() {
                println!("{result}");
            }
            ExitCode::SUCCESS
        }
        Err((code, message)) => {
            println!("{}", json!({"cniVersion": VERSION, "code": code, "msg": message}));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Value, Failure> {
    let variable = |name: &str| std::env::var(name).map_err(|error| (4, format!("{name}: {error}")));
    let command = variable("CNI_COMMAND")?;
    if command == "VERSION" {
        return Ok(json!({"cniVersion": VERSION, "supportedVersions": [VERSION]}));
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(failure)?;
    let configuration: Value = serde_json::from_str(&text).map_err(|error| (6, error.to_string()))?;
    match configuration["cniVersion"].as_str() {
        Some(VERSION) => {}
        other => {
            return Err((1, format!("cniVersion is {}, this plugin speaks {VERSION}", other.unwrap_or("missing"))));
        }
    }
    let ports = ports(&configuration)?;
    let table = TableKey::new(Family::Inet, "cni-ports").map_err(failure)?;
    let open = || -> Result<Client, Failure> {
        let path = variable("CNI_NETNS")?;
        let namespace = File::open(&path).map_err(|error| (3, format!("{path}: {error}")))?;
        Client::open_in(namespace.as_fd()).map_err(failure)
    };
    match command.as_str() {
        "ADD" => {
            let previous =
                configuration.get("prevResult").ok_or((7, "prevResult is missing: not in a chain".to_owned()))?;
            open()?.commit(&only(&table, &ports).map_err(failure)?).map_err(failure)?;
            Ok(previous.clone())
        }
        "CHECK" => {
            let snapshot = open()?.snapshot(&table).map_err(failure)?;
            let open: Vec<&Element> = snapshot.sets.iter().flat_map(|set| &set.elements).collect();
            let is_open = |port: &u16| open.contains(&&Element::value(Bytes::port(*port)));
            if open.len() != ports.len() || !ports.iter().all(is_open) {
                return Err((101, format!("other ports are open than {ports:?}")));
            }
            Ok(Value::Null)
        }
        "DEL" => {
            // The runtime may have removed the namespace, and may call DEL twice: neither is an error.
            let mut transaction = Transaction::new();
            transaction.remove_table(&table);
            let namespace = variable("CNI_NETNS").ok().filter(|path| !path.is_empty()).map(File::open);
            if let Some(Ok(namespace)) = namespace {
                Client::open_in(namespace.as_fd()).and_then(|mut pod| pod.commit(&transaction)).map_err(failure)?;
            }
            Ok(Value::Null)
        }
        other => Err((4, format!("CNI_COMMAND is {other:?}"))),
    }
}

fn ports(configuration: &Value) -> Result<Vec<u16>, Failure> {
    let wrong = || (7, "ports is not a list of numbers up to 65535".to_owned());
    let list = configuration["ports"].as_array().ok_or_else(wrong)?;
    let mut ports = Vec::new();
    for port in list {
        ports.push(port.as_u64().and_then(|port| u16::try_from(port).ok()).ok_or_else(wrong)?);
    }
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

/// Our own table, replacing an earlier one.
fn only(table: &TableKey, ports: &[u16]) -> Result<Transaction, nftables::model::InvalidValue> {
    let input = table.chain("input")?;
    let open = Set::typeof_set(table.set("ports")?, &[Operand::DPORT])?;
    let inet = || rule(Family::Inet);
    let mut transaction = Transaction::new();
    transaction.remove_table(table).add_table(Table::new(table.clone()));
    let base = BaseChain::new(ChainType::Filter, Hook::Input, Priority::FILTER);
    transaction.add_chain(Chain::base(input.clone(), base).policy(Policy::Accept));
    transaction.add_set(open.clone());
    transaction.add_elements(&open, ports.iter().map(|port| Element::value(Bytes::port(*port))));
    transaction.add_rule(&input, inet().iifname("lo").accept().build()?);
    transaction.add_rule(&input, inet().ct_state(CtState::ESTABLISHED | CtState::RELATED).accept().build()?);
    transaction.add_rule(
        &input,
        inet()
            .meta_l4proto(L4Protocol::TCP)
            .not_in_set(&[Operand::DPORT], &open.key)
            .counter()
            .drop_packet()
            .build()?,
    );
    Ok(transaction)
}

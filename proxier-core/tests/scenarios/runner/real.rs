//! The calling thread's network namespace as a machine, read with the field's own tools.

use std::cell::Cell;
use std::net::IpAddr;

use iptables::{Backend, BackendChoice, System};
use proxier_core::kernel::{KernelOptions, KernelPorts, RulesPort};
use proxier_core::ports::Ports;
use proxier_core::snapshot::HostAddresses;
use serde_json::Value;
use testkit::oracle;

use super::engine::Machine;
use super::format::KernelEdit;
use super::{Printed, printed};

pub(crate) struct Real {
    kernel: KernelPorts,
    /// Port for rules; `None` only while this is dropped.
    rules: Option<RulesPort<System>>,
    interfaces: Vec<String>,
}

thread_local! {
    /// Finding the programs takes two dozen processes, most of the time of a scenario in an emulated machine; the next
    /// scenario uses them too.
    static PROGRAMS: Cell<Option<RulesPort<System>>> = const { Cell::new(None) };
}

impl Real {
    pub(crate) fn new() -> Self {
        let options = KernelOptions::default();
        let found = PROGRAMS.take();
        let choice = BackendChoice::Force(Backend::NfTables);
        Real {
            kernel: KernelPorts::open(&options).unwrap(),
            rules: found.or_else(|| Some(RulesPort::new(options.system, choice, options.limits))),
            interfaces: Vec::new(),
        }
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        PROGRAMS.set(self.rules.take());
    }
}

const DEVICE: &str = "kube-ipvs0";

/// Runs a program with something to read, which must succeed.
fn run(program: &str, arguments: &[&str], input: &str) -> String {
    oracle::run(program, arguments, Some(input)).unwrap().stdout
}

/// Lines for `ip -batch` that put addresses on a device.
fn add_addresses(device: &str, addresses: &[IpAddr]) -> Vec<String> {
    // lo already has these.
    let there = |address: &&IpAddr| device == "lo" && matches!(address.to_string().as_str(), "127.0.0.1" | "::1");
    let line = |address: &IpAddr| {
        let length = if address.is_ipv4() { "32" } else { "128" };
        let nodad = if address.is_ipv4() { "" } else { " nodad" };
        format!("address replace {address}/{length} dev {device}{nodad}")
    };
    addresses.iter().filter(|address| !there(address)).map(line).collect()
}

impl Machine for Real {
    fn ports(&mut self) -> Ports<'_> {
        Ports { rules: self.rules.as_mut().unwrap(), ..self.kernel.ports() }
    }

    fn set_host(&mut self, host: &HostAddresses) {
        let mut lines: Vec<String> = self.interfaces.drain(..).map(|name| format!("link delete {name}")).collect();
        for (name, addresses) in &host.interfaces {
            if name == DEVICE {
                self.create_device();
            } else if name != "lo" {
                lines.push(format!("link add {name} type dummy"));
                self.interfaces.push(name.clone());
            }
            lines.extend(add_addresses(name, addresses));
        }
        run("ip", &["-batch", "-"], &lines.join("\n"));
    }

    fn edit(&mut self, edit: &KernelEdit) {
        if !edit.ipvsadm.is_empty() {
            oracle::ipvsadm_restore(&edit.ipvsadm).unwrap();
        }
        if !edit.ipset.is_empty() {
            oracle::ipset_restore(&edit.ipset).unwrap();
        }
        let mut lines = Vec::new();
        for line in edit.addresses.lines() {
            self.create_device();
            let (command, address) = line.split_once(' ').unwrap();
            let address: IpAddr = address.parse().unwrap();
            let length = if address.is_ipv4() { 32 } else { 128 };
            lines.extend(match command {
                "add" => add_addresses(DEVICE, &[address]),
                _ => vec![format!("address {command} {address}/{length} dev {DEVICE}")],
            });
        }
        if !lines.is_empty() {
            run("ip", &["-batch", "-"], &lines.join("\n"));
        }
        for (text, program) in [(&edit.iptables, "iptables-nft-restore"), (&edit.ip6tables, "ip6tables-nft-restore")] {
            if !text.is_empty() {
                run(program, &["--noflush"], text);
            }
        }
    }

    fn connect(&mut self, connections: &str) {
        panic!("connections cannot be made up on a real kernel: {connections}");
    }

    fn print(&mut self, printed: &mut Printed, rules: bool) {
        printed.ipvsadm = printed::virtual_servers(&oracle::ipvsadm_save().unwrap());
        let saved = oracle::ipset_save().unwrap();
        let entries = saved.lines().filter(|line| line.starts_with("add ")).map(str::to_owned);
        printed.ipset = printed::sorted(entries);
        printed.addresses = addresses();
        let rules_of = |family| {
            let text = rules.then(|| oracle::iptables_save(oracle::Backend::Nft, family).unwrap());
            printed::rules(&text.unwrap_or_default())
        };
        printed.iptables = rules_of(oracle::Family::V4);
        printed.ip6tables = rules_of(oracle::Family::V6);
    }
}

impl Real {
    fn create_device(&mut self) {
        self.kernel.ports().links.create_device(DEVICE).unwrap();
    }
}

/// The addresses of the dummy device.
fn addresses() -> Vec<String> {
    let json: Value = serde_json::from_str(&oracle::ip_json(&["address"]).unwrap()).unwrap();
    let links = json.as_array().unwrap().iter().filter(|link| link["ifname"] == DEVICE);
    let infos = links.flat_map(|link| link["addr_info"].as_array().unwrap());
    let address = |info: &Value| format!("{}/{}", info["local"].as_str().unwrap(), info["prefixlen"]);
    printed::sorted(infos.map(address))
}

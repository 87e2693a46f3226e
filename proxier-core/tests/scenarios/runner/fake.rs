//! The kernel in memory as a machine.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipset::{Entry, SetName};
use iptables::{Backend, Family, Invocation, Runner as _};
use ipvs::VirtualServerKey;
use ipvs::model::{Protocol, RealServerKey};
use proxier_core::fake::FakeKernel;
use proxier_core::ports::Ports;
use proxier_core::snapshot::HostAddresses;

use super::engine::Machine;
use super::format::KernelEdit;
use super::{Printed, printed};

#[derive(Default)]
pub(crate) struct Fake {
    kernel: FakeKernel,
    interfaces: Vec<String>,
}

const DEVICE: &str = "kube-ipvs0";

impl Machine for Fake {
    fn ports(&mut self) -> Ports<'_> {
        self.kernel.ports()
    }

    fn set_host(&mut self, host: &HostAddresses) {
        for name in self.interfaces.drain(..).filter(|name| !host.interfaces.contains_key(name)) {
            self.kernel.remove_interface(&name);
        }
        for (name, addresses) in &host.interfaces {
            if name == DEVICE {
                add_addresses(&mut self.kernel, addresses);
                continue;
            }
            self.kernel.set_interface(name, addresses);
            self.interfaces.push(name.clone());
        }
    }

    fn edit(&mut self, edit: &KernelEdit) {
        let lines: Vec<&str> = edit.ipvsadm.lines().filter(|line| *line != "-C").collect();
        if edit.ipvsadm.lines().any(|line| line == "-C") {
            self.kernel.ipvs().client().unwrap().flush_and_cut_everything().unwrap();
        }
        self.kernel.ipvs().load(&lines.join("\n")).unwrap();
        edit.ipset.lines().for_each(|line| self.edit_set(line));
        for line in edit.addresses.lines() {
            let (command, address) = line.split_once(' ').unwrap();
            let address: IpAddr = address.parse().unwrap();
            match command {
                "add" => add_addresses(&mut self.kernel, &[address]),
                _ => assert!(self.kernel.clone().ports().links.unbind(DEVICE, &[address]).is_empty()),
            }
        }
        for (text, program) in [(&edit.iptables, "iptables-restore"), (&edit.ip6tables, "ip6tables-restore")] {
            if !text.is_empty() {
                self.restore(program, text);
            }
        }
    }

    fn connect(&mut self, connections: &str) {
        let words: Vec<&str> = connections.split(' ').collect();
        let [service, at, "-r", real, "active", active, "inactive", inactive] = words[..] else { panic!("{words:?}") };
        let protocol = if service == "-u" { Protocol::Udp } else { Protocol::Tcp };
        let key = VirtualServerKey::new(protocol, at.parse().unwrap());
        let real = RealServerKey::from(real.parse::<SocketAddr>().unwrap());
        let counts = (active.parse().unwrap(), inactive.parse().unwrap());
        assert!(self.kernel.ipvs().set_counters(&key, Some((&real, counts.0, counts.1)), 1, 1), "{connections}");
    }

    fn print(&mut self, printed: &mut Printed, rules: bool) {
        let state = self.kernel.state();
        printed.ipvsadm = printed::virtual_servers(&state.ipvs);
        let sets = state.sets.iter().flat_map(|(name, (_, entries))| {
            entries.iter().map(move |entry| format!("add {name} {}", entry.trim_start_matches("add ")))
        });
        printed.ipset = printed::sorted(sets);
        let prefix = |address: &IpAddr| if address.is_ipv4() { 32 } else { 128 };
        let addresses = state.devices.get(DEVICE).into_iter().flatten();
        printed.addresses = printed::sorted(addresses.map(|address| format!("{address}/{}", prefix(address))));
        if !rules {
            return;
        }
        let rules = |family| {
            let texts =
                [Backend::Legacy, Backend::NfTables].into_iter().filter_map(|of| state.rules.get(&(family, of)));
            texts.into_iter().map(|text| printed::rules(text)).max_by_key(Vec::len).unwrap_or_default()
        };
        printed.iptables = rules(Family::Ipv4);
        printed.ip6tables = rules(Family::Ipv6);
    }
}

impl Fake {
    fn edit_set(&mut self, line: &str) {
        let mut client = self.kernel.ipset().unwrap();
        let (command, rest) = line.split_once(' ').unwrap();
        if command == "create" {
            client.create_set(&rest.parse().unwrap()).unwrap();
            return;
        }
        let (name, entry) = rest.split_once(' ').unwrap_or((rest, ""));
        let name = SetName::new(name).unwrap();
        let set_type = client.get_header(&name).unwrap().spec.set_type;
        let entry = || Entry::parse(set_type, entry).unwrap();
        match command {
            "add" => client.add_entry(&name, &entry()).unwrap(),
            "del" => client.delete_entry(&name, &entry()).unwrap(),
            "flush" => client.flush_set(&name).unwrap(),
            other => panic!("ipset {other}"),
        }
    }

    fn restore(&mut self, program: &str, text: &str) {
        self.kernel.with_host(|host| {
            let program = host.find(program).unwrap();
            let restore = Invocation::new(&program, ["--noflush"], Duration::from_secs(1)).with_stdin(text.to_owned());
            let output = host.run(&restore).unwrap();
            assert_eq!(output.code, Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        });
    }
}

fn add_addresses(kernel: &mut FakeKernel, addresses: &[IpAddr]) {
    let mut kernel = kernel.clone();
    let ports = kernel.ports();
    ports.links.create_device(DEVICE).unwrap();
    assert!(ports.links.bind(DEVICE, addresses).is_empty());
}

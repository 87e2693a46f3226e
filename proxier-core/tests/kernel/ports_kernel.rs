//! The ports' suite on the running kernel, each case in its own network namespace, checked with the usual tools. Also
//! cases for what only a real kernel has: packets, notifications, local routes.

mod only_kernel;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use proxier_core::kernel::{KernelOptions, KernelPorts};
use proxier_core::net::Family;
use proxier_core::ports::Ports;
use testkit::{Need, oracle};

use crate::ports;

/// The calling thread's network namespace.
pub(crate) struct Kernel {
    ports: KernelPorts,
}

impl Kernel {
    pub(crate) fn new() -> Self {
        Kernel { ports: KernelPorts::open(&KernelOptions::default()).unwrap() }
    }
}

/// Runs a program, which must succeed.
pub(crate) fn run(program: &str, arguments: &str) -> String {
    let arguments: Vec<&str> = arguments.split(' ').filter(|word| !word.is_empty()).collect();
    oracle::run(program, &arguments, None).unwrap().stdout
}

/// Waits until packets to an address come to this host: the kernel finishes IPv6 addresses in a thread of its own.
pub(crate) fn wait_until_local(address: IpAddr) {
    for _ in 0..500 {
        if run("ip", &format!("route get {address}")).starts_with("local") {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{address} is not local: {}", run("ip", &format!("route get {address}")));
}

fn family_of(address: SocketAddr) -> oracle::Family {
    if address.is_ipv4() { oracle::Family::V4 } else { oracle::Family::V6 }
}

impl ports::World for Kernel {
    fn ports(&mut self) -> Ports<'_> {
        self.ports.ports()
    }

    fn saved_ipvs(&self) -> Vec<String> {
        let saved = oracle::ipvsadm_save().unwrap();
        let mut lines: Vec<String> = saved.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.sort();
        lines
    }

    fn saved_set(&self, name: &str) -> Option<(String, BTreeSet<String>)> {
        // The output is not sorted by the tool, which would take minutes for large sets.
        let saved = run("ipset", "save");
        let create = saved.lines().find(|line| line.starts_with(&format!("create {name} ")))?;
        let create = create.split(" bucketsize").next().unwrap().to_owned();
        let entries = saved.lines().filter_map(|line| line.strip_prefix(&format!("add {name} ")));
        Some((create, entries.map(str::to_owned).collect()))
    }

    fn set_size(&self, name: &str) -> usize {
        let listed = run("ipset", &format!("list -terse {name}"));
        let count = listed.lines().find_map(|line| line.strip_prefix("Number of entries: "));
        count.unwrap().parse().unwrap()
    }

    fn create_set(&mut self, line: &str) {
        oracle::ipset_restore(&format!("{line}\n")).unwrap();
    }

    fn saved_rules(&self, family: Family, table: &str) -> String {
        let family = if family == Family::V4 { oracle::Family::V4 } else { oracle::Family::V6 };
        let all = oracle::iptables_save(oracle::Backend::Nft, family).unwrap();
        let begin = all.find(&format!("*{table}\n")).unwrap_or(all.len());
        all[begin..].split_inclusive("COMMIT\n").next().unwrap_or_default().to_owned()
    }

    fn devices(&self) -> BTreeMap<String, BTreeSet<IpAddr>> {
        let json: serde_json::Value = serde_json::from_str(&oracle::ip_json(&["address"]).unwrap()).unwrap();
        let address = |info: &serde_json::Value| {
            let link_local = info["scope"] == "link" && info["local"].as_str().unwrap().contains(':');
            (!link_local).then(|| info["local"].as_str().unwrap().parse().unwrap())
        };
        let device = |link: &serde_json::Value| {
            let addresses = link["addr_info"].as_array().unwrap().iter().filter_map(address);
            (link["ifname"].as_str().unwrap().to_owned(), addresses.collect())
        };
        json.as_array().unwrap().iter().map(device).collect()
    }

    fn add_interface(&mut self, name: &str, addresses: &[IpAddr]) {
        run("ip", &format!("link add {name} type bridge"));
        for address in addresses {
            // Without detection of duplicates an address can be used at once.
            let nodad = if address.is_ipv4() { "" } else { "nodad" };
            run("ip", &format!("address add {address} dev {name} {nodad}"));
        }
        while !run("ip", &format!("-6 -oneline address show dev {name} tentative")).is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    fn remove_address(&mut self, name: &str, address: IpAddr) {
        let length = if address.is_ipv4() { 32 } else { 128 };
        run("ip", &format!("address delete {address}/{length} dev {name}"));
    }

    fn local_routes(&self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        for (family, bits) in [("-4", 32), ("-6", 128)] {
            let listed = oracle::ip_json(&[family, "route", "show", "table", "local"]).unwrap();
            let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
            for route in listed.as_array().unwrap() {
                let protocol = route["protocol"].as_str().unwrap_or_default();
                if !["118", "119"].contains(&protocol) {
                    continue;
                }
                let network = route["dst"].as_str().unwrap();
                let network = if network.contains('/') { network.to_owned() } else { format!("{network}/{bits}") };
                let (device, metric) = (route["dev"].as_str().unwrap(), &route["metric"]);
                let source = route["prefsrc"].as_str().map_or_else(String::new, |source| format!(" src {source}"));
                assert_eq!(route["type"], "local", "{route}");
                lines.insert(format!("local {network} dev {device}{source} proto {protocol} metric {metric}"));
            }
        }
        lines
    }

    fn sysctl(&self, path: &str) -> String {
        std::fs::read_to_string(format!("/proc/sys/{path}")).unwrap().trim().to_owned()
    }

    fn send_udp(&mut self, client: SocketAddr, destination: SocketAddr, endpoint: SocketAddr) {
        for address in [client, destination, endpoint] {
            let length = if address.is_ipv4() { 32 } else { 128 };
            let nodad = if address.is_ipv4() { "" } else { "nodad" };
            run("ip", &format!("address replace {}/{length} dev lo {nodad}", address.ip()));
            wait_until_local(address.ip());
        }
        let program = if family_of(client) == oracle::Family::V4 { "iptables-nft" } else { "ip6tables-nft" };
        let from = format!("-p udp -s {} --sport {}", client.ip(), client.port());
        let to = format!("-d {} --dport {}", destination.ip(), destination.port());
        let what = if endpoint == destination {
            "-j ACCEPT".to_owned()
        } else {
            format!("-j DNAT --to-destination {endpoint}")
        };
        run(program, &format!("-t nat -A OUTPUT {from} {to} {what}"));
        // Some of these take an emulated machine longer than the usual 30 s.
        std::fs::write("/proc/sys/net/netfilter/nf_conntrack_udp_timeout", "600\n").unwrap();
        let server = UdpSocket::bind(endpoint).unwrap();
        server.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let socket = UdpSocket::bind(client).unwrap();
        socket.send_to(b"question", destination).unwrap();
        let received = server.recv_from(&mut [0; 64]);
        assert!(
            matches!(received, Ok((8, sender)) if sender == client),
            "{client} {destination} {endpoint}: {received:?}"
        );
    }

    fn flows(&self) -> BTreeSet<(SocketAddr, SocketAddr, SocketAddr)> {
        let mut flows = BTreeSet::new();
        for family in ["ipv4", "ipv6"] {
            let listed = run("conntrack", &format!("-L -p udp -f {family}"));
            for line in listed.lines() {
                // Both directions, the client's first.
                let field = |name: &str, direction: usize| {
                    let mut values = line.split(' ').filter_map(|word| word.strip_prefix(name));
                    values.nth(direction).unwrap_or_else(|| panic!("{line}")).to_owned()
                };
                let end = |side: &str, port: &str, direction| {
                    SocketAddr::new(field(side, direction).parse().unwrap(), field(port, direction).parse().unwrap())
                };
                flows.insert((end("src=", "sport=", 0), end("dst=", "dport=", 0), end("src=", "sport=", 1)));
            }
        }
        flows
    }
}

const SETS: &[Need] = &[
    Need::Root,
    Need::Ipset("hash:ip"),
    Need::Ipset("hash:ip,port"),
    Need::Ipset("hash:ip,port,ip"),
    Need::Ipset("hash:ip,port,net"),
    Need::Ipset("bitmap:port"),
];

fn needs(module: &str) -> Vec<Need> {
    match module {
        "ipvs" => vec![Need::Root, Need::IpVs, Need::Tool("ipvsadm")],
        "sets" => SETS.to_vec(),
        "rules" => [SETS, &[Need::IptablesNft]].concat(),
        "links" | "routes" => vec![Need::Root, Need::Dummy],
        "sysctls" => vec![Need::Root],
        "conntrack" => vec![Need::Root, Need::IptablesNft, Need::Conntrack],
        other => panic!("{other}"),
    }
}

macro_rules! on_the_kernel {
    ($($module:ident { $($case:ident,)* })*) => { $(
        mod $module {
            $(
                #[test]
                fn $case() {
                    let needs = super::needs(stringify!($module));
                    testkit::kernel_test(&needs, || crate::ports::$module::$case(&mut super::Kernel::new()));
                }
            )*
        }
    )* };
}
ports::for_each_case!(on_the_kernel);

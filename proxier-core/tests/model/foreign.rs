//! Other programs: their objects, and their changes to own ones.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipset::{Element, Entry, IfAbsent, IfPresent, SetName};
use iptables::{Backend, Family, Invocation, Runner as _};
use ipvs::{Operation, VirtualServerKey};
use proxier_core::config::NamePrefix;
use proxier_core::fake::FakeKernel;
use proxier_core::modes::ipvs::wanted::Wanted;
use proxier_core::ports::SetKey;
use proxier_core::sketch::KernelState;

use super::rules::our_rules;
use super::steps::Damage;

#[derive(Clone, Copy)]
pub(crate) struct Stranger(pub(crate) u8);

/// Foreign virtual servers; some have the numbers of node ports that Services of the model have.
const SERVERS: [&str; 8] = [
    "-A -t 172.30.0.3:30000 -s rr\n-a -t 172.30.0.3:30000 -r 172.30.1.3:80 -m -w 1\n",
    "-A -u 172.30.0.3:30001 -s rr\n-A -t 172.30.0.4:30010 -s wlc\n-A -u 172.30.0.4:30000 -s rr\n",
    "-A -t [fd30::3]:30000 -s rr\n-A -u [fd30::3]:30011 -s rr\n-A -t 172.30.0.3:30020 -s rr\n",
    "-A -t 172.30.0.1:7000 -s rr\n-a -t 172.30.0.1:7000 -r 172.30.1.1:7000 -m -w 1\n",
    "-A -u 172.30.0.2:53 -s wrr -p 60\n",
    "-A -f 3 -s sh\n-a -f 3 -r 172.30.1.3:0 -m -w 5\n",
    "-A -t [fd30::1]:80 -s lc\n-a -t [fd30::1]:80 -r [fd30::2]:80 -m -w 0\n",
    "-a -t 172.30.0.1:7000 -r 172.30.1.2:7000 -m -w 0\n",
];

const RULES: [&str; 5] = [
    "*nat\n:FOREIGN-A - [0:0]\n-A FOREIGN-A -j RETURN\n-I PREROUTING 1 -j FOREIGN-A\nCOMMIT\n",
    "*nat\n-A POSTROUTING -s 172.30.0.0/16 -m comment --comment FOREIGN -j MASQUERADE\nCOMMIT\n",
    "*filter\n-I INPUT 1 -s 172.30.0.9/32 -m comment --comment FOREIGN -j DROP\nCOMMIT\n",
    "*nat\n:FOREIGN-M - [0:0]\n-A FOREIGN-M -s 172.30.0.0/16 -j KUBE-MARK-MASQ\nCOMMIT\n",
    "*mangle\n:FOREIGN-B - [0:0]\n-A FOREIGN-B -j ACCEPT\nCOMMIT\n",
];

const HARMFUL_RULES: [&str; 4] = [
    "*nat\n-F KUBE-SERVICES\nCOMMIT\n",
    "*nat\n-D OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\nCOMMIT\n",
    "*nat\n-I KUBE-POSTROUTING 1 -j RETURN\nCOMMIT\n",
    "*filter\n-F KUBE-FORWARD\nCOMMIT\n",
];

fn restore(kernel: &FakeKernel, family: Family, text: &str) {
    kernel.with_host(|host| {
        let program = host.find(&format!("{}-nft-restore", family.program())).unwrap();
        let run = Invocation::new(&program, ["--noflush"], Duration::from_secs(1)).with_stdin(text.to_owned());
        // The object of the command may not exist.
        let _ = host.run(&run).unwrap();
    });
}

fn family(which: u8) -> Family {
    if which.is_multiple_of(2) { Family::Ipv4 } else { Family::Ipv6 }
}

fn of<'a>(texts: &[&'a str], which: u8) -> &'a str {
    texts[usize::from(which) % texts.len()]
}

/// Adds, changes or removes a foreign object.
pub(crate) fn happen(kernel: &FakeKernel, Stranger(what): Stranger, which: u8) {
    match what % 6 {
        // An existing one stays.
        0 => drop(kernel.ipvs().load(of(&SERVERS, which))),
        1 => {
            let keys = ["TCP 172.30.0.1:7000", "UDP 172.30.0.2:53", "FWM 3", "TCP 172.30.0.3:30000"];
            let key: VirtualServerKey = of(&keys, which).parse().unwrap();
            let _ = kernel.ipvs().apply(&Operation::DeleteVirtualServer(key));
        }
        2 => {
            let mut ipset = kernel.ipset().unwrap();
            let line = ["FOREIGN-0 hash:ip family inet", "FOREIGN-1 bitmap:port range 0-100"];
            let spec = of(&line, which).parse().unwrap();
            if ipset.create_set(&spec).is_ok() && which.is_multiple_of(2) {
                let entry = Entry::new(Element::Ip(ipset::IpSpan::host([172, 30, 0, 1].into())));
                assert!(ipset.add_entries(&spec.name, &[entry], IfPresent::Update).failures.is_empty());
            }
        }
        3 | 4 => {
            let text = of(&RULES, which);
            // Each only once, so that they do not accumulate.
            let first = text.lines().find(|line| line.contains("FOREIGN")).unwrap_or_default();
            let token = first.split_whitespace().next().unwrap_or_default();
            let there = kernel.with_host(|host| host.dump(family(which / 8), Backend::NfTables));
            if !there.lines().any(|line| line.split_whitespace().next() == Some(token) && line.contains("FOREIGN")) {
                restore(kernel, family(which / 8), text);
            }
        }
        _ => kernel.set_interface("docker0", &[IpAddr::from([10, 77, 0, which % 2])]),
    }
}

/// Changes own sets, rules, addresses or settings. Returns whether that may have removed marks that show which virtual servers are own.
pub(crate) fn damage(kernel: &FakeKernel, Damage(what, which): Damage) -> bool {
    let sets: Vec<SetKey> =
        [proxier_core::net::Family::V4, proxier_core::net::Family::V6].into_iter().flat_map(SetKey::all).collect();
    let set = sets[usize::from(which) % sets.len()];
    let name: SetName = set.named(NamePrefix::KUBE).name().parse().unwrap();
    let mut ipset = kernel.ipset().unwrap();
    match what % 9 {
        0 => {
            let _ = ipset.flush_set(&name);
            true
        }
        1 => {
            let _ = ipset.destroy_set(&name);
            true
        }
        2 => {
            let entries = ipset.get_set(&name).map(|set| set.entries).unwrap_or_default();
            drop(ipset.delete_entries(&name, &entries[..entries.len().min(1)], IfAbsent::Ignore));
            true
        }
        3 => {
            let entry = match set.kind.set_type() {
                ipset::SetType::BitmapPort => Element::Port(5555.into()),
                _ => Element::IpPort(
                    ipset::IpSpan::host([10, 1, 1, 1].into()),
                    ipset::Ports::port(ipset::Protocol::TCP, 1),
                ),
            };
            drop(ipset.add_entries(&name, &[Entry::new(entry)], IfPresent::Update));
            false
        }
        4 => {
            restore(kernel, family(which / 8), of(&HARMFUL_RULES, which));
            false
        }
        5 => {
            kernel.with_host(|host| host.flush(family(which), Backend::NfTables));
            false
        }
        6 => kernel.remove_interface("kube-ipvs0"),
        7 => {
            let mut other = kernel.clone();
            let addresses = kernel.state().devices.get("kube-ipvs0").cloned().unwrap_or_default();
            let Some(address) = addresses.get(usize::from(which) % addresses.len().max(1)) else { return false };
            drop(other.ports().links.unbind("kube-ipvs0", &[*address]));
            true
        }
        _ => {
            let paths = ["net/ipv4/vs/conntrack", "net/ipv4/ip_forward", "net/ipv4/vs/expire_nodest_conn"];
            kernel.set_sysctl(of(&paths, which), Some("0"));
            false
        }
    }
}

/// All foreign objects.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Theirs {
    servers: Vec<String>,
    sets: BTreeMap<String, (String, BTreeSet<String>)>,
    rules: BTreeMap<(Family, Backend), Vec<String>>,
    devices: BTreeMap<String, Vec<IpAddr>>,
}

fn is_theirs(line: &str) -> bool {
    ["172.30.", "fd30::", "-f 3"].iter().any(|text| line.contains(text))
}

pub(crate) fn state(state: &KernelState) -> Theirs {
    let rules = |text: &str| -> Vec<String> {
        // A table that was not used before appears with its chains.
        let plain = |line: &&str| line.starts_with('*') || line.starts_with(':') || *line == "COMMIT";
        let ours = |line: &&str| line.contains("KUBE-") && !line.contains("FOREIGN");
        let kept = |line: &&str| !ours(line) && (!plain(line) || line.contains("FOREIGN"));
        text.lines().filter(kept).map(str::to_owned).collect()
    };
    let mut theirs = Theirs {
        servers: state.ipvs.lines().filter(|line| is_theirs(line)).map(str::to_owned).collect(),
        sets: state.sets.clone(),
        rules: state.rules.iter().map(|(of, text)| (*of, rules(text))).collect(),
        devices: state.devices.clone(),
    };
    theirs.sets.retain(|name, _| !name.starts_with("KUBE-"));
    theirs.devices.remove("kube-ipvs0");
    theirs.rules.retain(|_, rules| !rules.is_empty());
    theirs
}

fn our_servers(state: &KernelState, orphans: &BTreeSet<VirtualServerKey>) -> Vec<String> {
    let places = orphans.iter().filter_map(|key| match key {
        VirtualServerKey::Address { protocol, addr, port } => {
            let option = match protocol {
                ipvs::model::Protocol::Tcp => "-t",
                ipvs::model::Protocol::Udp => "-u",
                _ => "--sctp-service",
            };
            Some(format!(" {option} {} ", std::net::SocketAddr::new(*addr, *port)))
        }
        VirtualServerKey::Fwmark { .. } => None,
    });
    let places: Vec<String> = places.collect();
    let ours = |line: &&str| !is_theirs(line) && !places.iter().any(|place| line.contains(place));
    state.ipvs.lines().filter(ours).map(str::to_owned).collect()
}

/// Checks that both states have the same own objects, except for these virtual servers.
pub(crate) fn assert_same(
    one: &KernelState,
    fresh: &KernelState,
    orphans: &BTreeSet<VirtualServerKey>,
    wanted: &Wanted<'_>,
) {
    assert_eq!(our_servers(one, orphans), our_servers(fresh, orphans));
    let sets = |state: &KernelState| {
        let mut sets = state.sets.clone();
        sets.retain(|name, _| name.starts_with("KUBE-"));
        sets
    };
    assert_eq!(sets(one), sets(fresh));
    for family in Family::ALL {
        let rules = |state: &KernelState| {
            state.rules.get(&(family, Backend::NfTables)).map(|text| our_rules(text)).unwrap_or_default()
        };
        assert_eq!(rules(one), rules(fresh));
    }
    let addresses = |state: &KernelState| {
        let mut addresses: BTreeSet<IpAddr> = state.devices["kube-ipvs0"].iter().copied().collect();
        // Addresses that another interface has too may stay.
        addresses.retain(|address| !wanted.is_elsewhere(*address));
        addresses
    };
    assert_eq!(addresses(one), addresses(fresh));
    assert_eq!(one.sysctls, fresh.sysctls);
}

pub(crate) fn assert_nothing_of_ours(state: &KernelState, orphans: &BTreeSet<VirtualServerKey>) {
    assert_eq!(our_servers(state, orphans), Vec::<String>::new());
    let sets: Vec<&String> = state.sets.keys().filter(|name| name.starts_with("KUBE-")).collect();
    assert!(sets.is_empty(), "{sets:?}");
    assert!(!state.devices.contains_key("kube-ipvs0"));
    for (of, text) in &state.rules {
        let mut chains = our_rules(text);
        // A foreign rule jumps to the chain.
        if text.contains("-j KUBE-MARK-MASQ") {
            chains.remove(&("*nat".to_owned(), "KUBE-MARK-MASQ".to_owned()));
            chains.remove(&("*nat".to_owned(), "extra".to_owned()));
        }
        assert!(chains.is_empty(), "{of:?}: {chains:#?}");
    }
}

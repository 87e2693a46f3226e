//! Real connections through virtual servers that this crate has programmed, counted by both us and `ipvsadm`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ipvs::model::Stats;
use ipvs::sysctl::{Knob, Sysctl, Value};
use ipvs::{Client, RealServer, Ruleset, Scheduler, SyncPolicy, VirtualServer, VirtualServerKey, Weight};
use testkit::traffic::{Connection, NameServer, ask_udp, connect_and_ask};
use testkit::{Need, Netns, kernel_test, oracle, veth_pair};

const NEEDS: &[Need] = &[Need::Root, Need::Veth, Need::Dummy, Need::IpVs, Need::Scheduler("rr")];

/// A client and two backends, each in a namespace of its own, around the test's namespace, which has the VIPs.
struct Net {
    client: Netns,
    backends: [Netns; 2],
}

impl Net {
    fn new() -> Self {
        let node = Netns::current().unwrap();
        let net = Net { client: Netns::new().unwrap(), backends: [Netns::new().unwrap(), Netns::new().unwrap()] };
        for (number, host) in [&net.client, &net.backends[0], &net.backends[1]].into_iter().enumerate() {
            let device = format!("host{number}");
            veth_pair((&node, &device), (host, "eth0")).unwrap();
            node.add_address(&format!("10.1.{number}.1/24"), &device).unwrap();
            node.add_address(&format!("fd00:1:{number}::1/64"), &device).unwrap();
            host.add_address(&format!("10.1.{number}.2/24"), "eth0").unwrap();
            host.add_address(&format!("fd00:1:{number}::2/64"), "eth0").unwrap();
            host.add_route("default", &format!("10.1.{number}.1")).unwrap();
            host.add_route("default", &format!("fd00:1:{number}::1")).unwrap();
        }
        node.write_sysctl("net/ipv4/ip_forward", "1").unwrap();
        node.write_sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        node.ip(&["link", "add", "vips", "type", "dummy"]).unwrap();
        node.link_up("vips").unwrap();
        node.add_address("10.96.0.10/32", "vips").unwrap();
        node.add_address("fd00:96::10/128", "vips").unwrap();
        net
    }

    /// How often who answered.
    fn ask(&self, times: usize, question: impl Fn() -> String) -> BTreeMap<String, usize> {
        let ask = || {
            let mut answers = BTreeMap::new();
            for _ in 0..times {
                *answers.entry(question()).or_default() += 1;
            }
            answers
        };
        self.client.run_in(ask).unwrap()
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn counts(expected: &[(&str, usize)]) -> BTreeMap<String, usize> {
    expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn program(ipvs: &mut Client, key: VirtualServerKey, backends: [&str; 2]) -> [RealServer; 2] {
    ipvs.add_virtual_server(&VirtualServer::new(key, Scheduler::RoundRobin)).unwrap();
    backends.map(|at| {
        let server = RealServer::new(address(at));
        ipvs.add_real_server(&key, &server).unwrap();
        server
    })
}

/// Counters of each address by `ipvsadm -Ln --stats --exact`: connections, packets in and out, bytes in and out.
fn exact() -> BTreeMap<String, [u64; 5]> {
    let text = oracle::run("ipvsadm", &["-L", "-n", "--stats", "--exact"], None).unwrap().stdout;
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some("TCP" | "UDP" | "->") = words.next() else { continue };
        let Some(at) = words.next() else { continue };
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        if let Ok(numbers) = <[u64; 5]>::try_from(numbers) {
            found.insert(at.to_owned(), numbers);
        }
    }
    found
}

fn ours(stats: &Stats) -> [u64; 5] {
    [stats.connections, stats.packets_in, stats.packets_out, stats.bytes_in, stats.bytes_out]
}

/// Balanced, then drained without breaking the open connection, then counted.
fn balanced_drained_counted(vip: &str, backends: [&str; 2]) {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let _blue = NameServer::tcp(&net.backends[0], address(backends[0]), "blue").unwrap();
        let _green = NameServer::tcp(&net.backends[1], address(backends[1]), "green").unwrap();
        let mut ipvs = Client::open().unwrap();
        let key = VirtualServerKey::tcp(address(vip));
        let servers = program(&mut ipvs, key, backends);
        let ask = || connect_and_ask(address(vip)).unwrap();
        assert_eq!(net.ask(10, ask), counts(&[("blue", 5), ("green", 5)]));

        let open = || Connection::open(address(vip)).unwrap();
        let mut connections = net.client.run_in(|| [open(), open()]).unwrap();
        let named = connections.each_mut().map(|connection| connection.ask().unwrap());
        let blue = usize::from(named[0] != "blue");
        assert_eq!(named[blue], "blue");
        let active = ipvs.get_real_server(&key, &servers[0].key).unwrap().active_connections;
        assert!(active >= 1, "{active}");

        ipvs.update_real_server(&key, &servers[0].with_weight(Weight::DRAIN)).unwrap();
        assert_eq!(net.ask(6, ask), counts(&[("green", 6)]));
        for _ in 0..3 {
            assert_eq!(connections[blue].ask().unwrap(), "blue");
        }
        // The real server comes back by a change, not by an addition.
        ipvs.update_real_server(&key, &servers[0]).unwrap();
        let answers = net.ask(10, ask);
        assert_eq!(answers.values().sum::<usize>(), 10);
        assert_eq!(answers.get("blue"), Some(&5), "{answers:?}");

        drop(connections);
        counters_are_ipvsadms(&mut ipvs, vip, &key, &servers);
    });
}

fn counters_are_ipvsadms(ipvs: &mut Client, vip: &str, key: &VirtualServerKey, servers: &[RealServer; 2]) {
    // The kernel adds the counters of its processors up every two seconds: two looks further apart than that, and the same.
    let mut before = exact();
    let settled = (0..10).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(2500));
        let now = exact();
        let same = now == before && now.get(vip).is_some_and(|numbers| numbers[0] > 0);
        before = now;
        same
    });
    assert!(settled, "the counters never came to rest: {before:?}");
    let virtual_stats = ours(&ipvs.get_virtual_server(key).unwrap().stats);
    let real_stats = servers.map(|server| ours(&ipvs.get_real_server(key, &server.key).unwrap().stats));
    assert_eq!(before.get(vip), Some(&virtual_stats), "{before:?}");
    for (server, stats) in servers.iter().zip(real_stats) {
        assert_eq!(before.get(&server.key.to_string()), Some(&stats), "{before:?}");
        assert!(stats[0] >= 10 && stats.iter().all(|count| *count > 0), "{stats:?}");
    }
    assert_eq!(virtual_stats[0], real_stats[0][0] + real_stats[1][0]);

    // A real server that goes and comes back has its counters; zeroing takes them away.
    ipvs.delete_real_server(key, &servers[0].key).unwrap();
    ipvs.add_real_server(key, &servers[0]).unwrap();
    assert_eq!(ipvs.get_real_server(key, &servers[0].key).unwrap().stats.connections, real_stats[0][0]);
    ipvs.zero_virtual_server(key).unwrap();
    assert_eq!(ipvs.get_virtual_server(key).unwrap().stats.connections, 0);
    assert_eq!(ipvs.get_real_server(key, &servers[1].key).unwrap().stats.connections, 0);
    assert_eq!(exact().get(vip).map(|numbers| numbers[0]), Some(0));
    // Under a new virtual server of the same address it starts from nothing.
    ipvs.delete_virtual_server(key).unwrap();
    ipvs.add_virtual_server(&VirtualServer::new(*key, Scheduler::RoundRobin)).unwrap();
    ipvs.add_real_server(key, &servers[0]).unwrap();
    assert_eq!(ipvs.get_real_server(key, &servers[0].key).unwrap().stats.connections, 0);
}

#[test]
fn tcp_is_balanced_drained_and_counted() {
    balanced_drained_counted("10.96.0.10:80", ["10.1.1.2:8080", "10.1.2.2:8080"]);
}

#[test]
fn tcp_over_ipv6_is_balanced_drained_and_counted() {
    balanced_drained_counted("[fd00:96::10]:80", ["[fd00:1:1::2]:8080", "[fd00:1:2::2]:8080"]);
}

#[test]
fn udp_is_balanced_and_drained() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let (vip, backends) = ("10.96.0.10:53", ["10.1.1.2:5353", "10.1.2.2:5353"]);
        let _blue = NameServer::udp(&net.backends[0], address(backends[0]), "blue").unwrap();
        let _green = NameServer::udp(&net.backends[1], address(backends[1]), "green").unwrap();
        let mut ipvs = Client::open().unwrap();
        let key = VirtualServerKey::udp(address(vip));
        let servers = program(&mut ipvs, key, backends);
        let ask = || ask_udp(address(vip)).unwrap();
        assert_eq!(net.ask(8, ask), counts(&[("blue", 4), ("green", 4)]));
        ipvs.update_real_server(&key, &servers[1].with_weight(Weight::DRAIN)).unwrap();
        assert_eq!(net.ask(4, ask), counts(&[("blue", 4)]));
    });
}

/// Weight 0 does not keep a client away that persistence remembers; the setting does, and asks for nothing else.
#[test]
fn persistent_clients_leave_a_draining_server_only_with_the_setting() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let (vip, backends) = ("10.96.0.10:80", ["10.1.1.2:8080", "10.1.2.2:8080"]);
        let _blue = NameServer::tcp(&net.backends[0], address(backends[0]), "blue").unwrap();
        let _green = NameServer::tcp(&net.backends[1], address(backends[1]), "green").unwrap();
        let mut ipvs = Client::open().unwrap();
        let key = VirtualServerKey::tcp(address(vip));
        let persistent =
            VirtualServer::new(key, Scheduler::RoundRobin).with_persistence(ipvs::model::Persistence::new(300));
        ipvs.add_virtual_server(&persistent).unwrap();
        for at in backends {
            ipvs.add_real_server(&key, &RealServer::new(address(at))).unwrap();
        }
        let ask = || connect_and_ask(address(vip)).unwrap();
        let answers = net.ask(4, ask);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let (first, other) = if answers.contains_key("blue") { (0, "green") } else { (1, "blue") };
        let draining = RealServer::new(address(backends[first])).with_weight(Weight::DRAIN);
        ipvs.update_real_server(&key, &draining).unwrap();
        assert_eq!(net.ask(4, ask), answers, "the kernel remembers the client");

        let sysctl = Sysctl::new();
        assert_eq!(sysctl.read(Knob::ExpireQuiescentTemplate).unwrap(), Value::OFF);
        sysctl.drain_persistent_clients().unwrap();
        assert_eq!(sysctl.read(Knob::ExpireQuiescentTemplate).unwrap(), Value::ON);
        assert_eq!(net.ask(4, ask), counts(&[(other, 4)]));
    });
}

/// Hundreds of other virtual servers in a sync: many messages in both directions.
const OTHERS: u32 = 300;

/// The virtual server of the test and many others. Its first real server is always wanted. Its scheduler stays: while the kernel puts
/// another in its place, it has none and refuses new connections (`ip_vs_edit_service`).
fn ruleset(vip: SocketAddr, blue: &str, idle: u16, network: u32) -> Ruleset {
    let first = format!("-A -t {vip} -s wlc\n-a -t {vip} -r 10.1.1.2:8080 -m -w {blue}");
    let others = (0..OTHERS).map(|number| {
        let at = Ipv4Addr::from_bits(network + number);
        format!("-A -t {at}:80 -s rr\n-a -t {at}:80 -r 10.1.2.2:{} -m -w 1", 1000 + number)
    });
    // Weight 0: no other real server answers.
    let idle = format!("-a -t {vip} -r 10.1.2.2:{idle} -m -w 0");
    let lines: Vec<String> = std::iter::once(first).chain(others).chain([idle]).collect();
    lines.join("\n").parse().unwrap()
}

#[test]
fn a_sync_interrupts_no_connection_of_what_stays_wanted() {
    kernel_test(&[NEEDS, &[Need::Scheduler("wlc")]].concat(), || {
        let net = Net::new();
        let _blue = NameServer::tcp(&net.backends[0], address("10.1.1.2:8080"), "blue").unwrap();
        let vip = address("10.96.0.10:80");
        let one = ruleset(vip, "1", 8080, 0x0a60_0100);
        let other = ruleset(vip, "5", 9090, 0x0a61_0100);
        let mut ipvs = Client::open().unwrap();
        let policy = SyncPolicy::owning_all();
        ipvs.sync(&one, &policy).unwrap().into_result().unwrap();
        let mut open = net.client.run_in(|| Connection::open(vip).unwrap()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let connecting = {
            let stop = Arc::clone(&stop);
            net.client.spawn(move || {
                let mut connected = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    let who =
                        connect_and_ask(vip).unwrap_or_else(|error| panic!("after {connected} connections: {error}"));
                    assert_eq!(who, "blue");
                    connected += 1;
                }
                connected
            })
        };
        let connecting = connecting.unwrap();
        for (wanted, round) in [(&other, 0), (&one, 1), (&other, 2)] {
            let done = ipvs.sync(wanted, &policy).unwrap().into_result().unwrap();
            // Each of the others goes, and comes with its real server; the one that stays is changed in two places.
            assert!(done.len() > 3 * OTHERS as usize, "round {round}: {}", done.len());
            assert_eq!(open.ask().unwrap(), "blue", "round {round}");
            assert!(!ipvs.sync(wanted, &policy).unwrap().is_changed(), "round {round}");
        }
        stop.store(true, Ordering::Relaxed);
        let connected = connecting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(connected > 0, "nobody connected");
        let mut saved: Ruleset = oracle::ipvsadm_save().unwrap().parse().unwrap();
        let mut other = other;
        saved.sort();
        other.sort();
        assert_eq!(saved, other);
    });
}

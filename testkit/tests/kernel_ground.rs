//! The ground itself, by the field's own tools alone: namespaces, IPVS with real traffic, ipset and iptables.

#![expect(clippy::unwrap_used, reason = "helpers of tests may stop at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;

use testkit::oracle::{self, Backend, Family};
use testkit::traffic::{Connection, NameServer, ask_udp, connect_and_ask};
use testkit::{Need, Netns, NetnsGuard, kernel_test, veth_pair};

const IPVS: &[Need] = &[Need::Root, Need::Veth, Need::Dummy, Need::IpVs, Need::Scheduler("rr")];

const VIP_V4: &str = "10.96.0.10:80";
const VIP_V6: &str = "[fd00:96::10]:80";

fn namespace() -> String {
    fs::read_link("/proc/thread-self/ns/net").unwrap().display().to_string()
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A client and two backends, each in a namespace of its own, around a director, which is the test's own.
struct Net {
    client: Netns,
    director: Netns,
    backends: [Netns; 2],
}

impl Net {
    fn new() -> Self {
        let net = Self {
            client: Netns::new().unwrap(),
            director: Netns::current().unwrap(),
            backends: [Netns::new().unwrap(), Netns::new().unwrap()],
        };
        for (number, host) in [&net.client, &net.backends[0], &net.backends[1]].into_iter().enumerate() {
            let device = format!("host{number}");
            veth_pair((&net.director, &device), (host, "eth0")).unwrap();
            net.director.add_address(&format!("10.1.{number}.1/24"), &device).unwrap();
            net.director.add_address(&format!("fd00:1:{number}::1/64"), &device).unwrap();
            host.add_address(&format!("10.1.{number}.2/24"), "eth0").unwrap();
            host.add_address(&format!("fd00:1:{number}::2/64"), "eth0").unwrap();
            host.add_route("default", &format!("10.1.{number}.1")).unwrap();
            host.add_route("default", &format!("fd00:1:{number}::1")).unwrap();
        }
        net.director.write_sysctl("net/ipv4/ip_forward", "1").unwrap();
        net.director.write_sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        net.director.ip(&["link", "add", "kube-ipvs0", "type", "dummy"]).unwrap();
        net.director.link_up("kube-ipvs0").unwrap();
        net.director.add_address("10.96.0.10/32", "kube-ipvs0").unwrap();
        net.director.add_address("fd00:96::10/128", "kube-ipvs0").unwrap();
        net
    }

    fn tcp_servers(&self, family: Family) -> [NameServer; 2] {
        let hosts = match family {
            Family::V4 => ["10.1.1.2:8080", "10.1.2.2:8080"],
            Family::V6 => ["[fd00:1:1::2]:8080", "[fd00:1:2::2]:8080"],
        };
        [
            NameServer::tcp(&self.backends[0], address(hosts[0]), "blue").unwrap(),
            NameServer::tcp(&self.backends[1], address(hosts[1]), "green").unwrap(),
        ]
    }

    /// How often who answered.
    fn ask(&self, times: usize, question: impl Fn() -> String) -> BTreeMap<String, usize> {
        self.client
            .run_in(|| {
                let mut answers = BTreeMap::new();
                for _ in 0..times {
                    *answers.entry(question()).or_default() += 1;
                }
                answers
            })
            .unwrap()
    }
}

fn counts(expected: &[(&str, usize)]) -> BTreeMap<String, usize> {
    expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn a_guard_gives_an_empty_namespace_and_takes_it_back() {
    kernel_test(&[Need::Root], || {
        let outside = namespace();
        let guard = NetnsGuard::new().unwrap();
        assert_ne!(namespace(), outside);
        let links = oracle::run("ip", &["-oneline", "link"], None).unwrap().stdout;
        // Some kernels put fallback tunnel devices into every namespace; they are down.
        let up: Vec<&str> = links.lines().filter(|line| line.contains(",UP")).collect();
        assert!(up.len() == 1 && up[0].contains(" lo:"), "{links}");
        drop(guard);
        assert_eq!(namespace(), outside);
    });
}

#[test]
fn a_panic_inside_does_not_leave_the_thread_behind() {
    kernel_test(&[Need::Root], || {
        let outside = namespace();
        let other = Netns::new().unwrap();
        let inside = other.run_in(namespace).unwrap();
        assert_ne!(inside, outside);
        let result = std::panic::catch_unwind(|| other.run_in(|| assert_ne!(namespace(), inside)));
        assert!(result.is_err());
        assert_eq!(namespace(), outside);
        assert_eq!(other.spawn(namespace).unwrap().join().unwrap(), inside);
    });
}

#[test]
fn tcp_through_a_virtual_server_reaches_both_backends_in_turn() {
    kernel_test(IPVS, || {
        let net = Net::new();
        let _servers = net.tcp_servers(Family::V4);
        oracle::ipvsadm_restore(&format!(
            "-A -t {VIP_V4} -s rr\n-a -t {VIP_V4} -r 10.1.1.2:8080 -m -w 1\n-a -t {VIP_V4} -r 10.1.2.2:8080 -m -w 1\n"
        ))
        .unwrap();
        let answers = net.ask(6, || connect_and_ask(address(VIP_V4)).unwrap());
        assert_eq!(answers, counts(&[("blue", 3), ("green", 3)]));
        let saved = oracle::ipvsadm_save().unwrap();
        assert!(saved.contains("-a -t 10.96.0.10:80 -r 10.1.2.2:8080 -m -w 1"), "{saved}");
    });
}

#[test]
fn tcp_through_a_virtual_server_over_ipv6() {
    kernel_test(IPVS, || {
        let net = Net::new();
        let _servers = net.tcp_servers(Family::V6);
        oracle::ipvsadm_restore(&format!(
            "-A -t {VIP_V6} -s rr\n-a -t {VIP_V6} -r [fd00:1:1::2]:8080 -m -w 1\n-a -t {VIP_V6} -r [fd00:1:2::2]:8080 -m -w 1\n"
        ))
        .unwrap();
        let answers = net.ask(4, || connect_and_ask(address(VIP_V6)).unwrap());
        assert_eq!(answers, counts(&[("blue", 2), ("green", 2)]));
    });
}

#[test]
fn udp_through_a_virtual_server() {
    kernel_test(IPVS, || {
        let net = Net::new();
        let _blue = NameServer::udp(&net.backends[0], address("10.1.1.2:5353"), "blue").unwrap();
        let _green = NameServer::udp(&net.backends[1], address("10.1.2.2:5353"), "green").unwrap();
        let vip = "10.96.0.10:53";
        oracle::ipvsadm_restore(&format!(
            "-A -u {vip} -s rr\n-a -u {vip} -r 10.1.1.2:5353 -m -w 1\n-a -u {vip} -r 10.1.2.2:5353 -m -w 1\n"
        ))
        .unwrap();
        let answers = net.ask(4, || ask_udp(address(vip)).unwrap());
        assert_eq!(answers, counts(&[("blue", 2), ("green", 2)]));
    });
}

#[test]
fn a_drained_backend_keeps_its_connection_and_gets_no_new_one() {
    kernel_test(IPVS, || {
        let net = Net::new();
        let _servers = net.tcp_servers(Family::V4);
        let add = |backend: &str| format!("-a -t {VIP_V4} -r {backend} -m -w 1\n");
        oracle::ipvsadm_restore(&format!("-A -t {VIP_V4} -s rr\n{}", add("10.1.1.2:8080"))).unwrap();
        let mut long = net.client.run_in(|| Connection::open(address(VIP_V4))).unwrap().unwrap();
        assert_eq!(long.ask().unwrap(), "blue");
        oracle::ipvsadm_restore(&add("10.1.2.2:8080")).unwrap();
        oracle::ipvsadm_restore(&format!("-e -t {VIP_V4} -r 10.1.1.2:8080 -m -w 0\n")).unwrap();
        assert_eq!(net.ask(4, || connect_and_ask(address(VIP_V4)).unwrap()), counts(&[("green", 4)]));
        assert_eq!(long.ask().unwrap(), "blue");
    });
}

#[test]
fn virtual_servers_stay_in_their_namespace() {
    kernel_test(IPVS, || {
        oracle::ipvsadm_restore("-A -t 192.0.2.1:80 -s rr\n").unwrap();
        let other = Netns::new().unwrap();
        assert_eq!(other.run_in(oracle::ipvsadm_save).unwrap().unwrap(), "");
        assert_eq!(oracle::ipvsadm_save().unwrap().trim(), "-A -t 192.0.2.1:80 -s rr");
    });
}

#[test]
fn every_scheduler_that_kube_proxy_offers_is_there() {
    let schedulers = ["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh"];
    let mut needs = vec![Need::Root, Need::IpVs];
    needs.extend(schedulers.map(Need::Scheduler));
    kernel_test(&needs, || {
        for (number, scheduler) in schedulers.into_iter().enumerate() {
            oracle::ipvsadm_restore(&format!("-A -t 192.0.2.{number}:80 -s {scheduler}\n")).unwrap();
        }
        let saved = oracle::ipvsadm_save().unwrap();
        assert_eq!(saved.lines().count(), schedulers.len(), "{saved}");
    });
}

#[test]
fn sets_are_saved_as_they_were_restored() {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip,port"), Need::Ipset("bitmap:port")], || {
        oracle::ipset_restore(
            "create blue hash:ip,port\nadd blue 192.0.2.1,tcp:80\ncreate ports bitmap:port range 1-1024\n",
        )
        .unwrap();
        let saved = oracle::ipset_save().unwrap();
        assert!(saved.contains("add blue 192.0.2.1,tcp:80"), "{saved}");
        assert!(saved.contains("create ports bitmap:port range 1-1024"), "{saved}");
    });
}

fn rule_with_a_set(backend: Backend) {
    oracle::ipset_restore("create blue hash:ip\n").unwrap();
    let text = "*nat\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n\
                -A KUBE-SERVICES -m set --match-set blue dst -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n";
    oracle::iptables_restore(backend, Family::V4, text).unwrap();
    let saved = oracle::iptables_save(backend, Family::V4).unwrap();
    assert!(
        saved.contains("-A KUBE-SERVICES -m set --match-set blue dst -j MARK --set-xmark 0x4000/0x4000"),
        "{saved}"
    );
}

#[test]
fn legacy_rules_match_sets() {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip"), Need::IptablesLegacy], || rule_with_a_set(Backend::Legacy));
}

#[test]
fn nft_rules_match_sets() {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip"), Need::IptablesNft], || rule_with_a_set(Backend::Nft));
}

#[test]
fn connections_through_a_virtual_server_are_tracked_when_asked() {
    let needs = [IPVS, &[Need::Conntrack]].concat();
    kernel_test(&needs, || {
        let net = Net::new();
        let _servers = net.tcp_servers(Family::V4);
        net.director.write_sysctl("net/ipv4/vs/conntrack", "1").unwrap();
        // Tracking starts in a namespace with the first rule that needs it.
        oracle::run("iptables-nft", &["-A", "FORWARD", "-m", "conntrack", "--ctstate", "INVALID"], None).unwrap();
        oracle::ipvsadm_restore(&format!("-A -t {VIP_V4} -s rr\n-a -t {VIP_V4} -r 10.1.1.2:8080 -m -w 1\n")).unwrap();
        let mut long = net.client.run_in(|| Connection::open(address(VIP_V4))).unwrap().unwrap();
        assert_eq!(long.ask().unwrap(), "blue");
        let tracked = oracle::run("conntrack", &["-L", "-p", "tcp", "--orig-dst", "10.96.0.10"], None).unwrap().stdout;
        assert!(tracked.contains("src=10.1.1.2"), "the answers come from the backend: {tracked}");
    });
}

/// A minimum version is the one need that may be missing everywhere; every kernel that runs this is older than 99.
#[test]
fn a_test_for_a_newer_kernel_does_not_run() {
    assert!(testkit::missing(Need::Kernel(99, 0)).is_some());
    assert!(testkit::missing(Need::Kernel(4, 0)).is_none());
}

//! The table of nf_tables that guards virtual servers, in the running kernel, without IPVS: the table as `nft` prints it, and its effect on packets
//! before IPVS would see them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proxier_core::config::RulesBy;
use proxier_core::engine::{Options, Reconciler};
use proxier_core::fake::FakeKernel;
use proxier_core::kernel::TablesPort;
use proxier_core::net::Family;
use proxier_core::plan::report::Report;
use proxier_core::ports::Ports;
use serde_json::{Value, json};
use testkit::witness::{Transport, Witness, ask};
use testkit::{Need, kernel_test, oracle};

use crate::traffic::clients::{LIMIT, Surprises};
use crate::traffic::cluster::{options, troubles};
use crate::traffic::net::{self, From, Net};
use crate::traffic::objects::{self, A, HERE, Vip};

const NEEDS: &[Need] = &[Need::Root, Need::Nftables, Need::Veth];

/// The reconciler: its tables are the running kernel's, everything else is in memory.
struct Node {
    proxier: Reconciler,
    fake: FakeKernel,
    tables: TablesPort,
    now: Duration,
}

impl Node {
    fn new(more: &Value) -> Self {
        let mut options: Options = options(more);
        options.config.ipvs.rules = RulesBy::Nftables;
        let fake = FakeKernel::new();
        fake.set_interface("eth0", &[net::NODE.of(Family::V4), net::NODE.of(Family::V6)]);
        let mut proxier = Reconciler::new(HERE, options, Duration::ZERO);
        proxier.set_node(&objects::node(), Duration::ZERO);
        let tables = TablesPort::new(nftables::Client::open);
        Node { proxier, fake, tables, now: Duration::ZERO }
    }

    fn publish(&mut self, name: &str, number: u16, more: &Value) {
        self.proxier.upsert_service(&objects::service(name, number, more), self.now);
        for slice in objects::slices(name, &[A]) {
            self.proxier.upsert_slice(&slice, self.now);
        }
    }

    /// A pass, if one is due.
    fn pass(&mut self) -> Option<Report> {
        let now = self.now;
        let ports = self.fake.ports();
        let mut ports = Ports { tables: &mut self.tables, ..ports };
        self.proxier.pass(&|| now, &mut ports)
    }

    fn settle(&mut self) -> Vec<Report> {
        self.proxier.start(self.now);
        let mut reports = Vec::new();
        while self.proxier.next_wake() == Some(self.now) {
            let Some(report) = self.pass() else { break };
            assert_eq!(troubles(&report), <[String; 0]>::default());
            reports.push(report);
        }
        reports
    }

    fn full_pass(&mut self) -> Report {
        self.now += Duration::from_secs(1);
        self.proxier.request_full(self.now);
        self.settle().pop().unwrap()
    }
}

fn list(family: &str) -> String {
    oracle::run("nft", &["list", "table", family, "proxier-ipvs"], None).unwrap().stdout
}

/// Listeners at each of these addresses, so that answers come from the address that was asked. Not every machine has SCTP.
fn listens_at(addresses: &[IpAddr], port: u16) -> Vec<(Transport, SocketAddr)> {
    let places = [Transport::Tcp, Transport::Udp].into_iter();
    places.flat_map(|transport| addresses.iter().map(move |address| (transport, (*address, port).into()))).collect()
}

fn ranges() -> Value {
    // One range contains the other.
    json!({ "loadBalancerSourceRanges": ["192.0.2.10/32", "192.0.2.8/29", "2001:db8:1::10/128"] })
}

#[test]
fn nft_lists_what_the_services_ask_for_and_reads_it_again() {
    kernel_test(NEEDS, || {
        let mut node = Node::new(&json!({}));
        node.publish("web", 10, &json!({ "externalTrafficPolicy": "Local", "healthCheckNodePort": 32_000 }));
        node.publish("guarded", 14, &ranges());
        node.settle();
        let table = list("ip");
        for line in [
            "10.96.0.10 . tcp . 80",
            "10.96.0.10 . sctp . 80",
            "203.0.113.114 . udp . 80 . 192.0.2.8/29",
            "203.0.113.114 . tcp . 80 . 203.0.113.114",
            "192.0.2.1 . tcp . 30010",
            "10.244.1.10 . tcp . 8080 . 10.244.1.10",
            "type nat hook prerouting priority dstnat - 1; policy accept;",
            "type nat hook postrouting priority srcnat - 1; policy accept;",
            "type filter hook output priority mangle; policy accept;",
            "ip daddr . meta l4proto . th dport @load-balancer-fw jump source-ranges",
            "ip saddr != 10.244.0.0/16 ip daddr . meta l4proto . th dport @cluster-ip meta mark set",
            "fib daddr type local jump node-port",
            "tcp dport @node-port-local-tcp return",
            "dnat to ip daddr",
            "ct state new ip daddr @ipvs-ips reject",
        ] {
            assert!(table.contains(line), "{line}:\n{table}");
        }
        let table6 = list("ip6");
        for line in ["fd00:96::10 . tcp . 80", "2001:db8:f::114 . tcp . 80 . 2001:db8:1::10", "dnat to ip6 daddr"] {
            assert!(table6.contains(line), "{line}:\n{table6}");
        }
        // The kernel gives back the table as it was written: nothing differs.
        let report = node.full_pass();
        assert!(report.full && report.writes() == 0 && report.drift.is_empty(), "{report:#?}");
        // nft understands it.
        for family in ["ip", "ip6"] {
            let text = list(family);
            oracle::run("nft", &["delete", "table", family, "proxier-ipvs"], None).unwrap();
            oracle::run("nft", &["-f", "-"], Some(&text)).unwrap();
        }
        let report = node.full_pass();
        let of_sets = |report: &Report| report.drift.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(report.is_done(), "{:#?}", of_sets(&report));
        let report = node.full_pass();
        assert_eq!(report.writes(), 0, "{report:#?}");
    });
}

/// Addresses of Services are local, as on a node; servers of this node listen where IPVS would take the packets.
#[test]
fn packets_are_dropped_refused_and_kept_before_ipvs() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let mut node = Node::new(&json!({}));
        node.publish("guarded", 14, &ranges());
        node.publish("open", 16, &json!({}));
        let mut vips = Vec::new();
        for (family, mask) in [(Family::V4, 32), (Family::V6, 128)] {
            for number in [14, 16] {
                let address = Vip::LoadBalancer.of(number, family).ip();
                net.node.add_address(&format!("{address}/{mask}"), "lo").unwrap();
                vips.push(address);
            }
        }
        let _server = Witness::start(&net.node, "node", &listens_at(&vips, 80)).unwrap();
        vips.extend([Family::V4, Family::V6].map(|family| net::NODE.of(family)));
        let _daemon = Witness::start(&net.node, "daemon", &listens_at(&vips, 9100)).unwrap();
        let theirs = "table ip theirs {\n chain pre {\n type nat hook prerouting priority dstnat; policy accept;\n \
                      ip daddr 203.0.113.0/24 tcp dport 80 redirect to :9100\n }\n}\n";
        oracle::run("nft", &["-f", "-"], Some(theirs)).unwrap();
        let from = |of: net::Pair, transport, to: SocketAddr| {
            let from = Some(of.of(Family::of(to.ip())));
            net.client.run_in(|| ask(transport, from, to, LIMIT)).unwrap()
        };
        // Everybody is answered without the table, and other rules translate.
        let (guarded, open) = (Vip::LoadBalancer.of(14, Family::V4), Vip::LoadBalancer.of(16, Family::V4));
        assert_eq!(from(net::STRANGER, Transport::Udp, guarded).unwrap().name, "node");
        assert_eq!(from(net::CLIENT, Transport::Tcp, open).unwrap().name, "daemon");
        node.settle();
        let mut surprises = Surprises::default();
        for family in [Family::V4, Family::V6] {
            let (guarded, open) = (Vip::LoadBalancer.of(14, family), Vip::LoadBalancer.of(16, family));
            for transport in [Transport::Tcp, Transport::Udp] {
                for to in [guarded, open] {
                    assert_eq!(from(net::CLIENT, transport, to).unwrap().name, "node", "{transport:?} {to}");
                }
                assert_eq!(from(net::STRANGER, transport, open).unwrap().name, "node");
                surprises.silent_to(&net.client, Some(net::STRANGER.of(family)), transport, guarded);
                // Its own address is the source of this node's connections.
                surprises.silent_to(&net.node, Some(guarded.ip()), transport, guarded);
                let elsewhere = SocketAddr::new(open.ip(), 9100);
                surprises.refused(&net, From::Client, transport, elsewhere);
                let itself = SocketAddr::new(net::NODE.of(family), 9100);
                assert_eq!(from(net::CLIENT, transport, itself).unwrap().name, "daemon");
            }
        }
        surprises.none();
        // The node in the ranges may use it.
        let with_node = json!({ "loadBalancerSourceRanges": ["192.0.2.0/28"] });
        node.publish("guarded", 14, &with_node);
        node.settle();
        let barred = list("ip");
        let (_, barred) = barred.split_once("set load-balancer-not-node {").unwrap();
        assert!(!barred.split_once('}').unwrap().0.contains("203.0.113.114"), "{barred}");
    });
}

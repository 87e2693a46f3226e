//! The table of nf_tables that guards virtual servers, in the running kernel, without IPVS: the table as `nft` prints it, and its effect on packets
//! before IPVS would see them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nftables::{Table, TableKey, TableSnapshot, Transaction};
use proxier_core::config::RulesBy;
use proxier_core::fake::FakeKernel;
use proxier_core::kernel::{TableMonitor, TablesPort};
use proxier_core::net::Family;
use proxier_core::plan::report::Report;
use proxier_core::ports::{NotCommitted, PortError, Ports, Tables};
use proxier_core::reconciler::{Options, Reconciler};
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
    tables: Disturbed,
    now: Duration,
}

/// The running kernel's tables, with foreign changes before own transactions.
struct Disturbed {
    port: TablesPort,
    /// Foreign nft commands, one before each of our transactions.
    others: VecDeque<&'static str>,
}

impl Tables for Disturbed {
    fn generation(&mut self) -> Result<u32, PortError> {
        self.port.generation()
    }

    fn read(&mut self, table: &TableKey) -> Result<Option<TableSnapshot>, PortError> {
        self.port.read(table)
    }

    fn table(&mut self, table: &TableKey) -> Result<Option<Table>, PortError> {
        self.port.table(table)
    }

    fn has_chain(&mut self, table: &TableKey, chain: &str) -> Result<bool, PortError> {
        self.port.has_chain(table, chain)
    }

    fn check(&mut self, transaction: &Transaction) -> Result<(), NotCommitted> {
        self.port.check(transaction)
    }

    fn commit(&mut self, transaction: &Transaction) -> Result<(), NotCommitted> {
        if let Some(change) = self.others.pop_front() {
            oracle::run("nft", &[change], None).unwrap();
        }
        self.port.commit(transaction)
    }
}

impl Node {
    fn new(more: &Value) -> Self {
        let mut options: Options = options(more);
        options.config.ipvs.rules = RulesBy::Nftables;
        let fake = FakeKernel::new();
        fake.set_interface("eth0", &[net::NODE.of(Family::V4), net::NODE.of(Family::V6)]);
        let mut proxier = Reconciler::new(HERE, options, Duration::ZERO);
        proxier.set_node(&objects::node(), Duration::ZERO);
        let tables = Disturbed { port: TablesPort::new(nftables::Client::open), others: VecDeque::new() };
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

    /// Whether the kernel has reported a foreign change, so that the next pass compares everything.
    fn hears(&mut self, monitor: &mut TableMonitor) -> bool {
        let changes = monitor.drain().unwrap();
        assert!(!changes.lost);
        self.now += Duration::from_secs(1);
        self.proxier.tables_changed(&changes.generations, false, &mut self.tables, self.now)
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

#[test]
fn what_somebody_changes_with_nft_is_repaired() {
    kernel_test(NEEDS, || {
        let mut node = Node::new(&json!({}));
        node.publish("guarded", 14, &ranges());
        let mut monitor = TableMonitor::open(&node.proxier.table_name().unwrap()).unwrap();
        node.settle();
        assert!(!node.hears(&mut monitor), "its own transactions");
        let whole = list("ip");
        let lines = |text: &str| {
            // The order of elements does not count.
            let elements = text.lines().flat_map(|line| line.trim().trim_start_matches("elements = {").split(','));
            let trimmed = elements.map(|part| part.trim_end_matches('}').trim().to_owned());
            let mut parts: Vec<String> = trimmed.filter(|part| !part.is_empty()).collect();
            parts.sort_unstable();
            parts
        };
        for change in [
            "delete element ip proxier-ipvs load-balancer-fw { 203.0.113.114 . tcp . 80 }",
            "add element ip proxier-ipvs load-balancer-source-cidr { 203.0.113.114 . tcp . 80 . 10.0.0.0/8 }",
            "flush chain ip proxier-ipvs source-ranges",
            "add rule ip proxier-ipvs input-filter accept",
            "add set ip proxier-ipvs theirs { type ipv4_addr; }",
            "add table ip proxier-ipvs { flags dormant; }",
            "add chain ip proxier-ipvs forward-filter { policy drop; }",
            "delete chain ip proxier-ipvs input-split; \
             add chain ip proxier-ipvs input-split { type filter hook input priority 7; }",
            "delete chain ip proxier-ipvs output-filter; \
             add chain ip proxier-ipvs output-filter { type filter hook input priority -150; }",
            "delete chain ip proxier-ipvs made-by-proxier-core",
            "delete table ip proxier-ipvs",
        ] {
            oracle::run("nft", &[change], None).unwrap();
            assert!(node.hears(&mut monitor), "{change}");
            // The table is back at once, before anything is compared: without it the virtual server is open to everybody.
            assert_eq!(lines(&list("ip")), lines(&whole), "{change}");
            let report = node.settle().pop().unwrap();
            assert!(!report.drift.is_empty(), "{change}");
            assert_eq!(lines(&list("ip")), lines(&whole), "{change}");
            assert!(!node.hears(&mut monitor), "what mended it is its own: {change}");
        }
        // Changes of other tables, and own writes at the same time, are not reported.
        oracle::run("nft", &["add table ip other"], None).unwrap();
        node.publish("web", 10, &json!({}));
        node.settle();
        oracle::run("nft", &["delete table ip other"], None).unwrap();
        assert!(!node.hears(&mut monitor));
        assert!(list("ip").contains("10.96.0.10 . tcp . 80"));
    });
}

/// The rule set is flushed again and again: each time the table is back within milliseconds, and everything is compared once a second at most.
#[test]
fn a_table_that_is_flushed_is_back_at_once() {
    kernel_test(NEEDS, || {
        let mut node = Node::new(&json!({}));
        for number in 10..60 {
            node.publish(&format!("guarded-{number}"), number, &ranges());
        }
        let mut monitor = TableMonitor::open(&node.proxier.table_name().unwrap()).unwrap();
        node.settle();
        node.hears(&mut monitor);
        let whole = list("ip").len();
        let mut open = Duration::ZERO;
        let mut passes = 0;
        for _ in 0..20 {
            oracle::run("nft", &["flush ruleset"], None).unwrap();
            let begin = Instant::now();
            let changes = monitor.drain().unwrap();
            node.now += Duration::from_millis(100);
            assert!(node.proxier.tables_changed(&changes.generations, changes.lost, &mut node.tables, node.now));
            open += begin.elapsed();
            assert_eq!(list("ip").len(), whole);
            passes += node.settle().len();
        }
        eprintln!("open for {open:?} in 20 flushes");
        assert!((1..=3).contains(&passes), "{passes} full passes in two seconds");
    });
}

/// Foreign changes between reading and writing: other tables do not matter, this table is not changed from the earlier reading.
#[test]
fn somebody_changes_the_table_between_reading_and_writing() {
    kernel_test(NEEDS, || {
        let mut node = Node::new(&json!({}));
        node.publish("web", 10, &json!({}));
        node.settle();
        // The next full pass would make the table again; meanwhile other tables change.
        let others = ["add set ip proxier-ipvs theirs { type ipv4_addr; }"];
        oracle::run("nft", &others, None).unwrap();
        node.tables.others.extend(["add table ip other", "delete table ip other", "add table ip6 other"]);
        let report = node.full_pass();
        assert!(report.is_done() && !list("ip").contains("theirs"), "{report:#?}");
        assert!(node.tables.others.is_empty());
        // Then this table changes: it is deleted, and a foreign one has its name.
        oracle::run("nft", &others, None).unwrap();
        node.tables.others.push_back("delete table ip proxier-ipvs; add table ip proxier-ipvs");
        node.now += Duration::from_secs(1);
        node.proxier.request_full(node.now);
        let report = node.pass().unwrap();
        assert!(report.has_failed(), "{report:#?}");
        let why = report.applied.failures.iter().map(|failure| failure.error.to_string()).collect::<String>();
        assert!(why.contains("the rule set changed meanwhile"), "{why}");
        assert!(!list("ip").contains("chain"), "{}", list("ip"));
        oracle::run("nft", &["delete table ip proxier-ipvs"], None).unwrap();
        node.now += Duration::from_secs(1);
        let report = node.pass().unwrap();
        assert!(report.full && report.is_done(), "{report:#?}");
        assert!(list("ip").contains("10.96.0.10 . tcp . 80"));
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

//! One virtual server by a firewall mark for a node port, for all addresses of the node, on a kernel in memory; with foreign writes between two
//! writes, and foreign users of marks and ports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipvs::{Scheduler, VirtualServer, VirtualServerKey};
use proxier_core::config::{Config, LocalTraffic, RulesBy};
use proxier_core::fake::{Call, FakeKernel, Fault, Flow};
use proxier_core::modes::cleanup::cleanup;
use proxier_core::ports::PortErrorKind;
use proxier_core::snapshot::ObjectKey;
use serde_json::{Value, json};

use crate::marks::{self, V4, chain, elements, flush_ruleset, foreign, make_foreign, marks, reals, servers};
use crate::node::{Node, kernel};

const HERE: &str = "10.244.0.1:8080";
const THERE: &str = "10.244.7.1:8080";
const AT: &str = "192.0.2.10:30001";
/// The record of the node port.
const PLACE: &str = "0.0.0.0 . tcp . 30001";

fn config(shares: bool) -> Config {
    let mut config = Config::default();
    config.ipvs.rules = RulesBy::Nftables;
    config.ipvs.mark_node_ports = shares;
    config.local_traffic = LocalTraffic::ClusterCidrs(vec!["10.244.0.0/16".parse().unwrap()]);
    config
}

fn process(kernel: &FakeKernel, shares: bool) -> Node {
    marks::with(kernel, config(shares))
}

fn cluster() -> Value {
    json!({"externalTrafficPolicy": "Cluster"})
}

fn serving(kernel: &FakeKernel, shares: bool) -> Node {
    let mut node = process(kernel, shares);
    node.publish(1, &cluster(), &["node-a", "node-b"]);
    node.proxier.start(node.now);
    node
}

/// The virtual server of the node port's mark.
fn shared(kernel: &FakeKernel) -> BTreeMap<String, u32> {
    servers(kernel)[&format!("-f {}", marks(kernel)[PLACE])].clone()
}

/// Addresses and ports at which packets get marks, with these marks.
fn marked(kernel: &FakeKernel) -> BTreeSet<String> {
    elements(kernel, "node-port-mark")
}

fn has(kernel: &FakeKernel, address: &str) -> bool {
    servers(kernel).contains_key(&format!("-t {address}"))
}

#[test]
fn a_node_port_has_one_virtual_server_for_all_addresses() {
    let kernel = kernel();
    kernel.set_interface("eth1", &["192.0.2.11".parse().unwrap(), "192.0.2.12".parse().unwrap()]);
    let mut node = serving(&kernel, true);
    node.publish(2, &json!({}), &["node-a", "node-b"]);
    node.publish(3, &json!({"externalTrafficPolicy": "Cluster", "sessionAffinity": "ClientIP"}), &["node-a"]);
    let report = node.pass();
    assert!(report.is_done(), "{report:#?}");
    assert_eq!(shared(&kernel), reals(&[(HERE, 1), (THERE, 1)]));
    let mark = marks(&kernel)[PLACE];
    assert_eq!((mark & 0xff00_c000, marks(&kernel).len()), (0x1600_4000, 1));
    let addresses = ["192.0.2.10", "192.0.2.11", "192.0.2.12"];
    let wanted = addresses.map(|address| format!("{address} . tcp . 30001 : {mark:#010x}"));
    assert_eq!(marked(&kernel), BTreeSet::from(wanted));
    // Node ports with policy Local or affinity have a virtual server for each address, and the Services' own addresses are as ever.
    for (port, is_own) in [(30_001, false), (30_002, true), (30_003, true)] {
        for address in addresses {
            assert_eq!(has(&kernel, &format!("{address}:{port}")), is_own, "{address}:{port}: {:#?}", servers(&kernel));
        }
    }
    assert!(has(&kernel, "198.51.100.1:80") && has(&kernel, "10.96.0.1:80"));
    let map = "meta mark set ip daddr . meta l4proto . th dport map @node-port-mark";
    assert_eq!(chain(&kernel, "output-mark"), [map]);
    assert!(chain(&kernel, "input-split").contains(&map.to_owned()));
    let back = "meta mark & 0xff00c000 == 0x16004000 meta mark set 0x00004000";
    assert!(chain(&kernel, "output-split").contains(&back.to_owned()), "{:#?}", chain(&kernel, "output-split"));

    // An address that comes costs an entry, and no virtual server.
    let before = servers(&kernel);
    kernel.set_interface("eth2", &["192.0.2.13".parse().unwrap()]);
    node.proxier.host_changed(node.now);
    assert!(node.pass().is_done());
    let new: Vec<String> = servers(&kernel).into_keys().filter(|key| !before.contains_key(key)).collect();
    assert_eq!(new, ["-t 192.0.2.13:30002", "-t 192.0.2.13:30003"]);
    assert!(marked(&kernel).contains(&format!("192.0.2.13 . tcp . 30001 : {mark:#010x}")));

    // A second process changes nothing. Finding flows to forget counts as a write.
    let writes = || kernel.writes().total() - kernel.writes().conntrack;
    let before = writes();
    let mut node = serving(&kernel, true);
    node.publish(2, &json!({}), &["node-a", "node-b"]);
    node.publish(3, &json!({"externalTrafficPolicy": "Cluster", "sessionAffinity": "ClientIP"}), &["node-a"]);
    let report = node.pass();
    assert!(report.is_done() && report.foreign.is_empty(), "{report:#?}");
    assert_eq!(writes(), before, "{:?}", kernel.writes());
    // Endpoints come and go in it.
    node.publish(1, &cluster(), &["node-b"]);
    assert!(node.pass().is_done());
    assert_eq!(shared(&kernel)[THERE], 1);
    assert_ne!(shared(&kernel).get(HERE), Some(&1));
    node.proxier.delete_service(&ObjectKey::new("demo", "web-1"), node.now);
    let report = node.pass();
    assert!(report.is_done(), "{report:#?}");
    assert!(marks(&kernel).is_empty() && marked(&kernel).is_empty());
    assert!(cleanup(&config(true), None, &mut kernel.clone().ports()).is_done());
    assert!(servers(&kernel).is_empty() && !kernel.state().tables.contains_key(V4));
}

#[test]
fn what_others_serve_at_a_node_port_is_left_alone() {
    let kernel = kernel();
    make_foreign(&kernel, 7);
    let mut node = serving(&kernel, true);
    assert!(node.pass().is_done());
    // A foreign virtual server is at the port and an address of the node: packets get the mark before, so it serves nobody there.
    let key = VirtualServerKey::tcp(AT.parse().unwrap());
    let client = &mut kernel.ipvs().client().unwrap();
    client.add_virtual_server(&VirtualServer::new(key, Scheduler::RoundRobin)).unwrap();
    for _ in 0..2 {
        let report = node.full();
        assert!(report.is_done(), "{report:#?}");
        assert_eq!(report.foreign, [key.to_string(), "FWM 7".to_owned()]);
        node = serving(&kernel, true);
        node.pass();
    }
    assert!(has(&kernel, AT));
}

/// Packets to the node port find a virtual server at every moment.
fn is_served(kernel: &FakeKernel, what: &str) {
    let all = servers(kernel);
    let mark = marked(kernel).into_iter().find_map(|element| {
        let (place, mark) = element.split_once(" : ")?;
        (place == "192.0.2.10 . tcp . 30001").then(|| u32::from_str_radix(mark.trim_start_matches("0x"), 16).unwrap())
    });
    let of = |key: &str| all.get(key).is_some_and(|reals| reals.values().any(|weight| *weight > 0));
    let by = mark.map_or_else(|| format!("-t {AT}"), |mark| format!("-f {mark}"));
    assert!(of(&by), "{what}: packets go to {by}: {all:#?}");
}

#[test]
fn a_process_may_die_between_any_two_writes() {
    for (from, to) in [(false, true), (true, false)] {
        for after in 0..40 {
            let kernel = kernel();
            assert!(serving(&kernel, from).pass().is_done());
            is_served(&kernel, "before");
            kernel.crash_after(after);
            serving(&kernel, to).pass();
            is_served(&kernel, &format!("{after} writes towards {to}"));
            let mut node = serving(&kernel, to);
            for _ in 0..4 {
                let report = node.full();
                assert!(report.is_done() && report.foreign.is_empty(), "{after} writes towards {to}: {report:#?}");
                is_served(&kernel, "afterwards");
                node.now += Duration::from_secs(10);
            }
            assert_eq!((marks(&kernel).len(), marked(&kernel).len()), if to { (1, 1) } else { (0, 0) });
            assert_eq!(has(&kernel, AT), !to, "{after} writes towards {to}: {:#?}", servers(&kernel));
        }
    }
}

#[test]
fn connections_end_before_their_virtual_server_does() {
    let kernel = kernel();
    assert!(serving(&kernel, false).pass().is_done());
    let key = VirtualServerKey::tcp(AT.parse().unwrap());
    kernel.set_connections(&key, &HERE.parse().unwrap(), 1, 0);
    for _ in 0..3 {
        let mut node = serving(&kernel, true);
        let report = node.pass();
        assert!(report.is_done() && report.foreign.is_empty(), "{report:#?}");
        assert_eq!(servers(&kernel)[&format!("-t {AT}")].get(HERE), Some(&0), "it is kept for its connection");
        assert_eq!(shared(&kernel)[HERE], 1);
        // The record that the virtual server is own stays with it.
        assert!(elements(&kernel, "node-port-served").contains("192.0.2.10 . tcp . 30001"), "{:?}", kernel.state());
    }
    // And back, with a connection through the mark's.
    let mark = marks(&kernel)[PLACE];
    kernel.set_connections(&foreign(mark), &HERE.parse().unwrap(), 1, 0);
    let mut node = serving(&kernel, false);
    assert!(node.pass().is_done());
    assert_eq!(servers(&kernel)[&format!("-t {AT}")], reals(&[(HERE, 1), (THERE, 1)]));
    assert_eq!(shared(&kernel).get(HERE), Some(&0));
    assert!(marked(&kernel).is_empty());
    kernel.set_connections(&foreign(mark), &HERE.parse().unwrap(), 0, 0);
    for _ in 0..8 {
        assert!(node.full().is_done());
        node.now += Duration::from_secs(10);
    }
    assert!(servers(&kernel).keys().all(|key| key.starts_with("-t ")) && marks(&kernel).is_empty());
    // Affinity, asked for later, takes the mark away too.
    let mut node = serving(&kernel, true);
    assert!(node.pass().is_done());
    node.publish(1, &json!({"externalTrafficPolicy": "Cluster", "sessionAffinity": "ClientIP"}), &["node-a", "node-b"]);
    let report = node.pass();
    assert!(report.is_done() && !report.full, "{report:#?}");
    assert!(has(&kernel, AT) && marked(&kernel).is_empty());
}

/// The old virtual servers stay while the new ones cannot be made.
#[test]
fn nothing_goes_before_the_other_is_there() {
    let kernel = kernel();
    assert!(serving(&kernel, false).pass().is_done());
    let mut node = serving(&kernel, true);
    kernel.fail(Fault::new(Call::TablesCommit, PortErrorKind::Busy).every());
    assert!(!node.pass().is_done());
    is_served(&kernel, "no table");
    kernel.clear_faults();
    assert!(node.pass().is_done() && node.full().is_done());
    is_served(&kernel, "by the mark");
    // The virtual servers of the addresses cannot be made, in the other direction.
    let mut node = serving(&kernel, false);
    kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Busy).every());
    assert!(!node.pass().is_done());
    is_served(&kernel, "no virtual server");
    kernel.clear_faults();
    assert!(node.pass().is_done() && node.full().is_done());
    assert!(has(&kernel, AT));
    is_served(&kernel, "by the address");
}

#[test]
fn what_is_held_back_stays_whole() {
    marks::what_is_held_back_stays_whole(process, &config(true), &cluster(), ("node-port-mark", 20));
}

#[test]
fn what_others_change_is_repaired_and_told() {
    marks::what_others_change_is_repaired_and_told(serving, PLACE, HERE);
}

/// A node port that is not shared is no failure; the reason is reported.
#[test]
fn why_a_node_port_is_not_shared_is_told() {
    let kernel = kernel();
    let mut node = serving(&kernel, true);
    let unmarked = |node: &Node| -> Vec<String> { node.proxier.unmarked().map(|of| of.to_string()).collect() };
    node.pass();
    assert_eq!(unmarked(&node), [""; 0]);
    let affine = json!({"externalTrafficPolicy": "Cluster", "sessionAffinity": "ClientIP"});
    node.publish(2, &affine, &["node-a"]);
    let sctp = json!({"externalTrafficPolicy": "Cluster", "ports": [{"name": "p", "port": 80, "nodePort": 30003, "protocol": "SCTP"}]});
    node.publish(3, &sctp, &["node-a"]);
    // A node port with policy Local cannot be shared.
    node.publish(4, &json!({}), &["node-a"]);
    let report = node.pass();
    assert!(report.is_done() && !report.has_failed(), "{report:#?}");
    let instead = "each address of the node has a virtual server";
    assert_eq!(
        unmarked(&node),
        [
            format!(
                "Service demo/web-2: ipvs.markNodePorts not for TCP 192.0.2.10:30002: clients stay with their endpoints, and such a virtual \
                 server of a firewall mark does not translate ports; {instead}"
            ),
            format!("Service demo/web-3: ipvs.markNodePorts not for SCTP 192.0.2.10:30003: it is of SCTP; {instead}"),
        ]
    );
    assert!(servers(&kernel).contains_key("-t 192.0.2.10:30002"));
    assert_eq!(node.proxier.wanted().unwrap().marked(), (0, 1));
}

/// The record of a virtual server that goes, because its node port is shared now, goes with it.
#[test]
fn a_record_goes_with_its_virtual_server() {
    let kernel = kernel();
    assert!(serving(&kernel, false).pass().is_done());
    let served = || elements(&kernel, "node-port-served");
    assert_eq!(served(), BTreeSet::from(["192.0.2.10 . tcp . 30001".to_owned()]));
    let mut node = serving(&kernel, true);
    for _ in 0..8 {
        assert!(node.full().is_done());
        node.now += Duration::from_secs(10);
    }
    assert!(!has(&kernel, AT) && served().is_empty(), "{:?}", served());
    assert_eq!(marked(&kernel).len(), 1);
}

/// Flows to endpoints of a shared node port go on, and those to endpoints that are gone are forgotten.
#[test]
fn flows_of_a_shared_node_port() {
    let kernel = kernel();
    let mut node = process(&kernel, true);
    let port = json!([{"name": "p", "port": 53, "nodePort": 30001, "protocol": "UDP"}]);
    node.publish_service(1, &json!({"externalTrafficPolicy": "Cluster", "ports": port}));
    let endpoints = |node: &mut Node, addresses: &[&str]| {
        let endpoints: Vec<Value> =
            addresses.iter().map(|of| json!({"addresses": [of], "nodeName": "node-b"})).collect();
        let slice = json!({
            "metadata": {"namespace": "demo", "name": "web-1-x", "labels": {"kubernetes.io/service-name": "web-1"}},
            "addressType": "IPv4", "ports": [{"name": "p", "port": 53, "protocol": "UDP"}], "endpoints": endpoints,
        });
        node.proxier.upsert_slice(&serde_json::from_value(slice).unwrap(), node.now);
    };
    endpoints(&mut node, &["10.244.7.1", "10.244.7.2"]);
    node.proxier.start(node.now);
    assert!(node.pass().is_done());
    assert!(!has(&kernel, "192.0.2.10:30001") && marked(&kernel).len() == 1, "{:#?}", servers(&kernel));
    let flow = |endpoint: &str| {
        let place = |text: &str| text.parse().unwrap();
        Flow::udp(place("198.18.0.1:999"), place("192.0.2.10:30001"), place(endpoint))
    };
    let (stays, goes) = (flow("10.244.7.1:53"), flow("10.244.7.2:53"));
    for flow in [&stays, &goes] {
        kernel.add_flow(*flow);
    }
    endpoints(&mut node, &["10.244.7.1"]);
    let mut node = node;
    for _ in 0..4 {
        assert!(node.pass().is_done());
        node.now += Duration::from_secs(31);
    }
    assert_eq!(kernel.state().flows.into_iter().collect::<Vec<_>>(), [stays]);
}

/// `nft flush ruleset`: a node port keeps its mark, for a running process, for a new one, and in a cleanup.
#[test]
fn marks_are_known_without_their_table() {
    let kernel = kernel();
    make_foreign(&kernel, 7);
    make_foreign(&kernel, 0x1600_4007);
    let theirs = ["FWM 7".to_owned(), format!("FWM {}", 0x1600_4007)];
    let mut node = serving(&kernel, true);
    assert!(node.pass().is_done());
    let before = (servers(&kernel), marks(&kernel), marked(&kernel));
    for again in [false, true] {
        flush_ruleset(&kernel);
        let operations = kernel.writes().ipvs;
        if again {
            node = serving(&kernel, true);
        }
        let report = node.full();
        assert!(report.is_done() && report.foreign == theirs, "{again}: {report:#?}");
        assert_eq!((servers(&kernel), marks(&kernel), marked(&kernel)), before, "{again}");
        assert_eq!(kernel.writes().ipvs, operations, "no virtual server is touched");
    }
    flush_ruleset(&kernel);
    let cleaned = cleanup(&config(true), None, &mut kernel.clone().ports());
    assert!(cleaned.is_done() && cleaned.foreign.len() == 2, "{cleaned:#?}");
    assert_eq!(servers(&kernel).len(), 2);
}

/// Metrics count virtual servers of marks that are wanted, by their purpose; not those that drain.
#[test]
fn marks_are_counted_by_what_they_are_for() {
    let kernel = kernel();
    let mut config = config(true);
    config.ipvs.mark_split = true;
    let mut node = marks::with(&kernel, config);
    node.publish(1, &cluster(), &["node-a", "node-b"]);
    node.publish(2, &cluster(), &["node-b"]);
    node.publish(3, &json!({}), &["node-a", "node-b"]);
    node.proxier.start(node.now);
    assert!(node.pass().is_done());
    let marked = |node: &Node| node.proxier.wanted().unwrap().marked();
    // The bit for masquerading tells them apart in ipvsadm's output.
    let of_kernel = |kernel: &FakeKernel| {
        let all = servers(kernel).into_keys();
        let marks = all.filter_map(|key| key.strip_prefix("-f ").map(|mark| mark.parse::<u32>().unwrap()));
        let (shared, split): (Vec<u32>, Vec<u32>) = marks.partition(|mark| mark & 0x4000 != 0);
        (split.len(), shared.len())
    };
    // The third Service's load balancer and node port, and the node ports of the other two.
    assert_eq!((marked(&node), of_kernel(&kernel)), ((2, 2), (2, 2)));
    // One mark is still used.
    let mark = foreign(marks(&kernel)["198.51.100.3 . tcp . 80"]);
    kernel.set_connections(&mark, &"10.244.0.3:8080".parse().unwrap(), 1, 0);
    node.publish(3, &cluster(), &["node-a", "node-b"]);
    assert!(node.pass().is_done());
    assert!(servers(&kernel).contains_key(&mark.to_string().replace("FWM", "-f")));
    assert_eq!(marked(&node), (0, 3));
    node.proxier.delete_service(&ObjectKey::new("demo", "web-1"), node.now);
    assert!(node.pass().is_done());
    assert_eq!((marked(&node), of_kernel(&kernel).1), ((0, 2), 2));
}

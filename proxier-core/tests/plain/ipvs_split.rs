//! Two endpoint lists behind one address, on a kernel in memory. Clients outside get local endpoints by a firewall
//! mark, pods and the node those of all nodes. Other programs write between two writes, and use marks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proxier_core::config::{Config, LocalTraffic, RulesBy};
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::inspect::{differences, inspect, inspect_packet};
use proxier_core::modes::Kind;
use proxier_core::modes::cleanup::cleanup;
use proxier_core::net::FrontendKey;
use proxier_core::ports::PortErrorKind;
use proxier_core::service::{Packet, Verdict};
use serde_json::{Value, json};

use crate::marks::{self, V4, chain, elements, flush_ruleset, foreign, make_foreign, marks, reals, servers};
use crate::node::{self, Node, checked, kernel, writes};

const BALANCER: &str = "198.51.100.1:80";
const NODE_PORT: &str = "192.0.2.10:30001";
const HERE: &str = "10.244.0.1:8080";
const THERE: &str = "10.244.7.1:8080";

fn config(splits: bool, by: RulesBy) -> Config {
    let mut config = Config::default();
    config.ipvs.rules = by;
    config.ipvs.mark_split = splits;
    config.local_traffic = LocalTraffic::ClusterCidrs(vec!["10.244.0.0/16".parse().unwrap()]);
    config
}

fn process(kernel: &FakeKernel, splits: bool) -> Node {
    marks::with(kernel, config(splits, RulesBy::Nftables))
}

/// A node that serves a Service with an endpoint here and one elsewhere.
fn serving(kernel: &FakeKernel, splits: bool) -> Node {
    let mut node = process(kernel, splits);
    node.publish(1, &json!({}), &["node-a", "node-b"]);
    node.proxier.start(node.now);
    node
}

const PLACE: &str = "198.51.100.1 . tcp . 80";

/// The virtual server that clients outside get at the load balancer.
fn outside(kernel: &FakeKernel) -> BTreeMap<String, u32> {
    let mark = marks(kernel)[PLACE];
    servers(kernel)[&format!("-f {mark}")].clone()
}

#[test]
fn clients_outside_have_a_list_of_their_own() {
    let kernel = kernel();
    let mut node = serving(&kernel, true);
    node.publish(2, &json!({}), &["node-b"]);
    node.settles();
    let all = servers(&kernel);
    for at in [BALANCER, NODE_PORT] {
        assert_eq!(all[&format!("-t {at}")], reals(&[(HERE, 1), (THERE, 1)]), "{all:#?}");
    }
    assert_eq!(outside(&kernel), reals(&[(HERE, 1)]));
    // Both Services, each at two addresses.
    let marks = marks(&kernel);
    assert_eq!(marks.len(), 4, "{marks:?}");
    assert!(marks.values().all(|mark| mark & 0xff00_c000 == 0x1600_0000), "{marks:x?}");
    assert_eq!(elements(&kernel, "local-split"), marks.keys().cloned().collect());
    // Clients outside get no answer where no endpoint is here.
    assert_eq!(all[&format!("-f {}", marks["198.51.100.2 . tcp . 80"])], reals(&[]));
    assert_eq!(all["-t 198.51.100.2:80"].len(), 1);
    let place = "ip daddr . meta l4proto . th dport";
    assert!(chain(&kernel, "services").contains(&format!("{place} @local-split jump from-inside")));
    assert_eq!(chain(&kernel, "input-split"), [format!("{place} @local-split goto from-outside")]);
    assert_eq!(
        chain(&kernel, "from-outside"),
        [
            "fib saddr type local return".to_owned(),
            "ip saddr 10.244.0.0/16 return".to_owned(),
            format!("meta mark set {place} map @split-mark"),
        ]
    );
    assert_eq!(chain(&kernel, "from-inside").len(), 2);
    assert_eq!(chain(&kernel, "output-split"), ["meta mark & 0xff00c000 == 0x16000000 meta mark set 0x00000000"]);
    // A second process changes nothing.
    let before = writes(&kernel);
    let mut node = serving(&kernel, true);
    node.publish(2, &json!({}), &["node-b"]);
    let report = node.pass();
    assert!(report.is_done() && report.foreign.is_empty(), "{report:#?}");
    assert_eq!(writes(&kernel), before, "{:?}", kernel.writes());
}

#[test]
fn it_is_off_by_default_and_with_iptables() {
    for (splits, by) in [(false, RulesBy::Nftables), (true, RulesBy::Iptables)] {
        let kernel = kernel();
        let mut node = marks::with(&kernel, config(splits, by));
        node.publish(1, &json!({}), &["node-a", "node-b"]);
        node.proxier.start(node.now);
        let report = node.settles();
        let all = servers(&kernel);
        assert!(all.keys().all(|key| key.starts_with("-t ")) && all[&format!("-t {BALANCER}")].len() == 1, "{all:#?}");
        let says = report
            .limited
            .iter()
            .any(|limit| limit.contains("ipvs.markSplit") && limit.contains("ipvs.rules: nftables"));
        assert_eq!(says, splits, "{:?}", report.limited);
        if by == RulesBy::Nftables {
            assert!(chain(&kernel, "input-split").is_empty() && chain(&kernel, "output-split").is_empty());
        }
    }
}

/// Checks the invariants that hold after every write.
fn nobody_is_led_astray(kernel: &FakeKernel, what: &str) {
    let all = servers(kernel);
    let marks = if kernel.state().tables.contains_key(V4) { marks(kernel) } else { BTreeMap::new() };
    let ours: BTreeSet<String> = marks.values().map(|mark| format!("-f {mark}")).collect();
    for key in all.keys().filter(|key| key.starts_with("-f ") && **key != "-f 7") {
        assert!(ours.contains(key), "{what}: {key} is recorded nowhere: {marks:?}");
    }
    if ours.is_empty() {
        return;
    }
    for place in elements(kernel, "local-split") {
        let server =
            all.get(&format!("-f {}", marks[&place])).unwrap_or_else(|| panic!("{what}: {place} has no server"));
        assert_eq!(server.get(HERE), Some(&1), "{what}: {place}");
    }
    for at in [BALANCER, NODE_PORT] {
        let (address, port) = at.split_once(':').unwrap();
        let is_split = elements(kernel, "local-split").contains(&format!("{address} . tcp . {port}"));
        let takes_remote =
            all.get(&format!("-t {at}")).and_then(|reals| reals.get(THERE)).is_some_and(|weight| *weight > 0);
        assert!(!takes_remote || is_split, "{what}: clients outside get {THERE} at {at}");
    }
}

#[test]
fn a_process_may_die_between_any_two_writes() {
    for (from, to) in [(None, true), (Some(false), true), (Some(true), false), (Some(true), true)] {
        for writes in 0.. {
            let kernel = kernel();
            make_foreign(&kernel, 7);
            if let Some(splits) = from {
                serving(&kernel, splits).settles();
            }
            let mut node = serving(&kernel, to);
            kernel.crash_after(writes);
            let report = node.pass();
            let what = format!("{from:?} to {to}, {writes} writes");
            nobody_is_led_astray(&kernel, &what);
            let has_crashed = kernel.has_crashed();
            assert!(has_crashed || report.is_done(), "{what}: {report:#?}");
            let mut again = serving(&kernel, to);
            let report = again.pass();
            assert!(report.is_done() && report.foreign == ["FWM 7"], "{what}: {report:#?}");
            nobody_is_led_astray(&kernel, &what);
            // Real servers that drain have no connections.
            while again.proxier.drains().is_some_and(|drains| !drains.is_empty()) {
                assert!(again.pass().is_done() && again.now < Duration::from_secs(60), "{what}");
            }
            assert!(again.full().is_done());
            let all = servers(&kernel);
            assert_eq!(
                all.keys().filter(|key| key.starts_with("-f ")).count(),
                if to { 3 } else { 1 },
                "{what}: {all:#?}"
            );
            assert_eq!(all[&format!("-t {BALANCER}")].len(), if to { 2 } else { 1 }, "{what}: {all:#?}");
            assert_eq!(marks(&kernel).len(), if to { 2 } else { 0 }, "{what}");
            assert!(again.full().writes() == 0, "{what}");
            let cleaned = cleanup(&config(to, RulesBy::Nftables), None, &mut kernel.clone().ports());
            assert!(cleaned.is_done(), "{what}: {cleaned:#?}");
            assert_eq!(servers(&kernel).keys().collect::<Vec<_>>(), ["-f 7"], "{what}");
            if !has_crashed {
                assert!(writes > 3 || (from, to) == (Some(true), true), "{what}");
                break;
            }
        }
    }
}

#[test]
fn connections_end_before_their_virtual_server_does() {
    let kernel = kernel();
    serving(&kernel, true).settles();
    let mark = marks(&kernel)[PLACE];
    kernel.set_connections(&foreign(mark), &HERE.parse().unwrap(), 1, 0);
    // Switched off, and killed again and again.
    for _ in 0..3 {
        let mut node = serving(&kernel, false);
        let report = node.pass();
        assert!(report.is_done() && report.foreign.is_empty(), "{report:#?}");
        assert!(elements(&kernel, "local-split").is_empty());
        assert_eq!(outside(&kernel), reals(&[(HERE, 0)]), "it is kept for its connection");
        assert_eq!(servers(&kernel)[&format!("-t {BALANCER}")][HERE], 1);
    }
    // Switched on again meanwhile: it serves again, by the same mark.
    let mut node = serving(&kernel, true);
    node.settles();
    assert_eq!((marks(&kernel)[PLACE], outside(&kernel)), (mark, reals(&[(HERE, 1)])));
    // The policy changes instead of the setting.
    node.publish(1, &json!({"externalTrafficPolicy": "Cluster"}), &["node-a", "node-b"]);
    let report = node.pass();
    assert!(report.is_done() && !report.full, "{report:#?}");
    assert!(elements(&kernel, "local-split").is_empty());
    assert_eq!(outside(&kernel), reals(&[(HERE, 0)]));
    kernel.set_connections(&foreign(mark), &HERE.parse().unwrap(), 0, 0);
    for _ in 0..8 {
        assert!(node.full().is_done());
        node.now += Duration::from_secs(10);
    }
    let all = servers(&kernel);
    assert!(all.keys().all(|key| key.starts_with("-t ")) && marks(&kernel).is_empty(), "{all:#?}");
}

/// A table that cannot be written has no record of a mark: its virtual server is not made, and all is as without marks.
#[test]
fn no_virtual_server_without_its_record() {
    let kernel = kernel();
    serving(&kernel, false).settles();
    let mut node = serving(&kernel, true);
    kernel.fail(Fault::new(Call::TablesCommit, PortErrorKind::Busy).every());
    let report = node.pass();
    let why: Vec<String> = report.applied.failures.iter().map(ToString::to_string).collect();
    assert!(why.iter().any(|why| why.contains("its mark could not be recorded")), "{why:#?}");
    assert!(servers(&kernel).keys().all(|key| key.starts_with("-t ")));
    kernel.clear_faults();
    assert!(node.pass().is_done() && node.full().is_done());
    assert_eq!(outside(&kernel), reals(&[(HERE, 1)]));
    nobody_is_led_astray(&kernel, "afterwards");
}

#[test]
fn a_trace_says_what_becomes_of_packets() {
    let kernel = kernel();
    let mut node = serving(&kernel, true);
    node.publish(2, &json!({}), &["node-b"]);
    node.publish(3, &json!({"sessionAffinity": "ClientIP"}), &["node-a", "node-b"]);
    node.settles();
    let trace = |source: &str, to: &str| {
        let (source, to) = (source.parse().unwrap(), to.parse::<FrontendKey>().unwrap());
        let packet = if source == to.address { Packet::from_node(source, to) } else { Packet::new(source, to) };
        node.traced(&packet).verdict
    };
    let (first, second) = (format!("TCP {BALANCER}"), "TCP 198.51.100.2:80");
    let text = |verdict: Verdict| verdict.to_string();
    assert_eq!(text(trace("203.0.113.9", &first)), format!("{HERE} (source kept)"));
    assert_eq!(text(trace("10.244.0.9", &first)), format!("{HERE} (masqueraded) or {THERE} (masqueraded)"));
    assert_eq!(text(trace("198.51.100.1", &first)), format!("{HERE} (masqueraded) or {THERE} (masqueraded)"));
    assert_eq!(trace("203.0.113.9", second), Verdict::Rejected);
    assert_eq!(text(trace("10.244.0.9", second)), "10.244.7.2:8080 (masqueraded)");
    assert_eq!(text(trace("10.244.0.9", "TCP 198.51.100.3:80")), "10.244.0.3:8080 (source kept)");
}

#[test]
fn impossible_settings_are_reported() {
    let check = |ipvs: Value| {
        let (config, rejections) = checked(json!({ "ipvs": ipvs }));
        (config.splits_local(), rejections.into_iter().map(|of| of.field).collect::<Vec<_>>())
    };
    let on = |more: Value| {
        let mut ipvs = json!({"markSplit": true, "rules": "nftables"});
        ipvs.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        check(ipvs)
    };
    assert_eq!(on(json!({})), (true, vec![]));
    assert_eq!(on(json!({"markRange": "0x200000/0xfff0c000"})), (true, vec![]));
    assert_eq!(on(json!({"rules": "iptables"})), (false, vec![]));
    assert_eq!(on(json!({"markRange": "everything"})), (false, vec!["ipvs.markRange".to_owned()]));
    assert!(!on(json!({"markRange": "0x200000/0xfff00000"})).0, "has the bits of others");
    assert_eq!(on(json!({"masqueradeBit": 3})), (false, vec!["ipvs.markRange".to_owned()]));
    assert_eq!(check(json!({"markRange": "0x200000/0xfff0c000"})), (false, vec![]));
}

/// A look for a packet is at the virtual server that it gets.
#[test]
fn what_a_kernel_holds_depends_on_the_sender() {
    let kernel = kernel();
    let mut node = serving(&kernel, true);
    node.pass();
    let key: FrontendKey = format!("TCP {BALANCER}").parse().unwrap();
    let (pod, client) = (Packet::new([10, 244, 3, 3].into(), key), Packet::new([203, 0, 113, 9].into(), key));
    let of_node = Packet::from_node([192, 0, 2, 10].into(), key);
    let facts = node.proxier.facts().clone();
    let held = |kernel: &FakeKernel, packet: &Packet| {
        inspect_packet(Kind::Ipvs, packet, &facts, &mut kernel.clone().ports()).unwrap()
    };
    let reals = |kernel: &FakeKernel, packet: &Packet| -> Vec<String> {
        let parts = held(kernel, packet).parts;
        parts.into_keys().filter_map(|name| name.strip_prefix("real server ").map(str::to_owned)).collect()
    };
    assert_eq!(reals(&kernel, &client), [HERE]);
    for inside in [&pod, &of_node] {
        assert_eq!(reals(&kernel, inside), [HERE, THERE]);
    }
    let at_address = inspect(Kind::Ipvs, &key, &facts, &mut kernel.clone().ports()).unwrap();
    assert_eq!(at_address, held(&kernel, &pod));
    let expected = held(&kernel, &client);
    let name = "virtual server of clients outside of TCP 198.51.100.1:80";
    assert!(expected.parts.contains_key(name), "{expected:?}");
    // A foreign change to the virtual server for clients outside is a difference for them, and none for pods.
    let (whole, inside) = (expected, held(&kernel, &pod));
    let mark: ipvs::VirtualServerKey = format!("FWM {}", marks(&kernel)[PLACE]).parse().unwrap();
    kernel.ipvs().apply(&ipvs::Operation::DeleteRealServer(mark, HERE.parse().unwrap())).unwrap();
    let said: Vec<String> = differences(&whole, &held(&kernel, &client)).iter().map(ToString::to_string).collect();
    assert_eq!(said, ["missing: real server 10.244.0.1:8080 (weight 1)"]);
    assert_eq!(differences(&inside, &held(&kernel, &pod)), []);
    // A kernel in which the address is not split.
    let plain = kernel_of_plain();
    let said: Vec<String> = differences(&whole, &held(&plain, &client)).iter().map(ToString::to_string).collect();
    assert!(said.iter().any(|line| line.starts_with(&format!("missing: {name}"))), "{said:?}");
}

/// A kernel that serves the same without a split.
fn kernel_of_plain() -> FakeKernel {
    let kernel = kernel();
    serving(&kernel, false).pass();
    kernel
}

/// Reports about Services that are not split.
fn unmarked(node: &Node) -> Vec<String> {
    node.proxier.unmarked().map(|unmarked| unmarked.to_string()).collect()
}

/// A Service that is not split is not a failure; the reason is reported once per Service.
#[test]
fn why_a_service_is_not_split_is_told() {
    let kernel = kernel();
    let mut node = serving(&kernel, true);
    assert_eq!(node.pass().refused, []);
    assert_eq!(unmarked(&node), [""; 0]);
    node.publish(2, &json!({"sessionAffinity": "ClientIP"}), &["node-a"]);
    let report = node.pass();
    assert!(report.is_done() && !report.has_failed(), "{report:#?}");
    let said = unmarked(&node);
    assert_eq!(
        said,
        [
            "Service demo/web-2: ipvs.markSplit not for TCP 192.0.2.10:30002 and 1 more: clients stay with their endpoints, and such a \
            virtual server of a firewall mark does not translate ports; pods and this node get local endpoints too"
        ]
    );
    // The report ends with the affinity.
    node.publish(2, &json!({}), &["node-a"]);
    node.pass();
    assert_eq!(unmarked(&node), [""; 0]);

    // Reasons are an annotation, and direct return.
    let annotated = |node: &mut Node, number: u16, port: u16, annotations: Value| {
        let more = json!({"ports": [{"name": "p", "port": port}], "annotations": annotations});
        node.publish(number, &more, &["node-a"]);
    };
    annotated(&mut node, 3, 80, json!({"proxier/persistence-seconds": "60"}));
    annotated(&mut node, 4, 8080, json!({"proxier/forwarding": "ipip"}));
    node.pass();
    let said = unmarked(&node);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].starts_with("Service demo/web-3: ipvs.markSplit not for TCP 198.51.100.3:80: clients stay"),
        "{said:?}"
    );
    let expected =
        "Service demo/web-4: ipvs.markSplit not for TCP 198.51.100.4:8080: endpoints answer clients by themselves;";
    assert!(said[1].starts_with(expected), "{said:?}");
    for number in [3, 4] {
        node.no_service(&format!("web-{number}"));
    }
    node.pass();
    assert_eq!(unmarked(&node), [""; 0]);
    assert_eq!(unmarked(&serving(&kernel, false)), [""; 0], "nobody asks for a split");
}

#[test]
fn marks_that_are_used_up_are_told() {
    let kernel = kernel();
    let mut config = config(true, RulesBy::Nftables);
    // 256 marks, and two for each Service.
    config.ipvs.mark_range = "0x16000000/0xffffff00".parse().unwrap();
    let mut node = marks::with(&kernel, config);
    for number in 1..=130 {
        node.publish(number, &json!({}), &["node-a"]);
    }
    node.proxier.start(node.now);
    node.settles();
    let said = unmarked(&node);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said.iter().all(|line| line.contains("and 1 more: ipvs.markRange has no mark left;")), "{said:?}");
    for number in 1..=2 {
        node.no_service(&format!("web-{number}"));
    }
    for _ in 0..3 {
        node.full();
    }
    assert_eq!(unmarked(&node), [""; 0]);
}

/// `nft flush ruleset`: a running process knows its marks, and makes a new table with them.
#[test]
fn marks_are_known_without_their_table() {
    let kernel = kernel();
    make_foreign(&kernel, 7);
    let mut node = serving(&kernel, true);
    node.publish(2, &json!({}), &["node-b"]);
    node.settles();
    // A foreign virtual server has a mark of our range that no Service has.
    make_foreign(&kernel, 0x1600_0007);
    assert!(node.full().is_done());
    let held = |kernel: &FakeKernel| (servers(kernel), marks(kernel), elements(kernel, "local-split"));
    let before = held(&kernel);
    for _ in 0..2 {
        flush_ruleset(&kernel);
        let operations = kernel.writes().ipvs;
        let report = node.full();
        assert!(report.is_done(), "{report:#?}");
        assert_eq!(report.foreign, ["FWM 7", "FWM 369098759"]);
        assert_eq!(held(&kernel), before);
        assert_eq!(kernel.writes().ipvs, operations, "no virtual server is touched");
        assert_eq!(node.full().writes(), 0);
    }
    // A Service goes before the loss is noticed, and the table cannot be written for a while.
    flush_ruleset(&kernel);
    node.no_service("web-2");
    kernel.fail(Fault::new(Call::TablesCommit, PortErrorKind::Busy).every());
    for _ in 0..3 {
        node.pass();
    }
    kernel.clear_faults();
    for _ in 0..2 {
        let report = node.full();
        assert!(report.is_done() && report.foreign == ["FWM 7", "FWM 369098759"], "{report:#?}");
    }
    let gone = |place: &str| place.starts_with("198.51.100.2 ") || place.ends_with(" 30002");
    let left: BTreeMap<String, u32> = before.1.clone().into_iter().filter(|(place, _)| !gone(place)).collect();
    assert_eq!((left.len(), marks(&kernel)), (2, left));
    assert_eq!(servers(&kernel).keys().filter(|key| key.starts_with("-f ")).count(), 4);
}

/// A process that begins, and a cleanup, recognise marks without their records, in any mode.
#[test]
fn a_new_process_recognises_marks_without_their_table() {
    let serves = |kernel: &FakeKernel| {
        make_foreign(kernel, 7);
        make_foreign(kernel, 0x1600_0007);
        let mut node = serving(kernel, true);
        node.publish(2, &json!({}), &["node-b"]);
        node.settles();
        let place = marks(kernel)["198.51.100.2 . tcp . 80"];
        flush_ruleset(kernel);
        place
    };
    let theirs = ["FWM 7", "FWM 369098759"];
    let of_marks = |kernel: &FakeKernel| -> Vec<String> {
        servers(kernel).into_keys().filter(|key| key.starts_with("-f ")).collect()
    };
    // One Service is the same, the other has gone meanwhile.
    let kernel = node::kernel();
    serves(&kernel);
    let before = servers(&kernel);
    let mut node = serving(&kernel, true);
    for _ in 0..2 {
        let report = node.full();
        assert!(report.is_done(), "{report:#?}");
        let of_marks: Vec<&String> = report.foreign.iter().filter(|key| key.starts_with("FWM")).collect();
        assert_eq!(of_marks, theirs.iter().collect::<Vec<_>>());
    }
    assert_eq!((marks(&kernel).len(), outside(&kernel)), (2, reals(&[(HERE, 1)])));
    assert_eq!(of_marks(&kernel).len(), 4);
    for mark in marks(&kernel).values() {
        assert_eq!(servers(&kernel)[&format!("-f {mark}")], before[&format!("-f {mark}")]);
    }
    // Rules of iptables have no marks.
    let kernel = node::kernel();
    serves(&kernel);
    let mut node = marks::with(&kernel, config(true, RulesBy::Iptables));
    node.publish(1, &json!({}), &["node-a", "node-b"]);
    node.proxier.start(node.now);
    assert!(node.pass().is_done() && node.full().is_done());
    assert_eq!(of_marks(&kernel), ["-f 369098759", "-f 7"]);
    // No Service is served any more.
    let kernel = node::kernel();
    serves(&kernel);
    let cleaned = cleanup(&config(true, RulesBy::Nftables), None, &mut kernel.clone().ports());
    assert!(cleaned.is_done(), "{cleaned:#?}");
    assert_eq!(of_marks(&kernel), ["-f 369098759", "-f 7"]);
    // A foreign virtual server has the mark that a Service would have got, and the Service gets the next one.
    let kernel = node::kernel();
    let mark = serves(&kernel);
    assert!(cleanup(&config(true, RulesBy::Nftables), None, &mut kernel.clone().ports()).is_done());
    make_foreign(&kernel, mark);
    let mut node = serving(&kernel, true);
    node.publish(2, &json!({}), &["node-b", "node-a"]);
    node.settles();
    assert_eq!(of_marks(&kernel).len(), 7);
    flush_ruleset(&kernel);
    let cleaned = cleanup(&config(true, RulesBy::Nftables), None, &mut kernel.clone().ports());
    assert!(cleaned.is_done(), "{cleaned:#?}");
    assert_eq!(
        of_marks(&kernel),
        BTreeSet::from(["-f 369098759".to_owned(), format!("-f {mark}"), "-f 7".to_owned()])
            .into_iter()
            .collect::<Vec<_>>()
    );
}

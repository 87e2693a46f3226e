//! IPVS mode with an nf_tables table instead of ipsets and iptables rules, on a kernel in memory. It has the same
//! entries, the same order and the same safety. A node changes from one to the other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use iptables::{Invocation, Runner as _};
use netlink_batch::Errno;
use nftables::{Chain, Element, ElementKey, Set, Table, TableFlags, TableKey, Value as NftValue};
use proxier_core::config::{Config, InterfaceName, LocalTraffic, RulesBy};
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::modes::Kind;
use proxier_core::modes::cleanup::cleanup;
use proxier_core::modes::ipvs::guards::{choose, trials};
use proxier_core::net::Family;
use proxier_core::plan::report::Report;
use proxier_core::plan::step::{Action, Part};
use proxier_core::ports::PortErrorKind;
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::{HostAddresses, Node as NodeOf};
use serde_json::json;

use crate::marks::{V4, chain_of as chain, elements_of as elements};
use crate::node::{Node, add_table, checked, commit, delete_table, kernel, options_of, writes};

const V6: &str = "ip6 proxier-ipvs";

fn config(by: RulesBy) -> Config {
    let mut config = Config::default();
    config.ipvs.rules = by;
    config
}

/// A new process.
fn of(kernel: &FakeKernel, mode: Kind, config: Config) -> Node {
    let mut options = options_of(mode);
    options.config = config;
    options.mass_removal.share = 1.0;
    Node::begin(kernel, options)
}

fn new(kernel: &FakeKernel, by: RulesBy) -> Node {
    of(kernel, Kind::Ipvs, config(by))
}

/// A node that serves three Services.
fn serving(kernel: &FakeKernel, by: RulesBy) -> Node {
    let mut node = new(kernel, by);
    for number in 1..=3 {
        node.serve_ranges(number, &["192.0.2.0/24", "192.0.0.0/16"]);
    }
    node.started()
}

impl Node {
    /// A Service with every kind of address; the second has external traffic policy `Cluster`, the third no endpoints.
    fn serve_ranges(&mut self, number: u16, ranges: &[&str]) {
        let name = format!("web-{number}");
        let addresses = [format!("10.96.0.{number}"), format!("fd00::{number}")];
        let spec = json!({
            "type": "LoadBalancer", "externalTrafficPolicy": if number == 2 { "Cluster" } else { "Local" },
            "healthCheckNodePort": 32000 + number,
            "clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilies": ["IPv4", "IPv6"],
            "externalIPs": [format!("203.0.113.{number}")], "loadBalancerSourceRanges": ranges,
            "ports": [
                {"name": "p", "port": 80, "nodePort": 30000 + number},
                {"name": "u", "port": 53, "protocol": "UDP", "nodePort": 31000 + number},
                {"name": "s", "port": 99, "protocol": "SCTP", "nodePort": 31500 + number},
            ],
            "status": {"loadBalancer": {"ingress": [{"ip": format!("198.51.100.{number}")}]}},
        });
        self.service(&name, spec);
        for prefix in ["10.244.0.", "fd01::"].into_iter().filter(|_| number != 3) {
            self.slice(&name, &[&format!("{prefix}{number}@node-a")]);
        }
    }

    fn table(&self, name: &str) -> String {
        self.kernel.state().tables.get(name).cloned().unwrap_or_default()
    }

    fn ipvs(&self) -> String {
        self.kernel.state().ipvs
    }
}

/// An entry as `ipset` prints it, in nft's words.
fn in_words_of_nft(entry: &str) -> String {
    entry.replace("tcp:", "tcp,").replace("udp:", "udp,").replace("sctp:", "sctp,").replace(',', " . ")
}

#[test]
fn it_has_what_sets_and_rules_have() {
    let programs = kernel();
    let mut node = serving(&programs, RulesBy::Iptables);
    node.settles();
    let kernel = kernel();
    let mut node = serving(&kernel, RulesBy::Nftables);
    node.settles();
    let (wanted, state) = (programs.state(), kernel.state());
    assert_eq!(state.ipvs, wanted.ipvs);
    assert_eq!(state.devices, wanted.devices);
    assert_eq!(state.sysctls, wanted.sysctls);
    assert!(state.sets.is_empty(), "{:?}", state.sets);
    assert!(state.rules.values().all(|rules| !rules.contains("KUBE-SERVICES")), "{:?}", state.rules);
    let mut compared = 0;
    for (name, (_, entries)) in &wanted.sets {
        // IPv6 has a table of its own.
        let (table, rest) = match name.strip_prefix("KUBE-6-") {
            Some(rest) => (V6, rest),
            None => (V4, &name["KUBE-".len()..]),
        };
        let set = rest.to_lowercase();
        // ipset cuts long names.
        let set = match &*set {
            "load-balancer-source-cid" => "load-balancer-source-cidr",
            "node-port-local-sctp-has" => "node-port-local-sctp-hash",
            whole => whole,
        };
        let found = elements(&state.tables[table], set);
        let mut wanted: BTreeSet<String> = entries.iter().map(|entry| in_words_of_nft(entry)).collect();
        if set == "load-balancer-source-cidr" {
            // One range contains the other.
            wanted.retain(|entry| !entry.ends_with("192.0.2.0/24"));
        }
        assert_eq!(found, wanted, "{table} {set}");
        compared += wanted.len();
    }
    assert!(compared > 60, "{compared}");
    // Rules of iptables name them one by one.
    let barred = elements(&state.tables[V4], "load-balancer-not-node");
    assert!(barred.contains("198.51.100.1 . tcp . 80 . 198.51.100.1") && barred.len() == 9, "{barred:?}");
    // A second process changes nothing.
    let before = writes(&kernel);
    let mut node = serving(&kernel, RulesBy::Nftables);
    node.settles();
    assert_eq!(writes(&kernel), before, "{:?}", kernel.writes());
}

#[test]
fn a_change_is_one_transaction_of_a_few_elements() {
    let kernel = kernel();
    let mut node = serving(&kernel, RulesBy::Nftables);
    node.settles();
    let before = kernel.writes();
    node.service("extra", json!({"clusterIP": "10.96.9.9"}));
    let report = node.pass();
    assert!(report.is_done() && !report.full, "{report:#?}");
    assert_eq!(kernel.writes().tables - before.tables, 1);
    assert_eq!(report.applied.done[&(Part::Entry, Action::Add)], 3, "{report:#?}");
    // It has no endpoint.
    for set in ["cluster-ip", "no-endpoint"] {
        assert!(elements(&node.table(V4), set).contains("10.96.9.9 . tcp . 80"), "{set}");
    }
    let before = kernel.writes();
    node.no_service("extra");
    let report = node.pass();
    assert!(report.is_done() && !report.full, "{report:#?}");
    assert_eq!(kernel.writes().tables - before.tables, 1);
    assert!(!node.table(V4).contains("10.96.9.9"));
    assert_eq!(kernel.writes().rules + kernel.writes().sets, 0);
}

#[test]
fn nothing_is_served_that_cannot_be_guarded() {
    let kernel = kernel();
    let mut node = serving(&kernel, RulesBy::Nftables);
    kernel.fail(Fault::new(Call::TablesCommit, PortErrorKind::Busy).every());
    let report = node.pass();
    assert!(report.has_failed(), "{report:#?}");
    let ipvs = node.ipvs();
    assert!(ipvs.contains("10.96.0.1:80") && !ipvs.contains("198.51.100."), "{ipvs}");
    let why: Vec<String> = report.applied.failures.iter().map(ToString::to_string).collect();
    let says = |what: &str| why.iter().any(|why| why.contains(what));
    assert!(says("TCP 198.51.100.1:80 is not served, because the rules for its loadBalancerSourceRanges"), "{why:#?}");
    assert!(says("198.51.100.1 is not bound, because none of its virtual servers could be made"), "{why:#?}");
    assert!(!kernel.state().devices["kube-ipvs0"].contains(&"198.51.100.1".parse().unwrap()));
    kernel.clear_faults();
    node.settles();
    assert!(node.ipvs().contains("198.51.100.1:80"));
}

#[test]
fn guards_come_before_and_go_after_what_they_guard() {
    let kernel = kernel();
    let mut node = serving(&kernel, RulesBy::Nftables);
    node.settles();
    node.no_service("web-1");
    kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Busy).every());
    let report = node.pass();
    assert!(!report.is_done(), "{report:#?}");
    let guard = "198.51.100.1 . tcp . 80";
    assert!(node.ipvs().contains("198.51.100.1:80"));
    let table = node.table(V4);
    assert!(elements(&table, "load-balancer-fw").contains(guard), "{table}");
    assert!(elements(&table, "load-balancer-source-cidr").contains(&format!("{guard} . 192.0.0.0/16")), "{table}");
    assert!(elements(&table, "node-port-served").contains("192.0.2.10 . tcp . 30001"), "{table}");
    let stays = |report: &Report| report.applied.failures.iter().any(|of| of.to_string().contains("stays, because"));
    assert!(stays(&report), "{report:#?}");
    kernel.clear_faults();
    while !node.pass().is_done() {}
    assert!(!node.ipvs().contains("198.51.100.1:80"));
    assert!(!node.table(V4).contains("198.51.100.1"));
}

#[test]
fn source_ranges_change_without_overlaps() {
    let kernel = kernel();
    let mut node = serving(&kernel, RulesBy::Nftables);
    node.settles();
    let ranges = |node: &Node| {
        let all = elements(&node.table(V4), "load-balancer-source-cidr").into_iter();
        all.filter_map(|of| Some(of.strip_prefix("198.51.100.1 . tcp . 80 . ")?.to_owned())).collect::<Vec<_>>()
    };
    for (ranges_of_service, wanted) in [
        (&["192.0.2.128/25"][..], &["192.0.2.128/25"][..]),
        (&["10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16"], &["10.0.0.0/8"]),
        (&["10.1.0.0/16", "172.16.0.1/32"], &["10.1.0.0/16", "172.16.0.1"]),
    ] {
        let before = kernel.writes().tables;
        node.serve_ranges(1, ranges_of_service);
        node.settles();
        assert_eq!(ranges(&node), wanted);
        assert!(kernel.writes().tables - before <= 2);
    }
    // The node is in none of the ranges any more.
    let barred = elements(&node.table(V4), "load-balancer-not-node");
    assert!(barred.contains("198.51.100.1 . tcp . 80 . 198.51.100.1"), "{barred:?}");
}

#[test]
fn what_others_change_is_repaired_and_told() {
    let kernel = kernel();
    let mut node = serving(&kernel, RulesBy::Nftables);
    node.settles();
    let key: TableKey = V4.parse().unwrap();
    let whole = node.table(V4);
    let set = |name: &str| {
        let snapshot = kernel.nftables().snapshot(&key).unwrap();
        let found = snapshot.sets.into_iter().find(|of| of.set.set.key.name.as_str() == name).unwrap();
        (found.set.set, found.elements)
    };
    let drifts: [(&str, &dyn Fn()); 8] = [
        ("+ entry ip proxier-ipvs cluster-ip", &|| {
            let (set, elements) = set("cluster-ip");
            commit(&kernel, |transaction| transaction.delete_elements(&set, [elements[0].clone()]));
        }),
        ("- entry ip proxier-ipvs node-port-tcp", &|| {
            let more = Element::new(ElementKey::Value(NftValue::port(7)));
            commit(&kernel, |transaction| transaction.add_elements(&set("node-port-tcp").0, [more]));
        }),
        ("~ table ip proxier-ipvs chains source-ranges", &|| {
            commit(&kernel, |transaction| transaction.flush_chain(&key.chain("source-ranges").unwrap()));
        }),
        ("~ table ip proxier-ipvs made again", &|| {
            commit(&kernel, |transaction| transaction.add_chain(Chain::regular(key.chain("theirs").unwrap())));
        }),
        ("~ table ip proxier-ipvs made again", &|| {
            let mut other: Set = set("cluster-ip").0;
            other.key.name = "theirs".parse().unwrap();
            commit(&kernel, |transaction| {
                transaction.add_set(other);
                transaction
            });
        }),
        // Sources of one address and port to another.
        ("~ table ip proxier-ipvs made again", &|| {
            let source = |port, source: [u8; 4]| {
                let [host, source] = [[198, 51, 100, 1], source].map(|octets| IpAddr::from(octets).into());
                NftValue::concat(&[host, NftValue::byte(6), NftValue::port(port), source]).unwrap()
            };
            let range = Element::range(source(1000, [10, 9, 0, 0]), source(1001, [10, 9, 0, 255]));
            commit(&kernel, |transaction| transaction.add_elements(&set("load-balancer-source-cidr").0, [range]));
        }),
        ("~ table ip proxier-ipvs made again", &|| {
            let mut dormant = Table::new(key.clone());
            dormant.flags = TableFlags::DORMANT;
            commit(&kernel, |transaction| transaction.add_table(dormant));
        }),
        ("+ table ip proxier-ipvs", &|| delete_table(&kernel, V4)),
    ];
    for (step, change) in drifts {
        change();
        assert_ne!(node.table(V4), whole, "{step}");
        let report = node.full();
        assert!(report.is_done(), "{step}: {report:#?}");
        assert!(report.drift.iter().any(|of| of.to_string().starts_with(step)), "{step}: {:#?}", report.drift);
        assert_eq!(node.table(V4), whole, "{step}");
        let again = node.full();
        assert!(again.drift.is_empty() && again.writes() == 0, "{step}: {again:#?}");
    }
    // A change that finds its table gone makes it again at once.
    delete_table(&kernel, V4);
    node.serve_ranges(1, &["10.0.0.0/8"]);
    node.pass();
    let report = node.pass();
    assert!(report.full && report.is_done(), "{report:#?}");
    assert!(elements(&node.table(V4), "load-balancer-source-cidr").contains("198.51.100.1 . tcp . 80 . 10.0.0.0/8"));
}

fn without_tables_order(kernel: &FakeKernel) -> (BTreeMap<String, String>, BTreeSet<String>, String, bool) {
    let state = kernel.state();
    let rules = state.rules.values().any(|rules| rules.contains("KUBE-SERVICES"));
    (state.tables, state.sets.into_keys().collect(), state.ipvs, rules)
}

#[test]
fn a_node_changes_from_one_to_the_other() {
    for (from, to) in [(RulesBy::Iptables, RulesBy::Nftables), (RulesBy::Nftables, RulesBy::Iptables)] {
        let alone = kernel();
        serving(&alone, to).pass();
        let alone = without_tables_order(&alone);

        let kernel = kernel();
        serving(&kernel, from).settles();
        let old = without_tables_order(&kernel);
        let ipvs = kernel.writes().ipvs;
        let mut node = serving(&kernel, to);
        let report = node.pass();
        assert!(report.is_done(), "{to}: {report:#?}");
        // Both stand, and no virtual server was touched: no connection is lost.
        let both = without_tables_order(&kernel);
        assert_eq!((&both.2, kernel.writes().ipvs), (&old.2, ipvs), "{to}");
        assert!(both.3 && both.0.contains_key(V4) && both.0.contains_key(V6) && !both.1.is_empty(), "{to}: {both:#?}");
        let cleaned = cleanup(&config(to), Some(Kind::Ipvs), &mut node.kernel.ports());
        assert!(cleaned.is_done() && cleaned.removed() > 0, "{to}: {cleaned:#?}");
        assert_eq!(without_tables_order(&kernel), alone, "{to}");
        let report = node.full();
        assert!(report.is_done() && report.drift.is_empty() && report.writes() == 0, "{to}: {report:#?}");
        let again = cleanup(&config(to), Some(Kind::Ipvs), &mut node.kernel.ports());
        assert!(again.is_done() && again.removed() == 0, "{to}: {again:#?}");
    }
}

#[test]
fn what_the_other_variant_marked_is_ours_and_stays_guarded() {
    for (from, to) in [(RulesBy::Iptables, RulesBy::Nftables), (RulesBy::Nftables, RulesBy::Iptables)] {
        let kernel = kernel();
        serving(&kernel, from).settles();
        // Meanwhile web-1 and web-3 were deleted; their virtual servers cannot be.
        let mut node = new(&kernel, to);
        node.serve_ranges(2, &["192.0.2.0/24"]);
        node.proxier.start(node.now);
        kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Busy).every());
        assert!(!node.pass().is_done());
        cleanup(&config(to), Some(Kind::Ipvs), &mut node.kernel.ports());
        let has_guard = |kernel: &FakeKernel| {
            let state = kernel.state();
            let in_sets = || state.sets["KUBE-LOAD-BALANCER-FW"].1.iter().any(|entry| entry == "198.51.100.1,tcp:80");
            match to {
                RulesBy::Nftables => {
                    let table = &state.tables[V4];
                    elements(table, "load-balancer-fw").contains("198.51.100.1 . tcp . 80")
                        && elements(table, "load-balancer-source-cidr")
                            .contains("198.51.100.1 . tcp . 80 . 192.0.0.0/16")
                }
                _ => in_sets(),
            }
        };
        assert!(node.ipvs().contains("198.51.100.1:80") && node.ipvs().contains("192.0.2.10:30001"));
        assert!(has_guard(&kernel), "{to}");
        kernel.clear_faults();
        // A process that knows no Services but one can do it, too.
        let mut node = new(&kernel, to);
        node.serve_ranges(2, &["192.0.2.0/24"]);
        node.proxier.start(node.now);
        let report = node.pass();
        assert!(report.is_done(), "{to}: {report:#?}");
        assert!(
            !node.ipvs().contains("198.51.100.1:80") && !node.ipvs().contains("192.0.2.10:30001"),
            "{}",
            node.ipvs()
        );
        assert!(!has_guard(&kernel), "{to}");
    }
}

/// Connections that nftables mode translates must find their way until that mode is gone: destinations are kept only then.
#[test]
fn nftables_mode_is_not_cut_off() {
    let kernel = kernel();
    let mut before = of(&kernel, Kind::Nftables, config(RulesBy::Auto));
    before.serve_ranges(1, &[]);
    before.proxier.start(before.now);
    assert!(before.pass().is_done());
    let mut node = new(&kernel, RulesBy::Nftables);
    node.serve_ranges(1, &[]);
    node.proxier.start(node.now);
    node.settles();
    assert_eq!(chain(&node.table(V4), "keep-destination"), [""; 0]);
    assert!(elements(&node.table(V4), "cluster-ip").contains("10.96.0.1 . tcp . 80"));
    assert!(cleanup(&config(RulesBy::Nftables), Some(Kind::Ipvs), &mut node.kernel.ports()).is_done());
    let report = node.full();
    assert!(report.is_done() && report.drift.is_empty(), "{report:#?}");
    assert_eq!(chain(&node.table(V4), "keep-destination"), ["fib daddr type local dnat to ip daddr"]);
}

/// One entry that the kernel refuses keeps no other from being written, even if the kernel does not say which one it is.
#[test]
fn a_refused_entry_of_many_is_left_out() {
    for is_silent in [false, true] {
        let kernel = kernel();
        kernel.nf_tables().set_silent(is_silent);
        kernel.nf_tables().refuse_elements(Some((&[10, 96, 0, 2], Errno::EINVAL)));
        let mut node = serving(&kernel, RulesBy::Nftables);
        let report = node.pass();
        let failed: Vec<String> = report.applied.failures.iter().map(|of| of.step.to_string()).collect();
        assert!(!report.has_failed() && !failed.is_empty(), "{report:#?}");
        assert!(failed.iter().all(|step| step.contains("10.96.0.2")), "{failed:#?}");
        let entries = elements(&node.table(V4), "cluster-ip");
        assert!(entries.contains("10.96.0.1 . tcp . 80") && !entries.contains("10.96.0.2 . tcp . 80"), "{entries:?}");
        kernel.nf_tables().refuse_elements(None);
        node.full();
        assert!(elements(&node.table(V4), "cluster-ip").contains("10.96.0.2 . tcp . 80"));
    }
}

#[test]
fn a_table_of_somebody_else_is_not_touched() {
    let kernel = kernel();
    add_table(&kernel, V4);
    let theirs = kernel.state().tables[V4].clone();
    let mut node = serving(&kernel, RulesBy::Nftables);
    let report = node.pass();
    assert!(report.has_failed(), "{report:#?}");
    let said = report.applied.failures.iter().map(|failure| failure.error.to_string()).collect::<String>();
    assert!(said.contains("rename it there, or delete it with 'nft delete table ip proxier-ipvs'"), "{said}");
    assert_eq!(node.table(V4), theirs);
    assert!(!node.ipvs().contains("198.51.100.1:80") && node.ipvs().contains("10.96.0.1:80"));
    assert!(!node.table(V6).is_empty());
    cleanup(&config(RulesBy::Nftables), None, &mut node.kernel.ports());
    assert_eq!(node.table(V4), theirs);
}

/// `auto` on this kernel, and why.
fn chosen(kernel: &FakeKernel) -> (RulesBy, String) {
    let choice = choose(&config(RulesBy::Auto), &mut kernel.clone().ports(), || {});
    (choice.by, choice.reason.unwrap())
}

/// Commits a text as `iptables-restore --noflush` of this program takes it.
fn restore(kernel: &FakeKernel, program: &str, text: &str) {
    let output = kernel.with_host(|host| {
        let program = host.find(program).unwrap();
        host.run(&Invocation::new(&program, ["--noflush"], Duration::from_secs(1)).with_stdin(text.to_owned())).unwrap()
    });
    assert_eq!(output.code, Some(0), "{output:?}");
}

/// No program is asked on a node on which iptables has no tables.
#[test]
fn auto_is_a_table_on_a_fresh_node() {
    let kernel = kernel();
    for call in [Call::RulesHasRandomFully, Call::RulesDump, Call::RulesCheck, Call::SetsEntries] {
        kernel.fail(Fault::new(call, PortErrorKind::Permission).every());
    }
    let (by, why) = chosen(&kernel);
    assert_eq!(by, RulesBy::Nftables, "{why}");
    kernel.fail(Fault::new(Call::TablesCheck, PortErrorKind::Unavailable).every());
    let (by, why) = chosen(&kernel);
    assert!(by == RulesBy::Iptables && why.contains("nf_tables cannot guard virtual servers"), "{why}");
    // A configured back end is not probed.
    for by in [RulesBy::Nftables, RulesBy::Iptables] {
        assert_eq!(choose(&config(by), &mut kernel.clone().ports(), || panic!("asked")).by, by);
    }
}

#[test]
fn auto_is_a_table_where_one_family_takes_it() {
    let kernel = kernel();
    kernel.fail(Fault::new(Call::TablesCheck, PortErrorKind::Unavailable));
    assert_eq!(chosen(&kernel).0, RulesBy::Nftables);
}

/// Rules of iptables mode, and foreign rules, do not matter unless they drop.
#[test]
fn auto_is_iptables_where_a_filter_drops_by_default() {
    for (chain, program) in [
        ("FORWARD", "iptables-legacy-restore"),
        ("INPUT", "iptables-legacy-restore"),
        ("FORWARD", "ip6tables-legacy-restore"),
        ("FORWARD", "iptables-nft-restore"),
    ] {
        let kernel = kernel();
        restore(&kernel, program, "*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n*filter\n:OUTPUT DROP [0:0]\nCOMMIT\n");
        assert_eq!(chosen(&kernel).0, RulesBy::Nftables);
        restore(&kernel, program, &format!("*filter\n:{chain} DROP [0:0]\nCOMMIT\n"));
        let (by, why) = chosen(&kernel);
        assert!(by == RulesBy::Iptables && why.contains(chain), "{program}: {why}");
        // Also where a table serves already.
        serving(&kernel, RulesBy::Nftables).settles();
        assert_eq!(chosen(&kernel).0, RulesBy::Iptables);
    }
}

/// Chains that cannot be listed may be kube-proxy's; without programs they are of no use.
#[test]
fn auto_is_iptables_where_its_rules_cannot_be_listed() {
    for (kind, by) in [
        (PortErrorKind::Permission, RulesBy::Iptables),
        (PortErrorKind::Busy, RulesBy::Iptables),
        (PortErrorKind::Unavailable, RulesBy::Nftables),
    ] {
        let kernel = kernel();
        restore(&kernel, "iptables-legacy-restore", "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n");
        kernel.fail(Fault::new(Call::RulesDump, kind).every());
        assert_eq!(chosen(&kernel).0, by, "{kind:?}");
    }
}

#[test]
fn auto_keeps_what_serves() {
    let kernel = kernel();
    serving(&kernel, RulesBy::Iptables).settles();
    let (by, why) = chosen(&kernel);
    assert!(by == RulesBy::Iptables && why.contains("KUBE-SERVICES"), "{why}");
    // Rules are gone, sets are left.
    kernel.fail(Fault::new(Call::RulesDump, PortErrorKind::Unavailable).every());
    let (by, why) = chosen(&kernel);
    assert!(by == RulesBy::Iptables && why.contains("KUBE-CLUSTER-IP"), "{why}");
    kernel.fail(Fault::new(Call::RulesHasRandomFully, PortErrorKind::Unavailable).every());
    assert_eq!(chosen(&kernel).0, RulesBy::Nftables);
    kernel.clear_faults();
    // Both stand until the first pass has been cleaned up after.
    serving(&kernel, RulesBy::Nftables).settles();
    assert_eq!(chosen(&kernel), (RulesBy::Nftables, "the table of an earlier process exists".to_owned()));
}

#[test]
fn the_configuration_names_it() {
    let check = |rules: &str| {
        let (config, rejections) = checked(json!({"ipvs": {"rules": rules}}));
        (config.ipvs.rules, rejections.len())
    };
    assert_eq!(check("nftables"), (RulesBy::Nftables, 0));
    assert_eq!(check("iptables"), (RulesBy::Iptables, 0));
    assert_eq!((check("auto"), check("")), ((RulesBy::Auto, 0), (RulesBy::Auto, 0)));
    assert_eq!(check("nft"), (RulesBy::Auto, 1));
}

/// A node with a Service and another configuration.
fn configured(kernel: &FakeKernel, change: impl FnOnce(&mut Config)) -> Node {
    let mut config = config(RulesBy::Nftables);
    change(&mut config);
    let mut node = of(kernel, Kind::Ipvs, config);
    node.serve_ranges(1, &[]);
    node.started()
}

/// A name of 15 bytes, the longest that Linux has, cannot be the beginning of a longer one.
#[test]
fn pods_are_told_by_the_beginning_of_interface_names() {
    for (prefix, matched) in [("veth", "veth*"), ("a-long-name-15c", "a-long-name-15c")] {
        let kernel = kernel();
        let mut node = configured(&kernel, |config| {
            config.local_traffic = LocalTraffic::InterfaceNamePrefix(InterfaceName::new(prefix).unwrap());
            config.ipvs.mark_split = true;
        });
        node.settles();
        let table = node.table(V4);
        let outside = format!("iifname != \"{matched}\" ip daddr . meta l4proto . th dport @cluster-ip meta mark set");
        let services = chain(&table, "services");
        assert!(services.iter().any(|rule| rule.starts_with(&outside)), "{services:#?}");
        let inside = format!("iifname \"{matched}\" return");
        assert!(chain(&table, "from-outside").contains(&inside), "{table}");
    }
}

/// One check does for both families; if the kernel refuses it, each family is checked by itself.
#[test]
fn a_trial_of_both_families_is_one_check_unless_it_is_refused() {
    use proxier_core::modes::nftables;
    let facts = NodeFacts::new(&Config::default(), &NodeOf::new("node-a"), &HostAddresses::default());
    let fault = || Fault::new(Call::TablesCheck, PortErrorKind::Unavailable);
    let takes = |faults: &[Fault]| -> Vec<(Family, bool)> {
        let [by_ipvs, by_nftables] = [false, true].map(|nftables| {
            let mut kernel = kernel();
            for fault in faults {
                kernel.fail(fault.clone());
            }
            let (families, ports) = ([Family::V4, Family::V6], kernel.ports());
            let tried = if nftables {
                nftables::trials(families, &facts, ports.tables)
            } else {
                trials(families, &facts, ports.tables)
            };
            tried.into_iter().map(|(family, outcome)| (family, outcome.is_ok())).collect::<Vec<_>>()
        });
        assert_eq!(by_ipvs, by_nftables);
        by_ipvs
    };
    // A second check would fail, and a third.
    assert_eq!(takes(&[fault().after_calls(1), fault().after_calls(2)]), [(Family::V4, true), (Family::V6, true)]);
    assert_eq!(takes(&[fault()]), [(Family::V4, true), (Family::V6, true)]);
    assert_eq!(takes(&[fault(), fault().after_calls(1)]), [(Family::V4, false), (Family::V6, true)]);
    assert_eq!(takes(&[fault(), fault().after_calls(2)]), [(Family::V4, true), (Family::V6, false)]);
    assert_eq!(takes(&[fault().every()]), [(Family::V4, false), (Family::V6, false)]);
}

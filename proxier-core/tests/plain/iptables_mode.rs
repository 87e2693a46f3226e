//! iptables mode on a kernel in memory: changes, restarts, strangers, faults.

use std::collections::BTreeSet;
use std::time::Duration;

use iptables::fake::FakeHost;
use iptables::{Backend, ChainName, Edit, Family as Side, Iptables, TableName, Transaction};
use proxier_core::config::{Families, NodePortAddresses};
use proxier_core::engine::{Limits, Options};
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::modes::{self, iptables as mode};
use proxier_core::net::Family;
use proxier_core::plan::report::{Report, RuleCount};
use proxier_core::plan::step::{Action, Part};
use proxier_core::ports::PortErrorKind;
use proxier_core::service::{Names, NodeFacts};
use proxier_core::snapshot::{HostAddresses, Node as NodeOfCluster};
use serde_json::{Value, json};

use crate::mode_switch::restore;
use crate::node::{Node, kernel, options_of, prepared, steps};

/// A node on which `iptables` is this back end's.
fn with_backend(backend: Backend) -> Node {
    let kernel = prepared(FakeKernel::with_iptables(move || FakeHost::new().with_default(backend)));
    Node { backend, ..Node::on(kernel, options()) }
}

/// A Service with a node port.
fn node_port(ip: &str, port: u16) -> Value {
    json!({"clusterIP": ip, "type": "NodePort", "ports": [{"name": "p", "port": 80, "nodePort": port}]})
}

fn options() -> Options {
    options_of(modes::Kind::Iptables)
}

fn new() -> Node {
    Node::on(kernel(), options())
}

impl Node {
    /// Adds this many Services with two endpoints each.
    fn services(&mut self, count: u8) {
        self.serve_many(count, &["10.244.0.1", "10.244.0.2"]);
    }

    /// Adds 1,200 Services with two endpoints each.
    fn thousand_services(&mut self) {
        for number in 0..1_200_u16 {
            let [high, low] = number.to_be_bytes();
            self.service(&format!("s{number}"), json!({"clusterIP": format!("10.96.{high}.{low}")}));
            self.slice(&format!("s{number}"), &["10.244.0.1", "10.244.0.2"]);
        }
    }

    fn v4_rules(&self) -> String {
        self.rules(Side::Ipv4)
    }

    /// Tables written so far.
    fn writes(&self) -> u64 {
        self.kernel.writes().rules
    }

    /// Makes reading rules fail from now on.
    fn forbid_reading(&self) {
        self.kernel.fail(Fault::new(Call::RulesDump, PortErrorKind::Other).every());
    }

    /// Makes a foreign change of rules.
    fn others(&self, side: Side, change: &Transaction) {
        let backend = self.backend;
        self.kernel.with_host(|host| Iptables::open(host, side, backend).unwrap().restore(change)).unwrap();
    }

    #[track_caller]
    fn has(&self, line: &str) {
        assert!(self.v4_rules().contains(line), "{line} is missing in {}", self.v4_rules());
    }

    #[track_caller]
    fn has_not(&self, line: &str) {
        assert!(!self.v4_rules().contains(line), "{line} is in {}", self.v4_rules());
    }
}

fn chain(name: &str) -> ChainName {
    ChainName::new(name).unwrap()
}

/// Several threads make and compare this many Services: from nothing, over complete rules, and over incomplete ones.
#[test]
fn what_threads_make_in_parts_is_whole() {
    let mut node = new();
    node.thousand_services();
    node.settles();
    let whole = node.v4_rules();
    assert_eq!(whole.matches(":KUBE-SVC-").count(), 1_200);
    assert_eq!(whole.matches(":KUBE-SEP-").count(), 2_400);
    assert_eq!(whole.matches("-j DNAT").count(), 2_400);
    assert_eq!(node.full().writes(), 0);
    // One chain of each part goes, and one unwanted chain comes.
    let chains: Vec<&str> =
        whole.lines().filter_map(|line| line.strip_prefix(":KUBE-SVC-")?.split(' ').next()).collect();
    let mut change = Transaction::new();
    let nat = change.table(TableName::NAT);
    for place in [0, 599, 1_199] {
        nat.edit(Edit::Flush(chain(&format!("KUBE-SVC-{}", chains[place]))));
    }
    nat.chain(chain("KUBE-SVC-AAAAAAAAAAAAAAAA"));
    node.others(Side::Ipv4, &change);
    let report = node.full();
    assert_eq!(steps(&report)[&(Part::Frontend, Action::Change)], 3);
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&node.v4_rules()), sorted(&whole));
    // The next process finds everything.
    let mut next = node.next(options());
    next.thousand_services();
    assert_eq!(next.settles().writes(), 0);
}

/// The nft back end writes many new chains in several runs. Nothing leads to them until the last has succeeded.
#[test]
fn many_new_chains_are_connected_at_once() {
    let mut node = with_backend(Backend::NfTables);
    node.thousand_services();
    let refused = Fault::new(Call::RulesRestore, PortErrorKind::Busy).family(Family::V4).after_calls(1);
    node.kernel.fail(refused);
    assert!(!node.pass().is_done());
    let text = node.v4_rules();
    assert!(text.contains(":KUBE-SEP-") && !text.contains("KUBE-SERVICES"), "{text}");
    node.run(Duration::from_secs(30));
    let mut whole = with_backend(Backend::Legacy);
    whole.thousand_services();
    whole.settles();
    let lines = |node: &Node| node.v4_rules().lines().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(lines(&node), lines(&whole));
}

/// So it writes many changed chains: each has its old rules or its new ones, and what is gone goes last.
#[test]
fn many_changed_chains_lead_to_endpoints_at_any_time() {
    const COUNT: u16 = 260;
    let change = |node: &mut Node, last: &str| {
        let others = (1..10).map(|number| format!("10.244.1.{number}"));
        let endpoints: Vec<String> = others.chain([last.to_owned()]).collect();
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        (0..COUNT).for_each(|number| node.slice(&format!("s{number}"), &endpoints));
    };
    let (old, new) = ("10.244.0.2", "10.244.0.3");
    let mut node = with_backend(Backend::NfTables);
    for number in 0..COUNT {
        let [high, low] = number.to_be_bytes();
        node.service(&format!("s{number}"), json!({"clusterIP": format!("10.96.{high}.{low}")}));
    }
    change(&mut node, old);
    node.settles();
    let whole = node.v4_rules();
    change(&mut node, new);
    node.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Busy).after_calls(1));
    assert!(!node.pass().is_done());
    let text = node.v4_rules();
    let count = |text: &str, endpoint: &str| text.matches(&format!("--to-destination {endpoint}:")).count();
    assert_eq!(count(&text, old), usize::from(COUNT));
    assert!((1..usize::from(COUNT)).contains(&count(&text, new)), "{}", count(&text, new));
    node.run(Duration::from_secs(30));
    let text = node.v4_rules();
    assert_eq!((count(&text, old), count(&text, new)), (0, usize::from(COUNT)));
    change(&mut node, old);
    let before = node.writes();
    assert!(node.pass().is_done());
    assert!(node.writes() - before > 1);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(lines(&node.v4_rules()), lines(&whole));
}

/// So it deletes them, once nothing leads there.
#[test]
fn many_chains_are_deleted_after_what_leads_to_them() {
    let mut node = with_backend(Backend::NfTables);
    node.service("stays", json!({"clusterIP": "10.97.0.1"}));
    node.slice("stays", &["10.244.0.1"]);
    node.settles();
    let without = node.v4_rules();
    node.thousand_services();
    node.settles();
    (0..1_200).for_each(|number| node.no_service(&format!("s{number}")));
    node.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Busy).after_calls(3));
    assert!(!node.pass().is_done());
    let text = node.v4_rules();
    let led_to = |text: &str| text.matches("-A KUBE-SERVICES -d 10.96.").count();
    let chains = |text: &str| text.matches(":KUBE-").count();
    assert_eq!(led_to(&text), 0);
    assert!(chains(&text) > 3_600, "{}", chains(&text));
    node.run(Duration::from_secs(30));
    assert_eq!(node.v4_rules(), without);
}

#[test]
fn a_change_writes_its_own_chains_and_reads_nothing() {
    let mut node = new();
    node.services(50);
    node.settles();
    let before = node.writes();
    node.forbid_reading();
    node.slice("s7", &["10.244.0.1", "10.244.0.3"]);
    let report = node.settles();
    assert_eq!(steps(&report), [((Part::Rules, Action::Change), 1), ((Part::Frontend, Action::Change), 1)].into());
    assert_eq!(node.writes(), before + 1, "nat of IPv4");
    node.has("--to-destination 10.244.0.3:8080");
    // A Service without endpoints is refused, in the other table.
    node.slice("s7", &[]);
    node.settles();
    assert_eq!(node.writes(), before + 3);
    node.has("demo/s7:p has no endpoints");
    node.has_not("demo/s7:p cluster IP");
    node.no_service("s7");
    let report = node.settles();
    assert_eq!(steps(&report)[&(Part::Frontend, Action::Delete)], 1);
    node.has_not("demo/s7:p");
    node.kernel.clear_faults();
    assert_eq!(node.full().writes(), 0);
}

/// A program that deletes chains of one family deletes those of the other too.
#[test]
fn a_change_that_finds_chains_deleted_has_both_families_repaired() {
    let mut node = new();
    node.services(2);
    node.settles();
    let whole = node.rules(Side::Ipv6);
    let mut gone = Transaction::new();
    for table in [TableName::FILTER, TableName::NAT] {
        gone.table(table).delete_chain(chain("KUBE-PROXY-CANARY"));
    }
    node.others(Side::Ipv4, &gone);
    node.others(Side::Ipv6, &gone);
    node.slice("s1", &["10.244.0.9"]);
    assert!(node.pass().has_failed());
    let report = node.pass();
    assert!(report.is_done(), "{report:#?}");
    assert_eq!(node.rules(Side::Ipv6), whole);
    node.has("--to-destination 10.244.0.9:8080");
}

#[test]
fn while_the_lock_is_held_nothing_else_waits() {
    let mut node = with_backend(Backend::Legacy);
    node.services(2);
    node.settles();
    node.kernel.with_host(|host| host.hold_lock(true));
    node.slice("s1", &["10.244.0.8"]);
    let report = node.pass();
    let failures: Vec<_> = report.applied.failures.iter().map(|failure| failure.error.kind()).collect();
    assert_eq!(failures, [PortErrorKind::Busy], "{report:#?}");
    assert!(report.has_failed());
    // Changes before the end of the pause do not wait for the lock again.
    let (before, then) = (node.writes(), node.now);
    node.slice("s2", &["10.244.0.9"]);
    node.proxier.host_changed(node.now);
    let report = node.pass();
    assert!(report.rules_put_off.contains(&Family::V4), "{report:#?}");
    assert_eq!((node.writes(), node.now), (before, then));
    node.kernel.with_host(|host| host.hold_lock(false));
    node.run(Duration::from_secs(10));
    node.has("--to-destination 10.244.0.8:8080");
    node.has("--to-destination 10.244.0.9:8080");
}

fn sticky(ip: &str) -> Value {
    json!({"clusterIP": ip, "sessionAffinity": "ClientIP"})
}

/// A kernel without `xt_recent` refuses Services with session affinity only.
#[test]
fn what_the_kernel_refuses_of_one_service_does_not_stop_the_others() {
    for backend in [Backend::NfTables, Backend::Legacy] {
        let mut node = with_backend(backend);
        node.kernel.with_host(|host| host.set_match("recent", false));
        node.services(40);
        for (name, ip) in [("bad-1", "10.96.1.1"), ("bad-2", "10.96.1.2")] {
            node.service(name, sticky(ip));
            node.slice(name, &["10.244.0.1"]);
        }
        let report = node.pass();
        assert!(!report.has_failed() && !report.is_done(), "{report:#?}");
        let refused: Vec<String> = report.refused_by_kernel().filter_map(|of| of.step.service.clone()).collect();
        assert_eq!(refused, ["demo/bad-1:p", "demo/bad-2:p"]);
        assert_eq!(node.v4_rules().matches("cluster IP\" -m tcp").count(), 40);
        node.has_not("demo/bad");
        // Changes of other Services cost the same as ever.
        node.forbid_reading();
        let before = node.writes();
        node.slice("s9", &["10.244.0.9"]);
        node.settles();
        assert_eq!(node.writes(), before + 1);
        node.kernel.clear_faults();
        // A Service that no longer asks for affinity is served at once.
        node.service("bad-1", json!({"clusterIP": "10.96.1.1"}));
        let then = node.now;
        node.settles();
        assert_eq!(node.now, then);
        node.has("demo/bad-1:p cluster IP");
        // The other Service is served when the kernel takes its rules.
        assert!(!node.full().is_done());
        node.kernel.with_host(|host| host.set_match("recent", true));
        let report = node.full();
        assert!(report.is_done(), "{report:#?}");
        node.has("demo/bad-2:p cluster IP");
        assert_eq!(node.full().writes(), 0);
    }
}

#[test]
fn a_service_whose_change_is_refused_is_served_as_before() {
    let mut node = new();
    node.services(3);
    let mut spec = node_port("10.96.0.2", 30_080);
    node.service("s2", spec.clone());
    node.settles();
    let before = node.v4_rules();
    let of_s2 =
        |text: &str| text.lines().filter(|line| line.contains("demo/s2:p")).map(str::to_owned).collect::<Vec<_>>();
    node.kernel.with_host(|host| host.set_match("recent", false));
    spec["sessionAffinity"] = json!("ClientIP");
    node.service("s2", spec);
    node.slice("s1", &["10.244.0.7"]);
    // The known rules are no basis for a change any more; the next pass reads them, and finds the refused Services.
    assert!(node.pass().has_failed());
    let report = node.pass();
    assert!(!report.has_failed(), "{report:#?}");
    let mut refused: Vec<String> = report.refused_by_kernel().filter_map(|of| of.step.service.clone()).collect();
    refused.dedup();
    assert_eq!(refused, ["demo/s2:p"]);
    node.has("--to-destination 10.244.0.7:8080");
    assert_eq!(of_s2(&node.v4_rules()), of_s2(&before));
    // A Service that is served goes as usual.
    node.no_service("s2");
    node.settles();
    node.has_not("demo/s2");
}

/// The API server gives a node port to one Service, but a watch may show two that want the same for a moment.
#[test]
fn who_is_refused_does_not_keep_a_node_port_from_another() {
    let mut node = new();
    node.kernel.with_host(|host| host.set_match("recent", false));
    for (name, affinity, ip) in
        [("bad-1", "ClientIP", "10.96.1.1"), ("bad-2", "ClientIP", "10.96.1.2"), ("good", "None", "10.96.1.3")]
    {
        let mut spec = node_port(ip, 30_080);
        spec["sessionAffinity"] = json!(affinity);
        node.service(name, spec);
        node.slice(name, &["10.244.0.1"]);
    }
    let node_ports = |node: &Node| {
        let text = node.v4_rules();
        let lines = text.lines().filter(|line| line.contains("-A KUBE-NODEPORTS") && line.contains("--dport 30080"));
        lines
            .map(|line| line.split("--comment ").nth(1).unwrap().split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let report = node.full();
        assert!(!report.has_failed() && !report.is_done(), "{report:#?}");
        assert_eq!(node_ports(&node), ["demo/good:p"]);
        node.has_not("demo/bad");
        node.counts_are_true(&report);
    }
    node.kernel.with_host(|host| host.set_match("recent", true));
    let report = node.full();
    assert!(report.is_done(), "{report:#?}");
    assert_eq!(node_ports(&node), ["demo/bad-1:p", "demo/bad-2:p", "demo/good:p"]);
    assert_eq!(node.full().writes(), 0);
}

/// The rest is written in several passes if very many Services are refused.
#[test]
fn many_refused_services_are_found_in_several_passes() {
    let mut node = new();
    node.kernel.with_host(|host| host.set_match("recent", false));
    for number in 1..=30 {
        node.service(&format!("bad{number}"), sticky(&format!("10.96.1.{number}")));
        node.slice(&format!("bad{number}"), &["10.244.0.1"]);
    }
    node.services(30);
    let mut passes = 0;
    while node.v4_rules().matches("cluster IP\" -m tcp").count() < 30 {
        node.pass();
        passes += 1;
        assert!(passes < 20, "{}", node.v4_rules());
    }
    node.has_not("demo/bad");
}

#[test]
fn a_family_that_fails_does_not_stop_the_other() {
    for call in [Call::RulesRestore, Call::RulesDump] {
        let mut node = new();
        node.services(1);
        node.kernel.fail(Fault::new(call, PortErrorKind::Permission).family(Family::V6).every());
        let report = node.pass();
        assert!(report.has_failed(), "{report:#?}");
        node.has("demo/s1:p cluster IP");
        assert_eq!(node.rules(Side::Ipv6), "");
        node.kernel.clear_faults();
        node.run(Duration::from_secs(10));
        assert!(node.rules(Side::Ipv6).contains("KUBE-SERVICES"));
    }
}

/// Somebody holds the lock of iptables, from the start or later; a change waits for it.
#[test]
fn a_node_is_well_again_as_soon_as_rules_that_waited_are_written() {
    for held_from_start in [false, true] {
        let mut node = new();
        node.services(2);
        if !held_from_start {
            node.settles();
        }
        for call in [Call::RulesRestore, Call::RulesDump] {
            node.kernel.fail(Fault::new(call, PortErrorKind::Busy).every());
        }
        node.run(Duration::from_secs(40));
        node.service("dns", json!({"clusterIP": "10.96.1.2"}));
        node.run(Duration::from_secs(40));
        assert!(node.proxier.pending_since().is_some());
        node.kernel.clear_faults();
        // The pause of the rules, at most.
        let free = node.now;
        while node.proxier.pending_since().is_some() {
            node.pass();
        }
        node.has("demo/dns:p has no endpoints");
        let written = node.kernel.writes().total();
        node.run(Duration::from_secs(1));
        assert_eq!(node.kernel.writes().total(), written, "nothing was left");
        let took = node.now.saturating_sub(free);
        assert!(took <= Duration::from_secs(9), "{held_from_start} {took:?}");
    }
}

/// What kube-proxy's userspace mode left, which it had up to 1.25, as `iptables-save` prints it.
const OF_USERSPACE_MODE: &str = include_str!("../rule_cases/dumps/userspace-mode.rules");

#[test]
fn chains_of_kube_proxys_userspace_mode_go_in_every_mode() {
    let after = |text: &str| {
        let node = new();
        restore(&node.kernel, Side::Ipv4, node.backend, &text.parse().unwrap());
        node
    };
    let lines = |node: &Node| {
        node.v4_rules().matches("KUBE-PORTALS-").count() + node.v4_rules().matches("KUBE-NODEPORT-").count()
    };
    let config = options().config;
    for kept in modes::Kind::ALL.map(Some).into_iter().chain([None]) {
        let mut node = after(OF_USERSPACE_MODE);
        assert_eq!(lines(&node), 5 + 5 + 4, "a declaration, a jump and a rule each");
        node.services(1);
        assert!(node.pass().is_done());
        let cleaned = modes::cleanup::cleanup(&config, kept, &mut node.kernel.ports());
        assert!(cleaned.is_done() && cleaned.removed() > 0, "{kept:?}: {cleaned:?}");
        assert_eq!(lines(&node), 0, "{kept:?}: {}", node.v4_rules());
        if kept == Some(modes::Kind::Iptables) {
            node.has("-j KUBE-SVC-");
        }
    }
    // A foreign rule uses one of the chains.
    let theirs = "-A OUTPUT -p tcp -m tcp --dport 9 -j KUBE-PORTALS-HOST\n-A KUBE-NODEPORT-HOST";
    let mut node = after(&OF_USERSPACE_MODE.replace("-A KUBE-NODEPORT-HOST", theirs));
    assert!(modes::cleanup::cleanup(&config, None, &mut node.kernel.ports()).is_done());
    assert_eq!(lines(&node), 2, "{}", node.v4_rules());
    node.has(":KUBE-PORTALS-HOST ");
    node.has("--dport 9 -j KUBE-PORTALS-HOST");
}

#[test]
fn an_empty_first_list_takes_nothing_away_where_one_family_cannot_be_read() {
    for (unread, served) in [(Family::V4, "fd00:1::"), (Family::V6, "10.96.0.")] {
        let mut node = new();
        for number in 1..=20 {
            node.service(&format!("s{number}"), json!({"clusterIP": format!("{served}{number}")}));
        }
        node.settles();
        let rules = |node: &Node| [node.rules(Side::Ipv4), node.rules(Side::Ipv6)];
        let before = rules(&node);
        let mut next = node.next(options());
        next.kernel.fail(Fault::new(Call::RulesDump, PortErrorKind::Other).family(unread).every());
        let report = next.pass();
        assert!(report.has_failed() && report.stopped.is_some(), "{report:#?}");
        assert_eq!(rules(&next), before, "{unread:?}");
    }
}

fn localnet(node: &Node) -> String {
    node.kernel.state().sysctls["net/ipv4/conf/all/route_localnet"].clone()
}

/// The kubelet's rule keeps neighbours from programs that listen on 127.0.0.1 only.
#[test]
fn loopback_addresses_are_routed_once_the_rules_guard_them() {
    let mut node = new();
    node.services(1);
    node.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Permission).family(Family::V4));
    let report = node.pass();
    assert!(report.has_failed(), "{report:#?}");
    assert_eq!(localnet(&node), "0");
    node.run(Duration::from_secs(30));
    node.has("block incoming localnet connections");
    assert_eq!(localnet(&node), "1");
    // The setting is unchanged unless requested.
    let mut off = options();
    off.iptables.localhost_node_ports = false;
    let mut primary = options();
    primary.config.node_port_addresses = NodePortAddresses::Primary;
    let mut v6 = options();
    v6.config.families = Families::V6;
    for options in [off, primary, v6] {
        let mut node = Node::on(kernel(), options);
        node.settles();
        assert_eq!(localnet(&node), "0");
        node.has_not("block incoming localnet connections");
    }
}

#[test]
fn rules_are_counted_as_they_come_and_go() {
    let mut node = new();
    let of_nat = |report: &Report| {
        let of = |count: &&RuleCount| (count.family, count.table) == (Family::V4, "nat");
        report.rule_counts.iter().find(of).map(|count| (count.total, count.written)).unwrap()
    };
    node.services(3);
    let (all, written) = of_nat(&node.settles());
    assert_eq!(all, written, "everything was written");
    // A line, and a chain of two; each endpoint has a chain of two and a line that leads there.
    node.service("web", json!({"clusterIP": "10.96.1.1"}));
    node.slice("web", &["10.244.0.1", "10.244.0.2"]);
    assert_eq!(of_nat(&node.settles()), (all + 1 + 2 * 3, 1 + 2 * 3));
    node.slice("web", &["10.244.0.1"]);
    let (total, written) = of_nat(&node.settles());
    assert_eq!(total, all + 1 + 3);
    assert!((1..=4).contains(&written), "{written}");
    node.no_service("web");
    assert_eq!(of_nat(&node.settles()), (all, 0));
    let report = node.full();
    assert_eq!(of_nat(&report), (all, 0));
    node.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::NotFound));
    node.slice("s1", &["10.244.0.9"]);
    assert!(node.pass().has_failed());
    assert_eq!((node.proxier.totals().restore_failures.v4, node.proxier.totals().partial_restore_failures.v4), (1, 1));
    node.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Permission));
    assert!(node.full().has_failed());
    assert_eq!((node.proxier.totals().restore_failures.v4, node.proxier.totals().partial_restore_failures.v4), (2, 1));
    node.now += Duration::from_secs(10);
    node.settles();
}

/// A second write would come a period later.
#[test]
fn a_new_service_is_written_once_its_endpoints_are_there() {
    let mut options = options();
    options.limits = Limits { min_interval: Duration::from_secs(1), max_interval: Duration::from_secs(30) };
    let mut node = Node::on(kernel(), options);
    node.services(1);
    node.settles();
    node.now += Duration::from_secs(5);
    let writes = node.writes();
    node.service("new", json!({"clusterIP": "10.96.0.9"}));
    node.now += Duration::from_millis(20);
    assert!(node.proxier.next_wake().unwrap() > node.now);
    node.slice("new", &["10.244.0.9"]);
    assert!(node.proxier.next_wake().unwrap() <= node.now);
    node.pass();
    assert!(node.v4_rules().contains("10.244.0.9:8080"), "{}", node.v4_rules());
    assert_eq!(node.writes(), writes + 1);
    // One without endpoints refuses its clients after that wait.
    node.now += Duration::from_secs(5);
    node.service("none", json!({"clusterIP": "10.96.0.10"}));
    assert_eq!(node.proxier.next_wake(), Some(node.now + Duration::from_millis(100)));
    node.now += Duration::from_millis(100);
    node.pass();
    assert!(node.v4_rules().contains("demo/none:p has no endpoints"), "{}", node.v4_rules());
}

/// The printed plan is the text that the program gets.
#[test]
fn a_plan_is_the_text_for_the_program() {
    let mut node = new();
    node.services(1);
    let (plan, report) = node.proxier.preview(node.now, &mut node.kernel.ports());
    assert!(report.unread.is_empty() && !plan.is_empty());
    let names = Names::new(node.proxier.store(), node.proxier.desired());
    let text: Vec<String> = plan.steps(&names).map(|step| step.to_string()).collect();
    let text = text.join("\n");
    assert!(text.contains("+ frontend TCP 10.96.0.1:80 2 endpoints  (demo/s1:p)"), "{text}");
    assert!(text.contains("\n    -A KUBE-SERVICES -m comment --comment \"demo/s1:p cluster IP\""), "{text}");
    assert_eq!(node.writes(), 0);
    node.settles();
    let preview = |node: &mut Node| node.proxier.preview(node.now, &mut node.kernel.ports()).0.is_empty();
    assert!(preview(&mut node));
    node.slice("s1", &["10.244.0.9"]);
    assert!(!preview(&mut node), "rules alone");
    node.settles();
    node.kernel.set_sysctl("net/ipv4/conf/all/route_localnet", Some("0"));
    assert!(!preview(&mut node), "a setting alone");
}

#[test]
fn a_kernel_is_asked_what_it_can_do() {
    let node = new();
    let facts = NodeFacts::new(&options().config, &NodeOfCluster::new("node-a"), &HostAddresses::default());
    let ask = |lacks: Option<&str>| {
        let mut kernel = node.kernel.clone();
        kernel.with_host(|host| lacks.into_iter().for_each(|name| host.set_match(name, false)));
        let tried = mode::trial(Family::V4, &facts, kernel.ports().rules);
        kernel.with_host(|host| lacks.into_iter().for_each(|name| host.set_match(name, true)));
        tried.into_iter().filter(|tried| tried.outcome.is_err()).map(|tried| tried.what).collect::<Vec<_>>()
    };
    assert_eq!(ask(None), [""; 0]);
    assert_eq!(ask(Some("recent")), ["session affinity"]);
    assert_eq!(ask(Some("sctp")), ["SCTP"]);
    assert_eq!(ask(Some("statistic")), ["every Service", "session affinity", "SCTP"]);
    assert_eq!(node.v4_rules(), "", "nothing is written");
}

const INVALID: &str = "-m conntrack --ctstate INVALID -m nfacct --nfacct-name ct_state_invalid_dropped_pkts -j DROP";

/// A kernel that counts packets for rules, with a Service that has a node port.
fn with_counters(options: Options) -> Node {
    let kernel = kernel();
    kernel.set_counters();
    let mut node = Node::on(kernel, options);
    counted(&mut node);
    node
}

fn counted(node: &mut Node) {
    node.service("web", node_port("10.96.0.10", 30_080));
    node.slice("web", &["10.244.0.5"]);
}

/// Whether connections outside of their window are valid, so that no rule drops them.
fn liberal(is_liberal: bool) -> Options {
    let mut options = options();
    options.host.tcp_be_liberal = is_liberal;
    options
}

/// Rules name kube-proxy's counters if the kernel counts packets for rules, and do without if it refuses.
#[test]
fn packets_are_counted_where_the_kernel_can() {
    let mut node = with_counters(options());
    let preview = node.proxier.preview(node.now, &mut node.kernel.ports()).0;
    assert!(!preview.is_empty() && node.kernel.counters().unwrap().is_empty(), "a preview makes nothing");
    node.settles();
    assert_eq!(node.kernel.counters().unwrap().len(), 2);
    node.has(INVALID);
    node.has("-d 127.0.0.0/8 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j KUBE-EXT-");
    // The line that counts comes first, even if it is added later.
    node.service("other", node_port("10.96.0.11", 30_081));
    node.slice("other", &["10.244.0.6"]);
    node.settles();
    let order = |node: &Node| -> Vec<bool> {
        let rules = node.rules(Side::Ipv4);
        let lines = rules.lines().filter(|line| line.contains("-A KUBE-NODEPORTS ") && line.contains("--dport 30081"));
        lines.map(|line| line.contains("nfacct")).collect()
    };
    assert_eq!(order(&node), [true, false]);
    node.slice("other", &[]);
    node.settles();
    assert_eq!(order(&node), [true; 0]);
    node.slice("other", &["10.244.0.6"]);
    node.settles();
    assert_eq!(order(&node), [true, false]);
    node.no_service("other");
    node.settles();
    assert_eq!(order(&node), [true; 0]);
    // A second process takes the rules over without a write.
    let mut next = node.next(options());
    counted(&mut next);
    assert_eq!(next.full().writes(), 0);
    // Nor does anything change while the counters cannot be listed.
    node.kernel.fail(Fault::new(Call::RulesCounters, PortErrorKind::Busy));
    assert_eq!(node.full().writes(), 0);
    node.has(INVALID);
    let cleaned = modes::cleanup::cleanup(&options().config, None, &mut next.kernel.ports());
    assert!(cleaned.is_done() && node.kernel.counters().unwrap().is_empty(), "{cleaned:#?}");

    // A later refusal does not disable it.
    let mut node = with_counters(options());
    node.settles();
    node.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Unavailable));
    node.slice("web", &["10.244.0.6"]);
    node.pass();
    node.run(Duration::from_secs(30));
    node.has(INVALID);
}

/// Somebody flushes rules and deletes counters: both come back in the pass that notices it, also where only changes were to be written.
#[test]
fn deleted_counters_come_back_with_the_rules() {
    for is_full in [true, false] {
        let mut node = with_counters(options());
        node.settles();
        for side in [Side::Ipv4, Side::Ipv6] {
            let backend = node.backend;
            node.kernel.with_host(|host| host.flush(side, backend));
        }
        assert_eq!(node.kernel.ports().rules.delete_counters(&mode::COUNTERS), Ok(2));
        if !is_full {
            node.slice("web", &["10.244.0.6"]);
            assert!(node.pass().has_failed());
            assert_eq!(node.proxier.next_wake(), Some(node.now), "at once");
        }
        let report = if is_full { node.full() } else { node.pass() };
        assert!(report.is_done(), "{report:#?}");
        node.has(INVALID);
        node.has("--nfacct-name localhost_nps_accepted_pkts");
    }
}

/// Programs or a kernel without match `nfacct`: everything is served in the first pass, by rules that count nothing, and that is told once.
#[test]
fn rules_without_counters_serve_where_the_match_is_missing() {
    for is_liberal in [false, true] {
        let mut node = with_counters(liberal(is_liberal));
        node.kernel.with_host(|host| host.set_match("nfacct", false));
        let report = node.settles();
        let [lack] = &report.applied.lacks[..] else { panic!("{report:#?}") };
        assert!(lack.to_string().contains("without match nfacct"), "{lack}");
        node.has("--dport 30080 -j KUBE-EXT-");
        node.has_not("nfacct");
        assert_eq!(node.v4_rules().contains("--ctstate INVALID -j DROP"), !is_liberal);
        assert!(node.kernel.counters().unwrap().is_empty(), "none are made");
        let report = node.full();
        assert_eq!((report.writes(), report.applied.lacks.len()), (0, 0), "{report:#?}");
    }
    // Rules that name counters are rewritten, and the counters go with them.
    let mut node = with_counters(options());
    node.settles();
    node.kernel.with_host(|host| host.set_match("nfacct", false));
    let mut next = node.next(options());
    counted(&mut next);
    next.settles();
    next.has("-m conntrack --ctstate INVALID -j DROP");
    next.has_not("nfacct");
    assert!(next.kernel.counters().unwrap().is_empty());
    // What is missing may come and go with a program: a check that fails for any rule says nothing about this one.
    let mut node = with_counters(options());
    node.kernel.fail(Fault::new(Call::RulesCheck, PortErrorKind::Unavailable).every());
    node.settles();
    node.has(INVALID);
}

/// A kernel that refuses the match only when rules are written: the next pass follows at once and does without.
#[test]
fn rules_without_counters_serve_where_the_kernel_refuses_the_others() {
    for is_liberal in [false, true] {
        let mut node = with_counters(liberal(is_liberal));
        node.kernel.with_host(|host| host.set_match("nfacct", false));
        node.kernel.fail(Fault::new(Call::RulesCheck, PortErrorKind::Busy));
        let first = node.pass();
        assert!(!first.is_done(), "{first:#?}");
        assert_eq!((first.applied.lacks.len(), node.proxier.next_wake()), (1, Some(node.now)), "{first:#?}");
        let second = node.settles();
        assert_eq!(second.applied.lacks, []);
        node.has("--dport 30080 -j KUBE-EXT-");
        node.has_not("nfacct");
        assert!(node.kernel.counters().unwrap().is_empty(), "they have gone");
        assert_eq!(node.full().writes(), 0);
    }
    // One family suffices to show that the match is there: the other is refused for a reason of its own.
    let mut node = with_counters(options());
    node.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Unavailable).family(Family::V6).every());
    node.pass();
    node.kernel.clear_faults();
    node.run(Duration::from_secs(30));
    node.has(INVALID);
}

//! What holds in every mode.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use iptables::{Backend, ChainName, Edit, Iptables, Rule, TableName};
use nftables::{BaseChain, Chain, ChainType, CtState, Hook, Policy, Priority, TableKey};
use proxier_core::config::{MayAskFor, RulesBy};
use proxier_core::fake::{Call, Fault};
use proxier_core::modes::Kind;
use proxier_core::modes::forward::{DroppingForward, dropping_forward};
use proxier_core::net::{EndpointKey, Family};
use proxier_core::objects::NodeObject;
use proxier_core::plan::report::Report;
use proxier_core::ports::PortErrorKind;
use proxier_core::service::Packet;
use proxier_core::snapshot::{Balancing, FrontendSpec, ObjectKey};
use serde_json::{Value, json};

use crate::node::{Node, held, kernel, options_of, service, slice};

/// A Service and an agent's Frontend with their endpoints, and the cluster's Nodes; with policy or without.
fn serving(mode: Kind, is_asked: bool, annotations: &Value) -> Node {
    let mut options = options_of(mode);
    options.config.ipvs.may_ask_for = MayAskFor::all();
    let mut node = Node::on(kernel(), options);
    let annotations = if is_asked { annotations.clone() } else { json!({}) };
    let web = json!({
        "type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000,
        "externalIPs": ["203.0.113.7"], "ports": [{"name": "p", "port": 80, "nodePort": 30080}, {"name": "u", "port": 53, "protocol": "UDP"}],
        "annotations": annotations,
    });
    node.proxier.upsert_service(&service("web", web), node.now);
    let mut endpoints = slice("web", &["10.244.0.1@node-a", "10.244.0.2@node-b", "10.244.0.3@node-b"]);
    let agents = EndpointKey::new([10, 244, 0, 9].into(), 80);
    let mut spec = FrontendSpec::new("TCP 10.96.0.9:80".parse().unwrap(), [agents]);
    if is_asked {
        endpoints.metadata.annotations.insert("proxier/weights".into(), "10.244.0.1=0, 10.244.0.2=5".into());
        let mut balancing = Balancing::default();
        balancing.persistence_secs = Some(60);
        (spec.balancing, spec.weights) = (Some(Arc::new(balancing)), vec![(agents, 0)]);
    }
    node.proxier.upsert_slice(&endpoints, node.now);
    node.proxier.upsert_frontends(&ObjectKey::new("agent", "web"), [spec], node.now);
    let labels = if is_asked { json!({"proxier/weight": "7"}) } else { json!({}) };
    let other = json!({"metadata": {"name": "node-b", "labels": labels}});
    node.proxier.upsert_cluster_node(&serde_json::from_value::<NodeObject>(other).unwrap(), node.now);
    node.settles();
    node
}

/// What the kernel holds, what becomes of packets, and what load balancers are told.
fn effects(node: &Node) -> String {
    let mut said = format!("{:#?}\n{:#?}\n", node.kernel.state(), node.kernel.listeners());
    for to in ["TCP 10.96.0.1:80", "UDP 10.96.0.1:53", "TCP 203.0.113.7:80", "TCP 192.0.2.10:30080", "TCP 10.96.0.9:80"]
    {
        for source in ["198.51.100.7", "10.244.0.1"] {
            let packet = Packet::new(source.parse().unwrap(), to.parse().unwrap());
            writeln!(said, "{source} {to}: {:#?}", node.traced(&packet)).unwrap();
        }
    }
    let checks: Vec<_> = node.proxier.desired().health_checks().collect();
    write!(said, "{checks:?}").unwrap();
    said
}

/// iptables and userspace mode do what kube-proxy's do: policy changes nothing there, and each object that asks for any is told once.
#[test]
fn only_ipvs_and_nftables_mode_follow_policy() {
    let all = json!({
        "proxier/scheduler": "mh", "proxier/scheduler-flags": "mh-port", "proxier/persistence-seconds": "600", "proxier/zone-weights": "*=0",
        "proxier/max-connections": "2", "proxier/drain-seconds": "1", "kube-router.io/service.dsr": "tunnel",
    });
    for mode in Kind::ALL {
        let (asked, plain) = (serving(mode, true, &all), serving(mode, false, &all));
        assert_eq!(plain.rejections(), [""; 0], "{mode}");
        let follows = matches!(mode, Kind::Ipvs | Kind::Nftables);
        assert_eq!(effects(&asked) != effects(&plain), follows, "{mode}");
        let why = "ignored in this mode; ipvs and nftables mode follow it";
        let ignored: Vec<String> = asked.rejections().into_iter().filter(|said| said.contains(why)).collect();
        if follows {
            assert_eq!(ignored, [""; 0], "{mode}");
            continue;
        }
        let names = "proxier/scheduler, proxier/scheduler-flags, proxier/persistence-seconds, proxier/zone-weights, \
                     kube-router.io/service.dsr, proxier/max-connections, proxier/drain-seconds";
        let expected = [
            format!("Service demo/web: metadata.annotations {names}: {why}"),
            format!(
                "EndpointSlice demo/web-1: metadata.annotations[proxier/weights] 10.244.0.1=0, 10.244.0.2=5: {why}"
            ),
            format!("Frontends agent/web: [0] balancing, weights: {why}"),
        ];
        assert_eq!(asked.rejections(), expected, "{mode}");
    }
}

#[test]
fn a_misspelt_annotation_is_named_in_every_mode() {
    for mode in Kind::ALL {
        let asked = json!({"proxier/schedular": "rr"});
        let (asked, plain) = (serving(mode, true, &asked), serving(mode, true, &json!({})));
        assert_eq!(effects(&asked), effects(&plain), "{mode}");
        let told: Vec<String> =
            asked.rejections().into_iter().filter(|said| said.contains("Service demo/web")).collect();
        let expected =
            "Service demo/web: metadata.annotations[proxier/schedular] rr: no annotation of this name is read; ignored";
        assert_eq!(told, [expected], "{mode}");
    }
}

#[test]
fn passes_say_whether_health_checks_change() {
    let checked = |port: u16| {
        json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalTrafficPolicy": "Local",
        "healthCheckNodePort": port})
    };
    for mode in Kind::ALL {
        let mut node = Node::on(kernel(), options_of(mode));
        node.settles();
        node.service("web", checked(32000));
        assert!(node.settles().health_checks_changed, "{mode}");
        node.slice("web", &["10.244.0.1", "10.244.0.2@node-a"]);
        assert!(node.settles().health_checks_changed, "{mode}");
        node.slice("web", &["10.244.0.3", "10.244.0.2@node-a"]);
        assert!(!node.settles().health_checks_changed, "{mode}: as many endpoints here as before");
        node.service("web", checked(32002));
        assert!(node.settles().health_checks_changed, "{mode}");
        // Two changes in one pass.
        node.no_service("web");
        node.service("web2", checked(32001));
        assert!(node.settles().health_checks_changed, "{mode}");
    }
}

/// The kernel's setting decides, no matter who made it, and a configured value is set again. Where connection tracking takes every packet as valid, no
/// rule drops those that it would otherwise not.
#[test]
fn invalid_packets_are_dropped_as_the_kernels_setting_says() {
    const LIBERAL: &str = "net/netfilter/nf_conntrack_tcp_be_liberal";
    for (mode, is_liberal) in [Kind::Nftables, Kind::Iptables].into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let mut options = options_of(mode);
        options.host.tcp_be_liberal = is_liberal;
        let mut node = Node::on(kernel(), options);
        node.settles();
        let drops = |node: &Node| {
            held(&node.kernel).iter().any(|line| line.contains("INVALID") || line.contains("invalid drop"))
        };
        assert_eq!(drops(&node), !is_liberal, "{mode}");
        for (value, says) in [("1", true), ("0", false), ("2", true), ("-1", true), ("nonsense", false)] {
            node.kernel.set_sysctl(LIBERAL, Some(value));
            // The setting is read in full passes only.
            node.full();
            node.settles();
            assert_eq!(drops(&node), !(says || is_liberal), "{mode}: {value}, asked for: {is_liberal}");
            assert_eq!(node.full().writes(), 0, "{mode}: {value}");
        }
        node.kernel.set_sysctl(LIBERAL, None);
        node.full();
        assert!(drops(&node), "{mode}: a kernel without it");
    }
}

/// Modes that translate packets have the first one of each connection forwarded, IPVS mode only answers, userspace mode none. The same for a legacy
/// chain of iptables and another program's chain of nf_tables, in each family that the host has addresses of.
#[test]
fn chains_that_drop_what_a_mode_forwards_are_named() {
    let established = CtState::ESTABLISHED | CtState::RELATED;
    let [answers, device] = ["-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-o eth0 -j ACCEPT"];
    for (family, is_legacy) in Family::ALL.into_iter().flat_map(|family| [(family, true), (family, false)]) {
        let rule = || nftables::rule(family.into());
        for (in_iptables, in_nftables, [drops_first, drops_answers]) in [
            (None, None, [true, true]),
            (Some(answers), Some(rule().ct_state(established).accept()), [true, false]),
            // It may accept what goes to pods.
            (Some(device), Some(rule().oifname("eth0").accept()), [false, false]),
        ] {
            let mut kernel = kernel();
            let chain = if is_legacy {
                let forward = ChainName::new("FORWARD").unwrap();
                let mut change = iptables::Transaction::new();
                let table = change.table(TableName::FILTER);
                for rule in in_iptables.into_iter().chain(["-j DROP"]) {
                    table.edit(Edit::Append(forward.clone(), Rule::parse(rule).unwrap()));
                }
                let restore =
                    |host: &_| Iptables::open(host, family.into(), Backend::Legacy).unwrap().restore(&change).map(drop);
                kernel.with_host(restore).unwrap();
                format!("chain FORWARD of the legacy table filter of {family} ")
            } else {
                let table = TableKey::new(family.into(), "firewall").unwrap();
                let chain = table.chain("forward").unwrap();
                let base = BaseChain::new(ChainType::Filter, Hook::Forward, Priority(0));
                let mut change = nftables::Transaction::new();
                change
                    .add_table(nftables::Table::new(table))
                    .add_chain(Chain::base(chain.clone(), base).policy(Policy::Drop));
                if let Some(rule) = in_nftables {
                    change.add_rule(&chain, rule.build().unwrap());
                }
                kernel.nftables().commit(&change).unwrap();
                format!("chain {chain} ")
            };
            let mut named = |mode: Kind, address: &str| {
                kernel.set_interface("eth0", &[address.parse().unwrap(), "fe80::1".parse().unwrap()]);
                let host = kernel.ports().links.addresses().unwrap();
                dropping_forward(mode, &options_of(mode).config, &host, &mut kernel.ports())
            };
            let [own, others] =
                if family == Family::V4 { ["192.0.2.10", "2001:db8::10"] } else { ["2001:db8::10", "192.0.2.10"] };
            for mode in Kind::ALL {
                let (what, drops) = match mode {
                    Kind::Ipvs => ("answers of endpoints among it", drops_answers),
                    Kind::Userspace => ("", false),
                    _ => ("connections to endpoints among it", drops_first),
                };
                let found = named(mode, own);
                assert_eq!(found.len(), usize::from(drops), "{chain}{mode}, {in_iptables:?}: {found:?}");
                let is_right = |of: &DroppingForward| {
                    of.note.starts_with(&chain) && of.note.contains(what) && of.of_iptables.is_some() == is_legacy
                };
                assert!(found.iter().all(is_right), "{chain}{mode}: {found:?}");
                assert_eq!(named(mode, others), [], "{chain}{mode}: no address of the family");
            }
        }
    }
}

/// A foreign change elsewhere between reading and writing does not matter: the table is as it was read. The number of tries is limited.
#[test]
fn other_tables_may_change_between_reading_and_writing() {
    for (mode, times) in [Kind::Nftables, Kind::Ipvs].into_iter().flat_map(|mode| [(mode, 3), (mode, 20)]) {
        let mut options = options_of(mode);
        options.config.ipvs.rules = RulesBy::Nftables;
        let mut node = Node::on(kernel(), options);
        node.service("web", json!({"clusterIP": "10.96.0.1"}));
        for number in 1..=times {
            let mut stranger = nftables::Transaction::new();
            stranger.add_table(nftables::Table::new(format!("ip theirs-{number}").parse().unwrap()));
            node.kernel.commit_before(stranger);
        }
        let is_served =
            |node: &Node| node.kernel.state().tables.values().any(|table| table.contains("10.96.0.1 . tcp . 80"));
        let report = node.pass();
        assert_eq!((report.has_failed(), is_served(&node)), (times > 3, times <= 3), "{mode}: {report:#?}");
        node.run(Duration::from_secs(60));
        assert!(is_served(&node), "{mode} {times}");
        assert!(node.full().is_done(), "{mode} {times}");
    }
}

/// Work that is due by itself, and fails or cannot even be tried, is tried again after a pause, as after any failure.
#[test]
fn what_is_due_and_fails_brings_no_passes_without_a_pause() {
    let ipvs_rules = (Kind::Ipvs, Call::RulesDump);
    let of_drains = [Call::ConntrackForgetFlows, Call::TablesGeneration].map(|call| (Kind::Nftables, call));
    for (mode, call) in of_drains.into_iter().chain([ipvs_rules, (Kind::Userspace, Call::RoutesNetworks)]) {
        let mut options = options_of(mode);
        options.config.ipvs.rules = RulesBy::Iptables;
        let mut node = Node::on(kernel(), options);
        node.service("web", json!({"clusterIP": "10.96.0.1", "annotations": {"proxier/drain-seconds": "20"}}));
        node.slice("web", &["10.244.0.1", "10.244.0.2"]);
        node.settles();
        match mode {
            // Connections are cut after a while.
            Kind::Nftables => {
                node.slice("web", &["10.244.0.1"]);
                node.settles();
            }
            // Rules are written again after a while.
            Kind::Ipvs => {
                let spec = json!({
                    "type": "LoadBalancer", "clusterIP": "10.96.0.2", "loadBalancerSourceRanges": ["198.51.100.0/24"],
                    "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
                });
                node.service("guarded", spec);
                node.kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Busy).every());
                assert!(node.pass().has_failed());
                node.kernel.clear_faults();
            }
            // A route is deleted once no connection needs it.
            _ => {
                node.kernel.set_connected([10, 96, 0, 1].into(), true);
                node.no_service("web");
                node.settles();
                node.proxier.request_full(node.now);
            }
        }
        node.kernel.fail(Fault::new(call, PortErrorKind::Busy).every());
        let (end, mut passes) = (node.now + Duration::from_secs(120), 0);
        while node.proxier.next_wake().is_some_and(|at| at <= end) {
            node.pass();
            passes += 1;
            assert!(passes < 60, "{mode} {call:?}: {:?} {:?}", node.now, node.proxier.next_wake());
        }
        assert!(passes > 4, "{mode} {call:?}");
        node.kernel.clear_faults();
        assert!(node.run(Duration::from_secs(60)).last().is_some_and(Report::is_done), "{mode} {call:?}");
    }
}

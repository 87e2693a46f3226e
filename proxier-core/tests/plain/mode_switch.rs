//! A node changes its mode, in every direction, on a kernel in memory. The new mode has everything before the old one
//! is removed. Then nothing shows that the node ever had another mode.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use iptables::fake::FakeHost;
use iptables::{Backend, ChainName, Edit, Iptables, Rule, TableName, Transaction};
use nftables::{Element, Operand, Set};
use proxier_core::config::{Binding, Config, FastPath, LocalTraffic, RulesBy};
use proxier_core::engine::{Options, Removal};
use proxier_core::fake::{Call, FakeKernel, Fault, Flow};
use proxier_core::modes::cleanup::{cleanup, cleanup_beside_kube_proxy, leftovers};
use proxier_core::modes::{Cleaned, Kind};
use proxier_core::net::Family;
use proxier_core::ports::PortErrorKind;
use proxier_core::snapshot::ObjectKey;
use serde_json::{Value, json};

use crate::node::{self, Node, add_table, commit, held, kernel, options_of, same, writes};

const NODE: &str = "192.0.2.10";

/// A mode, with the binding that only IPVS mode has.
type Way = (Kind, Binding);

const IPVS: Way = (Kind::Ipvs, Binding::Addresses);
const WAYS: [Way; 5] = [
    IPVS,
    (Kind::Ipvs, Binding::Routes),
    (Kind::Nftables, Binding::Addresses),
    (Kind::Iptables, Binding::Addresses),
    (Kind::Userspace, Binding::Addresses),
];

fn of(kind: Kind) -> Way {
    (kind, Binding::Addresses)
}

/// Adds foreign objects to all parts of the kernel.
pub(crate) fn with_strangers(kernel: &FakeKernel) {
    kernel.ipvs().load(&format!("-A -t {NODE}:7777 -s rr\n-a -t {NODE}:7777 -r 10.9.9.9:80 -m -w 1\n")).unwrap();
    let mut rules = Transaction::new();
    let nat = rules.table(TableName::NAT);
    let theirs = ChainName::new("THEIRS").unwrap();
    nat.edit(Edit::Append(ChainName::new("PREROUTING").unwrap(), Rule::builder().target("THEIRS").build().unwrap()));
    nat.replace_chain(&theirs, vec![Rule::builder().args(["-p", "tcp"]).target("RETURN").build().unwrap()]);
    kernel.clone().ports().rules.restore(Family::V4, &rules).unwrap();
    add_table(kernel, "ip theirs");
}

fn config() -> Config {
    Options::default().config
}

/// A new process in this mode.
fn new(kernel: &FakeKernel, mode: Way) -> Node {
    serving(kernel, mode, 1..=3)
}

fn serving(kernel: &FakeKernel, mode: Way, numbers: impl IntoIterator<Item = u16>) -> Node {
    let mut node = begin(kernel, mode);
    numbers.into_iter().for_each(|number| node.serve_all(number));
    node.started()
}

fn begin(kernel: &FakeKernel, mode: Way) -> Node {
    let mut options = options_of(mode.0);
    options.config.ipvs.binding = mode.1;
    options.config.ipvs.service_cidrs = ["10.96.0.0/12", "fd00::/112"].map(|of| of.parse().unwrap()).into();
    options.userspace.service_cidrs.clone_from(&options.config.ipvs.service_cidrs);
    Node::begin(kernel, options)
}

impl Node {
    fn remove_others(&mut self) -> Removal {
        self.proxier.remove_others(self.now, &mut self.kernel.ports())
    }

    /// A Service with every kind of address; the third has no endpoints.
    fn serve_all(&mut self, number: u16) {
        let name = format!("web-{number}");
        let spec = json!({
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000 + number,
            "clusterIP": format!("10.96.0.{number}"), "clusterIPs": [format!("10.96.0.{number}"), format!("fd00::{number}")],
            "ipFamilies": ["IPv4", "IPv6"],
            "externalIPs": [format!("203.0.113.{number}")],
            "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "sessionAffinity": if number == 2 { "ClientIP" } else { "None" },
            "ports": [
                {"name": "p", "port": 80, "nodePort": 30000 + number},
                {"name": "u", "port": 53, "protocol": "UDP", "nodePort": 31000 + number},
            ],
            "status": {"loadBalancer": {"ingress": [{"ip": format!("198.51.100.{number}")}]}},
        });
        self.service(&name, spec);
        for prefix in ["10.244.0.", "fd01::"].into_iter().filter(|_| number != 3) {
            self.slice(&name, &[&format!("{prefix}{number}@node-a"), &format!("{prefix}1{number}@node-b")]);
        }
    }

    fn serve_without_slices(&mut self) {
        for number in 1..=4 {
            self.serve_all(number);
            for family in [1, 6] {
                self.proxier.delete_slice(&ObjectKey::new("demo", &format!("web-{number}-{family}")), self.now);
            }
        }
    }

    /// A Service of UDP with an endpoint here and perhaps one elsewhere, with these policies.
    fn serve_udp(&mut self, policy: &str, other: Option<&Value>) {
        let spec = json!({
            "type": "NodePort", "clusterIP": "10.96.0.9", "internalTrafficPolicy": policy, "externalTrafficPolicy": policy,
            "ports": [{"name": "u", "port": 53, "protocol": "UDP", "nodePort": 31009}],
        });
        self.service("dns", spec);
        let here = json!({
            "addresses": ["10.244.0.9"], "nodeName": "node-a", "hints": {"forNodes": [{"name": "node-a"}]},
        });
        let other = other.map(|other| {
            let mut other = other.clone();
            other["addresses"] = json!(["10.244.1.9"]);
            other["nodeName"] = "node-b".into();
            other
        });
        let endpoints: Vec<Value> = [here].into_iter().chain(other).collect();
        self.take(json!({
            "metadata": {"namespace": "demo", "name": "dns-1", "labels": {"kubernetes.io/service-name": "dns"}},
            "addressType": "IPv4",
            "ports": [{"name": "u", "port": 5353, "protocol": "UDP"}],
            "endpoints": endpoints,
        }));
    }
}

/// A node that has had only this mode.
fn alone(mode: Way) -> BTreeSet<String> {
    let kernel = kernel();
    with_strangers(&kernel);
    new(&kernel, mode).settle();
    held(&kernel)
}

fn directions() -> impl Iterator<Item = (Way, Way)> {
    WAYS.into_iter().flat_map(|from| WAYS.into_iter().filter(move |to| *to != from).map(move |to| (from, to)))
}

#[test]
fn in_every_direction() {
    let strangers = {
        let kernel = kernel();
        with_strangers(&kernel);
        held(&kernel)
    };
    for (from, to) in directions() {
        let kernel = kernel();
        with_strangers(&kernel);
        new(&kernel, from).settle();
        let mut node = new(&kernel, to);
        node.settle();
        let wanted = alone(to);
        // The new mode has everything while the old one still has its objects; between bindings, nothing else.
        let lacks: Vec<_> = wanted.difference(&held(&kernel)).cloned().collect();
        assert_eq!(lacks, [""; 0], "{from:?} to {to:?}");

        if from.0 == to.0 {
            same((from, to), &kernel, &wanted);
        }
        let cleaned = cleanup(&config(), Some(to.0), &mut node.kernel.ports());
        let leaves_some = from.0 != to.0;
        assert!(cleaned.is_done() && (cleaned.removed() > 0) == leaves_some, "{from:?} to {to:?}: {cleaned:#?}");
        same((from, to), &kernel, &wanted);
        // The mode that serves has lost nothing.
        let before = writes(&kernel);
        let reports = node.settle();
        assert!(reports.iter().all(|report| report.drift.is_empty()), "{from:?} to {to:?}: {reports:#?}");
        assert_eq!(writes(&kernel), before, "{from:?} to {to:?}");
        // No object is left to remove.
        let again = cleanup(&config(), Some(to.0), &mut node.kernel.ports());
        assert!(again.is_done() && again.removed() == 0, "{from:?} to {to:?}: {again:#?}");

        let cleaned = cleanup(&config(), None, &mut node.kernel.ports());
        assert!(cleaned.is_done(), "{from:?} to {to:?}: {cleaned:#?}");
        kernel.restart();
        same((from, to), &kernel, &strangers);
    }
}

/// Makes the table that a kube-proxy in nftables mode keeps in a family, with the parts by which it is recognised: without `but`.
fn kube_proxys(kernel: &FakeKernel, family: nftables::Family, comment: &str, but: &str) {
    let key = nftables::TableKey::new(family, "kube-proxy").unwrap();
    let all = ["nat-prerouting", "nat-output", "nat-postrouting", "services", "mark-for-masquerade", "masquerading"];
    commit(kernel, |tables| {
        tables.add_table(nftables::Table::new(key.clone()).comment(comment));
        for name in all.into_iter().filter(|name| *name != but) {
            tables.add_chain(nftables::Chain::regular(key.chain(name).unwrap()));
        }
        tables
    });
}

#[test]
fn tables_of_kube_proxy_go_whatever_the_mode() {
    const COMMENT: &str = "rules for kube-proxy";
    for mode in Kind::ALL {
        let kernel = kernel();
        with_strangers(&kernel);
        kube_proxys(&kernel, nftables::Family::Ip, COMMENT, "");
        kube_proxys(&kernel, nftables::Family::Ip6, COMMENT, "");
        let mut node = new(&kernel, of(mode));
        node.settle();
        // The table stays, and is reported, while it cannot be written.
        kernel.fail(Fault::new(Call::TablesCommit, PortErrorKind::Busy).every());
        let cleaned = cleanup(&config(), Some(mode), &mut node.kernel.ports());
        assert_eq!(cleaned.applied.failures.len(), 2, "{mode}: {cleaned:#?}");
        kernel.clear_faults();
        let cleaned = cleanup(&config(), Some(mode), &mut node.kernel.ports());
        assert!(cleaned.is_done() && cleaned.removed() == 2, "{mode}: {cleaned:#?}");
        same((of(mode), of(mode)), &kernel, &alone(of(mode)));
    }
    for (comment, but) in [("rules for somebody", ""), (COMMENT, "nat-postrouting")] {
        let kernel = kernel();
        kube_proxys(&kernel, nftables::Family::Ip, comment, but);
        let before = held(&kernel);
        let cleaned = cleanup(&config(), None, &mut kernel.clone().ports());
        assert!(cleaned.is_done() && cleaned.removed() == 0, "{cleaned:#?}");
        assert_eq!(held(&kernel), before);
    }
    // Another proxy in this namespace may be the one that took over.
    let kernel = kernel();
    kube_proxys(&kernel, nftables::Family::Ip, COMMENT, "");
    let mut config = config();
    config.names.table = proxier_core::config::TableName::new("mine").unwrap();
    let cleaned = cleanup(&config, None, &mut kernel.clone().ports());
    assert!(cleaned.is_done() && cleaned.removed() == 0, "{cleaned:#?}");
}

/// One part of the kernel cannot be changed: the objects in the rest are still removed.
#[test]
fn what_cannot_be_removed_stays_and_is_told() {
    for (from, call) in
        [(Kind::Ipvs, Call::RulesRestore), (Kind::Iptables, Call::RulesRestore), (Kind::Nftables, Call::TablesCommit)]
    {
        let kernel = kernel();
        new(&kernel, of(from)).settle();
        let mut node = new(&kernel, of(Kind::Userspace));
        node.settle();
        kernel.fail(Fault::new(call, PortErrorKind::Busy).every());
        let cleaned = cleanup(&config(), Some(Kind::Userspace), &mut node.kernel.ports());
        assert!(!cleaned.is_done() && !cleaned.applied.failures.is_empty(), "{from}: {cleaned:#?}");
        kernel.clear_faults();
        let cleaned = cleanup(&config(), Some(Kind::Userspace), &mut node.kernel.ports());
        assert!(cleaned.is_done() && cleaned.removed() > 0, "{from}: {cleaned:#?}");
    }
}

/// Rules of iptables mode lead connections on until they are replaced: virtual servers have to be there before.
#[test]
fn virtual_servers_are_there_before_rules_of_iptables_mode_go() {
    let kernel = kernel();
    new(&kernel, of(Kind::Iptables)).settle();
    let before = kernel.state().rules;
    let mut node = new(&kernel, IPVS);
    kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Busy).every());
    let report = node.pass();
    assert!(!report.is_done(), "{report:#?}");
    let state = kernel.state();
    assert_eq!(state.rules, before);
    for server in ["10.96.0.1:80", "203.0.113.1:80", "198.51.100.1:80", "192.0.2.10:30001"] {
        assert!(state.ipvs.contains(&format!("-a -t {server} -r 10.244.0.1:8080")), "{server}: {}", state.ipvs);
    }
    let bound = &state.devices["kube-ipvs0"];
    assert!(
        bound.contains(&"10.96.0.1".parse().unwrap()) && bound.contains(&"198.51.100.1".parse().unwrap()),
        "{bound:?}"
    );
    // Without such rules, a load balancer with source ranges waits for its own.
    let kernel = node::kernel();
    let mut node = new(&kernel, IPVS);
    kernel.fail(Fault::new(Call::RulesRestore, PortErrorKind::Busy).every());
    node.pass();
    assert!(!kernel.state().ipvs.contains("198.51.100.1"), "{}", kernel.state().ipvs);
}

/// A UDP flow from a client to here, and who answers.
fn flow(to: &str, answers: &str) -> Flow {
    Flow::udp("192.0.2.77:4000".parse().unwrap(), to.parse().unwrap(), answers.parse().unwrap())
}

/// Flows stay with an endpoint that serves, under any policies and hints and while it stops, in a running process and
/// in the next one. They end once it does not serve any more. All flows of a Service end with its last endpoint. Flows
/// to the number of a node port elsewhere are foreign.
#[test]
fn udp_flows_stay_with_an_endpoint_that_serves() {
    let turns = [
        ("Cluster", json!({"conditions": {"ready": false, "serving": true, "terminating": true}})),
        ("Cluster", json!({"conditions": {"ready": false, "serving": true}})),
        ("Local", json!({})),
        ("Cluster", json!({"hints": {"forNodes": [{"name": "node-b"}]}})),
    ];
    let ends = [Some(json!({"conditions": {"ready": false, "serving": false, "terminating": true}})), None];
    let in_mode =
        |way: Way| turns.iter().flat_map(|turn| ends.iter().map(move |end| (way, turn, end))).collect::<Vec<_>>();
    for (way, (policy, turn), end) in WAYS.into_iter().flat_map(in_mode) {
        let what = format!("{way:?}, policy {policy}, {turn}");
        let kernel = kernel();
        let start = |policy: &str, other: &Value| {
            let mut node = begin(&kernel, way);
            node.serve_udp(policy, Some(other));
            node.proxier.start(node.now);
            node.settle();
            node
        };
        let mut node = start("Cluster", &json!({}));
        let flows: BTreeSet<Flow> = ["10.96.0.9:53", "192.0.2.10:31009"].map(|to| flow(to, "10.244.1.9:5353")).into();
        let here = Flow { client: "192.0.2.78:4000".parse().unwrap(), ..flow("10.96.0.9:53", "10.244.0.9:5353") };
        let others = flow("192.0.2.99:31009", "10.9.9.9:5353");
        let at_the_end = BTreeSet::from([here, others]);
        let flows: BTreeSet<Flow> =
            flows.into_iter().chain([here, others]).filter(|_| way.0 != Kind::Userspace).collect();
        let places = || ["UDP 10.96.0.9:53", "UDP 192.0.2.10:31009"].into_iter();
        for flow in &flows {
            kernel.add_flow(*flow);
        }
        let real: ipvs::RealServerKey = "10.244.1.9:5353".parse().unwrap();
        // An endpoint without new flows has weight 0, and its connections.
        let is_kept = || match way.0 {
            Kind::Ipvs => {
                let rest = format!("-r {real} -m -w 0\n");
                kernel.flows() == flows && kernel.state().ipvs.matches(&rest).count() == 2
            }
            Kind::Userspace => places().all(|place| {
                let listener = &kernel.listeners()[&place.parse().unwrap()];
                listener.keeps_flows_of(&real.into()) && !listener.outside.contains(&real.into())
            }),
            _ => kernel.flows() == flows,
        };
        let is_cut = || match way.0 {
            Kind::Ipvs => kernel.flows() == at_the_end && !kernel.state().ipvs.contains("10.244.1.9"),
            Kind::Userspace => !kernel.listeners().values().any(|listener| listener.keeps_flows_of(&real.into())),
            _ => kernel.flows() == at_the_end,
        };
        if way.0 == Kind::Ipvs {
            assert!(places().all(|place| kernel.set_connections(&place.parse().unwrap(), &real, 0, 1)), "{what}");
        }
        node.serve_udp(policy, Some(turn));
        // Longer than real servers drain.
        for _ in 0..if way.0 == Kind::Ipvs { 17 } else { 1 } {
            node.settle();
            assert!(is_kept(), "{what}: {:#?}", kernel.state());
        }
        let mut node = start(policy, turn);
        assert!(is_kept(), "{what}, the next process: {:#?}", kernel.state());
        node.serve_udp(policy, end.as_ref());
        node.settle();
        assert!(is_cut(), "{what}, {end:?}: {:#?}", kernel.state());
        node.proxier.delete_slice(&ObjectKey::new("demo", "dns-1"), node.now);
        node.settle();
        let left = if way.0 == Kind::Userspace { BTreeSet::new() } else { BTreeSet::from([others]) };
        assert_eq!(kernel.flows(), left, "{what}");
    }
}

/// Flows that lead to an endpoint that is gone, and those to a Service that was deleted while no process ran.
fn stale_flows() -> BTreeSet<Flow> {
    let places = [
        ("10.96.0.1:53", "10.244.0.99:5353"),
        ("[fd00::1]:53", "[fd01::99]:5353"),
        ("192.0.2.10:31001", "10.244.0.99:5353"),
        ("10.96.0.4:53", "10.244.0.4:5353"),
        ("203.0.113.4:53", "10.244.0.4:5353"),
        ("192.0.2.10:31004", "10.244.0.4:5353"),
    ];
    places.map(|(to, answers)| flow(to, answers)).into()
}

/// Foreign flows, one of them to an address and port that was a node port.
fn others_flows() -> BTreeSet<Flow> {
    let places =
        [("10.99.0.9:53", "10.9.9.9:53"), ("192.0.2.10:31004", "192.0.2.10:31004"), ("10.96.0.1:54", "10.244.0.99:54")];
    places.map(|(to, answers)| Flow { client: "192.0.2.78:4000".parse().unwrap(), ..flow(to, answers) }).into()
}

#[test]
fn flows_that_an_earlier_process_led_elsewhere_go() {
    let present = Flow { client: "192.0.2.79:4000".parse().unwrap(), ..flow("10.96.0.1:53", "10.244.0.1:5353") };
    for (from, to) in
        WAYS.into_iter().flat_map(|from| WAYS.map(|to| (from, to))).filter(|(from, _)| from.0 != Kind::Userspace)
    {
        let kernel = kernel();
        serving(&kernel, from, 1..=4).settle();
        let mut node = new(&kernel, to);
        let mut expected = others_flows();
        // Userspace mode translates nothing.
        expected.extend((to.0 != Kind::Userspace).then_some(present));
        let begin = || {
            let flows = stale_flows().into_iter().chain(others_flows()).chain([present]);
            for flow in flows {
                kernel.add_flow(flow);
            }
        };
        begin();
        node.settle();
        assert_eq!(kernel.flows(), expected, "{from:?} to {to:?}");
        if from.0 == to.0 {
            continue;
        }
        // The old mode translates as long as it exists. A part of it cannot be removed at first, and flows cannot be
        // listed.
        begin();
        let faults = [Call::RulesRestore, Call::TablesCommit, Call::IpvsRun];
        for call in faults {
            kernel.fail(Fault::new(call, PortErrorKind::Busy).every());
        }
        let removal = node.remove_others();
        assert!(matches!(&removal, Removal::Made(cleaned) if !cleaned.is_done()), "{from:?} to {to:?}: {removal:?}");
        kernel.clear_faults();
        let removal = node.remove_others();
        assert!(matches!(&removal, Removal::Made(cleaned) if cleaned.is_done()), "{from:?} to {to:?}: {removal:?}");
        kernel.fail(Fault::new(Call::ConntrackForgetFlows, PortErrorKind::Busy));
        let report = node.pass();
        assert!(report.has_failed() && !kernel.flows().is_disjoint(&stale_flows()), "{from:?} to {to:?}: {report:#?}");
        node.settle();
        assert_eq!(kernel.flows(), expected, "{from:?} to {to:?}");
        // No flows are looked for once the old mode has gone.
        let before = kernel.writes().conntrack;
        node.settle();
        assert_eq!(kernel.writes().conntrack, before, "{from:?} to {to:?}");
    }
}

/// Objects that a list lacks at the start in another mode.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lacks {
    Everything,
    MostServices,
    EndpointSlices,
}

/// Starts a process in this mode whose lists lack these objects.
fn lacking(kernel: &FakeKernel, mode: Way, lacks: Lacks) -> Node {
    let mut node = begin(kernel, mode);
    match lacks {
        Lacks::Everything => {}
        Lacks::MostServices => node.serve_all(1),
        Lacks::EndpointSlices => node.serve_without_slices(),
    }
    node.proxier.start(node.now);
    node
}

#[test]
fn what_the_old_mode_serves_stays_while_the_lists_are_doubted() {
    let between_modes = || directions().filter(|(from, to)| from.0 != to.0 && from.0 != Kind::Userspace);
    for (number, (from, to)) in between_modes().enumerate() {
        let lacks = [Lacks::Everything, Lacks::MostServices, Lacks::EndpointSlices];
        for (lacks, end) in lacks.into_iter().zip((0..3).cycle().skip(number)) {
            let what = format!("{from:?} to {to:?}, {lacks:?} is missing, end {end}");
            let kernel = kernel();
            with_strangers(&kernel);
            serving(&kernel, from, 1..=4).settle();
            let before = held(&kernel);
            let mut node = lacking(&kernel, to, lacks);
            for _ in 0..3 {
                let report = node.pass();
                assert!(report.waits && !report.has_failed() && report.writes() == 0, "{what}: {report:#?}");
                let stopped = report.stopped.unwrap();
                assert!(
                    stopped.starts_with("objects of other proxy modes serve, and this mode waits: "),
                    "{what}: {stopped}"
                );
                assert!(matches!(node.remove_others(), Removal::Held(_)), "{what}");
                assert_eq!(held(&kernel), before, "{what}");
                assert!(node.proxier.held().count() > 10, "{what}");
            }
            // A preview shows the same, without effect.
            let (_, report) = node.proxier.preview(node.now, &mut node.kernel.ports());
            assert!(report.waits, "{what}");
            let wanted = if end == 0 {
                // Services come back before their endpoints.
                node.serve_without_slices();
                assert!(node.pass().waits, "{what}");
                for number in 1..=4 {
                    node.serve_all(number);
                }
                let kernel = node::kernel();
                with_strangers(&kernel);
                serving(&kernel, to, 1..=4).settle();
                held(&kernel)
            } else {
                if end == 1 {
                    assert!(node.proxier.confirm_removal(node.now) > 10, "{what}");
                } else {
                    node.now += Duration::from_secs(5 * 60);
                    node.proxier.request_full(node.now);
                }
                let kernel = node::kernel();
                with_strangers(&kernel);
                lacking(&kernel, to, lacks).settle();
                held(&kernel)
            };
            node.settle();
            let removal = node.remove_others();
            assert!(matches!(&removal, Removal::Made(cleaned) if cleaned.is_done()), "{what}: {removal:?}");
            same((from, to), &kernel, &wanted);
            assert_eq!(node.proxier.held().count(), 0, "{what}");
        }
    }
}

/// iptables mode and IPVS mode with iptables rules share chain names, so retained objects would lose their rules in the
/// first pass. The other modes can coexist.
#[test]
fn a_rest_that_is_held_back_keeps_its_chains() {
    for (from, to) in directions().filter(|(from, to)| from.0 != to.0 && from.0 != Kind::Userspace) {
        let kernel = kernel();
        serving(&kernel, from, 1..=4).settle();
        let before = held(&kernel);
        let mut node = lacking(&kernel, to, Lacks::Everything);
        assert!(node.pass().waits, "{from:?} to {to:?}");
        // One in four is missing still.
        (1..=3).for_each(|number| node.serve_all(number));
        let report = node.pass();
        let share_chains = matches!((from.0, to.0), (Kind::Ipvs, Kind::Iptables) | (Kind::Iptables, Kind::Ipvs));
        assert!(report.waits == share_chains && !report.has_failed(), "{from:?} to {to:?}: {report:#?}");
        assert!(matches!(node.remove_others(), Removal::Held(_)), "{from:?} to {to:?}");
        if share_chains {
            assert_eq!(held(&kernel), before, "{from:?} to {to:?}");
        }
        node.serve_all(4);
        node.settle();
        assert!(matches!(node.remove_others(), Removal::Made(_)), "{from:?} to {to:?}");
        let wanted = node::kernel();
        serving(&wanted, to, 1..=4).settle();
        same((from, to), &kernel, &held(&wanted));
    }
}

/// Unreadable objects cannot be judged: none of them goes while this mode has nothing to serve.
#[test]
fn what_cannot_be_read_is_not_removed_for_an_empty_list() {
    let kernel = kernel();
    new(&kernel, of(Kind::Iptables)).settle();
    let before = held(&kernel);
    let mut node = lacking(&kernel, of(Kind::Nftables), Lacks::Everything);
    kernel.fail(Fault::new(Call::RulesDump, PortErrorKind::Busy).every());
    node.settles();
    assert!(matches!(node.remove_others(), Removal::Unknown(cleaned) if !cleaned.is_done()));
    kernel.clear_faults();
    assert!(matches!(node.remove_others(), Removal::Held(_)));
    assert!(held(&kernel).is_superset(&before));
    // A few Services are no reason to doubt.
    let kernel = node::kernel();
    serving(&kernel, of(Kind::Userspace), 1..=1).settle();
    assert!(!lacking(&kernel, of(Kind::Nftables), Lacks::Everything).pass().waits);
}

/// A kube-proxy in nftables mode served a Service at its address, and a node port.
#[test]
fn what_kube_proxy_serves_stays_while_the_lists_are_doubted() {
    for mode in Kind::ALL {
        let kernel = kernel();
        kube_proxys(&kernel, nftables::Family::Ip, "rules for kube-proxy", "");
        let key = nftables::TableKey::new(nftables::Family::Ip, "kube-proxy").unwrap();
        let (address, place) = (Operand::IP_DADDR, [Operand::L4PROTO, Operand::DPORT]);
        let maps = [("service-ips", [&[address][..], &place[..]].concat()), ("service-nodeports", place.to_vec())];
        let mut tables = nftables::Transaction::new();
        for (name, operands) in maps {
            let map = Set::typeof_verdict_map(key.set(name).unwrap(), &operands).unwrap();
            tables.add_set(map.clone());
            let elements = (1..=6).map(|number| {
                let (address, port) = match name {
                    "service-ips" => (Some(nftables::Value::from(Ipv4Addr::new(10, 96, 0, number))), 53),
                    _ => (None, 31000 + u16::from(number)),
                };
                let fields: Vec<nftables::Value> =
                    address.into_iter().chain([nftables::Value::byte(17), nftables::Value::port(port)]).collect();
                Element::value(nftables::Value::concat(&fields).unwrap()).verdict(nftables::Verdict::Accept)
            });
            tables.add_elements(&map, elements);
        }
        kernel.nftables().commit(&tables).unwrap();
        let mut node = lacking(&kernel, of(mode), Lacks::Everything);
        let report = node.pass();
        assert!(report.waits, "{mode}: {report:#?}");
        let held: BTreeSet<String> = node.proxier.held().map(|(key, _)| key.to_string()).collect();
        let expected =
            (1..=6).flat_map(|number| [format!("UDP 10.96.0.{number}:53"), format!("UDP {NODE}:3100{number}")]);
        assert_eq!(held, expected.collect(), "{mode}");
        // This mode begins once half of the Services are back, and kube-proxy's tables serve the rest.
        for number in [1, 2, 5] {
            node.serve_all(number);
        }
        node.settle();
        assert!(matches!(node.remove_others(), Removal::Held(_)), "{mode}");
        assert!(kernel.state().tables.contains_key("ip kube-proxy"), "{mode}");
        assert_eq!(node.proxier.confirm_removal(node.now), 6, "{mode}");
        // Confirmed removals take their flows with them.
        for flow in stale_flows() {
            kernel.add_flow(flow);
        }
        let removal = node.remove_others();
        assert!(
            matches!(&removal, Removal::Made(cleaned) if cleaned.is_done() && cleaned.removed() == 1),
            "{mode}: {removal:?}"
        );
        node.settle();
        assert_eq!(kernel.flows(), [flow("203.0.113.4:53", "10.244.0.4:5353")].into(), "{mode}");
    }
}

/// Rules of iptables mode in one back end, left by an earlier process, go from there whichever mode serves, and those of the mode itself stay in the
/// other. Until then they count as served.
#[test]
fn rules_in_the_other_back_end_go_and_those_of_the_mode_stay() {
    const KUBELET: &str = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
    for stale in Backend::ALL {
        let used = stale.other();
        for way in WAYS {
            let what = format!("{way:?}, stale rules in {stale}");
            // An earlier process on a host that used the other back end.
            let before = kernel_with(stale, &[]);
            let mut node = new(&before, of(Kind::Iptables));
            assert!(node.pass().is_done(), "{what}");
            let left: Vec<_> = before.state().rules.into_iter().collect();
            let kernel = kernel_with(used, &left);
            for family in iptables::Family::ALL {
                let hint: iptables::Dump = KUBELET.parse().unwrap();
                restore(&kernel, family, used, &hint);
            }
            let stale_lines = |kernel: &FakeKernel| {
                let rules = kernel.state().rules;
                let of_stale =
                    rules.iter().filter(|((_, of), _)| *of == stale).map(|(_, text)| text.matches("KUBE-S").count());
                of_stale.sum::<usize>()
            };
            assert!(stale_lines(&kernel) > 20, "{what}");
            let named = leftovers(&config(), Some(way.0), &mut kernel.clone().ports());
            assert_eq!(named.len(), 2, "{what}: {named:?}");
            assert!(named.iter().all(|line| line.contains(&format!("of the {stale} back end"))), "{what}: {named:?}");

            let mut node = begin(&kernel, way).started();
            if way.0 != Kind::Userspace {
                node.pass();
                assert!(matches!(node.remove_others(), Removal::Held(_)), "{what}: nothing is listed any more");
                assert!(stale_lines(&kernel) > 20, "{what}");
            }
            (1..=3).for_each(|number| node.serve_all(number));
            assert!(node.pass().is_done(), "{what}");
            let Removal::Made(cleaned) = node.remove_others() else { panic!("{what}") };
            assert!(cleaned.is_done() && cleaned.left.is_empty(), "{what}: {cleaned:?}");
            assert_eq!(stale_lines(&kernel), 0, "{what}: {:?}", kernel.state().rules);
            node.pass();
            assert_eq!(node.remove_others(), Removal::Made(Cleaned::default()), "{what}");
            let now: String = kernel.state().rules.into_values().collect();
            assert_eq!(now.contains("-j KUBE-SVC-"), way.0 == Kind::Iptables, "{what}: {now}");
            assert_eq!(leftovers(&config(), Some(way.0), &mut kernel.clone().ports()), [""; 0], "{what}");
        }
    }
}

/// A kube-proxy has none of these: it would leave them forever.
#[test]
fn what_kube_proxy_lacks_goes_on_the_way_back_to_the_same_mode() {
    let lacked = |kernel: &FakeKernel| -> BTreeSet<String> {
        let is_lacked = |line: &String| {
            ["-A -f ", "Ipvs local ", "inet proxier-fast-path:", "ip proxier-ipvs:", "ip6 proxier-ipvs:"]
                .iter()
                .any(|start| line.starts_with(start))
                || line.contains("NODE-PORT-SERVED")
        };
        held(kernel).into_iter().filter(is_lacked).collect()
    };
    for (kind, by, settings) in
        [(Kind::Ipvs, RulesBy::Nftables, 3), (Kind::Ipvs, RulesBy::Iptables, 2), (Kind::Iptables, RulesBy::Iptables, 1)]
    {
        let kernel = kernel();
        with_strangers(&kernel);
        let mut options = options_of(kind);
        options.config.ipvs.rules = by;
        options.config.ipvs.binding = Binding::Routes;
        options.config.ipvs.service_cidrs = vec!["10.96.0.0/12".parse().unwrap()];
        options.config.ipvs.mark_split = by == RulesBy::Nftables;
        options.config.local_traffic = LocalTraffic::ClusterCidrs(vec!["10.244.0.0/16".parse().unwrap()]);
        options.config.fast_path = Some(FastPath::new(["*"])).filter(|_| kind == Kind::Iptables);
        let config = options.config.clone();
        let mut node = Node::begin(&kernel, options);
        (1..=3).for_each(|number| node.serve_all(number));
        node.started().settle();
        let (before, all) = (lacked(&kernel), held(&kernel));
        let starts: BTreeSet<&str> = before.iter().map(|line| line.split(' ').next().unwrap()).collect();
        assert!(starts.len() >= settings, "{kind} {by}: {starts:?}");
        for again in [false, true] {
            let cleaned = cleanup_beside_kube_proxy(&config, kind, &mut kernel.clone().ports());
            assert!(cleaned.is_done() && (cleaned.removed() == 0) == again, "{kind} {by}: {cleaned:#?}");
            assert_eq!(lacked(&kernel), BTreeSet::new(), "{kind} {by}");
        }
        let is_of_marks = |line: &&String| line.starts_with("-a -f ");
        let kept: Vec<_> = all.difference(&before).filter(|line| !is_of_marks(line)).collect();
        let there = held(&kernel);
        assert!(kept.iter().all(|line| there.contains(*line)), "{kind} {by}: {kept:#?}");
    }
}

/// A kernel whose programs are of this back end by default, with rules.
fn kernel_with(used: Backend, rules: &[((iptables::Family, Backend), String)]) -> FakeKernel {
    let kernel = node::prepared(FakeKernel::with_iptables(move || FakeHost::new().with_default(used)));
    for ((family, backend), text) in rules {
        restore(&kernel, *family, *backend, &text.parse().unwrap());
    }
    kernel
}

/// Gives the chains of a dump these rules.
pub(crate) fn restore(kernel: &FakeKernel, family: iptables::Family, backend: Backend, dump: &iptables::Dump) {
    let mut transaction = Transaction::new();
    for table in &dump.tables {
        let edits = transaction.table(table.name().clone());
        for chain in table.chains() {
            edits.replace_chain(&chain.name, chain.rules.clone());
        }
    }
    kernel.with_host(|host| Iptables::open(host, family, backend).unwrap().restore(&transaction).unwrap());
}

//! IPVS mode that binds by routes, on a kernel in memory. Covers local networks and addresses, the rules that guard
//! them, foreign objects, losses, restarts, and the way from one binding to the other.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use iptables::Backend;
use proxier_core::config::{Binding, InterfaceName, RulesBy};
use proxier_core::engine::Options;
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::modes::Kind;
use proxier_core::modes::cleanup::cleanup;
use proxier_core::net::Network;
use proxier_core::plan::report::Report;
use proxier_core::plan::step::{Action, Part};
use proxier_core::ports::{PortErrorKind, RouteOwner};
use serde_json::{Value, json};

use crate::node::{Node, kernel};

const NODE: [&str; 2] = ["192.0.2.10", "2001:db8::10"];
const V4: &str = "local 10.96.0.0/12 dev lo src 192.0.2.10";
const V6: &str = "local fd00:10::/112 dev lo src 2001:db8::10";
/// Routes of a node with the Services of [`with_services`].
const ALL: [&str; 4] =
    [V4, "local 198.51.100.7/32 dev lo src 192.0.2.10", "local 203.0.113.9/32 dev lo src 192.0.2.10", V6];

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn network(text: &str) -> Network {
    text.parse().unwrap()
}

fn options(binding: Binding) -> Options {
    let mut options = Options::default();
    options.config.ipvs.binding = binding;
    options.config.ipvs.service_cidrs = vec![network("10.96.0.0/12"), network("fd00:10::/112")];
    options
}

/// A new process.
fn on(kernel: &FakeKernel, options: Options) -> Node {
    let mut node = Node::begin(kernel, options).started();
    node.addresses(&NODE);
    node
}

fn new(binding: Binding) -> Node {
    with_services(&kernel(), options(binding))
}

fn with_services(kernel: &FakeKernel, options: Options) -> Node {
    let mut node = on(kernel, options);
    node.serve_both(
        "web",
        json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:10::10"],
            "ipFamilies": ["IPv4", "IPv6"], "externalIPs": ["198.51.100.7"],
            "ports": [{"name": "p", "port": 80, "nodePort": 30080}],
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}},
        }),
    );
    node.serve_both("dns", json!({"clusterIP": "10.96.0.11"}));
    node
}

impl Node {
    /// A Service with an endpoint of each of its families.
    fn serve_both(&mut self, name: &str, spec: Value) {
        self.service(name, spec);
        self.slice(name, &["10.244.1.7"]);
        self.slice(name, &["fd01::7"]);
    }

    fn local_routes(&self) -> Vec<String> {
        routes(&self.kernel)
    }

    /// Passes until the routes are these.
    #[track_caller]
    fn until(&mut self, expected: &[&str]) {
        for _ in 0..5 {
            if self.local_routes() == expected {
                return;
            }
            self.pass();
        }
        assert_eq!(self.local_routes(), expected);
    }
}

/// The routes of IPVS mode, in the order of their networks.
fn routes(kernel: &FakeKernel) -> Vec<String> {
    let routes = kernel.state().routes.into_iter();
    routes.filter(|(owner, _)| *owner == RouteOwner::Ipvs).map(|(_, route)| route.to_string()).collect()
}

fn bound(kernel: &FakeKernel) -> Option<BTreeSet<IpAddr>> {
    kernel.state().devices.remove("kube-ipvs0").map(|addresses| addresses.into_iter().collect())
}

/// The rules of a chain in both families.
fn rules(kernel: &FakeKernel, chain: &str) -> Vec<String> {
    let rules = kernel.state().rules.into_iter().filter(|((_, backend), _)| *backend == Backend::NfTables);
    let lines = rules.flat_map(|(_, text)| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.filter(|line| line.contains(&format!("-A {chain} "))).collect()
}

/// Networks in which new connections to an address and port without a Service are refused.
fn guarded(kernel: &FakeKernel) -> BTreeSet<String> {
    let rules = rules(kernel, "KUBE-IPVS-FILTER").into_iter();
    let rules = rules.filter(|line| line.contains("--ctstate NEW") && line.contains("-j REJECT"));
    rules.filter_map(|line| Some(line.split(" -d ").nth(1)?.split(' ').next()?.to_owned())).collect()
}

fn done(report: &Report, part: Part, action: Action) -> u64 {
    report.applied.done.get(&(part, action)).copied().unwrap_or_default()
}

/// Steps that were skipped because another one failed.
fn skipped(report: &Report) -> Vec<String> {
    let failures = report.applied.failures.iter();
    failures.filter(|of| of.error.kind() == PortErrorKind::Skipped).map(|of| of.step.name.clone()).collect()
}

/// The cluster's own ServiceCIDRs count in place of the configuration.
#[test]
fn networks_that_the_cluster_names_come_and_go() {
    let alone = |texts: &[&str]| -> Vec<String> {
        texts.iter().map(|of| format!("local {of}/32 dev lo src 192.0.2.10")).collect()
    };
    let v4 = |text: &str| format!("local {text} dev lo src 192.0.2.10");
    let mut options = options(Binding::Routes);
    options.config.ipvs.service_cidrs = vec![network("10.112.0.0/16")];
    let mut node = with_services(&kernel(), options);
    node.settle();
    let v6 = "local fd00:10::10/128 dev lo src 2001:db8::10".to_owned();
    let external = ["198.51.100.7", "203.0.113.9"];
    let configured =
        [alone(&["10.96.0.10", "10.96.0.11"]), vec![v4("10.112.0.0/16")], alone(&external), vec![v6.clone()]].concat();
    assert_eq!(node.local_routes(), configured);

    // A running process gets a network, with its guard, in a pass that has no other cause; the configuration's network goes.
    let found = [network("10.96.0.0/12")];
    node.proxier.set_service_cidrs(found, node.now);
    let reports = node.settle();
    assert!(!reports[0].full && reports.iter().all(|report| report.drift.is_empty()), "{reports:#?}");
    assert_eq!((done(&reports[0], Part::Route, Action::Add), done(&reports[0], Part::Route, Action::Delete)), (1, 3));
    let whole = [vec![V4.to_owned()], alone(&external), vec![v6.clone()]].concat();
    assert_eq!((node.local_routes(), guarded(&node.kernel)), (whole.clone(), ["10.96.0.0/12".to_owned()].into()));
    node.proxier.set_service_cidrs([network("10.111.255.255/12")], node.now);
    assert_eq!(node.settle().iter().map(Report::writes).sum::<u64>(), 0, "it is the same one");
    // A network of all addresses is not a network of Services.
    node.proxier.set_service_cidrs([network("10.96.0.0/12"), network("::/0")], node.now);
    node.settle();
    assert_eq!(node.local_routes(), whole);

    // A second one comes, and a Service gets an address of it.
    node.proxier.set_service_cidrs([network("10.96.0.0/12"), network("10.120.0.0/24")], node.now);
    node.serve_both("more", json!({"clusterIP": "10.120.0.5"}));
    node.settle();
    assert!(node.local_routes().contains(&v4("10.120.0.0/24")) && !node.local_routes().contains(&v4("10.120.0.5/32")));
    // The network goes although the Service still has its address: that stays local all the time, and nothing else is touched.
    let servers = node.kernel.state().ipvs;
    node.proxier.set_service_cidrs(found, node.now);
    let reports = node.settle();
    assert!(node.local_routes().contains(&v4("10.120.0.5/32")) && !node.local_routes().contains(&v4("10.120.0.0/24")));
    assert_eq!((node.kernel.state().ipvs, guarded(&node.kernel)), (servers, ["10.96.0.0/12".to_owned()].into()));
    let done = |part, action| reports.iter().map(|report| done(report, part, action)).sum::<u64>();
    assert_eq!((done(Part::Route, Action::Add), done(Part::Route, Action::Delete)), (1, 1));
    node.no_service("more");
    node.settle();

    // All are gone: the configuration counts again.
    node.proxier.set_service_cidrs([], node.now);
    node.settle();
    assert_eq!(node.local_routes(), configured);
    // Networks do not matter where addresses are bound to the device.
    let mut node = new(Binding::Addresses);
    node.settle();
    node.proxier.set_service_cidrs(found, node.now);
    assert!(node.settle().iter().all(|report| report.writes() == 0));
    assert_eq!(node.local_routes(), Vec::<String>::new());
}

/// A process that dies while networks change leaves every Service's address local, and no network without its guard.
#[test]
fn addresses_stay_local_while_networks_of_the_cluster_change() {
    let (wide, narrow) = ([network("10.96.0.0/12"), network("fd00:10::/112")], [network("10.96.0.8/30")]);
    for (before, after) in [(&wide[..], &narrow[..]), (&narrow, &wide), (&wide, &[]), (&[], &wide)] {
        for writes in 0.. {
            let mut options = options(Binding::Routes);
            options.config.ipvs.service_cidrs.clear();
            let mut node = with_services(&kernel(), options);
            node.proxier.set_service_cidrs(before.iter().copied(), node.now);
            node.settle();
            node.proxier.set_service_cidrs(after.iter().copied(), node.now);
            node.kernel.crash_after(writes);
            for _ in 0..2 {
                if node.proxier.next_wake().is_some_and(|at| at <= node.now + Duration::from_secs(60)) {
                    node.pass();
                }
                is_safe(&node.kernel, true, &format!("{before:?} to {after:?}, {writes} writes"));
            }
            if !node.kernel.has_crashed() {
                assert!(writes > 1, "{writes}");
                break;
            }
        }
    }
}

/// Programs that listen on all addresses must not answer in a network of Services.
#[test]
fn a_network_waits_for_the_rules_that_guard_it() {
    for (by, call) in [(RulesBy::Iptables, Call::RulesRestore), (RulesBy::Nftables, Call::TablesCommit)] {
        let mut options = options(Binding::Routes);
        options.config.ipvs.rules = by;
        let mut node = with_services(&kernel(), options);
        node.kernel.fail(Fault::new(call, PortErrorKind::Busy).every());
        let report = node.pass();
        assert!(report.has_failed());
        let singles = ["local 198.51.100.7/32 dev lo src 192.0.2.10", "local 203.0.113.9/32 dev lo src 192.0.2.10"];
        assert_eq!(node.local_routes(), singles, "a single address is served at once");
        assert_eq!(skipped(&report), ["local 10.96.0.0/12", "local fd00:10::/112"]);
        for _ in 0..3 {
            node.pass();
            assert_eq!(node.local_routes(), singles);
        }
        node.kernel.clear_faults();
        node.until(&ALL);
        // A lost route comes back once the guard is in place, even if other rules cannot be written.
        node.settle();
        node.kernel.set_route(RouteOwner::Ipvs, network("10.96.0.0/12"), false);
        node.kernel.fail(Fault::new(call, PortErrorKind::Busy).every());
        node.serve_both(
            "ranged",
            json!({
                "type": "LoadBalancer", "clusterIP": "10.96.0.20", "loadBalancerSourceRanges": ["192.0.2.0/24"],
                "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.20"}]}},
            }),
        );
        let report = node.full();
        assert!(report.has_failed() && node.local_routes().contains(&V4.to_owned()), "{report:#?}");
        assert!(!node.kernel.state().ipvs.contains("203.0.113.20"), "{}", node.kernel.state().ipvs);
        // One that the cluster names later, in a pass for changes.
        node.kernel.clear_faults();
        node.settle();
        node.kernel.fail(Fault::new(call, PortErrorKind::Busy).every());
        node.proxier.set_service_cidrs([network("10.96.0.0/12"), network("10.120.0.0/24")], node.now);
        let report = node.pass();
        assert!(!report.full && skipped(&report).contains(&"local 10.120.0.0/24".to_owned()), "{report:#?}");
    }
}

/// A process that dies at any moment leaves no network without its guard, and no Service's address without a way to this host.
#[test]
fn the_way_to_the_other_binding_is_safe_at_every_step() {
    let all = [Binding::Addresses, Binding::Routes];
    for (from, to) in [(None, all[1]), (Some(all[0]), all[1]), (Some(all[1]), all[0])] {
        let alone = kernel();
        with_services(&alone, options(to)).settle();
        let alone = held(&alone);
        for writes in 0.. {
            let kernel = kernel();
            if let Some(from) = from {
                with_services(&kernel, options(from)).settles();
            }
            let mut node = with_services(&kernel, options(to));
            kernel.crash_after(writes);
            for _ in 0..2 {
                node.pass();
                is_safe(&kernel, from.is_some(), &format!("{from:?} to {to:?}, {writes} writes"));
            }
            let is_over = !kernel.has_crashed();
            // The next process completes the change from any state.
            let mut next = with_services(&kernel, options(to));
            for _ in 0..2 {
                let report = next.pass();
                assert!(report.is_done(), "{from:?} to {to:?}, after {writes} writes: {report:#?}");
                is_safe(&kernel, from.is_some(), &format!("{from:?} to {to:?}, after {writes} writes"));
            }
            assert_eq!(held(&kernel), alone, "{from:?} to {to:?}, after {writes} writes");
            if is_over {
                assert!(writes > 3, "{writes}");
                break;
            }
        }
    }
}

/// State of the kernel but for the order of rules, which depends on earlier ones.
type Held = (String, Vec<String>, Option<BTreeSet<IpAddr>>, BTreeSet<String>, BTreeSet<String>);

fn held(kernel: &FakeKernel) -> Held {
    let state = kernel.state();
    let entries = state.sets.into_iter().flat_map(|(name, (_, entries))| {
        entries.into_iter().map(move |entry| format!("{name} {entry}")).collect::<Vec<_>>()
    });
    (state.ipvs, routes(kernel), bound(kernel), entries.collect(), guarded(kernel))
}

#[track_caller]
fn is_safe(kernel: &FakeKernel, serves: bool, when: &str) {
    let state = kernel.state();
    let (on_device, guarded) = (bound(kernel).unwrap_or_default(), guarded(kernel));
    let ours = || state.routes.iter().filter(|(owner, _)| *owner == RouteOwner::Ipvs).map(|(_, route)| route.network);
    for whole in ours().filter(|network| network.prefix_len() < network.max_prefix_len()) {
        assert!(guarded.contains(&whole.to_string()), "{when}: {whole} has no guard");
    }
    let wanted =
        if serves { ips(&["10.96.0.10", "10.96.0.11", "198.51.100.7", "203.0.113.9", "fd00:10::10"]) } else { vec![] };
    for address in wanted {
        let local = on_device.contains(&address) || ours().any(|network| network.contains(&address));
        assert!(local, "{when}: {address} is not local");
        let server = if address.is_ipv4() { format!("-A -t {address}:80 ") } else { format!("-A -t [{address}]:80 ") };
        assert!(state.ipvs.contains(&server), "{when}: {server} is not there");
    }
}

#[test]
fn what_does_not_come_keeps_what_is_there() {
    // No route: the addresses stay.
    let kernel = kernel();
    with_services(&kernel, options(Binding::Addresses)).settle();
    let before = bound(&kernel).unwrap();
    assert_eq!(before.len(), 5);
    let mut node = with_services(&kernel, options(Binding::Routes));
    kernel.fail(Fault::new(Call::RoutesAdd, PortErrorKind::Permission).every());
    let report = node.pass();
    assert!(!report.is_done() && bound(&kernel) == Some(before), "{report:#?}");
    kernel.clear_faults();
    node.until(&ALL);
    node.settle();
    assert_eq!(bound(&kernel), None);
    // No address: the routes stay, with their guard.
    let mut node = with_services(&kernel, options(Binding::Addresses));
    kernel.fail(Fault::new(Call::LinksBind, PortErrorKind::Permission).every());
    let report = node.pass();
    assert!(!report.is_done(), "{report:#?}");
    assert_eq!((routes(&kernel).len(), guarded(&kernel).len()), (4, 2));
    kernel.clear_faults();
    node.until(&[]);
    node.settle();
    assert_eq!((bound(&kernel).unwrap().len(), guarded(&kernel)), (5, [].into()));
}

#[test]
fn a_lost_route_is_put_back() {
    let mut node = new(Binding::Routes);
    node.settle();
    for lost in ["10.96.0.0/12", "203.0.113.9/32"] {
        node.kernel.set_route(RouteOwner::Ipvs, network(lost), false);
        let report = node.full();
        assert_eq!(node.local_routes(), ALL);
        let told: Vec<String> = report.drift.iter().map(ToString::to_string).collect();
        assert_eq!(told, [format!("+ route local {lost} dev lo src 192.0.2.10")]);
        // A notification is enough.
        node.kernel.set_route(RouteOwner::Ipvs, network(lost), false);
        node.proxier.host_changed(node.now);
        assert!(node.pass().full && node.local_routes() == ALL);
    }
    node.proxier.host_changed(node.now);
    assert!(!node.pass().full, "nothing differs");
    // A route too many has our protocol number.
    node.kernel.set_route(RouteOwner::Ipvs, network("203.0.113.99/32"), true);
    let report = node.full();
    assert_eq!((node.local_routes(), done(&report, Part::Route, Action::Delete)), (ALL.map(str::to_owned).to_vec(), 1));
    let told: Vec<String> = report.drift.iter().map(ToString::to_string).collect();
    assert!(told.len() == 1 && told[0].contains("203.0.113.99"), "{told:?}");
    // A deleted Service's route is not drift.
    node.no_service("web");
    let report = node.full();
    assert!(done(&report, Part::Route, Action::Delete) > 0 && report.drift.is_empty(), "{report:#?}");
}

/// The kernel deletes routes whose source goes.
#[test]
fn the_source_follows_the_nodes_address() {
    let mut node = new(Binding::Routes);
    node.settle();
    node.kernel.set_interface("eth0", &ips(&["192.0.2.20", NODE[1]]));
    assert_eq!(node.local_routes(), [V6]);
    node.proxier.host_changed(node.now);
    node.settles();
    let without: Vec<String> = ALL.iter().map(|of| of.replace(" src 192.0.2.10", "")).collect();
    assert_eq!(node.local_routes(), without, "the Node object has an address that the host has not");
    node.addresses(&["192.0.2.20", NODE[1]]);
    node.settle();
    let with: Vec<String> = ALL.iter().map(|of| of.replace("192.0.2.10", "192.0.2.20")).collect();
    assert_eq!(node.local_routes(), with);
    assert!(node.full().drift.is_empty());
}

/// An address whose detection of duplicates goes on is there and cannot be a source yet.
#[test]
fn a_source_that_the_kernel_refuses_is_left_out() {
    let mut node = new(Binding::Routes);
    node.kernel.fail(Fault::new(Call::RoutesAdd, PortErrorKind::Invalid));
    let report = node.pass();
    assert!(!report.is_done() && report.applied.failures.iter().all(|of| of.step.part == Part::Route), "{report:#?}");
    assert!(
        node.local_routes().len() == 4 && node.local_routes().iter().all(|of| !of.contains("src")),
        "{:?}",
        node.local_routes()
    );
    node.kernel.clear_faults();
    let report = node.full();
    assert!(report.is_done() && report.drift.is_empty(), "{report:#?}");
    assert_eq!(node.local_routes(), ALL);
}

/// Routes do not tell proxies apart.
#[test]
fn a_proxy_with_other_names_binds_addresses() {
    let kernel = kernel();
    with_services(&kernel, options(Binding::Routes)).settle();
    let mut other = options(Binding::Routes);
    other.config.names.device = InterfaceName::new("agent0").unwrap();
    other.config.names.prefix = proxier_core::config::NamePrefix::new("AGENT-").unwrap();
    let config = other.config.clone();
    let mut node = on(&kernel, other);
    node.serve_both("other", json!({"clusterIP": "10.97.0.1"}));
    let reports = node.settle();
    let told: Vec<&String> = reports.iter().flat_map(|report| &report.limited).collect();
    assert!(told.len() == 1 && told[0].contains("binds addresses to agent0"), "{told:?}");
    assert_eq!(kernel.state().devices["agent0"], ips(&["10.97.0.1"]));
    assert_eq!(node.local_routes(), ALL, "the other proxy's");
    assert!(cleanup(&config, None, &mut node.kernel.ports()).is_done());
    assert_eq!(node.local_routes(), ALL);
}

/// Addresses move between nodes: another interface gets a Service's, and loses it again.
#[test]
fn a_route_stays_while_another_interface_has_its_address() {
    let mut node = new(Binding::Routes);
    node.settle();
    node.kernel.set_interface("eth1", &ips(&["203.0.113.9"]));
    node.proxier.host_changed(node.now);
    node.settle();
    assert_eq!(node.local_routes(), ALL);
    assert!(node.full().drift.is_empty());
    node.no_service("web");
    node.settle();
    assert_eq!(node.local_routes(), [V4, V6], "no Service has it any more");
}

fn destroy_sets(kernel: &FakeKernel) {
    // Rules refer to the sets.
    for family in iptables::Family::ALL {
        kernel.with_host(|host| host.flush(family, Backend::NfTables));
    }
    for name in kernel.state().sets.into_keys() {
        kernel.ipset().unwrap().destroy_set(&name.parse().unwrap()).unwrap();
    }
}

/// The sets or table that name the addresses are destroyed; routes have our protocol number, and no foreign virtual server is at them.
#[test]
fn a_cleanup_and_a_new_process_know_what_is_ours_by_its_routes() {
    const THEIRS: [&str; 2] = ["TCP 192.0.2.77:80", "UDP 198.51.100.8:80"];
    for by in [RulesBy::Iptables, RulesBy::Nftables] {
        let lost = || {
            let kernel = kernel();
            let mut options = options(Binding::Routes);
            options.config.ipvs.rules = by;
            let mut node = on(&kernel, options.clone());
            let ips = json!({"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:10::10"],
                "ipFamilies": ["IPv4", "IPv6"], "externalIPs": ["198.51.100.7", "203.0.113.9"]});
            node.serve_both("web", ips);
            node.serve_both("dns", json!({"clusterIP": "10.96.0.11"}));
            node.settle();
            assert_eq!(node.local_routes(), ALL, "{by}");
            kernel.ipvs().load("-A -t 192.0.2.77:80 -s rr\n-A -u 198.51.100.8:80 -s rr\n").unwrap();
            kernel.set_route(RouteOwner::Userspace, network("198.51.100.8/32"), true);
            assert!(node.full().is_done());
            assert!(kernel.state().ipvs.lines().filter(|line| line.starts_with("-A")).count() == 7);
            destroy_sets(&kernel);
            for family in [nftables::Family::Ip, nftables::Family::Ip6] {
                let mut transaction = nftables::Transaction::new();
                transaction.delete_table(&nftables::TableKey { family, name: "proxier-ipvs".parse().unwrap() });
                assert_eq!(kernel.nftables().commit(&transaction).is_ok(), by == RulesBy::Nftables);
            }
            (kernel, options)
        };
        let (mut kernel, options) = lost();
        let cleaned = cleanup(&options.config, Some(Kind::Userspace), &mut kernel.ports());
        assert!(cleaned.is_done(), "{by}: {cleaned:#?}");
        assert_eq!(cleaned.foreign, THEIRS.map(|key| key.parse().unwrap()), "{by}");
        let state = kernel.state();
        assert_eq!(state.ipvs, "-A -t 192.0.2.77:80 -s rr\n-A -u 198.51.100.8:80 -s rr\n", "{by}");
        assert_eq!((routes(&kernel).len(), state.routes.len()), (0, 1), "{by}");

        // A Service goes while no process runs.
        let (kernel, options) = lost();
        let mut node = on(&kernel, options);
        node.serve_both("dns", json!({"clusterIP": "10.96.0.11"}));
        let report = node.pass();
        assert!(report.is_done() && report.foreign == THEIRS, "{by}: {report:#?}");
        node.settle();
        let ipvs = kernel.state().ipvs;
        let left: Vec<&str> = ipvs.lines().filter(|line| line.starts_with("-A")).collect();
        assert_eq!(left.len(), 3, "{by}: {ipvs}");
        assert_eq!(node.local_routes(), [V4, V6], "{by}");
        // A running process knows which virtual servers are foreign.
        kernel.ipvs().load("-A -t 10.96.0.99:80 -s rr\n").unwrap();
        let theirs = ["TCP 10.96.0.99:80", THEIRS[0], THEIRS[1]];
        assert_eq!(node.full().foreign, theirs, "{by}");
        destroy_sets(&kernel);
        assert_eq!(node.full().foreign, theirs, "{by}");
    }
}

//! Userspace mode on a kernel in memory: its listeners, its local addresses, foreign objects, restarts.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use proxier_core::config::{LocalTraffic, Neighbour, User};
use proxier_core::engine::Options;
use proxier_core::fake::{Call, Fault};
use proxier_core::modes::{self, userspace};
use proxier_core::net::{FrontendKey, Network};
use proxier_core::plan::report::Report;
use proxier_core::plan::step::{Action, Part};
use proxier_core::ports::{PortErrorKind, RouteOwner};
use proxier_core::service::{Packet, Verdict};
use serde_json::json;
use testkit::cost::{compare, cost};

use crate::node::{Node, kernel, options_of};

fn options() -> Options {
    options_of(modes::Kind::Userspace)
}

fn new() -> Node {
    Node::on(kernel(), options())
}

fn key(text: &str) -> FrontendKey {
    text.parse().unwrap()
}

fn networks(texts: &[&str]) -> BTreeSet<Network> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

impl Node {
    /// Listeners, each with the number of endpoints for clients outside and for those inside.
    fn listeners(&self) -> Vec<String> {
        let listeners = self.kernel.listeners();
        listeners.values().map(|of| format!("{} {} {}", of.key, of.outside.len(), of.inside.len())).collect()
    }

    fn routes(&self) -> BTreeSet<Network> {
        let routes = self.kernel.state().routes.into_iter();
        routes.filter(|(owner, _)| *owner == RouteOwner::Userspace).map(|(_, route)| route.network).collect()
    }
}

fn done(report: &Report, part: Part, action: Action) -> u64 {
    report.applied.done.get(&(part, action)).copied().unwrap_or_default()
}

#[test]
fn a_service_is_listened_for_on_all_its_addresses() {
    let mut node = new();
    node.service(
        "web",
        json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.10", "externalIPs": ["198.51.100.7", "192.0.2.10"],
            "ports": [{"name": "p", "port": 80, "nodePort": 30080}, {"name": "u", "port": 53, "protocol": "UDP"}],
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}},
        }),
    );
    node.slice("web", &["10.244.1.7", "10.244.0.8@node-a"]);
    let report = node.settles();
    let expected = [
        "TCP 10.96.0.10:80 2 2",
        "TCP 192.0.2.10:80 2 2",
        "TCP 192.0.2.10:30080 2 2",
        "TCP 198.51.100.7:80 2 2",
        "TCP 203.0.113.9:80 2 2",
        "UDP 10.96.0.10:53 2 2",
        "UDP 192.0.2.10:53 2 2",
        "UDP 198.51.100.7:53 2 2",
        "UDP 203.0.113.9:53 2 2",
    ];
    assert_eq!(node.listeners(), expected);
    assert_eq!(node.routes(), networks(&["10.96.0.10/32", "198.51.100.7/32", "203.0.113.9/32"]));
    assert_eq!(done(&report, Part::Listener, Action::Add), 9);
    assert_eq!(done(&report, Part::Route, Action::Add), 3);
    let groups: BTreeSet<_> = node.kernel.listeners().into_values().map(|of| of.group).collect();
    assert_eq!(groups.len(), 2, "the addresses of a port belong together: {groups:?}");
    assert_eq!(node.full().writes(), 0, "nothing differs");
    // One slice changes: its listeners, and nothing else.
    node.slice("web", &["10.244.1.7"]);
    let report = node.settles();
    assert_eq!((report.full, done(&report, Part::Listener, Action::Change), report.writes()), (false, 9, 9));
    assert_eq!(node.listeners()[0], "TCP 10.96.0.10:80 1 1");
    node.no_service("web");
    let report = node.settles();
    assert_eq!((node.listeners(), node.routes()), (vec![], networks(&[])));
    assert_eq!((done(&report, Part::Listener, Action::Delete), done(&report, Part::Route, Action::Delete)), (9, 3));
}

/// Reports about endpoints that get nothing.
fn left_out(report: &Report) -> Vec<String> {
    report.refused.iter().filter(|of| of.endpoint.is_some()).map(ToString::to_string).collect()
}

#[test]
fn endpoints_on_which_this_process_listens_are_reported() {
    let mut node = new();
    let at = |cluster_ip: &str| json!({"clusterIP": cluster_ip, "ports": [{"name": "p", "port": 8080}]});
    let because = |owner: &str| format!("this process listens there itself, for demo/{owner}: connections would loop");
    // The endpoint is the Service's own address.
    node.service("web", at("10.96.0.1"));
    node.slice("web", &["10.244.1.7", "10.96.0.1"]);
    let own = format!("TCP 10.96.0.1:8080 of demo/web is not served by endpoint 10.96.0.1:8080: {}", because("web"));
    assert_eq!(left_out(&node.settles()), [&*own]);
    let verdict =
        |node: &Node| node.traced(&Packet::new("198.51.100.9".parse().unwrap(), key("TCP 10.96.0.1:8080"))).verdict;
    assert!(verdict(&node).to_string().starts_with("10.244.1.7:8080 ("), "{}", verdict(&node));
    node.slice("web", &["10.96.0.1"]);
    node.settles();
    assert_eq!(verdict(&node), Verdict::Rejected, "its connection is reset");
    // The endpoint is the address of another Service, which is not there yet, and leads back by an external IP.
    node.service("one", at("10.96.0.2"));
    node.slice("one", &["10.96.0.3"]);
    let report = node.settles();
    assert_eq!((left_out(&report), report.full), (vec![own.clone()], false), "nobody listens there");
    let mut other = at("10.96.0.3");
    other["externalIPs"] = json!(["198.51.100.7"]);
    node.service("other", other);
    node.slice("other", &["10.96.0.2"]);
    let report = node.settles();
    let of = |key: &str, owner: &str, endpoint: &str, of: &str| {
        format!("TCP {key} of demo/{owner} is not served by endpoint {endpoint}: {}", because(of))
    };
    let back = [
        of("10.96.0.3:8080", "other", "10.96.0.2:8080", "one"),
        of("198.51.100.7:8080", "other", "10.96.0.2:8080", "one"),
    ];
    let [first, last] = &back;
    assert_eq!((left_out(&report), report.full), (vec![own.clone(), first.clone(), last.clone()], false));
    let there = of("10.96.0.2:8080", "one", "10.96.0.3:8080", "other");
    assert_eq!(left_out(&node.full()), [&own, &there, &back[0], &back[1]].map(String::as_str));
    let listed: Vec<String> = node.proxier.refused().map(|refused| refused.to_string()).collect();
    assert_eq!(listed, left_out(&node.full()), "for `explain` too");
    // The endpoint is a node port, on any address of the node.
    let node_port = json!({
        "type": "NodePort", "clusterIP": "10.96.0.4", "ports": [{"name": "p", "port": 80, "nodePort": 8080}],
    });
    node.service("port", node_port);
    node.slice("port", &["192.0.2.10"]);
    let by_port = ["10.96.0.4:80", "192.0.2.10:8080"].map(|key| of(key, "port", "192.0.2.10:8080", "port"));
    let mut all = [&own, &there, first, &by_port[0], &by_port[1], last].map(String::clone).to_vec();
    assert_eq!(left_out(&node.settles()), all);
    // The endpoint has the other protocol, or the other port.
    node.service("u", json!({"clusterIP": "10.96.0.5", "ports": [{"name": "u", "port": 5353, "protocol": "UDP"}]}));
    node.slice("u", &["10.96.0.2", "10.96.0.5"]);
    let udp = of("10.96.0.5:5353", "u", "10.96.0.5:5353", "u").replace("TCP", "UDP");
    all.push(udp);
    assert_eq!(left_out(&node.settles()), all);
    for name in ["web", "other", "port", "u"] {
        node.no_service(name);
    }
    node.settles();
    assert_eq!(left_out(&node.full()), Vec::<String>::new());
}

#[test]
fn a_listener_without_a_descriptor_fails_alone_and_comes_back() {
    let mut node = new();
    node.service("web", json!({"clusterIP": "10.96.0.1"}));
    node.settles();
    node.kernel.fail(Fault::new(Call::RelaysServe, PortErrorKind::Full));
    node.service("other", json!({"clusterIP": "10.96.0.2"}));
    let report = node.pass();
    let refused: Vec<String> = report.refused_by_kernel().map(|failure| failure.step.name.clone()).collect();
    assert_eq!((refused, report.has_failed()), (vec!["TCP 10.96.0.2:80".to_owned()], false));
    node.settles();
    assert_eq!(node.listeners(), ["TCP 10.96.0.1:80 0 0", "TCP 10.96.0.2:80 0 0"]);
}

#[test]
fn networks_that_are_not_the_services_alone_cut_nobody_off() {
    let mut options = options();
    options.config.local_traffic = LocalTraffic::ClusterCidrs(vec!["10.244.0.0/16".parse().unwrap()]);
    options.userspace.service_cidrs =
        ["10.0.0.0/8", "192.0.2.0/24", "10.96.0.0/12"].map(|network| network.parse().unwrap()).to_vec();
    let mut node = Node::on(kernel(), options);
    node.service("web", json!({"clusterIP": "10.1.0.10"}));
    node.service("inside", json!({"clusterIP": "10.96.0.10"}));
    let report = node.settles();
    let reasons = ["10.0.0.0/8, a network of cluster IPs", "192.0.2.0/24, a network of cluster IPs"];
    let holds = ["it has 10.244.0.0/16, a network of pods;", "it has 192.0.2.10, an address of this node;"];
    assert_eq!(report.limited.len(), 2, "{report:#?}");
    for (said, (reason, holds)) in report.limited.iter().zip(reasons.iter().zip(holds)) {
        assert!(said.starts_with(reason) && said.contains(holds), "{said}");
    }
    assert_eq!(node.routes(), networks(&["10.1.0.10/32", "10.96.0.0/12"]));
    let again = node.full();
    assert_eq!((again.writes(), again.limited.len()), (0, 0), "told once");
    // The node gets an address within. Clients that are connected do not keep the route.
    node.kernel.set_connected("10.96.0.99".parse().unwrap(), true);
    node.kernel.set_interface("eth1", &["10.100.0.1".parse().unwrap()]);
    node.proxier.host_changed(node.now);
    let report = node.settles();
    assert_eq!(node.routes(), networks(&["10.1.0.10/32", "10.96.0.10/32"]));
    assert_eq!((report.limited.len(), report.drift.len()), (3, 0), "{report:#?}");
    node.service("other", json!({"clusterIP": "10.96.0.11"}));
    assert_eq!(node.settles().limited.len(), 0);
    assert!(node.routes().contains(&"10.96.0.11/32".parse().unwrap()));
    // A host that the node needs, found while it runs: no full pass follows.
    let gateway = Neighbour::new("10.1.0.1".parse().unwrap());
    node.proxier.set_neighbours(User::NameServer, [gateway], node.now);
    node.kernel.set_interface("eth1", &[]);
    node.proxier.host_changed(node.now);
    node.settles();
    // An address that is gone stays the node's for ten seconds.
    node.now += Duration::from_secs(30);
    let report = node.full();
    assert_eq!(node.routes(), networks(&["10.1.0.10/32", "10.96.0.0/12"]), "{report:#?}");
    node.proxier.set_neighbours(User::NameServer, [Neighbour::new("10.96.7.7".parse().unwrap())], node.now);
    let report = node.settles();
    assert_eq!(node.routes(), networks(&["10.1.0.10/32", "10.96.0.10/32", "10.96.0.11/32"]), "{report:#?}");
    assert!(!report.full && report.limited.len() == 3 && report.drift.is_empty(), "{report:#?}");
}

#[test]
fn sctp_is_refused_with_the_reason() {
    let mut node = new();
    let ports = json!([{"name": "s", "port": 132, "protocol": "SCTP"}]);
    node.service("signals", json!({"clusterIP": "10.96.0.10", "ports": ports}));
    let report = node.settles();
    assert_eq!((node.listeners(), node.routes()), (vec![], networks(&[])));
    assert_eq!(report.refused.len(), 1);
    assert_eq!((&*report.refused[0].service, &*report.refused[0].reason), ("demo/signals", userspace::NO_SCTP));
}

#[test]
fn a_route_stays_while_connections_need_it() {
    let mut node = new();
    node.service("web", json!({"clusterIP": "10.96.0.10"}));
    node.slice("web", &["10.244.1.7"]);
    node.settles();
    let address: IpAddr = "10.96.0.10".parse().unwrap();
    node.kernel.set_connected(address, true);
    node.no_service("web");
    node.settles();
    assert_eq!((node.listeners(), node.routes()), (vec![], networks(&["10.96.0.10/32"])));
    for _ in 0..3 {
        assert_eq!(node.settles().writes(), 0);
        assert_eq!(node.routes(), networks(&["10.96.0.10/32"]));
    }
    node.kernel.set_connected(address, false);
    let report = node.settles();
    assert_eq!((report.full, node.routes()), (false, networks(&[])));
    // Another Service gets the address meanwhile.
    node.service("web", json!({"clusterIP": "10.96.0.10"}));
    node.settles();
    node.kernel.set_connected(address, true);
    node.no_service("web");
    node.settles();
    node.service("next", json!({"clusterIP": "10.96.0.10", "ports": [{"name": "p", "port": 81}]}));
    node.settles();
    node.kernel.set_connected(address, false);
    node.full();
    assert_eq!(node.routes(), networks(&["10.96.0.10/32"]));
}

#[test]
fn many_routes_that_connections_need_are_found_in_linear_time() {
    const FEW: u32 = 2000;
    let removed_at_once = |count: u32| {
        let mut node = new();
        let addresses: Vec<Ipv4Addr> = (0..count).map(|number| Ipv4Addr::from(0x0a60_0000 + number)).collect();
        for address in &addresses {
            node.service(&address.to_string(), json!({"clusterIP": address}));
            node.kernel.set_connected((*address).into(), true);
        }
        node.settles();
        for address in &addresses {
            node.no_service(&address.to_string());
        }
        node.settles();
        assert_eq!((node.listeners().len(), node.routes().len()), (0, addresses.len()));
    };
    let [few, many] = [FEW, 8 * FEW].map(|count| cost(2, || removed_at_once(count)));
    compare("routes", FEW as usize, few, many);
}

/// A notification is enough.
#[test]
fn a_lost_route_is_put_back() {
    let mut node = new();
    node.service("web", json!({"clusterIP": "10.96.0.10"}));
    node.settles();
    let route = networks(&["10.96.0.10/32"]);
    node.kernel.set_route(RouteOwner::Userspace, "10.96.0.10/32".parse().unwrap(), false);
    node.proxier.host_changed(node.now);
    assert!(node.pass().full && node.routes() == route);
    node.proxier.host_changed(node.now);
    assert!(!node.pass().full, "nothing differs");
}

#[test]
fn failures_are_reported_and_mended() {
    let mut node = new();
    node.service("web", json!({"clusterIP": "10.96.0.10"}));
    node.slice("web", &["10.244.1.7"]);
    let dns = json!([{"name": "http", "port": 53, "protocol": "UDP"}]);
    node.service("dns", json!({"clusterIP": "10.96.0.11", "ports": dns}));
    node.kernel.fail(Fault::new(Call::RelaysConfigure, PortErrorKind::Busy));
    assert!(node.pass().has_failed());
    assert_eq!(node.kernel.writes().conntrack, 0, "UDP flows go on while this process relays nothing");
    node.kernel.fail(Fault::new(Call::RoutesNetworks, PortErrorKind::Busy));
    assert!(node.pass().has_failed());
    node.kernel.fail(Fault::new(Call::RoutesAdd, PortErrorKind::Permission).item(0));
    let report = node.pass();
    assert!(report.has_failed() && report.applied.failures.len() == 1, "{report:#?}");
    node.settles();
    assert_eq!((node.listeners().len(), node.routes().len()), (2, 2));
    assert!(node.kernel.writes().conntrack > 0);
}

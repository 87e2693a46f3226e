//! Foreign objects: virtual servers on our node ports, addresses that come and go, and neighbours that the node has to reach.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use proxier_core::config::{Binding, Config, Neighbour, RulesBy, User};
use proxier_core::engine::{Options, Reconciler};
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::modes::Kind;
use proxier_core::modes::ipvs::cleanup::cleanup;
use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use proxier_core::plan::report::Report;
use proxier_core::ports::PortErrorKind;
use serde_json::{Value, json};

use crate::node::{Node, service};

const NODE: &str = "192.0.2.10";
/// The node's second address, which comes and goes.
const SECOND: &str = "192.0.2.11";

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A Service with a node port of TCP and the same of UDP.
fn with_node_port(name: &str, address: &str, port: u16) -> ServiceObject {
    let ports =
        ["TCP", "UDP"].map(|protocol| json!({"name": protocol, "protocol": protocol, "port": 80, "nodePort": port}));
    service(name, json!({"type": "NodePort", "clusterIP": address, "ports": ports}))
}

fn external(address: &str, port: u16) -> ServiceObject {
    service("odd", json!({"clusterIP": "10.96.0.99", "externalIPs": [address], "ports": [{"port": port}]}))
}

fn balanced(address: &str, port: u16) -> ServiceObject {
    let status = json!({"loadBalancer": {"ingress": [{"ip": address}]}});
    service(
        "odd",
        json!({"type": "LoadBalancer", "clusterIP": "10.96.0.99", "ports": [{"port": port}], "status": status}),
    )
}

fn slice(namespace: &str, service: &str, port: u16, endpoints: &[&str]) -> EndpointSliceObject {
    let endpoints: Vec<Value> = endpoints.iter().map(|address| json!({ "addresses": [address] })).collect();
    serde_json::from_value(json!({
        "metadata": {
            "namespace": namespace, "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4", "ports": [{"name": "", "port": port}], "endpoints": endpoints,
    }))
    .unwrap()
}

fn with(options: Options) -> Node {
    let kernel = FakeKernel::new();
    kernel.set_interface("eth0", &addresses(&[NODE, SECOND]));
    Node::on(kernel, options)
}

fn new() -> Node {
    with(Options::default())
}

impl Node {
    /// `default/kubernetes`, whose endpoints are API servers.
    fn api_servers(&mut self, endpoints: &[&str]) {
        let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 443}]});
        self.take(json!({"metadata": {"namespace": "default", "name": "kubernetes"}, "spec": spec}));
        self.proxier.upsert_slice(&slice("default", "kubernetes", 6443, endpoints), self.now);
    }

    fn serve(&mut self, service: &ServiceObject) {
        self.proxier.upsert_service(service, self.now);
    }

    /// The process is gone, and another begins, with these Services.
    fn restart(&mut self, options: Options, services: &[ServiceObject]) {
        self.kernel.restart();
        self.proxier = Reconciler::new("node-a", options, self.now);
        for service in services {
            self.serve(service);
        }
        self.proxier.start(self.now);
    }

    fn servers(&self) -> BTreeSet<String> {
        let snapshot = self.kernel.ipvs().snapshot().unwrap();
        snapshot.entries.iter().map(|entry| entry.virtual_server.server.key.to_string()).collect()
    }

    fn at(&self, address: &str) -> Vec<String> {
        self.servers().into_iter().filter(|key| key.contains(&format!(" {address}:"))).collect()
    }

    fn has_server(&self, key: &str) -> bool {
        self.servers().contains(key)
    }

    fn bound_here(&self) -> Vec<String> {
        let state = self.kernel.state();
        let bound = state.devices.get("kube-ipvs0").into_iter().flatten().map(ToString::to_string);
        // The address of default/kubernetes is left out, if it is there.
        bound.filter(|address| address != "10.96.0.1").collect()
    }

    /// Removes sets that kube-proxy, and earlier versions of this crate, do not write.
    fn without_notes(&self) {
        for name in ["KUBE-NODE-PORT-SERVED", "KUBE-6-NODE-PORT-SERVED"] {
            let _ = self.kernel.ipset().unwrap().destroy_set(&name.parse().unwrap());
        }
    }

    fn rejected(&self) -> Vec<String> {
        self.proxier.desired().rejected().map(|(_, refusal)| refusal.to_string()).collect()
    }
}

/// Foreign virtual servers; one is at the address of a Service, with another port.
const FOREIGN: [&str; 4] =
    ["TCP 10.96.0.10:7", "TCP 198.51.100.9:30080", "TCP [2001:db8::9]:30080", "UDP 198.51.100.9:30080"];

fn invite(world: &Node) {
    world
        .kernel
        .ipvs()
        .load(
            "-A -t 198.51.100.9:30080 -s wlc -p 300\n-a -t 198.51.100.9:30080 -r 198.51.100.1:80 -g -w 3\n\
             -A -u 198.51.100.9:30080 -s rr\n-A -t [2001:db8::9]:30080 -s rr\n-A -t 10.96.0.10:7 -s rr\n",
        )
        .unwrap();
}

fn foreign_of(report: &Report) -> Vec<String> {
    let mut keys: Vec<String> = report.foreign.clone();
    keys.sort();
    keys
}

/// Neither a port nor an address alone makes a virtual server own.
#[test]
fn a_cleanup_touches_no_virtual_server_on_a_node_port_at_a_foreign_address() {
    let mut world = new();
    invite(&world);
    world.serve(&with_node_port("web", "10.96.0.10", 30080));
    let report = world.full();
    assert!(report.is_done() && report.drift.is_empty(), "{report:#?}");
    assert_eq!((world.at(NODE).len(), world.at(SECOND).len()), (2, 2));
    let cleaned = cleanup(&Config::default(), &|_, _, _| false, &mut world.kernel.ports());
    assert!(cleaned.is_done());
    assert_eq!(
        cleaned.foreign.iter().map(ToString::to_string).collect::<BTreeSet<_>>(),
        FOREIGN.map(str::to_owned).into()
    );
    assert_eq!(world.servers(), FOREIGN.map(str::to_owned).into());
    let left = world.kernel.state().sets.into_keys().filter(|name| name.starts_with("KUBE-")).count();
    assert_eq!(left, 0);
}

/// The process dies, then the address goes, then the Service: its virtual servers are still found.
#[test]
fn what_was_served_at_an_address_that_is_gone_is_found_after_a_kill() {
    let mut world = new();
    invite(&world);
    let web = with_node_port("web", "10.96.0.10", 30080);
    world.serve(&web);
    world.serve(&with_node_port("shop", "10.96.0.11", 30081));
    world.full();
    assert_eq!(world.at(SECOND).len(), 4);
    world.kernel.set_interface("eth0", &addresses(&[NODE]));
    world.restart(Options::default(), &[web]);
    let report = world.full();
    assert!(report.is_done());
    // The deleted Service goes at once, the address after its time.
    assert_eq!(world.at(SECOND), ["TCP 192.0.2.11:30080", "UDP 192.0.2.11:30080"]);
    world.settle_for(Options::default().address_grace);
    assert_eq!(world.at(SECOND), Vec::<String>::new());
    assert_eq!(world.at(NODE), ["TCP 192.0.2.10:30080", "UDP 192.0.2.10:30080"]);
    assert_eq!(foreign_of(&world.full()), FOREIGN);
}

/// kube-proxy does not record addresses. Its virtual servers at addresses of this host are removed; those elsewhere may be foreign. The process may
/// be killed at any write.
#[test]
fn what_kube_proxy_left_is_recognised_at_the_addresses_of_the_host() {
    for writes in 0..200 {
        let mut world = new();
        let web = [with_node_port("web", "10.96.0.10", 30080)];
        world.serve(&web[0]);
        world.serve(&with_node_port("shop", "10.96.0.11", 30081));
        world.full();
        world.without_notes();
        invite(&world);
        // A network of another interface, which serves node ports no more, and a Service that is gone.
        let mut options = Options::default();
        let within = proxier_core::config::NodePortAddresses::Within(vec![proxier_core::net::Network::from(
            addresses(&[NODE])[0],
        )]);
        options.config.node_port_addresses = within;
        world.restart(options.clone(), &web);
        world.kernel.crash_after(writes);
        let _ = world.pass();
        let crashed = world.kernel.has_crashed();
        world.restart(options, &web);
        for _ in 0..2 {
            let report = world.full();
            assert!(report.is_done(), "after {writes}: {report:#?}");
            assert_eq!(foreign_of(&report), FOREIGN, "after {writes}");
        }
        assert_eq!(world.at(SECOND), Vec::<String>::new(), "after {writes}");
        assert_eq!(world.at(NODE), ["TCP 192.0.2.10:30080", "UDP 192.0.2.10:30080"], "after {writes}");
        if !crashed {
            assert!(writes > 10);
            return;
        }
    }
    panic!("the pass does not end");
}

/// kube-proxy had the node between two runs of this proxy: its additions are in its set, and in ours without an address.
#[test]
fn what_kube_proxy_added_meanwhile_is_recognised() {
    let mut world = new();
    let web = with_node_port("web", "10.96.0.10", 30080);
    world.serve(&web);
    world.full();
    let mut ipset = world.kernel.ipset().unwrap();
    let entry = ipset::Entry::parse(ipset::SetType::BitmapPort, "30099").unwrap();
    let name = "KUBE-NODE-PORT-TCP".parse().unwrap();
    assert!(ipset.add_entries(&name, &[entry], ipset::IfPresent::Update).failures.is_empty());
    world
        .kernel
        .ipvs()
        .load("-A -t 192.0.2.10:30099 -s rr\n-A -t 192.0.2.11:30099 -s rr\n-A -t 198.51.100.9:30099 -s rr\n")
        .unwrap();
    world.restart(Options::default(), &[web]);
    let report = world.full();
    assert_eq!(foreign_of(&report), ["TCP 198.51.100.9:30099"]);
    assert!(!world.has_server("TCP 192.0.2.10:30099") && !world.has_server("TCP 192.0.2.11:30099"));
}

/// A Service names the address and port of a foreign virtual server, and is deleted before the kernel could be read.
#[test]
fn what_was_never_made_is_not_ours_because_a_service_passed_by() {
    let mut world = new();
    world.kernel.ipvs().load("-A -t 10.96.0.50:80 -s wlc\n").unwrap();
    world.serve(&with_node_port("web", "10.96.0.10", 30080));
    world.full();
    world.kernel.fail(Fault::new(Call::SetsEntries, PortErrorKind::Busy).every());
    world.serve(&service("passing", json!({"clusterIP": "10.96.0.50", "ports": [{"port": 80}]})));
    assert!(!world.full().unread.is_empty());
    world.no_service("passing");
    world.kernel.clear_faults();
    for _ in 0..3 {
        world.now += Duration::from_secs(60);
        let report = world.full();
        assert_eq!(foreign_of(&report), ["TCP 10.96.0.50:80"]);
    }
    assert!(world.has_server("TCP 10.96.0.50:80"));
    // A virtual server that this proxy made is its own, even if its marks are lost.
    world.serve(&service("passing", json!({"clusterIP": "10.96.0.51", "ports": [{"port": 80}]})));
    world.full();
    for set in ["KUBE-CLUSTER-IP", "KUBE-IPVS-IPS"] {
        world.kernel.ipset().unwrap().flush_set(&set.parse().unwrap()).unwrap();
    }
    let mut other = world.kernel.clone();
    drop(other.ports().links.unbind("kube-ipvs0", &addresses(&["10.96.0.51"])));
    world.no_service("passing");
    world.full();
    assert!(!world.has_server("TCP 10.96.0.51:80"));
}

/// A network manager takes an address away and gives it back: node ports on it stay.
#[test]
fn an_address_that_is_away_for_a_moment_keeps_its_node_ports() {
    let mut world = new();
    world.serve(&with_node_port("web", "10.96.0.10", 30080));
    world.full();
    let writes = world.kernel.writes();
    for _ in 0..3 {
        world.kernel.set_interface("eth0", &addresses(&[NODE]));
        world.proxier.host_changed(world.now);
        world.settle_for(Duration::from_millis(500));
        assert_eq!(world.at(SECOND).len(), 2);
        world.kernel.set_interface("eth0", &addresses(&[NODE, SECOND]));
        world.proxier.host_changed(world.now);
        world.settle_for(Duration::from_millis(500));
    }
    // Short absences do not add up, and nothing was written.
    world.settle_for(Duration::from_secs(20));
    assert_eq!((world.at(SECOND).len(), world.kernel.writes()), (2, writes));

    // Gone for good: the proxy acts once the time is over, without being asked.
    world.kernel.set_interface("eth0", &addresses(&[NODE]));
    world.proxier.host_changed(world.now);
    let grace = Options::default().address_grace;
    world.settle_for(grace.saturating_sub(Duration::from_millis(1)));
    assert_eq!(world.at(SECOND).len(), 2);
    assert!(world.proxier.next_wake().unwrap() <= world.now + Duration::from_millis(1));
    world.settle_for(Duration::from_millis(1));
    assert_eq!(world.at(SECOND), Vec::<String>::new());
    assert_eq!(world.at(NODE).len(), 2);
    let sets = world.kernel.state().sets;
    let served: Vec<_> = sets["KUBE-NODE-PORT-SERVED"].1.iter().cloned().collect();
    assert_eq!(served, ["192.0.2.10,tcp:30080", "192.0.2.10,udp:30080"]);
}

/// A pass may take longer than an address is missing: addresses seen meanwhile count, not only two reads.
#[test]
fn an_address_that_was_seen_again_meanwhile_keeps_its_node_ports() {
    let grace = Options::default().address_grace;
    for seen in [true, false] {
        let mut world = new();
        world.serve(&with_node_port("web", "10.96.0.10", 30080));
        world.full();
        world.kernel.set_interface("eth0", &addresses(&[NODE]));
        world.proxier.host_changed(world.now);
        world.settle_for(Duration::ZERO);
        // The address came back and went again between two readings.
        world.now += grace;
        if seen {
            world.proxier.addresses_seen(addresses(&[SECOND]), world.now);
        }
        world.proxier.host_changed(world.now);
        world.settle_for(Duration::ZERO);
        assert_eq!(!world.at(SECOND).is_empty(), seen);
        world.settle_for(grace);
        assert_eq!(world.at(SECOND), Vec::<String>::new());
    }
}

/// Such an address is rejected on any port, unless it is the node's own; bound, it would lead to the node itself.
#[test]
fn nobody_gets_an_address_that_the_node_lives_by() {
    let mut world = new();
    world.kernel.set_gateways(addresses(&["192.0.2.254", "2001:db8::fe"]));
    let tcp = |text: &str, port| Neighbour::tcp(text.parse().unwrap(), port);
    world.proxier.set_neighbours(User::ApiServer, [tcp("203.0.113.1", 6443), tcp("192.0.2.10", 6443)], world.now);
    let name_servers = ["203.0.113.53", "10.96.0.99", "127.0.0.53"].map(|text| Neighbour::new(text.parse().unwrap()));
    world.proxier.set_neighbours(User::NameServer, name_servers, world.now);
    world.api_servers(&["203.0.113.2", "192.0.2.10"]);
    world.proxier.upsert_slice(&slice("demo", "odd", 8080, &["10.244.0.1"]), world.now);
    for (service, key, user) in [
        (external("203.0.113.1", 6443), "TCP 203.0.113.1:6443", "the API server"),
        (external("203.0.113.1", 80), "TCP 203.0.113.1:80", "the API server"),
        (balanced("203.0.113.1", 443), "TCP 203.0.113.1:443", "the API server"),
        (external("203.0.113.2", 80), "TCP 203.0.113.2:80", "the API server"),
        (external("192.0.2.254", 80), "TCP 192.0.2.254:80", "the gateway of this node's default route"),
        (balanced("192.0.2.254", 80), "TCP 192.0.2.254:80", "the gateway of this node's default route"),
        (external("203.0.113.53", 80), "TCP 203.0.113.53:80", "a name server of this node"),
        (external("203.0.113.53", 53), "TCP 203.0.113.53:53", "a name server of this node"),
        // A load balancer may be the name server, but is not with another port.
        (balanced("203.0.113.53", 80), "TCP 203.0.113.53:80", "a name server of this node"),
        (balanced("203.0.113.53", 853), "TCP 203.0.113.53:853", "a name server of this node"),
    ] {
        world.serve(&service);
        let report = world.full();
        assert!(report.is_done());
        let reason = "has that address, and this node could not reach it any more";
        assert_eq!(world.rejected(), [format!("{key}: {user} {reason}")]);
        assert_eq!(report.refused.len(), 1);
        assert!(!world.has_server(key), "{key}");
        assert_eq!(world.bound_here(), ["10.96.0.99"], "the rest of the Service is served");
    }
    // The node itself has an API server's address: not bound, so only its port is rejected.
    world.serve(&external("192.0.2.10", 6443));
    world.full();
    assert_eq!(world.rejected(), ["TCP 192.0.2.10:6443: the API server answers there"]);
    for (service, key) in [
        (external("192.0.2.10", 80), "TCP 192.0.2.10:80"),
        (external("203.0.113.3", 80), "TCP 203.0.113.3:80"),
        // DNS that the cluster serves to its nodes.
        (balanced("203.0.113.53", 53), "TCP 203.0.113.53:53"),
        // The name server's address is a cluster IP: cluster DNS itself.
        (external("203.0.113.4", 80), "TCP 10.96.0.99:80"),
    ] {
        world.serve(&service);
        assert!(world.full().is_done());
        assert_eq!(world.rejected(), Vec::<String>::new(), "{key}");
        assert!(world.has_server(key), "{key}");
    }
    // A load balancer for the API server leads there, as long as it has endpoints.
    world.proxier.upsert_slice(&slice("demo", "odd", 6443, &["203.0.113.2"]), world.now);
    world.serve(&balanced("203.0.113.1", 6443));
    world.full();
    assert!(world.has_server("TCP 203.0.113.1:6443") && world.rejected().is_empty());
    world.proxier.upsert_slice(&slice("demo", "odd", 6443, &[]), world.now);
    world.full();
    assert!(!world.has_server("TCP 203.0.113.1:6443") && world.rejected().len() == 1);
}

/// Services lose reserved addresses, and get those that became free, when neighbours change.
#[test]
fn neighbours_are_followed() {
    let mut world = new();
    world.kernel.set_gateways(addresses(&["192.0.2.254"]));
    world.serve(&external("192.0.2.1", 80));
    world.full();
    assert_eq!(world.bound_here(), ["10.96.0.99", "192.0.2.1"]);
    // The default route moves to an address that a Service has.
    world.kernel.set_gateways(addresses(&["192.0.2.1"]));
    world.proxier.host_changed(world.now);
    world.settle_for(Duration::ZERO);
    assert_eq!(world.bound_here(), ["10.96.0.99"]);
    assert_eq!(world.rejected().len(), 1);
    // Without a default route the earlier gateway stays reserved: bound, the route could not come back.
    world.kernel.set_gateways([]);
    world.proxier.host_changed(world.now);
    world.settle_for(Duration::ZERO);
    assert_eq!(world.bound_here(), ["10.96.0.99"]);
    world.kernel.set_gateways(addresses(&["192.0.2.254"]));
    world.proxier.host_changed(world.now);
    world.settle_for(Duration::ZERO);
    assert_eq!(world.bound_here(), ["10.96.0.99", "192.0.2.1"]);
    // An endpoint of default/kubernetes comes and goes.
    world.api_servers(&["192.0.2.1"]);
    world.settle_for(Duration::ZERO);
    assert_eq!(world.bound_here(), ["10.96.0.99"]);
    world.api_servers(&[]);
    world.settle_for(Duration::ZERO);
    assert_eq!(world.bound_here(), ["10.96.0.99"], "none is no news of where it is");
    world.api_servers(&["192.0.2.2"]);
    world.settle_for(Duration::ZERO);
    assert_eq!(world.bound_here(), ["10.96.0.99", "192.0.2.1"]);
}

/// A Node of the cluster with these addresses.
fn node(name: &str, addresses: &[&str]) -> NodeObject {
    let kinds = ["InternalIP", "ExternalIP"].into_iter().cycle();
    let addresses: Vec<Value> =
        addresses.iter().zip(kinds).map(|(address, kind)| json!({"type": kind, "address": address})).collect();
    serde_json::from_value(json!({"metadata": {"name": name}, "status": {"addresses": addresses}})).unwrap()
}

/// Addresses that this mode makes local for Services: of the device, and of routes.
fn local(world: &Node) -> BTreeSet<String> {
    let routes = world.kernel.state().routes.into_iter().map(|(_, route)| route.network.addr().to_string());
    world.bound_here().into_iter().chain(routes).filter(|address| !address.starts_with("10.96.")).collect()
}

const OTHERS: [&str; 3] = ["192.0.2.20", "198.51.100.20", "2001:db8::20"];

/// A load balancer that runs on the nodes writes the addresses of all of them: those of other Nodes are not made local, whenever a Node comes or
/// goes. Its own address, and one that no Node has, are served as ever.
#[test]
fn the_addresses_of_other_nodes_are_never_made_local() {
    let by_routes = |options: &mut Options| options.config.ipvs.binding = Binding::Routes;
    let by_nft = |options: &mut Options| options.config.ipvs.rules = RulesBy::Nftables;
    let in_userspace = |options: &mut Options| options.mode = Kind::Userspace;
    let unchanged = |_: &mut Options| {};
    for change in [unchanged as fn(&mut Options), by_nft, by_routes, in_userspace] {
        let mut options = Options::default();
        change(&mut options);
        let mut world = with(options);
        let own = ["203.0.113.5", "2001:db8:113::5"];
        let ingress: Vec<Value> =
            OTHERS.iter().chain(&[NODE]).chain(&own).map(|address| json!({"ip": address})).collect();
        world.serve(&service(
            "web",
            json!({
                "type": "LoadBalancer", "clusterIPs": ["10.96.0.10", "fd00:96::10"], "ipFamilies": ["IPv4", "IPv6"],
                "clusterIP": "10.96.0.10", "externalIPs": ["198.51.100.20", "198.51.100.21"],
                "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 443}],
                "status": {"loadBalancer": {"ingress": ingress}},
            }),
        ));
        world.proxier.upsert_cluster_node(&node("node-a", &[NODE, "203.0.113.5"]), world.now);
        world.proxier.upsert_cluster_node(&node("node-b", &OTHERS), world.now);
        // A stale object with this node's own address.
        world.proxier.upsert_cluster_node(&node("node-0", &[NODE]), world.now);
        let free = ["198.51.100.21", "203.0.113.5", "2001:db8:113::5", "fd00:96::10"];
        let set = |addresses: &[&[&str]]| addresses.concat().into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
        let report = world.full();
        assert!(report.is_done(), "{report:#?}");
        assert_eq!(local(&world), set(&[&free]));
        let refused: BTreeSet<String> =
            report.refused.iter().map(|refused| format!("{} {}", refused.key.address, refused.reason)).collect();
        let reason = "Node node-b has that address; packets go there, and it is not served here";
        assert_eq!(refused, OTHERS.map(|address| format!("{address} {reason}")).into());
        assert!(report.refused.iter().all(|refused| refused.user == Some(User::Node("node-b".into()))));

        // The Node goes: its addresses are the Service's alone.
        world.now += Duration::from_secs(5);
        world.proxier.delete_cluster_node("node-b", world.now);
        let report = world.pass_now();
        assert!(!report.full && report.is_done() && report.refused.is_empty(), "{report:#?}");
        assert_eq!(local(&world), set(&[&free, &OTHERS]));
        // The Node comes back, with one address fewer.
        world.now += Duration::from_secs(5);
        world.proxier.upsert_cluster_node(&node("node-b", &OTHERS[..2]), world.now);
        let report = world.pass_now();
        assert!(!report.full && report.is_done(), "{report:#?}");
        assert!(world.proxier.refused().any(|refused| refused.user == Some(User::Node("node-b".into()))));
        world.settle_for(Duration::from_secs(60));
        assert_eq!(local(&world), set(&[&free, &OTHERS[2..]]));
        // The same Node again, and Nodes whose addresses no Service has, change nothing.
        world.full();
        world.now += Duration::from_secs(5);
        let next = world.proxier.next_wake();
        world.proxier.upsert_cluster_node(&node("node-b", &OTHERS[..2]), world.now);
        assert_eq!(world.proxier.next_wake(), next);
        world.proxier.upsert_cluster_node(&node("node-c", &["192.0.2.99"]), world.now);
        let report = world.pass_now();
        assert_eq!((report.full, report.writes()), (false, 0), "{report:#?}");
        // A Service that comes later.
        world.now += Duration::from_secs(5);
        world.serve(&external("192.0.2.99", 80));
        world.pass_now();
        assert!(!local(&world).contains("192.0.2.99"));
        assert_eq!(world.proxier.refused().filter(|refused| refused.service.contains("odd")).count(), 1);
    }
}

/// A network of Services with the address of a Node in it is not made local as a whole.
#[test]
fn a_network_with_the_address_of_another_node_is_not_made_local() {
    let mut options = Options::default();
    (options.config.ipvs.binding, options.config.ipvs.rules) = (Binding::Routes, RulesBy::Nftables);
    options.config.ipvs.service_cidrs = vec!["10.96.0.0/16".parse().unwrap()];
    let mut world = with(options);
    world.serve(&with_node_port("web", "10.96.0.10", 30080));
    world.proxier.upsert_cluster_node(&node("node-b", &["10.96.7.7"]), world.now);
    let report = world.full();
    let limited = report.limited.join("\n");
    assert!(limited.contains("10.96.7.7, the address of Node node-b"), "{limited}");
    let routes: Vec<String> =
        world.kernel.state().routes.into_iter().map(|(_, route)| route.network.to_string()).collect();
    assert_eq!(routes, ["10.96.0.10/32"]);
}

//! IPVS mode that binds by routes, on a real kernel. Clients outside and on the node are served though no interface has
//! a Service's address. Nothing else answers in the Services' networks. A live node changes from one binding to the
//! other.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use testkit::traffic::{Connection, NameServer, connect_and_ask};
use testkit::{Need, PROXY, kernel_test};

use crate::program::world::{Client, Lan, NODE_PORT, SERVICE};
use crate::program::{Folder, Running, changed, demo, ipvsadm, joined, ok, pair, text, tool};

const NODE: &str = "apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
";

const EXTERNAL: &str = "198.51.100.7:80";
/// Addresses with a separate endpoint each. If two connections from one port of a client go through two virtual servers
/// to one endpoint, IPVS gives the younger all answers (`ip_vs_conn_out_get`). With clients that connect all the time
/// this happens by chance.
const PLACES: [&str; 3] = [SERVICE, NODE_PORT, EXTERNAL];
/// Needs of a proxy with a table of nf_tables.
const TABLE: &[Need] = &[
    Need::Root,
    Need::IpVs,
    Need::Scheduler("rr"),
    Need::Dummy,
    Need::Nftables,
    Need::Conntrack,
    Need::Veth,
    Need::IptablesNft,
];
/// Port of a daemon that listens on all addresses of the node.
const DAEMON: u16 = 9999;

fn service(name: &str, port: u16, spec: &str) -> String {
    pair(name, spec, &format!("{{name: http, port: {port}, protocol: TCP}}"), "{addresses: [10.244.0.5]}")
}

/// Name of the server that answered, or why none did.
type Answer = Result<String, ErrorKind>;

/// A node with a pod and a daemon, and a client on another host.
struct World {
    lan: Lan,
    _servers: [NameServer; 4],
    manifests: Folder,
    /// Rule back end: `ipvs.rules`.
    rules: &'static str,
}

impl World {
    fn new(rules: &'static str) -> Self {
        let lan = Lan::new();
        let servers = [
            lan.serve(8080),
            lan.serve(8081),
            lan.serve(8082),
            NameServer::tcp(&lan.node, SocketAddr::from(([0, 0, 0, 0], DAEMON)), "daemon").unwrap(),
        ];
        let manifests = Folder::with("node.yaml", NODE);
        for (name, port, address, spec) in [
            ("web", 8080, "10.96.0.10", "type: ClusterIP"),
            ("node-port", 8081, "10.96.0.11", "type: NodePort"),
            ("external", 8082, "10.96.0.12", "externalIPs: [198.51.100.7]"),
        ] {
            let node_port = if name == "node-port" { ", nodePort: 30080" } else { "" };
            let ports = format!("[{{name: http, port: 80, protocol: TCP{node_port}}}]");
            let spec = format!("{spec}, clusterIP: {address}, clusterIPs: [{address}], ports: {ports}");
            manifests.put(&format!("{name}.yaml"), &service(name, port, &spec));
        }
        World { lan, _servers: servers, manifests, rules }
    }

    fn arguments(&self, binding: &str) -> Vec<String> {
        let line = format!(
            "--proxy-mode ipvs --no-fallback --cluster-cidr 10.244.0.0/16 --ipvs-service-cidrs 10.96.0.0/12 \
             --ipvs-binding {binding} --ipvs-rules {} --manifests {}",
            self.rules,
            self.manifests.name()
        );
        line.split(' ').map(str::to_owned).collect()
    }

    fn start(&self, binding: &str) -> Running {
        Running::start(&joined(&[], &self.arguments(binding)))
    }

    /// Answers to a client on another host, and to one on the node.
    fn answers(&self, address: &str) -> [Answer; 2] {
        let to: SocketAddr = address.parse().unwrap();
        [&self.lan.client, &self.lan.node]
            .map(|from| from.run_in(|| connect_and_ask(to).map_err(|error| error.kind())).unwrap())
    }

    fn serves(&self) -> bool {
        PLACES.iter().all(|place| self.answers(place) == [Ok("pod".to_owned()), Ok("pod".to_owned())])
    }

    #[track_caller]
    fn is_as_planned(&self, binding: &str) {
        let plan = demo(&joined(&["plan"], &self.arguments(binding)));
        assert!(ok(&plan).starts_with("nothing to do"), "{}", text(&plan.stdout));
    }
}

/// Own routes, as `ip` prints them.
fn routes() -> Vec<String> {
    tool("ip route show table local proto 119").lines().map(|line| line.trim_end().to_owned()).collect()
}

/// Lines of `ip` that show the Services' addresses, or the dummy device.
fn bound() -> Vec<String> {
    let ours = |line: &&str| ["kube-ipvs0", "10.96.", "198.51.100."].iter().any(|of| line.contains(of));
    tool("ip -o address").lines().filter(ours).map(str::to_owned).collect()
}

/// Number of rules that refuse packets to addresses that no Service has in a network.
fn guards(rules: &str) -> usize {
    let (saved, is_guard): (_, fn(&&str) -> bool) = match rules {
        "nftables" => (tool("nft list table ip proxier-ipvs"), |line| {
            // TCP is reset by a rule of its own.
            line.contains("ip daddr 10.96.0.0/12") && !line.contains("tcp reset")
        }),
        _ => (tool("iptables-save"), |line| {
            line.starts_with("-A KUBE-IPVS-FILTER -d 10.96.0.0/12") && line.contains("REJECT")
        }),
    };
    saved.lines().filter(is_guard).count()
}

#[track_caller]
fn routes_bind(rules: &str) {
    assert_eq!((bound(), guards(rules)), (vec![], 1));
    let routes = routes();
    let of = |network: &str| {
        routes.iter().any(|line| line.starts_with(&format!("local {network} dev lo")) && line.contains("src 192.0.2.1"))
    };
    assert!(routes.len() == 2 && of("10.96.0.0/12") && of("198.51.100.7"), "{routes:#?}");
}

#[test]
fn services_are_served_and_no_interface_has_their_addresses() {
    kernel_test(&[PROXY, &[Need::Veth]].concat(), || serve_by_routes("iptables"));
    kernel_test(TABLE, || serve_by_routes("nftables"));
}

fn serve_by_routes(rules: &'static str) {
    let world = World::new(rules);
    let spec = "clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20], ports: [{name: http, port: 80, protocol: TCP}]";
    world.manifests.put("old.yaml", &service("old", 8080, spec));
    let proxy = world.start("routes");
    proxy.until("it serves", || world.serves());
    routes_bind(world.rules);
    // The node's own connections have its address.
    let local = TcpStream::connect(SERVICE).unwrap().local_addr().unwrap();
    assert_eq!(local.ip().to_string(), "192.0.2.1");

    // A daemon of the node answers at the node's address, and nowhere among the Services'.
    let daemon = || -> Answer { Ok("daemon".to_owned()) };
    assert_eq!(world.answers(&format!("192.0.2.1:{DAEMON}")), [daemon(), daemon()]);
    for address in ["10.96.0.10", "10.96.77.77", "10.111.255.254", "198.51.100.7"] {
        let refused = || -> Answer { Err(ErrorKind::ConnectionRefused) };
        assert_eq!(world.answers(&format!("{address}:{DAEMON}")), [refused(), refused()], "{address}");
    }
    world.is_as_planned("routes");

    // A route that was deleted comes back before the next full pass.
    tool("ip route delete local 10.96.0.0/12 table local proto 119");
    proxy.until("the route is back", || routes().len() == 2);
    assert!(world.serves());

    // A kill leaves everything, and the next process recognises its own objects.
    proxy.end_with("KILL");
    assert!(world.serves());
    routes_bind(world.rules);
    assert!(ipvsadm().iter().any(|line| line.starts_with("-A -t 10.96.0.20:80 ")));
    std::fs::remove_file(world.manifests.0.join("old.yaml")).unwrap();
    let proxy = world.start("routes");
    proxy.until("what no Service wants is gone", || !ipvsadm().iter().any(|line| line.contains("10.96.0.20:80")));
    assert!(world.serves());
    routes_bind(world.rules);
    assert!(proxy.end().success());
    ok(&demo(&["cleanup"]));
    assert_eq!((routes(), changed()), (vec![], vec![]));
}

#[test]
fn a_live_node_changes_its_binding() {
    kernel_test(&[PROXY, &[Need::Veth]].concat(), || change_the_binding("iptables"));
    kernel_test(TABLE, || change_the_binding("nftables"));
}

fn change_the_binding(rules: &'static str) {
    let world = World::new(rules);
    let mut proxy = world.start("addresses");
    proxy.until("it serves", || world.serves());
    let address: SocketAddr = SERVICE.parse().unwrap();
    let mut long =
        [&world.lan.client, &world.lan.node].map(|from| from.run_in(|| Connection::open(address).unwrap()).unwrap());
    for connection in &mut long {
        connection.ask().unwrap();
    }
    let since = Instant::now();
    let clients: Vec<Client> = [&world.lan.client, &world.lan.node]
        .into_iter()
        .flat_map(|from| PLACES.map(|place| Client::start(from, place)))
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    for binding in ["routes", "addresses", "routes"] {
        assert!(proxy.end().success());
        proxy = world.start(binding);
        if binding == "routes" {
            proxy.until("no address is bound", || bound().is_empty());
            routes_bind(world.rules);
        } else {
            proxy.until("no route and no guard is left", || routes().is_empty() && guards(world.rules) == 0);
            assert_eq!(bound().len(), 4, "{:#?}", bound());
        }
        std::thread::sleep(Duration::from_secs(1));
        world.is_as_planned(binding);
        for (from, connection) in ["another host", "the node"].into_iter().zip(&mut long) {
            let answer = connection.ask();
            assert!(
                matches!(&answer, Ok(name) if name == "pod"),
                "the connection from {from}, now by {binding}: {answer:?}\n{}",
                proxy.log()
            );
        }
    }
    for client in clients {
        let (made, failed) = client.end(since, None);
        assert!(made > 5 && failed.is_empty(), "{made} connections; failed: {failed:#?}\n{}", proxy.log());
    }
    assert!(proxy.end().success());
    ok(&demo(&["cleanup"]));
    assert_eq!((routes(), changed()), (vec![], vec![]));
}

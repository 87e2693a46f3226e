//! An address that moves from one node to another: connections to it that survive, with and without synchronisation.
//!
//! ```text
//!  client .10 ──┐          ┌── node a .1
//!  server .21 ──┤  bridge  │
//!  server .22 ──┘          └── node b .2
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use proxier_core::modes::Kind;
use serde_json::{Value, json};
use testkit::witness::{Conversation, Transport, Witness};
use testkit::{Need, Netns, kernel_test, oracle, veth_pair};

use crate::traffic::cluster::{Cluster, options};

const NEEDS: &[Need] = &[
    Need::Root,
    Need::IpVs,
    Need::Scheduler("rr"),
    Need::Scheduler("mh"),
    Need::Dummy,
    Need::Veth,
    Need::Conntrack,
    Need::Nftables,
    Need::Tool("ipvsadm"),
];
/// Longest wait for an answer, and for what the other node learns.
const LIMIT: Duration = Duration::from_secs(5);
const VIRTUAL: &str = "192.0.2.100";

/// A host on the bridge.
fn host(bridge: &Netns, last: u8) -> Netns {
    let host = Netns::new().unwrap();
    let device = format!("host{last}");
    veth_pair((bridge, &device), (&host, "eth0")).unwrap();
    bridge.ip(&["link", "set", &device, "master", "lan"]).unwrap();
    host.add_address(&format!("192.0.2.{last}/24"), "eth0").unwrap();
    host
}

struct Lan {
    client: Netns,
    nodes: [Netns; 2],
    servers: [Netns; 2],
}

impl Lan {
    fn new() -> Self {
        let bridge = Netns::current().unwrap();
        bridge.ip(&["link", "add", "lan", "type", "bridge"]).unwrap();
        // No querier is there, so nobody would get multicasts after a while.
        bridge.ip(&["link", "set", "lan", "up", "type", "bridge", "mcast_snooping", "0"]).unwrap();
        let servers = [21, 22].map(|last| host(&bridge, last));
        for server in &servers {
            server.add_address(&format!("{VIRTUAL}/32"), "lo").unwrap();
        }
        Lan { client: host(&bridge, 10), nodes: [1, 2].map(|last| host(&bridge, last)), servers }
    }

    /// Leads the virtual address to a node, as its gratuitous ARP does.
    fn lead_to(&self, node: &Netns) {
        let link = node.ip(&["-j", "link", "show", "eth0"]).unwrap();
        let link: Value = serde_json::from_str(&link).unwrap();
        let address = link[0]["address"].as_str().unwrap();
        self.client.ip(&["neigh", "replace", VIRTUAL, "lladdr", address, "dev", "eth0", "nud", "permanent"]).unwrap();
    }
}

/// A node with the Service.
fn serving(node: &Netns, mode: Kind, config: &Value, annotations: &Value) -> Cluster {
    let service = json!({
        "metadata": { "namespace": "demo", "name": "web", "annotations": annotations },
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.50", "externalIPs": [VIRTUAL],
            "ports": [{ "name": "http", "protocol": "TCP", "port": 80 }],
        },
    });
    let slice = json!({
        "metadata": { "namespace": "demo", "name": "web-1", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "ports": [{ "name": "http", "protocol": "TCP", "port": 80 }],
        "endpoints": [{ "addresses": ["192.0.2.21"] }, { "addresses": ["192.0.2.22"] }],
    });
    node.run_in(|| {
        let mut options = options(config);
        options.mode = mode;
        let mut cluster = Cluster::without_programs(options);
        cluster.service(&serde_json::from_value(service).unwrap());
        cluster.slice(&serde_json::from_value(slice).unwrap());
        cluster.settle();
        cluster
    })
    .unwrap()
}

fn ipvsadm(node: &Netns, arguments: &[&str]) -> String {
    node.run_in(|| oracle::run("ipvsadm", arguments, None)).unwrap().unwrap().stdout
}

/// Connections that a node's IPVS knows.
fn known(node: &Netns) -> usize {
    ipvsadm(node, &["-Lnc"]).lines().filter(|line| line.contains("ESTABLISHED")).count()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + 6 * LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        sleep(Duration::from_millis(50));
    }
}

/// Connections of a client before and after the address moved.
#[derive(Debug, Default)]
struct Moved {
    opened: usize,
    /// Those that the same server goes on answering.
    survived: usize,
    /// Errors of the rest, by kind.
    ended: BTreeMap<String, usize>,
}

/// Opens connections through node a and goes on with them through node b.
fn connections_that_move(mode: Kind, is_synced: bool, annotations: &Value, sysctl: Option<(&str, &str)>) -> Moved {
    let count = std::env::var("FAILOVER_CONNECTIONS").map_or(50, |text| text.parse().unwrap());
    let lan = Lan::new();
    let _servers = [("one", &lan.servers[0]), ("two", &lan.servers[1])].map(|(name, server)| {
        Witness::start(server, name, &[(Transport::Tcp, SocketAddr::from(([0, 0, 0, 0], 80)))]).unwrap()
    });
    let config = json!({ "ipvs": { "rules": "nftables" } });
    let _clusters = lan.nodes.each_ref().map(|node| serving(node, mode, &config, annotations));
    for (node, state) in lan.nodes.iter().zip(["master", "backup"]).filter(|_| is_synced) {
        ipvsadm(node, &["--start-daemon", state, "--mcast-interface", "eth0", "--syncid", "7"]);
    }
    if let Some((name, value)) = sysctl {
        lan.nodes[1].write_sysctl(name, value).unwrap();
    }
    let [a, b] = &lan.nodes;
    lan.lead_to(a);
    let to: SocketAddr = (VIRTUAL.parse::<std::net::IpAddr>().unwrap(), 80).into();
    let open = || {
        let mut conversation = Conversation::open(Transport::Tcp, None, to, LIMIT).unwrap();
        // Enough packets for the kernel to tell the other node (`sync_threshold`).
        let names = [(); 3].map(|()| conversation.ask().unwrap().name);
        assert!(names.iter().all(|name| *name == names[0]));
        (conversation, names[0].clone())
    };
    let mut open: Vec<_> = lan.client.run_in(|| (0..count).map(|_| open()).collect()).unwrap();
    if is_synced {
        wait_until("node b learns all connections", || known(b) == count);
    } else if mode == Kind::Ipvs {
        assert_eq!((known(a), known(b)), (count, 0));
    }
    lan.lead_to(b);
    let mut moved = Moved { opened: count, ..Moved::default() };
    for (conversation, name) in &mut open {
        match conversation.ask() {
            Ok(answer) if answer.name == *name => moved.survived += 1,
            Ok(answer) => panic!("{} answers for {name}", answer.name),
            Err(error) => *moved.ended.entry(error.kind().to_string()).or_default() += 1,
        }
    }
    println!("{mode} {is_synced} {annotations} {sysctl:?}: {moved:?}");
    moved
}

/// Masqueraded connections end, as the next node has another source address, which the servers do not know.
#[test]
fn connections_survive_where_the_next_node_knows_them_or_chooses_the_same_server() {
    let masqueraded = json!({});
    let direct = json!({ "proxier/forwarding": "direct-route" });
    let hashed = json!({ "proxier/forwarding": "direct-route", "proxier/scheduler": "mh" });
    let by_client = json!({ "proxier/scheduler": "mh" });
    // Without this, IPVS takes up no connection in the middle.
    let sloppy = Some(("net/ipv4/vs/sloppy_tcp", "1"));
    for (mode, is_synced, annotations, sysctl, survive) in [
        (Kind::Ipvs, true, &direct, None, true),
        (Kind::Ipvs, false, &direct, None, false),
        (Kind::Ipvs, true, &masqueraded, None, false),
        (Kind::Ipvs, false, &hashed, sloppy, true),
        (Kind::Nftables, false, &by_client, None, false),
    ] {
        kernel_test(NEEDS, || {
            let moved = connections_that_move(mode, is_synced, annotations, sysctl);
            assert_eq!(moved.survived, if survive { moved.opened } else { 0 });
            assert_eq!(moved.ended.is_empty(), survive);
        });
    }
}

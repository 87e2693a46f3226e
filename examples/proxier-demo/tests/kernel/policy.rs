//! Policy by Service on a real kernel: the output of `ipvsadm`, and which endpoint answers which client.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use testkit::traffic::{Connection, NameServer, TIME_LIMIT};
use testkit::witness::{Transport, Witness, ask};
use testkit::{Need, Netns, PROXY, kernel_test, veth_pair};

use crate::program::{Folder, Running, demo, ipvsadm, ok, set_up, text, tool};

const SERVICE: &str = "10.96.0.10:80";

/// A Service with these annotations and two endpoints, which are addresses of this node. The slice has annotations too.
fn manifest(annotations: &str, of_slice: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: demo, annotations: {{{annotations}}}}}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  ports: [{{name: http, port: 80, protocol: TCP, targetPort: 8080}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: demo, labels: {{kubernetes.io/service-name: web}}, annotations: {{{of_slice}}}}}
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}]
endpoints: [{{addresses: [10.244.0.5], zone: a}}, {{addresses: [10.244.0.6], zone: b}}]
"
    )
}

struct Node {
    manifests: Folder,
    _servers: Vec<NameServer>,
}

impl Node {
    fn new() -> Self {
        set_up();
        for address in ["10.244.0.5/32", "10.244.0.6/32", "198.51.100.1/32", "198.51.100.2/32", "198.51.101.1/32"] {
            tool(&format!("ip address add {address} dev lo"));
        }
        let here = Netns::current().unwrap();
        let server = |last: u8| {
            NameServer::tcp(&here, SocketAddr::new([10, 244, 0, last].into(), 8080), &last.to_string()).unwrap()
        };
        Node { manifests: Folder::new("policy"), _servers: [5, 6].map(server).into() }
    }

    fn once(&self, annotations: &str) -> String {
        self.once_with(annotations, "")
    }

    fn once_with(&self, annotations: &str, of_slice: &str) -> String {
        self.manifests.put("web.yaml", &manifest(annotations, of_slice));
        once(&self.manifests)
    }
}

/// One full sync with these manifests; returns its standard error.
fn once(manifests: &Folder) -> String {
    let folder = manifests.0.display().to_string();
    let done = demo(&["run", "--once", "--proxy-mode", "ipvs", "--no-fallback", "--manifests", &folder]);
    ok(&done);
    text(&done.stderr)
}

/// The options of the one virtual server.
fn server() -> String {
    let all: BTreeSet<String> = ipvsadm();
    let mut servers = all.iter().filter_map(|line| line.strip_prefix("-A -t 10.96.0.10:80 "));
    let options = servers.next().unwrap_or_else(|| panic!("{all:#?}")).trim_end().to_owned();
    assert_eq!(all.iter().filter(|line| line.starts_with("-a ")).count(), 2, "{all:#?}");
    options
}

/// Number of connections of the virtual server since it was made.
fn connections() -> u64 {
    let stats = tool("ipvsadm -Ln --stats --exact");
    let line = stats.lines().find(|line| line.contains(SERVICE)).unwrap_or_else(|| panic!("{stats}"));
    line.split_whitespace().nth(2).unwrap().parse().unwrap()
}

/// Name of the endpoint that answers a client of this address.
fn answers(client: &str) -> String {
    ask(Transport::Tcp, Some(client.parse().unwrap()), SERVICE.parse().unwrap(), TIME_LIMIT).unwrap().name
}

#[test]
fn a_policy_is_changed_in_place() {
    let needs = [PROXY, &[Need::Scheduler("wlc"), Need::Scheduler("sh"), Need::Scheduler("mh")]].concat();
    kernel_test(&needs, || {
        let node = Node::new();
        node.once("");
        assert_eq!(server(), "-s rr");
        let both: BTreeSet<String> = (0..4).map(|_| answers("198.51.100.1")).collect();
        assert_eq!(both.len(), 2);
        // The kernel adds its counters up every two seconds (ip_vs_est.c).
        let start = Instant::now();
        while connections() < 4 {
            assert!(start.elapsed() < Duration::from_secs(30), "{} connections", connections());
            std::thread::sleep(Duration::from_millis(100));
        }
        let before = connections();
        for (annotations, options) in [
            ("proxier/scheduler: wlc", "-s wlc"),
            ("proxier/scheduler: sh, proxier/scheduler-flags: 'sh-port,sh-fallback'", "-s sh -b sh-fallback,sh-port"),
            ("kube-router.io/service.scheduler: mh", "-s mh -b mh-fallback,mh-port"),
            ("proxier/persistence-seconds: '120'", "-s rr -p 120"),
        ] {
            let said = node.once(annotations);
            assert_eq!(server(), options, "{annotations}");
            assert!(!said.contains("annotations"), "{said}");
            assert!(connections() >= before, "a virtual server that was deleted and added counts from 0");
        }
        // A client stays with its endpoint; rr would have it take turns.
        let stays: BTreeSet<String> = (0..4).map(|_| answers("198.51.100.1")).collect();
        assert_eq!(stays.len(), 1);
        let other = answers("198.51.100.2");
        assert!(!stays.contains(&other), "{other}");

        let said = node.once("proxier/scheduler: fastest");
        assert!(said.contains("metadata.annotations[proxier/scheduler] fastest: not a scheduler of IPVS"), "{said}");
        assert_eq!(server(), "-s rr");
        ok(&demo(&["cleanup"]));
    });
}

/// Number of connections that each endpoint gets, of this many.
fn shares(connections: usize) -> BTreeMap<String, usize> {
    let mut shares = BTreeMap::new();
    for _ in 0..connections {
        *shares.entry(answers("198.51.100.1")).or_default() += 1;
    }
    shares
}

/// The weights of the two endpoints, as the kernel has them.
fn weights() -> [String; 2] {
    ["5", "6"].map(|last| {
        let line = ipvsadm().into_iter().find(|line| line.contains(&format!("-r 10.244.0.{last}:8080 "))).unwrap();
        line.split_once("-w ").unwrap().1.trim().to_owned()
    })
}

/// The numbers that `ipvsadm -Ln --thresholds` has for an endpoint: upper and lower threshold.
fn thresholds(endpoint: &str) -> [u32; 2] {
    let table = tool("ipvsadm -Ln --thresholds");
    let line = table.lines().find(|line| line.contains(endpoint)).unwrap_or_else(|| panic!("{table}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let place = words.iter().position(|word| *word == endpoint).unwrap();
    [1, 2].map(|behind| words[place + behind].parse().unwrap_or_else(|_| panic!("{line}")))
}

#[test]
fn endpoints_get_connections_by_their_weights() {
    let needs = [PROXY, &[Need::Scheduler("wrr")]].concat();
    kernel_test(&needs, || {
        let node = Node::new();
        let wrr = "proxier/scheduler: wrr";
        node.once(wrr);
        assert_eq!(weights(), ["1", "1"]);
        assert_eq!(shares(8), BTreeMap::from([("5".to_owned(), 4), ("6".to_owned(), 4)]));

        let said = node.once_with(wrr, "proxier/weights: '10.244.0.5=3'");
        assert!(!said.contains("annotations"), "{said}");
        assert_eq!(weights(), ["3", "1"]);
        assert_eq!(shares(8), BTreeMap::from([("5".to_owned(), 6), ("6".to_owned(), 2)]));

        // Weight 0 as asked for: no new connections, and it stays a real server.
        node.once_with(wrr, "proxier/weights: '10.244.0.5=0'");
        assert_eq!(weights(), ["0", "1"]);
        assert_eq!(shares(4), BTreeMap::from([("6".to_owned(), 4)]));
        node.once_with(wrr, "proxier/weights: '10.244.0.5=0'");
        assert_eq!(weights(), ["0", "1"]);

        node.once_with(&format!("{wrr}, proxier/zone-weights: 'a=1,b=3'"), "");
        assert_eq!(weights(), ["1", "3"]);
        assert_eq!(shares(8), BTreeMap::from([("5".to_owned(), 2), ("6".to_owned(), 6)]));

        // The kernel takes three quarters of it for the lower one.
        node.once("proxier/max-connections: '100'");
        assert_eq!((thresholds("10.244.0.5:8080")[0], thresholds("10.244.0.6:8080")[0]), (100, 100));
        node.once("");
        assert_eq!(thresholds("10.244.0.5:8080"), [0, 0]);
        ok(&demo(&["cleanup"]));
    });
}

const EXTERNAL: &str = "203.0.113.80:80";
/// Port at which the endpoint unwraps GUE.
const GUE: u16 = 6080;

/// ```text
///  client ── front ── the node ── back ── endpoint
///      └───────────── side ──────────────────┘
/// ```
///
/// The endpoint has the external address too. Its only way to the client is the link between the two, so that only
/// answers that do not pass the node arrive. When the node puts its own address in place of the client's, answers come
/// back to it.
struct Triangle {
    manifests: Folder,
    client: Netns,
    endpoint: Netns,
    _server: Witness,
}

impl Triangle {
    fn new() -> Self {
        set_up();
        for module in ["ipip", "ip_gre", "fou"] {
            tool(&format!("modprobe {module}"));
        }
        let (here, client, endpoint) = (Netns::current().unwrap(), Netns::new().unwrap(), Netns::new().unwrap());
        veth_pair((&here, "front"), (&client, "front")).unwrap();
        veth_pair((&here, "back"), (&endpoint, "back")).unwrap();
        veth_pair((&client, "side"), (&endpoint, "side")).unwrap();
        here.add_address("198.51.100.1/24", "front").unwrap();
        here.add_address("10.244.9.1/24", "back").unwrap();
        client.add_address("198.51.100.10/24", "front").unwrap();
        client.add_route("203.0.113.0/24", "198.51.100.1").unwrap();
        endpoint.add_address("10.244.9.5/24", "back").unwrap();
        endpoint.add_address("203.0.113.80/32", "lo").unwrap();
        for device in ["tunl0", "gre0"] {
            endpoint.ip(&["link", "set", device, "up"]).unwrap();
        }
        endpoint.run_in(|| tool(&format!("ip fou add port {GUE} gue"))).unwrap();
        endpoint.ip(&["route", "add", "198.51.100.10/32", "dev", "side"]).unwrap();
        // Packets come by one way and answers go by another.
        for (namespace, devices) in
            [(&client, &["all", "front", "side"][..]), (&endpoint, &["all", "back", "tunl0", "gre0"])]
        {
            for device in devices {
                namespace.write_sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0").unwrap();
            }
        }
        let server = Witness::start(&endpoint, "endpoint", &[(Transport::Tcp, "0.0.0.0:80".parse().unwrap())]).unwrap();
        // The rule counts packets from the endpoint.
        tool("iptables -t raw -A PREROUTING -i back -p tcp");
        Triangle { manifests: Folder::new("triangle"), client, endpoint, _server: server }
    }

    fn once(&self, annotations: &str) -> String {
        let endpoints = "[{addresses: [10.244.0.5], zone: a}, {addresses: [10.244.0.6], zone: b}]";
        let manifest = manifest(annotations, "")
            .replace("  ports: [", "  externalIPs: [203.0.113.80]\n  ports: [")
            .replace("targetPort: 8080", "targetPort: 80")
            .replace("port: 8080", "port: 80")
            .replace(endpoints, "[{addresses: [10.244.9.5]}]");
        self.manifests.put("web.yaml", &manifest);
        once(&self.manifests)
    }

    /// Number of packets that a device of the endpoint has unwrapped.
    fn unwrapped(&self, device: &str) -> u64 {
        let listed = self.endpoint.run_in(|| tool(&format!("ip -s link show {device}"))).unwrap();
        let mut lines = listed.lines().skip_while(|line| !line.trim_start().starts_with("RX:"));
        let numbers = lines.nth(1).unwrap_or_else(|| panic!("{listed}"));
        numbers.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// The address of the client that the endpoint sees, and how many packets of TCP came from the endpoint to the node meanwhile.
    fn ask(&self) -> (String, u64) {
        tool("iptables -t raw -Z PREROUTING");
        let limit = Duration::from_secs(20);
        let answer = self.client.run_in(|| ask(Transport::Tcp, None, EXTERNAL.parse().unwrap(), limit)).unwrap();
        let peer = answer.unwrap_or_else(|error| panic!("{error}\n{:#?}", ipvsadm())).peer.ip().to_string();
        let listed = tool("iptables -t raw -nvxL PREROUTING");
        let counted = listed.lines().find(|line| line.contains("back")).unwrap_or_else(|| panic!("{listed}"));
        (peer, counted.split_whitespace().next().unwrap().parse().unwrap())
    }
}

/// The options of the endpoint behind an address and port.
fn endpoint_of(server: &str) -> String {
    let all = ipvsadm();
    let line = all.iter().find_map(|line| line.strip_prefix(&format!("-a -t {server} -r 10.244.9.5:80 ")));
    line.unwrap_or_else(|| panic!("{all:#?}")).trim_end().to_owned()
}

#[test]
fn endpoints_answer_clients_by_themselves() {
    kernel_test(&[PROXY, &[Need::Veth]].concat(), || {
        let net = Triangle::new();
        net.once("");
        assert_eq!(endpoint_of(EXTERNAL), "-m -w 1");
        let (peer, back) = net.ask();
        assert_eq!(peer, "10.244.9.1", "masqueraded");
        assert!(back > 0);
        for (annotations, option) in [
            ("proxier/forwarding: direct-route", "-g"),
            ("proxier/forwarding: ipip", "-i"),
            ("proxier/forwarding: direct-route", "-g"),
            ("kube-router.io/service.dsr: tunnel", "-i"),
        ] {
            let said = net.once(annotations);
            assert!(!said.contains("annotations"), "{said}");
            let external = endpoint_of(EXTERNAL);
            assert!(external.starts_with(option) && external.contains("-w 1"), "{annotations}: {external}");
            assert_eq!(endpoint_of(SERVICE), "-m -w 1", "{annotations}");
            assert_eq!(net.ask(), ("198.51.100.10".to_owned(), 0), "{annotations}");
        }
        net.once("");
        assert_eq!(endpoint_of(EXTERNAL), "-m -w 1");
        assert_eq!(net.ask().0, "10.244.9.1");
        ok(&demo(&["cleanup"]));
    });
}

/// GRE and GUE, which IPVS has since Linux 5.3.
#[test]
fn endpoints_unwrap_gre_and_gue_and_answer_clients_by_themselves() {
    kernel_test(&[PROXY, &[Need::Veth, Need::Kernel(5, 3)]].concat(), || {
        let net = Triangle::new();
        for (annotations, options, device) in [
            ("proxier/forwarding: gre", "-i -w 1 --tun-type gre", "gre0"),
            ("proxier/forwarding: 'gue:6080'", "-i -w 1 --tun-type gue --tun-port 6080", "tunl0"),
            ("proxier/forwarding: gre", "-i -w 1 --tun-type gre", "gre0"),
        ] {
            let said = net.once(annotations);
            assert!(!said.contains("annotations"), "{said}");
            let external = endpoint_of(EXTERNAL);
            assert!(external.starts_with(options), "{annotations}: {external}");
            assert_eq!(endpoint_of(SERVICE), "-m -w 1", "{annotations}");
            let before = net.unwrapped(device);
            assert_eq!(net.ask(), ("198.51.100.10".to_owned(), 0), "{annotations}");
            assert!(net.unwrapped(device) > before, "{annotations}: {device}");
        }
        ok(&demo(&["cleanup"]));
    });
}

/// The endpoint that leaves keeps its connection for the time that its Service says, on a kernel that counts it.
#[test]
fn an_endpoint_drains_as_long_as_its_service_says() {
    kernel_test(PROXY, || {
        let node = Node::new();
        let time = Duration::from_secs(8);
        let both = manifest("proxier/drain-seconds: '8'", "");
        node.manifests.put("web.yaml", &both);
        let folder = node.manifests.0.display().to_string();
        let proxy = Running::start(&["--proxy-mode", "ipvs", "--no-fallback", "--manifests", &folder]);
        proxy.until("it serves", || weights_now().len() == 2);
        let mut connection = Connection::open(SERVICE.parse().unwrap()).unwrap();
        let name = connection.ask().unwrap();
        let leaves = format!("10.244.0.{name}:8080");
        let other =
            if name == "5" { "{addresses: [10.244.0.5], zone: a}, " } else { ", {addresses: [10.244.0.6], zone: b}" };
        let start = Instant::now();
        node.manifests.put("web.yaml", &both.replace(other, ""));
        proxy.until("it drains", || weights_now().get(&leaves).is_some_and(|weight| weight == "0"));
        assert_eq!(connection.ask().unwrap(), name, "what is there goes on");
        proxy.until("it is gone", || !weights_now().contains_key(&leaves));
        let after = start.elapsed();
        assert!(after + Duration::from_millis(100) >= time, "{after:?}");
        // Far from the fifteen minutes that are usual; machines are slow.
        assert!(after < time * 8, "{after:?}");
        let answer = connection.ask();
        assert!(answer.is_err(), "{answer:?}");
        assert_ne!(Connection::open(SERVICE.parse().unwrap()).unwrap().ask().unwrap(), name);
        drop(proxy);
        ok(&demo(&["cleanup"]));
    });
}

/// The weights of the Service's endpoints by address.
fn weights_now() -> BTreeMap<String, String> {
    let of = |line: &String| {
        let rest = line.strip_prefix("-a -t 10.96.0.10:80 -r ")?;
        let (endpoint, options) = rest.split_once(' ')?;
        Some((endpoint.to_owned(), options.split_once("-w ")?.1.split_whitespace().next()?.to_owned()))
    };
    ipvsadm().iter().filter_map(of).collect()
}

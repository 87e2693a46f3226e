//! A node that is its own client: clients and endpoints are addresses of its loopback device.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proxier_core::engine::{Options, Reconciler};
use proxier_core::kernel::{KernelOptions, KernelPorts};
use proxier_core::modes::Kind;
use proxier_core::net::Family;
use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use proxier_core::plan::report::Report;
use serde_json::{Value, json};
use testkit::witness::{Transport, Witness, ask};
use testkit::{Netns, oracle};

/// Longest time for a connection: machines are slow.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Endpoints that answer with their number, at `10.244.0.N` and `fd00:244::N`.
const ENDPOINTS: u8 = 16;
/// Clients have the addresses `198.51.100.N` and `2001:db8:1::N`.
pub(crate) const CLIENTS: u8 = 60;

fn address(family: Family, v4: &str, v6: &str, last: u8) -> IpAddr {
    let text = if family == Family::V4 { format!("{v4}{last}") } else { format!("{v6}{last:x}") };
    text.parse().unwrap()
}

fn endpoint(family: Family, number: u8) -> IpAddr {
    address(family, "10.244.0.", "fd00:244::", number)
}

pub(crate) fn client(family: Family, number: u8) -> IpAddr {
    address(family, "198.51.100.", "2001:db8:1::", number)
}

/// Address and port of a Service.
pub(crate) fn service(family: Family, number: u8) -> SocketAddr {
    SocketAddr::new(address(family, "10.96.0.", "fd00:96::", number), 80)
}

/// The node's own address.
pub(crate) fn node(family: Family) -> IpAddr {
    address(family, "192.0.2.", "2001:db8::", 10)
}

/// The number of the endpoint that answers a client.
pub(crate) fn answer(family: Family, number: u8, to: SocketAddr) -> u8 {
    let answer = ask(Transport::Tcp, Some(client(family, number)), to, LIMIT);
    answer.unwrap_or_else(|error| panic!("client {number} at {to}: {error}")).name.parse().unwrap()
}

pub(crate) struct Node {
    pub(crate) mode: Kind,
    pub(crate) process: Reconciler,
    kernel: KernelPorts,
    /// Specifications of Services by number, with annotations and status in them.
    services: BTreeMap<u8, Value>,
    /// Endpoints by Service, with weights.
    endpoints: BTreeMap<u8, Vec<(u8, u16)>>,
    /// Fields of endpoints besides their addresses, by number.
    pub(crate) fields: BTreeMap<u8, Value>,
    pub(crate) now: Duration,
    _servers: Vec<Witness>,
}

pub(crate) fn process(mode: Kind) -> Reconciler {
    let mut options = Options::default();
    options.mode = mode;
    let mut process = Reconciler::new("node-a", options, Duration::ZERO);
    let addresses = Family::ALL.map(|family| json!({"type": "InternalIP", "address": node(family)}));
    let node: NodeObject = serde_json::from_value(
        json!({"metadata": {"name": "node-a", "labels": {"topology.kubernetes.io/zone": "here"}},
            "status": {"addresses": addresses}}),
    )
    .unwrap();
    process.set_node(&node, Duration::ZERO);
    process
}

impl Node {
    pub(crate) fn new(mode: Kind) -> Self {
        let mut lines = vec!["link add eth0 type veth peer name eth1".to_owned()];
        lines.extend(["eth0", "eth1"].map(|device| format!("link set {device} up")));
        for family in Family::ALL {
            let (host, net) = if family == Family::V4 { ("32", "24") } else { ("128 nodad", "64 nodad") };
            lines.push(format!("addr add {}/{net} dev eth0", node(family)));
            let clients = (1..=CLIENTS).map(|number| client(family, number));
            let all = clients.chain((1..=ENDPOINTS).map(|number| endpoint(family, number)));
            lines.extend(all.map(|address| format!("addr add {address}/{host} dev lo")));
        }
        if mode != Kind::Userspace {
            lines.extend(["10.96.0.0/16", "fd00:96::/64"].map(|network| format!("route add {network} dev eth0")));
        }
        oracle::run("ip", &["-batch", "-"], Some(&lines.join("\n"))).unwrap();
        let namespace = Netns::current().unwrap();
        let server = |number: u8| {
            let at = Family::ALL.map(|family| (Transport::Tcp, SocketAddr::new(endpoint(family, number), 8080)));
            Witness::start(&namespace, &number.to_string(), &at).unwrap()
        };
        Node {
            mode,
            process: process(mode),
            kernel: KernelPorts::open(&KernelOptions::default()).unwrap(),
            services: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            fields: BTreeMap::new(),
            now: Duration::ZERO,
            _servers: (1..=ENDPOINTS).map(server).collect(),
        }
    }

    /// A Service of both families with port 80.
    pub(crate) fn service(&mut self, number: u8, more: &Value) {
        let addresses = Family::ALL.map(|family| service(family, number).ip());
        let mut spec = json!({"clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"name": "p", "port": 80}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.services.insert(number, spec);
    }

    /// The endpoints of a Service, with weights.
    pub(crate) fn endpoints(&mut self, service: u8, endpoints: &[(u8, u16)]) {
        self.endpoints.insert(service, endpoints.to_vec());
    }

    fn objects(&self) -> (Vec<ServiceObject>, Vec<EndpointSliceObject>) {
        let services = self.services.iter().map(|(number, spec)| {
            let part = |name: &str| spec.get(name).cloned().unwrap_or_else(|| json!({}));
            let metadata =
                json!({"namespace": "demo", "name": format!("s{number}"), "annotations": part("annotations")});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": part("status")})).unwrap()
        });
        let slices = self.endpoints.iter().flat_map(|(service, endpoints)| {
            Family::ALL.map(|family| {
                let weights = endpoints.iter().filter(|(_, weight)| *weight != 1);
                let weights: Vec<String> =
                    weights.map(|(number, weight)| format!("{}={weight}", endpoint(family, *number))).collect();
                let annotations =
                    if weights.is_empty() { json!({}) } else { json!({"proxier/weights": weights.join(", ")}) };
                let one = |(number, _): &(u8, u16)| {
                    // The odd ones are on this node.
                    let node = if number % 2 == 1 { "node-a" } else { "elsewhere" };
                    let mut object = json!({"addresses": [endpoint(family, *number)], "nodeName": node});
                    let more = self.fields.get(number).and_then(Value::as_object).cloned();
                    object.as_object_mut().unwrap().extend(more.unwrap_or_default());
                    object
                };
                serde_json::from_value(json!({
                    "metadata": {"namespace": "demo", "name": format!("s{service}-{family}").to_lowercase(),
                        "annotations": annotations, "labels": {"kubernetes.io/service-name": format!("s{service}")}},
                    "addressType": family.name(), "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
                    "endpoints": endpoints.iter().map(one).collect::<Vec<_>>(),
                }))
                .unwrap()
            })
        });
        (services.collect(), slices.collect())
    }

    /// Runs the pass that is due a minute later, with the present objects.
    pub(crate) fn settle(&mut self) -> Report {
        let (services, slices) = self.objects();
        self.now += Duration::from_secs(60);
        let now = self.now;
        self.process.replace_objects(&services, &slices, now);
        self.process.start(now);
        let report = self.process.pass(&|| now, &mut self.kernel.ports()).unwrap();
        assert!(report.is_done(), "{report:#?}");
        report
    }

    /// Starts another process with the same objects, which has nothing to write.
    pub(crate) fn restart(&mut self) {
        self.process = process(self.mode);
        let report = self.settle();
        assert_eq!(report.writes(), 0, "{report:#?}");
    }
}

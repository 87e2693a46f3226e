//! Clusters and settings that need different rules, and other programs' rules in the same tables.

use proxier_core::config::{Binding, InterfaceName, LocalTraffic, MarkBit};
use proxier_core::modes::ipvs::rules::{Capabilities, Inputs, Rules, compile};
use proxier_core::net::{Family, Network};
use serde_json::{Value, json};

use crate::world::{World, cluster_ip, endpoint};

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) world: World,
    pub(crate) capabilities: Capabilities,
}

impl Case {
    pub(crate) fn inputs(&self, family: Family) -> Inputs {
        Inputs::new(family, &self.world.wanted(), &self.world.facts(), self.capabilities)
    }

    pub(crate) fn rules(&self, family: Family) -> Rules {
        compile(&self.inputs(family)).unwrap()
    }
}

/// A Service of both families.
pub(crate) fn dual(mut spec: Value) -> Value {
    spec["clusterIPs"] = json!(["10.96.0.1", "fd00:96::1"]);
    spec["clusterIP"] = json!("10.96.0.1");
    spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
    spec
}

fn ports() -> Value {
    json!([
        {"name": "http", "port": 80, "nodePort": 30080},
        {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053},
        {"name": "sctp", "port": 90, "protocol": "SCTP", "nodePort": 30090},
    ])
}

fn balanced(policy: &str, ranges: &[&str]) -> Value {
    dual(json!({
        "type": "LoadBalancer", "ports": ports(), "externalTrafficPolicy": policy, "loadBalancerSourceRanges": ranges,
        "healthCheckNodePort": 32000,
        "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.5"}, {"ip": "2001:db8:f::5"}]}},
    }))
}

fn external(policy: &str) -> Value {
    dual(json!({
        "type": "NodePort", "ports": [{"name": "http", "port": 80}], "externalTrafficPolicy": policy,
        "externalIPs": ["203.0.113.7", "2001:db8:f::7"],
    }))
}

fn networks(texts: &[&str]) -> Vec<Network> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn case(name: &'static str, build: impl FnOnce(&mut World)) -> Case {
    let mut world = World::new();
    build(&mut world);
    world.refresh_all();
    Case { name, world, capabilities: Capabilities::default() }
}

/// A cluster IP, with local traffic detected in this way.
fn told(name: &'static str, local: LocalTraffic) -> Case {
    case(name, |world| {
        world.config.local_traffic = local;
        world.node.pod_cidrs = networks(&["10.244.7.0/24", "fd00:244:7::/64"]);
        world.service("web", dual(cluster_ip("10.96.0.1")));
    })
}

pub(crate) fn cases() -> Vec<Case> {
    let interface = |name| InterfaceName::new(name).unwrap();
    let mut cases = vec![
        case("nothing", |_| {}),
        told("a cluster IP, nothing tells local traffic", LocalTraffic::default()),
        told("local by cluster CIDR", LocalTraffic::ClusterCidrs(networks(&["10.244.0.0/16", "fd00:244::/56"]))),
        told("local by a CIDR of every address", LocalTraffic::ClusterCidrs(networks(&["0.0.0.0/0", "::/0"]))),
        told("local by the node's CIDR", LocalTraffic::NodeCidr),
        told("local by bridge", LocalTraffic::BridgeInterface(interface("cni0"))),
        told("local by prefix", LocalTraffic::InterfaceNamePrefix(interface("cali"))),
        told("local by the longest prefix", LocalTraffic::InterfaceNamePrefix(interface("cali56789012345"))),
        case("everything masqueraded, bit 31", |world| {
            world.config.masquerade_all = true;
            world.config.masquerade_bit = MarkBit::new(31).unwrap();
            world.service("web", dual(cluster_ip("10.96.0.1")));
        }),
        case("external addresses", |world| drop(world.service("web", external("Cluster")))),
        case("external addresses, local only", |world| drop(world.service("web", external("Local")))),
        case("load balancer", |world| drop(world.service("web", balanced("Cluster", &[])))),
        case("load balancer, local only", |world| drop(world.service("web", balanced("Local", &[])))),
        case("source ranges without the node", |world| {
            world.service("web", balanced("Cluster", &["198.51.100.0/24", "2001:db8:99::/48"]));
        }),
        case("source ranges with the node", |world| {
            world.service("web", balanced("Local", &["192.168.0.0/16", "2001:db8:1::/48"]));
        }),
        case("hairpin", |world| {
            world.service("web", dual(cluster_ip("10.96.0.1")));
            world.slice("web-4", "web", json!([endpoint("10.244.7.2", "node-a")]));
            world.slice("web-6", "web", json!([endpoint("fd00:244:7::2", "node-a")]));
        }),
        case("everything at once", |world| {
            let second = |mut spec: Value, v4: &str, v6: &str| {
                spec["clusterIP"] = json!(v4);
                spec["clusterIPs"] = json!([v4, v6]);
                for port in spec["ports"].as_array_mut().unwrap() {
                    port.as_object_mut().unwrap().remove("nodePort");
                }
                spec
            };
            world.service("balanced", balanced("Local", &["198.51.100.0/24", "2001:db8:99::/48"]));
            world.service("external", second(external("Cluster"), "10.96.0.2", "fd00:96::2"));
            let mut local = second(external("Local"), "10.96.0.3", "fd00:96::3");
            local["externalIPs"] = json!(["203.0.113.8", "2001:db8:f::8"]);
            world.service("local", local);
            world.slice("balanced-4", "balanced", json!([endpoint("10.244.7.2", "node-a")]));
            world.slice("balanced-6", "balanced", json!([endpoint("fd00:244:7::2", "node-a")]));
        }),
        case("bound by routes", |world| {
            world.config.ipvs.binding = Binding::Routes;
            world.config.ipvs.service_cidrs = networks(&["10.96.0.0/12", "10.112.0.0/16", "fd00:96::/112"]);
            world.service("web", balanced("Cluster", &["198.51.100.0/24", "2001:db8:99::/48"]));
        }),
    ];
    let mut old = case("old programs, little in the kernel", |world| {
        world.service("web", balanced("Cluster", &["198.51.100.0/24", "2001:db8:99::/48"]));
        world.service("external", external("Cluster"));
    });
    old.capabilities.random_fully = false;
    old.capabilities.physdev = false;
    old.capabilities.ipvs = false;
    cases.push(old);
    cases
}

/// Own chains, by table.
pub(crate) const CHAINS: &[(&str, &[&str])] = &[
    ("nat", &["KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ"]),
    (
        "filter",
        &[
            "KUBE-FORWARD",
            "KUBE-NODE-PORT",
            "KUBE-PROXY-FIREWALL",
            "KUBE-SOURCE-RANGES-FIREWALL",
            "KUBE-IPVS-FILTER",
            "KUBE-IPVS-OUT-FILTER",
        ],
    ),
];

/// The jumps in built-in chains, as `iptables-save` prints them, in order.
pub(crate) const JUMPS: &[(&str, &str)] = &[
    ("nat", "-A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES"),
    ("nat", "-A OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES"),
    ("nat", "-A POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING"),
    ("filter", "-A INPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-FILTER"),
    ("filter", "-A INPUT -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL"),
    ("filter", "-A INPUT -m comment --comment \"kubernetes health check rules\" -j KUBE-NODE-PORT"),
    ("filter", "-A FORWARD -m comment --comment \"kube-proxy firewall rules\" -j KUBE-PROXY-FIREWALL"),
    ("filter", "-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD"),
    ("filter", "-A OUTPUT -m comment --comment \"kubernetes ipvs access filter\" -j KUBE-IPVS-OUT-FILTER"),
];

/// Foreign rules in the same tables: of the kubelet, a network plugin, an administrator. Names and comments are close to ours on purpose.
pub(crate) const FOREIGN: &str = include_str!("dumps/foreign.rules");

/// A dump without own parts, recognised by its text alone.
pub(crate) fn foreign_part(dump: &str) -> String {
    let mut table = "";
    let mut rest = String::new();
    for line in dump.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let ours: &[&str] = CHAINS.iter().find(|(name, _)| *name == table).map_or(&[], |(_, chains)| chains);
        let of_ours = |chain: &&str| {
            line.starts_with(&format!(":{chain} "))
                || line.starts_with(&format!("-A {chain} "))
                || line == format!("-A {chain}")
        };
        let jump = JUMPS.iter().any(|(name, jump)| *name == table && *jump == line);
        if !jump && !ours.iter().any(of_ours) {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    rest
}

/// The lines of a table of a dump.
pub(crate) fn lines<'d>(dump: &'d str, table: &str) -> Vec<&'d str> {
    let lines = dump.lines().skip_while(|line| line.strip_prefix('*') != Some(table));
    lines.take_while(|line| *line != "COMMIT").collect()
}

/// Rules of kube-proxy 1.23, with its jumps in the order in which it made them, and one of its iptables mode.
pub(crate) fn older(family: Family) -> String {
    format!(include_str!("dumps/older.rules"), six = if family == Family::V4 { "" } else { "6-" })
}

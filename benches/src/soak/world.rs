//! The model: Services and their endpoints, and their objects in the API server.
//!
//! The model shares no code with the proxy, only names of families, protocols and modes: [`super::truth`] computes the
//! kernel's expected state independently.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(super) use proxier_core::net::{Family, Protocol};
use serde_json::{Value, json};

/// The node that the proxy serves; the other one is a neighbour.
pub(super) const NODE: &str = "n1";
const OTHER_NODE: &str = "n2";
pub(super) const NAMESPACE: &str = "soak";
/// Pods that really answer.
pub(super) const PODS: u16 = 12;
/// The port on which they answer.
pub(super) const POD_PORT: u16 = 8080;
/// Each Service has a slot that determines its addresses and node port.
pub(super) const SLOTS: u16 = 2_700;

/// An address in the network of the node and its clients, with the same last digits in both families.
pub(super) fn on_link(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(192, 0, 2, last).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, u16::from(last / 10 * 16 + last % 10)).into(),
    }
}

/// The node's own address.
pub(super) fn own(family: Family) -> IpAddr {
    on_link(family, 1)
}

/// The node's address that is removed and added.
pub(super) fn flapping(family: Family) -> IpAddr {
    on_link(family, 50)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    ClusterIp,
    NodePort,
    LoadBalancer,
}

/// Host of an endpoint: a pod that answers, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Host {
    /// One of the pods that answer.
    Pod(u16),
    /// No pod.
    Nobody(u16),
}

impl Host {
    pub(super) fn address(self, family: Family) -> IpAddr {
        let (first, net, number) = match self {
            Host::Pod(number) => (0x0af4_0100, 1, number + 10),
            Host::Nobody(number) => (0x0af5_0000, 2, number),
        };
        match family {
            Family::V4 => Ipv4Addr::from(first + u32::from(number)).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0x244, net, 0, 0, 0, 0, number).into(),
        }
    }

    /// Pods with even numbers are on the node that the proxy serves.
    pub(super) fn is_local(self) -> bool {
        let (Host::Pod(number) | Host::Nobody(number)) = self;
        number.is_multiple_of(2)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// Terminating, and still serving.
    Stopping,
    /// Does not serve.
    Unready,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) host: Host,
    pub(super) state: State,
}

/// Networks that may reach a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ranges {
    /// Everybody.
    None,
    /// The clients, but not the node.
    Clients,
    /// The node's own network.
    Node,
    /// Others only.
    Others,
}

impl Ranges {
    pub(super) fn of(self, family: Family) -> &'static [&'static str] {
        match (self, family) {
            (Ranges::None, _) => &[],
            (Ranges::Clients, Family::V4) => &["192.0.2.8/29"],
            (Ranges::Clients, Family::V6) => &["2001:db8:1::10/124"],
            (Ranges::Node, Family::V4) => &["192.0.2.0/24", "10.1.0.0/16"],
            (Ranges::Node, Family::V6) => &["2001:db8:1::/64"],
            (Ranges::Others, Family::V4) => &["198.51.100.0/25"],
            (Ranges::Others, Family::V6) => &["2001:db8:77::/48"],
        }
    }

    /// Whether one of them includes the node.
    pub(super) fn has_node(self) -> bool {
        self == Ranges::Node
    }
}

/// A Service with one port, its endpoints, and everything about it that the proxy uses.
#[expect(clippy::struct_excessive_bools, reason = "each is one property of a Service, and none excludes another")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) slot: u16,
    pub(super) families: &'static [Family],
    pub(super) protocol: Protocol,
    pub(super) kind: Kind,
    pub(super) port: u16,
    pub(super) target: u16,
    pub(super) external: bool,
    /// Whether a load balancer has its address already.
    pub(super) balanced: bool,
    pub(super) ranges: Ranges,
    pub(super) affinity_secs: Option<u32>,
    /// `externalTrafficPolicy: Local`; only for node ports, which need no health check.
    pub(super) local: bool,
    /// Belongs to another proxy.
    pub(super) hidden: bool,
    /// Whether there is an EndpointSlice at all.
    pub(super) sliced: bool,
    /// Another Service's address that this one claims as an external IP and must not get.
    pub(super) claims: Option<IpAddr>,
    pub(super) endpoints: Vec<Endpoint>,
}

pub(super) const V4: &[Family] = &[Family::V4];
pub(super) const V6: &[Family] = &[Family::V6];
pub(super) const BOTH: &[Family] = &Family::ALL;

/// A kind of address that a client connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    ClusterIp,
    External,
    Balancer,
    NodePort,
}

impl Service {
    pub(super) fn new(name: String, slot: u16) -> Self {
        Service {
            name,
            slot,
            families: V4,
            protocol: Protocol::Tcp,
            kind: Kind::ClusterIp,
            port: 80,
            target: POD_PORT,
            external: false,
            balanced: true,
            ranges: Ranges::None,
            affinity_secs: None,
            local: false,
            hidden: false,
            sliced: true,
            claims: None,
            endpoints: Vec::new(),
        }
    }

    pub(super) fn node_port(&self) -> Option<u16> {
        (self.kind != Kind::ClusterIp).then_some(30_000 + self.slot)
    }

    /// The Service's own addresses, except node ports.
    pub(super) fn address(&self, way: Way, family: Family) -> Option<IpAddr> {
        if !self.families.contains(&family) {
            return None;
        }
        let (v4, v6) = match way {
            Way::ClusterIp => (0x0a60_0000, 0x96),
            Way::External if self.external => (0xc612_0000, 0xe),
            Way::Balancer if self.kind == Kind::LoadBalancer && self.balanced => (0xc613_0000, 0x1b),
            _ => return None,
        };
        Some(match (family, way) {
            (Family::V4, _) => Ipv4Addr::from(v4 + u32::from(self.slot)).into(),
            (Family::V6, Way::ClusterIp) => Ipv6Addr::new(0xfd00, v6, 0, 0, 0, 0, 0, self.slot).into(),
            (Family::V6, _) => Ipv6Addr::new(0x2001, 0xdb8, v6, 0, 0, 0, 0, self.slot).into(),
        })
    }

    /// The address and port for a client of this family; for node ports, the node's own address.
    pub(super) fn place(&self, way: Way, family: Family) -> Option<SocketAddr> {
        if way == Way::NodePort {
            let port = self.node_port().filter(|_| self.families.contains(&family))?;
            return Some((own(family), port).into());
        }
        Some((self.address(way, family)?, self.port).into())
    }

    /// The hosts for new connections: ready ones; without any, those that terminate and still serve.
    fn chosen(&self, fits: impl Fn(&Endpoint) -> bool) -> Vec<Host> {
        let of = |state| {
            let those = self.endpoints.iter().filter(|endpoint| endpoint.state == state && fits(endpoint));
            those.map(|endpoint| endpoint.host).collect::<Vec<_>>()
        };
        let ready = of(State::Ready);
        if ready.is_empty() { of(State::Stopping) } else { ready }
    }

    /// The hosts behind one of its addresses.
    pub(super) fn hosts(&self, way: Way) -> Vec<Host> {
        if !self.sliced {
            return Vec::new();
        }
        if self.local && way != Way::ClusterIp {
            let here = self.chosen(|endpoint| endpoint.host.is_local());
            if !here.is_empty() {
                return here;
            }
        }
        self.chosen(|_| true)
    }

    /// The hosts of one of its addresses, for clients on this node and its pods and for all others. Not in IPVS mode,
    /// which does not distinguish them.
    pub(super) fn hosts_of_sides(&self, way: Way) -> (Vec<Host>, Vec<Host>) {
        let hosts = |fits: fn(&Endpoint) -> bool| if self.sliced { self.chosen(fits) } else { Vec::new() };
        let is_local = self.local && way != Way::ClusterIp;
        (hosts(|_| true), hosts(if is_local { |endpoint| endpoint.host.is_local() } else { |_| true }))
    }

    pub(super) fn object(&self) -> Value {
        let of =
            |way| self.families.iter().filter_map(move |family| self.address(way, *family)).map(|ip| ip.to_string());
        let clusters: Vec<String> = of(Way::ClusterIp).collect();
        let families: Vec<&str> = self.families.iter().map(|family| family.name()).collect();
        let mut object = json!({
            "kind": "Service", "apiVersion": "v1",
            "metadata": {
                "namespace": NAMESPACE, "name": self.name, "uid": format!("{}-uid", self.name),
                "creationTimestamp": "2026-01-21T04:55:24Z",
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": clusters.first(), "clusterIPs": clusters, "ipFamilies": families,
                "ipFamilyPolicy": if self.families.len() > 1 { "RequireDualStack" } else { "SingleStack" },
                "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
                "ports": [{"name": "p", "port": self.port, "protocol": self.protocol.name(), "targetPort": self.target}],
            },
            "status": {"loadBalancer": {}},
        });
        if let Some(port) = self.node_port() {
            object["spec"]["type"] = if self.kind == Kind::NodePort { "NodePort" } else { "LoadBalancer" }.into();
            object["spec"]["ports"][0]["nodePort"] = port.into();
            object["spec"]["externalTrafficPolicy"] = if self.local { "Local" } else { "Cluster" }.into();
        }
        let externals: Vec<String> = of(Way::External).chain(self.claims.map(|address| address.to_string())).collect();
        if !externals.is_empty() {
            object["spec"]["externalIPs"] = externals.into();
        }
        if self.kind == Kind::LoadBalancer {
            let ingress: Vec<Value> = of(Way::Balancer).map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
            object["status"]["loadBalancer"]["ingress"] = ingress.into();
            if self.ranges != Ranges::None {
                let ranges: Vec<&str> =
                    self.families.iter().flat_map(|family| self.ranges.of(*family)).copied().collect();
                object["spec"]["loadBalancerSourceRanges"] = ranges.into();
            }
        }
        if let Some(seconds) = self.affinity_secs {
            object["spec"]["sessionAffinity"] = "ClientIP".into();
            object["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
        }
        if self.hidden {
            object["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "another"});
        }
        object
    }

    pub(super) fn slice_name(&self, family: Family) -> String {
        format!("{}-{}", self.name, family.name().to_lowercase())
    }

    pub(super) fn slice(&self, family: Family) -> Value {
        let endpoints = self.endpoints.iter().map(|endpoint| {
            let (ready, serving, terminating) = match endpoint.state {
                State::Ready => (true, true, false),
                State::Stopping => (false, true, true),
                State::Unready => (false, false, false),
            };
            json!({
                "addresses": [endpoint.host.address(family).to_string()],
                "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
                "nodeName": if endpoint.host.is_local() { NODE } else { OTHER_NODE },
            })
        });
        json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": family.name(),
            "metadata": {
                "namespace": NAMESPACE, "name": self.slice_name(family),
                "labels": {"kubernetes.io/service-name": self.name},
            },
            "ports": [{"name": "p", "port": self.target, "protocol": self.protocol.name()}],
            "endpoints": endpoints.collect::<Vec<_>>(),
        })
    }

    pub(super) fn objects(&self) -> Vec<Value> {
        let slices = self.families.iter().filter(|_| self.sliced).map(|family| self.slice(*family));
        std::iter::once(self.object()).chain(slices).collect()
    }
}

/// The node as created by a kubelet and controllers.
pub(super) fn node() -> Value {
    let addresses = Family::ALL.map(|family| json!({"type": "InternalIP", "address": own(family).to_string()}));
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE, "topology.kubernetes.io/zone": "a"}},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00:244:1::/48"]},
        "status": {"addresses": addresses},
    })
}

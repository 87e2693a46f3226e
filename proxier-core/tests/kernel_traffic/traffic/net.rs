//! The network: who is where, and which way packets go.
//!
//! ```text
//!  client ── eth0 ┐            ┌ pod-a ── pod a
//!  .10, .20       ├── the node ┤
//!  second node ── eth1         └ pod-b ── pod b
//!  (pod r)
//! ```
//!
//! The second node has no route to the client except through the node. So pod r can be reached only if the node has
//! replaced the client's address with its own. Pods reach everything through the node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proxier_core::net::Family;
use testkit::witness::{Transport, Witness};
use testkit::{Netns, oracle, veth_pair};

/// The addresses of one host, one of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) v4: &'static str,
    pub(crate) v6: &'static str,
}

impl Pair {
    pub(crate) fn of(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
        .parse()
        .unwrap()
    }
}

pub(crate) const CLIENT: Pair = Pair { v4: "192.0.2.10", v6: "2001:db8:1::10" };
/// The client's second address.
pub(crate) const STRANGER: Pair = Pair { v4: "192.0.2.20", v6: "2001:db8:1::20" };
/// The node's address as its Node object has it, on the client's side.
pub(crate) const NODE: Pair = Pair { v4: "192.0.2.1", v6: "2001:db8:1::1" };
/// The node's address on the side of the second node.
pub(crate) const NODE_UPLINK: Pair = Pair { v4: "198.51.100.1", v6: "2001:db8:2::1" };
/// The node's address on the side of its pods.
pub(crate) const NODE_PODS: Pair = Pair { v4: "10.244.1.1", v6: "fd00:244:1::1" };
pub(crate) const SECOND_NODE: Pair = Pair { v4: "198.51.100.2", v6: "2001:db8:2::2" };
pub(crate) const POD_A: Pair = Pair { v4: "10.244.1.10", v6: "fd00:244:1::10" };
pub(crate) const POD_B: Pair = Pair { v4: "10.244.1.11", v6: "fd00:244:1::11" };
pub(crate) const POD_R: Pair = Pair { v4: "10.244.2.10", v6: "fd00:244:2::10" };
/// The networks of all pods, as `clusterCIDR` has them.
pub(crate) const CLUSTER_CIDR: &str = "10.244.0.0/16,fd00:244::/32";

pub(crate) const FAMILIES: [Family; 2] = [Family::V4, Family::V6];
pub(crate) const NODE_ADDRESSES: [Pair; 3] = [NODE, NODE_UPLINK, NODE_PODS];
/// The port on which pods listen.
pub(crate) const POD_PORT: u16 = 8080;

pub(crate) struct Net {
    /// The test's own namespace.
    pub(crate) node: Netns,
    pub(crate) client: Netns,
    pub(crate) second_node: Netns,
    pub(crate) pod_a: Netns,
    pub(crate) pod_b: Netns,
}

/// The client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Client,
    PodB,
    Node,
}

impl From {
    pub(crate) const ALL: [From; 3] = [From::Client, From::PodB, From::Node];
}

pub(crate) fn batch(namespace: &Netns, lines: &[String]) {
    let text = lines.join("\n");
    namespace.run_in(|| oracle::run("ip", &["-batch", "-"], Some(&text))).unwrap().unwrap();
}

impl Net {
    /// A network in which each pod has a link of its own to the node.
    pub(crate) fn new() -> Self {
        Self::with(false)
    }

    /// The pods share a bridge and a network, and reach each other without the node. Their packets still pass its rules (`br_netfilter`), as
    /// Kubernetes requires, or the node could not translate their answers to each other.
    pub(crate) fn bridged() -> Self {
        Self::with(true)
    }

    /// The node forgets ended connections soon: a small machine has room for 8,192 tracked ones, and drops the rest.
    pub(crate) fn for_load() -> Self {
        oracle::run("modprobe", &["nf_conntrack"], None).unwrap();
        let net = Self::new();
        for timeout in ["tcp_timeout_time_wait", "tcp_timeout_close", "udp_timeout", "udp_timeout_stream"] {
            net.node.write_sysctl(&format!("net/netfilter/nf_conntrack_{timeout}"), "3").unwrap();
        }
        net
    }

    /// Connections that the node tracks, and its limit.
    pub(crate) fn tracked(node: &Netns) -> (u32, u32) {
        let read = |name| {
            let text = node.run_in(|| std::fs::read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{name}")));
            text.unwrap().unwrap().trim().parse().unwrap()
        };
        (read("count"), read("max"))
    }

    fn with(bridged: bool) -> Self {
        let new = || Netns::new().unwrap();
        let net =
            Net { node: Netns::current().unwrap(), client: new(), second_node: new(), pod_a: new(), pod_b: new() };
        net.node.write_sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        // Send every ICMP refusal, even many a second.
        net.node.write_sysctl("net/ipv4/icmp_ratelimit", "0").unwrap();
        net.node.write_sysctl("net/ipv6/icmp/ratelimit", "0").unwrap();
        veth_pair((&net.node, "eth0"), (&net.client, "eth0")).unwrap();
        veth_pair((&net.node, "eth1"), (&net.second_node, "eth0")).unwrap();
        veth_pair((&net.node, "pod-a"), (&net.pod_a, "eth0")).unwrap();
        veth_pair((&net.node, "pod-b"), (&net.pod_b, "eth0")).unwrap();
        let mut lines = Lines::default();
        lines.address(NODE, (24, 64), "eth0").address(NODE_UPLINK, (24, 64), "eth1");
        if bridged {
            oracle::run("modprobe", &["br_netfilter"], None).unwrap();
            lines.0.push("link add cni0 type bridge".to_owned());
            for device in ["pod-a", "pod-b"] {
                lines.0.push(format!("link set {device} master cni0"));
                // The network plugin sets this too (`hairpinMode`): otherwise a bridge does not send a packet back out of its port.
                lines.0.push(format!("link set {device} type bridge_slave hairpin on"));
            }
            lines.0.push("link set cni0 up".to_owned());
            lines.address(NODE_PODS, (24, 64), "cni0");
        } else {
            for (device, pod) in [("pod-a", POD_A), ("pod-b", POD_B)] {
                lines.address(NODE_PODS, (32, 128), device).link_route(pod, device);
            }
        }
        lines.0.push(format!("route add 10.244.2.0/24 via {}", SECOND_NODE.v4));
        lines.0.push(format!("route add fd00:244:2::/48 via {}", SECOND_NODE.v6));
        batch(&net.node, &lines.0);

        let mut lines = Lines::default();
        lines.address(CLIENT, (24, 64), "eth0").address(STRANGER, (24, 64), "eth0").default_route(NODE);
        batch(&net.client, &lines.0);

        let mut lines = Lines::default();
        lines.address(SECOND_NODE, (24, 64), "eth0").address(POD_R, (32, 128), "lo");
        lines.0.push(format!("route add 10.244.1.0/24 via {}", NODE_UPLINK.v4));
        lines.0.push(format!("route add fd00:244:1::/48 via {}", NODE_UPLINK.v6));
        batch(&net.second_node, &lines.0);

        for (namespace, pod) in [(&net.pod_a, POD_A), (&net.pod_b, POD_B)] {
            let mut lines = Lines::default();
            if bridged {
                lines.address(pod, (24, 64), "eth0");
            } else {
                lines.address(pod, (32, 128), "eth0").link_route(NODE_PODS, "eth0");
            }
            lines.default_route(NODE_PODS);
            batch(namespace, &lines.0);
        }
        net
    }

    /// The pods' servers: `a`, `b` and, on the second node, `r`.
    pub(crate) fn serve(&self) -> [Witness; 3] {
        let start = |namespace, name, pod| Witness::start(namespace, name, &places(pod, POD_PORT)).unwrap();
        [start(&self.pod_a, "a", POD_A), start(&self.pod_b, "b", POD_B), start(&self.second_node, "r", POD_R)]
    }

    /// The address that a client asks from: it has two, and the kernel would choose.
    pub(crate) fn address(from: From, family: Family) -> Option<IpAddr> {
        (from == From::Client).then(|| CLIENT.of(family))
    }

    pub(crate) fn of(&self, from: From) -> &Netns {
        match from {
            From::Client => &self.client,
            From::PodB => &self.pod_b,
            From::Node => &self.node,
        }
    }
}

/// Every transport at both addresses of a host.
pub(crate) fn places(at: Pair, port: u16) -> Vec<(Transport, std::net::SocketAddr)> {
    let of = |family| Transport::ALL.map(|transport| (transport, (at.of(family), port).into()));
    FAMILIES.into_iter().flat_map(of).collect()
}

/// Whether an address is one of the node's own, not a Service's.
pub(crate) fn is_nodes(address: IpAddr) -> bool {
    let own: BTreeSet<IpAddr> =
        NODE_ADDRESSES.into_iter().flat_map(|pair| FAMILIES.map(|family| pair.of(family))).collect();
    own.contains(&address)
}

#[derive(Default)]
pub(crate) struct Lines(pub(crate) Vec<String>);

impl Lines {
    pub(crate) fn address(&mut self, at: Pair, prefix: (u8, u8), device: &str) -> &mut Self {
        self.0.push(format!("address add {}/{} dev {device}", at.v4, prefix.0));
        self.0.push(format!("address add {}/{} dev {device} nodad", at.v6, prefix.1));
        self
    }

    pub(crate) fn link_route(&mut self, to: Pair, device: &str) -> &mut Self {
        self.0.push(format!("route add {}/32 dev {device}", to.v4));
        self.0.push(format!("route add {}/128 dev {device}", to.v6));
        self
    }

    pub(crate) fn default_route(&mut self, via: Pair) -> &mut Self {
        self.0.push(format!("route add 0.0.0.0/0 via {}", via.v4));
        self.0.push(format!("route add ::/0 via {}", via.v6));
        self
    }
}

//! Network namespaces of a node, its clients and its pods, and other programs' objects on the node.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use testkit::oracle::{self, Backend};
use testkit::witness::{Transport, Witness};
use testkit::{Netns, NetnsGuard, veth_pair};

use super::world::{Family, Host, POD_PORT, PODS, flapping, on_link, own};
use crate::Failure;
use crate::network::tool;

/// Networks whose addresses serve node ports.
pub(super) const NODE_PORT_NETWORKS: &str = "192.0.2.0/24,2001:db8:1::/64";
/// The networks of pods.
pub(super) const CLUSTER_CIDR: &str = "10.244.0.0/15,fd00:244::/32";
/// Another program's address on the node, outside the networks of node ports.
pub(super) const FOREIGN: &str = "172.31.0.9";

/// Both programs of iptables, and their implementation.
pub(super) const IPTABLES: [&str; 2] = ["iptables-legacy", "ip6tables-legacy"];
pub(super) const BACKEND: Backend = Backend::Legacy;

/// Port that another program's rules forward to a pod.
pub(super) const FOREIGN_PORT: u16 = 8_000;

/// Whether this kernel has IPVS.
pub(super) fn has_ipvs() -> bool {
    Path::new("/proc/net/ip_vs").exists()
}

/// All namespaces, and the pods' servers. While this lives, the thread that created it is on the node.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) client: Netns,
    _pods: Netns,
    _servers: Vec<Witness>,
    /// Dropped last.
    _node: NetnsGuard,
}

fn batch(namespace: &Netns, lines: &[String]) -> Result<(), Failure> {
    namespace.run_in(|| oracle::run("ip", &["-batch", "-"], Some(&lines.join("\n"))))??;
    Ok(())
}

fn addresses(of: impl Fn(Family) -> IpAddr, device: &str) -> [String; 2] {
    let (v4, v6) = (of(Family::V4), of(Family::V6));
    [format!("address add {v4}/24 dev {device}"), format!("address add {v6}/64 dev {device} nodad")]
}

/// The client's first address, and that of a client outside the source ranges.
pub(super) fn client(family: Family, stranger: bool) -> IpAddr {
    on_link(family, if stranger { 20 } else { 10 })
}

impl Ground {
    /// A node for this thread and the threads and processes that it starts.
    pub(super) fn new() -> Result<Self, Failure> {
        // Loads the modules if possible; a missing one shows below.
        for module in ["nf_conntrack", "ip_vs"] {
            tool(&format!("modprobe {module}")).map_or_else(drop, drop);
        }
        let node = NetnsGuard::new()?;
        let here = Netns::current()?;
        let (client_side, pods) = (Netns::new()?, Netns::new()?);
        veth_pair((&here, "eth0"), (&client_side, "eth0"))?;
        veth_pair((&here, "pods"), (&pods, "eth0"))?;
        let mut lines = [addresses(own, "eth0"), addresses(flapping, "eth0")].concat();
        lines.push("address add 10.244.1.1/24 dev pods".to_owned());
        lines.push("address add fd00:244:1::1/64 dev pods nodad".to_owned());
        for device in ["foreign0", "flood0"] {
            lines.push(format!("link add {device} type bridge"));
            lines.push(format!("link set {device} up"));
        }
        lines.push(format!("address add {FOREIGN}/32 dev foreign0"));
        // Rules only translate what has a route.
        lines.extend(Family::ALL.map(|family| format!("route add default via {}", client(family, false))));
        // While the address is missing, its packets must not be forwarded. Linux forgets how it masquerades a
        // connection when a packet leaves by another device (`nf_nat_oif_changed`), and the pod then resets it. No
        // proxy can prevent that.
        lines.push(format!("route add blackhole {}/32", flapping(Family::V4)));
        lines.push(format!("route add blackhole {}/128", flapping(Family::V6)));
        batch(&here, &lines)?;
        let mut lines = [false, true].map(|stranger| addresses(|family| client(family, stranger), "eth0")).concat();
        lines.extend(Family::ALL.map(|family| format!("route add default via {}", own(family))));
        batch(&client_side, &lines)?;
        let of_pods = (0..PODS).flat_map(|pod| addresses(|family| Host::Pod(pod).address(family), "eth0"));
        let routes = ["10.244.1.1", "fd00:244:1::1"].map(|gateway| format!("route add default via {gateway}"));
        batch(&pods, &of_pods.chain(routes).collect::<Vec<_>>())?;
        for (name, value) in [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            // Send every ICMP refusal.
            ("net/ipv4/icmp_ratelimit", "0"),
            ("net/ipv6/icmp/ratelimit", "0"),
            // Forget a connection before its port is used again.
            ("net/netfilter/nf_conntrack_tcp_timeout_time_wait", "5"),
            ("net/netfilter/nf_conntrack_tcp_timeout_close", "3"),
            ("net/netfilter/nf_conntrack_udp_timeout", "5"),
            ("net/netfilter/nf_conntrack_udp_timeout_stream", "5"),
        ] {
            here.write_sysctl(name, value)?;
        }
        if has_ipvs() {
            // Otherwise conntrack does not see what IPVS translates, and the answers of other programs' virtual servers
            // are dropped as invalid in nftables and iptables mode, as with kube-proxy. IPVS mode sets it itself.
            here.write_sysctl("net/ipv4/vs/conntrack", "1")?;
        }
        let servers = (0..PODS).map(|pod| serve(&pods, pod)).collect::<Result<_, _>>()?;
        foreign()?;
        Ok(Ground { client: client_side, _pods: pods, _servers: servers, _node: node })
    }
}

/// A pod answers on its port over TCP and UDP with its number.
fn serve(namespace: &Netns, pod: u16) -> Result<Witness, Failure> {
    let places = Family::ALL.map(|family| {
        let place = SocketAddr::new(Host::Pod(pod).address(family), POD_PORT);
        [(Transport::Tcp, place), (Transport::Udp, place)]
    });
    let places = places.concat();
    Ok(Witness::start(namespace, &pod.to_string(), &places)?)
}

/// Creates other programs' objects on this node, which the proxy must not change. The port is one of its node ports.
fn foreign() -> Result<(), Failure> {
    let mut lines = vec!["ipset create FOREIGN hash:ip".to_owned(), "ipset add FOREIGN 198.51.100.7".to_owned()];
    if has_ipvs() {
        lines.extend([
            format!("ipvsadm -A -t {FOREIGN}:80 -s wlc"),
            format!("ipvsadm -a -t {FOREIGN}:80 -r 10.244.1.10:8080 -m"),
            format!("ipvsadm -A -t {FOREIGN}:30002 -s rr"),
            format!("ipvsadm -a -t {FOREIGN}:30002 -r 10.244.1.11:8080 -m -w 3"),
            format!("ipvsadm -A -u {FOREIGN}:53 -s rr -p 60"),
            "ipvsadm -A -f 77 -s rr".to_owned(),
        ]);
    }
    // Another program's rule translates too, so that Linux does so in every mode.
    let [v4, _] = IPTABLES;
    lines.push(format!("{v4} -t nat -N FOREIGN-NAT"));
    let to = "-j DNAT --to-destination 10.244.1.10:8080";
    lines.push(format!("{v4} -t nat -A FOREIGN-NAT -p tcp -d {FOREIGN} --dport {FOREIGN_PORT} {to}"));
    lines.push(format!("{v4} -t nat -A PREROUTING -j FOREIGN-NAT"));
    for line in lines {
        tool(&line)?;
    }
    for program in IPTABLES {
        tool(&format!("{program} -N FOREIGN"))?;
        tool(&format!("{program} -A FOREIGN -p tcp --dport 7 -j DROP"))?;
        tool(&format!("{program} -A FORWARD -j FOREIGN"))?;
        // The kubelet's chain, by which programs detect which implementation this host uses.
        tool(&format!("{program} -t mangle -N KUBE-IPTABLES-HINT"))?;
    }
    Ok(())
}

/// The objects of other programs in the kernel.
pub(super) fn foreign_state() -> Result<BTreeSet<String>, Failure> {
    let mut lines = BTreeSet::new();
    let ours = |line: &str| line.contains(FOREIGN) || line.contains(" -f ");
    if has_ipvs() {
        lines.extend(tool("ipvsadm -Sn")?.lines().filter(|line| ours(line)).map(|line| line.trim().to_owned()));
    }
    lines.extend(oracle::ipset_save()?.lines().filter(|line| line.contains("FOREIGN")).map(str::to_owned));
    for family in [oracle::Family::V4, oracle::Family::V6] {
        let text = oracle::iptables_save(BACKEND, family)?;
        let theirs = text.lines().filter(|line| line.contains("FOREIGN") || line.contains("KUBE-IPTABLES-HINT"));
        lines.extend(theirs.map(|line| format!("{family:?} {}", line.split(" [").next().unwrap_or(line))));
    }
    let address = tool("ip -o addr show dev foreign0")?;
    lines.extend(
        address
            .lines()
            .filter(|line| line.contains(" inet "))
            .map(|line| line.split_whitespace().skip(1).take(3).collect::<Vec<_>>().join(" ")),
    );
    Ok(lines)
}

/// The node's addresses in the networks of node ports.
pub(super) fn node_addresses() -> Vec<IpAddr> {
    Family::ALL.into_iter().flat_map(|family| [own(family), flapping(family)]).collect()
}

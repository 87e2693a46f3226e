//! The model of the kernel's tables for Services, by mode, and the differences from it.
//!
//! For IPVS mode these are the lines of `ipvsadm -Sn`, `ipset save`, `iptables-save` and `ip`. For the other modes the
//! lines say which address and port is forwarded where ([`super::held`] extracts that from the tools' output).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::mode::Mode;
use super::world::{Family, Host, Kind, Protocol, Ranges, Service, Way};

/// Virtual and real servers.
pub(super) const SERVERS: &str = "ipvsadm -Sn";
/// The entries of our sets.
pub(super) const SETS: &str = "ipset save";
/// Addresses of `kube-ipvs0`; in userspace mode, those that routes make local.
pub(super) const ADDRESSES: &str = "ip";
/// The proxy's rules. In IPVS mode only those of `KUBE-IPVS-OUT-FILTER`, the only chain with rules per Service, for
/// source ranges.
pub(super) const RULES: &str = "iptables-save";
/// The tables of nftables mode.
pub(super) const TABLE: &str = "nft list ruleset";
/// Sockets that a process listens on.
pub(super) const SOCKETS: &str = "ss";

/// Lines of each tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tables(BTreeMap<&'static str, BTreeSet<String>>);

impl Tables {
    /// The tables for these Services, on a node with these addresses in the networks of node ports.
    pub(super) fn of<'a>(mode: Mode, services: impl IntoIterator<Item = &'a Service>, node: &[IpAddr]) -> Self {
        let mut tables = Tables::default();
        for service in services {
            if !service.hidden {
                for family in service.families {
                    match mode {
                        Mode::Ipvs => tables.add_ipvs(service, *family, node),
                        _ => tables.add_served(mode, service, *family, node),
                    }
                }
            }
        }
        tables
    }

    pub(super) fn add(&mut self, tool: &'static str, line: String) {
        self.0.entry(tool).or_default().insert(line);
    }

    /// Adds lines.
    pub(super) fn extend(&mut self, tool: &'static str, lines: impl IntoIterator<Item = String>) {
        self.0.entry(tool).or_default().extend(lines);
    }

    /// The lines of a tool.
    pub(super) fn of_tool(&self, tool: &str) -> impl Iterator<Item = &String> {
        self.0.get(tool).into_iter().flatten()
    }

    /// Adds the targets of new connections to the Service, in modes without IPVS tables.
    fn add_served(&mut self, mode: Mode, service: &Service, family: Family, node: &[IpAddr]) {
        let protocol = lower(service.protocol);
        for way in [Way::ClusterIp, Way::External, Way::Balancer, Way::NodePort] {
            let places: Vec<SocketAddr> = match service.node_port().filter(|_| way == Way::NodePort) {
                // Its chains match node ports by port alone.
                Some(port) if mode == Mode::Iptables => vec![(family.unspecified(), port).into()],
                Some(port) => {
                    node.iter().filter(|ip| Family::of(**ip) == family).map(|ip| (*ip, port).into()).collect()
                }
                None if way == Way::NodePort => Vec::new(),
                None => {
                    service.address(way, family).map(|address| (address, service.port).into()).into_iter().collect()
                }
            };
            let (inside, outside) = service.hosts_of_sides(way);
            for place in places {
                if mode == Mode::Userspace {
                    if way != Way::NodePort {
                        self.add(ADDRESSES, place.ip().to_string());
                    }
                    if !inside.is_empty() {
                        self.add(SOCKETS, format!("{protocol} {place}"));
                    }
                    continue;
                }
                let tool = if mode == Mode::Nftables { TABLE } else { RULES };
                let line = |what: String| format!("{protocol} {place} {what}");
                if inside.is_empty() {
                    self.add(tool, line("refuses".to_owned()));
                    continue;
                }
                if outside.is_empty() {
                    self.add(tool, line("drops".to_owned()));
                }
                for host in inside.iter().chain(&outside) {
                    let real = SocketAddr::new(host.address(family), service.target);
                    self.add(tool, line(format!("-> {real}")));
                }
                if let Some(seconds) = service.affinity_secs {
                    self.add(tool, line(format!("remembers {seconds}")));
                }
                if way == Way::Balancer && service.ranges != Ranges::None {
                    let ranges = service.ranges.of(family).iter().map(|range| (*range).to_owned());
                    let itself = service.ranges.has_node().then(|| place.ip().to_string());
                    ranges.chain(itself).for_each(|range| self.add(tool, line(format!("lets in {range}"))));
                }
            }
        }
    }

    fn add_ipvs(&mut self, service: &Service, family: Family, node: &[IpAddr]) {
        let protocol = lower(service.protocol);
        for way in [Way::ClusterIp, Way::External, Way::Balancer] {
            let Some(address) = service.address(way, family) else { continue };
            self.server(service, (address, service.port).into(), &service.hosts(way));
            self.add(ADDRESSES, address.to_string());
            self.entry(family, "IPVS-IPS", &address.to_string());
            let set = match way {
                Way::ClusterIp => "CLUSTER-IP",
                // The policy applies to node ports and load balancers.
                Way::External if service.local => "EXTERNAL-IP-LOCAL",
                Way::External => "EXTERNAL-IP",
                _ => "LOAD-BALANCER",
            };
            self.entry(family, set, &format!("{address},{protocol}:{}", service.port));
        }
        if let Some(address) = service.address(Way::Balancer, family) {
            self.guard(service, family, address);
        }
        if let Some(port) = service.node_port() {
            let kinds: &[&str] = if service.local { &["NODE-PORT", "NODE-PORT-LOCAL"] } else { &["NODE-PORT"] };
            for kind in kinds {
                self.entry(family, &format!("{kind}-{}", service.protocol), &port.to_string());
            }
            for address in node.iter().filter(|address| Family::of(**address) == family) {
                self.server(service, (*address, port).into(), &service.hosts(Way::NodePort));
                // These entries distinguish the proxy's node ports from other programs' virtual servers.
                self.entry(family, "NODE-PORT-SERVED", &format!("{address},{protocol}:{port}"));
            }
        }
        for endpoint in service.endpoints.iter().filter(|endpoint| service.sliced && endpoint.host.is_local()) {
            let address = endpoint.host.address(family);
            self.entry(family, "LOOP-BACK", &format!("{address},{protocol}:{},{address}", service.target));
        }
    }

    fn guard(&mut self, service: &Service, family: Family, address: IpAddr) {
        if service.ranges == Ranges::None {
            return;
        }
        let (protocol, port) = (lower(service.protocol), service.port);
        self.entry(family, "LOAD-BALANCER-FW", &format!("{address},{protocol}:{port}"));
        for range in service.ranges.of(family) {
            self.entry(family, "LOAD-BALANCER-SOURCE-CIDR", &format!("{address},{protocol}:{port},{range}"));
        }
        if service.ranges.has_node() {
            self.entry(family, "LOAD-BALANCER-SOURCE-IP", &format!("{address},{protocol}:{port},{address}"));
        } else {
            let bits = if family == Family::V4 { 32 } else { 128 };
            let number = if service.protocol == Protocol::Udp { 17 } else { 6 };
            // As iptables-save prints it.
            let rule = format!(
                "-A KUBE-IPVS-OUT-FILTER -s {address}/{bits} -m ipvs --vproto {number} --vaddr {address} --vport {port} -j DROP"
            );
            self.add(RULES, rule);
        }
    }

    fn server(&mut self, service: &Service, place: SocketAddr, hosts: &[Host]) {
        let option = option(service.protocol);
        let affinity = service.affinity_secs.map(|seconds| format!(" -p {seconds}")).unwrap_or_default();
        self.add(SERVERS, format!("-A {option} {place} -s rr{affinity}"));
        for host in hosts {
            let real = SocketAddr::new(host.address(Family::of(place.ip())), service.target);
            self.add(SERVERS, format!("-a {option} {place} -r {real} -m -w 1"));
        }
    }

    fn entry(&mut self, family: Family, set: &str, element: &str) {
        let name = match family {
            Family::V4 => format!("KUBE-{set}"),
            // A name has room for 31 bytes.
            Family::V6 => format!("KUBE-6-{set}").chars().take(31).collect(),
        };
        self.add(SETS, format!("add {name} {element}"));
    }

    /// The lines that another does not have, each with its tool.
    pub(super) fn missing(&self, other: &Tables) -> impl Iterator<Item = (&'static str, &String)> {
        let all = self.0.iter().flat_map(|(tool, lines)| lines.iter().map(|line| (*tool, line)));
        all.filter(|(tool, line)| !other.0.get(tool).is_some_and(|there| there.contains(*line)))
    }

    /// How the kernel differs, as readable lines.
    pub(super) fn differences(&self, kernel: &Tables) -> Vec<String> {
        let missing = self.missing(kernel).map(|(tool, line)| format!("{tool}: missing: {line}"));
        missing.chain(kernel.missing(self).map(|(tool, line)| format!("{tool}: not wanted: {line}"))).collect()
    }
}

/// `ipvsadm`'s option for a protocol.
pub(super) fn option(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Udp { "-u" } else { "-t" }
}

pub(super) fn lower(protocol: Protocol) -> String {
    protocol.name().to_lowercase()
}

pub(super) fn ways(service: &Service) -> impl Iterator<Item = (Way, Family, SocketAddr)> {
    let ways = [Way::ClusterIp, Way::External, Way::Balancer, Way::NodePort];
    let pairs = ways.into_iter().flat_map(|way| Family::ALL.map(|family| (way, family)));
    pairs.filter_map(|(way, family)| Some((way, family, service.place(way, family)?)))
}

/// Whether a Service has a load balancer, with its address, and source ranges.
pub(super) fn is_guarded(service: &Service) -> bool {
    service.kind == Kind::LoadBalancer && service.balanced && service.ranges != Ranges::None
}

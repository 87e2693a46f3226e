//! What the kernel should hold for Services, in the formats of `ipvsadm -Sn`, `ipset save`, `iptables-save` and `ip`, and
//! where it differs.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::world::{Family, Host, Kind, Protocol, Ranges, Service, Way};

/// Lines of each tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    /// `ipvsadm -Sn`.
    pub(super) servers: BTreeSet<String>,
    /// `ipset save`: the entries of our sets.
    pub(super) entries: BTreeSet<String>,
    /// Addresses of `kube-ipvs0`.
    pub(super) addresses: BTreeSet<String>,
    /// The rules of `KUBE-IPVS-OUT-FILTER`, the only ones that a Service with source ranges has for itself.
    pub(super) guards: BTreeSet<String>,
}

impl Tables {
    /// The tables for these Services, on a node with these addresses in the networks of node ports.
    pub(super) fn of<'a>(services: impl IntoIterator<Item = &'a Service>, node: &[IpAddr]) -> Self {
        let mut tables = Tables::default();
        for service in services {
            if !service.hidden {
                for family in service.families {
                    tables.add(service, *family, node);
                }
            }
        }
        tables
    }

    fn add(&mut self, service: &Service, family: Family, node: &[IpAddr]) {
        let protocol = service.protocol.lower();
        for way in [Way::ClusterIp, Way::External, Way::Balancer] {
            let Some(address) = service.address(way, family) else { continue };
            self.server(service, (address, service.port).into(), &service.hosts(way));
            self.addresses.insert(address.to_string());
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
                self.entry(family, &format!("{kind}-{}", service.protocol.upper()), &port.to_string());
            }
            for address in node.iter().filter(|address| Family::of(**address) == family) {
                self.server(service, (*address, port).into(), &service.hosts(Way::NodePort));
                // These entries distinguish the proxy's node ports from others' virtual servers.
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
        let (protocol, port) = (service.protocol.lower(), service.port);
        self.entry(family, "LOAD-BALANCER-FW", &format!("{address},{protocol}:{port}"));
        for range in service.ranges.of(family) {
            self.entry(family, "LOAD-BALANCER-SOURCE-CIDR", &format!("{address},{protocol}:{port},{range}"));
        }
        if service.ranges.has_node() {
            self.entry(family, "LOAD-BALANCER-SOURCE-IP", &format!("{address},{protocol}:{port},{address}"));
        } else {
            let bits = if family == Family::V4 { 32 } else { 128 };
            let number = service.protocol.number();
            // As iptables-save prints it.
            self.guards.insert(format!(
                "-A KUBE-IPVS-OUT-FILTER -s {address}/{bits} -m ipvs --vproto {number} --vaddr {address} --vport {port} -j DROP"
            ));
        }
    }

    fn server(&mut self, service: &Service, place: SocketAddr, hosts: &[Host]) {
        let option = option(service.protocol);
        let affinity = service.affinity_secs.map(|seconds| format!(" -p {seconds}")).unwrap_or_default();
        self.servers.insert(format!("-A {option} {place} -s rr{affinity}"));
        for host in hosts {
            let real = SocketAddr::new(host.address(Family::of(place.ip())), service.target);
            self.servers.insert(format!("-a {option} {place} -r {real} -m -w 1"));
        }
    }

    fn entry(&mut self, family: Family, set: &str, element: &str) {
        let name = match family {
            Family::V4 => format!("KUBE-{set}"),
            // A name has room for 31 bytes.
            Family::V6 => format!("KUBE-6-{set}").chars().take(31).collect(),
        };
        self.entries.insert(format!("add {name} {element}"));
    }

    /// Where the kernel differs, as readable lines.
    pub(super) fn differences(&self, kernel: &Tables) -> Vec<String> {
        let mut lines = Vec::new();
        for (tool, wanted, there) in [
            ("ipvsadm -Sn", &self.servers, &kernel.servers),
            ("ipset save", &self.entries, &kernel.entries),
            ("ip addr show kube-ipvs0", &self.addresses, &kernel.addresses),
            ("iptables-save", &self.guards, &kernel.guards),
        ] {
            lines.extend(wanted.difference(there).map(|line| format!("{tool}: missing: {line}")));
            lines.extend(there.difference(wanted).map(|line| format!("{tool}: not wanted: {line}")));
        }
        lines
    }
}

/// `ipvsadm`'s option for a protocol.
pub(super) fn option(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "-t",
        Protocol::Udp => "-u",
    }
}

/// The ways by which a Service can be reached.
pub(super) fn ways(service: &Service) -> impl Iterator<Item = (Way, Family, SocketAddr)> {
    let ways = [Way::ClusterIp, Way::External, Way::Balancer, Way::NodePort];
    let pairs = ways.into_iter().flat_map(|way| Family::ALL.map(|family| (way, family)));
    pairs.filter_map(|(way, family)| Some((way, family, service.place(way, family)?)))
}

/// Whether a Service has a load balancer, with its address, and source ranges.
pub(super) fn is_guarded(service: &Service) -> bool {
    service.kind == Kind::LoadBalancer && service.balanced && service.ranges != Ranges::None
}

#[cfg(test)]
mod tests {
    use super::super::world::{BOTH, Endpoint, State};
    use super::*;

    #[test]
    fn a_guarded_dual_stack_service_in_the_words_of_the_tools() {
        let mut service = Service::new("web".to_owned(), 5);
        service.kind = Kind::LoadBalancer;
        service.families = BOTH;
        service.ranges = Ranges::Clients;
        service.affinity_secs = Some(600);
        service.endpoints = vec![Endpoint { host: Host::Pod(2), state: State::Ready }];
        let tables = Tables::of([&service], &[Family::V4.node()]);
        for line in [
            "-A -t 198.19.0.5:80 -s rr -p 600",
            "-a -t 198.19.0.5:80 -r 10.244.1.12:8080 -m -w 1",
            "-a -t 192.0.2.1:30005 -r 10.244.1.12:8080 -m -w 1",
            "-a -t [fd00:96::5]:80 -r [fd00:244:1::c]:8080 -m -w 1",
        ] {
            assert!(tables.servers.contains(line), "{line} {:#?}", tables.servers);
        }
        assert!(!tables.servers.iter().any(|line| line.contains("2001:db8:1::1")), "the node has no IPv6 address");
        for line in [
            "add KUBE-LOAD-BALANCER-SOURCE-CIDR 198.19.0.5,tcp:80,192.0.2.8/29",
            "add KUBE-6-LOAD-BALANCER-SOURCE-CID 2001:db8:1b::5,tcp:80,2001:db8:1::10/124",
            "add KUBE-LOOP-BACK 10.244.1.12,tcp:8080,10.244.1.12",
            "add KUBE-NODE-PORT-TCP 30005",
            "add KUBE-IPVS-IPS 10.96.0.5",
        ] {
            assert!(tables.entries.contains(line), "{line} {:#?}", tables.entries);
        }
        assert_eq!(tables.guards.len(), 2);
        assert_eq!(tables.addresses.len(), 4);
    }

    #[test]
    fn every_difference_is_named() {
        let mut service = Service::new("web".to_owned(), 5);
        let wanted = Tables::of([&service], &[]);
        assert_eq!(wanted.differences(&wanted), <[String; 0]>::default());
        service.port = 81;
        let other = Tables::of([&service], &[]);
        let lines = wanted.differences(&other);
        assert!(lines.contains(&"ipvsadm -Sn: missing: -A -t 10.96.0.5:80 -s rr".to_owned()), "{lines:?}");
        assert!(lines.contains(&"ipvsadm -Sn: not wanted: -A -t 10.96.0.5:81 -s rr".to_owned()), "{lines:?}");
        assert_eq!(lines.len(), 4);
        service.hidden = true;
        assert_eq!(Tables::of([&service], &[]), Tables::default());
    }
}

//! The ipset sets of each family: kube-proxy's seventeen that rules use, with its names, and one that records node
//! ports of this proxy.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;

use ipset::{Element, IpSpan, PortRange, Ports, Range, SetSpec, SetType};

use crate::config::NamePrefix;
use crate::net::{Family, FrontendKey, Protocol};
use crate::ports::{PortError, PortErrorKind, Result};

macro_rules! sets {
    ($($(#[$doc:meta])* $kind:ident = $stem:literal, $set_type:ident, $comment:literal;)*) => {
        /// Kind of set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum SetKind {
            $($(#[$doc])* $kind,)*
        }

        impl SetKind {
            /// The kinds that are ipsets, in the order of this type.
            pub const ALL: [SetKind; 18] = {
                let [ipsets @ .., _, _, _, _] = SetKind::ALL_OF_NFT;
                ipsets
            };

            /// Kinds in an nf_tables table, in the order of this type.
            pub(crate) const ALL_OF_NFT: [SetKind; 22] = [$(SetKind::$kind),*];

            pub(crate) fn has_marks(self) -> bool {
                self == SetKind::SplitMark
            }

            /// Whether its entries mark packets: they are added after the virtual servers of these marks, and deleted
            /// before them.
            pub(crate) fn gives_marks(self) -> bool {
                self == SetKind::LocalSplit
            }

            /// Whether kube-proxy has this set too. Only this proxy has [`SetKind::NodePortServed`] and those that are
            /// not ipsets, so comparisons with kube-proxy omit them.
            pub fn is_of_kube_proxy(self) -> bool {
                self != SetKind::NodePortServed && SetKind::ALL.contains(&self)
            }

            /// The set's type.
            pub fn set_type(self) -> SetType {
                match self {
                    $(SetKind::$kind => SetType::$set_type,)*
                }
            }

            /// kube-proxy's comment on rules that use it; its purpose if no rule does.
            pub fn comment(self) -> &'static str {
                match self {
                    $(SetKind::$kind => $comment,)*
                }
            }

            fn stem(self) -> &'static str {
                match self {
                    $(SetKind::$kind => $stem,)*
                }
            }

            pub(crate) fn nft_name(self) -> String {
                self.stem().to_ascii_lowercase()
            }
        }
    };
}

// Each with its name without the prefix. The last four are not ipsets.
sets! {
    /// Endpoints on this node with themselves as source: hairpin traffic, which must be masqueraded.
    LoopBack = "LOOP-BACK", HashIpPortIp,
        "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose";
    /// Cluster IPs with their ports.
    ClusterIp = "CLUSTER-IP", HashIpPort,
        "Kubernetes service cluster ip + port for masquerade purpose";
    /// External IPs of Services whose external traffic may go to any node.
    ExternalIp = "EXTERNAL-IP", HashIpPort,
        "Kubernetes service external ip + port for masquerade and filter purpose";
    /// External IPs of Services with `externalTrafficPolicy: Local`.
    ExternalIpLocal = "EXTERNAL-IP-LOCAL", HashIpPort,
        "Kubernetes service external ip + port with externalTrafficPolicy=local";
    /// Addresses of load balancers.
    LoadBalancer = "LOAD-BALANCER", HashIpPort, "Kubernetes service lb portal";
    /// Load balancers of Services with `externalTrafficPolicy: Local`; also in the set above.
    LoadBalancerLocal = "LOAD-BALANCER-LOCAL", HashIpPort,
        "Kubernetes service load balancer ip + port with externalTrafficPolicy=local";
    /// Load balancers with source ranges.
    LoadBalancerFirewall = "LOAD-BALANCER-FW", HashIpPort,
        "Kubernetes service load balancer ip + port for load balancer with sourceRange";
    /// Load balancers with source ranges that this node itself may use, with their own address as source.
    LoadBalancerSourceIp = "LOAD-BALANCER-SOURCE-IP", HashIpPortIp,
        "Kubernetes service load balancer ip + port + source IP for packet filter purpose";
    /// Load balancers with the networks that may use them.
    LoadBalancerSourceCidr = "LOAD-BALANCER-SOURCE-CIDR", HashIpPortNet,
        "Kubernetes service load balancer ip + port + source cidr for packet filter purpose";
    /// TCP and UDP node ports with each address that serves them. No rule uses this set. It shows which virtual servers
    /// belong to this proxy (`Observed::owns` in IPVS mode), which a port alone does not. It precedes the bitmaps in
    /// the order of this type, so a port is written here first.
    NodePortServed = "NODE-PORT-SERVED", HashIpPort,
        "node ports with the addresses on which this proxy serves them";
    /// TCP node ports.
    NodePortTcp = "NODE-PORT-TCP", BitmapPort,
        "Kubernetes nodeport TCP port for masquerade purpose";
    /// TCP node ports of Services with `externalTrafficPolicy: Local`; also in the set above.
    NodePortLocalTcp = "NODE-PORT-LOCAL-TCP", BitmapPort,
        "Kubernetes nodeport TCP port with externalTrafficPolicy=local";
    /// UDP node ports.
    NodePortUdp = "NODE-PORT-UDP", BitmapPort,
        "Kubernetes nodeport UDP port for masquerade purpose";
    /// UDP node ports of Services with `externalTrafficPolicy: Local`; also in the set above.
    NodePortLocalUdp = "NODE-PORT-LOCAL-UDP", BitmapPort,
        "Kubernetes nodeport UDP port with externalTrafficPolicy=local";
    /// SCTP node ports, with each node address, because a bitmap of ports has no protocols.
    NodePortSctp = "NODE-PORT-SCTP-HASH", HashIpPort,
        "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'";
    /// SCTP node ports of Services with `externalTrafficPolicy: Local`; also in the set above.
    NodePortLocalSctp = "NODE-PORT-LOCAL-SCTP-HASH", HashIpPort,
        "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'";
    /// Ports on which nodes report whether they have local endpoints.
    HealthCheckNodePort = "HEALTH-CHECK-NODE-PORT", BitmapPort,
        "Kubernetes health check node port";
    /// The addresses bound to the dummy device.
    IpvsIps = "IPVS-IPS", HashIp, "Addresses on the ipvs interface";
    /// Load balancers that this node itself may not use, with their own address as source. Only for sets in an nf_tables
    /// table ([`RulesBy::Nftables`](crate::config::RulesBy)), like all following kinds; iptables rules list them one by
    /// one.
    LoadBalancerNotNode = "LOAD-BALANCER-NOT-NODE", HashIpPortIp, "load balancers that this node may not use";
    /// Frontends without endpoints that accept connections. New clients are refused at once, before IPVS would refuse
    /// by ICMP, which is rate limited per client (`icmp_ratelimit`).
    NoEndpoint = "NO-ENDPOINT", HashIpPort, "Services without endpoints";
    /// Frontends whose outside clients get local endpoints while all others get those of all nodes
    /// ([`Config::splits_local`](crate::config::Config::splits_local)).
    LocalSplit = "LOCAL-SPLIT", HashIpPort, "externalTrafficPolicy=local, for clients outside only";
    /// Firewall marks of such Frontends, and marks no longer in use. They show which virtual servers by mark belong to
    /// this proxy. A map. Its entries have the mark, as an IPv4 address, where entries of other sets have a source.
    SplitMark = "SPLIT-MARK", HashIpPortIp, "firewall marks of virtual servers";
}

/// Kind and family of a set. [`NamedSet`] adds its owner, and thereby its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetKey {
    /// Family of its addresses. Port bitmaps also exist for each family.
    pub family: Family,
    /// Kind of set.
    pub kind: SetKind,
}

impl SetKey {
    /// The key of this set of this family.
    pub fn new(family: Family, kind: SetKind) -> Self {
        SetKey { family, kind }
    }

    /// The sets of a family.
    pub fn all(family: Family) -> impl Iterator<Item = SetKey> {
        SetKind::ALL.into_iter().map(move |kind| SetKey { family, kind })
    }

    pub(crate) fn all_of_nft(family: Family) -> impl Iterator<Item = SetKey> {
        SetKind::ALL_OF_NFT.into_iter().map(move |kind| SetKey { family, kind })
    }

    /// The set of the proxy with this name prefix.
    pub const fn named(self, prefix: NamePrefix) -> NamedSet {
        NamedSet { key: self, prefix }
    }
}

/// A set of one proxy in the kernel. Prints as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedSet {
    #[doc(hidden)]
    pub key: SetKey,
    pub(crate) prefix: NamePrefix,
}

/// Smallest capacity of a set in entries, as in kube-proxy.
const LEAST_ROOM: u32 = 65_536;
/// Smallest initial number of buckets, as in kube-proxy.
const LEAST_BUCKETS: u32 = 1024;

impl NamedSet {
    /// The longest name in the kernel, in bytes (`IPSET_MAXNAMELEN` without the NUL).
    const MAX_LEN: usize = 31;

    /// The ipsets of a family.
    pub fn all(family: Family, prefix: NamePrefix) -> impl Iterator<Item = NamedSet> {
        SetKey::all(family).map(move |key| key.named(prefix))
    }

    /// The set's name in the kernel: prefix and kind, with `6-` between for IPv6, truncated to 31 bytes.
    pub fn name(&self) -> String {
        let of_family = match self.key.family {
            Family::V4 => "",
            Family::V6 => "6-",
        };
        let mut name = format!("{}{of_family}{}", self.prefix, self.key.kind.stem());
        name.truncate(Self::MAX_LEN);
        name
    }

    /// Parameters to create the set with capacity for this many entries; bitmaps for all ports.
    #[doc(hidden)]
    pub fn spec_for(self, room: usize) -> Result<SetSpec> {
        let name = self.name().parse().map_err(|error| PortError::from_error(PortErrorKind::Invalid, &error))?;
        let set_type = self.key.kind.set_type();
        let mut spec = SetSpec::new(name, set_type);
        if set_type.is_bitmap() {
            spec.options.range = Some(Range::Ports(PortRange::ALL));
            return Ok(spec);
        }
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let power = |value: u32| value.checked_next_power_of_two().unwrap_or(1 << 31);
        spec.options.family = self.key.family.into();
        spec.options.maxelem = Some(power(room.max(LEAST_ROOM)));
        // Two entries per bucket, for sets that start large: each growth waits until no packet uses the old table.
        spec.options.hashsize = Some(power((room / 2).max(LEAST_BUCKETS)));
        Ok(spec)
    }
}

impl fmt::Display for NamedSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

/// The Frontend and mark that an entry of [`SetKind::SplitMark`] records.
pub(crate) fn recorded(element: &Element) -> Option<(FrontendKey, NonZeroU32)> {
    let Element::IpPortIp(host, ports, mark) = element else { return None };
    let IpAddr::V4(mark) = mark.first() else { return None };
    Some((frontend_at(host, *ports)?, NonZeroU32::new(mark.to_bits())?))
}

/// The address of a Frontend, and its protocol and port.
pub(crate) fn place_of(frontend: &FrontendKey) -> (IpSpan, Ports) {
    (IpSpan::host(frontend.address), Ports::port(frontend.protocol.into(), frontend.port))
}

pub(crate) fn frontend_at(host: &IpSpan, ports: Ports) -> Option<FrontendKey> {
    let protocol = Protocol::ALL.into_iter().find(|known| ipset::Protocol::from(*known) == ports.protocol())?;
    Some(FrontendKey::new(protocol, host.first(), ports.ports().first()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn sets(prefix: NamePrefix) -> impl Iterator<Item = NamedSet> {
        Family::ALL.into_iter().flat_map(SetKey::all).map(move |set| set.named(prefix))
    }

    #[test]
    fn names_are_those_of_kube_proxy() {
        let names: BTreeSet<String> = sets(NamePrefix::KUBE).map(|set| set.name()).collect();
        assert_eq!(names.len(), 36);
        // pkg/proxy/ipvs/ipset.go, where IPv6 names are truncated by hand.
        for name in [
            "KUBE-CLUSTER-IP",
            "KUBE-6-CLUSTER-IP",
            "KUBE-LOAD-BALANCER-SOURCE-CIDR",
            "KUBE-6-LOAD-BALANCER-SOURCE-CID",
            "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
            "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
            "KUBE-6-HEALTH-CHECK-NODE-PORT",
        ] {
            assert!(names.contains(name), "{name}");
        }
        assert_eq!(SetKind::ALL.into_iter().filter(|kind| kind.is_of_kube_proxy()).count(), 17);
    }

    #[test]
    fn names_fit_and_differ_with_any_prefix() {
        let mut seen = BTreeSet::new();
        for prefix in ["KUBE-", "A-", "A6-", "NODE1-", "NODE2-", "KUBE--", "N-"] {
            for set in sets(NamePrefix::new(prefix).unwrap()) {
                assert!(seen.insert(set.name()), "{set} is the name of two sets");
                let spec = set.spec_for(0).unwrap();
                spec.check().unwrap();
                assert!(spec.to_string().starts_with(&format!("create {set} ")));
            }
        }
        assert_eq!(seen.len(), 7 * 36);
    }
}

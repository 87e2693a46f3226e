//! The ipset sets of each family: the seventeen of kube-proxy that rules refer to, with its names, and one of our own that
//! shows which node ports are ours.

use std::fmt;

use crate::net::Family;
use ipset::{InvalidValue, PortRange, Range, SetSpec, SetType};

macro_rules! sets {
    ($($(#[$doc:meta])* $kind:ident = $v4:literal, $v6:literal, $set_type:ident, $comment:literal;)*) => {
        /// Which of the sets.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum SetKind {
            $($(#[$doc])* $kind,)*
        }

        impl SetKind {
            /// All of them, in the order of this type.
            pub const ALL: [SetKind; 18] = [$(SetKind::$kind),*];

            /// Whether kube-proxy has this set too. [`SetKind::NodePortServed`] is this proxy's alone: comparisons with
            /// kube-proxy leave it out.
            pub fn is_of_kube_proxy(self) -> bool {
                self != SetKind::NodePortServed
            }

            /// The set's type.
            pub fn set_type(self) -> SetType {
                match self {
                    $(SetKind::$kind => SetType::$set_type,)*
                }
            }

            /// The comment that kube-proxy gives to rules that use it; its purpose, when no rule does.
            pub fn comment(self) -> &'static str {
                match self {
                    $(SetKind::$kind => $comment,)*
                }
            }

            fn names(self) -> (&'static str, &'static str) {
                match self {
                    $(SetKind::$kind => ($v4, $v6),)*
                }
            }
        }
    };
}

// The IPv6 names are the IPv4 ones with `KUBE-6-` in front, cut to the kernel's 31 bytes.
sets! {
    /// Endpoints on this node with themselves as source: hairpin traffic, which has to be masqueraded.
    LoopBack = "KUBE-LOOP-BACK", "KUBE-6-LOOP-BACK", HashIpPortIp,
        "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose";
    /// Cluster IPs with their ports.
    ClusterIp = "KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP", HashIpPort,
        "Kubernetes service cluster ip + port for masquerade purpose";
    /// External IPs of Services whose external traffic may go to any node.
    ExternalIp = "KUBE-EXTERNAL-IP", "KUBE-6-EXTERNAL-IP", HashIpPort,
        "Kubernetes service external ip + port for masquerade and filter purpose";
    /// External IPs of Services with `externalTrafficPolicy: Local`.
    ExternalIpLocal = "KUBE-EXTERNAL-IP-LOCAL", "KUBE-6-EXTERNAL-IP-LOCAL", HashIpPort,
        "Kubernetes service external ip + port with externalTrafficPolicy=local";
    /// Addresses of load balancers.
    LoadBalancer = "KUBE-LOAD-BALANCER", "KUBE-6-LOAD-BALANCER", HashIpPort, "Kubernetes service lb portal";
    /// Those of Services with `externalTrafficPolicy: Local`; also in the set above.
    LoadBalancerLocal = "KUBE-LOAD-BALANCER-LOCAL", "KUBE-6-LOAD-BALANCER-LOCAL", HashIpPort,
        "Kubernetes service load balancer ip + port with externalTrafficPolicy=local";
    /// Those with source ranges.
    LoadBalancerFirewall = "KUBE-LOAD-BALANCER-FW", "KUBE-6-LOAD-BALANCER-FW", HashIpPort,
        "Kubernetes service load balancer ip + port for load balancer with sourceRange";
    /// Those that this node itself may use, with themselves as source.
    LoadBalancerSourceIp = "KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-6-LOAD-BALANCER-SOURCE-IP", HashIpPortIp,
        "Kubernetes service load balancer ip + port + source IP for packet filter purpose";
    /// Those with the networks that may use them.
    LoadBalancerSourceCidr = "KUBE-LOAD-BALANCER-SOURCE-CIDR", "KUBE-6-LOAD-BALANCER-SOURCE-CID", HashIpPortNet,
        "Kubernetes service load balancer ip + port + source cidr for packet filter purpose";
    /// TCP and UDP node ports with each address on which they are served. No rule refers to it: it shows which virtual
    /// servers are ours ([`Observed::owns`](crate::modes::ipvs::observed::Observed::owns)), which a port alone does not. Stands before
    /// the bitmaps in the order of this type, so that a port is written here first.
    NodePortServed = "KUBE-NODE-PORT-SERVED", "KUBE-6-NODE-PORT-SERVED", HashIpPort,
        "node ports with the addresses on which this proxy serves them";
    /// TCP node ports.
    NodePortTcp = "KUBE-NODE-PORT-TCP", "KUBE-6-NODE-PORT-TCP", BitmapPort,
        "Kubernetes nodeport TCP port for masquerade purpose";
    /// Those of Services with `externalTrafficPolicy: Local`; also in the set above.
    NodePortLocalTcp = "KUBE-NODE-PORT-LOCAL-TCP", "KUBE-6-NODE-PORT-LOCAL-TCP", BitmapPort,
        "Kubernetes nodeport TCP port with externalTrafficPolicy=local";
    /// UDP node ports.
    NodePortUdp = "KUBE-NODE-PORT-UDP", "KUBE-6-NODE-PORT-UDP", BitmapPort,
        "Kubernetes nodeport UDP port for masquerade purpose";
    /// Those of Services with `externalTrafficPolicy: Local`; also in the set above.
    NodePortLocalUdp = "KUBE-NODE-PORT-LOCAL-UDP", "KUBE-6-NODE-PORT-LOCAL-UDP", BitmapPort,
        "Kubernetes nodeport UDP port with externalTrafficPolicy=local";
    /// SCTP node ports, with each node address: a bitmap of ports does not record protocols.
    NodePortSctp = "KUBE-NODE-PORT-SCTP-HASH", "KUBE-6-NODE-PORT-SCTP-HASH", HashIpPort,
        "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'";
    /// Those of Services with `externalTrafficPolicy: Local`; also in the set above.
    NodePortLocalSctp = "KUBE-NODE-PORT-LOCAL-SCTP-HASH", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", HashIpPort,
        "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'";
    /// Ports on which nodes say whether they have local endpoints.
    HealthCheckNodePort = "KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-6-HEALTH-CHECK-NODE-PORT", BitmapPort,
        "Kubernetes health check node port";
    /// The addresses bound to the dummy device.
    IpvsIps = "KUBE-IPVS-IPS", "KUBE-6-IPVS-IPS", HashIp, "Addresses on the ipvs interface";
}

/// One set: which, and of which family. Prints as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetKey {
    /// Family of its addresses; the port bitmaps are kept for each family too.
    pub family: Family,
    /// Which set.
    pub kind: SetKind,
}

impl SetKey {
    /// This set of this family.
    pub fn new(family: Family, kind: SetKind) -> Self {
        SetKey { family, kind }
    }

    /// The sets of a family.
    pub fn all(family: Family) -> impl Iterator<Item = SetKey> {
        SetKind::ALL.into_iter().map(move |kind| SetKey { family, kind })
    }

    /// The set's name in the kernel.
    pub fn name(self) -> &'static str {
        let (v4, v6) = self.kind.names();
        match self.family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// How to create it: as kube-proxy does, with 1,024 buckets and at most 65,536 entries; bitmaps for every port.
    ///
    /// # Errors
    /// None in practice: every name in the table fits.
    pub fn spec(self) -> Result<SetSpec, InvalidValue> {
        let set_type = self.kind.set_type();
        let mut spec = SetSpec::new(self.name().parse()?, set_type);
        if set_type.is_bitmap() {
            spec.options.range = Some(Range::Ports(PortRange::ALL));
        } else {
            spec.options.family = match self.family {
                Family::V4 => ipset::Family::Inet,
                Family::V6 => ipset::Family::Inet6,
            };
            spec.options.hashsize = Some(1024);
            spec.options.maxelem = Some(65_536);
        }
        Ok(spec)
    }
}

impl fmt::Display for SetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_the_rule_and_fit() {
        let mut seen = BTreeSet::new();
        for kind in SetKind::ALL {
            let v4 = SetKey::new(Family::V4, kind).name();
            let v6 = SetKey::new(Family::V6, kind).name();
            let expected: String = v4.replacen("KUBE-", "KUBE-6-", 1).chars().take(31).collect();
            assert_eq!(v6, expected);
            assert!(seen.insert(v4) && seen.insert(v6));
            for family in [Family::V4, Family::V6] {
                let spec = SetKey::new(family, kind).spec().unwrap();
                spec.check().unwrap();
                assert!(spec.to_string().starts_with(&format!("create {} ", SetKey::new(family, kind))));
            }
        }
        assert_eq!(seen.len(), 36);
        assert_eq!(SetKind::ALL.into_iter().filter(|kind| kind.is_of_kube_proxy()).count(), 17);
    }
}

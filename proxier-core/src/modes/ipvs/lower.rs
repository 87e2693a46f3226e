//! Conversions of the model's addresses and ports to IPVS, ipset and iptables.

use ipset::IpSpan;
use ipvs::{RealServerKey, VirtualServerKey};

use crate::net::{EndpointKey, Family, FrontendKey, Network, Protocol};

impl From<ipvs::model::Family> for Family {
    fn from(family: ipvs::model::Family) -> Self {
        match family {
            ipvs::model::Family::V4 => Family::V4,
            ipvs::model::Family::V6 => Family::V6,
        }
    }
}

impl From<Family> for ipvs::model::Family {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => ipvs::model::Family::V4,
            Family::V6 => ipvs::model::Family::V6,
        }
    }
}

impl From<Family> for ipset::Family {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => ipset::Family::Inet,
            Family::V6 => ipset::Family::Inet6,
        }
    }
}

impl From<Family> for iptables::Family {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => iptables::Family::Ipv4,
            Family::V6 => iptables::Family::Ipv6,
        }
    }
}

impl From<FrontendKey> for VirtualServerKey {
    fn from(key: FrontendKey) -> Self {
        VirtualServerKey::Address { protocol: key.protocol.into(), addr: key.address, port: key.port }
    }
}

/// Fails for a firewall mark, and for a protocol that Services do not have.
impl TryFrom<VirtualServerKey> for FrontendKey {
    type Error = VirtualServerKey;

    fn try_from(key: VirtualServerKey) -> Result<Self, Self::Error> {
        let VirtualServerKey::Address { protocol, addr, port } = key else { return Err(key) };
        let protocol = match protocol {
            ipvs::model::Protocol::Tcp => Protocol::Tcp,
            ipvs::model::Protocol::Udp => Protocol::Udp,
            ipvs::model::Protocol::Sctp => Protocol::Sctp,
            _ => return Err(key),
        };
        Ok(FrontendKey { protocol, address: addr, port })
    }
}

impl From<Protocol> for ipvs::model::Protocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => ipvs::model::Protocol::Tcp,
            Protocol::Udp => ipvs::model::Protocol::Udp,
            Protocol::Sctp => ipvs::model::Protocol::Sctp,
        }
    }
}

impl From<Protocol> for ipset::Protocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => ipset::Protocol::TCP,
            Protocol::Udp => ipset::Protocol::UDP,
            Protocol::Sctp => ipset::Protocol::SCTP,
        }
    }
}

impl From<EndpointKey> for RealServerKey {
    fn from(key: EndpointKey) -> Self {
        RealServerKey { addr: key.address, port: key.port }
    }
}

impl From<RealServerKey> for EndpointKey {
    fn from(key: RealServerKey) -> Self {
        EndpointKey { address: key.addr, port: key.port }
    }
}

/// A network in the form of entries.
pub(crate) fn span(network: Network) -> IpSpan {
    // The length fits the family, so this does not fail.
    IpSpan::network(network.addr(), network.prefix_len()).unwrap_or_else(|_| IpSpan::host(network.addr()))
}

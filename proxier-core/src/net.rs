//! Addresses, protocols and the keys of frontends, independent of any kernel subsystem.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, IPv4 first.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// Bits in an address: 32 or 128.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

/// `IPv4`, `IPv6`.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

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

impl From<Family> for iptables::Family {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => iptables::Family::Ipv4,
            Family::V6 => iptables::Family::Ipv6,
        }
    }
}

/// Transport protocol of a port. Sorted as IP numbers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP (6). Default.
    #[default]
    Tcp,
    /// UDP (17).
    Udp,
    /// SCTP (132).
    Sctp,
}

impl Protocol {
    /// As the API writes it; TCP when it says nothing.
    pub(crate) fn check(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("" | "TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(_) => None,
        }
    }
}

/// `TCP`, `UDP`, `SCTP`.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        })
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

/// Where a Service is reached: protocol, address and port. No two Services share one.
///
/// Sorted by protocol, address, then port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    /// The protocol.
    pub protocol: Protocol,
    /// The address: a Service's, or for a node port one of this node's.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

impl FrontendKey {
    /// This address and port.
    pub fn new(protocol: Protocol, address: IpAddr, port: u16) -> Self {
        FrontendKey { protocol, address, port }
    }

    /// The address's family.
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// The frontend that a virtual server serves: `None` for one by firewall mark or of another protocol, since no Service
    /// asks for those.
    pub fn of(key: &ipvs::VirtualServerKey) -> Option<Self> {
        let ipvs::VirtualServerKey::Address { protocol, addr, port } = *key else { return None };
        let protocol = match protocol {
            ipvs::model::Protocol::Tcp => Protocol::Tcp,
            ipvs::model::Protocol::Udp => Protocol::Udp,
            ipvs::model::Protocol::Sctp => Protocol::Sctp,
            _ => return None,
        };
        Some(FrontendKey::new(protocol, addr, port))
    }

    /// Address and port.
    pub fn socket(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

/// `TCP 10.96.0.1:443`, `UDP [fd00::a]:53`.
impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, self.socket())
    }
}

impl From<FrontendKey> for ipvs::VirtualServerKey {
    fn from(key: FrontendKey) -> Self {
        ipvs::VirtualServerKey::Address { protocol: key.protocol.into(), addr: key.address, port: key.port }
    }
}

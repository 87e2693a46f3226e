//! Address families and protocols, independent of any kernel subsystem.

use std::fmt;
use std::net::IpAddr;

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

    /// `IPv4` or `IPv6`, as the API writes it.
    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

/// As [`Family::name`].
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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

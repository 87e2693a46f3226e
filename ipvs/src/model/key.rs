//! Keys: the identities of virtual servers and real servers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::model::OutOfRange;

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4 (`AF_INET`).
    V4,
    /// IPv6 (`AF_INET6`).
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    /// Bits in an address: 32 or 128.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }
}

impl From<IpAddr> for Family {
    fn from(addr: IpAddr) -> Self {
        Family::of(addr)
    }
}

/// `IPv4`, `IPv6`.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        })
    }
}

impl FromStr for Family {
    type Err = OutOfRange;

    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        match text {
            "IPv4" => Ok(Family::V4),
            "IPv6" => Ok(Family::V6),
            _ => Err(OutOfRange::new("address family", text, "IPv4 or IPv6")),
        }
    }
}

#[cfg(feature = "serde")]
netlink_batch::serde_as_text!(Family, "IPv4 or IPv6");

/// IP protocol of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP (6).
    Tcp,
    /// UDP (17).
    Udp,
    /// SCTP (132).
    Sctp,
    /// Another number. The kernel accepts it, but no packet ever matches.
    Other(u8),
}

impl Protocol {
    /// The protocol's number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
            Protocol::Other(number) => number,
        }
    }
}

impl From<u8> for Protocol {
    fn from(number: u8) -> Self {
        match number {
            6 => Protocol::Tcp,
            17 => Protocol::Udp,
            132 => Protocol::Sctp,
            other => Protocol::Other(other),
        }
    }
}

/// `TCP`, `UDP`, `SCTP`, or the number.
impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Protocol::Tcp => f.pad("TCP"),
            Protocol::Udp => f.pad("UDP"),
            Protocol::Sctp => f.pad("SCTP"),
            Protocol::Other(number) => number.fmt(f),
        }
    }
}

impl FromStr for Protocol {
    type Err = OutOfRange;

    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        match text.to_ascii_uppercase().as_str() {
            "TCP" => Ok(Protocol::Tcp),
            "UDP" => Ok(Protocol::Udp),
            "SCTP" => Ok(Protocol::Sctp),
            number => number
                .parse::<u8>()
                .map(Protocol::from)
                .ok()
                .ok_or_else(|| OutOfRange::new("protocol", text, "TCP, UDP, SCTP or a number from 0 to 255")),
        }
    }
}

/// Identity of a virtual server. Ordered by protocol, address and port; firewall marks come last.
#[doc(alias = "service")]
#[doc(alias = "ip_vs_service_user")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VirtualServerKey {
    /// Packets to this address and port.
    Address {
        /// IP protocol.
        protocol: Protocol,
        /// The virtual address (VIP).
        addr: IpAddr,
        /// Port. 0 means every port and requires persistence. Without persistence the kernel accepts the virtual server
        /// but forwards none of its connections (`ip_vs_schedule`).
        port: u16,
    },
    /// Packets with this firewall mark (`iptables -j MARK`).
    Fwmark {
        /// Family of the packets.
        family: Family,
        /// The mark. 0 means "unmarked", so it cannot identify a virtual server.
        mark: NonZeroU32,
    },
}

impl VirtualServerKey {
    /// TCP at this address.
    pub fn tcp(at: SocketAddr) -> Self {
        Self::new(Protocol::Tcp, at)
    }

    /// UDP at this address.
    pub fn udp(at: SocketAddr) -> Self {
        Self::new(Protocol::Udp, at)
    }

    /// SCTP at this address.
    pub fn sctp(at: SocketAddr) -> Self {
        Self::new(Protocol::Sctp, at)
    }

    /// A key of this protocol at this address. Scope and flow of an IPv6 address are ignored.
    pub fn new(protocol: Protocol, at: SocketAddr) -> Self {
        VirtualServerKey::Address { protocol, addr: at.ip(), port: at.port() }
    }

    /// A firewall mark.
    ///
    /// # Errors
    /// [`OutOfRange`] for mark 0.
    pub fn fwmark(family: Family, mark: u32) -> Result<Self, OutOfRange> {
        NonZeroU32::new(mark)
            .map(|mark| VirtualServerKey::Fwmark { family, mark })
            .ok_or_else(|| OutOfRange::new("firewall mark", mark, "1 to 4294967295"))
    }

    /// The address; `None` for a firewall mark.
    pub fn addr(&self) -> Option<IpAddr> {
        match self {
            VirtualServerKey::Address { addr, .. } => Some(*addr),
            VirtualServerKey::Fwmark { .. } => None,
        }
    }

    /// The port; `None` for a firewall mark.
    pub fn port(&self) -> Option<u16> {
        match self {
            VirtualServerKey::Address { port, .. } => Some(*port),
            VirtualServerKey::Fwmark { .. } => None,
        }
    }

    /// Address and port; `None` for a firewall mark.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.addr()?, self.port()?))
    }

    /// The protocol; `None` for a firewall mark, which matches packets of every protocol.
    pub fn protocol(&self) -> Option<Protocol> {
        match self {
            VirtualServerKey::Address { protocol, .. } => Some(*protocol),
            VirtualServerKey::Fwmark { .. } => None,
        }
    }

    /// Normalises to the form in which the kernel reports it.
    pub(crate) fn canonical(self) -> Self {
        match self {
            VirtualServerKey::Address { protocol, addr, port } => {
                VirtualServerKey::Address { protocol: Protocol::from(protocol.number()), addr, port }
            }
            mark @ VirtualServerKey::Fwmark { .. } => mark,
        }
    }

    /// Family of the packets that it matches.
    pub fn family(&self) -> Family {
        match self {
            VirtualServerKey::Address { addr, .. } => Family::of(*addr),
            VirtualServerKey::Fwmark { family, .. } => *family,
        }
    }
}

/// `TCP 10.0.0.1:80`, `UDP [fd00::1]:53`, `FWM 7`, `FWM6 7`.
impl fmt::Display for VirtualServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VirtualServerKey::Address { protocol, addr, port } => {
                write!(f, "{protocol} {}", SocketAddr::new(*addr, *port))
            }
            VirtualServerKey::Fwmark { family: Family::V4, mark } => write!(f, "FWM {mark}"),
            VirtualServerKey::Fwmark { family: Family::V6, mark } => write!(f, "FWM6 {mark}"),
        }
    }
}

impl FromStr for VirtualServerKey {
    type Err = OutOfRange;

    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        let refuse = || OutOfRange::new("virtual server", text, "PROTOCOL ADDRESS:PORT, FWM MARK or FWM6 MARK");
        let (first, second) = text.split_once(' ').ok_or_else(refuse)?;
        let mark = |family| second.parse().ok().ok_or_else(refuse).and_then(|mark| Self::fwmark(family, mark));
        match first {
            "FWM" => mark(Family::V4),
            "FWM6" => mark(Family::V6),
            protocol => Ok(Self::new(protocol.parse()?, second.parse().ok().ok_or_else(refuse)?)),
        }
    }
}

/// Identity of a real server within its virtual server.
#[doc(alias = "destination")]
#[doc(alias = "ip_vs_dest_user")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealServerKey {
    /// Address of the real server. Its family may differ from the virtual server's with a tunnel.
    pub addr: IpAddr,
    /// Port of the real server; 0 means the port to which the client connects. Only masquerading can change ports; the
    /// other methods deliver to the virtual server's port.
    pub port: u16,
}

impl RealServerKey {
    /// A key of this address and port.
    pub fn new(addr: IpAddr, port: u16) -> Self {
        RealServerKey { addr, port }
    }

    /// Family of its address.
    pub fn family(&self) -> Family {
        Family::of(self.addr)
    }
}

impl From<SocketAddr> for RealServerKey {
    fn from(at: SocketAddr) -> Self {
        RealServerKey { addr: at.ip(), port: at.port() }
    }
}

impl From<RealServerKey> for SocketAddr {
    fn from(key: RealServerKey) -> Self {
        SocketAddr::new(key.addr, key.port)
    }
}

/// `10.1.0.1:8080`, `[fd01::1]:8080`.
impl fmt::Display for RealServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.addr, self.port).fmt(f)
    }
}

impl FromStr for RealServerKey {
    type Err = OutOfRange;

    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        text.parse::<SocketAddr>()
            .map(RealServerKey::from)
            .ok()
            .ok_or_else(|| OutOfRange::new("real server", text, "ADDRESS:PORT, IPv6 addresses in brackets"))
    }
}

#[cfg(feature = "serde")]
mod text {
    use super::{Protocol, RealServerKey, VirtualServerKey};
    netlink_batch::serde_as_text!(Protocol, "TCP, UDP, SCTP or a protocol number");
    netlink_batch::serde_as_text!(VirtualServerKey, "a virtual server such as \"TCP 10.0.0.1:80\" or \"FWM 7\"");
    netlink_batch::serde_as_text!(RealServerKey, "a real server such as \"10.1.0.1:8080\"");
}

//! Addresses, networks and protocols, independent of any kernel subsystem.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::named::named;

/// A network: an address and a prefix length, without host bits.
pub use ipnet::IpNet as Network;

named! {
    /// Address family.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Family {
        /// IPv4.
        V4 = "IPv4",
        /// IPv6.
        V6 = "IPv6",
    }
}

impl Family {
    /// Both, IPv4 first.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// `127.0.0.1` or `::1`.
    pub fn localhost(self) -> IpAddr {
        match self {
            Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }
    }

    /// `0.0.0.0` or `::`.
    pub fn unspecified(self) -> IpAddr {
        match self {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// A value for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByFamily<T> {
    /// The value for IPv4.
    pub v4: T,
    /// The value for IPv6.
    pub v6: T,
}

impl<T> ByFamily<T> {
    /// The value for a family.
    pub fn of(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// The value of a family, mutable.
    pub fn of_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

named! {
    /// Transport protocol of a port. Ordered by IP protocol number.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Protocol {
        /// TCP (6). Default.
        #[default]
        Tcp = "TCP",
        /// UDP (17).
        Udp = "UDP",
        /// SCTP (132).
        Sctp = "SCTP",
    }
}

impl Protocol {
    pub(crate) const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// Parses a protocol in the API's notation; TCP if it is missing.
    pub(crate) fn check(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("" | "TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(_) => None,
        }
    }
}

/// Address, protocol and port on which a Service answers. Ordered by protocol, address, port; prints as `TCP
/// 10.96.0.1:80` or `UDP [fd00::1]:53`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    /// Protocol.
    pub protocol: Protocol,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
}

impl FrontendKey {
    /// A key of this protocol, address and port.
    pub fn new(protocol: Protocol, address: IpAddr, port: u16) -> Self {
        FrontendKey { protocol, address, port }
    }

    /// The family of the address.
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    pub(crate) fn tcp(&self) -> Option<SocketAddr> {
        (self.protocol == Protocol::Tcp).then(|| SocketAddr::new(self.address, self.port))
    }

    /// The address and port, if the protocol is UDP.
    #[doc(hidden)]
    pub fn udp(&self) -> Option<SocketAddr> {
        (self.protocol == Protocol::Udp).then(|| SocketAddr::new(self.address, self.port))
    }
}

/// Parses the printed form.
impl FromStr for FrontendKey {
    type Err = InvalidFrontendKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (protocol, place) = text.split_once(' ')?;
            let protocol = Protocol::check(Some(protocol)).filter(|_| !protocol.is_empty())?;
            let place: SocketAddr = place.parse().ok()?;
            Some(FrontendKey::new(protocol, place.ip(), place.port()))
        };
        parse().ok_or_else(|| InvalidFrontendKey(text.into()))
    }
}

/// The text is not a [`FrontendKey`].
#[derive(Clone, Debug, PartialEq)]
pub struct InvalidFrontendKey(Box<str>);

impl fmt::Display for InvalidFrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: not PROTOCOL ADDRESS:PORT, such as TCP 10.96.0.1:80", self.0)
    }
}

impl std::error::Error for InvalidFrontendKey {}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{} {}", self.protocol, SocketAddr::new(self.address, self.port)))
    }
}

/// The address and port of an endpoint. Ordered by address, then port; prints as `10.244.0.7:8080` or `[fd00::7]:8080`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointKey {
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
}

impl EndpointKey {
    /// A key of this address and port.
    pub fn new(address: IpAddr, port: u16) -> Self {
        EndpointKey { address, port }
    }
}

impl From<SocketAddr> for EndpointKey {
    fn from(address: SocketAddr) -> Self {
        EndpointKey::new(address.ip(), address.port())
    }
}

/// Parses the printed form.
impl FromStr for EndpointKey {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<SocketAddr>().map(EndpointKey::from)
    }
}

impl From<EndpointKey> for SocketAddr {
    fn from(key: EndpointKey) -> Self {
        SocketAddr::new(key.address, key.port)
    }
}

impl fmt::Display for EndpointKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::from(*self).fmt(f)
    }
}

impl EndpointKey {
    /// The text of [`Display`](fmt::Display), but faster, since there may be a hundred thousand.
    pub(crate) fn text(&self) -> String {
        let IpAddr::V4(address) = self.address else { return self.to_string() };
        let mut text = String::with_capacity("255.255.255.255:65535".len());
        let mut number = itoa::Buffer::new();
        for (octet, end) in address.octets().into_iter().zip([".", ".", ".", ":"]) {
            text.push_str(number.format(octet));
            text.push_str(end);
        }
        text.push_str(number.format(self.port));
        text
    }
}

/// Whether other hosts can reach this address.
pub(crate) fn is_reachable(address: IpAddr) -> bool {
    let link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    !address.is_loopback() && !address.is_unspecified() && !link_local
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_round_trip_through_text() {
        for text in ["10.244.0.7:8080", "0.0.0.0:0", "255.255.255.255:65535", "[fd00::7]:8080"] {
            let key = text.parse::<EndpointKey>();
            assert_eq!(key.clone().map(|key| (key.to_string(), key.text())), Ok((text.to_owned(), text.to_owned())));
        }
        assert!("10.244.0.7".parse::<EndpointKey>().is_err() && "web:80".parse::<EndpointKey>().is_err());
    }
}

//! Protocols, ports and ICMP types.

use std::fmt;
use std::str::FromStr;

use super::InvalidValue;
use super::parse::unsigned;

/// An IP protocol, 1 to 255. Printed by name if `ipset` has one, otherwise by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(u8);

impl Protocol {
    /// ICMP for IPv4.
    pub const ICMP: Protocol = Protocol(1);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
    /// ICMP for IPv6.
    pub const ICMPV6: Protocol = Protocol(58);
    /// SCTP.
    pub const SCTP: Protocol = Protocol(132);
    /// UDP-Lite.
    pub const UDPLITE: Protocol = Protocol(136);

    /// A protocol by number.
    ///
    /// # Errors
    /// [`InvalidValue::Protocol`] for 0, which the kernel refuses in entries.
    pub fn from_number(number: u8) -> Result<Self, InvalidValue> {
        if number == 0 { Err(InvalidValue::Protocol(number.to_string())) } else { Ok(Protocol(number)) }
    }

    /// The number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Whether entries of this protocol have ports (net/netfilter/ipset/ip_set_getport.c, `ip_set_proto_with_ports`).
    pub fn has_ports(self) -> bool {
        matches!(self, Self::TCP | Self::UDP | Self::SCTP | Self::UDPLITE)
    }

    pub(crate) fn from_kernel(number: u8) -> Self {
        Protocol(number)
    }
}

/// The names in Debian's /etc/protocols, which `ipset` prints. The first name of a number is printed.
const NAMES: &[(u8, &str)] = &[
    (1, "icmp"),
    (2, "igmp"),
    (3, "ggp"),
    (4, "ipencap"),
    (5, "st"),
    (6, "tcp"),
    (8, "egp"),
    (9, "igp"),
    (12, "pup"),
    (17, "udp"),
    (20, "hmp"),
    (22, "xns-idp"),
    (27, "rdp"),
    (29, "iso-tp4"),
    (33, "dccp"),
    (36, "xtp"),
    (37, "ddp"),
    (38, "idpr-cmtp"),
    (41, "ipv6"),
    (43, "ipv6-route"),
    (44, "ipv6-frag"),
    (45, "idrp"),
    (46, "rsvp"),
    (47, "gre"),
    (50, "esp"),
    (51, "ah"),
    (57, "skip"),
    (58, "ipv6-icmp"),
    (58, "icmpv6"),
    (59, "ipv6-nonxt"),
    (60, "ipv6-opts"),
    (73, "rspf"),
    (81, "vmtp"),
    (88, "eigrp"),
    (89, "ospf"),
    (93, "ax.25"),
    (94, "ipip"),
    (97, "etherip"),
    (98, "encap"),
    (103, "pim"),
    (108, "ipcomp"),
    (112, "vrrp"),
    (115, "l2tp"),
    (124, "isis"),
    (132, "sctp"),
    (133, "fc"),
    (135, "mobility-header"),
    (136, "udplite"),
    (137, "mpls-in-ip"),
    (138, "manet"),
    (139, "hip"),
    (140, "shim6"),
    (141, "wesp"),
    (142, "rohc"),
    (143, "ethernet"),
];

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for Protocol {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if let Some((number, _)) = NAMES.iter().find(|(_, name)| name.eq_ignore_ascii_case(text)) {
            return Ok(Protocol(*number));
        }
        let number = unsigned(text).and_then(|number| u8::try_from(number).ok());
        let protocol = number.and_then(|number| Protocol::from_number(number).ok());
        protocol.ok_or_else(|| InvalidValue::Protocol(text.to_owned()))
    }
}

/// One port, or a range, both ends inclusive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// All ports.
    pub const ALL: PortRange = PortRange { first: 0, last: u16::MAX };

    /// A range, in either order.
    pub fn new(one: u16, other: u16) -> Self {
        PortRange { first: one.min(other), last: one.max(other) }
    }

    /// The first port.
    pub fn first(self) -> u16 {
        self.first
    }

    /// The last port.
    pub fn last(self) -> u16 {
        self.last
    }

    /// Number of ports.
    pub fn count(self) -> u32 {
        u32::from(self.last.saturating_sub(self.first)).saturating_add(1)
    }
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        PortRange { first: port, last: port }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

impl FromStr for PortRange {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let port = |part: &str| {
            let number = unsigned(part).and_then(|number| u16::try_from(number).ok());
            number.ok_or_else(|| InvalidValue::Port(text.to_owned()))
        };
        match text.split_once('-') {
            Some((first, last)) => Ok(PortRange::new(port(first)?, port(last)?)),
            None => port(text).map(PortRange::from),
        }
    }
}

/// A protocol and its ports. For ICMP the port holds type and code; for protocols without ports it is 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ports {
    protocol: Protocol,
    range: PortRange,
}

impl Ports {
    /// One port.
    pub fn port(protocol: Protocol, port: u16) -> Self {
        Self::range(protocol, port.into())
    }

    /// A range of ports. Protocols without ports get port 0. For ICMP the first port is used as type and code.
    pub fn range(protocol: Protocol, range: PortRange) -> Self {
        let range = match protocol {
            _ if protocol.has_ports() => range,
            Protocol::ICMP | Protocol::ICMPV6 => range.first.into(),
            _ => 0.into(),
        };
        Ports { protocol, range }
    }

    /// An ICMP or ICMPv6 message.
    pub fn icmp(protocol: Protocol, kind: u8, code: u8) -> Self {
        Self::port(protocol, u16::from_be_bytes([kind, code]))
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The ports.
    pub fn ports(&self) -> PortRange {
        self.range
    }
}

const ICMP: &[(u8, u8, &str)] = &[
    (0, 0, "echo-reply"),
    (0, 0, "pong"),
    (3, 0, "network-unreachable"),
    (3, 1, "host-unreachable"),
    (3, 2, "protocol-unreachable"),
    (3, 3, "port-unreachable"),
    (3, 4, "fragmentation-needed"),
    (3, 5, "source-route-failed"),
    (3, 6, "network-unknown"),
    (3, 7, "host-unknown"),
    (3, 9, "network-prohibited"),
    (3, 10, "host-prohibited"),
    (3, 11, "TOS-network-unreachable"),
    (3, 12, "TOS-host-unreachable"),
    (3, 13, "communication-prohibited"),
    (3, 14, "host-precedence-violation"),
    (3, 15, "precedence-cutoff"),
    (4, 0, "source-quench"),
    (5, 0, "network-redirect"),
    (5, 1, "host-redirect"),
    (5, 2, "TOS-network-redirect"),
    (5, 3, "TOS-host-redirect"),
    (8, 0, "echo-request"),
    (8, 0, "ping"),
    (9, 0, "router-advertisement"),
    (10, 0, "router-solicitation"),
    (11, 0, "ttl-zero-during-transit"),
    (11, 1, "ttl-zero-during-reassembly"),
    (12, 0, "ip-header-bad"),
    (12, 1, "required-option-missing"),
    (13, 0, "timestamp-request"),
    (14, 0, "timestamp-reply"),
    (17, 0, "address-mask-request"),
    (18, 0, "address-mask-reply"),
];

const ICMPV6: &[(u8, u8, &str)] = &[
    (1, 0, "no-route"),
    (1, 1, "communication-prohibited"),
    (1, 3, "address-unreachable"),
    (1, 4, "port-unreachable"),
    (2, 0, "packet-too-big"),
    (3, 0, "ttl-zero-during-transit"),
    (3, 1, "ttl-zero-during-reassembly"),
    (4, 0, "bad-header"),
    (4, 1, "unknown-header-type"),
    (4, 2, "unknown-option"),
    (128, 0, "echo-request"),
    (128, 0, "ping"),
    (129, 0, "echo-reply"),
    (129, 0, "pong"),
    (133, 0, "router-solicitation"),
    (134, 0, "router-advertisement"),
    (135, 0, "neighbour-solicitation"),
    (136, 0, "neighbour-advertisement"),
    (137, 0, "redirect"),
];

fn icmp_names(protocol: Protocol) -> Option<&'static [(u8, u8, &'static str)]> {
    match protocol {
        Protocol::ICMP => Some(ICMP),
        Protocol::ICMPV6 => Some(ICMPV6),
        _ => None,
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(names) = icmp_names(self.protocol) else {
            return write!(f, "{}:{}", self.protocol, self.range);
        };
        let [kind, code] = self.range.first.to_be_bytes();
        match names.iter().find(|(a, b, _)| (*a, *b) == (kind, code)) {
            Some((_, _, name)) => write!(f, "{}:{name}", self.protocol),
            None => write!(f, "{}:{kind}/{code}", self.protocol),
        }
    }
}

impl FromStr for Ports {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let Some((protocol, ports)) = text.split_once(':') else {
            return Ok(Ports::range(Protocol::TCP, text.parse()?));
        };
        let protocol: Protocol = protocol.parse()?;
        let Some(names) = icmp_names(protocol) else {
            return Ok(Ports::range(protocol, ports.parse()?));
        };
        if let Some((kind, code, _)) = names.iter().find(|(_, _, name)| name.eq_ignore_ascii_case(ports)) {
            return Ok(Ports::icmp(protocol, *kind, *code));
        }
        let number = |part: &str| u8::try_from(unsigned(part)?).ok();
        let message = ports.split_once('/').and_then(|(kind, code)| Some((number(kind)?, number(code)?)));
        let (kind, code) = message.ok_or_else(|| InvalidValue::Icmp(ports.to_owned()))?;
        Ok(Ports::icmp(protocol, kind, code))
    }
}

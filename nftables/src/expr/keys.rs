//! Keys, results and kinds of expressions: the kernel's numbers with names.

use bitflags::bitflags;

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[non_exhaustive]
        pub enum $name {
            $( $(#[$doc])* $variant, )*
            /// One that this library does not know.
            Other(u32),
        }

        impl $name {
            /// The kernel's number.
            pub fn number(self) -> u32 {
                match self {
                    $( $name::$variant => $number, )*
                    $name::Other(number) => number,
                }
            }

            /// The variant of the kernel's number.
            pub fn from_number(number: u32) -> Self {
                match number {
                    $( $number => $name::$variant, )*
                    other => $name::Other(other),
                }
            }

            /// nft's word for it; `None` for one that this library does not know.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $( $name::$variant => Some($text), )*
                    $name::Other(_) => None,
                }
            }
        }
    };
}

numbered! {
    /// Header of a packet (`NFT_PAYLOAD_*`).
    HeaderBase {
        /// Ethernet.
        Link = 0, "ll";
        /// IPv4 or IPv6.
        Network = 1, "nh";
        /// TCP, UDP and the like.
        Transport = 2, "th";
        /// Data behind the transport header. Since Linux 6.2.
        Inner = 3, "ih";
    }
}

numbered! {
    /// Metadata of a packet (`NFT_META_*`).
    MetaKey {
        /// Length in bytes.
        Length = 0, "length";
        /// Ethernet type.
        Protocol = 1, "protocol";
        /// Priority of traffic control.
        Priority = 2, "priority";
        /// Packet mark.
        Mark = 3, "mark";
        /// Index of the device it came by.
        Iif = 4, "iif";
        /// Index of the device it leaves by.
        Oif = 5, "oif";
        /// Name of the device it came by.
        IifName = 6, "iifname";
        /// Name of the device it leaves by.
        OifName = 7, "oifname";
        /// User of the socket.
        SkUid = 10, "skuid";
        /// Group of the socket.
        SkGid = 11, "skgid";
        /// IPv4 or IPv6.
        NfProto = 15, "nfproto";
        /// Transport protocol.
        L4Proto = 16, "l4proto";
        /// To this host, to all, to another.
        PktType = 19, "pkttype";
    }
}

numbered! {
    /// A part of a connection (`NFT_CT_*`).
    CtKey {
        /// New, established, related, invalid.
        State = 0, "state";
        /// Original or reply.
        Direction = 1, "direction";
        /// Status bits: translated, for example.
        Status = 2, "status";
        /// Connection mark.
        Mark = 3, "mark";
        /// Time left.
        Expiration = 5, "expiration";
        /// Family.
        L3Protocol = 7, "l3proto";
        /// Source, of any family.
        Source = 8, "saddr";
        /// Destination, of any family.
        Destination = 9, "daddr";
        /// Transport protocol.
        Protocol = 10, "protocol";
        /// Source port.
        SourcePort = 11, "proto-src";
        /// Destination port.
        DestinationPort = 12, "proto-dst";
        /// Zone.
        Zone = 16, "zone";
        /// Source, IPv4.
        SourceIp = 19, "ip saddr";
        /// Destination, IPv4.
        DestinationIp = 20, "ip daddr";
        /// Source, IPv6.
        SourceIp6 = 21, "ip6 saddr";
        /// Destination, IPv6.
        DestinationIp6 = 22, "ip6 daddr";
        /// Number of the connection.
        Id = 23, "id";
    }
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Direction {
    /// The direction of the first packet.
    Original,
    /// The direction of the answers.
    Reply,
}

impl Direction {
    pub(crate) fn number(self) -> u8 {
        u8::from(self == Direction::Reply)
    }
}

numbered! {
    /// Result of a routing lookup (`NFT_FIB_RESULT_*`).
    FibResult {
        /// Index of the device.
        Oif = 1, "oif";
        /// Name of the device.
        OifName = 2, "oifname";
        /// Type of the address: local, for example.
        AddressType = 3, "type";
    }
}

bitflags! {
    /// Input of a routing lookup (`NFTA_FIB_F_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct FibFlags: u32 {
        /// The source.
        const SADDR = 1;
        /// The destination.
        const DADDR = 2;
        /// With the packet's mark.
        const MARK = 4;
        /// With the device it came by.
        const IIF = 8;
        /// With the device it leaves by.
        const OIF = 16;
        /// Only whether there is a result.
        const PRESENT = 32;
        const _ = !0;
    }
}

numbered! {
    /// Comparison (`NFT_CMP_*`).
    CmpOp {
        /// Equal.
        Eq = 0, "==";
        /// Not equal.
        Ne = 1, "!=";
        /// Less. Values are compared byte by byte, so numbers must be in network byte order.
        Lt = 2, "<";
        /// Less or equal.
        Le = 3, "<=";
        /// Greater.
        Gt = 4, ">";
        /// Greater or equal.
        Ge = 5, ">=";
    }
}

numbered! {
    /// Address to translate (`NFT_NAT_*`).
    NatKind {
        /// The source.
        Source = 0, "snat";
        /// The destination.
        Destination = 1, "dnat";
    }
}

bitflags! {
    /// Choice of addresses and ports (`NF_NAT_RANGE_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub struct NatFlags: u32 {
        /// Addresses are given; the kernel sets it by itself.
        const MAP_IPS = 1;
        /// Ports are given; the kernel sets it by itself.
        const PROTO_SPECIFIED = 2;
        /// Ports at random.
        const RANDOM = 4;
        /// A client keeps its address.
        const PERSISTENT = 8;
        /// Ports wholly at random.
        const FULLY_RANDOM = 16;
        /// Ports keep their distance from a base.
        const PROTO_OFFSET = 32;
        /// A network to another, address by address.
        const NETMAP = 64;
        const _ = !0;
    }
}

numbered! {
    /// Generator of numbers (`NFT_NG_*`).
    NumgenKind {
        /// One after another.
        Incremental = 0, "inc";
        /// At random.
        Random = 1, "random";
    }
}

numbered! {
    /// Operation on an element of a set (`NFT_DYNSET_OP_*`).
    DynSetOp {
        /// Added, unless it is there.
        Add = 0, "add";
        /// Added, or its time-out renewed. Data of an element that is there stay.
        Update = 1, "update";
        /// Deleted. Since Linux 5.4.
        Delete = 2, "delete";
    }
}

/// A unit of time of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum LimitUnit {
    /// Second.
    Second,
    /// Minute.
    Minute,
    /// Hour.
    Hour,
    /// Day.
    Day,
    /// Week.
    Week,
    /// Another number of seconds.
    Other(u64),
}

impl LimitUnit {
    const ALL: [(LimitUnit, u64, &'static str); 5] = [
        (LimitUnit::Second, 1, "second"),
        (LimitUnit::Minute, 60, "minute"),
        (LimitUnit::Hour, 3600, "hour"),
        (LimitUnit::Day, 86_400, "day"),
        (LimitUnit::Week, 604_800, "week"),
    ];

    /// Its length in seconds.
    pub fn seconds(self) -> u64 {
        match self {
            LimitUnit::Other(seconds) => seconds,
            known => LimitUnit::ALL.iter().find(|(unit, _, _)| *unit == known).map_or(1, |(_, seconds, _)| *seconds),
        }
    }

    pub(crate) fn from_seconds(seconds: u64) -> Self {
        LimitUnit::ALL.iter().find(|(_, known, _)| *known == seconds).map_or(LimitUnit::Other(seconds), |row| row.0)
    }

    pub(crate) fn name(self) -> Option<&'static str> {
        LimitUnit::ALL.iter().find(|(unit, _, _)| *unit == self).map(|(_, _, name)| *name)
    }
}

/// Reason that a message of ICMP or ICMPv6 gives for an unreachable destination (`NFT_REJECT_ICMPX_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IcmpCode {
    /// No route.
    NoRoute,
    /// No such port.
    PortUnreachable,
    /// No such host.
    HostUnreachable,
    /// Forbidden.
    AdminProhibited,
}

impl IcmpCode {
    const ALL: [(IcmpCode, &'static str); 4] = [
        (IcmpCode::NoRoute, "no-route"),
        (IcmpCode::PortUnreachable, "port-unreachable"),
        (IcmpCode::HostUnreachable, "host-unreachable"),
        (IcmpCode::AdminProhibited, "admin-prohibited"),
    ];

    pub(crate) fn number(self) -> u8 {
        (0_u8..).zip(IcmpCode::ALL).find(|(_, row)| row.0 == self).map_or(0, |(number, _)| number)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        IcmpCode::ALL.get(usize::from(number)).map(|row| row.0)
    }

    pub(crate) fn name(self) -> &'static str {
        IcmpCode::ALL.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }
}

/// Form of a refusal of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Reject {
    /// A reset of TCP.
    TcpReset,
    /// A message of ICMP or ICMPv6, by the packet's family. In families `inet`, `bridge` and `netdev`.
    Unreachable(IcmpCode),
    /// A message of the table's family, with that protocol's own code.
    Icmp(u8),
}

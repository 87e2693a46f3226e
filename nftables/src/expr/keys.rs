//! Keys, results and kinds of expressions: the kernel's numbers with names.

macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal $constant:ident, $text:literal;)* }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        $(#[$meta])*
        #[non_exhaustive]
        pub enum $name {
            $( $(#[$doc])* $variant, )*
            /// A number that this crate does not know.
            Other(u32),
        }

        impl $name {
            /// The kernel's constants, by their names in the header.
            #[cfg(test)]
            pub(crate) const CONSTANTS: &[(&str, u32)] = &[$( (stringify!($constant), $number) ),*];

            /// The kernel's number.
            pub fn number(self) -> u32 {
                match self {
                    $( $name::$variant => $number, )*
                    $name::Other(number) => number,
                }
            }

            /// The variant for the kernel's number.
            pub fn from_number(number: u32) -> Self {
                match number {
                    $( $number => $name::$variant, )*
                    other => $name::Other(other),
                }
            }

            /// nft's word; `None` if this crate does not know the number.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $( $name::$variant => Some($text), )*
                    $name::Other(_) => None,
                }
            }
        }
    };
}
pub(crate) use numbered;

/// Bits of the kernel's; those that this crate does not know are kept.
macro_rules! flags {
    ($(#[$meta:meta])* $name:ident { $($(#[$($doc:tt)*])* $flag:ident = $bits:literal;)* }) => {
        bitflags::bitflags! {
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
            pub struct $name: u32 {
                $( $(#[$($doc)*])* const $flag = $bits; )*
                const _ = !0;
            }
        }
    };
}
pub(crate) use flags;

numbered! {
    /// Header of a packet (`NFT_PAYLOAD_*`).
    HeaderBase {
        /// Ethernet.
        Link = 0 NFT_PAYLOAD_LL_HEADER, "ll";
        /// IPv4 or IPv6.
        Network = 1 NFT_PAYLOAD_NETWORK_HEADER, "nh";
        /// TCP, UDP or similar.
        Transport = 2 NFT_PAYLOAD_TRANSPORT_HEADER, "th";
        /// Data behind the transport header. Since Linux 5.16.
        Inner = 3 NFT_PAYLOAD_INNER_HEADER, "ih";
    }
}

numbered! {
    /// Metadata of a packet (`NFT_META_*`).
    MetaKey {
        /// Length in bytes.
        Length = 0 NFT_META_LEN, "length";
        /// Ethernet type.
        Protocol = 1 NFT_META_PROTOCOL, "protocol";
        /// Traffic-control priority and class.
        Priority = 2 NFT_META_PRIORITY, "priority";
        /// Packet mark.
        Mark = 3 NFT_META_MARK, "mark";
        /// Index of the input device.
        Iif = 4 NFT_META_IIF, "iif";
        /// Index of the output device.
        Oif = 5 NFT_META_OIF, "oif";
        /// Name of the input device.
        IifName = 6 NFT_META_IIFNAME, "iifname";
        /// Name of the output device.
        OifName = 7 NFT_META_OIFNAME, "oifname";
        /// Hardware type of the input device (`ARPHRD_*`).
        IifType = 8 NFT_META_IIFTYPE, "iiftype";
        /// Hardware type of the output device (`ARPHRD_*`).
        OifType = 9 NFT_META_OIFTYPE, "oiftype";
        /// User of the socket.
        SkUid = 10 NFT_META_SKUID, "skuid";
        /// Group of the socket.
        SkGid = 11 NFT_META_SKGID, "skgid";
        /// Whether the packet is traced.
        NfTrace = 12 NFT_META_NFTRACE, "nftrace";
        /// Realm of the route.
        RtClassId = 13 NFT_META_RTCLASSID, "rtclassid";
        /// Security mark.
        SecMark = 14 NFT_META_SECMARK, "secmark";
        /// IPv4 or IPv6.
        NfProto = 15 NFT_META_NFPROTO, "nfproto";
        /// Transport protocol.
        L4Proto = 16 NFT_META_L4PROTO, "l4proto";
        /// Name of the bridge of the input port.
        BridgeIifName = 17 NFT_META_BRI_IIFNAME, "ibrname";
        /// Name of the bridge of the output port.
        BridgeOifName = 18 NFT_META_BRI_OIFNAME, "obrname";
        /// Addressed to this host, to all, or to another host.
        PktType = 19 NFT_META_PKTTYPE, "pkttype";
        /// Processor that handles it.
        Cpu = 20 NFT_META_CPU, "cpu";
        /// Group of the input device.
        IifGroup = 21 NFT_META_IIFGROUP, "iifgroup";
        /// Group of the output device.
        OifGroup = 22 NFT_META_OIFGROUP, "oifgroup";
        /// Class of the socket's control group (`net_cls`).
        Cgroup = 23 NFT_META_CGROUP, "cgroup";
        /// Random number.
        Random = 24 NFT_META_PRANDOM, "random";
        /// Whether it arrived through IPsec.
        SecPath = 25 NFT_META_SECPATH, "ipsec";
        /// Kind of the input device, such as `veth`.
        IifKind = 26 NFT_META_IIFKIND, "iifkind";
        /// Kind of the output device.
        OifKind = 27 NFT_META_OIFKIND, "oifkind";
        /// VLAN of the bridge's input port.
        BridgeIifPvid = 28 NFT_META_BRI_IIFPVID, "ibrpvid";
        /// VLAN protocol of the input bridge.
        BridgeIifVlanProtocol = 29 NFT_META_BRI_IIFVPROTO, "ibrvproto";
        /// Time in nanoseconds since 1970. Since Linux 5.4.
        TimeNs = 30 NFT_META_TIME_NS, "time";
        /// Day of the week, Sunday is 0. Since Linux 5.4.
        TimeDay = 31 NFT_META_TIME_DAY, "day";
        /// Seconds since midnight, UTC. Since Linux 5.4.
        TimeHour = 32 NFT_META_TIME_HOUR, "hour";
        /// Index of the input device within a VRF. Since Linux 5.8.
        SdIf = 33 NFT_META_SDIF, "sdif";
        /// Name of the input device within a VRF. Since Linux 5.8.
        SdIfName = 34 NFT_META_SDIFNAME, "sdifname";
    }
}

numbered! {
    /// A property of a connection (`NFT_CT_*`).
    CtKey {
        /// New, established, related, invalid.
        State = 0 NFT_CT_STATE, "state";
        /// Original or reply.
        Direction = 1 NFT_CT_DIRECTION, "direction";
        /// Status bits, such as "translated".
        Status = 2 NFT_CT_STATUS, "status";
        /// Connection mark.
        Mark = 3 NFT_CT_MARK, "mark";
        /// Security mark.
        SecMark = 4 NFT_CT_SECMARK, "secmark";
        /// Time left, in milliseconds.
        Expiration = 5 NFT_CT_EXPIRATION, "expiration";
        /// Name of the helper.
        Helper = 6 NFT_CT_HELPER, "helper";
        /// Family.
        L3Protocol = 7 NFT_CT_L3PROTOCOL, "l3proto";
        /// Source, of any family.
        Source = 8 NFT_CT_SRC, "saddr";
        /// Destination, of any family.
        Destination = 9 NFT_CT_DST, "daddr";
        /// Transport protocol.
        Protocol = 10 NFT_CT_PROTOCOL, "protocol";
        /// Source port.
        SourcePort = 11 NFT_CT_PROTO_SRC, "proto-src";
        /// Destination port.
        DestinationPort = 12 NFT_CT_PROTO_DST, "proto-dst";
        /// Labels, 128 bits.
        Labels = 13 NFT_CT_LABELS, "label";
        /// Number of packets, counted with `nf_conntrack_acct`.
        Packets = 14 NFT_CT_PKTS, "packets";
        /// Number of bytes, counted with `nf_conntrack_acct`.
        Bytes = 15 NFT_CT_BYTES, "bytes";
        /// Bytes for each packet.
        AveragePacket = 16 NFT_CT_AVGPKT, "avgpkt";
        /// Zone.
        Zone = 17 NFT_CT_ZONE, "zone";
        /// Events to report (`IPCT_*`). Write-only.
        EventMask = 18 NFT_CT_EVENTMASK, "event";
        /// Source, IPv4.
        SourceIp = 19 NFT_CT_SRC_IP, "ip saddr";
        /// Destination, IPv4.
        DestinationIp = 20 NFT_CT_DST_IP, "ip daddr";
        /// Source, IPv6.
        SourceIp6 = 21 NFT_CT_SRC_IP6, "ip6 saddr";
        /// Destination, IPv6.
        DestinationIp6 = 22 NFT_CT_DST_IP6, "ip6 daddr";
        /// Number of the connection.
        Id = 23 NFT_CT_ID, "id";
    }
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Direction {
    /// The direction of the first packet.
    Original,
    /// The direction of the replies.
    Reply,
}

impl Direction {
    pub(crate) fn number(self) -> u8 {
        u8::from(self == Direction::Reply)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        [Direction::Original, Direction::Reply].get(usize::from(number)).copied()
    }
}

numbered! {
    /// Result of a routing lookup (`NFT_FIB_RESULT_*`).
    FibResult {
        /// Index of the device.
        Oif = 1 NFT_FIB_RESULT_OIF, "oif";
        /// Name of the device.
        OifName = 2 NFT_FIB_RESULT_OIFNAME, "oifname";
        /// Type of the address, such as "local".
        AddressType = 3 NFT_FIB_RESULT_ADDRTYPE, "type";
    }
}

flags! {
    /// Input of a routing lookup (`NFTA_FIB_F_*`).
    FibFlags {
        /// The source.
        SADDR = 1;
        /// The destination.
        DADDR = 2;
        /// With the packet's mark.
        MARK = 4;
        /// With the input device.
        IIF = 8;
        /// With the output device.
        OIF = 16;
        /// Only whether there is a result.
        PRESENT = 32;
    }
}

numbered! {
    /// Comparison (`NFT_CMP_*`).
    CmpOp {
        /// Equal.
        Eq = 0 NFT_CMP_EQ, "==";
        /// Not equal.
        Ne = 1 NFT_CMP_NEQ, "!=";
        /// Less than. Values are compared byte by byte, so numbers must be in network byte order.
        Lt = 2 NFT_CMP_LT, "<";
        /// Less or equal.
        Le = 3 NFT_CMP_LTE, "<=";
        /// Greater.
        Gt = 4 NFT_CMP_GT, ">";
        /// Greater or equal.
        Ge = 5 NFT_CMP_GTE, ">=";
    }
}

numbered! {
    /// Conversion of numbers (`NFT_BYTEORDER_*`).
    ByteOrderOp {
        /// From network to host byte order.
        NetworkToHost = 0 NFT_BYTEORDER_NTOH, "ntoh";
        /// From host to network byte order.
        HostToNetwork = 1 NFT_BYTEORDER_HTON, "hton";
    }
}

numbered! {
    /// Address to translate (`NFT_NAT_*`).
    NatKind {
        /// The source.
        Source = 0 NFT_NAT_SNAT, "snat";
        /// The destination.
        Destination = 1 NFT_NAT_DNAT, "dnat";
    }
}

flags! {
    /// How addresses and ports are chosen (`NF_NAT_RANGE_*`).
    NatFlags {
        /// Addresses are given. Set by the kernel.
        MAP_IPS = 1;
        /// Ports are given. Set by the kernel.
        PROTO_SPECIFIED = 2;
        /// Ports at random.
        RANDOM = 4;
        /// A client keeps its address.
        PERSISTENT = 8;
        /// Ports wholly at random.
        FULLY_RANDOM = 16;
        /// Ports keep their offset from a base.
        PROTO_OFFSET = 32;
        /// One network to another, address by address.
        NETMAP = 64;
    }
}

numbered! {
    /// Generator of numbers (`NFT_NG_*`).
    NumgenKind {
        /// One after another.
        Incremental = 0 NFT_NG_INCREMENTAL, "inc";
        /// At random.
        Random = 1 NFT_NG_RANDOM, "random";
    }
}

numbered! {
    /// Operation on an element of a set (`NFT_DYNSET_OP_*`).
    DynSetOp {
        /// Add, unless it exists.
        Add = 0 NFT_DYNSET_OP_ADD, "add";
        /// Add, or renew the timeout. Data of an existing element are kept.
        Update = 1 NFT_DYNSET_OP_UPDATE, "update";
        /// Delete it. Since Linux 5.4.
        Delete = 2 NFT_DYNSET_OP_DELETE, "delete";
    }
}

numbered! {
    /// Direction of a bit shift (`NFT_BITWISE_*`).
    ShiftOp {
        /// Towards more significant bits.
        Left = 1 NFT_BITWISE_LSHIFT, "<<";
        /// Towards less significant bits.
        Right = 2 NFT_BITWISE_RSHIFT, ">>";
    }
}

numbered! {
    /// Where an option or extension header is (`NFT_EXTHDR_OP_*`).
    ExthdrOp {
        /// Extension header of IPv6.
        Ipv6 = 0 NFT_EXTHDR_OP_IPV6, "exthdr";
        /// Option of TCP.
        Tcp = 1 NFT_EXTHDR_OP_TCPOPT, "tcp option";
        /// Option of IPv4.
        Ipv4 = 2 NFT_EXTHDR_OP_IPV4, "ip option";
        /// Chunk of SCTP.
        Sctp = 3 NFT_EXTHDR_OP_SCTP, "sctp chunk";
        /// Option of DCCP.
        Dccp = 4 NFT_EXTHDR_OP_DCCP, "dccp option";
    }
}

numbered! {
    /// A property of the packet's route (`NFT_RT_*`).
    RtKey {
        /// Realm.
        ClassId = 0 NFT_RT_CLASSID, "classid";
        /// Next hop, IPv4.
        NextHop4 = 1 NFT_RT_NEXTHOP4, "ip nexthop";
        /// Next hop, IPv6.
        NextHop6 = 2 NFT_RT_NEXTHOP6, "ip6 nexthop";
        /// TCP's maximum segment size.
        TcpMss = 3 NFT_RT_TCPMSS, "mtu";
        /// Whether the route uses IPsec.
        Xfrm = 4 NFT_RT_XFRM, "ipsec";
    }
}

numbered! {
    /// A property of the socket (`NFT_SOCKET_*`).
    SocketKey {
        /// Whether it is transparent.
        Transparent = 0 NFT_SOCKET_TRANSPARENT, "transparent";
        /// Its mark.
        Mark = 1 NFT_SOCKET_MARK, "mark";
        /// Whether it is bound to all addresses.
        Wildcard = 2 NFT_SOCKET_WILDCARD, "wildcard";
        /// Id of its control group. Since Linux 5.13.
        CgroupV2 = 3 NFT_SOCKET_CGROUPV2, "cgroupv2";
    }
}

numbered! {
    /// A property of an IPsec state (`NFT_XFRM_KEY_*`).
    XfrmKey {
        /// Destination, IPv4.
        DestinationIp = 1 NFT_XFRM_KEY_DADDR_IP4, "ip daddr";
        /// Destination, IPv6.
        DestinationIp6 = 2 NFT_XFRM_KEY_DADDR_IP6, "ip6 daddr";
        /// Source, IPv4.
        SourceIp = 3 NFT_XFRM_KEY_SADDR_IP4, "ip saddr";
        /// Source, IPv6.
        SourceIp6 = 4 NFT_XFRM_KEY_SADDR_IP6, "ip6 saddr";
        /// Number of the request.
        RequestId = 5 NFT_XFRM_KEY_REQID, "reqid";
        /// Security parameter index.
        Spi = 6 NFT_XFRM_KEY_SPI, "spi";
    }
}

flags! {
    /// Parts of a packet that a log line shows (`NF_LOG_*`).
    LogFlags {
        /// Sequence numbers of TCP.
        TCPSEQ = 1;
        /// Options of TCP.
        TCPOPT = 2;
        /// Options of IP.
        IPOPT = 4;
        /// User of the socket.
        UID = 8;
        /// Header of Ethernet.
        MACDECODE = 32;
    }
}

flags! {
    /// TCP options that a SYN proxy offers (`NF_SYNPROXY_OPT_*`).
    SynproxyFlags {
        /// Greatest segment size.
        MSS = 1;
        /// Window scale.
        WSCALE = 2;
        /// Selective acknowledgement.
        SACK_PERM = 4;
        /// Timestamps.
        TIMESTAMP = 8;
    }
}

flags! {
    /// How a queue handles packets (`NFT_QUEUE_FLAG_*`).
    QueueFlags {
        /// Accept packets if no program listens.
        BYPASS = 1;
        /// The CPU decides the queue.
        CPU_FANOUT = 2;
    }
}

/// Unit of time of a rate.
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

/// Reason in an ICMP or ICMPv6 message about an unreachable destination (`NFT_REJECT_ICMPX_*`).
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

/// How a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Reject {
    /// A reset of TCP.
    TcpReset,
    /// An ICMP or ICMPv6 message, by the packet's family. In families `inet`, `bridge` and `netdev`.
    Unreachable(IcmpCode),
    /// A message of the table's family, with the code of that protocol.
    Icmp(u8),
}

//! nft's names for fields of headers, options and chunks (its src/proto.c, exthdr.c, tcpopt.c, ipopt.c, sctp_chunk.c).

use crate::expr::{ExthdrOp, HeaderBase};
use crate::model::DataType;

/// A protocol whose header fields have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Ether,
    Vlan,
    Arp,
    Ip,
    Ip6,
    /// Any with ports.
    Th,
    Icmp,
    Igmp,
    Tcp,
    Udp,
    Dccp,
    Esp,
    Ah,
    Icmp6,
    Comp,
    Sctp,
    UdpLite,
}

impl Protocol {
    /// The protocol above IP with this number.
    pub(super) fn transport(number: u8) -> Option<Self> {
        PROTOCOLS.iter().find(|row| row.2 == Some(number)).map(|row| row.0)
    }

    /// The protocol above Ethernet with this number.
    pub(super) fn network(number: &[u8]) -> Option<Self> {
        Some(match number {
            [8, 0] => Protocol::Ip,
            [8, 6] => Protocol::Arp,
            [0x86, 0xdd] => Protocol::Ip6,
            [0x81, 0] | [0x88, 0xa8] => Protocol::Vlan,
            _ => return None,
        })
    }

    fn fields(self) -> (&'static str, &'static [Row]) {
        PROTOCOLS.iter().find(|row| row.0 == self).map_or(("", &[]), |row| (row.1, row.4))
    }

    /// The protocol with this number in nft's notes about sets.
    pub(super) fn noted(number: u32) -> Option<Self> {
        PROTOCOLS.iter().find(|row| row.3 == Some(number)).map(|row| row.0)
    }

    /// Name of the field with this number in nft's notes about sets, and its number of bits.
    pub(super) fn noted_field(self, number: u32) -> Option<(String, u32)> {
        let (protocol, rows) = self.fields();
        // nft has two names for the third field of VLAN.
        let before = if self == Protocol::Vlan && number > 2 { 2 } else { 1 };
        let (_, bits, _, name) = rows.get(usize::try_from(number.checked_sub(before)?).ok()?)?;
        Some((format!("{protocol} {name}"), *bits))
    }

    /// Type and name of the field with these bits.
    pub(super) fn field(self, bits: Bits) -> Option<(DataType, String)> {
        let (protocol, rows) = self.fields();
        let (_, _, data_type, name) = rows.iter().find(|(offset, length, _, _)| (*offset, *length) == bits)?;
        Some((*data_type, format!("{protocol} {name}")))
    }
}

/// A protocol, its name, its number above IP, its number in nft's notes about sets (`proto_desc_id` in nft's
/// include/proto.h), and its fields.
type Known = (Protocol, &'static str, Option<u8>, Option<u32>, &'static [Row]);

const PROTOCOLS: [Known; 17] = [
    (Protocol::Ether, "ether", None, Some(17), ETHER),
    (Protocol::Vlan, "vlan", None, Some(16), VLAN),
    (Protocol::Arp, "arp", None, Some(15), ARP),
    (Protocol::Ip, "ip", None, Some(12), IP),
    (Protocol::Ip6, "ip6", None, Some(13), IP6),
    (Protocol::Th, "th", None, Some(11), TH),
    (Protocol::Icmp, "icmp", Some(1), Some(4), ICMP),
    // nft does not number its fields as they lie.
    (Protocol::Igmp, "igmp", Some(2), None, IGMP),
    (Protocol::Tcp, "tcp", Some(6), Some(8), TCP),
    (Protocol::Udp, "udp", Some(17), Some(6), UDP),
    (Protocol::Dccp, "dccp", Some(33), Some(9), DCCP),
    (Protocol::Esp, "esp", Some(50), Some(2), ESP),
    (Protocol::Ah, "ah", Some(51), Some(1), AH),
    (Protocol::Icmp6, "icmpv6", Some(58), Some(14), ICMP6),
    (Protocol::Comp, "comp", Some(108), Some(3), COMP),
    (Protocol::Sctp, "sctp", Some(132), Some(10), SCTP),
    (Protocol::UdpLite, "udplite", Some(136), Some(7), UDPLITE),
];

/// First bit and number of bits of a field, its type, its name.
type Row = (u32, u32, DataType, &'static str);

const fn number(offset: u32, bits: u32, name: &'static str) -> Row {
    (offset, bits, DataType::INTEGER, name)
}

const SPORT: Row = (0, 16, DataType::INET_SERVICE, "sport");
const DPORT: Row = (16, 16, DataType::INET_SERVICE, "dport");

const ETHER: &[Row] = &[
    (0, 48, DataType::ETHER_ADDR, "daddr"),
    (48, 48, DataType::ETHER_ADDR, "saddr"),
    (96, 16, DataType::ETHER_TYPE, "type"),
];
const VLAN: &[Row] =
    &[number(112, 3, "pcp"), number(115, 1, "dei"), number(116, 12, "id"), (128, 16, DataType::ETHER_TYPE, "type")];
const ARP: &[Row] = &[
    number(0, 16, "htype"),
    (16, 16, DataType::ETHER_TYPE, "ptype"),
    number(32, 8, "hlen"),
    number(40, 8, "plen"),
    (48, 16, DataType::ARP_OP, "operation"),
    (64, 48, DataType::ETHER_ADDR, "saddr ether"),
    (112, 32, DataType::IPV4_ADDR, "saddr ip"),
    (144, 48, DataType::ETHER_ADDR, "daddr ether"),
    (192, 32, DataType::IPV4_ADDR, "daddr ip"),
];
const IP: &[Row] = &[
    number(0, 4, "version"),
    number(4, 4, "hdrlength"),
    (8, 6, DataType::DSCP, "dscp"),
    (14, 2, DataType::ECN, "ecn"),
    number(16, 16, "length"),
    number(32, 16, "id"),
    number(48, 16, "frag-off"),
    number(64, 8, "ttl"),
    (72, 8, DataType::INET_PROTO, "protocol"),
    number(80, 16, "checksum"),
    (96, 32, DataType::IPV4_ADDR, "saddr"),
    (128, 32, DataType::IPV4_ADDR, "daddr"),
];
const IP6: &[Row] = &[
    number(0, 4, "version"),
    (4, 6, DataType::DSCP, "dscp"),
    (10, 2, DataType::ECN, "ecn"),
    number(12, 20, "flowlabel"),
    number(32, 16, "length"),
    (48, 8, DataType::INET_PROTO, "nexthdr"),
    number(56, 8, "hoplimit"),
    (64, 128, DataType::IPV6_ADDR, "saddr"),
    (192, 128, DataType::IPV6_ADDR, "daddr"),
];
const TH: &[Row] = &[SPORT, DPORT];
const ICMP: &[Row] =
    &[(0, 8, DataType::ICMP_TYPE, "type"), (8, 8, DataType::ICMP_CODE, "code"), number(16, 16, "checksum")];
const ICMP6: &[Row] =
    &[(0, 8, DataType::ICMPV6_TYPE, "type"), (8, 8, DataType::ICMPV6_CODE, "code"), number(16, 16, "checksum")];
const IGMP: &[Row] =
    &[(0, 8, DataType::IGMP_TYPE, "type"), number(8, 8, "mrt"), number(16, 16, "checksum"), number(32, 32, "group")];
const TCP: &[Row] = &[
    SPORT,
    DPORT,
    number(32, 32, "sequence"),
    number(64, 32, "ackseq"),
    number(96, 4, "doff"),
    number(100, 4, "reserved"),
    (104, 8, DataType::TCP_FLAG, "flags"),
    number(112, 16, "window"),
    number(128, 16, "checksum"),
    number(144, 16, "urgptr"),
];
const UDP: &[Row] = &[SPORT, DPORT, number(32, 16, "length"), number(48, 16, "checksum")];
const UDPLITE: &[Row] = &[SPORT, DPORT, number(32, 16, "csumcov"), number(48, 16, "checksum")];
const DCCP: &[Row] = &[SPORT, DPORT, (67, 4, DataType::DCCP_TYPE, "type")];
const SCTP: &[Row] = &[SPORT, DPORT, number(32, 32, "vtag"), number(64, 32, "checksum")];
const ESP: &[Row] = &[number(0, 32, "spi"), number(32, 32, "sequence")];
const AH: &[Row] = &[
    (0, 8, DataType::INET_PROTO, "nexthdr"),
    number(8, 8, "hdrlength"),
    number(16, 16, "reserved"),
    number(32, 32, "spi"),
    number(64, 32, "sequence"),
];
const COMP: &[Row] = &[(0, 8, DataType::INET_PROTO, "nexthdr"), number(8, 8, "flags"), number(16, 16, "cpi")];

/// First bit and number of bits.
pub(super) type Bits = (u32, u32);

/// Place of bytes in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Header(HeaderBase),
    Option(ExthdrOp, u8),
}

/// The set bits in bytes from this offset, and the number of bits after them; `None` if they are not contiguous.
pub(super) fn run_of_bits(offset: u32, bytes: &[u8]) -> Option<(Bits, u32)> {
    let bit = |place: usize| bytes.get(place / 8).is_some_and(|byte| byte & (0x80 >> (place % 8)) != 0);
    let all = bytes.len().checked_mul(8)?;
    let first = (0..all).find(|place| bit(*place))?;
    let end = (first..all).find(|place| !bit(*place)).unwrap_or(all);
    let number = |bits: usize| u32::try_from(bits).ok();
    let (length, rest) = (number(end.checked_sub(first)?)?, number(all.checked_sub(end)?)?);
    let run = (offset.checked_mul(8)?.checked_add(number(first)?)?, length);
    (!(end..all).any(bit)).then_some((run, rest))
}

/// The bits that a mask keeps, if they are only part of the bytes.
pub(super) fn kept_bits(offset: u32, mask: &[u8]) -> Option<(Bits, u32)> {
    run_of_bits(offset, mask).filter(|((first, length), _)| first % 8 != 0 || length % 8 != 0)
}

/// The name of an extension header, an option or a chunk.
pub(super) fn option_name(op: ExthdrOp, kind: u8) -> Option<String> {
    let names: &[(u8, &str)] = match op {
        ExthdrOp::Ipv6 => &[(0, "hbh"), (43, "rt"), (44, "frag"), (60, "dst"), (135, "mh")],
        ExthdrOp::Tcp => &[
            (0, "eol"),
            (1, "nop"),
            (2, "maxseg"),
            (3, "window"),
            (4, "sack-perm"),
            (5, "sack"),
            (8, "timestamp"),
            (19, "md5sig"),
            (30, "mptcp"),
            (34, "fastopen"),
        ],
        ExthdrOp::Ipv4 => &[(7, "rr"), (131, "lsrr"), (137, "ssrr"), (148, "ra")],
        ExthdrOp::Sctp => &[
            (0, "data"),
            (1, "init"),
            (2, "init-ack"),
            (3, "sack"),
            (4, "heartbeat"),
            (5, "heartbeat-ack"),
            (6, "abort"),
            (7, "shutdown"),
            (8, "shutdown-ack"),
            (9, "error"),
            (10, "cookie-echo"),
            (11, "cookie-ack"),
            (12, "ecne"),
            (13, "cwr"),
            (14, "shutdown-complete"),
            (0x80, "asconf-ack"),
            (0xc0, "forward-tsn"),
            (0xc1, "asconf"),
        ],
        ExthdrOp::Dccp | ExthdrOp::Other(_) => &[],
    };
    let name = names.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name);
    match op {
        ExthdrOp::Tcp | ExthdrOp::Dccp if name.is_none() => Some(format!("{} {kind}", op.name()?)),
        _ => Some(format!("{} {}", op.name()?, name?)),
    }
}

/// Fields of extension headers, options and chunks: kind, first bit, number of bits, name.
const fn option_rows(op: ExthdrOp) -> &'static [(u8, u32, u32, &'static str)] {
    match op {
        ExthdrOp::Ipv6 => &[
            (0, 8, 8, "hbh hdrlength"),
            (43, 8, 8, "rt hdrlength"),
            (43, 16, 8, "rt type"),
            (43, 24, 8, "rt seg-left"),
            (43, 32, 8, "srh last-entry"),
            (43, 40, 8, "srh flags"),
            (43, 48, 16, "srh tag"),
            (44, 8, 8, "frag reserved"),
            (44, 16, 13, "frag frag-off"),
            (44, 29, 2, "frag reserved2"),
            (44, 31, 1, "frag more-fragments"),
            (44, 32, 32, "frag id"),
            (60, 8, 8, "dst hdrlength"),
            (135, 8, 8, "mh hdrlength"),
            (135, 16, 8, "mh type"),
            (135, 24, 8, "mh reserved"),
            (135, 32, 16, "mh checksum"),
        ],
        ExthdrOp::Tcp => &[
            (2, 16, 16, "size"),
            (3, 16, 8, "count"),
            (5, 16, 32, "left"),
            (5, 48, 32, "right"),
            (8, 16, 32, "tsval"),
            (8, 48, 32, "tsecr"),
            (30, 16, 4, "subtype"),
        ],
        ExthdrOp::Sctp => &[
            (0, 32, 32, "tsn"),
            (0, 64, 16, "stream"),
            (0, 80, 16, "ssn"),
            (0, 96, 32, "ppid"),
            (1, 32, 32, "init-tag"),
            (1, 64, 32, "a-rwnd"),
            (1, 96, 16, "num-outbound-streams"),
            (1, 112, 16, "num-inbound-streams"),
            (1, 128, 32, "initial-tsn"),
            (2, 32, 32, "init-tag"),
            (2, 64, 32, "a-rwnd"),
            (2, 96, 16, "num-outbound-streams"),
            (2, 112, 16, "num-inbound-streams"),
            (2, 128, 32, "initial-tsn"),
            (3, 32, 32, "cum-tsn-ack"),
            (3, 64, 32, "a-rwnd"),
            (3, 96, 16, "num-gap-ack-blocks"),
            (3, 112, 16, "num-dup-tsns"),
            (7, 32, 32, "cum-tsn-ack"),
            (12, 32, 32, "lowest-tsn"),
            (13, 32, 32, "lowest-tsn"),
            (0x80, 32, 32, "seqno"),
            (0xc0, 32, 32, "new-cum-tsn"),
            (0xc1, 32, 32, "seqno"),
        ],
        ExthdrOp::Ipv4 => &[
            (7, 16, 8, "ptr"),
            (7, 24, 32, "addr"),
            (131, 16, 8, "ptr"),
            (131, 24, 32, "addr"),
            (137, 16, 8, "ptr"),
            (137, 24, 32, "addr"),
            (148, 16, 16, "value"),
        ],
        ExthdrOp::Dccp | ExthdrOp::Other(_) => &[],
    }
}

/// Name of the field with this number in nft's notes about sets, and its number of bits. The notes have numbers of their
/// own for extension headers (`exthdr_desc_id` in nft's include/exthdr.h).
pub(super) fn noted_option(op: ExthdrOp, kind: u32, field: u32) -> Option<(String, u32)> {
    // Numbers of fields that have no row here.
    let (kind, before) = match op {
        ExthdrOp::Ipv6 => match kind {
            1 => (0, 2),
            2 => (43, 2),
            6 => (44, 2),
            7 => (60, 2),
            8 => (135, 2),
            _ => return None,
        },
        ExthdrOp::Tcp => (kind, 2),
        ExthdrOp::Ipv4 if kind != 148 => (kind, 4),
        _ => (kind, 3),
    };
    let kind = u8::try_from(kind).ok()?;
    let mut rows = option_rows(op).iter().filter(|(of, ..)| *of == kind);
    let (_, offset, length, _) = rows.nth(usize::try_from(field.checked_sub(before)?).ok()?)?;
    Some((option_field(op, kind, (*offset, *length))?.1, *length))
}

/// Type and name of a field of an extension header, an option or a chunk.
pub(super) fn option_field(op: ExthdrOp, kind: u8, bits: Bits) -> Option<(DataType, String)> {
    let data_type = |name: &str| match name {
        "addr" => DataType::IPV4_ADDR,
        "mh type" => DataType::MH_TYPE,
        _ => DataType::INTEGER,
    };
    if let Some((_, _, _, name)) =
        option_rows(op).iter().find(|(of, offset, length, _)| (*of, (*offset, *length)) == (kind, bits))
    {
        let text = if op == ExthdrOp::Ipv6 { (*name).to_owned() } else { format!("{} {name}", option_name(op, kind)?) };
        return Some((data_type(name), text));
    }
    // What all kinds have in common.
    let words = option_name(op, kind);
    let is_named = words.as_ref().is_some_and(|words| !words.ends_with(|c: char| c.is_ascii_digit()));
    match (op, bits) {
        // Segments of 16 bytes, numbered from 1.
        (ExthdrOp::Ipv6, (offset, 128)) if kind == 43 && offset % 128 == 64 => {
            Some((DataType::IPV6_ADDR, format!("srh sid[{}]", (offset / 128).checked_add(1)?)))
        }
        (ExthdrOp::Ipv6, (0, 8)) => {
            let name = words?.strip_prefix("exthdr ")?.to_owned();
            Some((DataType::INET_PROTO, format!("{name} nexthdr")))
        }
        (ExthdrOp::Tcp, (0, 8)) if is_named => Some((DataType::INTEGER, format!("{} kind", words?))),
        (ExthdrOp::Tcp, (8, 8)) if is_named && kind > 1 => Some((DataType::INTEGER, format!("{} length", words?))),
        // Blocks behind the first.
        (ExthdrOp::Tcp, (offset, 32)) if kind == 5 => {
            let (block, rest) = (offset.checked_sub(16)? / 64, offset.checked_sub(16)? % 64);
            let side = if rest == 0 { "left" } else { "right" };
            (block < 4 && rest % 32 == 0).then(|| (DataType::INTEGER, format!("tcp option sack{block} {side}")))
        }
        (ExthdrOp::Tcp, (offset, length)) => Some((DataType::INTEGER, format!("tcp option @{kind},{offset},{length}"))),
        (ExthdrOp::Ipv4 | ExthdrOp::Sctp, (0, 8)) => Some((DataType::INTEGER, format!("{} type", words?))),
        (ExthdrOp::Ipv4, (8, 8)) | (ExthdrOp::Sctp, (16, 16)) => {
            Some((DataType::INTEGER, format!("{} length", words?)))
        }
        (ExthdrOp::Sctp, (8, 8)) => Some((DataType::INTEGER, format!("{} flags", words?))),
        _ => None,
    }
}

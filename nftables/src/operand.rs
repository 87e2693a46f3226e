//! Operands: values that a rule can read, as the left side of a match or in the key of a map.

use crate::expr::{
    ByteOrderOp, CtKey, Direction, Expression, ExthdrOp, FibFlags, FibResult, HeaderBase, MetaKey, NumgenKind,
    Register, RtKey, SetReference, SocketKey, XfrmKey,
};
use crate::model::{DataType, Field, FieldTypes, InvalidValue, Value, padded};

/// A value that expressions compute from a packet.
///
/// The first rule always sends a client to the same one of three endpoints; the second drops packets that would expire:
///
/// ```
/// use nftables::expr::{CmpOp, HeaderBase};
/// use nftables::{DataType, Family, Field, Operand, TableKey, Value, rule};
///
/// let endpoints = TableKey::new(Family::Ip, "proxy")?.set("endpoints")?;
/// let slot = Operand::hash([Operand::IP_SADDR], 3);
/// assert_eq!(slot.length(), 4);
/// let pick = rule(Family::Ip).dnat_to_map(Family::Ip, &[slot], &endpoints).build()?;
/// assert_eq!(pick.to_nft(Family::Ip).as_deref(), Some("dnat ip to jhash ip saddr mod 3 map @endpoints"));
///
/// // A header field without a constant here: the time to live.
/// let field = Field { data_type: DataType::INTEGER, length: 1 };
/// let ttl = Operand::Payload { base: HeaderBase::Network, offset: 8, field };
/// let expiring = rule(Family::Ip).matches(&ttl, CmpOp::Lt, Value::byte(2)).drop_packet().build()?;
/// assert_eq!(expiring.to_nft(Family::Ip).as_deref(), Some("ip ttl < 2 drop"));
///
/// // What a set of these operands has as fields of its key.
/// assert_eq!(Operand::IP6_DADDR.field(), Field { data_type: DataType::IPV6_ADDR, length: 16 });
/// assert_eq!(Operand::MARK.masked(Value::mark(0xff)).field(), DataType::MARK.into());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Operand {
    /// Bytes of a header.
    Payload {
        /// Header that contains the bytes.
        base: HeaderBase,
        /// First byte in it.
        offset: u32,
        /// Type and number of bytes.
        field: Field,
    },
    /// Metadata of a packet.
    Meta(MetaKey),
    /// A property of the connection.
    Ct(CtKey, Option<Direction>),
    /// Result of a routing lookup.
    Fib(FibResult, FibFlags),
    /// A property of the packet's route.
    Rt(RtKey),
    /// A property of the packet's socket.
    Socket(SocketKey),
    /// The sender's operating system, guessed from the loaded fingerprints: 16 bytes of text.
    Osf {
        /// How the time to live is compared: 0 strictly, 1 at most, 2 not at all.
        ttl: u8,
        /// With the version.
        version: bool,
    },
    /// Bytes of an option or an extension header.
    Exthdr {
        /// Place of it.
        op: ExthdrOp,
        /// Type of the header, kind of the option.
        kind: u8,
        /// First byte in it.
        offset: u32,
        /// Type and number of bytes.
        field: Field,
    },
    /// Whether an option or extension header is present: a byte of 0 or 1.
    HasExthdr(ExthdrOp, u8),
    /// A constant, for statements that set a value.
    Constant(Value),
    /// A number that the kernel generates.
    Numgen {
        /// Random, or one after another.
        kind: NumgenKind,
        /// Numbers are below this.
        modulus: u32,
        /// Added to the number.
        offset: u32,
    },
    /// A hash of other operands: equal values give the same number.
    Hash {
        /// The operands.
        of: Vec<Operand>,
        /// Numbers are below this.
        modulus: u32,
        /// Start value. If it is missing the kernel chooses one.
        seed: Option<u32>,
        /// Added to the number.
        offset: u32,
    },
    /// A number that is equal for both directions of a connection.
    SymmetricHash {
        /// Numbers are below this.
        modulus: u32,
        /// Added to the number.
        offset: u32,
    },
    /// The bits of an operand that a mask selects.
    Masked(Box<Operand>, Value),
    /// What a map has for a key that other operands form.
    Map {
        /// The map.
        map: SetReference,
        /// The key.
        key: Vec<Operand>,
        /// The type of its data.
        data: FieldTypes,
    },
}

/// IP version of a header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IpVersion {
    V4,
    V6,
}

impl Operand {
    const fn payload(base: HeaderBase, offset: u32, data_type: DataType, length: u32) -> Self {
        Operand::Payload { base, offset, field: Field { data_type, length } }
    }

    /// Ethernet source, for packets with such a header: in family `bridge`, or after a match on the device.
    pub const ETHER_SADDR: Operand = Operand::payload(HeaderBase::Link, 6, DataType::ETHER_ADDR, 6);
    /// Ethernet destination.
    pub const ETHER_DADDR: Operand = Operand::payload(HeaderBase::Link, 0, DataType::ETHER_ADDR, 6);
    /// Ethernet type: the network protocol.
    pub const ETHER_TYPE: Operand = Operand::payload(HeaderBase::Link, 12, DataType::ETHER_TYPE, 2);
    /// IPv4 source.
    pub const IP_SADDR: Operand = Operand::payload(HeaderBase::Network, 12, DataType::IPV4_ADDR, 4);
    /// IPv4 destination.
    pub const IP_DADDR: Operand = Operand::payload(HeaderBase::Network, 16, DataType::IPV4_ADDR, 4);
    /// IPv6 source.
    pub const IP6_SADDR: Operand = Operand::payload(HeaderBase::Network, 8, DataType::IPV6_ADDR, 16);
    /// IPv6 destination.
    pub const IP6_DADDR: Operand = Operand::payload(HeaderBase::Network, 24, DataType::IPV6_ADDR, 16);
    /// Source port of TCP, UDP and similar protocols.
    pub const SPORT: Operand = Operand::payload(HeaderBase::Transport, 0, DataType::INET_SERVICE, 2);
    /// Destination port of TCP, UDP and similar protocols.
    pub const DPORT: Operand = Operand::payload(HeaderBase::Transport, 2, DataType::INET_SERVICE, 2);
    /// Flags of TCP.
    pub const TCP_FLAGS: Operand = Operand::payload(HeaderBase::Transport, 13, DataType::TCP_FLAG, 1);
    /// Transport protocol.
    pub const L4PROTO: Operand = Operand::Meta(MetaKey::L4Proto);
    /// IPv4 or IPv6.
    pub const NFPROTO: Operand = Operand::Meta(MetaKey::NfProto);
    /// Packet mark.
    pub const MARK: Operand = Operand::Meta(MetaKey::Mark);
    /// Name of the input device.
    pub const IIFNAME: Operand = Operand::Meta(MetaKey::IifName);
    /// Name of the output device.
    pub const OIFNAME: Operand = Operand::Meta(MetaKey::OifName);
    /// State of the connection.
    pub const CT_STATE: Operand = Operand::Ct(CtKey::State, None);
    /// Status of the connection.
    pub const CT_STATUS: Operand = Operand::Ct(CtKey::Status, None);
    /// Connection mark.
    pub const CT_MARK: Operand = Operand::Ct(CtKey::Mark, None);
    /// Type of the destination in the routing tables, such as "local".
    pub const FIB_DADDR_TYPE: Operand = Operand::Fib(FibResult::AddressType, FibFlags::DADDR);

    /// A random number below `modulus`: four bytes in host byte order, as in [`Value::mark`].
    pub fn random(modulus: u32) -> Self {
        Operand::Numgen { kind: NumgenKind::Random, modulus, offset: 0 }
    }

    /// A hash below `modulus`, equal for equal values: four bytes in host byte order, as in [`Value::mark`].
    pub fn hash(of: impl Into<Vec<Operand>>, modulus: u32) -> Self {
        Operand::Hash { of: of.into(), modulus, seed: None, offset: 0 }
    }

    /// Keeps the bits that are set in the mask.
    #[must_use]
    pub fn masked(self, mask: Value) -> Self {
        Operand::Masked(Box::new(self), mask)
    }

    /// What a map has for a key.
    pub fn map(key: impl Into<Vec<Operand>>, map: impl Into<SetReference>, data: FieldTypes) -> Self {
        Operand::Map { map: map.into(), key: key.into(), data }
    }

    /// Type and length.
    pub fn field(&self) -> Field {
        match self {
            Operand::Payload { field, .. } | Operand::Exthdr { field, .. } => *field,
            Operand::Masked(operand, _) => operand.field(),
            Operand::Meta(key) => meta_field(*key),
            Operand::Ct(key, _) => ct_field(*key),
            Operand::Fib(result, flags) => fib_type(*result, *flags).into(),
            Operand::Rt(key) => rt_field(*key),
            Operand::Socket(key) => socket_field(*key),
            Operand::Osf { .. } => Field { data_type: DataType::STRING, length: 16 },
            Operand::HasExthdr(..) => DataType::BOOLEAN.into(),
            Operand::Numgen { .. }
            | Operand::Hash { .. }
            | Operand::SymmetricHash { .. }
            | Operand::Constant(_)
            | Operand::Map { .. } => Field { data_type: DataType::INTEGER, length: self.length() },
        }
    }

    /// Length in bytes.
    pub fn length(&self) -> u32 {
        match self {
            Operand::Masked(operand, _) => operand.length(),
            Operand::Map { data, .. } => data.length(),
            Operand::Constant(value) => u32::try_from(value.len()).unwrap_or(u32::MAX),
            Operand::Numgen { .. } | Operand::Hash { .. } | Operand::SymmetricHash { .. } => 4,
            other => other.field().length,
        }
    }

    /// Whether the value is an integer in host byte order.
    pub(crate) fn is_host_order(&self) -> bool {
        let mut expressions = Vec::new();
        let loaded = self.load(Register::FIRST, &mut expressions).is_ok();
        loaded && expressions.last().is_some_and(is_host_order)
    }

    /// The IP version of its header.
    pub(crate) fn ip_version(&self) -> Option<IpVersion> {
        match self {
            Operand::Payload { base: HeaderBase::Network, field, .. } => match field.data_type {
                DataType::IPV4_ADDR => Some(IpVersion::V4),
                DataType::IPV6_ADDR => Some(IpVersion::V6),
                _ => None,
            },
            Operand::Masked(operand, _) => operand.ip_version(),
            Operand::Hash { of, .. } | Operand::Map { key: of, .. } => of.iter().find_map(Operand::ip_version),
            _ => None,
        }
    }

    /// Appends expressions that load the value into a register.
    ///
    /// # Errors
    /// The value does not fit into the registers.
    pub fn load(&self, register: Register, out: &mut Vec<Expression>) -> Result<(), InvalidValue> {
        if !register.has_room(self.length()) {
            return Err(InvalidValue::new("an operand", "the registers hold at most 64 bytes; use fewer fields"));
        }
        let expression = match self {
            Operand::Payload { base, offset, field } => {
                Expression::Payload { base: *base, offset: *offset, length: field.length, register }
            }
            Operand::Meta(key) => Expression::Meta { key: *key, register },
            Operand::Ct(key, direction) => Expression::Ct { key: *key, direction: *direction, register },
            Operand::Fib(result, flags) => Expression::Fib { result: *result, flags: *flags, register },
            Operand::Rt(key) => Expression::Rt { key: *key, register },
            Operand::Socket(key) => Expression::Socket { key: *key, level: None, register },
            Operand::Osf { ttl, version } => Expression::Osf { ttl: *ttl, version: *version, register },
            Operand::Exthdr { op, kind, offset, field } => {
                let (op, kind, offset, length) = (*op, *kind, *offset, field.length);
                Expression::Exthdr { op, kind, offset, length, present: false, register }
            }
            Operand::HasExthdr(op, kind) => {
                Expression::Exthdr { op: *op, kind: *kind, offset: 0, length: 1, present: true, register }
            }
            Operand::Constant(value) => Expression::Immediate { register, value: value.clone() },
            Operand::SymmetricHash { modulus, offset } => {
                Expression::SymmetricHash { modulus: *modulus, offset: *offset, register }
            }
            Operand::Numgen { kind, modulus, offset } => {
                Expression::Numgen { kind: *kind, modulus: *modulus, offset: *offset, register }
            }
            Operand::Hash { of, modulus, seed, offset } => {
                let length = load_all(of, register, out)?;
                Expression::Hash { source: register, length, modulus: *modulus, seed: *seed, offset: *offset, register }
            }
            Operand::Masked(operand, mask) => {
                operand.load(register, out)?;
                let length = operand.length();
                let xor = Value::of(&vec![0; mask.len()]);
                Expression::Bitwise { source: register, register, length, mask: mask.clone(), xor }
            }
            Operand::Map { map, key, .. } => {
                load_all(key, register, out)?;
                let set = map.clone();
                Expression::Lookup { set, source: register, register: Some(register), inverted: false }
            }
        };
        out.push(expression);
        Ok(())
    }
}

impl From<Value> for Operand {
    /// A constant.
    fn from(value: Value) -> Self {
        Operand::Constant(value)
    }
}

impl From<&Operand> for Operand {
    fn from(operand: &Operand) -> Self {
        operand.clone()
    }
}

/// Loads several values one after another, as the key of a concatenation. Returns the length in bytes.
pub(crate) fn load_all(
    operands: &[Operand],
    register: Register,
    out: &mut Vec<Expression>,
) -> Result<u32, InvalidValue> {
    let full = || InvalidValue::new("a concatenation", "the registers hold at most 64 bytes; use fewer fields");
    let mut length = 0_u32;
    for operand in operands {
        let at = if length == 0 { register } else { register.behind(length).ok_or_else(full)? };
        operand.load(at, out)?;
        length = length.saturating_add(padded(operand.length()));
    }
    match operands {
        [one] => Ok(one.length()),
        _ => Ok(length),
    }
}

/// Type and length of metadata, as in nft (`meta_templates` in nft's src/meta.c).
pub(crate) fn meta_field(key: MetaKey) -> Field {
    let integer = |length| Field { data_type: DataType::INTEGER, length };
    match key {
        MetaKey::Protocol | MetaKey::BridgeIifVlanProtocol => DataType::ETHER_TYPE.into(),
        MetaKey::Priority => DataType::CLASS_ID.into(),
        MetaKey::Iif | MetaKey::Oif | MetaKey::SdIf => DataType::IFACE_INDEX.into(),
        MetaKey::IifName
        | MetaKey::OifName
        | MetaKey::BridgeIifName
        | MetaKey::BridgeOifName
        | MetaKey::IifKind
        | MetaKey::OifKind
        | MetaKey::SdIfName => DataType::IFNAME.into(),
        MetaKey::IifType | MetaKey::OifType => DataType::IFACE_TYPE.into(),
        MetaKey::SkUid => DataType::UID.into(),
        MetaKey::SkGid => DataType::GID.into(),
        MetaKey::RtClassId => DataType::REALM.into(),
        MetaKey::NfProto => DataType::NF_PROTO.into(),
        MetaKey::L4Proto => DataType::INET_PROTO.into(),
        MetaKey::PktType => DataType::PKT_TYPE.into(),
        MetaKey::IifGroup | MetaKey::OifGroup => DataType::DEVICE_GROUP.into(),
        MetaKey::SecPath => DataType::BOOLEAN.into(),
        MetaKey::TimeNs => DataType::TIME_DATE.into(),
        MetaKey::TimeDay => DataType::DAY.into(),
        MetaKey::TimeHour => DataType::HOUR.into(),
        MetaKey::NfTrace => integer(1),
        MetaKey::BridgeIifPvid => integer(2),
        MetaKey::Mark => DataType::MARK.into(),
        MetaKey::Length | MetaKey::SecMark | MetaKey::Cpu | MetaKey::Cgroup | MetaKey::Random | MetaKey::Other(_) => {
            integer(4)
        }
    }
}

/// Type and length of a connection property, as in nft (`ct_templates` in nft's src/ct.c).
pub(crate) fn ct_field(key: CtKey) -> Field {
    let integer = |length| Field { data_type: DataType::INTEGER, length };
    match key {
        CtKey::State => DataType::CT_STATE.into(),
        CtKey::Direction => DataType::CT_DIR.into(),
        CtKey::Status => DataType::CT_STATUS.into(),
        CtKey::Mark => DataType::MARK.into(),
        CtKey::Expiration => DataType::TIME.into(),
        CtKey::Helper => Field { data_type: DataType::STRING, length: 16 },
        CtKey::L3Protocol => DataType::NF_PROTO.into(),
        CtKey::Protocol => DataType::INET_PROTO.into(),
        CtKey::SourcePort | CtKey::DestinationPort => DataType::INET_SERVICE.into(),
        CtKey::SourceIp | CtKey::DestinationIp => DataType::IPV4_ADDR.into(),
        CtKey::SourceIp6 | CtKey::DestinationIp6 | CtKey::Source | CtKey::Destination => DataType::IPV6_ADDR.into(),
        CtKey::Labels => DataType::CT_LABEL.into(),
        CtKey::Packets | CtKey::Bytes | CtKey::AveragePacket => integer(8),
        CtKey::Zone => integer(2),
        CtKey::EventMask => DataType::CT_EVENT.into(),
        CtKey::SecMark | CtKey::Id | CtKey::Other(_) => integer(4),
    }
}

/// Type and length of a route property, as in nft (`rt_templates` in nft's src/rt.c).
pub(crate) fn rt_field(key: RtKey) -> Field {
    match key {
        RtKey::ClassId => DataType::REALM.into(),
        RtKey::NextHop4 => DataType::IPV4_ADDR.into(),
        RtKey::NextHop6 => DataType::IPV6_ADDR.into(),
        RtKey::TcpMss => Field { data_type: DataType::INTEGER, length: 2 },
        RtKey::Xfrm => DataType::BOOLEAN.into(),
        RtKey::Other(_) => Field { data_type: DataType::INTEGER, length: 4 },
    }
}

/// Type and length of a socket property, as in nft (`socket_templates` in nft's src/socket.c).
pub(crate) fn socket_field(key: SocketKey) -> Field {
    let integer = |length| Field { data_type: DataType::INTEGER, length };
    match key {
        SocketKey::Transparent | SocketKey::Wildcard => integer(1),
        SocketKey::Mark => DataType::MARK.into(),
        SocketKey::CgroupV2 => integer(8),
        SocketKey::Other(_) => integer(4),
    }
}

/// Whether an integer that the expression reads is in host byte order.
pub(crate) fn is_host_order(expression: &Expression) -> bool {
    match expression {
        Expression::Meta { key, .. } => *key != MetaKey::Random,
        Expression::Ct { key, .. } => *key != CtKey::Id,
        Expression::ByteOrder { op, .. } => *op == ByteOrderOp::NetworkToHost,
        Expression::Rt { key, .. } => *key == RtKey::TcpMss,
        Expression::Xfrm { key, .. } => *key == XfrmKey::RequestId,
        Expression::Numgen { .. } | Expression::Hash { .. } | Expression::SymmetricHash { .. } => true,
        _ => false,
    }
}

/// The type of a routing lookup's result.
pub(crate) fn fib_type(result: FibResult, flags: FibFlags) -> DataType {
    match result {
        _ if flags.contains(FibFlags::PRESENT) => DataType::BOOLEAN,
        FibResult::OifName => DataType::IFNAME,
        FibResult::AddressType => DataType::FIB_ADDR_TYPE,
        _ => DataType::IFACE_INDEX,
    }
}

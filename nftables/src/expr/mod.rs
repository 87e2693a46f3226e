//! Expressions: what a rule does with a packet, step by step.
//!
//! An expression reads registers, writes registers, matches or decides. Unknown expressions, and those with an unknown
//! attribute, are kept as bytes ([`Expression::Other`]) and written back unchanged.

mod codec;
mod keys;
mod listed;
mod read;
mod register;

pub(crate) use codec::{put_expression_list, put_one};
pub use keys::{
    ByteOrderOp, CmpOp, CtKey, Direction, DynSetOp, ExthdrOp, FibFlags, FibResult, HeaderBase, IcmpCode, LimitUnit,
    LogFlags, MetaKey, NatFlags, NatKind, NumgenKind, QueueFlags, Reject, RtKey, ShiftOp, SocketKey, SynproxyFlags,
    XfrmKey,
};
pub(crate) use keys::{flags, numbered};
pub(crate) use listed::{get_known, put_fields};
pub(crate) use read::{get_expression, get_expressions};
pub use register::{Register, RegisterRange};

use std::time::Duration;

use netlink_batch::RawAttrs;

use crate::model::{Family, Name, ObjectType, Value, Verdict};

/// A reference to a set in an expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SetReference {
    /// Its name. For an anonymous set of the same transaction, a pattern that the kernel fills in.
    pub name: Name,
    /// Its number within the transaction, if the set is created in the same one.
    pub id: Option<u32>,
}

impl SetReference {
    /// Refers to a set by name.
    pub fn named(name: Name) -> Self {
        SetReference { name, id: None }
    }

    pub(crate) fn in_transaction(name: Name, id: u32) -> Self {
        SetReference { name, id: Some(id) }
    }
}

impl From<&crate::model::SetKey> for SetReference {
    fn from(key: &crate::model::SetKey) -> Self {
        SetReference::named(key.name.clone())
    }
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Expression {
    /// Reads bytes of a packet.
    #[doc(alias = "payload")]
    Payload {
        /// Header from which the bytes are read.
        base: HeaderBase,
        /// First byte in it.
        offset: u32,
        /// Number of bytes.
        length: u32,
        /// Registers for the bytes.
        register: Register,
    },
    /// Writes bytes of a packet.
    PayloadSet {
        /// Header to which the bytes are written.
        base: HeaderBase,
        /// First byte in it.
        offset: u32,
        /// Number of bytes.
        length: u32,
        /// Registers with the bytes.
        source: Register,
        /// Kind of checksum to update (`NFT_PAYLOAD_CSUM_*`): 0 for none, 1 for that of IP.
        checksum: u32,
        /// Offset of that checksum in the header.
        checksum_offset: u32,
        /// `NFT_PAYLOAD_L4CSUM_*`: 1 if the checksum of the transport protocol covers the bytes.
        checksum_flags: u32,
    },
    /// Reads metadata of a packet.
    Meta {
        /// Metadata to read.
        key: MetaKey,
        /// Register for the value.
        register: Register,
    },
    /// Sets metadata of a packet.
    MetaSet {
        /// Metadata to set.
        key: MetaKey,
        /// Register with the value.
        source: Register,
    },
    /// Reads a property of the connection.
    Ct {
        /// Part to read.
        key: CtKey,
        /// Direction, for properties of one direction.
        direction: Option<Direction>,
        /// Register for the value.
        register: Register,
    },
    /// Sets a property of the connection.
    CtSet {
        /// Part to set.
        key: CtKey,
        /// Direction, for properties of one direction.
        direction: Option<Direction>,
        /// Register with the value.
        source: Register,
    },
    /// Looks up a route.
    Fib {
        /// Result to look up.
        result: FibResult,
        /// Input of the lookup.
        flags: FibFlags,
        /// Register for the value.
        register: Register,
    },
    /// Continues only if a register compares to a constant as `op` says.
    Cmp {
        /// The register.
        register: Register,
        /// Comparison.
        op: CmpOp,
        /// The constant.
        value: Value,
    },
    /// `(register & mask) ^ xor`.
    Bitwise {
        /// Registers with the bytes.
        source: Register,
        /// Registers for the bytes.
        register: Register,
        /// Number of bytes.
        length: u32,
        /// Bits to keep.
        mask: Value,
        /// Bits to flip.
        xor: Value,
    },
    /// Shifts the bits of a number in host byte order.
    Shift {
        /// Registers with the number.
        source: Register,
        /// Registers for the number.
        register: Register,
        /// Number of bytes.
        length: u32,
        /// Direction.
        op: ShiftOp,
        /// Number of bits to shift by.
        bits: u32,
    },
    /// Reads an option or an extension header.
    Exthdr {
        /// Place of it.
        op: ExthdrOp,
        /// Type of the header, kind of the option.
        kind: u8,
        /// First byte in it.
        offset: u32,
        /// Number of bytes.
        length: u32,
        /// Reads whether it is present instead: a byte of 0 or 1.
        #[cfg_attr(feature = "serde", serde(default))]
        present: bool,
        /// Register for the value.
        register: Register,
    },
    /// Writes to a TCP option.
    ExthdrSet {
        /// Place of it.
        op: ExthdrOp,
        /// Kind of the option.
        kind: u8,
        /// First byte in it.
        offset: u32,
        /// Number of bytes.
        length: u32,
        /// Register with the bytes.
        source: Register,
    },
    /// Overwrites a TCP option with padding. Since Linux 5.18.
    ExthdrReset {
        /// Place of it.
        op: ExthdrOp,
        /// Kind of the option.
        kind: u8,
    },
    /// Reads a property of the packet's route.
    Rt {
        /// Part to read.
        key: RtKey,
        /// Register for the value.
        register: Register,
    },
    /// Reads a property of the packet's socket.
    Socket {
        /// Part to read.
        key: SocketKey,
        /// Level of the control group.
        level: Option<u32>,
        /// Register for the value.
        register: Register,
    },
    /// Guesses the sender's operating system: 16 bytes of text.
    Osf {
        /// How the time to live is compared: 0 strictly, 1 at most, 2 not at all.
        ttl: u8,
        /// With the version.
        #[cfg_attr(feature = "serde", serde(default))]
        version: bool,
        /// Register for the name.
        register: Register,
    },
    /// Reads a property of an IPsec state.
    Xfrm {
        /// Part to read.
        key: XfrmKey,
        /// For outgoing instead of incoming packets.
        #[cfg_attr(feature = "serde", serde(default))]
        outgoing: bool,
        /// Index of the state among those of the packet.
        index: u32,
        /// Register for the value.
        register: Register,
    },
    /// Converts numbers between host and network byte order.
    ByteOrder {
        /// Registers with the numbers.
        source: Register,
        /// Registers for the numbers.
        register: Register,
        /// Direction.
        op: ByteOrderOp,
        /// Number of bytes.
        length: u32,
        /// Bytes of one number: 2, 4 or 8.
        size: u32,
    },
    /// Continues only if a register is in a range of constants.
    Range {
        /// The register.
        register: Register,
        /// Continues if it is not in the range instead.
        #[cfg_attr(feature = "serde", serde(default))]
        inverted: bool,
        /// First value.
        from: Value,
        /// Last value.
        to: Value,
    },
    /// Continues only if a set has a key; in a map, reads its data.
    Lookup {
        /// The set.
        set: SetReference,
        /// Register with the key.
        source: Register,
        /// Register for the data; [`Register::VERDICT`] in a map of verdicts.
        register: Option<Register>,
        /// Continues if the set does not have the key instead.
        #[cfg_attr(feature = "serde", serde(default))]
        inverted: bool,
    },
    /// Sets a register to a constant.
    Immediate {
        /// The register.
        register: Register,
        /// The constant.
        value: Value,
    },
    /// Gives a verdict.
    Verdict(Verdict),
    /// Translates addresses.
    Nat {
        /// Source or destination.
        kind: NatKind,
        /// Family of the address.
        family: Family,
        /// Registers with the first and the last address.
        address: Option<RegisterRange>,
        /// Registers with the first and the last port.
        port: Option<RegisterRange>,
        /// How addresses and ports are chosen.
        #[cfg_attr(feature = "serde", serde(default))]
        flags: NatFlags,
    },
    /// Translates the source to the address of the output device.
    Masquerade {
        /// Registers with the first and the last port.
        port: Option<RegisterRange>,
        /// Choice of ports.
        #[cfg_attr(feature = "serde", serde(default))]
        flags: NatFlags,
    },
    /// Translates the destination to this host.
    Redirect {
        /// Registers with the first and the last port.
        port: Option<RegisterRange>,
        /// Choice of ports.
        #[cfg_attr(feature = "serde", serde(default))]
        flags: NatFlags,
    },
    /// Drops the packet and answers with a rejection.
    Reject(Reject),
    /// Generates a number below `modulus`, plus `offset`.
    Numgen {
        /// Random, or one after another.
        kind: NumgenKind,
        /// Numbers are below this.
        modulus: u32,
        /// Added to the number.
        offset: u32,
        /// Register for the number, in host byte order.
        register: Register,
    },
    /// Hashes bytes to a number below `modulus`, plus `offset` (`jhash`).
    Hash {
        /// Registers with the bytes.
        source: Register,
        /// Number of bytes.
        length: u32,
        /// Numbers are below this.
        modulus: u32,
        /// Start value. If it is missing the kernel chooses one.
        seed: Option<u32>,
        /// Added to the number.
        offset: u32,
        /// Register for the number, in host byte order.
        register: Register,
    },
    /// Hashes the packet to a number below `modulus`, plus `offset`, that is equal for both directions of a connection
    /// (`symhash`).
    SymmetricHash {
        /// Numbers are below this.
        modulus: u32,
        /// Added to the number.
        offset: u32,
        /// Register for the number, in host byte order.
        register: Register,
    },
    /// Adds, updates or deletes an element.
    DynSet {
        /// The set.
        set: SetReference,
        /// Operation on the element.
        op: DynSetOp,
        /// Register with the key.
        key: Register,
        /// Register with the data, for a map.
        data: Option<Register>,
        /// Timeout of the element in whole milliseconds. `None` for the set's.
        timeout: Option<Duration>,
        /// Continues if the element could not be added instead.
        #[cfg_attr(feature = "serde", serde(default))]
        inverted: bool,
        /// Expressions of a new element.
        #[cfg_attr(feature = "serde", serde(default))]
        expressions: Vec<Expression>,
    },
    /// Counts packets and bytes.
    Counter {
        /// Packets so far.
        packets: u64,
        /// Bytes so far.
        bytes: u64,
    },
    /// Continues while packets stay within a rate.
    Limit {
        /// Number per unit of time.
        rate: u64,
        /// The unit of time.
        unit: LimitUnit,
        /// Allowed burst beyond the rate.
        burst: u32,
        /// Counts bytes instead of packets.
        #[cfg_attr(feature = "serde", serde(default))]
        bytes: bool,
        /// Continues above the rate instead.
        #[cfg_attr(feature = "serde", serde(default))]
        inverted: bool,
    },
    /// Continues until this many bytes have passed.
    Quota {
        /// Number of bytes.
        bytes: u64,
        /// Bytes so far.
        #[cfg_attr(feature = "serde", serde(default))]
        consumed: u64,
        /// Continues beyond them instead.
        #[cfg_attr(feature = "serde", serde(default))]
        inverted: bool,
    },
    /// Continues while there are at most this many connections.
    ConnectionLimit {
        /// Number of connections.
        count: u32,
        /// Continues beyond it instead.
        #[cfg_attr(feature = "serde", serde(default))]
        inverted: bool,
    },
    /// Passes the packet to a program.
    Queue {
        /// First queue.
        first: u16,
        /// Number of queues, among which connections are spread.
        count: u16,
        /// Handling of packets.
        #[cfg_attr(feature = "serde", serde(default))]
        flags: QueueFlags,
    },
    /// Passes the packet to a program through a queue whose number is computed.
    QueueFrom {
        /// Register with the number of the queue.
        source: Register,
        /// Handling of packets.
        #[cfg_attr(feature = "serde", serde(default))]
        flags: QueueFlags,
    },
    /// Sends a copy of the packet elsewhere.
    Duplicate {
        /// Register with the address.
        address: Option<Register>,
        /// Register with the index of the device.
        device: Option<Register>,
    },
    /// Forwards the packet through a device, in family `netdev`.
    Forward {
        /// Register with the index of the device.
        device: Register,
        /// Family and register of the next hop.
        address: Option<(Family, Register)>,
    },
    /// Passes the packet to a socket of this host with another address or port.
    Tproxy {
        /// Family of the address.
        family: Family,
        /// Register with the address.
        address: Option<Register>,
        /// Register with the port.
        port: Option<Register>,
    },
    /// Completes TCP handshakes on behalf of a server.
    Synproxy {
        /// Greatest segment size.
        mss: u16,
        /// Window scale.
        window_scale: u8,
        /// TCP options offered to clients.
        #[cfg_attr(feature = "serde", serde(default))]
        flags: SynproxyFlags,
    },
    /// Logs the packet.
    Log {
        /// Text before each line, at most 127 bytes.
        prefix: Option<String>,
        /// Netlink group; `None` for the kernel's own log.
        group: Option<u16>,
        /// Bytes of a packet to copy to the group.
        snaplen: Option<u32>,
        /// Packets to collect before they are sent to the group.
        threshold: Option<u16>,
        /// Level of the kernel's log: 0 to 7, 8 for audit.
        level: Option<u32>,
        /// What its lines have.
        flags: Option<LogFlags>,
    },
    /// Excludes the packet from connection tracking.
    NoTrack,
    /// Adds the connection to a flow table, if both its directions can be offloaded. At hook `forward`, since Linux
    /// 4.16.
    #[doc(alias = "flow_offload")]
    FlowAdd {
        /// Name of the flow table.
        flowtable: Name,
    },
    /// Uses an object, such as a counter.
    ObjectReference {
        /// The object's kind.
        kind: ObjectType,
        /// Its name.
        name: Name,
    },
    /// Uses the object that a map has for a key.
    ObjectMap {
        /// The map.
        set: SetReference,
        /// Register with the key.
        source: Register,
    },
    /// An expression that this crate does not know.
    Other(OtherExpression),
}

/// An expression as bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct OtherExpression {
    /// Name of its kind.
    pub name: String,
    /// Its attributes; `None` for a kind that has none.
    pub data: Option<Vec<u8>>,
}

/// Attribute numbers from `linux/netfilter/nf_tables_compat.h`.
const NFTA_MATCH_NAME: u16 = 1;
const NFTA_MATCH_INFO: u16 = 3;

impl OtherExpression {
    /// An expression of this kind and these attributes.
    pub fn new(name: impl Into<String>, data: Option<Vec<u8>>) -> Self {
        OtherExpression { name: name.into(), data }
    }

    /// Name and bytes of an iptables match (`nft_compat`), with which iptables-nft writes most of its comparisons.
    pub fn iptables_match(&self) -> Option<(&str, &[u8])> {
        let data = self.data.as_deref().filter(|_| self.name == "match")?;
        let of = |kind: u16| RawAttrs::new(data).flatten().find(|attribute| attribute.kind() == kind);
        let name = of(NFTA_MATCH_NAME)?.payload.split(|byte| *byte == 0).next()?;
        Some((std::str::from_utf8(name).ok()?, of(NFTA_MATCH_INFO)?.payload))
    }
}

impl Expression {
    /// A counter at zero.
    pub const COUNTER: Expression = Expression::Counter { packets: 0, bytes: 0 };

    /// The kernel's name of its kind: `"payload"`.
    pub fn name(&self) -> &str {
        match self {
            Expression::Payload { .. } | Expression::PayloadSet { .. } => "payload",
            Expression::Meta { .. } | Expression::MetaSet { .. } => "meta",
            Expression::Ct { .. } | Expression::CtSet { .. } => "ct",
            Expression::Fib { .. } => "fib",
            Expression::Cmp { .. } => "cmp",
            Expression::Bitwise { .. } | Expression::Shift { .. } => "bitwise",
            Expression::Exthdr { .. } | Expression::ExthdrSet { .. } | Expression::ExthdrReset { .. } => "exthdr",
            Expression::Rt { .. } => "rt",
            Expression::Socket { .. } => "socket",
            Expression::Osf { .. } => "osf",
            Expression::Xfrm { .. } => "xfrm",
            Expression::Quota { .. } => "quota",
            Expression::ConnectionLimit { .. } => "connlimit",
            Expression::Queue { .. } | Expression::QueueFrom { .. } => "queue",
            Expression::Duplicate { .. } => "dup",
            Expression::Forward { .. } => "fwd",
            Expression::Tproxy { .. } => "tproxy",
            Expression::Synproxy { .. } => "synproxy",
            Expression::ByteOrder { .. } => "byteorder",
            Expression::Range { .. } => "range",
            Expression::Lookup { .. } => "lookup",
            Expression::Immediate { .. } | Expression::Verdict(_) => "immediate",
            Expression::Nat { .. } => "nat",
            Expression::Masquerade { .. } => "masq",
            Expression::Redirect { .. } => "redir",
            Expression::Reject(_) => "reject",
            Expression::Numgen { .. } => "numgen",
            Expression::Hash { .. } | Expression::SymmetricHash { .. } => "hash",
            Expression::DynSet { .. } => "dynset",
            Expression::Counter { .. } => "counter",
            Expression::Limit { .. } => "limit",
            Expression::Log { .. } => "log",
            Expression::NoTrack => "notrack",
            Expression::FlowAdd { .. } => "flow_offload",
            Expression::ObjectReference { .. } | Expression::ObjectMap { .. } => "objref",
            Expression::Other(other) => &other.name,
        }
    }

    /// The chain to which it jumps or goes.
    pub(crate) fn jumps_to(&self) -> Option<&Name> {
        match self {
            Expression::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => Some(chain),
            _ => None,
        }
    }

    /// Calls `each` for every set to which it refers.
    pub(crate) fn for_each_set(&mut self, each: &mut impl FnMut(&mut SetReference)) {
        match self {
            Expression::Lookup { set, .. } | Expression::ObjectMap { set, .. } => each(set),
            Expression::DynSet { set, expressions, .. } => {
                each(set);
                for expression in expressions {
                    expression.for_each_set(each);
                }
            }
            _ => {}
        }
    }
}

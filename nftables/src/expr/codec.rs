//! Encodes expressions as attributes.

use std::time::Duration;

use netlink_batch::{Be16, Be32, Be64, Encoder, NLA_F_NESTED, NulStr};

use super::{Expression, ExthdrOp, QueueFlags, Register, RegisterRange, Reject, SetReference};
use crate::attrs::{
    BitwiseAttr, ByteorderAttr, CmpAttr, ConnlimitAttr, CounterAttr, CtAttr, DataAttr, DupAttr, DynsetAttr, ExprAttr,
    ExthdrAttr, FibAttr, FlowAttr, FwdAttr, HashAttr, ImmediateAttr, LimitAttr, ListAttr, LogAttr, LookupAttr,
    MasqAttr, MetaAttr, NatAttr, NgAttr, ObjrefAttr, OsfAttr, PayloadAttr, QueueAttr, QuotaAttr, RangeAttr, RedirAttr,
    RejectAttr, RtAttr, SocketAttr, SynproxyAttr, TproxyAttr, VerdictAttr, XfrmAttr,
};
use crate::model::{Name, Value, Verdict};
use crate::uapi;

fn put_u32(out: &mut Encoder, kind: u16, value: u32) {
    out.attr(kind, &Be32(value));
}

fn put_register(out: &mut Encoder, kind: u16, register: Register) {
    put_u32(out, kind, register.to_wire());
}

fn put_optional_register(out: &mut Encoder, kind: u16, register: Option<Register>) {
    if let Some(register) = register {
        put_register(out, kind, register);
    }
}

fn put_name(out: &mut Encoder, kind: u16, name: &Name) {
    out.attr(kind, &NulStr::from(name.as_str()));
}

/// A value as `NFTA_DATA_VALUE`.
///
/// Elements consist of these, so both headers are written at once instead of patched afterwards.
#[inline]
pub(crate) fn put_data(out: &mut Encoder, kind: u16, value: &Value) {
    let bytes = value.as_bytes();
    // At most 64.
    let length = u16::try_from(bytes.len()).unwrap_or_default();
    out.bytes(&attr_header(length.next_multiple_of(4).saturating_add(8), kind | NLA_F_NESTED));
    out.bytes(&attr_header(length.saturating_add(4), DataAttr::VALUE));
    out.bytes(bytes);
    out.bytes(match length % 4 {
        1 => &[0; 3],
        2 => &[0; 2],
        3 => &[0; 1],
        _ => &[],
    });
}

fn attr_header(length: u16, kind: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (length.to_ne_bytes(), kind.to_ne_bytes());
    [a, b, c, d]
}

/// A verdict as `NFTA_DATA_VERDICT`.
pub(crate) fn put_verdict(out: &mut Encoder, kind: u16, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Continue => (uapi::NFT_CONTINUE, None),
        Verdict::Return => (uapi::NFT_RETURN, None),
        Verdict::Jump(chain) => (uapi::NFT_JUMP, Some(chain)),
        Verdict::Goto(chain) => (uapi::NFT_GOTO, Some(chain)),
        Verdict::Other(code) => (*code, None),
    };
    out.nest(kind, |out| {
        out.nest(DataAttr::VERDICT, |out| {
            out.attr(VerdictAttr::CODE, &Be32(code.cast_unsigned()));
            if let Some(chain) = chain {
                put_name(out, VerdictAttr::CHAIN, chain);
            }
        });
    });
}

/// Duration in milliseconds, the kernel's unit here.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(crate) fn put_expression_list(out: &mut Encoder, kind: u16, expressions: &[Expression]) {
    out.nest(kind, |out| {
        for expression in expressions {
            put_one(out, ListAttr::ELEM, expression);
        }
    });
}

/// One expression, inside an attribute of this kind.
pub(crate) fn put_one(out: &mut Encoder, kind: u16, expression: &Expression) {
    out.nest(kind, |out| {
        out.attr(ExprAttr::NAME, &NulStr::from(expression.name()));
        match expression {
            Expression::NoTrack => {}
            // Unchanged: the inner attributes keep their flags.
            Expression::Other(other) => {
                if let Some(data) = &other.data {
                    out.nest(ExprAttr::DATA, |out| out.bytes(data));
                }
            }
            known => out.nest(ExprAttr::DATA, |out| put_fields(out, known)),
        }
    });
}

fn put_set(out: &mut Encoder, name: u16, id: u16, set: &SetReference) {
    put_name(out, name, &set.name);
    if let Some(number) = set.id {
        put_u32(out, id, number);
    }
}

fn put_range(out: &mut Encoder, first: u16, last: u16, range: Option<&RegisterRange>) {
    if let Some(range) = range {
        put_register(out, first, range.first);
        put_register(out, last, range.last);
    }
}

/// The kind of an option or extension header, and the bytes to read of it.
fn put_option(out: &mut Encoder, op: ExthdrOp, kind: u8, bytes: Option<(u32, u32)>) {
    out.attr(ExthdrAttr::TYPE, &kind);
    if let Some((offset, length)) = bytes {
        put_u32(out, ExthdrAttr::OFFSET, offset);
        put_u32(out, ExthdrAttr::LEN, length);
    }
    put_u32(out, ExthdrAttr::OP, op.number());
}

fn put_queue_flags(out: &mut Encoder, flags: QueueFlags) {
    // Only two of sixteen bits are defined.
    out.attr(QueueAttr::FLAGS, &Be16(u16::try_from(flags.bits()).unwrap_or(u16::MAX)));
}

/// The attributes of an expression; this part handles those that read or write a packet.
pub(crate) fn put_fields(out: &mut Encoder, expression: &Expression) {
    match expression {
        Expression::Payload { base, offset, length, register } => {
            put_register(out, PayloadAttr::DREG, *register);
            put_u32(out, PayloadAttr::BASE, base.number());
            put_u32(out, PayloadAttr::OFFSET, *offset);
            put_u32(out, PayloadAttr::LEN, *length);
        }
        Expression::PayloadSet { base, offset, length, source, checksum, checksum_offset, checksum_flags } => {
            put_register(out, PayloadAttr::SREG, *source);
            put_u32(out, PayloadAttr::BASE, base.number());
            put_u32(out, PayloadAttr::OFFSET, *offset);
            put_u32(out, PayloadAttr::LEN, *length);
            put_u32(out, PayloadAttr::CSUM_TYPE, *checksum);
            put_u32(out, PayloadAttr::CSUM_OFFSET, *checksum_offset);
            put_u32(out, PayloadAttr::CSUM_FLAGS, *checksum_flags);
        }
        Expression::Meta { key, register } => {
            put_u32(out, MetaAttr::KEY, key.number());
            put_register(out, MetaAttr::DREG, *register);
        }
        Expression::MetaSet { key, source } => {
            put_u32(out, MetaAttr::KEY, key.number());
            put_register(out, MetaAttr::SREG, *source);
        }
        Expression::Ct { key, direction, register } => {
            put_u32(out, CtAttr::KEY, key.number());
            put_register(out, CtAttr::DREG, *register);
            if let Some(direction) = direction {
                out.attr(CtAttr::DIRECTION, &direction.number());
            }
        }
        Expression::CtSet { key, direction, source } => {
            put_u32(out, CtAttr::KEY, key.number());
            if let Some(direction) = direction {
                out.attr(CtAttr::DIRECTION, &direction.number());
            }
            put_register(out, CtAttr::SREG, *source);
        }
        Expression::Fib { result, flags, register } => {
            put_register(out, FibAttr::DREG, *register);
            put_u32(out, FibAttr::RESULT, result.number());
            put_u32(out, FibAttr::FLAGS, flags.bits());
        }
        Expression::Exthdr { op, kind, offset, length, present, register } => {
            put_register(out, ExthdrAttr::DREG, *register);
            put_option(out, *op, *kind, Some((*offset, *length)));
            put_u32(out, ExthdrAttr::FLAGS, if *present { uapi::NFT_EXTHDR_F_PRESENT } else { 0 });
        }
        // The kernel reports flags for these but refuses them in requests.
        Expression::ExthdrSet { op, kind, offset, length, source } => {
            put_register(out, ExthdrAttr::SREG, *source);
            put_option(out, *op, *kind, Some((*offset, *length)));
        }
        Expression::ExthdrReset { op, kind } => put_option(out, *op, *kind, None),
        Expression::Rt { key, register } => {
            put_u32(out, RtAttr::KEY, key.number());
            put_register(out, RtAttr::DREG, *register);
        }
        Expression::Socket { key, level, register } => {
            put_u32(out, SocketAttr::KEY, key.number());
            put_register(out, SocketAttr::DREG, *register);
            if let Some(level) = level {
                put_u32(out, SocketAttr::LEVEL, *level);
            }
        }
        Expression::Osf { ttl, version, register } => {
            put_register(out, OsfAttr::DREG, *register);
            out.attr(OsfAttr::TTL, ttl);
            // The kernel reports 0 but refuses it in requests.
            if *version {
                put_u32(out, OsfAttr::FLAGS, uapi::NFT_OSF_F_VERSION);
            }
        }
        Expression::Xfrm { key, outgoing, index, register } => {
            put_register(out, XfrmAttr::DREG, *register);
            put_u32(out, XfrmAttr::KEY, key.number());
            out.attr(XfrmAttr::DIR, &u8::from(*outgoing));
            put_u32(out, XfrmAttr::SPNUM, *index);
        }
        other => put_computation(out, other),
    }
}

fn put_computation(out: &mut Encoder, expression: &Expression) {
    match expression {
        Expression::Cmp { register, op, value } => {
            put_register(out, CmpAttr::SREG, *register);
            put_u32(out, CmpAttr::OP, op.number());
            put_data(out, CmpAttr::DATA, value);
        }
        Expression::Bitwise { source, register, length, mask, xor } => {
            put_register(out, BitwiseAttr::SREG, *source);
            put_register(out, BitwiseAttr::DREG, *register);
            put_u32(out, BitwiseAttr::OP, 0);
            put_u32(out, BitwiseAttr::LEN, *length);
            put_data(out, BitwiseAttr::MASK, mask);
            put_data(out, BitwiseAttr::XOR, xor);
        }
        Expression::Shift { source, register, length, op, bits } => {
            put_register(out, BitwiseAttr::SREG, *source);
            put_register(out, BitwiseAttr::DREG, *register);
            put_u32(out, BitwiseAttr::OP, op.number());
            put_u32(out, BitwiseAttr::LEN, *length);
            put_data(out, BitwiseAttr::DATA, &Value::mark(*bits));
        }
        Expression::ByteOrder { source, register, op, length, size } => {
            put_register(out, ByteorderAttr::SREG, *source);
            put_register(out, ByteorderAttr::DREG, *register);
            put_u32(out, ByteorderAttr::OP, op.number());
            put_u32(out, ByteorderAttr::LEN, *length);
            put_u32(out, ByteorderAttr::SIZE, *size);
        }
        Expression::Range { register, inverted, from, to } => {
            put_register(out, RangeAttr::SREG, *register);
            put_u32(out, RangeAttr::OP, u32::from(*inverted));
            put_data(out, RangeAttr::FROM_DATA, from);
            put_data(out, RangeAttr::TO_DATA, to);
        }
        Expression::Lookup { set, source, register, inverted } => {
            put_register(out, LookupAttr::SREG, *source);
            put_optional_register(out, LookupAttr::DREG, *register);
            put_set(out, LookupAttr::SET, LookupAttr::SET_ID, set);
            if *inverted {
                put_u32(out, LookupAttr::FLAGS, uapi::NFT_LOOKUP_F_INV);
            }
        }
        Expression::Immediate { register, value } => {
            put_register(out, ImmediateAttr::DREG, *register);
            put_data(out, ImmediateAttr::DATA, value);
        }
        Expression::Verdict(verdict) => {
            put_register(out, ImmediateAttr::DREG, Register::VERDICT);
            put_verdict(out, ImmediateAttr::DATA, verdict);
        }
        Expression::Numgen { kind, modulus, offset, register } => {
            put_register(out, NgAttr::DREG, *register);
            put_u32(out, NgAttr::MODULUS, *modulus);
            put_u32(out, NgAttr::TYPE, kind.number());
            put_u32(out, NgAttr::OFFSET, *offset);
        }
        Expression::Hash { source, length, modulus, seed, offset, register } => {
            put_register(out, HashAttr::SREG, *source);
            put_register(out, HashAttr::DREG, *register);
            put_u32(out, HashAttr::LEN, *length);
            put_u32(out, HashAttr::MODULUS, *modulus);
            if let Some(seed) = seed {
                put_u32(out, HashAttr::SEED, *seed);
            }
            if *offset != 0 {
                put_u32(out, HashAttr::OFFSET, *offset);
            }
            put_u32(out, HashAttr::TYPE, 0);
        }
        Expression::SymmetricHash { modulus, offset, register } => {
            put_register(out, HashAttr::DREG, *register);
            put_u32(out, HashAttr::MODULUS, *modulus);
            if *offset != 0 {
                put_u32(out, HashAttr::OFFSET, *offset);
            }
            put_u32(out, HashAttr::TYPE, 1);
        }
        other => put_statement(out, other),
    }
}

/// Expressions that act on the packet.
fn put_statement(out: &mut Encoder, expression: &Expression) {
    match expression {
        Expression::Nat { kind, family, address, port, flags } => {
            put_u32(out, NatAttr::TYPE, kind.number());
            put_u32(out, NatAttr::FAMILY, u32::from(family.number()));
            put_range(out, NatAttr::REG_ADDR_MIN, NatAttr::REG_ADDR_MAX, address.as_ref());
            put_range(out, NatAttr::REG_PROTO_MIN, NatAttr::REG_PROTO_MAX, port.as_ref());
            if !flags.is_empty() {
                put_u32(out, NatAttr::FLAGS, flags.bits());
            }
        }
        Expression::Masquerade { port, flags } => {
            if !flags.is_empty() {
                put_u32(out, MasqAttr::FLAGS, flags.bits());
            }
            put_range(out, MasqAttr::REG_PROTO_MIN, MasqAttr::REG_PROTO_MAX, port.as_ref());
        }
        Expression::Redirect { port, flags } => {
            put_range(out, RedirAttr::REG_PROTO_MIN, RedirAttr::REG_PROTO_MAX, port.as_ref());
            if !flags.is_empty() {
                put_u32(out, RedirAttr::FLAGS, flags.bits());
            }
        }
        Expression::Reject(reject) => {
            let (kind, code) = match reject {
                Reject::Icmp(code) => (0, *code),
                Reject::TcpReset => (1, 0),
                Reject::Unreachable(code) => (2, code.number()),
            };
            put_u32(out, RejectAttr::TYPE, kind);
            if *reject != Reject::TcpReset {
                out.attr(RejectAttr::ICMP_CODE, &code);
            }
        }
        Expression::Queue { first, count, flags } => {
            out.attr(QueueAttr::NUM, &Be16(*first));
            out.attr(QueueAttr::TOTAL, &Be16(*count));
            put_queue_flags(out, *flags);
        }
        Expression::QueueFrom { source, flags } => {
            put_register(out, QueueAttr::SREG_QNUM, *source);
            put_queue_flags(out, *flags);
        }
        Expression::Duplicate { address, device } => {
            put_optional_register(out, DupAttr::SREG_ADDR, *address);
            put_optional_register(out, DupAttr::SREG_DEV, *device);
        }
        Expression::Forward { device, address } => {
            put_register(out, FwdAttr::SREG_DEV, *device);
            if let Some((family, register)) = address {
                put_register(out, FwdAttr::SREG_ADDR, *register);
                put_u32(out, FwdAttr::NFPROTO, u32::from(family.number()));
            }
        }
        Expression::Tproxy { family, address, port } => {
            put_u32(out, TproxyAttr::FAMILY, u32::from(family.number()));
            put_optional_register(out, TproxyAttr::REG_ADDR, *address);
            put_optional_register(out, TproxyAttr::REG_PORT, *port);
        }
        Expression::Synproxy { mss, window_scale, flags } => {
            out.attr(SynproxyAttr::MSS, &Be16(*mss));
            out.attr(SynproxyAttr::WSCALE, window_scale);
            put_u32(out, SynproxyAttr::FLAGS, flags.bits());
        }
        Expression::Log { prefix, group, snaplen, threshold, level, flags } => {
            if let Some(prefix) = prefix {
                out.attr(LogAttr::PREFIX, &NulStr::from(prefix.as_str()));
            }
            if let Some(group) = group {
                out.attr(LogAttr::GROUP, &Be16(*group));
            }
            if let Some(snaplen) = snaplen {
                put_u32(out, LogAttr::SNAPLEN, *snaplen);
            }
            if let Some(threshold) = threshold {
                out.attr(LogAttr::QTHRESHOLD, &Be16(*threshold));
            }
            if let Some(level) = level {
                put_u32(out, LogAttr::LEVEL, *level);
            }
            if let Some(flags) = flags {
                put_u32(out, LogAttr::FLAGS, flags.bits());
            }
        }
        Expression::FlowAdd { flowtable } => put_name(out, FlowAttr::TABLE_NAME, flowtable),
        Expression::ObjectReference { kind, name } => {
            put_u32(out, ObjrefAttr::IMM_TYPE, kind.number());
            put_name(out, ObjrefAttr::IMM_NAME, name);
        }
        Expression::ObjectMap { set, source } => {
            put_register(out, ObjrefAttr::SET_SREG, *source);
            put_set(out, ObjrefAttr::SET_NAME, ObjrefAttr::SET_ID, set);
        }
        other => put_stateful(out, other),
    }
}

/// Expressions that count or keep elements.
fn put_stateful(out: &mut Encoder, expression: &Expression) {
    match expression {
        Expression::Counter { packets, bytes } => {
            out.attr(CounterAttr::BYTES, &Be64(*bytes));
            out.attr(CounterAttr::PACKETS, &Be64(*packets));
        }
        Expression::Limit { rate, unit, burst, bytes, inverted } => {
            out.attr(LimitAttr::RATE, &Be64(*rate));
            out.attr(LimitAttr::UNIT, &Be64(unit.seconds()));
            put_u32(out, LimitAttr::BURST, *burst);
            put_u32(out, LimitAttr::TYPE, u32::from(*bytes));
            put_u32(out, LimitAttr::FLAGS, u32::from(*inverted));
        }
        Expression::Quota { bytes, consumed, inverted } => {
            out.attr(QuotaAttr::BYTES, &Be64(*bytes));
            out.attr(QuotaAttr::CONSUMED, &Be64(*consumed));
            put_u32(out, QuotaAttr::FLAGS, if *inverted { uapi::NFT_QUOTA_F_INV } else { 0 });
        }
        Expression::ConnectionLimit { count, inverted } => {
            put_u32(out, ConnlimitAttr::COUNT, *count);
            put_u32(out, ConnlimitAttr::FLAGS, if *inverted { uapi::NFT_CONNLIMIT_F_INV } else { 0 });
        }
        Expression::DynSet { set, op, key, data, timeout, inverted, expressions } => {
            put_register(out, DynsetAttr::SREG_KEY, *key);
            if let Some(data) = data {
                put_register(out, DynsetAttr::SREG_DATA, *data);
            }
            put_u32(out, DynsetAttr::OP, op.number());
            put_set(out, DynsetAttr::SET_NAME, DynsetAttr::SET_ID, set);
            if let Some(timeout) = timeout {
                out.attr(DynsetAttr::TIMEOUT, &Be64(millis(*timeout)));
            }
            let several = if expressions.len() > 1 { uapi::NFT_DYNSET_F_EXPR } else { 0 };
            let flags = several | if *inverted { uapi::NFT_DYNSET_F_INV } else { 0 };
            if flags != 0 {
                put_u32(out, DynsetAttr::FLAGS, flags);
            }
            match expressions.as_slice() {
                [] => {}
                [one] => put_one(out, DynsetAttr::EXPR, one),
                many => put_expression_list(out, DynsetAttr::EXPRESSIONS, many),
            }
        }
        // Without attributes, or kept as bytes.
        _ => {}
    }
}

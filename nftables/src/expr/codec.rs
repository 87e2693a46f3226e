//! Encodes expressions as attributes.

use netlink_batch::{Be32, Be64, Encoder, NulStr};

use super::{Expression, Register, RegisterRange, Reject, SetReference, put_fields};
use crate::attrs::{
    DynsetAttr, ExprAttr, FwdAttr, ImmediateAttr, ListAttr, LookupAttr, MasqAttr, NatAttr, ObjrefAttr, QuotaAttr,
    RedirAttr, RejectAttr,
};
use crate::uapi;
use crate::wire::{Field, millis, put_data, put_expressions, put_name, put_verdict};

fn put_u32(out: &mut Encoder, kind: u16, value: u32) {
    out.attr(kind, &Be32(value));
}

fn put_register(out: &mut Encoder, kind: u16, register: Register) {
    put_u32(out, kind, register.to_wire());
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

/// The attributes of an expression that is not a list of fields.
pub(super) fn put_other(out: &mut Encoder, expression: &Expression) {
    match expression {
        Expression::Lookup { set, source, register, inverted } => {
            put_register(out, LookupAttr::SREG, *source);
            register.put(out, LookupAttr::DREG);
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
        other => put_statement(out, other),
    }
}

/// Expressions that act on the packet, count, or keep elements.
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
        Expression::Forward { device, address } => {
            put_register(out, FwdAttr::SREG_DEV, *device);
            if let Some((family, register)) = address {
                put_register(out, FwdAttr::SREG_ADDR, *register);
                put_u32(out, FwdAttr::NFPROTO, u32::from(family.number()));
            }
        }
        Expression::ObjectReference { kind, name } => {
            put_u32(out, ObjrefAttr::IMM_TYPE, kind.number());
            put_name(out, ObjrefAttr::IMM_NAME, name);
        }
        Expression::ObjectMap { set, source } => {
            put_register(out, ObjrefAttr::SET_SREG, *source);
            put_set(out, ObjrefAttr::SET_NAME, ObjrefAttr::SET_ID, set);
        }
        Expression::Quota { bytes, consumed, inverted } => {
            out.attr(QuotaAttr::BYTES, &Be64(*bytes));
            out.attr(QuotaAttr::CONSUMED, &Be64(*consumed));
            put_u32(out, QuotaAttr::FLAGS, if *inverted { uapi::NFT_QUOTA_F_INV } else { 0 });
        }
        Expression::DynSet { set, op, key, data, timeout, inverted, expressions } => {
            put_register(out, DynsetAttr::SREG_KEY, *key);
            data.put(out, DynsetAttr::SREG_DATA);
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
            put_expressions(out, DynsetAttr::EXPR, DynsetAttr::EXPRESSIONS, expressions);
        }
        // Without attributes, or kept as bytes.
        _ => {}
    }
}

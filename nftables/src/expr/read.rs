//! Decodes expressions from attributes.

use std::time::Duration;

use netlink_batch::{Attrs, Be32, Be64, NulStr, WireError};

use super::{
    DynSetOp, Expression, IcmpCode, NatFlags, NatKind, OtherExpression, Register, RegisterRange, Reject, SetReference,
    get_known,
};
use crate::attrs::{
    DynsetAttr, ExprAttr, FwdAttr, ImmediateAttr, ListAttr, LookupAttr, MasqAttr, NatAttr, ObjrefAttr, QuotaAttr,
    RedirAttr, RejectAttr,
};
use crate::model::{ElementData, Family, ObjectType};
use crate::uapi;
use crate::wire::{get_data, get_name, missing};

pub(crate) fn get_expressions<'a>(list: Attrs<'a, ListAttr<'a>>) -> Result<Vec<Expression>, WireError> {
    let mut expressions = Vec::new();
    for attr in list.iter() {
        if let ListAttr::Elem(expression) = attr? {
            expressions.push(get_expression(expression)?);
        }
    }
    Ok(expressions)
}

pub(crate) fn get_expression<'a>(attrs: Attrs<'a, ExprAttr<'a>>) -> Result<Expression, WireError> {
    let mut name = None;
    let mut data = None;
    for attr in attrs.iter() {
        match attr? {
            ExprAttr::Name(found) => name = Some(found),
            ExprAttr::Data(found) => data = Some(found),
            ExprAttr::Unknown(_) => {}
        }
    }
    let name = name.ok_or_else(|| missing("NFTA_EXPR_NAME"))?;
    if let Some(known) = get_known(name.as_bytes(), data.unwrap_or_default())? {
        return Ok(known);
    }
    Ok(as_bytes(name, data))
}

/// Decodes a nested expression. Only counters and limits are nested. No other nesting is followed, which bounds the
/// depth.
fn get_inner<'a>(attrs: Attrs<'a, ExprAttr<'a>>) -> Result<Expression, WireError> {
    let outer = attrs.iter().find_map(|attr| match attr {
        Ok(ExprAttr::Name(name)) => Some(name.as_bytes() == b"dynset"),
        _ => None,
    });
    if outer == Some(true) {
        let data = attrs.iter().find_map(|attr| if let Ok(ExprAttr::Data(data)) = attr { Some(data) } else { None });
        return Ok(as_bytes(NulStr::from("dynset"), data));
    }
    get_expression(attrs)
}

fn as_bytes(name: NulStr<'_>, data: Option<&[u8]>) -> Expression {
    let name = String::from_utf8_lossy(name.as_bytes()).into_owned();
    Expression::Other(OtherExpression { name, data: data.map(<[u8]>::to_vec) })
}

fn register(number: Option<Be32>) -> Option<Register> {
    Register::from_wire(number?.0)
}

fn range(first: Option<Be32>, last: Option<Be32>) -> Option<RegisterRange> {
    let first = register(first)?;
    Some(RegisterRange { first, last: register(last).unwrap_or(first) })
}

fn set(found: Option<NulStr<'_>>, id: Option<Be32>) -> Option<SetReference> {
    Some(SetReference { name: get_name(found?), id: id.map(|Be32(id)| id) })
}

/// Reads the listed attributes. With any other attribute the whole expression is kept as bytes.
macro_rules! fields {
    ($data:expr, $table:ident { $($variant:ident => $slot:ident),* $(,)? $(; $ignored:ident)? }) => {
        $( let mut $slot = None; )*
        for attr in Attrs::<$table<'_>>::new($data).iter() {
            match attr? {
                $( $table::$variant(found) => $slot = Some(found), )*
                $( $table::$ignored(_) => {} )?
                _ => return Ok(None),
            }
        }
    };
}

/// A part without which the expression is kept as bytes.
macro_rules! need {
    ($part:expr) => {
        match $part {
            Some(part) => part,
            None => return Ok(None),
        }
    };
}

type Known = Result<Option<Expression>, WireError>;

/// Decodes an expression that is not a list of fields.
pub(super) fn get_other(kind: &[u8], data: &[u8]) -> Known {
    match kind {
        b"lookup" => lookup(data),
        b"immediate" => immediate(data),
        b"nat" => nat(data),
        b"masq" => masquerade(data),
        b"redir" => redirect(data),
        b"reject" => reject(data),
        b"dynset" => dynset(data),
        b"objref" => objref(data),
        b"quota" => quota(data),
        b"fwd" => forward(data),
        b"notrack" if data.is_empty() => Ok(Some(Expression::NoTrack)),
        _ => Ok(None),
    }
}

fn lookup(data: &[u8]) -> Known {
    fields!(data, LookupAttr { Set => found, Sreg => from, Dreg => to, SetId => id, Flags => flags });
    let flags = flags.map_or(0, |Be32(flags)| flags);
    if flags & !uapi::NFT_LOOKUP_F_INV != 0 || to.is_some() != register(to).is_some() {
        return Ok(None);
    }
    Ok(Some(Expression::Lookup {
        set: need!(set(found, id)),
        source: need!(register(from)),
        register: register(to),
        inverted: flags != 0,
    }))
}

fn immediate(data: &[u8]) -> Known {
    fields!(data, ImmediateAttr { Dreg => to, Data => constant });
    let to = need!(register(to));
    Ok(match (need!(constant.map(get_data).transpose()?.flatten()), to) {
        (ElementData::Verdict(verdict), Register::VERDICT) => Some(Expression::Verdict(verdict)),
        (ElementData::Value(value), _) => Some(Expression::Immediate { register: to, value }),
        _ => None,
    })
}

fn nat(data: &[u8]) -> Known {
    fields!(data, NatAttr {
        Type => kind, Family => family, RegAddrMin => first, RegAddrMax => last, RegProtoMin => first_port,
        RegProtoMax => last_port, Flags => flags,
    });
    let family = need!(u8::try_from(need!(family).0).ok());
    Ok(Some(Expression::Nat {
        kind: NatKind::from_number(need!(kind).0),
        family: Family::from_number(family),
        address: range(first, last),
        port: range(first_port, last_port),
        flags: nat_flags(flags),
    }))
}

/// The flags, without those that the kernel sets itself. So the rule compares equal to the one that was written.
fn nat_flags(flags: Option<Be32>) -> NatFlags {
    let own = NatFlags::MAP_IPS | NatFlags::PROTO_SPECIFIED;
    NatFlags::from_bits_retain(flags.map_or(0, |Be32(flags)| flags)).difference(own)
}

fn masquerade(data: &[u8]) -> Known {
    fields!(data, MasqAttr { Flags => flags, RegProtoMin => first, RegProtoMax => last });
    Ok(Some(Expression::Masquerade { port: range(first, last), flags: nat_flags(flags) }))
}

fn redirect(data: &[u8]) -> Known {
    fields!(data, RedirAttr { RegProtoMin => first, RegProtoMax => last, Flags => flags });
    Ok(Some(Expression::Redirect { port: range(first, last), flags: nat_flags(flags) }))
}

fn reject(data: &[u8]) -> Known {
    fields!(data, RejectAttr { Type => kind, IcmpCode => code });
    Ok(Some(Expression::Reject(match (kind, code) {
        (Some(Be32(0)), Some(code)) => Reject::Icmp(code),
        (Some(Be32(1)), _) => Reject::TcpReset,
        (Some(Be32(2)), Some(code)) => Reject::Unreachable(need!(IcmpCode::from_number(code))),
        _ => return Ok(None),
    })))
}

fn dynset(data: &[u8]) -> Known {
    fields!(data, DynsetAttr {
        SetName => found, SetId => id, Op => op, SregKey => key, SregData => map_data, Timeout => timeout, Expr => one,
        Flags => flags, Expressions => many; Pad
    });
    let flags = flags.map_or(0, |Be32(flags)| flags);
    if flags & !(uapi::NFT_DYNSET_F_INV | uapi::NFT_DYNSET_F_EXPR) != 0 {
        return Ok(None);
    }
    let expressions = match (one, many) {
        (_, Some(many)) => {
            let mut found = Vec::new();
            for attr in many.iter() {
                if let ListAttr::Elem(expression) = attr? {
                    found.push(get_inner(expression)?);
                }
            }
            found
        }
        (Some(one), None) => vec![get_inner(one)?],
        (None, None) => Vec::new(),
    };
    Ok(Some(Expression::DynSet {
        set: need!(set(found, id)),
        op: DynSetOp::from_number(need!(op).0),
        key: need!(register(key)),
        data: register(map_data),
        // The kernel reports 0 for none.
        timeout: timeout.filter(|Be64(millis)| *millis != 0).map(|Be64(millis)| Duration::from_millis(millis)),
        inverted: flags & uapi::NFT_DYNSET_F_INV != 0,
        expressions,
    }))
}

fn objref(data: &[u8]) -> Known {
    fields!(data, ObjrefAttr {
        ImmType => kind, ImmName => found, SetSreg => from, SetName => map, SetId => id,
    });
    if let (Some(Be32(kind)), Some(object)) = (kind, found.map(get_name)) {
        return Ok(Some(Expression::ObjectReference { kind: ObjectType::from_number(kind), name: object }));
    }
    Ok(Some(Expression::ObjectMap { set: need!(set(map, id)), source: need!(register(from)) }))
}

fn quota(data: &[u8]) -> Known {
    fields!(data, QuotaAttr { Bytes => bytes, Flags => flags, Consumed => consumed; Pad });
    // The numbers already tell whether it is used up, and the kernel refuses this flag.
    let flags = flags.map_or(0, |Be32(flags)| flags) & !uapi::NFT_QUOTA_F_DEPLETED;
    if flags & !uapi::NFT_QUOTA_F_INV != 0 {
        return Ok(None);
    }
    Ok(Some(Expression::Quota {
        bytes: need!(bytes).0,
        consumed: consumed.map_or(0, |Be64(consumed)| consumed),
        inverted: flags != 0,
    }))
}

fn forward(data: &[u8]) -> Known {
    fields!(data, FwdAttr { SregDev => device, SregAddr => address, Nfproto => family });
    let address = match (family, address) {
        (None, None) => None,
        (Some(Be32(family)), Some(address)) => {
            Some((Family::from_number(need!(u8::try_from(family).ok())), need!(register(Some(address)))))
        }
        _ => return Ok(None),
    };
    Ok(Some(Expression::Forward { device: need!(register(device)), address }))
}

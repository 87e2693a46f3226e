//! Decodes expressions from attributes.

use std::time::Duration;

use netlink_batch::{Attrs, Be16, Be32, Be64, NulStr, WireError};

use super::{
    ByteOrderOp, CmpOp, CtKey, Direction, DynSetOp, Expression, ExthdrOp, FibFlags, FibResult, HeaderBase, IcmpCode,
    LimitUnit, LogFlags, MetaKey, NatFlags, NatKind, NumgenKind, OtherExpression, QueueFlags, Register, RegisterRange,
    Reject, RtKey, SetReference, ShiftOp, SocketKey, SynproxyFlags, XfrmKey,
};
use crate::attrs::{
    BitwiseAttr, ByteorderAttr, CmpAttr, ConnlimitAttr, CounterAttr, CtAttr, DataAttr, DupAttr, DynsetAttr, ExprAttr,
    ExthdrAttr, FibAttr, FlowAttr, FwdAttr, HashAttr, ImmediateAttr, LimitAttr, ListAttr, LogAttr, LookupAttr,
    MasqAttr, MetaAttr, NatAttr, NgAttr, ObjrefAttr, OsfAttr, PayloadAttr, QueueAttr, QuotaAttr, RangeAttr, RedirAttr,
    RejectAttr, RtAttr, SocketAttr, SynproxyAttr, TproxyAttr, VerdictAttr, XfrmAttr,
};
use crate::model::{ElementData, Family, Name, ObjectType, Value, Verdict};
use crate::uapi;

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
    let name = name.ok_or_else(|| WireError::Missing { attribute: "NFTA_EXPR_NAME".to_owned() })?;
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

/// A value or verdict; `None` for anything else.
pub(crate) fn get_data<'a>(attrs: Attrs<'a, DataAttr<'a>>) -> Result<Option<ElementData>, WireError> {
    for attr in attrs.iter() {
        match attr? {
            DataAttr::Value(bytes) => return Ok(Value::new(bytes).ok().map(ElementData::Value)),
            DataAttr::Verdict(verdict) => return Ok(get_verdict(verdict)?.map(ElementData::Verdict)),
            DataAttr::Unknown(_) => {}
        }
    }
    Ok(None)
}

pub(crate) fn get_verdict<'a>(attrs: Attrs<'a, VerdictAttr<'a>>) -> Result<Option<Verdict>, WireError> {
    let mut code = None;
    let mut chain = None;
    for attr in attrs.iter() {
        match attr? {
            VerdictAttr::Code(Be32(found)) => code = Some(found.cast_signed()),
            VerdictAttr::Chain(found) => chain = Some(Name::from_kernel(found.as_bytes())),
            VerdictAttr::ChainId(_) | VerdictAttr::Unknown(_) => {}
        }
    }
    Ok(Some(match (code, chain) {
        (Some(0), None) => Verdict::Drop,
        (Some(1), None) => Verdict::Accept,
        (Some(uapi::NFT_CONTINUE), None) => Verdict::Continue,
        (Some(uapi::NFT_RETURN), None) => Verdict::Return,
        (Some(uapi::NFT_JUMP), Some(chain)) => Verdict::Jump(chain),
        (Some(uapi::NFT_GOTO), Some(chain)) => Verdict::Goto(chain),
        (Some(other), None) => Verdict::Other(other),
        _ => return Ok(None),
    }))
}

fn value<'a>(attrs: Option<Attrs<'a, DataAttr<'a>>>) -> Result<Option<Value>, WireError> {
    Ok(match attrs.map(get_data).transpose()?.flatten() {
        Some(ElementData::Value(value)) => Some(value),
        _ => None,
    })
}

fn register(number: Option<Be32>) -> Option<Register> {
    Register::from_wire(number?.0)
}

fn range(first: Option<Be32>, last: Option<Be32>) -> Option<RegisterRange> {
    let first = register(first)?;
    Some(RegisterRange { first, last: register(last).unwrap_or(first) })
}

fn name(text: Option<NulStr<'_>>) -> Option<Name> {
    text.map(|text| Name::from_kernel(text.as_bytes()))
}

fn set(found: Option<NulStr<'_>>, id: Option<Be32>) -> Option<SetReference> {
    Some(SetReference { name: name(found)?, id: id.map(|Be32(id)| id) })
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

/// Decodes an expression of which every part is known.
pub(crate) fn get_known(kind: &[u8], data: &[u8]) -> Known {
    match kind {
        b"payload" => payload(data),
        b"meta" => meta(data),
        b"ct" => ct(data),
        b"fib" => fib(data),
        b"cmp" => cmp(data),
        b"bitwise" => bitwise(data),
        b"byteorder" => byte_order(data),
        b"range" => in_range(data),
        b"lookup" => lookup(data),
        b"immediate" => immediate(data),
        b"nat" => nat(data),
        b"masq" => masquerade(data),
        b"redir" => redirect(data),
        b"reject" => reject(data),
        b"numgen" => numgen(data),
        b"hash" => hash(data),
        b"dynset" => dynset(data),
        b"counter" => counter(data),
        b"limit" => limit(data),
        b"log" => log(data),
        b"objref" => objref(data),
        b"exthdr" => exthdr(data),
        b"rt" => rt(data),
        b"socket" => socket(data),
        b"osf" => osf(data),
        b"xfrm" => xfrm(data),
        b"quota" => quota(data),
        b"connlimit" => connection_limit(data),
        b"queue" => queue(data),
        b"dup" => duplicate(data),
        b"fwd" => forward(data),
        b"tproxy" => tproxy(data),
        b"synproxy" => synproxy(data),
        b"flow_offload" => flow_add(data),
        b"notrack" if data.is_empty() => Ok(Some(Expression::NoTrack)),
        _ => Ok(None),
    }
}

fn payload(data: &[u8]) -> Known {
    fields!(data, PayloadAttr {
        Dreg => to, Base => base, Offset => offset, Len => length, Sreg => from, CsumType => checksum,
        CsumOffset => checksum_offset, CsumFlags => checksum_flags,
    });
    let base = HeaderBase::from_number(need!(base).0);
    let (Be32(offset), Be32(length)) = (need!(offset), need!(length));
    Ok(Some(if let Some(source) = register(from) {
        let number = |part: Option<Be32>| part.map_or(0, |Be32(number)| number);
        Expression::PayloadSet {
            base,
            offset,
            length,
            source,
            checksum: number(checksum),
            checksum_offset: number(checksum_offset),
            checksum_flags: number(checksum_flags),
        }
    } else {
        Expression::Payload { base, offset, length, register: need!(register(to)) }
    }))
}

fn meta(data: &[u8]) -> Known {
    fields!(data, MetaAttr { Dreg => to, Key => key, Sreg => from });
    let key = MetaKey::from_number(need!(key).0);
    Ok(Some(match register(from) {
        Some(source) => Expression::MetaSet { key, source },
        None => Expression::Meta { key, register: need!(register(to)) },
    }))
}

fn ct(data: &[u8]) -> Known {
    fields!(data, CtAttr { Dreg => to, Key => key, Direction => direction, Sreg => from });
    let key = CtKey::from_number(need!(key).0);
    let direction = match direction {
        None => None,
        Some(0) => Some(Direction::Original),
        Some(1) => Some(Direction::Reply),
        Some(_) => return Ok(None),
    };
    Ok(Some(match register(from) {
        Some(source) => Expression::CtSet { key, direction, source },
        None => Expression::Ct { key, direction, register: need!(register(to)) },
    }))
}

fn fib(data: &[u8]) -> Known {
    fields!(data, FibAttr { Dreg => to, Result => result, Flags => flags });
    Ok(Some(Expression::Fib {
        result: FibResult::from_number(need!(result).0),
        flags: FibFlags::from_bits_retain(flags.map_or(0, |Be32(flags)| flags)),
        register: need!(register(to)),
    }))
}

fn cmp(data: &[u8]) -> Known {
    fields!(data, CmpAttr { Sreg => from, Op => op, Data => constant });
    Ok(Some(Expression::Cmp {
        register: need!(register(from)),
        op: CmpOp::from_number(need!(op).0),
        value: need!(value(constant)?),
    }))
}

fn bitwise(data: &[u8]) -> Known {
    fields!(data, BitwiseAttr {
        Sreg => from, Dreg => to, Len => length, Mask => mask, Xor => xor, Op => op, Data => shifted,
    });
    if let Some(op @ (ShiftOp::Left | ShiftOp::Right)) = op.map(|Be32(op)| ShiftOp::from_number(op)) {
        let bits = need!(value(shifted)?);
        return Ok(Some(Expression::Shift {
            source: need!(register(from)),
            register: need!(register(to)),
            length: need!(length).0,
            op,
            bits: u32::from_ne_bytes(need!(bits.as_bytes().try_into().ok())),
        }));
    }
    if op.is_some_and(|Be32(op)| op != 0) || shifted.is_some() {
        return Ok(None);
    }
    Ok(Some(Expression::Bitwise {
        source: need!(register(from)),
        register: need!(register(to)),
        length: need!(length).0,
        mask: need!(value(mask)?),
        xor: need!(value(xor)?),
    }))
}

fn byte_order(data: &[u8]) -> Known {
    fields!(data, ByteorderAttr { Sreg => from, Dreg => to, Op => op, Len => length, Size => size });
    Ok(Some(Expression::ByteOrder {
        source: need!(register(from)),
        register: need!(register(to)),
        op: ByteOrderOp::from_number(need!(op).0),
        length: need!(length).0,
        size: need!(size).0,
    }))
}

fn in_range(data: &[u8]) -> Known {
    fields!(data, RangeAttr { Sreg => source, Op => op, FromData => from, ToData => to });
    let inverted = match op {
        None | Some(Be32(0)) => false,
        Some(Be32(1)) => true,
        Some(_) => return Ok(None),
    };
    Ok(Some(Expression::Range {
        register: need!(register(source)),
        inverted,
        from: need!(value(from)?),
        to: need!(value(to)?),
    }))
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

fn numgen(data: &[u8]) -> Known {
    fields!(data, NgAttr { Dreg => to, Modulus => modulus, Type => kind, Offset => offset });
    Ok(Some(Expression::Numgen {
        kind: NumgenKind::from_number(need!(kind).0),
        modulus: need!(modulus).0,
        offset: offset.map_or(0, |Be32(offset)| offset),
        register: need!(register(to)),
    }))
}

fn hash(data: &[u8]) -> Known {
    fields!(data, HashAttr {
        Sreg => from, Dreg => to, Len => length, Modulus => modulus, Seed => seed, Offset => offset, Type => kind,
    });
    let (modulus, register_to) = (need!(modulus).0, need!(register(to)));
    let offset = offset.map_or(0, |Be32(offset)| offset);
    Ok(match kind {
        None | Some(Be32(0)) => Some(Expression::Hash {
            source: need!(register(from)),
            length: need!(length).0,
            modulus,
            seed: seed.map(|Be32(seed)| seed),
            offset,
            register: register_to,
        }),
        Some(Be32(1)) => Some(Expression::SymmetricHash { modulus, offset, register: register_to }),
        Some(_) => None,
    })
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

fn counter(data: &[u8]) -> Known {
    fields!(data, CounterAttr { Bytes => bytes, Packets => packets; Pad });
    let number = |part: Option<Be64>| part.map_or(0, |Be64(number)| number);
    Ok(Some(Expression::Counter { packets: number(packets), bytes: number(bytes) }))
}

fn limit(data: &[u8]) -> Known {
    fields!(data, LimitAttr {
        Rate => rate, Unit => unit, Burst => burst, Type => kind, Flags => flags; Pad
    });
    let (kind, flags) = (kind.map_or(0, |Be32(kind)| kind), flags.map_or(0, |Be32(flags)| flags));
    if kind > 1 || flags & !uapi::NFT_LIMIT_F_INV != 0 {
        return Ok(None);
    }
    Ok(Some(Expression::Limit {
        rate: need!(rate).0,
        unit: LimitUnit::from_seconds(need!(unit).0),
        burst: burst.map_or(0, |Be32(burst)| burst),
        bytes: kind == 1,
        inverted: flags != 0,
    }))
}

fn log(data: &[u8]) -> Known {
    fields!(data, LogAttr {
        Group => group, Prefix => prefix, Snaplen => snaplen, Qthreshold => threshold, Level => level, Flags => flags,
    });
    let prefix = match prefix {
        None => None,
        Some(prefix) => Some(need!(prefix.to_str()).to_owned()),
    };
    Ok(Some(Expression::Log {
        prefix,
        group: group.map(|Be16(group)| group),
        snaplen: snaplen.map(|Be32(snaplen)| snaplen),
        threshold: threshold.map(|Be16(threshold)| threshold),
        level: level.map(|Be32(level)| level),
        flags: flags.map(|Be32(flags)| LogFlags::from_bits_retain(flags)),
    }))
}

fn objref(data: &[u8]) -> Known {
    fields!(data, ObjrefAttr {
        ImmType => kind, ImmName => found, SetSreg => from, SetName => map, SetId => id,
    });
    if let (Some(Be32(kind)), Some(object)) = (kind, name(found)) {
        return Ok(Some(Expression::ObjectReference { kind: ObjectType::from_number(kind), name: object }));
    }
    Ok(Some(Expression::ObjectMap { set: need!(set(map, id)), source: need!(register(from)) }))
}

fn exthdr(data: &[u8]) -> Known {
    fields!(data, ExthdrAttr {
        Dreg => to, Type => kind, Offset => offset, Len => length, Flags => flags, Op => op, Sreg => from,
    });
    let (op, kind) = (ExthdrOp::from_number(op.map_or(0, |Be32(op)| op)), need!(kind));
    let flags = flags.map_or(0, |Be32(flags)| flags);
    if flags & !uapi::NFT_EXTHDR_F_PRESENT != 0 {
        return Ok(None);
    }
    let number = |part: Option<Be32>| part.map_or(0, |Be32(number)| number);
    let (offset, length) = (number(offset), number(length));
    Ok(Some(match (to, from) {
        (Some(to), None) => {
            Expression::Exthdr { op, kind, offset, length, present: flags != 0, register: need!(register(Some(to))) }
        }
        (None, Some(from)) if flags == 0 => {
            Expression::ExthdrSet { op, kind, offset, length, source: need!(register(Some(from))) }
        }
        (None, None) if (offset, length, flags) == (0, 0, 0) => Expression::ExthdrReset { op, kind },
        _ => return Ok(None),
    }))
}

fn rt(data: &[u8]) -> Known {
    fields!(data, RtAttr { Dreg => to, Key => key });
    Ok(Some(Expression::Rt { key: RtKey::from_number(need!(key).0), register: need!(register(to)) }))
}

fn socket(data: &[u8]) -> Known {
    fields!(data, SocketAttr { Key => key, Dreg => to, Level => level });
    Ok(Some(Expression::Socket {
        key: SocketKey::from_number(need!(key).0),
        level: level.map(|Be32(level)| level),
        register: need!(register(to)),
    }))
}

fn osf(data: &[u8]) -> Known {
    fields!(data, OsfAttr { Dreg => to, Ttl => ttl, Flags => flags });
    let flags = flags.map_or(0, |Be32(flags)| flags);
    if flags & !uapi::NFT_OSF_F_VERSION != 0 {
        return Ok(None);
    }
    Ok(Some(Expression::Osf { ttl: ttl.unwrap_or(0), version: flags != 0, register: need!(register(to)) }))
}

fn xfrm(data: &[u8]) -> Known {
    fields!(data, XfrmAttr { Dreg => to, Key => key, Dir => direction, Spnum => index });
    let outgoing = match need!(direction) {
        0 => false,
        1 => true,
        _ => return Ok(None),
    };
    Ok(Some(Expression::Xfrm {
        key: XfrmKey::from_number(need!(key).0),
        outgoing,
        index: index.map_or(0, |Be32(index)| index),
        register: need!(register(to)),
    }))
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

fn connection_limit(data: &[u8]) -> Known {
    fields!(data, ConnlimitAttr { Count => count, Flags => flags });
    let flags = flags.map_or(0, |Be32(flags)| flags);
    if flags & !uapi::NFT_CONNLIMIT_F_INV != 0 {
        return Ok(None);
    }
    Ok(Some(Expression::ConnectionLimit { count: need!(count).0, inverted: flags != 0 }))
}

fn queue(data: &[u8]) -> Known {
    fields!(data, QueueAttr { Num => first, Total => count, Flags => flags, SregQnum => from });
    let flags = QueueFlags::from_bits_retain(flags.map_or(0, |Be16(flags)| u32::from(flags)));
    Ok(Some(match from {
        Some(from) => Expression::QueueFrom { source: need!(register(Some(from))), flags },
        None => Expression::Queue { first: need!(first).0, count: count.map_or(1, |Be16(count)| count), flags },
    }))
}

fn duplicate(data: &[u8]) -> Known {
    fields!(data, DupAttr { SregAddr => address, SregDev => device });
    let (found, device_found) = (register(address), register(device));
    if found.is_some() != address.is_some() || device_found.is_some() != device.is_some() {
        return Ok(None);
    }
    Ok(Some(Expression::Duplicate { address: found, device: device_found }))
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

fn tproxy(data: &[u8]) -> Known {
    fields!(data, TproxyAttr { Family => family, RegAddr => address, RegPort => port });
    let (found, port_found) = (register(address), register(port));
    if found.is_some() != address.is_some() || port_found.is_some() != port.is_some() {
        return Ok(None);
    }
    let family = Family::from_number(need!(u8::try_from(need!(family).0).ok()));
    Ok(Some(Expression::Tproxy { family, address: found, port: port_found }))
}

fn flow_add(data: &[u8]) -> Known {
    fields!(data, FlowAttr { TableName => flowtable });
    Ok(Some(Expression::FlowAdd { flowtable: need!(name(flowtable)) }))
}

fn synproxy(data: &[u8]) -> Known {
    fields!(data, SynproxyAttr { Mss => mss, Wscale => window_scale, Flags => flags });
    let flags = SynproxyFlags::from_bits_retain(flags.map_or(0, |Be32(flags)| flags));
    Ok(Some(Expression::Synproxy {
        mss: mss.map_or(0, |Be16(mss)| mss),
        window_scale: window_scale.unwrap_or(0),
        flags,
    }))
}

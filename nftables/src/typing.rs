//! nft's notes about the operands of a set's keys and data (`typeof`), which it stores in the set's userdata.
//!
//! The numbers are those of nft's expressions, protocols and fields, all in host byte order.

use crate::expr::{CtKey, Direction, HeaderBase, MetaKey, NumgenKind};
use crate::model::{DataType, Field};
use crate::operand::Operand;
use crate::userdata::{items, put};

/// `NFTNL_UDATA_SET_TYPEOF_EXPR`, `NFTNL_UDATA_SET_TYPEOF_DATA`.
const EXPRESSION: u8 = 0;
const DATA: u8 = 1;

// enum expr_types of nft
const VERDICT: u32 = 1;
pub(crate) const PAYLOAD: u32 = 7;
pub(crate) const EXTHDR: u32 = 8;
pub(crate) const OSF: u32 = 11;
pub(crate) const XFRM: u32 = 27;
const META: u32 = 9;
const CT: u32 = 12;
const CONCAT: u32 = 13;
const NUMGEN: u32 = 23;

/// nft's number of TCP.
const TCP: u32 = 8;

/// Part of a set that nft's type notes describe. Ports in a map's data are noted as TCP's: after a match on the
/// transport protocol nft accepts no others, and only compares their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    Key,
    Data,
}

/// Header fields by nft's numbers of protocol and field.
const FIELDS: [(u32, u32, HeaderBase, u32, DataType, u32); 13] = [
    (17, 1, HeaderBase::Link, 0, DataType::ETHER_ADDR, 6),
    (17, 2, HeaderBase::Link, 6, DataType::ETHER_ADDR, 6),
    (17, 3, HeaderBase::Link, 12, DataType::ETHER_TYPE, 2),
    (12, 11, HeaderBase::Network, 12, DataType::IPV4_ADDR, 4),
    (12, 12, HeaderBase::Network, 16, DataType::IPV4_ADDR, 4),
    (12, 9, HeaderBase::Network, 9, DataType::INET_PROTO, 1),
    (13, 8, HeaderBase::Network, 8, DataType::IPV6_ADDR, 16),
    (13, 9, HeaderBase::Network, 24, DataType::IPV6_ADDR, 16),
    (13, 6, HeaderBase::Network, 6, DataType::INET_PROTO, 1),
    (11, 1, HeaderBase::Transport, 0, DataType::INET_SERVICE, 2),
    (11, 2, HeaderBase::Transport, 2, DataType::INET_SERVICE, 2),
    (TCP, 1, HeaderBase::Transport, 0, DataType::INET_SERVICE, 2),
    (TCP, 2, HeaderBase::Transport, 2, DataType::INET_SERVICE, 2),
];

fn put_number(out: &mut Vec<u8>, kind: u8, number: u32) {
    put(out, kind, &number.to_ne_bytes());
}

/// Number and note of one operand; `None` if nft has no note for it.
fn note(operand: &Operand, about: About) -> Option<(u32, Vec<u8>)> {
    let mut out = Vec::new();
    let number = match operand {
        Operand::Payload { base, offset, field } => {
            let found = FIELDS.iter().find(|(protocol, _, of, at, data_type, length)| {
                let tcp = about == About::Data && *base == HeaderBase::Transport;
                (*protocol == TCP) == tcp
                    && (of, at, data_type, length) == (base, offset, &field.data_type, &field.length)
            })?;
            put_number(&mut out, 0, found.0);
            put_number(&mut out, 1, found.1);
            PAYLOAD
        }
        Operand::Meta(key) => {
            put_number(&mut out, 0, key.number());
            META
        }
        Operand::Ct(key, direction) => {
            put_number(&mut out, 0, key.number());
            put_number(&mut out, 1, direction.map_or(u32::MAX, |direction| u32::from(direction.number())));
            CT
        }
        Operand::Numgen { kind, modulus, offset } => {
            put_number(&mut out, 0, kind.number());
            put_number(&mut out, 1, *modulus);
            put_number(&mut out, 2, *offset);
            NUMGEN
        }
        _ => return None,
    };
    Some((number, out))
}

fn framed(number: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_number(&mut out, EXPRESSION, number);
    put(&mut out, DATA, data);
    out
}

/// Encodes operands as nft's notes; `None` if nft has no note for one of them.
pub(crate) fn put_operands(operands: &[Operand], about: About) -> Option<Vec<u8>> {
    if let [one] = operands {
        let (number, data) = note(one, about)?;
        return Some(framed(number, &data));
    }
    let mut all = Vec::new();
    for (place, operand) in (0_u8..).zip(operands) {
        let (number, data) = note(operand, about)?;
        put(&mut all, place, &framed(number, &data));
    }
    let out = framed(CONCAT, &all);
    // `put` omits what is too long for one item.
    (!operands.is_empty() && u8::try_from(out.len()).is_ok()).then_some(out)
}

/// nft's note for the data of a map of verdicts.
pub(crate) fn put_verdict() -> Vec<u8> {
    framed(VERDICT, &[])
}

/// A number in a note.
pub(crate) fn number_of(bytes: &[u8], kind: u8) -> Option<u32> {
    let (_, value) = items(bytes).find(|(found, _)| *found == kind)?;
    value.try_into().ok().map(u32::from_ne_bytes)
}

/// nft's number of an operand, and its note.
pub(crate) fn note_of(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (_, data) = items(bytes).find(|(kind, _)| *kind == DATA)?;
    Some((number_of(bytes, EXPRESSION)?, data))
}

/// The notes about the fields of a key or data, one by one.
pub(crate) fn notes(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    Some(match note_of(bytes)? {
        (CONCAT, fields) => items(fields).map(|(_, field)| field).collect(),
        _ => vec![bytes],
    })
}

pub(crate) fn operand(bytes: &[u8]) -> Option<Operand> {
    let (number, data) = note_of(bytes)?;
    Some(match number {
        PAYLOAD => {
            let wanted = (number_of(data, 0)?, number_of(data, 1)?);
            let found = FIELDS.iter().find(|(protocol, field, ..)| (*protocol, *field) == wanted)?;
            let (_, _, base, offset, data_type, length) = *found;
            Operand::Payload { base, offset, field: Field { data_type, length } }
        }
        META => Operand::Meta(MetaKey::from_number(number_of(data, 0)?)),
        CT => {
            let direction = match number_of(data, 1)? {
                u32::MAX => None,
                0 => Some(Direction::Original),
                _ => Some(Direction::Reply),
            };
            Operand::Ct(CtKey::from_number(number_of(data, 0)?), direction)
        }
        NUMGEN => Operand::Numgen {
            kind: NumgenKind::from_number(number_of(data, 0)?),
            modulus: number_of(data, 1)?,
            offset: number_of(data, 2)?,
        },
        _ => return None,
    })
}

/// Decodes operands from nft's notes; `None` if they would not be written back unchanged.
pub(crate) fn get_operands(bytes: &[u8], about: About) -> Option<Vec<Operand>> {
    let operands = notes(bytes)?.into_iter().map(operand).collect::<Option<Vec<Operand>>>()?;
    (put_operands(&operands, about)? == bytes).then_some(operands)
}

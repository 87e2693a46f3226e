//! What messages about any object consist of: the header, names, values and verdicts.

use std::time::Duration;

use netlink_batch::header::NfGenHeader;
use netlink_batch::{Attrs, Be32, Encoder, NLA_F_NESTED, NulStr, WireError};

use crate::attrs::{DataAttr, GenAttr, VerdictAttr};
use crate::expr::{Expression, put_expression_list, put_one};
use crate::model::{ElementData, Family, Name, TableKey, Value, Verdict};
use crate::uapi;

/// Splits a message into its family and attributes.
pub(crate) fn split(payload: &[u8]) -> Result<(Family, &[u8]), WireError> {
    let available = payload.len();
    let (header, rest) = NfGenHeader::split(payload).ok_or(WireError::Message { offset: 0, available })?;
    Ok((Family::from_number(header.family), rest))
}

pub(crate) fn missing(attribute: &str) -> WireError {
    WireError::Missing { attribute: attribute.to_owned() }
}

/// The number of the rule set's generation.
pub(crate) fn get_generation(payload: &[u8]) -> Result<u32, WireError> {
    let (_, attributes) = split(payload)?;
    for attr in Attrs::<GenAttr<'_>>::new(attributes).iter() {
        if let GenAttr::Id(Be32(id)) = attr? {
            return Ok(id);
        }
    }
    Err(missing("NFTA_GEN_ID"))
}

pub(crate) fn put_name(out: &mut Encoder, kind: u16, name: &Name) {
    out.attr(kind, &NulStr::from(name.as_str()));
}

pub(crate) fn get_name(text: NulStr<'_>) -> Name {
    Name::from_kernel(text.as_bytes())
}

/// The table of an object and the object's name, each with its attribute, which a message must have.
pub(crate) fn get_key(
    family: Family,
    table: (Option<Name>, &str),
    name: (Option<Name>, &str),
) -> Result<(TableKey, Name), WireError> {
    let get = |(found, attribute): (Option<Name>, &str)| found.ok_or_else(|| missing(attribute));
    Ok((TableKey { family, name: get(table)? }, get(name)?))
}

/// Duration in milliseconds, the kernel's unit.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
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

/// The expressions of each element: one, or a list in an attribute of its own.
pub(crate) fn put_expressions(out: &mut Encoder, one: u16, list: u16, expressions: &[Expression]) {
    match expressions {
        [] => {}
        [expression] => put_one(out, one, expression),
        several => put_expression_list(out, list, several),
    }
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

/// A value; `None` for anything else.
pub(super) fn get_value<'a>(attrs: Attrs<'a, DataAttr<'a>>) -> Result<Option<Value>, WireError> {
    Ok(match get_data(attrs)? {
        Some(ElementData::Value(value)) => Some(value),
        _ => None,
    })
}

pub(crate) fn get_verdict<'a>(attrs: Attrs<'a, VerdictAttr<'a>>) -> Result<Option<Verdict>, WireError> {
    let mut code = None;
    let mut chain = None;
    for attr in attrs.iter() {
        match attr? {
            VerdictAttr::Code(Be32(found)) => code = Some(found.cast_signed()),
            VerdictAttr::Chain(found) => chain = Some(get_name(found)),
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

//! Encodes and decodes the data of objects.

use std::collections::BTreeMap;
use std::time::Duration;

use netlink_batch::{Attrs, Be16, Be32, Encoder, NulStr, RawAttrs, WireError};

use crate::attrs::{CtExpectAttr, CtHelperAttr, CtTimeoutAttr, SecmarkAttr};
use crate::builder::L4Protocol;
use crate::expr::{get_known, put_fields};
use crate::model::{Family, ObjectData, ObjectType, timeout_state, timeout_state_number};

pub(super) fn put_object_data(out: &mut Encoder, data: &ObjectData) {
    let family = |out: &mut Encoder, kind: u16, family: Family| out.attr(kind, &Be16(family.number().into()));
    match data {
        ObjectData::CtHelper { helper, family: of, protocol } => {
            out.attr(CtHelperAttr::NAME, &NulStr::from(helper.as_str()));
            family(out, CtHelperAttr::L3PROTO, *of);
            out.attr(CtHelperAttr::L4PROTO, &protocol.0);
        }
        ObjectData::CtTimeout { family: of, protocol, policy } => {
            family(out, CtTimeoutAttr::L3PROTO, *of);
            out.attr(CtTimeoutAttr::L4PROTO, &protocol.0);
            out.nest(CtTimeoutAttr::DATA, |out| {
                for (state, time) in policy {
                    let seconds = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
                    // `check` has refused states without a number.
                    if let Some(number) = timeout_state_number(*protocol, state) {
                        out.attr(number, &Be32(seconds));
                    }
                }
            });
        }
        ObjectData::CtExpectation { family: of, protocol, port, timeout, size } => {
            family(out, CtExpectAttr::L3PROTO, *of);
            out.attr(CtExpectAttr::L4PROTO, &protocol.0);
            out.attr(CtExpectAttr::DPORT, &Be16(*port));
            out.attr(CtExpectAttr::TIMEOUT, timeout);
            out.attr(CtExpectAttr::SIZE, size);
        }
        ObjectData::Secmark { context } => out.attr(SecmarkAttr::CTX, &NulStr::from(context.as_str())),
        ObjectData::Other(attributes) => out.bytes(attributes),
        other => {
            if let Some(expression) = other.to_expression() {
                put_fields(out, &expression);
            }
        }
    }
}

/// Decodes the data of an object; as bytes if a part is unknown or missing.
pub(super) fn get_object_data(kind: ObjectType, data: &[u8]) -> Result<ObjectData, WireError> {
    let known = match kind {
        ObjectType::CtHelper => ct_helper(data)?,
        ObjectType::CtTimeout => ct_timeout(data)?,
        ObjectType::CtExpectation => ct_expectation(data)?,
        ObjectType::Secmark => secmark(data)?,
        kind => match kind.name() {
            Some(name) => get_known(name.as_bytes(), data)?.and_then(|known| ObjectData::from_expression(&known)),
            None => None,
        },
    };
    Ok(known.unwrap_or_else(|| ObjectData::Other(data.to_vec())))
}

type Known = Result<Option<ObjectData>, WireError>;

fn family(number: Option<Be16>) -> Option<Family> {
    u8::try_from(number?.0).ok().map(Family::from_number)
}

fn text(found: Option<NulStr<'_>>) -> Option<String> {
    std::str::from_utf8(found?.as_bytes()).ok().map(str::to_owned)
}

fn ct_helper(data: &[u8]) -> Known {
    let (mut name, mut l3, mut l4) = (None, None, None);
    for attr in Attrs::<CtHelperAttr<'_>>::new(data).iter() {
        match attr? {
            CtHelperAttr::Name(found) => name = Some(found),
            CtHelperAttr::L3proto(found) => l3 = Some(found),
            CtHelperAttr::L4proto(found) => l4 = Some(found),
            CtHelperAttr::Unknown(_) => return Ok(None),
        }
    }
    let parts = (text(name), family(l3), l4);
    let (Some(helper), Some(family), Some(protocol)) = parts else { return Ok(None) };
    Ok(Some(ObjectData::CtHelper { helper, family, protocol: L4Protocol(protocol) }))
}

fn ct_timeout(data: &[u8]) -> Known {
    let (mut l3, mut l4, mut states) = (None, None, &[][..]);
    for attr in Attrs::<CtTimeoutAttr<'_>>::new(data).iter() {
        match attr? {
            CtTimeoutAttr::L3proto(found) => l3 = Some(found),
            CtTimeoutAttr::L4proto(found) => l4 = Some(found),
            CtTimeoutAttr::Data(found) => states = found,
            CtTimeoutAttr::Unknown(_) => return Ok(None),
        }
    }
    let (Some(family), Some(protocol)) = (family(l3), l4.map(L4Protocol)) else { return Ok(None) };
    let mut policy = BTreeMap::new();
    for raw in RawAttrs::new(states) {
        let raw = raw?;
        let Ok(seconds) = raw.payload.try_into().map(u32::from_be_bytes) else { return Ok(None) };
        policy.insert(timeout_state(protocol, raw.kind()), Duration::from_secs(seconds.into()));
    }
    Ok(Some(ObjectData::CtTimeout { family, protocol, policy }))
}

fn ct_expectation(data: &[u8]) -> Known {
    let (mut l3, mut l4, mut dport, mut time, mut count) = (None, None, None, None, None);
    for attr in Attrs::<CtExpectAttr<'_>>::new(data).iter() {
        match attr? {
            CtExpectAttr::L3proto(found) => l3 = Some(found),
            CtExpectAttr::L4proto(found) => l4 = Some(found),
            CtExpectAttr::Dport(Be16(found)) => dport = Some(found),
            CtExpectAttr::Timeout(found) => time = Some(found),
            CtExpectAttr::Size(found) => count = Some(found),
            CtExpectAttr::Unknown(_) => return Ok(None),
        }
    }
    let parts = (family(l3), l4, dport, time, count);
    let (Some(family), Some(protocol), Some(port), Some(timeout), Some(size)) = parts else { return Ok(None) };
    Ok(Some(ObjectData::CtExpectation { family, protocol: L4Protocol(protocol), port, timeout, size }))
}

fn secmark(data: &[u8]) -> Known {
    let mut context = None;
    for attr in Attrs::<SecmarkAttr<'_>>::new(data).iter() {
        match attr? {
            SecmarkAttr::Ctx(found) => context = Some(found),
            SecmarkAttr::Unknown(_) => return Ok(None),
        }
    }
    Ok(text(context).map(|context| ObjectData::Secmark { context }))
}

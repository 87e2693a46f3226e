//! Encodes and decodes the data of objects.

use std::collections::BTreeMap;
use std::time::Duration;

use netlink_batch::{Attrs, Be16, Be32, Encoder, RawAttrs, WireError};

use super::fields::{Field, listed};
use crate::attrs::{CtExpectAttr, CtHelperAttr, CtTimeoutAttr, SecmarkAttr};
use crate::builder::L4Protocol;
use crate::expr::{get_known, put_fields};
use crate::model::{Family, ObjectData, ObjectType, timeout_state, timeout_state_number};

listed! {
    ObjectData, put_object_data else put_other, get_listed else get_other;
    "ct helper" CtHelperAttr {
        CtHelper { helper: NAME Name, family: L3PROTO L3proto, protocol: L4PROTO L4proto }
    }
    "ct expectation" CtExpectAttr {
        CtExpectation {
            family: L3PROTO L3proto, protocol: L4PROTO L4proto, port: DPORT Dport, timeout: TIMEOUT Timeout, size: SIZE Size
        }
    }
    "secmark" SecmarkAttr {
        Secmark { context: CTX Ctx }
    }
}

fn put_other(out: &mut Encoder, data: &ObjectData) {
    match data {
        ObjectData::CtTimeout { family, protocol, policy } => {
            Field::<Be16>::put(family, out, CtTimeoutAttr::L3PROTO);
            protocol.put(out, CtTimeoutAttr::L4PROTO);
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
    let known = kind.name().map(|name| get_listed(name.as_bytes(), data)).transpose()?;
    Ok(known.flatten().unwrap_or_else(|| ObjectData::Other(data.to_vec())))
}

fn get_other(kind: &[u8], data: &[u8]) -> Result<Option<ObjectData>, WireError> {
    match kind {
        b"ct timeout" => ct_timeout(data),
        kind => Ok(get_known(kind, data)?.and_then(|known| ObjectData::from_expression(&known))),
    }
}

fn ct_timeout(data: &[u8]) -> Result<Option<ObjectData>, WireError> {
    let (mut l3, mut l4, mut states) = (None, None, &[][..]);
    for attr in Attrs::<CtTimeoutAttr<'_>>::new(data).iter() {
        match attr? {
            CtTimeoutAttr::L3proto(found) => l3 = Some(found),
            CtTimeoutAttr::L4proto(found) => l4 = Some(found),
            CtTimeoutAttr::Data(found) => states = found,
            CtTimeoutAttr::Unknown(_) => return Ok(None),
        }
    }
    let (Some(family), Some(protocol)) = (Family::get(l3)?, L4Protocol::get(l4)?) else { return Ok(None) };
    let mut policy = BTreeMap::new();
    for raw in RawAttrs::new(states) {
        let raw = raw?;
        let Ok(seconds) = raw.payload.try_into().map(u32::from_be_bytes) else { return Ok(None) };
        policy.insert(timeout_state(protocol, raw.kind()), Duration::from_secs(seconds.into()));
    }
    Ok(Some(ObjectData::CtTimeout { family, protocol, policy }))
}

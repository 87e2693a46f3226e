//! Reads the answers to queries.

use std::ops::RangeInclusive;

use netlink_batch::{Attrs, WireError};

use crate::attrs::CmdAttr;
use crate::model::{Family, SetType};

/// The first of the attributes that `pick` takes.
fn first<T>(attributes: &[u8], pick: impl Fn(CmdAttr<'_>) -> Option<T>) -> Result<Option<T>, WireError> {
    for attr in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
        if let Some(found) = pick(attr?) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn needed<T>(attribute: &str, found: Option<T>) -> Result<T, WireError> {
    found.ok_or_else(|| WireError::Missing { attribute: attribute.to_owned() })
}

fn least(attributes: &[u8]) -> Result<Option<u8>, WireError> {
    first(attributes, |attr| if let CmdAttr::ProtocolMin(least) = attr { Some(least) } else { None })
}

fn revision(attributes: &[u8]) -> Result<Option<u8>, WireError> {
    first(attributes, |attr| if let CmdAttr::Revision(revision) = attr { Some(revision) } else { None })
}

/// Oldest and newest protocol version. Kernels before 4.20 report only one.
pub(crate) fn protocols(attributes: &[u8]) -> Result<RangeInclusive<u8>, WireError> {
    let newest = first(attributes, |attr| if let CmdAttr::Protocol(newest) = attr { Some(newest) } else { None })?;
    let newest = needed("IPSET_ATTR_PROTOCOL", newest)?;
    Ok(least(attributes)?.unwrap_or(newest)..=newest)
}

/// Lowest and highest revision.
pub(crate) fn revisions(attributes: &[u8]) -> Result<RangeInclusive<u8>, WireError> {
    Ok(least(attributes)?.unwrap_or(0)..=needed("IPSET_ATTR_REVISION", revision(attributes)?)?)
}

/// Type, family and revision.
pub(crate) fn header(attributes: &[u8]) -> Result<(SetType, Family, u8), WireError> {
    let set_type = first(attributes, |attr| match attr {
        CmdAttr::TypeName(name) => Some(name.to_str().and_then(|name| name.parse().ok()).unwrap_or(SetType::Unknown)),
        _ => None,
    })?;
    let family = first(attributes, |attr| if let CmdAttr::Family(number) = attr { Some(number) } else { None })?;
    let family = family.map_or(Family::Inet, Family::from_number);
    Ok((needed("IPSET_ATTR_TYPENAME", set_type)?, family, revision(attributes)?.unwrap_or(0)))
}

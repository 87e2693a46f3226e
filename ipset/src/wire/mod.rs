//! Converts between the model and attributes.

mod entry;
mod set;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) use entry::{get_entry, put_entry};
use netlink_batch::{Attrs, Encoder, WireError};
#[cfg(feature = "testing")]
pub(crate) use set::{Writer, get_set_options};
pub(crate) use set::{get_listed, put_set_options};

use crate::attrs::{AddressAttr, put_net};
use crate::model::IpSpan;

pub(super) fn put_address(out: &mut Encoder, kind: u16, address: IpAddr) {
    out.nest(kind, |out| match address {
        IpAddr::V4(address) => put_net(out, AddressAttr::IPADDR_IPV4, &address.octets()),
        IpAddr::V6(address) => put_net(out, AddressAttr::IPADDR_IPV6, &address.octets()),
    });
}

pub(super) fn get_address(attrs: Attrs<'_, AddressAttr<'_>>) -> Result<IpAddr, WireError> {
    for attr in attrs.iter() {
        match attr? {
            AddressAttr::V4(octets) => return Ok(Ipv4Addr::from(octets).into()),
            AddressAttr::V6(octets) => return Ok(Ipv6Addr::from(octets).into()),
            AddressAttr::Unknown(_) => {}
        }
    }
    Err(missing("IPSET_ATTR_IPADDR_IPV4"))
}

pub(super) fn missing(attribute: &str) -> WireError {
    WireError::Missing { attribute: attribute.to_owned() }
}

/// An address part as read: base, prefix length, end of range.
#[derive(Default)]
pub(super) struct SpanParts {
    pub(super) address: Option<IpAddr>,
    pub(super) prefix: Option<u8>,
    pub(super) last: Option<IpAddr>,
}

impl SpanParts {
    pub(super) fn span(&self, attribute: &str) -> Result<IpSpan, WireError> {
        let address = self.address.ok_or_else(|| missing(attribute))?;
        let value = |value: String| WireError::Value { attribute: attribute.to_owned(), value };
        match (self.prefix, self.last) {
            (_, Some(last)) => IpSpan::range(address, last).map_err(|error| value(error.to_string())),
            (Some(prefix), None) => IpSpan::network(address, prefix).map_err(|error| value(error.to_string())),
            (None, None) => Ok(IpSpan::host(address)),
        }
    }
}

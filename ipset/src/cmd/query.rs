//! PROTOCOL, TYPE, GET_BYNAME, GET_BYINDEX, HEADER: queries with one answer. Kernel: net/netfilter/ipset/ip_set_core.c.

use std::ops::RangeInclusive;

use netlink_batch::{Attrs, Be16, Encoder, Errno, NulStr, WireError};

use super::{Command, common, put_name};
use crate::attrs::{CmdAttr, put_net};
use crate::error::ErrorKind;
use crate::model::{Family, SetName, SetType};
use crate::uapi;

fn missing(attribute: &str) -> WireError {
    WireError::Missing { attribute: attribute.to_owned() }
}

/// `ip_set_protocol`.
pub(crate) struct Protocol;

impl Command for Protocol {
    const CMD: u8 = uapi::IPSET_CMD_PROTOCOL;

    fn action(&self) -> String {
        "asking for ipset's protocol version".to_owned()
    }

    fn encode(&self, _out: &mut Encoder) {}

    fn classify(&self, errno: i32) -> ErrorKind {
        // nfnetlink has no ipset, and loading the module nfnetlink-subsys-6 failed (nfnetlink_rcv_msg).
        if Errno(errno) == Errno::EINVAL { ErrorKind::Unsupported } else { common(errno) }
    }
}

/// Oldest and newest protocol version. Kernels before 4.20 report only one.
pub(crate) fn protocols(attributes: &[u8]) -> Result<RangeInclusive<u8>, WireError> {
    let (mut newest, mut oldest) = (None, None);
    for attr in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
        match attr? {
            CmdAttr::Protocol(version) => newest = Some(version),
            CmdAttr::ProtocolMin(version) => oldest = Some(version),
            _ => {}
        }
    }
    let newest = newest.ok_or_else(|| missing("IPSET_ATTR_PROTOCOL"))?;
    Ok(oldest.unwrap_or(newest)..=newest)
}

/// `ip_set_type`: loads the type's module if needed.
pub(crate) struct Type(pub(crate) SetType, pub(crate) Family);

impl Command for Type {
    const CMD: u8 = uapi::IPSET_CMD_TYPE;

    fn action(&self) -> String {
        format!("asking for set type {}", self.0)
    }

    fn encode(&self, out: &mut Encoder) {
        out.attr(CmdAttr::TYPENAME, &NulStr::from(self.0.name()));
        out.attr(CmdAttr::FAMILY, &self.0.family_number(self.1));
    }
}

/// Lowest and highest revision.
pub(crate) fn revisions(attributes: &[u8]) -> Result<RangeInclusive<u8>, WireError> {
    let (mut highest, mut lowest) = (None, None);
    for attr in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
        match attr? {
            CmdAttr::Revision(revision) => highest = Some(revision),
            CmdAttr::ProtocolMin(revision) => lowest = Some(revision),
            _ => {}
        }
    }
    let highest = highest.ok_or_else(|| missing("IPSET_ATTR_REVISION"))?;
    Ok(lowest.unwrap_or(0)..=highest)
}

/// `ip_set_byname`.
pub(crate) struct GetByName<'a>(pub(crate) &'a SetName);

impl Command for GetByName<'_> {
    const CMD: u8 = uapi::IPSET_CMD_GET_BYNAME;

    fn action(&self) -> String {
        format!("asking for the index of set {}", self.0)
    }

    fn encode(&self, out: &mut Encoder) {
        put_name(out, CmdAttr::SETNAME, self.0);
    }
}

pub(crate) fn index(attributes: &[u8]) -> Result<u16, WireError> {
    for attr in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
        if let CmdAttr::Index(Be16(index)) = attr? {
            return Ok(index);
        }
    }
    Err(missing("IPSET_ATTR_INDEX"))
}

/// `ip_set_byindex`.
pub(crate) struct GetByIndex(pub(crate) u16);

impl Command for GetByIndex {
    const CMD: u8 = uapi::IPSET_CMD_GET_BYINDEX;

    fn action(&self) -> String {
        format!("asking for the set with index {}", self.0)
    }

    fn encode(&self, out: &mut Encoder) {
        put_net(out, CmdAttr::INDEX, &Be16(self.0));
    }
}

pub(crate) fn name(attributes: &[u8]) -> Result<SetName, WireError> {
    for attr in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
        if let CmdAttr::SetName(name) = attr? {
            return Ok(SetName::from_kernel(name.as_bytes()));
        }
    }
    Err(missing("IPSET_ATTR_SETNAME"))
}

/// `ip_set_header`.
pub(crate) struct Header<'a>(pub(crate) &'a SetName);

impl Command for Header<'_> {
    const CMD: u8 = uapi::IPSET_CMD_HEADER;

    fn action(&self) -> String {
        format!("asking for the type of set {}", self.0)
    }

    fn encode(&self, out: &mut Encoder) {
        put_name(out, CmdAttr::SETNAME, self.0);
    }
}

pub(crate) fn header(attributes: &[u8]) -> Result<(SetType, Family, u8), WireError> {
    let (mut set_type, mut family, mut revision) = (None, Family::Inet, 0);
    for attr in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
        match attr? {
            CmdAttr::TypeName(name) => {
                set_type = Some(name.to_str().and_then(|name| name.parse().ok()).unwrap_or(SetType::Unknown));
            }
            CmdAttr::Family(number) => family = Family::from_number(number),
            CmdAttr::Revision(number) => revision = number,
            _ => {}
        }
    }
    Ok((set_type.ok_or_else(|| missing("IPSET_ATTR_TYPENAME"))?, family, revision))
}

//! Extended errors: details in addition to the error number (`NETLINK_EXT_ACK`, linux/netlink.h `enum nlmsgerr_attrs`).

use crate::attr::Attrs;
use crate::wire::NulStr;

crate::attrs! {
    /// The attributes of an extended error. Kernel: net/netlink/af_netlink.c, `netlink_ack`.
    "NLMSGERR_ATTR_", pub enum ExtAckAttr<'a> {
        /// Description of the error.
        MSG = 1 => Text(NulStr<'a>),
        /// Offset of the refused attribute, from the start of the request.
        OFFS = 2 => Offset(u32),
        /// Data private to the subsystem.
        COOKIE = 3 => Cookie(&'a [u8]),
        /// The kernel's policy for the refused attribute.
        POLICY = 4 => Policy(&'a [u8]),
        /// Number of an attribute that is missing. Since Linux 6.1.
        MISS_TYPE = 5 => MissingType(u32),
        /// Offset of the nest in which the attribute is missing. Since Linux 6.1.
        MISS_NEST = 6 => MissingNest(u32),
    }
}

/// The parts of an extended error that help to correct the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedAck<'a> {
    /// The kernel's message.
    pub text: Option<NulStr<'a>>,
    /// Offset of the refused attribute, from the start of the request.
    pub offset: Option<u32>,
    /// Number of a required attribute that is missing.
    pub missing: Option<u32>,
}

impl<'a> ExtendedAck<'a> {
    /// Reads known attributes and ignores what it cannot read, because extended errors only add detail.
    pub(crate) fn read(attributes: Attrs<'a, ExtAckAttr<'a>>) -> Self {
        let mut found = ExtendedAck::default();
        for attribute in attributes.iter().map_while(Result::ok) {
            match attribute {
                ExtAckAttr::Text(text) => found.text = Some(text),
                ExtAckAttr::Offset(offset) => found.offset = Some(offset),
                ExtAckAttr::MissingType(kind) => found.missing = Some(kind),
                _ => {}
            }
        }
        found
    }
}

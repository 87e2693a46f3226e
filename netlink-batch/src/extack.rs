//! Extended errors: what the kernel says besides the number (`NETLINK_EXT_ACK`, linux/netlink.h `enum nlmsgerr_attrs`).

use crate::attr::Attrs;
use crate::wire::NulStr;

crate::attrs! {
    /// The attributes behind an error. Kernel: net/netlink/af_netlink.c, `netlink_ack`.
    "NLMSGERR_ATTR_",
    pub enum ExtAckAttr<'a> {
        /// Description of the error.
        MSG = 1 => Text(NulStr<'a>),
        /// Offset of the attribute that is wrong, from the start of the request.
        OFFS = 2 => Offset(u32),
        /// Subsystem's own.
        COOKIE = 3 => Cookie(&'a [u8]),
        /// Policy of the kernel for the refused attribute.
        POLICY = 4 => Policy(&'a [u8]),
        /// Number of an attribute that is missing. Since Linux 6.1.
        MISS_TYPE = 5 => MissingType(u32),
        /// Offset of the nest in which it is missing. Since Linux 6.1.
        MISS_NEST = 6 => MissingNest(u32),
    }
}

/// The parts of an extended error that say what to correct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedAck<'a> {
    /// The kernel's words.
    pub text: Option<NulStr<'a>>,
    /// Offset of the attribute that is wrong, from the start of the request.
    pub offset: Option<u32>,
    /// Number of an attribute that is missing.
    pub missing: Option<u32>,
}

impl<'a> ExtendedAck<'a> {
    /// Reads the attributes it knows and leaves out what it cannot read: extended errors only add detail.
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

//! Requests to the kernel, their answers, and the meanings of error numbers. Kernel: net/netfilter/ipset/ip_set_core.c.

pub(crate) mod answers;
pub(crate) mod entries;

use netlink_batch::header::NfGenHeader;
use netlink_batch::{Encoder, Errno, NulStr};

use crate::attrs::CmdAttr;
use crate::error::ErrorKind;
use crate::model::{SetName, SetSpec, SetType};
use crate::uapi;

/// `NFPROTO_IPV4`, as `ipset` writes it into every header. The kernel ignores it.
pub(crate) const HEADER: NfGenHeader = NfGenHeader { family: 2, version: 0, resource: 0 };

/// The message type of a command (linux/netfilter/nfnetlink.h).
pub(crate) fn message_type(command: u8) -> u16 {
    u16::from_be_bytes([uapi::NFNL_SUBSYS_IPSET, command])
}

/// A request.
pub(crate) struct Request<'a> {
    /// `IPSET_CMD_*`.
    pub(crate) command: u8,
    /// `NLM_F_*` besides REQUEST and ACK.
    pub(crate) flags: u16,
    /// What it does, for errors: `"creating set allowed"`.
    pub(crate) action: String,
    /// The set, and the second one of two.
    pub(crate) sets: &'a [&'a SetName],
    /// Appends the attributes behind the sets' names.
    pub(crate) put: &'a dyn Fn(&mut Encoder),
    /// Error numbers with a meaning of their own for this command.
    pub(crate) meaning: &'a dyn Fn(i32) -> Option<ErrorKind>,
}

impl<'a> Request<'a> {
    /// A request of nothing but the names of its sets.
    pub(crate) fn new(command: u8, action: impl Into<String>, sets: &'a [&'a SetName]) -> Self {
        Request { command, flags: 0, action: action.into(), sets, put: &|_| {}, meaning: &|_| None }
    }

    pub(crate) fn encode(&self, out: &mut Encoder, protocol: u8) {
        put_protocol(out, protocol);
        for (kind, name) in [CmdAttr::SETNAME, CmdAttr::TYPENAME].into_iter().zip(self.sets) {
            put_name(out, kind, name);
        }
        (self.put)(out);
    }

    pub(crate) fn classify(&self, errno: i32) -> ErrorKind {
        (self.meaning)(errno).unwrap_or_else(|| common(errno))
    }
}

/// The error kind of an errno with the same meaning in all commands; [`ErrorKind::Other`] for an unlisted one.
pub(crate) fn common(errno: i32) -> ErrorKind {
    match (Errno(errno), errno) {
        (Errno::EPERM | Errno::EACCES, _) => ErrorKind::Permission,
        (Errno::ENOENT, _) => ErrorKind::SetMissing,
        (Errno::ENOMEM, _) => ErrorKind::NoMemory,
        (_, uapi::IPSET_ERR_PROTOCOL) => ErrorKind::ProtocolMismatch,
        (_, uapi::IPSET_ERR_FIND_TYPE) => ErrorKind::TypeUnsupported,
        (other, _) => ErrorKind::Other(other.0),
    }
}

/// `ip_set_create`.
pub(crate) fn not_created(set: &SetSpec, errno: i32) -> Option<ErrorKind> {
    Some(match errno {
        _ if Errno(errno) == Errno::EEXIST => ErrorKind::SetExists,
        uapi::IPSET_ERR_MAX_SETS => ErrorKind::TooManySets,
        uapi::IPSET_ERR_INVALID_FAMILY => ErrorKind::OptionInvalid("family"),
        uapi::IPSET_ERR_INVALID_NETMASK | uapi::IPSET_ERR_BITMASK_NETMASK_EXCL => {
            ErrorKind::OptionInvalid("netmask or bitmask")
        }
        uapi::IPSET_ERR_INVALID_MARKMASK => ErrorKind::OptionInvalid("markmask"),
        uapi::IPSET_ERR_INVALID_CIDR => ErrorKind::OptionInvalid("range"),
        uapi::IPSET_ERR_BITMAP_RANGE | uapi::IPSET_ERR_BITMAP_RANGE_SIZE if set.set_type.is_bitmap() => {
            ErrorKind::OptionInvalid("range")
        }
        _ if Errno(errno) == Errno::EINVAL && set.set_type == SetType::BitmapPort => ErrorKind::OptionInvalid("range"),
        _ => return None,
    })
}

/// `ip_set_rename`.
pub(crate) fn not_renamed(errno: i32) -> Option<ErrorKind> {
    match errno {
        uapi::IPSET_ERR_REFERENCED => Some(ErrorKind::InUse),
        uapi::IPSET_ERR_EXIST_SETNAME2 => Some(ErrorKind::SetExists),
        _ => None,
    }
}

/// `ip_set_swap`.
pub(crate) fn not_swapped(errno: i32) -> Option<ErrorKind> {
    match errno {
        uapi::IPSET_ERR_EXIST_SETNAME2 => Some(ErrorKind::SecondSetMissing),
        uapi::IPSET_ERR_TYPE_MISMATCH => Some(ErrorKind::TypeMismatch),
        _ => (Errno(errno) == Errno::EBUSY).then_some(ErrorKind::InUse),
    }
}

pub(crate) fn put_name(out: &mut Encoder, kind: u16, name: &SetName) {
    out.attr(kind, &NulStr::from(name.as_str()));
}

pub(crate) fn put_protocol(out: &mut Encoder, protocol: u8) {
    out.attr(CmdAttr::PROTOCOL, &protocol);
}

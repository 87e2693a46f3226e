//! The commands: attributes, flags, answer, and the meanings of error numbers.

pub(crate) mod entries;
pub(crate) mod list;
pub(crate) mod query;
pub(crate) mod sets;

use netlink_batch::header::NfGenHeader;
use netlink_batch::{Encoder, Errno, NulStr};

use crate::attrs::CmdAttr;
use crate::error::ErrorKind;
use crate::model::SetName;
use crate::uapi;

/// `NFPROTO_IPV4`, as `ipset` writes it into every header. The kernel ignores it.
pub(crate) const HEADER: NfGenHeader = NfGenHeader { family: 2, version: 0, resource: 0 };

/// The message type of a command (linux/netfilter/nfnetlink.h).
pub(crate) fn message_type(command: u8) -> u16 {
    u16::from_be_bytes([uapi::NFNL_SUBSYS_IPSET, command])
}

/// A request.
pub(crate) trait Command {
    /// `IPSET_CMD_*`.
    const CMD: u8;
    /// `NLM_F_*` besides REQUEST and ACK.
    const FLAGS: u16 = 0;

    /// What the command does, for errors: `"creating set allowed"`.
    fn action(&self) -> String;

    /// Appends the attributes behind the protocol version.
    fn encode(&self, out: &mut Encoder);

    fn classify(&self, errno: i32) -> ErrorKind {
        common(errno)
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

pub(crate) fn put_name(out: &mut Encoder, kind: u16, name: &SetName) {
    out.attr(kind, &NulStr::from(name.as_str()));
}

pub(crate) fn put_protocol(out: &mut Encoder, protocol: u8) {
    out.attr(CmdAttr::PROTOCOL, &protocol);
}

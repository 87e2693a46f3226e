//! ADD, DEL, TEST: commands on entries. Kernel: `ip_set_uadd`, `ip_set_udel`, `ip_set_utest`, `call_ad`.

use std::borrow::Borrow;

use netlink_batch::header::NfGenHeader;
use netlink_batch::{Attrs, Encoder, Errno, KernelError};

use super::{common, put_name};
use crate::attrs::{CmdAttr, EntryAttr};
use crate::error::ErrorKind;
use crate::model::{Entry, SetName, SetType};
use crate::uapi;
use crate::wire::put_entry;

/// Most entries in one message. More are not faster.
const MESSAGE_ENTRIES: usize = 256;
/// Bytes after which a message is closed. One more entry always fits into the 65,535 bytes of an attribute.
const MESSAGE_BYTES: usize = 24 << 10;

/// The entry of zeros, which the kernel would treat as an empty slot.
pub(crate) const NULL_ENTRY: ErrorKind = ErrorKind::EntryInvalid("it is the null entry, which this type cannot hold");

/// A change to entries of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Add,
    Delete,
}

impl Operation {
    pub(crate) fn command(self) -> u8 {
        match self {
            Operation::Add => uapi::IPSET_CMD_ADD,
            Operation::Delete => uapi::IPSET_CMD_DEL,
        }
    }

    pub(crate) fn action(self, set: &SetName, entry: Option<&Entry>) -> String {
        let entry = entry.map_or_else(|| "entries".to_owned(), |entry| entry.element.to_string());
        match self {
            Operation::Add => format!("adding {entry} to set {set}"),
            Operation::Delete => format!("deleting {entry} from set {set}"),
        }
    }
}

/// Appends the attributes of one message with as many of `entries` as fit, numbered from `number`. Returns how many.
///
/// The kernel handles them one by one and stops at the first that it refuses. Earlier ones stay in effect.
pub(crate) fn put_many<E: Borrow<Entry>>(out: &mut Encoder, set: &SetName, entries: &[E], number: u32) -> usize {
    put_name(out, CmdAttr::SETNAME, set);
    // The kernel writes the failing entry's number here, in its copy of the request.
    out.attr(CmdAttr::LINENO, &0_u32);
    let start = out.len();
    let mut written = 0_usize;
    out.nest(CmdAttr::ADT, |out| {
        let mut number = number;
        for entry in entries {
            if written >= MESSAGE_ENTRIES || out.len().saturating_sub(start) >= MESSAGE_BYTES {
                break;
            }
            out.nest(CmdAttr::DATA, |out| {
                put_entry(out, entry.borrow());
                out.attr(EntryAttr::LINENO, &number);
            });
            number = number.saturating_add(1);
            written = written.saturating_add(1);
        }
    });
    written
}

/// The number of the refused entry, if the kernel reported one.
pub(crate) fn failing(error: &KernelError) -> Option<u32> {
    let (_, attributes) = NfGenHeader::split(&error.echo)?;
    Attrs::<CmdAttr<'_>>::new(attributes).iter().find_map(|attr| match attr {
        Ok(CmdAttr::Lineno(number)) => (number != 0).then_some(number),
        _ => None,
    })
}

/// Whether an error number's meaning depends on the set's type.
fn is_type_specific(errno: i32) -> bool {
    errno >= uapi::IPSET_ERR_TYPE_SPECIFIC
}

pub(crate) fn classify(operation: Operation, set_type: SetType, errno: i32) -> ErrorKind {
    match errno {
        uapi::IPSET_ERR_EXIST if operation == Operation::Add => ErrorKind::ElementExists,
        uapi::IPSET_ERR_EXIST => ErrorKind::ElementMissing,
        uapi::IPSET_ERR_TIMEOUT => ErrorKind::ExtensionMissing("timeout"),
        uapi::IPSET_ERR_COUNTER => ErrorKind::ExtensionMissing("counters"),
        uapi::IPSET_ERR_COMMENT => ErrorKind::ExtensionMissing("comment"),
        uapi::IPSET_ERR_SKBINFO => ErrorKind::ExtensionMissing("skbinfo"),
        uapi::IPSET_ERR_INVALID_CIDR => {
            ErrorKind::EntryInvalid("its prefix length is not possible here; in place of /0 add its two halves")
        }
        uapi::IPSET_ERR_IPADDR_IPV4 => ErrorKind::EntryInvalid("an IPv4 address is needed"),
        uapi::IPSET_ERR_IPADDR_IPV6 => ErrorKind::EntryInvalid("an IPv6 address is needed"),
        _ if Errno(errno) == Errno::ERANGE => ErrorKind::EntryInvalid("its range holds too many entries"),
        _ if is_type_specific(errno) && set_type.is_hash() => hash(errno),
        _ if is_type_specific(errno) && set_type.is_bitmap() => bitmap(errno),
        _ if is_type_specific(errno) && set_type == SetType::ListSet => list(errno),
        // A zero MAC address, or an interface without a name.
        _ if Errno(errno) == Errno::EINVAL => ErrorKind::EntryInvalid("a part of it is not possible here"),
        _ => common(errno),
    }
}

fn hash(errno: i32) -> ErrorKind {
    match errno {
        uapi::IPSET_ERR_HASH_FULL => ErrorKind::SetFull,
        uapi::IPSET_ERR_HASH_ELEM => NULL_ENTRY,
        uapi::IPSET_ERR_INVALID_PROTO => ErrorKind::EntryInvalid("its protocol is not possible here"),
        uapi::IPSET_ERR_MISSING_PROTO => ErrorKind::EntryInvalid("its protocol is missing"),
        uapi::IPSET_ERR_HASH_RANGE_UNSUPPORTED => ErrorKind::EntryInvalid("ranges are not possible here"),
        uapi::IPSET_ERR_HASH_RANGE => ErrorKind::EntryInvalid("the range holds all addresses"),
        _ => common(errno),
    }
}

fn bitmap(errno: i32) -> ErrorKind {
    match errno {
        uapi::IPSET_ERR_BITMAP_RANGE | uapi::IPSET_ERR_BITMAP_RANGE_SIZE => ErrorKind::OutOfRange,
        _ => common(errno),
    }
}

fn list(errno: i32) -> ErrorKind {
    match errno {
        uapi::IPSET_ERR_NAME | uapi::IPSET_ERR_NAMEREF => ErrorKind::MemberMissing,
        uapi::IPSET_ERR_LOOP => ErrorKind::MemberIsList,
        uapi::IPSET_ERR_BEFORE | uapi::IPSET_ERR_REF_EXIST => ErrorKind::PositionMissing,
        uapi::IPSET_ERR_LIST_FULL => ErrorKind::SetFull,
        _ => common(errno),
    }
}

/// Whether the kernel would refuse every other entry for the same reason.
pub(crate) fn concerns_set(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::SetMissing
            | ErrorKind::SetFull
            | ErrorKind::Permission
            | ErrorKind::Unsupported
            | ErrorKind::ProtocolMismatch
            | ErrorKind::NoMemory
    )
}

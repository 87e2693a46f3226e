//! Errors, grouped by what the caller can do about them.

use std::fmt;

use netlink_batch::{Errno, KernelError};

use crate::model::InvalidValue;

/// Kind of a failure, by what the caller can do about it.
///
/// Feature `serde` serialises it for reports. It cannot be deserialised, since it contains static text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// No set has this name.
    SetMissing,
    /// The second set of a swap does not exist.
    SecondSetMissing,
    /// A set of this name exists, or exists with another type or other options.
    SetExists,
    /// Sets of these types cannot be swapped. Both need the same family and the same form of entries.
    TypeMismatch,
    /// The entry is already in the set.
    ElementExists,
    /// The entry is not in the set.
    ElementMissing,
    /// The set to add as a member, or the member to add it before or after, does not exist.
    MemberMissing,
    /// The set to add as a member is itself a list.
    MemberIsList,
    /// The member to add before or after is not at that position of the list.
    PositionMissing,
    /// The set has its greatest number of entries (maxelem).
    SetFull,
    /// The entry lies outside the bitmap's range.
    OutOfRange,
    /// Rules or lists refer to the set, or a program is listing it.
    InUse,
    /// The kernel does not support the set type: its module is missing, or the kernel is older than the type.
    TypeUnsupported,
    /// The kernel is older than the create option of this name.
    OptionUnsupported(&'static str),
    /// The set was created without the extension that an entry option needs: `"timeout"`, `"counters"`, `"comment"`,
    /// `"skbinfo"`.
    ExtensionMissing(&'static str),
    /// The kernel refused the value of the create option of this name.
    OptionInvalid(&'static str),
    /// The kernel refused the entry. The text says what is wrong with it.
    EntryInvalid(&'static str),
    /// The kernel has reached its greatest number of sets.
    TooManySets,
    /// The kernel does not understand the request, or supports no protocol version from 6 to 7.
    ProtocolMismatch,
    /// The caller lacks `CAP_NET_ADMIN` in the namespace.
    Permission,
    /// The kernel has no ipset: module `ip_set` is missing.
    Unsupported,
    /// The kernel is out of memory.
    NoMemory,
    /// A value cannot be part of a request. Nothing was sent.
    Invalid(InvalidValue),
    /// A line of `ipset save` text could not be parsed.
    Line(usize, InvalidValue),
    /// No answer came before the deadline. The kernel may or may not have carried out the request.
    Timeout,
    /// Answers were lost. The kernel may or may not have carried out the requests: read the state again.
    StateUnknown,
    /// Every attempt at a listing was incomplete. Partial lists are never returned.
    Interrupted,
    /// An answer could not be decoded, or a request could not be encoded. The text says what is wrong with it.
    Malformed(String),
    /// An operating-system call failed.
    Io,
    /// The kernel refused for another reason; its error number.
    Other(i32),
}

/// Cause of an error.
#[derive(Clone)]
enum Source {
    Kernel(Box<KernelError>),
    Netlink(std::sync::Arc<netlink_batch::Error>),
}

/// A failed operation: what failed, on what, why, and what to do.
#[derive(Clone)]
pub struct Error {
    kind: Box<ErrorKind>,
    action: Box<str>,
    source: Option<Source>,
}

impl Error {
    /// Kind of the failure.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// What failed: `"adding 10.0.0.1 to set allowed"`.
    pub fn action(&self) -> &str {
        &self.action
    }

    /// Whether the set, entry or member does not exist.
    pub fn is_not_found(&self) -> bool {
        use ErrorKind::{ElementMissing, MemberMissing, SecondSetMissing, SetMissing};
        matches!(*self.kind, SetMissing | SecondSetMissing | ElementMissing | MemberMissing)
    }

    /// Whether the set or entry already exists.
    pub fn is_already_exists(&self) -> bool {
        matches!(*self.kind, ErrorKind::SetExists | ErrorKind::ElementExists)
    }

    /// Whether a capability is missing.
    pub fn is_permission(&self) -> bool {
        *self.kind == ErrorKind::Permission
    }

    /// The kernel's error number, if the kernel refused. Numbers from 4096 up are ipset's own (`IPSET_ERR_*`).
    pub fn errno(&self) -> Option<i32> {
        self.kernel().map(|refusal| refusal.errno.0)
    }

    /// The kernel's message, if it refused and sent one.
    pub fn kernel_text(&self) -> Option<&str> {
        self.kernel()?.text.as_deref()
    }

    fn kernel(&self) -> Option<&KernelError> {
        match self.source.as_ref()? {
            Source::Kernel(error) => Some(error),
            Source::Netlink(error) => error.kernel(),
        }
    }

    pub(crate) fn new(kind: ErrorKind, action: impl Into<Box<str>>) -> Self {
        Error { kind: Box::new(kind), action: action.into(), source: None }
    }

    /// Replaces the description of what failed with the caller's.
    pub(crate) fn while_doing(mut self, action: String) -> Self {
        self.action = action.into();
        self
    }

    pub(crate) fn refused(kind: ErrorKind, action: impl Into<Box<str>>, error: KernelError) -> Self {
        Error { kind: Box::new(kind), action: action.into(), source: Some(Source::Kernel(Box::new(error))) }
    }

    /// Builds the error of a failed exchange. `classify` maps the kernel's refusals.
    pub(crate) fn netlink(
        error: netlink_batch::Error,
        action: impl Into<Box<str>>,
        classify: impl FnOnce(i32) -> ErrorKind,
    ) -> Self {
        use netlink_batch::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::Kernel(refusal) => classify(refusal.errno.0),
            Kind::Timeout => ErrorKind::Timeout,
            Kind::StateUnknown => ErrorKind::StateUnknown,
            Kind::Interrupted => ErrorKind::Interrupted,
            Kind::Malformed(wire) | Kind::Unsendable(wire) => ErrorKind::Malformed(wire.to_string()),
            Kind::FamilyMissing => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        Error { kind: Box::new(kind), action: action.into(), source: Some(Source::Netlink(std::sync::Arc::new(error))) }
    }
}

netlink_batch::debug_is_message!(Error);

impl From<InvalidValue> for Error {
    fn from(error: InvalidValue) -> Self {
        Error::new(ErrorKind::Invalid(error), "checking a value")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.action, self.kind)
    }
}

/// Reason and remedy, as in the message of an [`Error`].
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::SetMissing => "there is no such set; create it first, or check the name",
            ErrorKind::SecondSetMissing => "the second set does not exist; create it first, or check the name",
            ErrorKind::SetExists => {
                "a set of this name exists, perhaps with other options; destroy it or choose another name"
            }
            ErrorKind::TypeMismatch => "the sets differ in family or kind of entries and cannot be swapped",
            ErrorKind::ElementExists => "the entry is in the set already",
            ErrorKind::ElementMissing => "the entry is not in the set",
            ErrorKind::MemberMissing => "the set named as member or position does not exist",
            ErrorKind::MemberIsList => "a list:set cannot be member of another",
            ErrorKind::PositionMissing => "the member named as position is not there",
            ErrorKind::SetFull => "the set is full; create it with a greater maxelem",
            ErrorKind::OutOfRange => "the entry or range is outside what the bitmap can hold",
            ErrorKind::InUse => "the set is in use by rules, by a list:set or by a listing; remove what refers to it",
            ErrorKind::TypeUnsupported => {
                "the kernel does not have this set type or revision; load its module (ip_set_...)"
            }
            ErrorKind::OptionUnsupported(option) => {
                return write!(f, "the kernel is too old for option {option}; leave it out");
            }
            ErrorKind::ExtensionMissing(option) => {
                return write!(f, "the set was created without {option}; create it with it");
            }
            ErrorKind::OptionInvalid(option) => return write!(f, "the kernel does not take the value of {option}"),
            ErrorKind::EntryInvalid(why) => return write!(f, "the kernel does not take the entry: {why}"),
            ErrorKind::TooManySets => "the kernel holds as many sets as it can; destroy some",
            ErrorKind::ProtocolMismatch => {
                "the kernel does not understand the request; it may speak another version of the protocol"
            }
            ErrorKind::Permission => "not permitted; CAP_NET_ADMIN in this network namespace is needed",
            ErrorKind::Unsupported => "the kernel has no ipset; load module ip_set",
            ErrorKind::NoMemory => "the kernel is out of memory",
            ErrorKind::Invalid(error) => return write!(f, "{error}"),
            ErrorKind::Line(line, error) => return write!(f, "line {line}: {error}"),
            ErrorKind::Timeout => "no answer within the deadline; read the state again before repeating",
            ErrorKind::StateUnknown => "answers were lost; read the state again before repeating",
            ErrorKind::Interrupted => "the listing kept arriving incomplete; try again when it is quieter",
            ErrorKind::Malformed(error) => return write!(f, "unreadable message: {error}"),
            ErrorKind::Io => "system call failed",
            ErrorKind::Other(errno) => return write!(f, "the kernel answered {}", Errno(*errno)),
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.source.as_ref()? {
            Source::Kernel(error) => Some(&**error),
            Source::Netlink(error) => Some(&**error),
        }
    }
}

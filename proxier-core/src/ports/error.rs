//! Errors of ports.

use std::collections::BTreeMap;
use std::fmt;

/// Why the kernel, or the program that talks to it, did not carry out a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum PortErrorKind {
    /// The object of the call does not exist (ENOENT, ESRCH, ENODEV, EADDRNOTAVAIL).
    NotFound,
    /// The object exists already (EEXIST).
    AlreadyExists,
    /// The process lacks permission: CAP_NET_ADMIN or CAP_NET_RAW is missing (EPERM, EACCES).
    Permission,
    /// The kernel does not support it now: a module, a family, a set type or a program is missing.
    Unavailable,
    /// The object is in use; the same call may succeed soon (EBUSY, EAGAIN, EINTR, ENOBUFS, ENOMEM, the lock of
    /// iptables).
    Busy,
    /// A set or another container is full (ENOSPC, IPSET_ERR_HASH_FULL).
    Full,
    /// An object of this name has another type or form, or the kernel refuses a value (EINVAL and similar).
    Invalid,
    /// The call was not attempted, because something on which it depends failed.
    Skipped,
    /// The request was sent, but the outcome is unknown.
    Unknown,
    /// Everything else.
    Other,
}

/// A failed call, or a failed part of one.
///
/// Prints one line from the client below: what failed, on what and why.
#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PortError {
    kind: PortErrorKind,
    message: Box<str>,
}

/// The answer of a port.
pub type Result<T, E = PortError> = std::result::Result<T, E>;

impl PortError {
    /// Creates an error. The message contains what failed, on what, why, and what to do.
    pub fn new(kind: PortErrorKind, message: impl fmt::Display) -> Self {
        PortError { kind, message: message.to_string().into() }
    }

    /// Creates an error from a client's error and its causes, on one line.
    pub(crate) fn from_error(kind: PortErrorKind, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Some libraries include their cause in their message.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        PortError::new(kind, message)
    }

    /// The kind.
    pub fn kind(&self) -> PortErrorKind {
        self.kind
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.message)
    }
}

/// The message, so a `main` that returns this error is readable.
impl fmt::Debug for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for PortError {}

/// The items of a call that were not carried out, by index. All other items were.
pub type ItemFailures = BTreeMap<usize, PortError>;

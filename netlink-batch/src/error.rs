//! Errors, grouped by what the caller can do about them.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Malformed bytes. `Debug` prints the message, so a `main` that returns this error is readable.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum WireError {
    /// A message whose length field is below its header or beyond the datagram.
    #[error("message at byte {offset} is cut off or has an impossible length ({available} bytes are there)")]
    Message {
        /// Offset of the message in its datagram.
        offset: usize,
        /// Bytes from there to the end.
        available: usize,
    },
    /// An attribute whose length field is below its header or beyond the list.
    #[error("attribute at byte {offset} is cut off or has an impossible length ({available} bytes are there)")]
    AttributeLength {
        /// Offset of the attribute in its list.
        offset: usize,
        /// Bytes from there to the end.
        available: usize,
    },
    /// A known attribute whose payload has the wrong length or form.
    #[error("{attribute} at byte {offset}: {got} bytes where {expected} is expected")]
    Payload {
        /// C name of the attribute.
        attribute: String,
        /// Offset of the attribute in its list.
        offset: usize,
        /// Length or form that the attribute's type requires.
        expected: &'static str,
        /// Length found.
        got: usize,
    },
    /// A required attribute is missing.
    #[error("{attribute} is missing")]
    Missing {
        /// C name of the attribute.
        attribute: String,
    },
    /// A value that this type cannot represent.
    #[error("{attribute}: {value} is not supported")]
    Value {
        /// C name of the attribute.
        attribute: String,
        /// The value as text.
        value: String,
    },
    /// An attribute is too long for its 16-bit length field.
    #[error("attribute {kind} would be {length} bytes long; netlink allows 65535")]
    AttributeTooLong {
        /// Number of the attribute.
        kind: u16,
        /// Length with header.
        length: usize,
    },
}

crate::debug_is_message!(WireError);

/// A Linux error number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident)*) => { $(
        #[doc = concat!("`", stringify!($name), "`.")]
        pub const $name: Errno = Errno(libc::$name);
    )* };
}

impl Errno {
    errnos! {
        EPERM ENOENT ESRCH EEXIST EINVAL ERANGE EBUSY ENOMEM ENODEV ENFILE EMLINK EACCES ENOBUFS ENOTEMPTY
        ELOOP EOVERFLOW ERESTART EOPNOTSUPP EPROTONOSUPPORT EAFNOSUPPORT EMSGSIZE
    }

    /// The symbol and its description: `("ENOENT", "No such file or directory")`.
    fn words(self) -> (String, &'static str) {
        let errno = nix::errno::Errno::from_raw(self.0);
        if errno == nix::errno::Errno::UnknownErrno {
            (format!("errno {}", self.0), "unknown error")
        } else {
            (format!("{errno:?}"), errno.desc())
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (symbol, text) = self.words();
        write!(f, "{symbol} ({text})")
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().0)
    }
}

/// The kernel's refusal of one request.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct KernelError {
    /// The error number, positive.
    pub errno: Errno,
    /// The kernel's message, if it sent one.
    pub text: Option<String>,
    /// Path of the refused attribute as numbers, outermost first; empty if the kernel named none.
    /// [`AttrTable::path`](crate::AttrTable::path) translates it to names.
    #[cfg_attr(feature = "serde", serde(default))]
    pub attribute: Vec<u16>,
    /// Offset of the refused attribute in bytes from the start of its message. It distinguishes attributes with the
    /// same number in a list.
    pub offset: Option<u32>,
    /// Number of a required attribute that was missing.
    pub missing: Option<u32>,
    /// Bytes behind the message header in the kernel's copy of the request. Usually empty. Some subsystems report
    /// details here: ipset writes the number of the failing line into it.
    #[cfg_attr(feature = "serde", serde(default))]
    pub echo: Vec<u8>,
}

impl KernelError {
    /// An error number without details.
    pub fn new(errno: Errno) -> Self {
        KernelError { errno, text: None, attribute: Vec::new(), offset: None, missing: None, echo: Vec::new() }
    }
}

/// Prints the fields that are set, and the echo's length.
impl fmt::Debug for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("KernelError");
        shown.field("errno", &self.errno);
        if let Some(text) = &self.text {
            shown.field("text", text);
        }
        if !self.attribute.is_empty() {
            shown.field("attribute", &self.attribute);
        }
        if let Some(offset) = self.offset {
            shown.field("offset", &offset);
        }
        if let Some(missing) = self.missing {
            shown.field("missing", &missing);
        }
        if !self.echo.is_empty() {
            shown.field("echo", &format_args!("{} bytes", self.echo.len()));
        }
        shown.finish()
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel answered {}", self.errno)?;
        if let Some(text) = &self.text {
            write!(f, ": {text}")?;
        }
        Ok(())
    }
}

impl std::error::Error for KernelError {}

/// Kind of a failure, by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// The kernel refused the request and changed nothing.
    Kernel(KernelError),
    /// The generic-netlink family is not registered: its module is not loaded, or not part of this kernel.
    FamilyMissing,
    /// No answer came before the deadline. The kernel may or may not have carried out the request.
    Timeout,
    /// Answers were lost (`ENOBUFS`). The kernel may or may not have carried out the requests: read the state again.
    StateUnknown,
    /// The table kept changing while it was read, or every dump was incomplete. Partial lists are never returned.
    Interrupted,
    /// An answer could not be decoded. A failed read does not change the kernel's state.
    Malformed(WireError),
    /// The request cannot be encoded and was not sent.
    Unsendable(WireError),
    /// A group of requests does not fit into one datagram. Nothing was sent.
    TooLarge {
        /// Length of the datagram.
        bytes: usize,
        /// The longest datagram that the socket can send.
        limit: usize,
    },
    /// An operating-system call failed: opening, configuring, sending or receiving.
    Io,
}

/// A failed netlink request.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    context: &'static str,
    source: Option<Arc<io::Error>>,
}

impl Error {
    /// Kind of the failure.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// The kernel's refusal, when that is what happened.
    pub fn kernel(&self) -> Option<&KernelError> {
        match &self.kind {
            ErrorKind::Kernel(error) => Some(error),
            _ => None,
        }
    }

    /// An error of this kind and the operation that failed: `"sending a batch"`.
    pub fn new(kind: ErrorKind, context: &'static str) -> Self {
        Error { kind, context, source: None }
    }

    /// A failed system call.
    pub fn io(context: &'static str, source: io::Error) -> Self {
        Error { kind: ErrorKind::Io, context, source: Some(Arc::new(source)) }
    }

    /// The operation that failed.
    pub fn context(&self) -> &'static str {
        self.context
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.context, self.kind)
    }
}

/// Reason and remedy, as in the message of an [`Error`].
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Kernel(error) => return error.fmt(f),
            ErrorKind::FamilyMissing => "the kernel has no such netlink family; load the module that provides it",
            ErrorKind::Timeout => "no answer within the deadline; read the state again before repeating",
            ErrorKind::StateUnknown => "answers were lost (ENOBUFS); read the state again before repeating",
            ErrorKind::Interrupted => "the table kept changing while it was read; try again when it is quieter",
            ErrorKind::Malformed(error) => return write!(f, "unreadable answer: {error}"),
            ErrorKind::Unsendable(error) => return write!(f, "the request cannot be written: {error}"),
            ErrorKind::TooLarge { bytes, limit } => {
                return write!(
                    f,
                    "{bytes} bytes do not fit into one datagram of at most {limit}; send less at once, or with \
                     CAP_NET_ADMIN"
                );
            }
            ErrorKind::Io => "system call failed",
        })
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|error| -> &(dyn std::error::Error + 'static) { error })
    }
}

crate::debug_is_message!(Error);

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "serde")]
    #[test]
    fn kinds_of_errors_are_serialised() {
        let cut = WireError::Missing { attribute: "IFLA_MTU".to_owned() };
        let kinds = [ErrorKind::Kernel(KernelError::new(Errno::EPERM)), ErrorKind::Malformed(cut), ErrorKind::Timeout];
        assert_eq!(
            serde_json::to_value(kinds).ok(),
            Some(serde_json::json!([
                {"Kernel": {"errno": 1, "text": null, "attribute": [], "offset": null, "missing": null, "echo": []}},
                {"Malformed": {"Missing": {"attribute": "IFLA_MTU"}}},
                "Timeout",
            ]))
        );
        assert_eq!(serde_json::from_str(r#"{"errno": 1}"#).ok(), Some(KernelError::new(Errno::EPERM)));
    }

    #[test]
    fn debug_is_one_short_line() {
        let cut = WireError::Missing { attribute: "IFLA_MTU".to_owned() };
        assert_eq!(format!("{cut:?}"), "IFLA_MTU is missing");
        let mut refusal = KernelError::new(Errno::EINVAL);
        refusal.echo = vec![7; 4096];
        assert_eq!(format!("{refusal:?}"), "KernelError { errno: EINVAL, echo: 4096 bytes }");
        let error = Error::new(ErrorKind::Kernel(refusal), "sending a batch");
        assert_eq!(format!("{error:?}"), error.to_string());
        let cause = io::Error::from_raw_os_error(libc::EPERM);
        let error = Error::io("opening a socket", cause);
        assert_eq!(
            format!("{:?}", error.clone()),
            "opening a socket: system call failed: Operation not permitted (os error 1)"
        );
    }
}

//! Errors of reading or writing a setting.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::Knob;
use crate::model::OutOfRange;

/// Kind of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// There are no IPVS settings at all: the kernel currently has no IPVS.
    NotLoaded,
    /// This kernel does not have this setting.
    Absent,
    /// The setting is read-only in this network namespace, or `/proc/sys` is mounted read-only.
    ReadOnly,
    /// The caller lacks the permission.
    Permission,
    /// The value is out of range. It was not written.
    OutOfRange(OutOfRange),
    /// The kernel refused the value (`EINVAL`).
    Refused,
    /// The kernel's text is not a value of this setting's type.
    Malformed(String),
    /// Reading or writing failed.
    Io,
}

/// Reason and remedy; the error adds the setting.
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::NotLoaded => "there are no settings of IPVS; load the module with `modprobe ip_vs`",
            ErrorKind::Absent => "this kernel does not have it",
            ErrorKind::ReadOnly => {
                "it is read-only here; write it in the initial network namespace, or where /proc/sys may be written"
            }
            ErrorKind::Permission => "not permitted; it takes root (CAP_NET_ADMIN)",
            ErrorKind::OutOfRange(range) => return fmt::Display::fmt(range, f),
            ErrorKind::Refused => "the kernel refuses the value",
            ErrorKind::Malformed(text) => return write!(f, "found {text:?}, which is no value of its type"),
            ErrorKind::Io => "reading or writing the file failed",
        })
    }
}

/// A setting could not be read or written.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    writing: bool,
    knob: Option<Knob>,
    path: PathBuf,
    source: Option<Arc<io::Error>>,
}

impl Error {
    pub(super) fn new(kind: ErrorKind, writing: bool, knob: Option<Knob>, path: PathBuf) -> Self {
        Error(Box::new(Inner { kind, writing, knob, path, source: None }))
    }

    pub(super) fn with_source(mut self, source: io::Error) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Kind of the failure.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The setting; `None` if the error concerns all of them.
    pub fn knob(&self) -> Option<Knob> {
        self.0.knob
    }

    /// Whether this kernel does not have it.
    pub fn is_absent(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Absent | ErrorKind::NotLoaded)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, writing, knob, path, .. } = &*self.0;
        f.write_str(if *writing { "writing " } else { "reading " })?;
        match knob {
            Some(knob) => write!(f, "{knob}: ")?,
            None => write!(f, "{}: ", path.display())?,
        }
        match kind {
            ErrorKind::NotLoaded => {
                write!(f, "{} is not there; load the module with `modprobe ip_vs`", path.display())
            }
            ErrorKind::Absent => {
                f.write_str("this kernel does not have it")?;
                let Some(knob) = knob else { return Ok(()) };
                if let Some((major, minor)) = knob.describe().since {
                    write!(f, "; it exists since Linux {major}.{minor}")?;
                }
                match knob.describe().requires {
                    Some(requirement) => write!(f, "; it takes {requirement}"),
                    None => Ok(()),
                }
            }
            ErrorKind::Io => write!(f, "{} failed", path.display()),
            other => fmt::Display::fmt(other, f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|error| -> &(dyn std::error::Error + 'static) { error })
    }
}

netlink_batch::debug_is_message!(Error);

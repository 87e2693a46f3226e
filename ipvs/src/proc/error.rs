//! Errors of reading a file below `/proc`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a line that go into an error.
const SHOWN: usize = 120;

/// Kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file does not exist: the kernel currently has no IPVS.
    Absent,
    /// The caller may not read the file.
    Permission,
    /// Reading failed.
    Io,
    /// A line is not in the kernel's format.
    Malformed,
}

/// A file below `/proc` or one of its lines could not be read.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    path: PathBuf,
    line: u64,
    text: String,
    expected: &'static str,
    source: Option<Arc<io::Error>>,
}

impl Error {
    pub(super) fn io(path: &Path, line: u64, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::Absent,
            io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            _ => ErrorKind::Io,
        };
        let (path, text) = (path.to_owned(), String::new());
        Error(Box::new(Inner { kind, path, line, text, expected: "", source: Some(Arc::new(source)) }))
    }

    pub(super) fn malformed(path: &Path, line: u64, text: &[u8], expected: &'static str) -> Self {
        let shown = text.get(..SHOWN).unwrap_or(text);
        let text = String::from_utf8_lossy(shown).trim_end().to_owned();
        Error(Box::new(Inner { kind: ErrorKind::Malformed, path: path.to_owned(), line, text, expected, source: None }))
    }

    /// Kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Line, from 1; 0 if the file could not be opened.
    pub fn line(&self) -> u64 {
        self.0.line
    }

    /// The start of the malformed line.
    pub fn text(&self) -> &str {
        &self.0.text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { kind, path, line, text, expected, .. } = &*self.0;
        let path = path.display();
        match kind {
            ErrorKind::Absent => write!(f, "{path} is not there; load the module with `modprobe ip_vs`"),
            ErrorKind::Permission => write!(f, "{path} may only be read by root"),
            ErrorKind::Io => write!(f, "reading {path} failed after line {line}"),
            ErrorKind::Malformed => write!(f, "{path}, line {line}: found {text:?}, expected {expected}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|error| -> &(dyn std::error::Error + 'static) { error })
    }
}

netlink_batch::debug_is_message!(Error);

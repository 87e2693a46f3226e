//! Mistakes in a text, with their places.

use std::fmt;

/// Bytes of the faulty text that go into an error.
const SHOWN: usize = 60;

/// Kind of a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option that ipvsadm does not have.
    UnknownOption,
    /// An option without the value it needs, or with a value it does not take.
    Value,
    /// A value that cannot be read, or that is out of its range.
    BadValue,
    /// A host name in place of an address: names are not looked up here.
    HostName,
    /// A service name in place of a port: names are not looked up here.
    ServiceName,
    /// A word where an option should be.
    UnexpectedWord,
    /// Something that the command needs is not there.
    Missing,
    /// The same thing twice.
    Repeated,
    /// An option that does not go with the command or with another option.
    Conflict,
    /// A command of ipvsadm that does not change virtual or real servers one by one, such as `-L` or `--start-daemon`.
    Unsupported,
    /// A statement other than an addition where only additions are allowed, or `-C` or a bare `-Z` in a batch.
    NotAllowedHere,
    /// A real server for a virtual server that the text did not add before.
    UnknownVirtualServer,
}

/// The mistake in a few words; the error adds the place, and the text that was expected.
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::UnknownOption => "unknown option",
            ErrorKind::Value => "missing or unexpected value of an option",
            ErrorKind::BadValue => "impossible value",
            ErrorKind::HostName => "host name in place of an address",
            ErrorKind::ServiceName => "service name in place of a port",
            ErrorKind::UnexpectedWord => "word where an option should be",
            ErrorKind::Missing => "something that the command needs is missing",
            ErrorKind::Repeated => "the same thing twice",
            ErrorKind::Conflict => "options that do not go together",
            ErrorKind::Unsupported => "command that does not change virtual or real servers one by one",
            ErrorKind::NotAllowedHere => "command that is not allowed here",
            ErrorKind::UnknownVirtualServer => "real server of a virtual server that was not added before",
        })
    }
}

/// A mistake in a text, with its place.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    line: usize,
    column: usize,
    found: String,
    expected: String,
}

impl Error {
    pub(super) fn new(kind: ErrorKind, line: usize, column: usize, found: &str, expected: impl Into<String>) -> Self {
        let mut short: String = found.chars().take(SHOWN).collect();
        if short.len() < found.len() {
            short.push('…');
        }
        Error(Box::new(Inner { kind, line, column, found: short, expected: expected.into() }))
    }

    /// Kind of the mistake.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Line, from 1.
    pub fn line(&self) -> usize {
        self.0.line
    }

    /// Column of the first character of what is wrong, from 1.
    pub fn column(&self) -> usize {
        self.0.column
    }

    /// Text at the place of the mistake, shortened; empty for the end of the line.
    pub fn found(&self) -> &str {
        &self.0.found
    }

    /// Text that was expected there.
    pub fn expected(&self) -> &str {
        &self.0.expected
    }
}

/// `line 3, column 16: found "http", expected a port in numbers: service names are not looked up`.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { line, column, found, expected, .. } = &*self.0;
        write!(f, "line {line}, column {column}: found ")?;
        if found.is_empty() {
            f.write_str("the end of the line")?;
        } else {
            write!(f, "{found:?}")?;
        }
        write!(f, ", expected {expected}")
    }
}

impl std::error::Error for Error {}

/// The message, which is what a `main` that returns the error prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

//! Parse errors with their position.

use std::fmt;

/// Bytes of the faulty text that an error quotes.
const SHOWN: usize = 60;

/// Kind of a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option that ipvsadm does not have, or one of a command that changes no virtual or real server, such as `-L`.
    UnknownOption,
    /// An option without its required value, or with a value that it does not take.
    Value,
    /// A value that cannot be parsed or is out of range.
    BadValue,
    /// A host name instead of an address. Names are not looked up.
    HostName,
    /// A service name instead of a port. Names are not looked up.
    ServiceName,
    /// A word where an option is expected.
    UnexpectedWord,
    /// Something that the command requires is missing.
    Missing,
    /// The same thing twice.
    Repeated,
    /// An option that does not fit the command or another option.
    Conflict,
    /// A statement other than an addition where only additions are allowed, or `-C` or a bare `-Z` in a batch.
    NotAllowedHere,
    /// A real server of a virtual server that the text did not add before.
    UnknownVirtualServer,
}

/// The mistake in a few words. The error adds the position and the expected text.
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
            ErrorKind::NotAllowedHere => "command that is not allowed here",
            ErrorKind::UnknownVirtualServer => "real server of a virtual server that was not added before",
        })
    }
}

/// A mistake in a text, with its position.
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

    /// Column of the first wrong character, from 1.
    pub fn column(&self) -> usize {
        self.0.column
    }

    /// The text at the mistake, shortened; empty for the end of the line.
    pub fn found(&self) -> &str {
        &self.0.found
    }

    /// The text that was expected there.
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

/// The message, so a `main` that returns this error is readable.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

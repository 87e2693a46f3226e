//! The error type of this crate.

use std::fmt;

/// Kind of input that was refused.
///
/// A probe never fails with an [`Error`]. A list that could not be read is a [`Failure`](crate::Failure) in the report.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The text is not a kernel release such as `6.1.0-56-amd64`.
    InvalidRelease,
    /// A module name is empty, too long or has an invalid character.
    InvalidModuleName,
    /// A scheduler name is empty, too long for the kernel, or has an invalid character.
    InvalidScheduler,
    /// A requirement made by the caller names an invalid option.
    InvalidRequirement,
    /// The bytes are not the expected kind of list (`/proc/modules`, `modules.dep`, a kernel configuration, …).
    InvalidList,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidRelease => "invalid kernel release",
            Self::InvalidModuleName => "invalid module name",
            Self::InvalidScheduler => "invalid scheduler name",
            Self::InvalidRequirement => "invalid requirement",
            Self::InvalidList => "invalid list",
        })
    }
}

/// Invalid input: what it was, why it is wrong, and what is expected instead.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Kind of the invalid input.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// The message, so a `main` that returns this error is readable.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Untrusted text for a message: control characters escaped, at most 64 characters kept.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 64;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_is_the_message() {
        let error = Error::new(ErrorKind::InvalidList, format!("found \"{}\"", shown(&"x".repeat(9000))));
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(error.to_string().len() < 120, "{error}");
    }
}

//! The error type of this crate.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::name::TableName;

/// Kind of an error, as a value to match on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ErrorKind {
    /// A chain or table name that the kernel or the restore format cannot represent.
    InvalidName,
    /// A rule argument that the restore format cannot represent: a newline, a NUL byte, or more than 1,023 bytes. Or a
    /// rule whose line is too long or has too many arguments.
    InvalidToken,
    /// The text is not in the format of `iptables-save`. The message names the line.
    Parse,
    /// No suitable program is installed.
    ProgramMissing,
    /// The program runs, but this crate cannot work with its version or output.
    UnsupportedProgram,
    /// Not enough privilege (`CAP_NET_ADMIN` in the network namespace's user namespace).
    Permission,
    /// Another program held the xtables lock for longer than the limit. Legacy back end only.
    LockTimeout,
    /// The program exceeded its time limit and was killed. Tables that it had committed stay committed.
    TimedOut,
    /// A rule, a deletion or a jump names a chain that does not exist.
    ChainMissing,
    /// A chain cannot be deleted because a rule still jumps to it or it still has rules.
    ChainInUse,
    /// The rule to delete does not exist.
    RuleMissing,
    /// The program or the kernel does not have the match or target extension of a rule.
    ExtensionMissing,
    /// A rule names an ipset that does not exist.
    SetMissing,
    /// The program or the kernel refused the input for another reason: see the message and [`Error::failure`].
    Rejected,
    /// The kernel does not have the table, or has no tables for this back end.
    NoKernelSupport,
    /// The host's rules are in the other back end, or in both.
    MixedBackends,
    /// Starting the program, or communicating with it, failed, or a signal ended it.
    Io,
    /// The program failed in an unknown way. The message contains its output.
    Other,
}

/// A few words. The error's message has the details.
impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidName => "impossible name",
            Self::InvalidToken => "impossible rule argument",
            Self::Parse => "not the text of iptables-save",
            Self::ProgramMissing => "program not installed",
            Self::UnsupportedProgram => "unknown version or output of a program",
            Self::Permission => "not permitted",
            Self::LockTimeout => "xtables lock held by another program",
            Self::TimedOut => "program took too long",
            Self::ChainMissing => "no such chain",
            Self::ChainInUse => "chain in use",
            Self::RuleMissing => "no such rule",
            Self::ExtensionMissing => "unknown match or target",
            Self::SetMissing => "no such set",
            Self::Rejected => "refused by the program or the kernel",
            Self::NoKernelSupport => "no such tables in the kernel",
            Self::MixedBackends => "rules in another back end",
            Self::Io => "talking to a program failed",
            Self::Other => "program failed",
        })
    }
}

/// Where in the text for `iptables-restore` a failure occurred.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RestoreFailure {
    /// Line number in the text, from 1, if the program reported one.
    pub line: Option<usize>,
    /// The line itself.
    ///
    /// The legacy back end finds some errors only at commit and reports the `COMMIT` line. If the message reveals the
    /// cause (a jump to a missing chain), this is that line instead.
    pub text: Option<String>,
    /// The table whose edits failed. None of them was applied.
    pub table: Option<TableName>,
    /// Tables of the same transaction that were committed before. Each table is atomic, but a transaction over several
    /// tables is not: the kernel cannot do that.
    pub committed: Vec<TableName>,
    /// Message of the program, without the `Try …--help` lines.
    pub message: String,
}

/// A process that held the xtables lock when it was read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LockHolder {
    /// Process id in this process's namespace.
    pub pid: u32,
    /// Command name (`/proc/PID/comm`); empty if it could not be read.
    pub command: String,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", if self.command.is_empty() { "unknown" } else { &self.command }, self.pid)
    }
}

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    message: String,
    failure: Option<RestoreFailure>,
    holders: Vec<LockHolder>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

// Implemented by hand: derived, the source would be the `Arc`, which cannot be downcast to its content.
impl StdError for Inner {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| -> &(dyn StdError + 'static) { source })
    }
}

/// An error: what was attempted, on what, why it failed and what to do.
///
/// `Display` is one line about this level. The cause, if any, is only in [`source`](StdError::source).
#[derive(Clone, thiserror::Error)]
#[error(transparent)]
pub struct Error(Box<Inner>);

impl Error {
    /// An error without a cause.
    ///
    /// Public so that other implementations of [`Runner`](crate::Runner) can report failures.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), failure: None, holders: Vec::new(), source: None }))
    }

    /// Sets the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    pub(crate) fn with_failure(mut self, failure: RestoreFailure) -> Self {
        self.0.failure = Some(failure);
        self
    }

    pub(crate) fn with_holders(mut self, holders: Vec<LockHolder>) -> Self {
        self.0.holders = holders;
        self
    }

    /// Kind of the error, as a value to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Where a restore failed; `None` for every other operation.
    pub fn failure(&self) -> Option<&RestoreFailure> {
        self.0.failure.as_ref()
    }

    /// Holders of the xtables lock, for [`ErrorKind::LockTimeout`]. Empty if they could not be determined: they are in
    /// another process namespace, or released it meanwhile.
    pub fn lock_holders(&self) -> &[LockHolder] {
        &self.0.holders
    }

    /// Whether a chain, rule or set that was named does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.kind(), ErrorKind::ChainMissing | ErrorKind::RuleMissing | ErrorKind::SetMissing)
    }

    /// Whether privilege is missing.
    pub fn is_permission(&self) -> bool {
        self.kind() == ErrorKind::Permission
    }

    /// Whether a later retry may succeed: the lock was held, or the program took too long.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind(), ErrorKind::LockTimeout | ErrorKind::TimedOut)
    }
}

/// The message and its cause, so a `main` that returns this error is readable.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        std::iter::successors(self.source(), |&cause| cause.source()).try_for_each(|cause| write!(f, ": {cause}"))
    }
}

/// Shortens text for a message: escapes control characters and limits it to 200 characters.
pub(crate) fn excerpt(text: &str) -> String {
    const LIMIT: usize = 200;
    let mut short = String::new();
    for character in text.chars().take(LIMIT) {
        if character.is_control() {
            short.extend(character.escape_debug());
        } else {
            short.push(character);
        }
    }
    if text.chars().nth(LIMIT).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOENT: i32 = 2;

    #[test]
    fn debug_is_one_short_line_with_the_cause() {
        let cause = std::io::Error::from_raw_os_error(ENOENT);
        let mut error = Error::new(ErrorKind::Io, "starting iptables-restore failed").with_source(cause);
        let failure = RestoreFailure {
            line: Some(1),
            text: Some("-A KUBE-SERVICES".repeat(1000)),
            table: None,
            committed: Vec::new(),
            message: "x".repeat(5000),
        };
        error = error.with_failure(failure);
        let copy = error.clone();
        assert_eq!(format!("{copy:?}"), "starting iptables-restore failed: No such file or directory (os error 2)");
        assert_eq!(format!("{copy:#?}"), format!("{error:?}"));
        let source = copy.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(ENOENT));
    }

    #[test]
    fn program_output_is_shown_unchanged() {
        assert_eq!(excerpt("Couldn't load match `nosuch': \"x\\y\""), "Couldn't load match `nosuch': \"x\\y\"");
        assert_eq!(excerpt("two\nlines\u{1b}[0m"), "two\\nlines\\u{1b}[0m");
        assert_eq!(excerpt(&"ä".repeat(300)).chars().count(), 201);
    }
}

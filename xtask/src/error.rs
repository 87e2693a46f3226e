//! The one error type of the project commands.

use std::error::Error as StdError;
use std::fmt;
use std::process::ExitCode;

/// An error, in one line a person can act on.
///
/// The cause is only in [`source`](StdError::source); `main` prints the whole chain.
#[derive(Debug)]
pub(crate) struct Error {
    message: String,
    usage: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Something could not be done.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), usage: false, source: None }
    }

    /// The command line makes no sense: exit code 2.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), usage: true, source: None }
    }

    /// The exit code of the process: 2 for bad usage, 125 for everything else that kept the command from running.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(if self.usage { 2 } else { 125 })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Says what was being done when an error happened.
pub(crate) trait Context<T> {
    /// Wraps the error in one that starts with `what`.
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: StdError + Send + Sync + 'static> Context<T> for Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error { message: what(), usage: false, source: Some(Box::new(source)) })
    }
}

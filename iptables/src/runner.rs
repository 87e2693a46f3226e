//! The door to the outside: everything this crate starts, it starts through [`Runner`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Error;
use crate::lock::{self, HeldLock};
use crate::name::Family;

/// One program run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Invocation {
    /// The program, by absolute path.
    pub program: PathBuf,
    /// Arguments, without the program's name.
    pub args: Vec<String>,
    /// Standard input of the program.
    pub stdin: String,
    /// Time after which the program is killed.
    pub time_limit: Duration,
}

impl Invocation {
    /// A run with nothing to read.
    pub fn new<I>(program: &Path, args: I, time_limit: Duration) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let args = args.into_iter().map(Into::into).collect();
        Self { program: program.to_owned(), args, stdin: String::new(), time_limit }
    }

    /// The same with this text to read.
    #[must_use]
    pub fn with_stdin(mut self, text: String) -> Self {
        self.stdin = text;
        self
    }
}

/// Exit code and output of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// Exit code; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// A run with this exit code that printed nothing; `None` if a signal ended it.
    pub fn new(code: Option<i32>) -> Self {
        Self { code, ..Self::default() }
    }

    /// The same with this printed.
    #[must_use]
    pub fn with_stdout(mut self, stdout: impl Into<Vec<u8>>) -> Self {
        self.stdout = stdout.into();
        self
    }

    /// The same with these complaints.
    #[must_use]
    pub fn with_stderr(mut self, stderr: impl Into<Vec<u8>>) -> Self {
        self.stderr = stderr.into();
        self
    }
}

/// The lock on behalf of programs too old to take it; released on drop.
#[derive(Debug)]
pub struct LockGuard(#[expect(dead_code, reason = "held for its Drop")] Option<HeldLock>);

impl LockGuard {
    /// A guard that holds nothing, for runners whose programs need no lock.
    pub fn none() -> Self {
        Self(None)
    }

    pub(crate) fn take(path: &Path, wait: Duration) -> Result<Self, Error> {
        HeldLock::take(path, wait).map(|lock| Self(Some(lock)))
    }
}

/// Finds and runs the iptables programs. [`System`](crate::System) is the real one; with feature `testing`, `fake::FakeHost`
/// holds tables in memory.
pub trait Runner {
    /// The absolute path of a program (`iptables-nft-save`); `None` if it is not installed.
    fn find(&self, program: &str) -> Option<PathBuf>;

    /// Runs a program to its end. An exit code other than 0 is not an error here.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be started or talked to,
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if it was killed for taking too long.
    fn run(&self, invocation: &Invocation) -> Result<Output, Error>;

    /// Runs as [`Runner::run`], for a text that is made while the program reads it: after [`Invocation::stdin`] the program reads what
    /// `more` appends to a text, which is empty at each call, until `more` returns `false`; what was appended by that last call is read
    /// too. [`System`](crate::System) calls `more` no more once the program has stopped reading.
    ///
    /// Default: makes the whole text first, and runs the program with that ([`Runner::run`]).
    ///
    /// # Errors
    /// As [`Runner::run`].
    fn run_with(&self, invocation: &Invocation, more: &mut dyn FnMut(&mut String) -> bool) -> Result<Output, Error> {
        let (mut whole, mut piece) = (invocation.clone(), String::new());
        loop {
            let goes_on = more(&mut piece);
            whole.stdin.push_str(&piece);
            if !goes_on {
                return self.run(&whole);
            }
            piece.clear();
        }
    }

    /// The file behind a program, links resolved: programs that share a file share version and back end. Default: the
    /// path as it is.
    fn resolve(&self, program: &Path) -> PathBuf {
        program.to_owned()
    }

    /// Whether the kernel has legacy tables here, if that can be found out without starting a program; else `None`.
    ///
    /// The kernel lists them in `/proc/net/ip_tables_names` (`xt_table_seq_show`), which `iptables-legacy-save` reads,
    /// too. Without that file there is no module, and so there are no tables.
    fn has_legacy_tables(&self, family: Family) -> Option<bool> {
        let _ = family;
        None
    }

    /// The lock file in use.
    fn lock_path(&self) -> &Path {
        Path::new(lock::LOCK_PATH)
    }

    /// Takes the xtables lock for a program that does not do so itself.
    ///
    /// # Errors
    /// [`ErrorKind::LockTimeout`](crate::ErrorKind::LockTimeout) if it is not free in time.
    fn lock(&self, wait: Duration) -> Result<LockGuard, Error> {
        LockGuard::take(self.lock_path(), wait)
    }
}

impl<R: Runner + ?Sized> Runner for &R {
    fn find(&self, program: &str) -> Option<PathBuf> {
        (**self).find(program)
    }

    fn run(&self, invocation: &Invocation) -> Result<Output, Error> {
        (**self).run(invocation)
    }

    fn run_with(&self, invocation: &Invocation, more: &mut dyn FnMut(&mut String) -> bool) -> Result<Output, Error> {
        (**self).run_with(invocation, more)
    }

    fn resolve(&self, program: &Path) -> PathBuf {
        (**self).resolve(program)
    }

    fn has_legacy_tables(&self, family: Family) -> Option<bool> {
        (**self).has_legacy_tables(family)
    }

    fn lock_path(&self) -> &Path {
        (**self).lock_path()
    }

    fn lock(&self, wait: Duration) -> Result<LockGuard, Error> {
        (**self).lock(wait)
    }
}

impl<R: Runner + ?Sized> Runner for std::sync::Arc<R> {
    fn find(&self, program: &str) -> Option<PathBuf> {
        (**self).find(program)
    }

    fn run(&self, invocation: &Invocation) -> Result<Output, Error> {
        (**self).run(invocation)
    }

    fn run_with(&self, invocation: &Invocation, more: &mut dyn FnMut(&mut String) -> bool) -> Result<Output, Error> {
        (**self).run_with(invocation, more)
    }

    fn resolve(&self, program: &Path) -> PathBuf {
        (**self).resolve(program)
    }

    fn has_legacy_tables(&self, family: Family) -> Option<bool> {
        (**self).has_legacy_tables(family)
    }

    fn lock_path(&self) -> &Path {
        (**self).lock_path()
    }

    fn lock(&self, wait: Duration) -> Result<LockGuard, Error> {
        (**self).lock(wait)
    }
}

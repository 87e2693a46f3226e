//! The trait [`Runner`], through which this crate starts every program.

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
    /// Time after which the program is killed; [`System`](crate::System) gives one that computes up to ten times as long.
    pub time_limit: Duration,
}

impl Invocation {
    /// A run without input.
    pub fn new<I>(program: &Path, args: I, time_limit: Duration) -> Self
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let args = args.into_iter().map(Into::into).collect();
        Self { program: program.to_owned(), args, stdin: String::new(), time_limit }
    }

    /// Sets the standard input.
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

    /// Sets the standard output.
    #[must_use]
    pub fn with_stdout(mut self, stdout: impl Into<Vec<u8>>) -> Self {
        self.stdout = stdout.into();
        self
    }

    /// Sets the standard error.
    #[must_use]
    pub fn with_stderr(mut self, stderr: impl Into<Vec<u8>>) -> Self {
        self.stderr = stderr.into();
        self
    }
}

/// The lock, held for a program too old to take it; released on drop.
#[derive(Debug)]
pub struct LockGuard(#[expect(dead_code, reason = "held for its Drop")] Option<HeldLock>);

impl LockGuard {
    /// A guard without a lock, for runners whose programs need none.
    pub fn none() -> Self {
        Self(None)
    }

    pub(crate) fn take(path: &Path, wait: Duration) -> Result<Self, Error> {
        HeldLock::take(path, wait).map(|lock| Self(Some(lock)))
    }
}

/// Finds and runs the iptables programs. [`System`](crate::System) is the real one. With feature `testing`,
/// `fake::FakeHost` simulates the programs.
pub trait Runner {
    /// The absolute path of a program (`iptables-nft-save`); `None` if it is not installed.
    fn find(&self, program: &str) -> Option<PathBuf>;

    /// Runs a program until it ends. An exit code other than 0 is not an error here.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if it cannot be started or communicated with,
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if it exceeded its time limit and was killed.
    fn run(&self, invocation: &Invocation) -> Result<Output, Error>;

    /// Like [`Runner::run`], for input that is generated while the program reads it. After [`Invocation::stdin`] the
    /// program reads what `more` appends to an initially empty text, until `more` returns `false`; the last text is
    /// read too. [`System`](crate::System) stops calling `more` when the program stops reading.
    ///
    /// The default implementation generates the whole text first and calls [`Runner::run`].
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

    /// The file behind a program, with links resolved. Programs that share a file share version and back end. By
    /// default the path itself.
    fn resolve(&self, program: &Path) -> PathBuf {
        program.to_owned()
    }

    /// Whether the kernel has legacy tables, if that can be found without starting a program; otherwise `None`.
    ///
    /// The kernel lists them in `/proc/net/ip_tables_names` (`xt_table_seq_show`), which `iptables-legacy-save` reads
    /// too. Without that file the module is not loaded, so there are no tables.
    fn has_legacy_tables(&self, family: Family) -> Option<bool> {
        let _ = family;
        None
    }

    /// The lock file in use.
    fn lock_path(&self) -> &Path {
        Path::new(lock::LOCK_PATH)
    }

    /// Takes the xtables lock for a program that does not take it itself.
    ///
    /// # Errors
    /// [`ErrorKind::LockTimeout`](crate::ErrorKind::LockTimeout) if it is not free in time.
    fn lock(&self, wait: Duration) -> Result<LockGuard, Error> {
        LockGuard::take(self.lock_path(), wait)
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<R: Runner + ?Sized> Runner for $pointer {
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
    )*};
}

forward!(&R, std::sync::Arc<R>);

//! Loading modules, only when asked to: `modprobe`, without a shell and for a bounded time.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::modules::{LoadedModules, ModuleName};
use crate::root::Root;

/// Result of running a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The program ended. `code` is `None` when a signal ended it.
    Ended {
        /// Exit code; `None` when a signal ended the program.
        code: Option<i32>,
        /// Error output, at most 4 kB.
        stderr: String,
    },
    /// The program was still running at its time limit, and was killed.
    TimedOut,
    /// The program could not be started.
    NotStarted(String),
}

/// Starts programs. Replaced in tests.
pub trait Runner {
    /// Runs a program to its end or until `limit` is over.
    fn run(&mut self, program: &Path, arguments: &[&str], limit: Duration) -> RunOutcome;
}

/// Starts real programs: environment emptied but for `LC_ALL=C` and a fixed `PATH`, no input, no shell, in a process
/// group of its own so that what it starts ends with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRunner;

impl Runner for SystemRunner {
    fn run(&mut self, program: &Path, arguments: &[&str], limit: Duration) -> RunOutcome {
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("LC_ALL", "C")
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        match child {
            Ok(child) => watch(child, limit),
            Err(error) => RunOutcome::NotStarted(error.to_string()),
        }
    }
}

/// Waits for a child and collects its error output, never longer than `limit`.
fn watch(mut child: Child, limit: Duration) -> RunOutcome {
    /// The longest pause between two looks; the first is a hundredth of it, since `modprobe` often ends within a few milliseconds.
    const PAUSE: Duration = Duration::from_millis(5);
    let (started, mut pause) = (Instant::now(), PAUSE / 100);
    let mut output = child.stderr.take().and_then(|pipe| Tail::new(pipe.into()).ok());
    loop {
        if let Some(output) = &mut output {
            output.read();
        }
        match child.try_wait() {
            Ok(Some(status)) => {
                let stderr = output.map(Tail::finish).unwrap_or_default();
                return RunOutcome::Ended { code: status.code(), stderr };
            }
            Ok(None) if started.elapsed() < limit => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE);
            }
            Ok(None) | Err(_) => {
                if let Ok(pid) = i32::try_from(child.id()) {
                    // The process may just have ended; then there is no group any more.
                    let _gone_is_fine = killpg(Pid::from_raw(pid), Signal::SIGKILL);
                }
                let _reaped = child.wait();
                return RunOutcome::TimedOut;
            }
        }
    }
}

/// The beginning of what a program writes to a pipe. Never blocks; the rest is read and dropped, so that the program
/// does not block either.
struct Tail {
    pipe: File,
    kept: Vec<u8>,
}

impl Tail {
    const MOST: usize = 4096;

    fn new(pipe: OwnedFd) -> io::Result<Self> {
        let flags = OFlag::from_bits_truncate(fcntl(pipe.as_fd(), FcntlArg::F_GETFL)?);
        fcntl(pipe.as_fd(), FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self { pipe: File::from(pipe), kept: Vec::new() })
    }

    fn read(&mut self) {
        const MOST_READS: usize = 64; // a program that writes without end must not keep us from looking at the clock
        let mut chunk = [0; 1024];
        for _ in 0..MOST_READS {
            match self.pipe.read(&mut chunk) {
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    let room = Self::MOST.saturating_sub(self.kept.len()).min(length);
                    self.kept.extend_from_slice(chunk.get(..room).unwrap_or_default());
                }
            }
        }
    }

    fn finish(mut self) -> String {
        self.read();
        // One line, without control characters: it ends up in messages.
        String::from_utf8_lossy(&self.kept).replace(char::is_control, " ").trim().to_owned()
    }
}

/// Result of loading one module.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum LoadResult {
    /// The module is in memory now.
    Loaded,
    /// The module was in memory or built in before.
    AlreadyThere,
    /// `modprobe` reported success, yet the module is neither in `/proc/modules` nor in `/sys/module`: `modprobe.d` may
    /// replace it ("install ip_vs /bin/true"), or it is built in without parameters.
    NotSeen,
    /// `modprobe` failed.
    Failed {
        /// Exit code, `None` when a signal ended it.
        code: Option<i32>,
        /// Message of `modprobe`.
        message: String,
    },
    /// `modprobe` did not end in time.
    TimedOut,
    /// There is no `modprobe`, or it could not be started, and why.
    NotStarted(String),
}

/// Result of loading one module, with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LoadOutcome {
    /// The module.
    pub module: ModuleName,
    /// Result of loading it.
    pub result: LoadResult,
}

impl LoadOutcome {
    /// Whether the module can be used now.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        matches!(self.result, LoadResult::Loaded | LoadResult::AlreadyThere)
    }
}

impl fmt::Display for LoadOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.module)?;
        match &self.result {
            LoadResult::Loaded => f.write_str("loaded"),
            LoadResult::AlreadyThere => f.write_str("already there"),
            LoadResult::NotSeen => f.write_str(
                "modprobe reported success, but the module is not there: look for a line \"install\" in modprobe.d",
            ),
            LoadResult::Failed { code: Some(code), message } => {
                write!(f, "modprobe failed with code {code}: {message}")
            }
            LoadResult::Failed { code: None, message } => write!(f, "modprobe was killed: {message}"),
            LoadResult::TimedOut => f.write_str("modprobe did not end in time and was killed"),
            LoadResult::NotStarted(why) => write!(f, "modprobe was not started: {why}"),
        }
    }
}

/// Loads modules with `modprobe`. The only part of this crate that starts a program or changes anything, and only when
/// called.
#[derive(Debug)]
pub struct Loader<R = SystemRunner> {
    runner: R,
    root: Root,
}

impl Default for Loader {
    fn default() -> Self {
        Self::new()
    }
}

impl Loader {
    /// Loads into the running kernel, from `/lib/modules`, with 10 seconds for one `modprobe`.
    #[must_use]
    pub fn new() -> Self {
        Self::with_runner(SystemRunner)
    }
}

impl<R: Runner> Loader<R> {
    /// Directories in which `modprobe` is looked for; `PATH` is not consulted.
    pub const DIRECTORIES: [&'static str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

    /// Time limit of one `modprobe`.
    const LIMIT: Duration = Duration::from_secs(10);

    /// The same with another way to start programs.
    #[must_use]
    pub fn with_runner(runner: R) -> Self {
        Self { runner, root: Root::new("/") }
    }

    /// Takes modules from below another root (`modprobe -d`), and looks there for `/proc` and `/sys`. The program itself
    /// is this machine's.
    #[must_use]
    pub fn root(mut self, root: impl Into<PathBuf>) -> Self {
        self.root = Root::new(root);
        self
    }

    /// Loads modules, and what they depend on, with one `modprobe` (`-a`), which is much faster than one for each: most of its time
    /// goes into starting and reading its lists. Modules that are there already are left out; if all are, nothing is started.
    ///
    /// A module that does not exist does not keep the others from being loaded. `modprobe` reports only for all together whether it
    /// succeeded, so each that is not there afterwards has its message.
    pub fn load_all(&mut self, modules: &[ModuleName]) -> Vec<LoadOutcome> {
        let (there, missing): (Vec<_>, Vec<_>) = modules.iter().partition(|module| self.is_there(module));
        let tried = if missing.is_empty() { LoadResult::AlreadyThere } else { self.modprobe(&missing) };
        let there = there.into_iter().map(|module| (module, LoadResult::AlreadyThere));
        let missing = missing.into_iter().map(|module| {
            let result = if self.is_there(module) { LoadResult::Loaded } else { tried.clone() };
            (module, result)
        });
        there.chain(missing).map(|(module, result)| LoadOutcome { module: module.clone(), result }).collect()
    }

    /// Result of one `modprobe` for these modules: [`LoadResult::NotSeen`] when it reports success.
    fn modprobe(&mut self, modules: &[&ModuleName]) -> LoadResult {
        let Some(program) = Self::DIRECTORIES.iter().map(|d| Path::new(d).join("modprobe")).find(|p| p.is_file())
        else {
            return LoadResult::NotStarted(format!("there is none in {}", Self::DIRECTORIES.join(", ")));
        };
        let root = self.root.path().to_string_lossy().into_owned();
        let mut arguments = Vec::new();
        if root != "/" {
            arguments.extend(["-d", &root]);
        }
        if modules.len() > 1 {
            arguments.push("-a");
        }
        arguments.push("--");
        arguments.extend(modules.iter().map(|module| module.as_str()));
        match self.runner.run(&program, &arguments, Self::LIMIT) {
            RunOutcome::Ended { code: Some(0), .. } => LoadResult::NotSeen,
            RunOutcome::Ended { code, stderr } => LoadResult::Failed { code, message: stderr },
            RunOutcome::TimedOut => LoadResult::TimedOut,
            RunOutcome::NotStarted(why) => LoadResult::NotStarted(why),
        }
    }

    fn is_there(&self, module: &ModuleName) -> bool {
        const LARGEST: u64 = 16 << 20;
        let listed = self.root.read("/proc/modules", LARGEST).ok().and_then(|bytes| LoadedModules::parse(&bytes).ok());
        listed.is_some_and(|list| list.get(module).is_some())
            || self.root.exists(&format!("/sys/module/{module}")).unwrap_or(false)
    }
}

//! Loads modules on request: runs `modprobe` without a shell and with a time limit.

use std::cell::LazyCell;
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
    /// The program ended. `code` is `None` if a signal ended it.
    Ended {
        /// Exit code; `None` if a signal ended the program.
        code: Option<i32>,
        /// Error output, at most 4 kB.
        stderr: String,
    },
    /// The program exceeded its time limit and was killed.
    TimedOut,
    /// The program could not be started.
    NotStarted(String),
}

/// Starts programs. Replaced in tests.
pub trait Runner {
    /// Runs a program until it ends or `limit` is over.
    fn run(&mut self, program: &Path, arguments: &[&str], limit: Duration) -> RunOutcome;
}

/// Starts real programs without a shell or input. The environment is only `LC_ALL=C` and a fixed `PATH`. Each has its
/// own process group, so that its children are killed with it.
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

/// Waits for a child and collects its error output, at most for `limit`.
fn watch(mut child: Child, limit: Duration) -> RunOutcome {
    /// The longest pause between two checks. The first pause is a hundredth of it, since `modprobe` often ends within a
    /// few milliseconds.
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
                    // If the process has just ended, the group no longer exists.
                    let _gone_is_fine = killpg(Pid::from_raw(pid), Signal::SIGKILL);
                }
                let _reaped = child.wait();
                return RunOutcome::TimedOut;
            }
        }
    }
}

/// The beginning of what a program writes to a pipe. Never blocks. The rest is read and discarded, so that the program
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
        const MOST_READS: usize = 64; // so that endless output cannot keep us from checking the time
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
        // One line without control characters, since it is used in messages.
        String::from_utf8_lossy(&self.kept).replace(char::is_control, " ").trim().to_owned()
    }
}

/// Result of loading one module.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "kebab-case"))]
pub enum LoadResult {
    /// The module is now loaded.
    Loaded,
    /// The module was already loaded or built in.
    AlreadyThere,
    /// `modprobe` succeeded, but the module is neither in `/proc/modules` nor in `/sys/module`. Either `modprobe.d`
    /// replaces it ("install ip_vs /bin/true"), or it is built in without parameters.
    NotSeen,
    /// `modprobe` failed.
    Failed {
        /// Exit code, `None` if a signal ended it.
        code: Option<i32>,
        /// Message of `modprobe`.
        message: String,
    },
    /// `modprobe` did not end in time.
    TimedOut,
    /// `modprobe` is missing, is of no use, or could not be started, and why.
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
    /// Whether the module can now be used.
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

/// Loads modules with `modprobe`. This is the only part of the crate that starts a program or changes anything.
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
    /// Loads into the running kernel from `/lib/modules`, with 10 seconds per `modprobe`.
    #[must_use]
    pub fn new() -> Self {
        Self::with_runner(SystemRunner)
    }
}

impl<R: Runner> Loader<R> {
    /// Directories in which to look for `modprobe`. `PATH` is ignored.
    pub const DIRECTORIES: [&'static str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

    /// Time limit of one `modprobe`.
    const LIMIT: Duration = Duration::from_secs(10);

    /// Replaces the runner that starts programs.
    #[must_use]
    pub fn with_runner(runner: R) -> Self {
        Self { runner, root: Root::new("/") }
    }

    /// Uses modules below another root (`modprobe -d`), and `/proc` and `/sys` there. The program itself is this
    /// machine's.
    #[must_use]
    pub fn root(mut self, root: impl Into<PathBuf>) -> Self {
        self.root = Root::new(root);
        self
    }

    /// Loads modules and their dependencies with one `modprobe` (`-a`). This is much faster than one call per module,
    /// since most of its time goes into starting and reading lists. Modules that are already present are skipped.
    ///
    /// A module that does not exist does not prevent the others from being loaded. `modprobe` only reports success for
    /// all of them together, so each module that is missing afterwards gets its message.
    pub fn load_all(&mut self, modules: &[ModuleName]) -> Vec<LoadOutcome> {
        let (there, missing) = self.by_presence(modules.iter().collect());
        let tried = if missing.is_empty() { LoadResult::AlreadyThere } else { self.modprobe(&missing) };
        let (loaded, missing) = self.by_presence(missing);
        let outcome = |(module, result): (&ModuleName, LoadResult)| LoadOutcome { module: module.clone(), result };
        let there = there.into_iter().map(|module| (module, LoadResult::AlreadyThere));
        let loaded = loaded.into_iter().map(|module| (module, LoadResult::Loaded));
        let missing = missing.into_iter().map(|module| (module, tried.clone()));
        there.chain(loaded).chain(missing).map(outcome).collect()
    }

    /// Modules that are loaded or built in, and the others.
    fn by_presence<'a>(&self, modules: Vec<&'a ModuleName>) -> (Vec<&'a ModuleName>, Vec<&'a ModuleName>) {
        const LARGEST: u64 = 16 << 20;
        let read = || LoadedModules::parse(&self.root.read("/proc/modules", LARGEST).ok()?).ok();
        let listed = LazyCell::new(read);
        modules.into_iter().partition(|module| {
            self.root.exists(&format!("/sys/module/{module}")).unwrap_or(false)
                || listed.as_ref().is_some_and(|list| list.get(module).is_some())
        })
    }

    /// Runs one `modprobe` for these modules. Returns [`LoadResult::NotSeen`] if it reports success.
    fn modprobe(&mut self, modules: &[&ModuleName]) -> LoadResult {
        // Both exist with `CONFIG_MODULES` only (`kernel/module/procfs.c`, `kernel/module/main.c`).
        if ["/proc/modules", "/proc/sys/kernel/modprobe"].iter().all(|path| self.root.exists(path) == Ok(false)) {
            return LoadResult::NotStarted("this kernel loads no modules".to_owned());
        }
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
}

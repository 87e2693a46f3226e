//! The real runner: this machine's programs, started without a shell.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::time::ClockId;
use nix::unistd::Pid;

use crate::error::{Error, ErrorKind};
use crate::lock;
use crate::name::Family;
use crate::runner::{Invocation, LockGuard, Output, Runner};

/// Directories to search for programs, in order. The environment's `PATH` is ignored.
const DIRECTORIES: [&str; 6] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin", "/usr/local/bin"];

/// Runs this machine's programs in the calling thread's network namespace, or in another one ([`System::open_in`]).
///
/// Programs are started by absolute path without a shell. Their environment is only `LC_ALL=C` and `PATH` (and
/// `XTABLES_LOCKFILE`, if set here). They are killed when they exceed their time limit
/// (ten times the limit, if they compute).
#[derive(Clone, Debug)]
pub struct System {
    directories: Vec<PathBuf>,
    lock_file: Option<PathBuf>,
    /// Network namespace of the programs; `None` for the calling thread's.
    namespace: Option<Arc<OwnedFd>>,
}

impl Default for System {
    fn default() -> Self {
        Self::new()
    }
}

impl System {
    /// Searches for programs in the usual directories.
    pub fn new() -> Self {
        Self { directories: DIRECTORIES.iter().map(PathBuf::from).collect(), lock_file: None, namespace: None }
    }

    /// Runs the programs in another network namespace, given by an open file: `/proc/<pid>/ns/net`,
    /// `/run/netns/<name>`. The namespace lives as long as this value or a clone of it. Files, including the lock, are
    /// the caller's, as with `ip netns exec`.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`]: entering a namespace needs `CAP_SYS_ADMIN`. [`ErrorKind::Io`] if the file is not a
    /// network namespace.
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, Error> {
        let held = namespace.try_clone_to_owned().map_err(failed_to_enter)?;
        let system = Self { namespace: Some(Arc::new(held)), ..Self::new() };
        system.inside(|| ())?;
        Ok(system)
    }

    /// Runs `act` in the namespace in which the programs run.
    fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> Result<T, Error> {
        let Some(namespace) = &self.namespace else { return Ok(act()) };
        // Use a separate thread: if switching back failed, the caller would stay in the wrong namespace.
        thread::scope(|scope| {
            let entered = thread::Builder::new().name("iptables".to_owned()).spawn_scoped(scope, move || {
                setns(namespace, CloneFlags::CLONE_NEWNET)?;
                Ok(act())
            });
            let entered = entered.map_err(failed_to_enter)?;
            let done = entered.join().unwrap_or_else(|panic| resume_unwind(panic));
            done.map_err(|errno: nix::errno::Errno| failed_to_enter(errno.into()))
        })
    }

    /// Searches for programs only in this directory; an empty directory has none. A relative path is ignored.
    #[must_use]
    pub fn with_only_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        let directory = directory.into();
        if directory.is_absolute() {
            self.directories = vec![directory];
        }
        self
    }

    /// Uses another lock file than `/run/xtables.lock`, such as the path where a container mounts the host's file. The
    /// programs get it as `XTABLES_LOCKFILE`, which they support since 1.8.6; older ones ignore it.
    #[must_use]
    pub fn with_lock_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.lock_file = Some(path.into());
        self
    }
}

fn failed_to_enter(e: io::Error) -> Error {
    let kind = if e.kind() == io::ErrorKind::PermissionDenied { ErrorKind::Permission } else { ErrorKind::Io };
    Error::new(kind, "cannot enter the network namespace").with_source(e)
}

impl Runner for System {
    fn find(&self, program: &str) -> Option<PathBuf> {
        let runs = |path: &PathBuf| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
        self.directories.iter().map(|d| d.join(program)).find(runs)
    }

    fn run(&self, invocation: &Invocation) -> Result<Output, Error> {
        self.run_with(invocation, &mut |_| false)
    }

    fn run_with(&self, invocation: &Invocation, more: &mut dyn FnMut(&mut String) -> bool) -> Result<Output, Error> {
        let name = invocation.program.display();
        if !invocation.program.is_absolute() {
            return Err(Error::new(ErrorKind::ProgramMissing, format!("{name} is not an absolute path")));
        }
        let mut command = Command::new(&invocation.program);
        command.args(&invocation.args).env_clear().env("LC_ALL", "C").env("PATH", DIRECTORIES.join(":"));
        if let Some(path) = &self.lock_file {
            command.env("XTABLES_LOCKFILE", path);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A program starts in the network namespace of the thread that starts it.
        let child = self.inside(|| command.spawn())?.map_err(|e| {
            let kind = match e.kind() {
                io::ErrorKind::NotFound => ErrorKind::ProgramMissing,
                io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                _ => ErrorKind::Io,
            };
            Error::new(kind, format!("cannot start {name}")).with_source(e)
        })?;
        let mut child = Reaped(child);
        match converse(&mut child.0, invocation, more) {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(time)) => {
                let of = [&[name.to_string()], invocation.args.as_slice()].concat().join(" ");
                Err(Error::new(ErrorKind::TimedOut, format!("{of} was killed after {:.1} s", time.as_secs_f64())))
            }
            Err(e) => Err(Error::new(ErrorKind::Io, format!("lost contact with {name}")).with_source(e)),
        }
    }

    fn resolve(&self, program: &Path) -> PathBuf {
        // A path that cannot be resolved is used unchanged.
        program.canonicalize().unwrap_or_else(|_| program.to_owned())
    }

    fn has_legacy_tables(&self, family: Family) -> Option<bool> {
        let name = match family {
            Family::Ipv4 => "ip_tables_names",
            Family::Ipv6 => "ip6_tables_names",
        };
        // Not the process's file: a thread may be in another network namespace.
        let has = || match std::fs::read(Path::new("/proc/thread-self/net").join(name)) {
            Ok(names) => Some(!names.is_empty()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Path::new("/proc/thread-self/net").exists().then_some(false)
            }
            Err(_) => None,
        };
        // Without the namespace the answer is unknown.
        self.inside(has).unwrap_or(None)
    }

    fn lock(&self, wait: Duration) -> Result<LockGuard, Error> {
        // The oldest lock is an abstract socket, which belongs to the network namespace.
        self.inside(|| LockGuard::take(self.lock_path(), wait))?
    }

    fn lock_path(&self) -> &Path {
        self.lock_file.as_deref().unwrap_or(Path::new(lock::LOCK_PATH))
    }
}

/// A child that is killed and reaped on drop if it still runs.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(Some(_))) {
            // Both fail only if the child has already ended.
            drop(self.0.kill());
            drop(self.0.wait());
        }
    }
}

/// The three pipes. Each is closed once it is not needed any more.
struct Pipes {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

/// Standard input of a child. Each piece of text is generated when the previous one has been written.
struct Input<'a> {
    piece: String,
    written: usize,
    more: Option<&'a mut dyn FnMut(&mut String) -> bool>,
}

impl Input<'_> {
    /// Text to write next; empty at the end.
    fn rest(&mut self) -> &[u8] {
        while self.written >= self.piece.len()
            && let Some(more) = &mut self.more
        {
            self.piece.clear();
            self.written = 0;
            if !more(&mut self.piece) {
                self.more = None;
            }
        }
        self.piece.as_bytes().get(self.written..).unwrap_or_default()
    }
}

/// Size of the pipe for a large text: as much as the kernel gives every user (`fs.pipe-max-size`).
const PIPE_SIZE: i32 = 1 << 20;

/// Time after which a full pipe is filled again. A restore program reads a tenth of it in that time.
const REFILL: Duration = Duration::from_millis(5);

/// The time that a program has.
struct Allowance {
    program: Pid,
    start: Instant,
    limit: Duration,
    /// When it ends: an elapsed time, since an `Instant` cannot represent now plus `Duration::MAX`.
    until: Duration,
    /// Processor time that the program had used when the limit was over last.
    used: Duration,
}

impl Allowance {
    /// A program that still computes gets its limit again, nine times at most: the next attempt would take as long. One
    /// that waits gets nothing more. In a container with a tenth of a processor, the programs of two families and this
    /// process share that tenth.
    fn left(&mut self) -> Duration {
        let elapsed = self.start.elapsed();
        if elapsed >= self.until && self.until < self.limit.saturating_mul(10) {
            let clock = ClockId::pid_cpu_clock_id(self.program).and_then(ClockId::now);
            let used = clock.map_or(self.used, Duration::from);
            if used.saturating_sub(self.used) >= self.limit / 100 {
                self.until = self.until.saturating_add(self.limit);
            }
            self.used = used;
        }
        self.until.saturating_sub(elapsed)
    }
}

/// Writes to and reads from a child until it ends, or its time is over; then returns that time.
fn converse(
    child: &mut Child,
    invocation: &Invocation,
    more: &mut dyn FnMut(&mut String) -> bool,
) -> io::Result<Result<Output, Duration>> {
    let limit = invocation.time_limit;
    let program = Pid::from_raw(child.id().try_into().map_err(io::Error::other)?);
    let mut allowed = Allowance { program, start: Instant::now(), limit, until: limit, used: Duration::ZERO };
    let mut pipes = Pipes { stdin: child.stdin.take(), stdout: child.stdout.take(), stderr: child.stderr.take() };
    if let Some(pipe) = &pipes.stdin {
        unblock(pipe)?;
    }
    if let Some(pipe) = &pipes.stdout {
        unblock(pipe)?;
    }
    if let Some(pipe) = &pipes.stderr {
        unblock(pipe)?;
    }
    let mut input = Input { piece: invocation.stdin.clone(), written: 0, more: Some(more) };
    let mut output = Output::default();
    let (mut is_full, mut is_large) = (false, false);
    loop {
        // While the pipe is full, generate the next piece.
        if pipes.stdin.is_some() && input.rest().is_empty() {
            pipes.stdin = None;
        }
        if pipes.stdin.is_none() && pipes.stdout.is_none() && pipes.stderr.is_none() {
            break;
        }
        let left = allowed.left();
        if left.is_zero() {
            return Ok(Err(allowed.until));
        }
        wait_for_any(&pipes, is_full, left)?;
        if let Some(pipe) = &mut pipes.stdin {
            let rest = input.rest();
            match pipe.write(rest) {
                Ok(count) => {
                    is_full = count < rest.len();
                    input.written = input.written.saturating_add(count);
                    if is_full && !is_large {
                        // The user may have exhausted the memory for pipes; the usual 64 KiB will do.
                        is_large = true;
                        is_full = fcntl(&*pipe, FcntlArg::F_SETPIPE_SZ(PIPE_SIZE)).is_err();
                    }
                }
                // The program ended before it read everything. Its exit code and messages tell why.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => pipes.stdin = None,
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(e),
            }
        }
        if drain(pipes.stdout.as_mut(), &mut output.stdout)? {
            pipes.stdout = None;
        }
        if drain(pipes.stderr.as_mut(), &mut output.stderr)? {
            pipes.stderr = None;
        }
    }
    // Its output is closed, so it is about to end.
    let mut pause = Duration::from_micros(50);
    loop {
        if let Some(status) = child.try_wait()? {
            output.code = status.code();
            return Ok(Ok(output));
        }
        if allowed.left().is_zero() {
            return Ok(Err(allowed.until));
        }
        sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

fn unblock(pipe: &impl AsFd) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(pipe, FcntlArg::F_GETFL)?);
    fcntl(pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

fn is_transient(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Waits for a pipe. A full pipe is refilled only after a while: a writer that waits for room is woken for each page
/// that the program reads, and disturbs the program's processor. That costs a tenth of the time of a large restore.
fn wait_for_any(pipes: &Pipes, is_full: bool, left: Duration) -> io::Result<()> {
    let left = if is_full && pipes.stdin.is_some() { left.min(REFILL) } else { left };
    let write = pipes.stdin.as_ref().filter(|_| !is_full).map(|p| PollFd::new(p.as_fd(), PollFlags::POLLOUT));
    let out = pipes.stdout.as_ref().map(|p| PollFd::new(p.as_fd(), PollFlags::POLLIN));
    let err = pipes.stderr.as_ref().map(|p| PollFd::new(p.as_fd(), PollFlags::POLLIN));
    let mut fds: Vec<PollFd<'_>> = [write, out, err].into_iter().flatten().collect();
    // Rounded up, to avoid spinning for the last fraction of a millisecond.
    let timeout = PollTimeout::try_from(left.saturating_add(Duration::from_millis(1))).unwrap_or(PollTimeout::MAX);
    match poll(&mut fds, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Reads what is available; `true` at the end of the file.
fn drain(pipe: Option<&mut impl Read>, into: &mut Vec<u8>) -> io::Result<bool> {
    let Some(pipe) = pipe else { return Ok(false) };
    let mut buffer = [0; 16 * 1024];
    loop {
        match pipe.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(count) => into.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &str, args: &[&str], stdin: &str, limit: Duration) -> Result<Output, Error> {
        let system = System::new();
        let path = system.find(program).unwrap();
        system.run(&Invocation::new(&path, args.iter().copied(), limit).with_stdin(stdin.to_owned()))
    }

    #[test]
    fn large_texts_pass_both_ways() {
        let text = "0123456789abcdef\n".repeat(100_000);
        let output = run("cat", &[], &text, Duration::from_secs(20)).unwrap();
        assert_eq!((output.code, output.stdout == text.as_bytes()), (Some(0), true));
    }

    #[test]
    fn a_program_that_reads_nothing_causes_no_error() {
        let output = run("false", &[], &"x".repeat(1_000_000), Duration::from_secs(20)).unwrap();
        assert_eq!(output.code, Some(1));
    }

    /// Generates pieces after the initial text, each only when the previous ones were written. The last piece ends the
    /// text.
    #[test]
    fn text_made_while_the_program_reads_is_appended() {
        let system = System::new();
        let cat = Invocation::new(&system.find("cat").unwrap(), [""; 0], Duration::from_secs(20));
        for text in ["", "begin\n"] {
            let (mut expected, mut made) = (text.to_owned(), 0_u32);
            let output = system.run_with(&cat.clone().with_stdin(text.to_owned()), &mut |piece| {
                assert!(piece.is_empty());
                made += 1;
                // An empty piece is not the end.
                if made != 7 {
                    piece.push_str(&made.to_string().repeat(50_000));
                }
                expected.push_str(piece);
                made < 20
            });
            let output = output.unwrap();
            assert_eq!((made, output.code, output.stdout == expected.as_bytes()), (20, Some(0), true), "{text}");
        }
    }

    #[test]
    fn nothing_more_is_made_for_a_program_that_has_ended() {
        let system = System::new();
        let run = Invocation::new(&system.find("false").unwrap(), [""; 0], Duration::from_secs(20));
        let mut made = 0_u64;
        let output = system.run_with(&run, &mut |piece| {
            made += 1;
            piece.push_str(&"x".repeat(100_000));
            true
        });
        assert_eq!(output.unwrap().code, Some(1));
        assert!(made < 1_000, "{made}");
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let start = Instant::now();
        let error = run("sleep", &["60"], "", Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_program_that_computes_gets_ten_times_its_limit() {
        let spin = |script: &str| run("sh", &["-c", script], "", Duration::from_millis(200));
        let output = spin("(sleep 0.7; kill $$) & while :; do :; done").unwrap();
        assert_eq!(output.code, None);
        let error = spin("while :; do :; done").unwrap_err();
        assert_eq!((error.kind(), error.to_string().ends_with("was killed after 2.0 s")), (ErrorKind::TimedOut, true));
    }

    /// As in a container with a limit of processor time.
    #[test]
    fn a_program_that_rarely_gets_a_processor_still_computes() {
        let script = "work() { i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; }
            (sleep 1.6; kill $$) & while work; do sleep 0.1; done";
        let output = run("sh", &["-c", script], "", Duration::from_secs(1)).unwrap();
        assert_eq!(output.code, None);
    }

    #[test]
    fn a_program_may_have_no_time_limit() {
        let output = run("true", &[], "", Duration::MAX).unwrap();
        assert_eq!(output.code, Some(0));
    }

    #[test]
    fn the_environment_is_set_by_the_crate() {
        let output = run("env", &[], "", Duration::from_secs(20)).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("LC_ALL=C\n") && text.lines().count() == 2, "{text}");
    }

    #[test]
    fn relative_programs_are_refused() {
        let error =
            System::new().run(&Invocation::new(Path::new("iptables"), [""; 0], Duration::from_secs(1))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ProgramMissing);
    }
}

//! The usual command-line tools as oracles, run in the current thread's network namespace.

use std::error::Error as StdError;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time limit of a tool. QEMU without KVM is slow: a large restore takes ten seconds there.
pub const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Output of a tool. Bytes that are not UTF-8 are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error: warnings, for a tool that succeeded.
    pub stderr: String,
}

/// Waits until this many sockets of the current thread's network namespace are in a group of netlink, by its number from 1: a tool that monitors
/// the kernel has begun.
///
/// # Errors
/// They are not within 30 s, or the list of sockets cannot be read.
pub fn until_they_listen(group: u32, sockets: usize) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let all = std::fs::read_to_string("/proc/thread-self/net/netlink")?;
        let groups = all.lines().filter_map(|line| u32::from_str_radix(line.split_whitespace().nth(3)?, 16).ok());
        if groups.filter(|groups| groups & 1 << (group - 1) != 0).count() >= sockets {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("fewer than {sockets} sockets are in group {group} of netlink")));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Why a tool gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The program is not installed.
    NotFound,
    /// The program could not be started or communicated with.
    Io,
    /// The program ended with an exit code other than 0, or by a signal.
    Failed,
    /// The program exceeded [`TIME_LIMIT`] and was killed.
    TimedOut,
}

/// A failed tool: its command line, exit status and error output.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    command: String,
    exit_code: Option<i32>,
    detail: String,
    source: Option<io::Error>,
}

impl Error {
    /// Kind of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The exit code, if the program ended by itself.
    pub fn exit_code(&self) -> Option<i32> {
        self.exit_code
    }

    /// Text that the program printed on standard error, trimmed.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    fn io(command: &str, source: io::Error) -> Self {
        let kind = if source.kind() == io::ErrorKind::NotFound { ErrorKind::NotFound } else { ErrorKind::Io };
        Self { kind, command: command.to_owned(), exit_code: None, detail: String::new(), source: Some(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.exit_code) {
            (ErrorKind::NotFound, _) => write!(f, "`{}`: the program is not installed", self.command),
            (ErrorKind::Io, _) => write!(f, "`{}` could not be run", self.command),
            (ErrorKind::TimedOut, _) => write!(f, "`{}` did not end within {TIME_LIMIT:?}", self.command),
            (ErrorKind::Failed, Some(code)) => write!(f, "`{}` failed with code {code}: {}", self.command, self.detail),
            (ErrorKind::Failed, None) => write!(f, "`{}` was killed: {}", self.command, self.detail),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// Runs a program in the current thread's network namespace, with the C locale and `input` on its standard input.
///
/// The directories of system programs (`/usr/sbin`, `/sbin`) are searched too.
///
/// # Errors
/// [`Failed`](ErrorKind::Failed) if its exit code is not 0; the other kinds if it has no exit code.
pub fn run(program: &str, arguments: &[&str], input: Option<&str>) -> Result<Output, Error> {
    let command = [&[program], arguments].concat().join(" ");
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .env("PATH", search_path())
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Error::io(&command, error))?;
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let feeder = child.stdin.take().zip(input.map(str::to_owned)).map(|(mut pipe, text)| {
        // A program that fails early closes its input. Its exit code is what matters.
        thread::spawn(move || pipe.write_all(text.as_bytes()).unwrap_or_default())
    });
    let status = wait(&mut child).map_err(|error| Error::io(&command, error))?;
    if let Some(feeder) = feeder {
        feeder.join().unwrap_or_default();
    }
    let stdout = stdout.join().unwrap_or_default();
    let stderr = stderr.join().unwrap_or_default();
    match status {
        Some(status) if status.success() => Ok(Output { stdout, stderr }),
        status => Err(Error {
            kind: if status.is_some() { ErrorKind::Failed } else { ErrorKind::TimedOut },
            command,
            exit_code: status.and_then(|status| status.code()),
            detail: if stderr.trim().is_empty() { stdout.trim() } else { stderr.trim() }.to_owned(),
            source: None,
        }),
    }
}

/// `PATH` with the directories of system programs, which an ordinary user's lacks.
pub fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push("/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
    path
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // Output before an error is still useful.
            pipe.read_to_end(&mut bytes).unwrap_or_default();
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The exit status; `None` if the time limit was over and the program was killed.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + TIME_LIMIT;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// Implementation of iptables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `iptables-legacy`: the kernel's `ip_tables`.
    Legacy,
    /// `iptables-nft`: the kernel's `nf_tables`.
    Nft,
}

/// Internet protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `iptables`.
    V4,
    /// `ip6tables`.
    V6,
}

fn iptables_program(backend: Backend, family: Family, suffix: &str) -> String {
    let family = if family == Family::V4 { "iptables" } else { "ip6tables" };
    let backend = if backend == Backend::Legacy { "legacy" } else { "nft" };
    format!("{family}-{backend}{suffix}")
}

/// `ipvsadm -Sn`: all virtual and real servers as commands.
pub fn ipvsadm_save() -> Result<String, Error> {
    run("ipvsadm", &["-S", "-n"], None).map(|output| output.stdout)
}

/// `ipvsadm -R`: runs the commands in `text`, one per line, in the format of `ipvsadm -S`.
pub fn ipvsadm_restore(text: &str) -> Result<(), Error> {
    run("ipvsadm", &["-R"], Some(text)).map(drop)
}

/// `ipset save`: all sets and entries as commands, with the entries of each set sorted.
///
/// Not `ipset save -sorted`, which compares each entry with all others and takes minutes for ten thousand.
pub fn ipset_save() -> Result<String, Error> {
    let saved = run("ipset", &["save"], None)?.stdout;
    let mut lines: Vec<&str> = saved.lines().collect();
    for entries in lines.chunk_by_mut(|_, line| !line.starts_with("create ")) {
        // The first one creates the set.
        entries.get_mut(1..).unwrap_or_default().sort_unstable();
    }
    Ok(lines.into_iter().flat_map(|line| [line, "\n"]).collect())
}

/// `ipset restore`.
pub fn ipset_restore(text: &str) -> Result<(), Error> {
    run("ipset", &["restore"], Some(text)).map(drop)
}

/// `iptables-save` or `ip6tables-save` of this implementation, without counters.
pub fn iptables_save(backend: Backend, family: Family) -> Result<String, Error> {
    run(&iptables_program(backend, family, "-save"), &[], None).map(|output| output.stdout)
}

/// `iptables-restore` or `ip6tables-restore` of this implementation. Tables in `text` replace those in the kernel.
pub fn iptables_restore(backend: Backend, family: Family, text: &str) -> Result<(), Error> {
    run(&iptables_program(backend, family, "-restore"), &[], Some(text)).map(drop)
}

/// `ip -json ARGUMENTS`: JSON text.
pub fn ip_json(arguments: &[&str]) -> Result<String, Error> {
    run("ip", &[&["-json"], arguments].concat(), None).map(|output| output.stdout)
}

#[cfg(test)]
mod tests {
    use super::{ErrorKind, run};

    #[test]
    fn large_input_and_output_do_not_block_each_other() {
        let text = "0123456789abcdef\n".repeat(100_000);
        assert_eq!(run("cat", &[], Some(&text)).unwrap().stdout, text);
    }

    #[test]
    fn a_failure_has_the_code_and_the_output() {
        let error = run("sh", &["-c", "echo why >&2; exit 7"], None).unwrap_err();
        assert_eq!((error.kind(), error.exit_code(), error.detail()), (ErrorKind::Failed, Some(7), "why"));
        assert!(error.to_string().contains("failed with code 7: why"), "{error}");
    }

    #[test]
    fn a_missing_program_is_distinguished() {
        assert_eq!(run("no-such-program-anywhere", &[], None).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

//! The usual command-line tools as oracles, run in the current thread's network namespace.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

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

/// Runs a program in the current thread's network namespace, with the C locale and `input` on its standard input.
///
/// The directories of system programs (`/usr/sbin`, `/sbin`) are searched too.
///
/// # Errors
/// Names the command line, and what the program printed if its exit code is not 0. [`io::ErrorKind::NotFound`] if it is
/// not installed, [`io::ErrorKind::TimedOut`] if it exceeded [`TIME_LIMIT`] and was killed.
pub fn run(program: &str, arguments: &[&str], input: Option<&str>) -> io::Result<Output> {
    let command = [&[program], arguments].concat().join(" ");
    let failed = |kind, why: String| io::Error::new(kind, format!("`{command}` {why}"));
    let started = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .env("PATH", search_path())
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|error| failed(error.kind(), format!("could not be run: {error}")))?;
    if let Some((mut pipe, text)) = child.stdin.take().zip(input.map(str::to_owned)) {
        // A program that fails early closes its input. Its exit code is what matters.
        thread::spawn(move || pipe.write_all(text.as_bytes()).unwrap_or_default());
    }
    let (process, (to, from)) = (i32::try_from(child.id()), channel());
    thread::spawn(move || to.send(child.wait_with_output()).unwrap_or_default());
    let Ok(output) = from.recv_timeout(TIME_LIMIT) else {
        process.map_or(Ok(()), |process| kill(Pid::from_raw(process), Signal::SIGKILL))?;
        return Err(failed(io::ErrorKind::TimedOut, format!("did not end within {TIME_LIMIT:?}")));
    };
    let output = output.map_err(|error| failed(error.kind(), format!("could not be waited for: {error}")))?;
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    if output.status.success() {
        return Ok(Output { stdout, stderr });
    }
    let said = if stderr.trim().is_empty() { stdout.trim() } else { stderr.trim() };
    Err(failed(io::ErrorKind::Other, format!("failed ({}): {said}", output.status)))
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
pub fn ipvsadm_save() -> io::Result<String> {
    run("ipvsadm", &["-S", "-n"], None).map(|output| output.stdout)
}

/// `ipvsadm -R`: runs the commands in `text`, one per line, in the format of `ipvsadm -S`.
pub fn ipvsadm_restore(text: &str) -> io::Result<()> {
    run("ipvsadm", &["-R"], Some(text)).map(drop)
}

/// `ipset save`: all sets and entries as commands, with the entries of each set sorted.
///
/// Not `ipset save -sorted`, which compares each entry with all others and takes minutes for ten thousand.
pub fn ipset_save() -> io::Result<String> {
    let saved = run("ipset", &["save"], None)?.stdout;
    let mut lines: Vec<&str> = saved.lines().collect();
    for entries in lines.chunk_by_mut(|_, line| !line.starts_with("create ")) {
        // The first one creates the set.
        entries.get_mut(1..).unwrap_or_default().sort_unstable();
    }
    Ok(lines.into_iter().flat_map(|line| [line, "\n"]).collect())
}

/// `ipset restore`.
pub fn ipset_restore(text: &str) -> io::Result<()> {
    run("ipset", &["restore"], Some(text)).map(drop)
}

/// `iptables-save` or `ip6tables-save` of this implementation, without counters.
pub fn iptables_save(backend: Backend, family: Family) -> io::Result<String> {
    run(&iptables_program(backend, family, "-save"), &[], None).map(|output| output.stdout)
}

/// `iptables-restore` or `ip6tables-restore` of this implementation. Tables in `text` replace those in the kernel.
pub fn iptables_restore(backend: Backend, family: Family, text: &str) -> io::Result<()> {
    run(&iptables_program(backend, family, "-restore"), &[], Some(text)).map(drop)
}

/// `ip -json ARGUMENTS`: JSON text.
pub fn ip_json(arguments: &[&str]) -> io::Result<String> {
    run("ip", &[&["-json"], arguments].concat(), None).map(|output| output.stdout)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::run;

    #[test]
    fn large_input_and_output_do_not_block_each_other() {
        let text = "0123456789abcdef\n".repeat(100_000);
        assert_eq!(run("cat", &[], Some(&text)).unwrap().stdout, text);
    }

    #[test]
    fn a_failure_has_the_code_and_the_output_and_a_missing_program_is_distinguished() {
        let error = run("sh", &["-c", "echo why >&2; exit 7"], None).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c echo why >&2; exit 7` failed (exit status: 7): why");
        assert_eq!(run("no-such-program-anywhere", &[], None).unwrap_err().kind(), ErrorKind::NotFound);
    }
}

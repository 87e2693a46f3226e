//! The lock that allows one proxy per node. A second one refuses to start and names the first.
//!
//! The lock is a file below `/run/proxier-demo`. Only root may open it, or the user for whom root created that
//! directory. The kernel releases the lock ([flock(2)](https://man7.org/linux/man-pages/man2/flock.2.html)) when the
//! process ends in any way. So there are no stale locks. Each network namespace has its own file, named by its inode,
//! since IPVS belongs to the network namespace.
//!
//! Processes must use the same directory to see each other's lock. A container in the node's network namespace has its
//! own `/run`, so the node's directory must be mounted there; the manifests in `examples/deploy` do so.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::Uid;

use crate::problem::Problem;

/// The lock is held as long as this lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Contains [`FOLDER`]. Owned by root on every Linux, and empty after boot.
const BASE: &str = "/run";
/// The directory with the locks.
const FOLDER: &str = "proxier-demo";
/// Longest wait for a holder that has not written its name yet.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most bytes to read of a holder's text.
const SAID: u64 = 4096;

impl Lock {
    /// Takes the lock of this thread's network namespace.
    ///
    /// Waits at most a second, and only for a holder that has just taken it.
    /// Errors: another process has it, which the problem names. Or the directory or file cannot be created, or a user
    /// other than root could hold it; the problem says what to do.
    pub fn take() -> Result<Self, Problem> {
        Self::take_below(Path::new(BASE))
    }

    /// Process that holds, or last held, the lock of this thread's network namespace. `None` if there was none, or if
    /// its container is not visible from here.
    pub(crate) fn holder() -> io::Result<Option<u32>> {
        let mut file = match File::open(Path::new(BASE).join(FOLDER).join(file_name())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        Ok(Holder::read(&mut file).and_then(|holder| holder.number_here()))
    }

    /// Takes the lock like [`Lock::take`], with the directory below `base` instead of `/run`.
    pub fn take_below(base: &Path) -> Result<Self, Problem> {
        let (folder, path) = (open_folder(base)?, base.join(FOLDER).join(file_name()));
        let mut file = open_file(&folder, &file_name(), &path)?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => {
                    // The lock is held; only the holder's name could not be written.
                    if let Err(error) = write_holder(&mut file) {
                        let reason = format!("but the holder's name cannot be written ({error}): make room there");
                        tracing::warn!("{}: the lock is held, {reason}", path.display());
                    }
                    return Ok(Lock { _file: file });
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(refused(&path, "locked", &error)),
            }
            // A new holder may not have written its name yet; the file may still name the previous one.
            let holder = Holder::read(&mut file);
            if let Some(holder) = holder.filter(Holder::is_there) {
                let reason = format!("another one runs on this node: {holder}; stop it first");
                return Err(Problem::new("", reason));
            }
            if start.elapsed() > PATIENCE {
                let reason = format!("another process, which cannot be identified, holds the lock {}", path.display());
                return Err(Problem::new("", reason));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The name of the file of this thread's network namespace.
fn file_name() -> String {
    format!("netns-{}.lock", namespace("net"))
}

fn refused(path: &Path, what: &str, error: &dyn fmt::Display) -> Problem {
    Problem::new(path.display().to_string(), format!("the lock cannot be {what} ({error})"))
}

fn untrusted(path: &Path, reason: &str, advice: &str) -> Problem {
    let reason = format!("{reason}, so that others than root could hold the lock of the proxy; {advice}");
    Problem::new(path.display().to_string(), reason)
}

/// Whether this user may own the lock: root, or the user of this process.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == Uid::effective().as_raw()
}

/// Opens the directory, creating it if necessary. Only its trusted owner can create files in it.
fn open_folder(base: &Path) -> Result<File, Problem> {
    const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
    let path = base.join(FOLDER);
    let base_folder = open(base, DIRECTORY, Mode::empty());
    let base_folder = base_folder.map(File::from).map_err(|errno| refused(base, "looked for here", &errno.desc()))?;
    owned(&base_folder, base)?;
    match mkdirat(base_folder.as_fd(), FOLDER, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(cannot_make(&path, errno)),
    }
    let folder = match openat(base_folder.as_fd(), FOLDER, DIRECTORY, Mode::empty()) {
        Ok(folder) => File::from(folder),
        Err(Errno::ELOOP | Errno::ENOTDIR) => {
            return Err(untrusted(&path, "it is a link or a file, not a folder", "remove it"));
        }
        Err(errno) => return Err(cannot_make(&path, errno)),
    };
    owned(&folder, &path)?;
    Ok(folder)
}

/// Whether only a trusted user can create files in this directory.
fn owned(folder: &File, path: &Path) -> Result<(), Problem> {
    let metadata = folder.metadata().map_err(|error| refused(path, "looked for here", &error))?;
    if !is_trusted(metadata.uid()) {
        let reason = format!("it belongs to user {}", metadata.uid());
        let advice = format!("chown root {}", path.display());
        return Err(untrusted(path, &reason, &advice));
    }
    if metadata.mode() & 0o022 != 0 {
        let reason = format!("others may write to it (mode {:o})", metadata.mode() & 0o7777);
        let advice = format!("chmod go-w {}", path.display());
        return Err(untrusted(path, &reason, &advice));
    }
    Ok(())
}

/// Opens the file, creating it if necessary. Only its trusted owner can open it; opening is enough to hold the lock.
fn open_file(folder: &File, name: &str, path: &Path) -> Result<File, Problem> {
    const FLAGS: OFlag =
        OFlag::O_RDWR.union(OFlag::O_CREAT).union(OFlag::O_NOFOLLOW).union(OFlag::O_NONBLOCK).union(OFlag::O_CLOEXEC);
    let file = match openat(folder.as_fd(), name, FLAGS, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(file) => File::from(file),
        Err(Errno::ELOOP) => return Err(untrusted(path, "it is a link", "remove it")),
        Err(errno) => return Err(cannot_make(path, errno)),
    };
    let metadata = file.metadata().map_err(|error| refused(path, "looked at", &error))?;
    if !metadata.is_file() || metadata.nlink() != 1 {
        return Err(untrusted(path, "it is not a regular file with one name", "remove it"));
    }
    if !is_trusted(metadata.uid()) || metadata.permissions().mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o7777;
        let reason = format!("it belongs to user {} and has mode {mode:o}", metadata.uid());
        return Err(untrusted(path, &reason, "remove it"));
    }
    Ok(file)
}

fn cannot_make(path: &Path, errno: Errno) -> Problem {
    let advice = match errno {
        Errno::EROFS => {
            "mount a folder of the node there that can be written to (in a container: hostPath /run/proxier-demo)"
        }
        Errno::EACCES | Errno::EPERM => {
            "run as root, or let root make the folder for this user (systemd: RuntimeDirectory=proxier-demo; else: \
             install -d -m 700 -o USER /run/proxier-demo)"
        }
        Errno::ENOSPC | Errno::EDQUOT => "make room there",
        _ => "it has to be a folder that root can write to",
    };
    Problem::new(path.display().to_string(), format!("the lock cannot be made ({}); {advice}", errno.desc()))
}

/// The inode of a namespace of this thread, which identifies it; 0 if `/proc` does not show it.
fn namespace(kind: &str) -> u64 {
    let path: PathBuf = ["/proc/thread-self/ns", kind].iter().collect();
    std::fs::metadata(path).map_or(0, |metadata| metadata.ino())
}

/// Holder of the lock, as it registered itself: process id, process namespace, command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Holder {
    pid: u32,
    namespace: u64,
    command: String,
}

impl Holder {
    /// The content of the file; `None` while it is empty.
    fn read(file: &mut File) -> Option<Self> {
        file.rewind().ok()?;
        let mut text = String::new();
        file.take(SAID).read_to_string(&mut text).ok()?;
        let mut lines = text.lines();
        let pid = lines.next()?.parse().ok()?;
        let namespace = lines.next()?.parse().ok()?;
        Some(Holder { pid, namespace, command: lines.next()?.to_owned() })
    }

    /// Its number in this process's namespace.
    fn number_here(&self) -> Option<u32> {
        if self.namespace == namespace("pid") {
            return Some(self.pid);
        }
        let is_it = |process: &Path| {
            let is_there = || process.join("ns/pid").metadata().is_ok_and(|of| of.ino() == self.namespace);
            // Its number in each namespace, the innermost last (proc_pid_status(5)).
            let status = || std::fs::read_to_string(process.join("status")).unwrap_or_default();
            let is_of_number = |line: &str| {
                let numbers = line.strip_prefix("NSpid:").and_then(|numbers| numbers.split_whitespace().next_back());
                numbers.is_some_and(|number| number.parse() == Ok(self.pid))
            };
            is_there() && status().lines().any(is_of_number)
        };
        let mut processes = std::fs::read_dir("/proc").ok()?.filter_map(Result::ok);
        processes.find_map(|process| {
            let number = process.file_name().to_str()?.parse().ok()?;
            is_it(&process.path()).then_some(number)
        })
    }

    /// Whether the process exists, as far as this process can see.
    fn is_there(&self) -> bool {
        self.namespace != namespace("pid") || Path::new("/proc").join(self.pid.to_string()).exists()
    }
}

/// Writes this process as the holder.
fn write_holder(file: &mut File) -> io::Result<()> {
    let command = std::fs::read_to_string("/proc/self/cmdline").unwrap_or_default();
    let mut one_line = command.replace('\0', " ").replace(char::is_control, " ");
    one_line.truncate(one_line.char_indices().nth(1000).map_or(one_line.len(), |(at, _)| at));
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("{}\n{}\n{}\n", std::process::id(), namespace("pid"), one_line.trim()).as_bytes())
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        if self.namespace != namespace("pid") {
            f.write_str(" of another container")?;
        }
        if self.command.is_empty() { Ok(()) } else { write!(f, " ({})", self.command) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_says_what_to_do_without_a_writable_directory() {
        let path = Path::new("/run/proxier-demo");
        for (errno, advice) in [
            (Errno::EROFS, "hostPath /run/proxier-demo"),
            (Errno::EACCES, "RuntimeDirectory=proxier-demo"),
            (Errno::ENOSPC, "make room"),
        ] {
            let problem = cannot_make(path, errno).to_string();
            assert!(problem.starts_with("/run/proxier-demo: the lock cannot be made ("), "{problem}");
            assert!(problem.contains(advice), "{problem}");
        }
    }
}

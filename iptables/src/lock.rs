//! The xtables lock of the legacy programs: finds its holders, and takes it for programs that are too old to do so.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::stat::{major, minor};

use crate::error::{Error, ErrorKind, LockHolder};

/// The lock file of `iptables-legacy` since 1.6.0. A container must mount the host's file to exclude the host's
/// programs.
pub const LOCK_PATH: &str = "/run/xtables.lock";

/// Finds the holders of a `flock` on this file in `/proc/locks`. Empty if there are none or they are not visible.
///
/// A process in another process namespace is not visible there.
pub fn holders(path: &Path) -> Vec<LockHolder> {
    // The kernel continues this list by position (fs/locks.c: locks_start), so a lock that is released between two reads
    // hides another. One read gets a page of it.
    let mut locks = String::with_capacity(4096);
    let read = File::open("/proc/locks").and_then(|mut list| list.read_to_string(&mut locks));
    let (Ok(file), Ok(_)) = (fs::metadata(path), read) else { return Vec::new() };
    let exact = format!("{:02x}:{:02x}:{}", major(file.dev()), minor(file.dev()), file.ino());
    let mut pids = holding_pids(&locks, |id| id == exact);
    if pids.is_empty() {
        // On overlay and btrfs the device number in /proc/locks differs from that of stat(2).
        let inode = format!(":{}", file.ino());
        pids = holding_pids(&locks, |id| id.ends_with(&inode));
    }
    let command =
        |pid| fs::read_to_string(format!("/proc/{pid}/comm")).map(|c| c.trim_end().to_owned()).unwrap_or_default();
    pids.into_iter().map(|pid| LockHolder { pid, command: command(pid) }).collect()
}

/// Parses `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`; waiters have `->` after the number.
fn holding_pids(locks: &str, wanted: impl Fn(&str) -> bool) -> Vec<u32> {
    let one = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [_, "FLOCK", _, _, pid, id, ..] if wanted(id) => pid.parse().ok().filter(|pid| *pid > 0),
            _ => None,
        }
    };
    let mut pids: Vec<u32> = locks.lines().filter_map(one).collect();
    pids.dedup();
    pids
}

/// Both locks of the legacy programs, held as long as this value lives.
///
/// For `iptables-restore` before 1.6.2, which takes no lock: the abstract socket `@xtables` (1.4.20 to 1.5) and the
/// lock file (since 1.6.0).
#[derive(Debug)]
pub(crate) struct HeldLock {
    file: File,
    _socket: UnixListener,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // Closing is not enough: a program that another thread is starting holds a copy of the descriptor, and so the
        // lock, until it executes. If this fails, closing has the same effect as before.
        drop(self.file.unlock());
    }
}

impl HeldLock {
    /// Time between two attempts.
    const POLL: Duration = Duration::from_millis(50);

    pub(crate) fn take(path: &Path, wait: Duration) -> Result<Self, Error> {
        let start = Instant::now();
        let failed = |what: &str, e: io::Error| {
            let kind = if e.kind() == io::ErrorKind::PermissionDenied { ErrorKind::Permission } else { ErrorKind::Io };
            Error::new(kind, format!("cannot take the xtables lock: {what}")).with_source(e)
        };
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
        let file = open.map_err(|e| failed(&path.display().to_string(), e))?;
        let address = SocketAddr::from_abstract_name("xtables").map_err(|e| failed("@xtables", e))?;
        loop {
            let locked = match file.try_lock() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => false,
                Err(TryLockError::Error(e)) => return Err(failed(&path.display().to_string(), e)),
            };
            if locked {
                match UnixListener::bind_addr(&address) {
                    Ok(socket) => return Ok(Self { file, _socket: socket }),
                    Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                        file.unlock().map_err(|e| failed(&path.display().to_string(), e))?;
                    }
                    Err(e) => return Err(failed("@xtables", e)),
                }
            }
            if start.elapsed() >= wait {
                return Err(timeout(path, wait));
            }
            sleep(Self::POLL);
        }
    }
}

/// The error for a lock that another program held too long, with its holders.
pub(crate) fn timeout(path: &Path, waited: Duration) -> Error {
    let holders = holders(path);
    let who = match holders.as_slice() {
        [] => "its holder could not be found".to_owned(),
        some => format!("held by {}", some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    };
    let message =
        format!("xtables lock {} not free within {} s: {who}; try again later", path.display(), waited.as_secs());
    Error::new(ErrorKind::LockTimeout, message).with_holders(holders)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    #[test]
    fn the_lock_table_is_read() {
        let text = "1: FLOCK  ADVISORY  WRITE 4242 fd:01:77 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 4243 fd:01:77 0 EOF\n\
                    2: POSIX  ADVISORY  WRITE 7 fd:01:77 0 EOF\n3: FLOCK ADVISORY WRITE 8 fd:01:78 0 EOF\nshort\n";
        assert_eq!(holding_pids(text, |id| id == "fd:01:77"), [4242]);
    }

    #[test]
    fn the_old_socket_counts_too() {
        let path = std::env::temp_dir().join(format!("iptables-socket-test-{}", std::process::id()));
        let socket = UnixListener::bind_addr(&SocketAddr::from_abstract_name("xtables").unwrap()).unwrap();
        let error = HeldLock::take(&path, Duration::from_millis(60)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LockTimeout);
        drop(socket);
        let held = HeldLock::take(&path, Duration::MAX).unwrap();
        assert_eq!(holders(&path).first().map(|h| h.pid), Some(std::process::id()));
        // Simulates another thread that is just starting a program.
        let copy = held.file.try_clone().unwrap();
        drop(held);
        assert_eq!(holders(&path), []);
        drop(copy);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_holder_is_named() {
        let path = std::env::temp_dir().join(format!("iptables-lock-test-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        file.lock().unwrap();
        let error = HeldLock::take(&path, Duration::from_millis(60)).unwrap_err();
        fs::remove_file(&path).unwrap();
        assert_eq!(error.kind(), ErrorKind::LockTimeout);
        assert!(error.is_retryable());
        assert_eq!(error.lock_holders().first().map(|h| h.pid), Some(std::process::id()), "{error}");
    }

    #[test]
    fn a_holder_is_found_while_other_locks_come_and_go() {
        let path = |n: usize| std::env::temp_dir().join(format!("iptables-lock-test-{n}-{}", std::process::id()));
        let file = |n| File::create(path(n)).unwrap();
        let held = file(0);
        held.lock().unwrap();
        let done = AtomicBool::new(false);
        let missed = std::thread::scope(|scope| {
            for file in (1..=3).map(file) {
                let done = &done;
                scope.spawn(move || {
                    while !done.load(Relaxed) {
                        file.lock().unwrap();
                        file.unlock().unwrap();
                    }
                });
            }
            let missed = (0..2000).filter(|_| holders(&path(0)).is_empty()).count();
            done.store(true, Relaxed);
            missed
        });
        (0..=3).for_each(|n| fs::remove_file(path(n)).unwrap());
        assert_eq!(missed, 0);
    }
}

//! One proxy on a node: a second one refuses to start and names the first.
//!
//! The lock is a listening socket with a name in the kernel's abstract namespace. That belongs to the network namespace,
//! as IPVS does, so processes see each other from whatever container they run in; and the kernel removes it with the
//! process, however that ends, so there is no stale lock.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt};

use super::problem::Problem;

/// Held as long as it lives.
#[derive(Debug)]
pub struct Lock {
    _listener: UnixListener,
}

/// The name of the lock of `proxier-demo`.
pub const NAME: &str = "proxier-demo";

impl Lock {
    /// Takes the lock of this name in the network namespace of this thread.
    ///
    /// # Errors
    ///
    /// Another process has it: the problem says which, as far as it can be seen from here.
    pub fn take(name: &str) -> Result<Self, Problem> {
        let refused = |error: io::Error| Problem::new("", format!("cannot take the lock @{name} ({error})"));
        let address = SocketAddr::from_abstract_name(name).map_err(refused)?;
        // Between the two the first one may end: then there is nobody to name, and the lock is free.
        for _ in 0..3 {
            match UnixListener::bind_addr(&address) {
                Ok(listener) => return Ok(Lock { _listener: listener }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(refused(error)),
            }
            if let Ok(holder) = UnixStream::connect_addr(&address) {
                let reason = format!("another one runs on this node: {}; stop it first", describe(&holder));
                return Err(Problem::new("", reason));
            }
        }
        Err(Problem::new("", format!("another process holds the lock @{name} and cannot be asked who it is")))
    }
}

/// The process behind a connection: the kernel tells which one has called listen(2).
fn describe(holder: &UnixStream) -> String {
    let pid = getsockopt(holder, sockopt::PeerCredentials).map_or(0, |credentials| credentials.pid());
    if pid == 0 {
        return "in a container whose processes cannot be seen from here".to_owned();
    }
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = command.replace('\0', " ");
    if command.trim().is_empty() { format!("process {pid}") } else { format!("process {pid} ({})", command.trim()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_the_first_is() {
        let name = format!("proxier-demo-test-{}", std::process::id());
        let first = Lock::take(&name).unwrap();
        let problem = Lock::take(&name).unwrap_err().to_string();
        assert!(problem.starts_with("another one runs on this node: process "), "{problem}");
        assert!(problem.contains(&format!("process {} (", std::process::id())), "{problem}");
        drop(first);
        Lock::take(&name).unwrap();
    }

    /// The holder is another process, and is killed.
    #[test]
    fn a_killed_process_leaves_no_lock() {
        let name = format!("proxier-demo-killed-{}", std::process::id());
        let script = format!(
            "import socket,time\ns=socket.socket(socket.AF_UNIX)\ns.bind('\\0{name}')\ns.listen()\nprint('ok',flush=True)\ntime.sleep(60)"
        );
        let child =
            std::process::Command::new("python3").args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn();
        let Ok(mut child) = child else {
            eprintln!("skipped: no python3 to hold the lock");
            return;
        };
        let mut line = [0; 3];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        let problem = Lock::take(&name).unwrap_err().to_string();
        assert!(problem.contains(&format!("process {} (", child.id())), "{problem}");
        child.kill().unwrap();
        child.wait().unwrap();
        Lock::take(&name).unwrap();
    }
}

//! Network namespaces that live as long as a value and have no name.

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd as _;
use std::thread::{self, JoinHandle};

use nix::sched::{CloneFlags, setns, unshare};

use crate::oracle;

/// The calling thread's namespace. `/proc/self` would be the first thread's.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Keeps the current thread in another network namespace until it is dropped.
///
/// Programs and threads started meanwhile begin in the same namespace; existing threads are not moved. `/sys/class/net`
/// continues to show the namespace in which it was mounted, and `/proc/net` that of the process's first thread. Use
/// `/proc/thread-self/net` and `/proc/sys/net`, which follow the thread.
#[derive(Debug)]
pub struct NetnsGuard {
    previous: File,
    /// The namespace belongs to the thread, so the guard must stay on it.
    not_send: PhantomData<*const ()>,
}

impl NetnsGuard {
    /// Moves the current thread into a new, empty network namespace with `lo` up.
    pub fn new() -> io::Result<Self> {
        let guard = Self::untouched()?;
        oracle::run("ip", &["link", "set", "lo", "up"], None)?;
        Ok(guard)
    }

    /// Moves the current thread into a new namespace with `lo` down.
    fn untouched() -> io::Result<Self> {
        let previous = File::open(OWN_NAMESPACE)?;
        unshare(CloneFlags::CLONE_NEWNET)?;
        // From here, dropping the guard returns to the previous namespace.
        Ok(Self { previous, not_send: PhantomData })
    }

    fn enter(namespace: &File) -> io::Result<Self> {
        let previous = File::open(OWN_NAMESPACE)?;
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(Self { previous, not_send: PhantomData })
    }
}

impl Drop for NetnsGuard {
    fn drop(&mut self) {
        let back = setns(&self.previous, CloneFlags::CLONE_NEWNET);
        // Otherwise the next code on this thread would use the wrong namespace.
        assert!(back.is_ok() || thread::panicking(), "cannot return to the previous network namespace: {back:?}");
    }
}

/// A network namespace, held by its file descriptor. It ends with the last handle, thread or process in it.
#[derive(Debug)]
pub struct Netns {
    file: File,
}

impl Netns {
    /// A new, empty namespace with `lo` up. The current thread is not moved.
    pub fn new() -> io::Result<Self> {
        let _guard = NetnsGuard::new()?;
        Self::current()
    }

    /// A new namespace with `lo` down, for tests that create many and configure all with one program.
    pub fn untouched() -> io::Result<Self> {
        let _guard = NetnsGuard::untouched()?;
        Self::current()
    }

    /// The namespace of the current thread.
    pub fn current() -> io::Result<Self> {
        Ok(Self { file: File::open(OWN_NAMESPACE)? })
    }

    /// Moves the current thread into it until the guard is dropped.
    pub fn enter(&self) -> io::Result<NetnsGuard> {
        NetnsGuard::enter(&self.file)
    }

    /// Runs `body` in it on the current thread. The thread returns afterwards, even after a panic.
    pub fn run_in<T>(&self, body: impl FnOnce() -> T) -> io::Result<T> {
        let _guard = self.enter()?;
        Ok(body())
    }

    /// Starts a thread inside.
    pub fn spawn<T: Send + 'static>(&self, body: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
        // A new thread begins in its parent's namespace.
        self.run_in(|| thread::Builder::new().spawn(body))?
    }

    /// Runs the program `ip` inside and returns what it printed.
    pub fn ip(&self, arguments: &[&str]) -> io::Result<String> {
        self.run_in(|| oracle::run("ip", arguments, None))?.map(|output| output.stdout)
    }

    /// `ip link set DEVICE up`.
    pub fn link_up(&self, device: &str) -> io::Result<()> {
        self.ip(&["link", "set", device, "up"]).map(drop)
    }

    /// `ip address add ADDRESS/PREFIX dev DEVICE`; IPv6 addresses skip duplicate address detection.
    pub fn add_address(&self, address: &str, device: &str) -> io::Result<()> {
        let mut arguments = vec!["address", "add", address, "dev", device];
        if address.contains(':') {
            arguments.push("nodad");
        }
        self.ip(&arguments).map(drop)
    }

    /// `ip route add DESTINATION via GATEWAY`; `default` is a destination.
    pub fn add_route(&self, destination: &str, gateway: &str) -> io::Result<()> {
        let family = if gateway.contains(':') { "-6" } else { "-4" };
        self.ip(&[family, "route", "add", destination, "via", gateway]).map(drop)
    }

    /// Writes a value below `/proc/sys`, such as `net/ipv4/ip_forward`.
    pub fn write_sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        self.run_in(|| std::fs::write(format!("/proc/sys/{name}"), value))?
    }

    /// A path through which other programs can open this namespace while this process lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

/// Joins two namespaces by a pair of virtual Ethernet devices, both up.
pub fn veth_pair(one: (&Netns, &str), other: (&Netns, &str)) -> io::Result<()> {
    let path = other.0.path();
    one.0.ip(&["link", "add", one.1, "type", "veth", "peer", "name", other.1, "netns", &path])?;
    one.0.link_up(one.1)?;
    other.0.link_up(other.1)
}

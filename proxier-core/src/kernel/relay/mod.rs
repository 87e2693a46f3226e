//! The relay: listens for Services on sockets of this process, and forwards connections and datagrams.
//!
//! It is a runtime with a few threads. A listener, a TCP connection and a client of a UDP listener are one task each. Once
//! a direction of a TCP connection has carried more than 16 KiB, its data moves through pipes ([`splice(2)`]) without
//! being copied. What a slow reader has not taken stays with the sender, except for one pipe.
//!
//! [`splice(2)`]: https://man7.org/linux/man-pages/man2/splice.2.html

mod balance;
mod descriptors;
mod server;
mod socket;
mod splice;
mod tcp;
mod udp;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, TcpListener};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{Builder as Thread, JoinHandle, available_parallelism};
use std::time::Duration;

use nix::errno::Errno;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::kernel::errno_kind;
use crate::net::{FrontendKey, Protocol};
use crate::pack::Gather as _;
use crate::ports::{Counts, Listener, PortError, PortErrorKind, Relays, Result, Settings};
use descriptors::{Descriptors, Use};
use server::{Group, Server, Shared, lock, spare};
use udp::UdpServer;

/// Most threads. One moves several gigabytes per second.
const MOST_THREADS: usize = 4;
/// Time limit for a task to release a listener.
const LEAVING: Duration = Duration::from_secs(5);

/// Listens on addresses and ports, and forwards connections and datagrams to endpoints, until it is dropped. Its threads
/// start at the first use. Connections end when it is dropped; [`Relay::finish`] lets them finish first.
///
/// All calls must come from one network namespace.
#[doc(hidden)]
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    /// `None` before the first use.
    runtime: Option<Runtime>,
    held: BTreeMap<FrontendKey, BoundListener>,
    groups: BTreeMap<Arc<str>, Weak<Group>>,
    /// Closed listeners that have connections.
    closed: Vec<Arc<Server>>,
    elsewhere: Option<BTreeSet<FrontendKey>>,
}

/// A listener and its socket. When it is dropped, the socket is closed.
#[derive(Debug)]
struct BoundListener {
    listener: Listener,
    server: Arc<Server>,
    /// TCP always has a port, UDP only while any node has an endpoint.
    descriptor: Option<Descriptors>,
    /// The TCP port while nothing listens, because there is no endpoint.
    port: Option<TcpListener>,
    /// The task that has the socket. When it gets this, it releases the socket and returns the TCP port.
    task: Option<oneshot::Sender<Sender<TcpListener>>>,
}

impl BoundListener {
    /// Stops listening. Returns when the task has released the socket.
    fn stop(&mut self) {
        let Some(task) = self.task.take() else { return };
        let (back, port) = channel();
        // A task that has ended does not answer, and has no socket.
        drop(task.send(back));
        self.port = port.recv_timeout(LEAVING).ok();
        if self.listener.key.protocol == Protocol::Udp {
            lock(&self.server.flows).clear();
            self.descriptor = None;
        }
    }
}

impl Drop for BoundListener {
    fn drop(&mut self) {
        self.stop();
    }
}

fn failed(doing: impl fmt::Display, error: &io::Error) -> PortError {
    let errno = error.raw_os_error().unwrap_or_default();
    let (kind, why) = match error.kind() {
        io::ErrorKind::AddrInUse => (
            PortErrorKind::AlreadyExists,
            "another program on this node has the port: end it, or give the Service another one; it is tried again",
        ),
        io::ErrorKind::PermissionDenied => (
            PortErrorKind::Permission,
            "CAP_NET_BIND_SERVICE is missing, which ports below 1024 need; run as root, or let this program have it",
        ),
        io::ErrorKind::QuotaExceeded => (
            PortErrorKind::Full,
            "listeners have as many as they may: raise the limit of open files; it is tried again",
        ),
        _ => return PortError::new(errno_kind(errno), format!("{doing}: {error}")),
    };
    PortError::new(kind, format!("{doing}: {error}: {why}"))
}

impl Relay {
    pub fn new(settings: Settings) -> Self {
        Relay {
            shared: Arc::new(Shared::new(settings)),
            runtime: None,
            held: BTreeMap::new(),
            groups: BTreeMap::new(),
            closed: Vec::new(),
            elsewhere: None,
        }
    }

    /// Starts the threads, unless they run. Panics if the kernel provides no thread.
    fn start(&mut self) -> Result<Handle> {
        let runtime = if let Some(runtime) = self.runtime.take() {
            runtime
        } else {
            let threads = available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
            let mut runtime = Builder::new_multi_thread();
            runtime.worker_threads(threads).thread_name("relay").enable_io().enable_time();
            let runtime = runtime.build().map_err(|error| failed("starting the relay", &error))?;
            *lock(&self.shared.spare) = spare();
            runtime
        };
        Ok(self.runtime.insert(runtime).handle().clone())
    }

    fn group(&mut self, listener: &Listener) -> Arc<Group> {
        if let Some(group) = self.groups.get(&listener.group).and_then(Weak::upgrade) {
            return group;
        }
        // Each listener has one. Others belong to connections, or to nothing any more.
        if self.groups.len() > self.held.len().saturating_mul(2).saturating_add(64) {
            self.groups.retain(|_, group| group.strong_count() > 0);
        }
        let group = Arc::new(Group::default());
        self.groups.insert(Arc::clone(&listener.group), Arc::downgrade(&group));
        group
    }

    /// Opens, closes or changes the socket as the listener requires.
    fn adapt(&self, held: &mut BoundListener, tasks: &Handle) -> io::Result<()> {
        let is_open = held.listener.is_open();
        let is_tcp = match held.listener.key.protocol {
            Protocol::Tcp => true,
            Protocol::Udp => false,
            Protocol::Sctp => return Err(Errno::EPROTONOSUPPORT.into()),
        };
        if !is_open {
            held.stop();
        }
        if held.descriptor.is_none() && (is_tcp || is_open) {
            let none = || io::Error::new(io::ErrorKind::QuotaExceeded, "no file descriptor is left for it");
            held.descriptor = Some(self.shared.reserve(Use::Listener).ok_or_else(none)?);
        }
        if is_tcp && held.task.is_none() && held.port.is_none() {
            held.port = Some(socket::take_tcp(held.server.address())?);
        }
        if is_open && held.task.is_none() {
            held.task = Some(self.listen(held, tasks)?);
        }
        Ok(())
    }

    /// Starts the task that accepts connections, or receives datagrams.
    fn listen(&self, held: &mut BoundListener, tasks: &Handle) -> io::Result<oneshot::Sender<Sender<TcpListener>>> {
        let (task, end) = oneshot::channel::<Sender<TcpListener>>();
        let (server, shared) = (Arc::clone(&held.server), Arc::clone(&self.shared));
        let _context = tasks.enter();
        if let Some(port) = held.port.take() {
            socket::start_listening(&port)?;
            let port = tokio::net::TcpListener::from_std(port)?;
            tasks.spawn(async move {
                let back = tokio::select! {
                    back = end => back,
                    never = tcp::accept(&port, &server, &shared) => match never {},
                };
                if socket::stop_listening(&port).is_ok()
                    && let (Ok(port), Ok(back)) = (port.into_std(), back)
                {
                    drop(back.send(port));
                }
            });
        } else {
            let socket = tokio::net::UdpSocket::from_std(socket::take_udp(server.address())?)?;
            let mut udp = Arc::new(UdpServer { socket, server, shared });
            tasks.spawn(async move {
                let _back = tokio::select! {
                    back = end => back,
                    never = udp.serve() => match never {},
                };
                // A flow may be sending an answer.
                while let Err(used) = Arc::try_unwrap(udp) {
                    udp = used;
                    yield_now().await;
                }
            });
        }
        Ok(task)
    }

    fn retire(&mut self, mut held: BoundListener) {
        lock(&self.shared.own).remove(&held.listener.key);
        held.stop();
        if lock(&held.server.state).open > 0 {
            self.closed.push(Arc::clone(&held.server));
        }
    }

    pub fn counts(&self) -> Counts {
        *lock(&self.shared.counts)
    }

    /// Sets the listeners of another process, the node's proxy, which plans here then omit.
    pub(super) fn set_elsewhere(&mut self, listening: BTreeSet<FrontendKey>) {
        self.elsewhere = Some(listening);
    }

    /// See [`KernelPorts::finish`](crate::kernel::KernelPorts::finish).
    #[expect(clippy::disallowed_methods, reason = "a relay waits in real time")]
    pub fn finish(&mut self, patience: Duration) -> usize {
        let until = self.shared.now().saturating_add(patience);
        while let Some((_, held)) = self.held.pop_first() {
            self.retire(held);
        }
        loop {
            let left = self.counts().connections;
            let rest = until.saturating_sub(self.shared.now());
            if left == 0 || rest.is_zero() {
                return left;
            }
            std::thread::sleep(rest.min(Duration::from_millis(20)));
        }
    }
}

impl Relays for Relay {
    fn listeners(&mut self) -> BTreeMap<FrontendKey, Listener> {
        self.held.iter().map(|(key, held)| (*key, held.listener.clone())).gather()
    }

    fn elsewhere(&mut self) -> Option<BTreeSet<FrontendKey>> {
        self.elsewhere.clone()
    }

    fn configure(&mut self, settings: &Settings) -> Result<()> {
        *lock(&self.shared.settings) = Arc::new(settings.clone());
        self.start().map(drop)
    }

    /// UDP flows to removed endpoints end.
    ///
    /// Without endpoints the kernel refuses connections and datagrams: TCP holds the port without listening, UDP has no
    /// socket.
    fn serve(&mut self, listener: &Listener) -> Result<()> {
        let tasks = self.start()?;
        let (key, group) = (listener.key, self.group(listener));
        let mut held = if let Some(mut held) = self.held.remove(&key) {
            held.server.update(listener.clone(), group);
            held.listener = listener.clone();
            held
        } else {
            let server = Arc::new(Server::new(listener.clone(), group));
            BoundListener { listener: listener.clone(), server, descriptor: None, port: None, task: None }
        };
        let outcome = self.adapt(&mut held, &tasks).map_err(|error| failed(format_args!("listening on {key}"), &error));
        if outcome.is_ok() {
            lock(&self.shared.own).insert(key);
            self.held.insert(key, held);
        } else {
            self.retire(held);
        }
        outcome
    }

    fn close(&mut self, key: &FrontendKey) {
        if let Some(held) = self.held.remove(key) {
            self.retire(held);
        }
    }

    fn busy(&mut self) -> BTreeSet<IpAddr> {
        self.closed.retain(|server| lock(&server.state).open > 0);
        self.closed.iter().map(|server| server.key.address).collect()
    }

    fn begun(&mut self) -> BTreeMap<FrontendKey, u64> {
        self.held.iter().map(|(key, held)| (*key, lock(&held.server.state).begun)).gather()
    }

    fn notices(&mut self) -> Vec<String> {
        self.shared.take_notices()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.held.clear();
        let runtime = self.runtime.take();
        // A thread that itself runs asynchronous code may not wait for the end of a runtime.
        drop(runtime.map(|runtime| Thread::new().spawn(move || drop(runtime)).map(JoinHandle::join)));
    }
}

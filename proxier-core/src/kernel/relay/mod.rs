//! The relay: listens for Services on sockets of this process, and forwards connections and datagrams.
//!
//! It has a few threads, each of which waits for all of its sockets at once. A connection belongs to the thread that
//! accepted it, a UDP listener with its flows to one thread. Once a direction of a TCP connection has carried more than
//! 16 KiB, its data moves through pipes ([`splice(2)`]) without being copied. What a slow reader has not taken stays
//! with the sender, except for one pipe.
//!
//! [`splice(2)`]: https://man7.org/linux/man-pages/man2/splice.2.html

mod balance;
mod connection;
mod descriptors;
mod flow;
mod server;
mod socket;
mod stream;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::resource::{Resource, getrlimit};

use crate::kernel::errno_kind;
use crate::net::{FrontendKey, Protocol};
use crate::ports::{Counts, Listener, PortError, PortErrorKind, Settings};
use descriptors::{Descriptors, Use, share};
use server::{Group, Server, Shared};
use worker::{Command, Handle, Worker};

/// Most threads. One moves several gigabytes per second.
const MOST_THREADS: usize = 4;
/// Time limit for a thread to release a listener.
const LEAVING: Duration = Duration::from_secs(5);

/// Listens on addresses and ports, and forwards connections and datagrams to endpoints, until it is dropped.
///
/// Sockets are opened in the network namespace of the thread that calls [`Relay::start`] and [`Relay::serve`], which
/// must be the same.
#[doc(hidden)]
pub struct Relay {
    shared: Arc<Shared>,
    threads: Vec<(Handle, JoinHandle<()>)>,
    held: BTreeMap<FrontendKey, BoundListener>,
    groups: BTreeMap<Arc<str>, Weak<Group>>,
    /// Number of groups at which groups without listeners are removed.
    sweep_at: usize,
    /// Closed listeners that had connections.
    closed: Vec<Arc<Server>>,
    next_id: u64,
}

/// A listener and its socket.
struct BoundListener {
    listener: Listener,
    server: Arc<Server>,
    socket: Socket,
}

enum Socket {
    /// TCP: always has the port; listens while there is an endpoint.
    Tcp { socket: Arc<TcpListener>, listens: bool, _descriptor: Descriptors },
    /// UDP: holds the port while any node has an endpoint.
    Udp { open: Option<Descriptors> },
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("listeners", &self.held.keys())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
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
    /// Starts the threads.
    ///
    /// # Errors
    /// If the kernel provides no thread or no descriptor for waiting.
    pub fn start(settings: Settings) -> Result<Self, PortError> {
        let doing = "starting the relay";
        let (open_files, _) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|errno| failed(doing, &errno.into()))?;
        let open_files = usize::try_from(open_files).unwrap_or(usize::MAX);
        let shared = Arc::new(Shared::new(settings, share(open_files)));
        let mut relay = Relay {
            shared,
            threads: Vec::new(),
            held: BTreeMap::new(),
            groups: BTreeMap::new(),
            sweep_at: 64,
            closed: Vec::new(),
            next_id: 1,
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        for number in 0..threads {
            relay.start_thread(number).map_err(|error| failed(doing, &error))?;
        }
        Ok(relay)
    }

    fn start_thread(&mut self, number: usize) -> io::Result<()> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let (commands, receiver) = channel();
        let worker = Worker::new(Arc::clone(&self.shared), epoll, Arc::clone(&wake), receiver)?;
        let thread = std::thread::Builder::new().name(format!("relay-{number}")).spawn(move || worker.run())?;
        self.threads.push((Handle { commands, wake }, thread));
        Ok(())
    }

    /// The current listeners, with their endpoints.
    pub fn listeners(&self) -> impl Iterator<Item = &Listener> {
        self.held.values().map(|held| &held.listener)
    }

    /// Changes the settings of all listeners. Existing connections and flows continue.
    pub fn configure(&mut self, settings: Settings) {
        self.shared.set_settings(settings);
    }

    /// Listens, or changes the endpoints of a listener. Connections to removed endpoints continue until either side
    /// closes them. UDP flows to them end, and their clients get other endpoints.
    ///
    /// Without endpoints the kernel refuses connections and datagrams: TCP holds the port without listening, UDP has no
    /// socket.
    ///
    /// # Errors
    /// [`AlreadyExists`](PortErrorKind::AlreadyExists) if another program has the port;
    /// [`Permission`](PortErrorKind::Permission) without `CAP_NET_BIND_SERVICE`;
    /// [`Unavailable`](PortErrorKind::Unavailable) for SCTP and for a family that this kernel lacks;
    /// [`Full`](PortErrorKind::Full) if listeners use all their descriptors ([`Settings::max_descriptors`]). The
    /// listener does not exist afterwards.
    pub fn serve(&mut self, listener: &Listener) -> Result<(), PortError> {
        let key = listener.key;
        let outcome = match self.held.remove(&key) {
            Some(held) => self.change(held, listener),
            None => self.open(listener),
        };
        self.shared.set_own(key, outcome.is_ok());
        let held = outcome.map_err(|error| failed(format_args!("listening on {key}"), &error))?;
        self.held.insert(key, held);
        Ok(())
    }

    fn group(&mut self, listener: &Listener) -> Arc<Group> {
        if let Some(group) = self.groups.get(&listener.group).and_then(Weak::upgrade) {
            return group;
        }
        if self.groups.len() >= self.sweep_at {
            self.groups.retain(|_, group| group.strong_count() > 0);
            self.sweep_at = self.groups.len().saturating_mul(2).max(64);
        }
        let group = Arc::new(Group::default());
        self.groups.insert(Arc::clone(&listener.group), Arc::downgrade(&group));
        group
    }

    fn open(&mut self, listener: &Listener) -> io::Result<BoundListener> {
        let address = SocketAddr::new(listener.key.address, listener.key.port);
        let socket = match listener.key.protocol {
            Protocol::Tcp => {
                let descriptor = self.descriptor()?;
                Socket::Tcp { socket: Arc::new(socket::take_tcp(address)?), listens: false, _descriptor: descriptor }
            }
            Protocol::Udp => Socket::Udp { open: None },
            Protocol::Sctp => return Err(Errno::EPROTONOSUPPORT.into()),
        };
        let group = self.group(listener);
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let server = Arc::new(Server::new(id, listener.clone(), group));
        let mut held = BoundListener { listener: listener.clone(), server, socket };
        self.adapt(&mut held)?;
        Ok(held)
    }

    fn descriptor(&self) -> io::Result<Descriptors> {
        let none = || io::Error::new(io::ErrorKind::QuotaExceeded, "no file descriptor is left for it");
        self.shared.reserve(Use::Listener).ok_or_else(none)
    }

    fn change(&mut self, mut held: BoundListener, listener: &Listener) -> io::Result<BoundListener> {
        let group = self.group(listener);
        self.update(&held.server, listener.clone(), group);
        held.listener = listener.clone();
        if let Err(error) = self.adapt(&mut held) {
            self.leave(held.server.id);
            self.closed.push(held.server);
            return Err(error);
        }
        Ok(held)
    }

    /// Changes a server's endpoints, and notifies the threads.
    fn update(&self, server: &Arc<Server>, listener: Listener, group: Arc<Group>) {
        server.update(listener, group);
        if server.key.protocol == Protocol::Udp {
            self.tell_one(server.id, Command::Moved(server.id));
        }
    }

    /// Opens, closes or changes the socket as the listener requires.
    fn adapt(&self, held: &mut BoundListener) -> io::Result<()> {
        let BoundListener { listener, server, socket } = held;
        match socket {
            Socket::Tcp { socket, listens, .. } => match (*listens, listener.is_open()) {
                (false, true) => {
                    socket::start_listening(socket)?;
                    *listens = true;
                    self.tell_all(|| Command::Accept(Arc::clone(server), Arc::clone(socket)));
                }
                (true, false) => {
                    *listens = false;
                    self.leave(server.id);
                    socket::stop_listening(socket)?;
                }
                _ => {}
            },
            Socket::Udp { open } => match (open.is_some(), listener.is_open()) {
                (false, true) => {
                    let descriptor = self.descriptor()?;
                    let taken: Arc<UdpSocket> = Arc::new(socket::take_udp(server.address())?);
                    *open = Some(descriptor);
                    self.tell_one(server.id, Command::Receive(Arc::clone(server), taken));
                }
                (true, false) => {
                    self.leave(server.id);
                    *open = None;
                }
                _ => {}
            },
        }
        Ok(())
    }

    fn tell_all(&self, command: impl Fn() -> Command) {
        for (handle, _) in &self.threads {
            handle.send(command());
        }
    }

    fn tell_one(&self, id: u64, command: Command) {
        let number = usize::try_from(id).unwrap_or_default().checked_rem(self.threads.len()).unwrap_or_default();
        if let Some((handle, _)) = self.threads.get(number) {
            handle.send(command);
        }
    }

    /// Removes a listener from all threads; returns when they have closed its socket.
    fn leave(&self, id: u64) {
        let (done, answers) = sync_channel(self.threads.len());
        self.tell_all(|| Command::Leave(id, done.clone()));
        drop(done);
        // A thread that has ended does not answer, and holds no socket.
        for _ in &self.threads {
            if answers.recv_timeout(LEAVING).is_err() {
                break;
            }
        }
    }

    /// Stops listening; not an error if it does not listen there. Connections continue until either side closes them;
    /// UDP flows end.
    pub fn close(&mut self, key: &FrontendKey) {
        let Some(held) = self.held.remove(key) else { return };
        self.shared.set_own(*key, false);
        self.leave(held.server.id);
        if let Socket::Tcp { socket, listens: true, .. } = &held.socket {
            // The socket is closed with `held`; connections that were not accepted are reset.
            drop(socket::stop_listening(socket));
        }
        self.closed.push(held.server);
    }

    /// Addresses of closed listeners that still have connections and so must stay local.
    pub fn busy(&mut self) -> BTreeSet<IpAddr> {
        self.closed.retain(|server| server.open() > 0);
        self.closed.iter().map(|server| server.key.address).collect()
    }

    /// The counters of connections and datagrams.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Connections and flows started, by listener, since it was opened. A listener that is reopened starts at zero.
    pub fn begun(&self) -> impl Iterator<Item = (FrontendKey, u64)> {
        self.held.iter().map(|(key, held)| (*key, held.server.begun()))
    }

    /// Messages for people: limits that were reached, Services whose endpoints do not answer. At most one line per
    /// listener, reason and minute, with the number of connections.
    pub fn notices(&self) -> Vec<String> {
        self.shared.take_notices(self.shared.now())
    }

    /// Stops listening, and waits at most `patience` for all connections to end. Returns the number of connections
    /// left, which end when the relay is dropped.
    #[expect(clippy::disallowed_methods, reason = "a relay waits in real time")]
    pub fn finish(&mut self, patience: Duration) -> usize {
        let until = self.shared.now().saturating_add(patience);
        let keys: Vec<FrontendKey> = self.held.keys().copied().collect();
        for key in &keys {
            self.close(key);
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

impl Drop for Relay {
    fn drop(&mut self) {
        for held in self.held.values() {
            if let Socket::Tcp { socket, listens: true, .. } = &held.socket {
                drop(socket::stop_listening(socket));
            }
        }
        self.tell_all(|| Command::End);
        for (_, thread) in self.threads.drain(..) {
            // A thread that panicked has reported it.
            drop(thread.join());
        }
    }
}

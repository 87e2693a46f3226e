//! A thread of a relay: waits for all its sockets and moves their data.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::EventFd;

use super::connection::{Connection, DialResult, Step};
use super::flow::{Flow, UdpServer};
use super::server::{Kind, Refusal, Server, Shared, Ticket};
use super::socket::{is_exhausted, reset};
use super::stream::{Progress, Tools};
use crate::time::Moment;

/// Events per call.
const EVENTS: usize = 256;
/// Connections accepted at one listener, or datagrams read from one socket, before the next one.
const IN_A_ROW: usize = 64;
/// How long a listener is ignored if no descriptor is available for its connections.
const REST: Duration = Duration::from_millis(100);

/// Command to a thread.
pub(super) enum Command {
    /// Accept connections of this listener.
    Accept(Arc<Server>, Arc<TcpListener>),
    /// Receive datagrams of this listener.
    Receive(Arc<Server>, Arc<UdpSocket>),
    /// Release a listener; the answer confirms that its socket is closed here.
    Leave(u64, SyncSender<()>),
    /// The endpoints of a UDP listener have changed: flows to removed ones end.
    Moved(u64),
    /// End all connections and this thread.
    End,
}

/// Controls a thread from outside.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) commands: Sender<Command>,
    pub(super) wake: Arc<EventFd>,
}

impl Handle {
    /// Sends a command. A thread that has ended ignores it, and serves nothing either.
    pub(super) fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            // It can only fail if the thread has missed 2⁶⁴ wake-ups.
            let _is_awake = self.wake.write(1);
        }
    }
}

/// Subject of an event: two bits and the number of the listener, connection or flow. Numbers are not reused, so a late
/// event about a closed one finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    TcpListener,
    UdpListener,
    ClientOrFlow,
    Endpoint,
}

fn token(id: u64, about: About) -> u64 {
    let bits = match about {
        About::TcpListener => 0,
        About::UdpListener => 1,
        About::ClientOrFlow => 2,
        About::Endpoint => 3,
    };
    id.wrapping_mul(4) | bits
}

fn meaning(token: u64) -> (u64, About) {
    let about = match token & 3 {
        0 => About::TcpListener,
        1 => About::UdpListener,
        2 => About::ClientOrFlow,
        _ => About::Endpoint,
    };
    (token.wrapping_div(4), about)
}

/// Not the number of a listener: its event means that there are commands.
const COMMANDS: u64 = 0;

fn whenever_it_changes() -> EpollFlags {
    EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET
}

enum Slot {
    Tcp(Box<Connection>),
    Udp(Flow),
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    epoll: Epoll,
    commands: Receiver<Command>,
    wake: Arc<EventFd>,
    listeners: BTreeMap<u64, (Arc<Server>, Arc<TcpListener>)>,
    udp: BTreeMap<u64, UdpServer>,
    slots: BTreeMap<u64, Slot>,
    next_id: u64,
    /// When connections and flows need attention, with their numbers.
    timers: BTreeSet<(Moment, u64)>,
    /// Connections that can move more at once.
    busy: VecDeque<u64>,
    /// Listeners that are ignored until then.
    resting: Vec<u64>,
    rests_until: Option<Moment>,
    tools: Tools,
    /// A spare descriptor. If no descriptor is left, it is closed to accept and reset a connection, which would
    /// otherwise stay in the queue and be reported endlessly.
    spare: Option<File>,
}

#[expect(clippy::disallowed_methods, reason = "any file that is always there")]
fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

impl Worker {
    pub(super) fn new(
        shared: Arc<Shared>,
        epoll: Epoll,
        wake: Arc<EventFd>,
        commands: Receiver<Command>,
    ) -> io::Result<Self> {
        epoll.add(&*wake, EpollEvent::new(EpollFlags::EPOLLIN, token(COMMANDS, About::TcpListener)))?;
        Ok(Worker {
            epoll,
            commands,
            wake,
            listeners: BTreeMap::new(),
            udp: BTreeMap::new(),
            slots: BTreeMap::new(),
            next_id: 1,
            timers: BTreeSet::new(),
            busy: VecDeque::new(),
            resting: Vec::new(),
            rests_until: None,
            tools: Tools::new(Arc::clone(&shared)),
            spare: spare(),
            shared,
        })
    }

    /// Serves until told to end.
    pub(super) fn run(mut self) {
        let mut events = [EpollEvent::empty(); EVENTS];
        loop {
            let count = match self.epoll.wait(&mut events, self.patience()) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                // Only an invalid descriptor gives another error.
                Err(_) => return,
            };
            let now = self.shared.now();
            let events = events.get(..count).unwrap_or_default();
            if events.iter().any(|event| meaning(event.data()).0 == COMMANDS) && self.obey() {
                return;
            }
            for event in events {
                self.handle(*event, now);
            }
            for _ in 0..self.busy.len() {
                if let Some(id) = self.busy.pop_front() {
                    if let Some(Slot::Tcp(connection)) = self.slots.get_mut(&id) {
                        connection.unqueue();
                    }
                    self.go_on(id);
                }
            }
            self.run_due(now);
        }
    }

    fn patience(&self) -> EpollTimeout {
        if !self.busy.is_empty() {
            return EpollTimeout::ZERO;
        }
        let timers = self.timers.first().map(|(at, _)| *at);
        let next = timers.into_iter().chain(self.rests_until).min();
        let Some(at) = next else { return EpollTimeout::NONE };
        // Rounded up: waking too early would find nothing to do.
        let wait = at.saturating_sub(self.shared.now()).saturating_add(Duration::from_micros(999));
        EpollTimeout::try_from(wait).unwrap_or(EpollTimeout::MAX)
    }

    /// Carries out commands. Returns whether to end.
    fn obey(&mut self) -> bool {
        // Commands sent after this wake the thread again.
        let _how_often = self.wake.read();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Accept(server, socket) => {
                    let id = server.id;
                    self.listeners.insert(id, (server, socket));
                    self.wait_for_clients(id);
                }
                Command::Receive(server, socket) => {
                    let event = EpollEvent::new(EpollFlags::EPOLLIN, token(server.id, About::UdpListener));
                    if self.epoll.add(&*socket, event).is_err() {
                        self.shared.notice(server.key, Kind::Exhausted);
                    }
                    self.udp.insert(server.id, UdpServer { server, socket, flows: BTreeMap::new() });
                }
                Command::Leave(id, done) => {
                    self.leave(id);
                    let _nobody_waits = done.send(());
                }
                Command::Moved(id) => self.move_flows(id),
                Command::End => return true,
            }
        }
        false
    }

    fn leave(&mut self, id: u64) {
        if let Some((_, socket)) = self.listeners.remove(&id) {
            // It fails if the socket was not added.
            let _was_added = self.epoll.delete(&*socket);
        }
        if let Some(server) = self.udp.remove(&id) {
            let _was_added = self.epoll.delete(&*server.socket);
            for flow in server.flows.into_values() {
                self.remove(flow);
            }
        }
    }

    fn move_flows(&mut self, id: u64) {
        let Some(server) = self.udp.get_mut(&id) else { return };
        let listener = server.server.listener();
        let slots = &self.slots;
        let mut gone = Vec::new();
        server.flows.retain(|_, flow| {
            let stays = matches!(slots.get(flow), Some(Slot::Udp(flow)) if listener.keeps_flows_of(&flow.endpoint));
            gone.extend((!stays).then_some(*flow));
            stays
        });
        for flow in gone {
            self.remove(flow);
        }
    }

    fn handle(&mut self, event: EpollEvent, now: Moment) {
        let (id, about) = meaning(event.data());
        match about {
            About::TcpListener if id == COMMANDS => {}
            About::TcpListener => self.accept(id, now),
            About::UdpListener => self.receive(id, now),
            About::ClientOrFlow | About::Endpoint => match self.slots.get_mut(&id) {
                Some(Slot::Tcp(connection)) => {
                    let is_client = about == About::ClientOrFlow;
                    let step = connection.note(is_client, event.events());
                    self.step(id, step, now);
                }
                Some(Slot::Udp(_)) => self.answer(id, now),
                None => {}
            },
        }
    }

    fn accept(&mut self, id: u64, now: Moment) {
        let Some((server, socket)) = self.listeners.get(&id).cloned() else { return };
        for _ in 0..IN_A_ROW {
            match socket.accept() {
                Ok((stream, client)) => self.serve(&server, stream, client, now),
                Err(error) if is_exhausted(&error) => {
                    self.spare = None;
                    match socket.accept() {
                        Ok((stream, _)) => {
                            reset(stream);
                            self.shared.limited.fetch_add(1, Relaxed);
                            self.shared.notice(server.key, Kind::Exhausted);
                        }
                        Err(error) if is_exhausted(&error) => self.rest(id, &socket, now),
                        Err(_) => {}
                    }
                    self.spare = spare();
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // The client no longer waits, or the socket no longer listens.
                Err(_) => return,
            }
        }
    }

    /// Waits for connections at a listener.
    fn wait_for_clients(&self, id: u64) {
        let Some((server, socket)) = self.listeners.get(&id) else { return };
        // Wake one of the waiting threads, not all.
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLEXCLUSIVE;
        if self.epoll.add(&**socket, EpollEvent::new(flags, token(id, About::TcpListener))).is_err() {
            self.shared.notice(server.key, Kind::Exhausted);
        }
    }

    /// Ignores a listener for a while: its clients can be neither served nor reset, and would be reported endlessly.
    fn rest(&mut self, id: u64, socket: &TcpListener, now: Moment) {
        if self.epoll.delete(socket).is_ok() {
            self.resting.push(id);
            self.rests_until.get_or_insert(now.saturating_add(REST));
        }
    }

    fn serve(&mut self, server: &Arc<Server>, stream: TcpStream, client: SocketAddr, now: Moment) {
        let ticket = match Ticket::take(&self.shared, server, false) {
            Ok(ticket) => ticket,
            Err(limit) => {
                self.shared.limited.fetch_add(1, Relaxed);
                self.shared.notice(server.key, limit);
                return reset(stream);
            }
        };
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let event = EpollEvent::new(whenever_it_changes(), token(id, About::ClientOrFlow));
        if stream.set_nonblocking(true).is_err() || self.epoll.add(stream.as_fd(), event).is_err() {
            self.shared.limited.fetch_add(1, Relaxed);
            self.shared.notice(server.key, Kind::Exhausted);
            return reset(stream);
        }
        self.slots.insert(id, Slot::Tcp(Box::new(Connection::new(ticket, stream, client.ip()))));
        self.dial(id, now);
    }

    /// Starts to connect to the next endpoint.
    fn dial(&mut self, id: u64, now: Moment) {
        let Some(Slot::Tcp(connection)) = self.slots.get_mut(&id) else { return };
        match connection.dial(&self.shared, now) {
            DialResult::Begun(timeout) => {
                let event = EpollEvent::new(whenever_it_changes(), token(id, About::Endpoint));
                let added = connection.endpoint_fd().is_some_and(|fd| self.epoll.add(fd, event).is_ok());
                if added {
                    self.set_timer(id, Some(now.saturating_add(timeout)));
                } else {
                    self.shared.notice(connection.key(), Kind::Exhausted);
                    self.reset(id);
                }
            }
            DialResult::Refused(refusal) => {
                let (counter, key) = match refusal {
                    Refusal::TurnedAway => (&self.shared.turned_away, None),
                    Refusal::NobodyLeft => (&self.shared.unanswered, Some(connection.key())),
                };
                counter.fetch_add(1, Relaxed);
                if let Some(key) = key {
                    self.shared.notice(key, Kind::Unanswered);
                }
                self.reset(id);
            }
            DialResult::Exhausted => {
                self.shared.limited.fetch_add(1, Relaxed);
                self.shared.notice(connection.key(), Kind::Exhausted);
                self.reset(id);
            }
        }
    }

    fn step(&mut self, id: u64, step: Step, now: Moment) {
        match step {
            Step::Wait => {}
            Step::Connected => {
                self.set_timer(id, None);
                self.go_on(id);
            }
            Step::Failed => {
                self.shared.failed_dials.fetch_add(1, Relaxed);
                self.set_timer(id, None);
                self.dial(id, now);
            }
            Step::Abandoned => self.reset(id),
            Step::Move => self.go_on(id),
        }
    }

    fn go_on(&mut self, id: u64) {
        let Some(Slot::Tcp(connection)) = self.slots.get_mut(&id) else { return };
        match connection.go_on(&mut self.tools) {
            Progress::Waiting => {}
            Progress::Busy => {
                if connection.queue() {
                    self.busy.push_back(id);
                }
            }
            Progress::Finished => drop(self.remove(id)),
            Progress::Broken => self.reset(id),
        }
    }

    fn remove(&mut self, id: u64) -> Option<Slot> {
        let slot = self.slots.remove(&id)?;
        let timer = match &slot {
            Slot::Tcp(connection) => connection.timer,
            Slot::Udp(flow) => flow.timer,
        };
        if let Some(at) = timer {
            self.timers.remove(&(at, id));
        }
        Some(slot)
    }

    fn reset(&mut self, id: u64) {
        if let Some(Slot::Tcp(connection)) = self.remove(id) {
            connection.reset();
        }
    }

    fn set_timer(&mut self, id: u64, at: Option<Moment>) {
        let timer = match self.slots.get_mut(&id) {
            Some(Slot::Tcp(connection)) => &mut connection.timer,
            Some(Slot::Udp(flow)) => &mut flow.timer,
            None => return,
        };
        let before = std::mem::replace(timer, at);
        if let Some(before) = before {
            self.timers.remove(&(before, id));
        }
        self.timers.extend(at.map(|at| (at, id)));
    }

    /// Does the work that is due.
    fn run_due(&mut self, now: Moment) {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            match self.slots.get_mut(&id) {
                Some(Slot::Tcp(connection)) => {
                    connection.timer = None;
                    let step = connection.give_up_dialling();
                    self.step(id, step, now);
                }
                Some(Slot::Udp(flow)) => {
                    flow.timer = None;
                    let end = flow.end(self.shared.settings().udp_idle);
                    if end <= now { self.end_flow(id) } else { self.set_timer(id, Some(end)) }
                }
                None => {}
            }
        }
        if self.rests_until.take_if(|at| *at <= now).is_some() {
            for id in std::mem::take(&mut self.resting) {
                self.wait_for_clients(id);
            }
        }
    }

    /// Receives datagrams from clients.
    fn receive(&mut self, id: u64, now: Moment) {
        for _ in 0..IN_A_ROW {
            let Some(server) = self.udp.get(&id) else { return };
            let (length, client) = match server.socket.recv_from(self.tools.buffer()) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An answer did not reach the client, which has closed its socket.
                Err(_) => continue,
            };
            self.forward(id, client, length, now);
        }
    }

    /// Forwards a client's datagram. If the endpoint refused an earlier one, the flow ends and another starts.
    fn forward(&mut self, id: u64, client: SocketAddr, length: usize, now: Moment) {
        for _ in 0..2 {
            let Some(flow_id) = self.flow(id, client, now) else { return };
            let Some(Slot::Udp(flow)) = self.slots.get_mut(&flow_id) else { return };
            let datagram = self.tools.buffer().get(..length).unwrap_or_default();
            if flow.send(datagram, now).is_ok() {
                return;
            }
            flow.failed();
            self.end_flow(flow_id);
        }
    }

    /// The flow of a client, started if necessary.
    fn flow(&mut self, id: u64, client: SocketAddr, now: Moment) -> Option<u64> {
        let udp = self.udp.get(&id)?;
        if let Some(flow) = udp.flows.get(&client) {
            return Some(*flow);
        }
        let server = Arc::clone(&udp.server);
        let ticket = match Ticket::take(&self.shared, &server, true) {
            Ok(ticket) => ticket,
            Err(limit) => {
                self.shared.limited.fetch_add(1, Relaxed);
                self.shared.notice(server.key, limit);
                return None;
            }
        };
        let flow = match Flow::begin(ticket, udp, client, &self.shared, now) {
            Ok(flow) => flow,
            Err(Some(kind)) => {
                self.shared.limited.fetch_add(1, Relaxed);
                self.shared.notice(server.key, kind);
                return None;
            }
            Err(None) => {
                self.shared.turned_away.fetch_add(1, Relaxed);
                return None;
            }
        };
        let flow_id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token(flow_id, About::ClientOrFlow));
        if self.epoll.add(&flow.socket, event).is_err() {
            self.shared.notice(server.key, Kind::Exhausted);
            return None;
        }
        let end = flow.end(self.shared.settings().udp_idle);
        self.slots.insert(flow_id, Slot::Udp(flow));
        self.set_timer(flow_id, Some(end));
        self.udp.get_mut(&id)?.flows.insert(client, flow_id);
        Some(flow_id)
    }

    /// Forwards an endpoint's datagrams to the client.
    fn answer(&mut self, id: u64, now: Moment) {
        for _ in 0..IN_A_ROW {
            let Some(Slot::Udp(flow)) = self.slots.get_mut(&id) else { return };
            match flow.answer(self.tools.buffer(), now) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    flow.failed();
                    return self.end_flow(id);
                }
            }
        }
    }

    fn end_flow(&mut self, id: u64) {
        if let Some(Slot::Udp(flow)) = self.remove(id)
            && let Some(server) = self.udp.get_mut(&flow.server_id())
        {
            server.flows.remove(&flow.client);
        }
    }
}

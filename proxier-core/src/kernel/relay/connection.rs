//! A client's TCP connection, from the choice of an endpoint to its end.

use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use nix::sys::epoll::EpollFlags;

use super::server::{Refusal, Shared, Ticket};
use super::socket::{dial, is_exhausted, reset};
use super::stream::{End, Progress, StreamPair, Tools};
use crate::net::{EndpointKey, FrontendKey, Protocol};
use crate::time::Moment;

/// How long to wait for each endpoint in turn, as in kube-proxy's userspace mode.
const PATIENCE: [Duration; 4] =
    [Duration::from_millis(250), Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];

#[derive(Debug)]
pub(super) struct Connection {
    ticket: Ticket,
    client: End,
    client_address: IpAddr,
    stage: Stage,
    /// When an attempt to connect is given up.
    pub(super) timer: Option<Moment>,
    is_queued: bool,
}

#[derive(Debug)]
enum Stage {
    Dialling(Dialling),
    Relaying { end: End, relayed: StreamPair },
}

/// Attempts to reach an endpoint.
#[derive(Debug, Default)]
struct Dialling {
    current: Option<(EndpointKey, TcpStream)>,
    /// Endpoints that cannot be reached.
    refused: Vec<EndpointKey>,
    /// Endpoints that did not answer in time. They may get another attempt with more time.
    slow: Vec<EndpointKey>,
    timeouts: usize,
}

/// The result of an attempt to connect to an endpoint.
pub(super) enum DialResult {
    /// The attempt has started, with this time limit.
    Begun(Duration),
    Refused(Refusal),
    /// No socket is available.
    Exhausted,
}

/// What follows from an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    /// The endpoint has answered.
    Connected,
    /// The endpoint did not answer: try the next.
    Failed,
    /// The client reset the connection before an endpoint answered.
    Abandoned,
    /// Data can be moved.
    Move,
}

impl Connection {
    pub(super) fn new(ticket: Ticket, stream: TcpStream, client_address: IpAddr) -> Self {
        let stage = Stage::Dialling(Dialling::default());
        Connection { ticket, client: End::new(stream), client_address, stage, timer: None, is_queued: false }
    }

    pub(super) fn key(&self) -> FrontendKey {
        self.ticket.server.key
    }

    /// The socket of the endpoint to which a connection is being made.
    pub(super) fn endpoint_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Dialling(dialling) => dialling.current.as_ref().map(|(_, stream)| stream.as_fd()),
            Stage::Relaying { end, .. } => Some(end.stream.as_fd()),
        }
    }

    /// Starts to connect to the next endpoint in rotation.
    pub(super) fn dial(&mut self, shared: &Shared, now: Moment) -> DialResult {
        let Stage::Dialling(dialling) = &mut self.stage else { return DialResult::Refused(Refusal::NobodyLeft) };
        let settings = shared.settings();
        let client = self.client_address;
        let ticket = &self.ticket;
        loop {
            let Some(patience) = PATIENCE.get(dialling.timeouts) else {
                return DialResult::Refused(Refusal::NobodyLeft);
            };
            let choose = |avoid: &[EndpointKey]| ticket.choose(client, avoid, &settings, now);
            let fresh = choose(&[dialling.refused.as_slice(), dialling.slow.as_slice()].concat());
            let chosen = match fresh {
                Err(Refusal::NobodyLeft) if !dialling.slow.is_empty() => choose(&dialling.refused),
                chosen => chosen,
            };
            let endpoint = match chosen {
                Ok(endpoint) => endpoint,
                Err(refusal) => return DialResult::Refused(refusal),
            };
            if shared.is_own(Protocol::Tcp, endpoint) {
                dialling.refused.push(endpoint);
                continue;
            }
            match dial(endpoint.into()) {
                Ok(stream) => {
                    dialling.current = Some((endpoint, stream));
                    return DialResult::Begun(*patience);
                }
                Err(error) if is_exhausted(&error) => return DialResult::Exhausted,
                Err(_) => {
                    shared.failed_dials.fetch_add(1, Relaxed);
                    dialling.refused.push(endpoint);
                }
            }
        }
    }

    /// The endpoint has not answered in time, as far as its thread noticed: a busy thread notices answers late.
    pub(super) fn give_up_dialling(&mut self) -> Step {
        match self.answered(EpollFlags::EPOLLOUT) {
            Step::Wait => {}
            answered => return answered,
        }
        let Stage::Dialling(dialling) = &mut self.stage else { return Step::Wait };
        let Some((endpoint, _)) = dialling.current.take() else { return Step::Wait };
        dialling.timeouts = dialling.timeouts.saturating_add(1);
        dialling.slow.push(endpoint);
        Step::Failed
    }

    /// Records events of one end; returns what to do.
    pub(super) fn note(&mut self, is_client: bool, events: EpollFlags) -> Step {
        let failed = EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP;
        match (&mut self.stage, is_client) {
            (Stage::Relaying { end, .. }, false) => {
                end.note(events);
                Step::Move
            }
            (Stage::Relaying { .. }, true) => {
                self.client.note(events);
                Step::Move
            }
            (Stage::Dialling(_), true) => {
                self.client.note(events);
                if events.intersects(failed) { Step::Abandoned } else { Step::Wait }
            }
            (Stage::Dialling(_), false) => self.answered(events),
        }
    }

    fn answered(&mut self, events: EpollFlags) -> Step {
        let Stage::Dialling(dialling) = &mut self.stage else { return Step::Wait };
        let Some((endpoint, stream)) = dialling.current.take() else { return Step::Wait };
        let has_failed = events.contains(EpollFlags::EPOLLHUP) || !matches!(stream.take_error(), Ok(None));
        if !has_failed && stream.peer_addr().is_err() {
            dialling.current = Some((endpoint, stream));
            return Step::Wait;
        }
        if has_failed {
            dialling.refused.push(endpoint);
            return Step::Failed;
        }
        let mut end = End::new(stream);
        end.note(events);
        self.stage = Stage::Relaying { end, relayed: StreamPair::default() };
        Step::Connected
    }

    /// Moves data as far as both ends allow.
    pub(super) fn go_on(&mut self, tools: &mut Tools) -> Progress {
        match &mut self.stage {
            Stage::Dialling(_) => Progress::Waiting,
            Stage::Relaying { end, relayed, .. } => relayed.go_on(&mut self.client, end, tools),
        }
    }

    /// Marks the connection as having more to move. Returns whether that is new.
    pub(super) fn queue(&mut self) -> bool {
        !std::mem::replace(&mut self.is_queued, true)
    }

    /// Removes the connection from the queue when it is its turn.
    pub(super) fn unqueue(&mut self) {
        self.is_queued = false;
    }

    /// Closes both ends with a reset.
    pub(super) fn reset(self) {
        reset(self.client.stream);
        match self.stage {
            Stage::Dialling(Dialling { current, .. }) => drop(current),
            Stage::Relaying { end, .. } => reset(end.stream),
        }
    }
}

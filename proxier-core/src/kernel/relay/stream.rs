//! Moves the data of one TCP connection, each direction independently.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use nix::sys::epoll::EpollFlags;

use super::server::Shared;
use super::socket::Pipe;

/// Most pipes that a thread keeps for reuse.
const KEPT_PIPES: usize = 256;
/// Pipes kept by a thread may take one in this many of the relay's descriptors.
const KEPT_SHARE: usize = 128;
/// Bytes to copy before a direction gets a pipe. A copy takes two system calls, a pipe three.
const FIRST: usize = 16 << 10;
/// Rounds of one direction before the next connection.
const ROUNDS: usize = 16;

/// Pipes and buffer shared by all connections of a thread.
#[derive(Debug)]
pub(super) struct Tools {
    shared: Arc<Shared>,
    pipes: Vec<Pipe>,
    /// Most pipes kept.
    kept: usize,
    buffer: Box<[u8]>,
}

impl Tools {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let kept = KEPT_PIPES.min(shared.most_descriptors().wrapping_div(KEPT_SHARE));
        Tools { shared, pipes: Vec::new(), kept, buffer: vec![0; 64 << 10].into() }
    }

    /// A buffer for a datagram, or for some data.
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    fn take_pipe(&mut self) -> Option<Pipe> {
        // Without descriptors for a pipe, data is copied.
        self.pipes.pop().or_else(|| Pipe::new(&self.shared))
    }

    fn give_back(&mut self, pipe: Pipe) {
        if self.pipes.len() < self.kept {
            self.pipes.push(pipe);
        }
    }
}

/// One end of a connection, with its last event from the kernel.
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
#[derive(Debug)]
pub(super) struct End {
    pub(super) stream: TcpStream,
    readable: bool,
    writable: bool,
    /// The other side has closed or failed: read until the kernel reports it, since a second event does not come.
    ends: bool,
    /// Urgent data is pending: reads stop before its mark, and pipes do not pass it.
    urgent: bool,
}

impl End {
    pub(super) fn new(stream: TcpStream) -> Self {
        End { stream, readable: false, writable: false, ends: false, urgent: false }
    }

    pub(super) fn note(&mut self, events: EpollFlags) {
        let over = EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP;
        self.ends |= events.intersects(over | EpollFlags::EPOLLRDHUP);
        self.urgent |= events.contains(EpollFlags::EPOLLPRI);
        self.readable |= events.intersects(over | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLIN | EpollFlags::EPOLLPRI);
        self.writable |= events.intersects(over | EpollFlags::EPOLLOUT);
    }
}

/// Data that was read and not yet written.
#[derive(Debug, Default)]
enum Buffered {
    #[default]
    Nothing,
    /// A pipe, and the number of bytes in it.
    Piped(Pipe, usize),
    /// Bytes from an index.
    Copied(Vec<u8>, usize),
}

/// Progress of a direction towards its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Open,
    /// The source has ended; held data is still sent.
    Ending,
    /// The source was reset; held data is still sent, then the other end is reset too.
    Resetting,
    /// Finished, and the other end was told.
    Done,
    /// The destination accepts no more.
    Dead,
}

#[derive(Debug, Default)]
struct Direction {
    held: Buffered,
    state: State,
    /// Whether the direction has carried more than one small read.
    is_bulk: bool,
}

/// What remains after data was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing until the kernel reports a change.
    Waiting,
    /// There is more, but other connections come first.
    Busy,
    /// Both directions have ended.
    Finished,
    /// One end reset the connection, so the other must be reset too.
    Broken,
}

/// Both directions of a connection.
#[derive(Debug, Default)]
pub(super) struct StreamPair {
    up: Direction,
    down: Direction,
    was_reset: bool,
}

impl StreamPair {
    /// Moves data as far as both ends allow.
    pub(super) fn go_on(&mut self, client: &mut End, endpoint: &mut End, tools: &mut Tools) -> Progress {
        let mut up = self.up.go_on(client, endpoint, tools);
        let down = self.down.go_on(endpoint, client, tools);
        if self.down.state == State::Dead && self.up.is_open() {
            // Read what the client sent before it failed.
            up = self.up.go_on(client, endpoint, tools);
        }
        self.was_reset |= [&self.up, &self.down].iter().any(|of| of.state == State::Dead || of.is_reset());
        let over = |of: &Direction| !of.is_open();
        // A reset in one direction resets both, once earlier data was sent.
        if self.up.is_reset() || self.down.is_reset() {
            return Progress::Broken;
        }
        match (over(&self.up) && over(&self.down), self.was_reset) {
            (true, true) => Progress::Broken,
            (true, false) => Progress::Finished,
            (false, _) if up || down => Progress::Busy,
            (false, _) => Progress::Waiting,
        }
    }
}

impl Direction {
    fn is_open(&self) -> bool {
        matches!(self.state, State::Open | State::Ending | State::Resetting)
    }

    /// Whether the source was reset and all earlier data was sent.
    fn is_reset(&self) -> bool {
        self.state == State::Resetting && matches!(self.held, Buffered::Nothing)
    }

    /// Moves data as far as both ends allow. Returns whether more can be moved at once.
    fn go_on(&mut self, from: &mut End, to: &mut End, tools: &mut Tools) -> bool {
        for _ in 0..ROUNDS {
            if !matches!(self.held, Buffered::Nothing) {
                if !to.writable {
                    return false;
                }
                if let Err(error) = self.write(to, tools) {
                    match error.kind() {
                        io::ErrorKind::WouldBlock => to.writable = false,
                        io::ErrorKind::Interrupted => {}
                        _ => self.die(to),
                    }
                }
                continue;
            }
            match self.state {
                State::Open => {}
                State::Ending => {
                    // It only fails if the other end has already failed, which a read reports.
                    drop(to.stream.shutdown(Shutdown::Write));
                    self.state = State::Done;
                    return false;
                }
                State::Resetting | State::Done | State::Dead => return false,
            }
            if !from.readable {
                return false;
            }
            match self.read(from, to, tools) {
                Ok(0) => self.state = State::Ending,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => from.readable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.state = State::Resetting,
            }
        }
        true
    }

    /// The destination failed. Discards what arrives, but still reads what it sent before.
    fn die(&mut self, to: &mut End) {
        self.held = Buffered::Nothing;
        self.state = State::Dead;
        to.readable = true;
        to.ends = true;
    }

    /// Reads once, and writes copied bytes at once. 0: the source has ended.
    fn read(&mut self, from: &mut End, to: &mut End, tools: &mut Tools) -> io::Result<usize> {
        if self.is_bulk
            && !from.urgent
            && let Some(pipe) = tools.take_pipe()
        {
            match pipe.fill(&from.stream) {
                // The end, or the mark of urgent data followed by the end: a read tells which.
                Ok(0) => tools.give_back(pipe),
                Ok(length) => {
                    self.held = Buffered::Piped(pipe, length);
                    return Ok(length);
                }
                Err(error) => {
                    tools.give_back(pipe);
                    return Err(error);
                }
            }
        }
        let buffer = tools.buffer.get_mut(..FIRST).unwrap_or_default();
        let length = match from.stream.read(buffer) {
            // At the mark, a signal at this moment looks the same.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && std::mem::take(&mut from.urgent) => {
                from.stream.read(buffer)?
            }
            outcome => outcome?,
        };
        self.is_bulk |= length == FIRST;
        // A short read got everything. The kernel reports later data, but not the end a second time.
        if length < FIRST && !from.ends && !from.urgent {
            from.readable = false;
        }
        let bytes = buffer.get(..length).unwrap_or_default();
        let written = if to.writable && length > 0 { to.stream.write(bytes) } else { Ok(0) };
        let written = match written {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                to.writable = false;
                0
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            Err(_) => {
                self.die(to);
                return Ok(length.max(1));
            }
        };
        if let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            self.held = Buffered::Copied(rest.to_vec(), 0);
        }
        Ok(length)
    }

    /// Writes some of the held data.
    fn write(&mut self, to: &End, tools: &mut Tools) -> io::Result<()> {
        let nothing = || io::Error::from(io::ErrorKind::WriteZero);
        match &mut self.held {
            Buffered::Nothing => {}
            Buffered::Piped(pipe, length) => {
                let written = pipe.empty(&to.stream, *length)?;
                *length = length.checked_sub(written).filter(|_| written > 0).ok_or_else(nothing)?;
                if *length == 0
                    && let Buffered::Piped(pipe, _) = std::mem::take(&mut self.held)
                {
                    tools.give_back(pipe);
                }
            }
            Buffered::Copied(bytes, from) => {
                let written = (&to.stream).write(bytes.get(*from..).unwrap_or_default())?;
                if written == 0 {
                    return Err(nothing());
                }
                *from = from.saturating_add(written);
                if *from >= bytes.len() {
                    self.held = Buffered::Nothing;
                }
            }
        }
        Ok(())
    }
}

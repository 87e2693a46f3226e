//! Requests, dumps and batches over any transport.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::attr::locate;
use crate::batch::BatchWriter;
use crate::encode::Encoder;
use crate::error::{Errno, Error, ErrorKind, KernelError, WireError};
use crate::extack::ExtendedAck;
use crate::header::{MESSAGE_HEADER, MessageHeader, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST};
use crate::message::{Content, Message, Messages};
use crate::socket::{Protocol, Socket};
use crate::together::TogetherWriter;

/// Carries datagrams to the kernel and back. [`Socket`] is the real one; wrap it to record or delay traffic.
pub trait Transport: Send {
    /// Sends one datagram. The kernel has processed it when this returns.
    ///
    /// # Errors
    /// The system call's error. Implementations retry on `EINTR`.
    fn send(&mut self, datagram: &[u8]) -> io::Result<()>;

    /// Receives one datagram and returns its full length, which exceeds the buffer's if the datagram was truncated.
    /// Waits at most `timeout`; zero does not wait.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` if no datagram came in time; `Interrupted`; otherwise the system call's error.
    fn receive(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize>;

    /// The port id to which the kernel addresses answers.
    fn port(&self) -> u32;

    /// Number of answers that fit into the receive buffer at once.
    fn in_flight(&self) -> usize;

    /// Enlarges the send buffer for a datagram of this many bytes, as far as the system allows. Returns the length of
    /// the longest datagram that can be sent. The default implementation has no limit.
    ///
    /// # Errors
    /// The system call's error.
    fn reserve(&mut self, bytes: usize) -> io::Result<usize> {
        Ok(bytes)
    }
}

/// Limits of a connection: timeout, attempts at a dump, and size of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Time to wait for the answer to one request, one batch chunk, or the next part of a dump. Default 10 s. The
    /// kernel usually answers before `send` returns; it takes longer only while another program holds the kernel's
    /// locks.
    pub timeout: Duration,
    /// Number of attempts at a dump if the table changes meanwhile. Default 8.
    pub dump_attempts: u32,
    /// Messages in one send. Default 128; larger chunks are not faster. Capped at the number of answers that the
    /// receive buffer holds.
    pub chunk_messages: usize,
    /// Bytes in one send. Default 48 KiB.
    pub chunk_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { timeout: Duration::from_secs(10), dump_attempts: 8, chunk_messages: 128, chunk_bytes: 48 << 10 }
    }
}

crate::settings! {
    Limits:
    /// Sets the time to wait for an answer.
    with_timeout(timeout: Duration) |of| of.timeout = timeout;
    /// Sets the number of attempts at a dump.
    with_dump_attempts(attempts: u32) |of| of.dump_attempts = attempts;
    /// Sets the most messages and bytes in one send.
    with_chunk(messages: usize, bytes: usize) |of| (of.chunk_messages, of.chunk_bytes) = (messages, bytes);
}

/// The result of a complete dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump<T> {
    /// Entries of the table.
    pub items: Vec<T>,
    /// Number of datagrams that carried data. The kernel reads its table again for each datagram. A dump in a single
    /// datagram is therefore consistent even if the family cannot report changes (`NLM_F_DUMP_INTR`).
    pub datagrams: usize,
}

/// A conversation with one netlink protocol, one request at a time. It is `Send`.
pub struct Connection {
    transport: Box<dyn Transport>,
    limits: Limits,
    sequence: u32,
    pub(crate) encoder: Encoder,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("port", &self.transport.port())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Room for one datagram. The kernel fills up to 32 KiB per datagram of a dump if the reader offers that much
/// (net/netlink/af_netlink.c, `netlink_dump`).
const RECEIVE: usize = 64 << 10;

/// The largest payload that fits into two pages, because `struct skb_shared_info` follows it in the same allocation.
const RECEIVE_SMALL: usize = (8 << 10) - 512;

/// The deadline after this duration, or after a century if the clock cannot represent it: callers who never want to
/// give up say [`Duration::MAX`].
pub(crate) fn after(timeout: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    let now = Instant::now();
    now.checked_add(timeout).or_else(|| now.checked_add(CENTURY)).unwrap_or(now)
}

impl Connection {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::Io`].
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        Socket::open(protocol).map(Self::new)
    }

    /// Opens a connection over any transport.
    pub fn new(transport: impl Transport + 'static) -> Self {
        Connection::with_room(transport, RECEIVE)
    }

    fn with_room(transport: impl Transport + 'static, room: usize) -> Self {
        Connection {
            transport: Box::new(transport),
            limits: Limits::default(),
            sequence: 0,
            encoder: Encoder::new(),
            buffer: vec![0; room],
        }
    }

    /// Opens a connection for many short dumps. It offers the kernel two pages for a datagram; [`Connection::new`]
    /// offers 64 KiB.
    ///
    /// For each datagram of a dump the kernel allocates the largest buffer that was ever offered on the socket, up to
    /// 32 KiB. A kernel with `init_on_alloc` clears that memory each time, which can cost more than the dump. Use
    /// another connection for long dumps: they need more datagrams here. If a datagram does not fit, the buffer grows
    /// and the dump starts again.
    pub fn for_short_dumps(transport: impl Transport + 'static) -> Self {
        Connection::with_room(transport, RECEIVE_SMALL)
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Changes the limits.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Messages that one send may carry.
    pub(crate) fn chunk_messages(&self) -> usize {
        self.limits.chunk_messages.min(self.transport.in_flight()).max(1)
    }

    /// Sends one request and waits for its acknowledgement.
    ///
    /// `header` is the family's fixed header behind the message header; `body` appends the attributes.
    ///
    /// # Errors
    /// [`ErrorKind::Kernel`] if the kernel refuses the request. [`ErrorKind::Timeout`] and [`ErrorKind::StateUnknown`]
    /// if the outcome is unknown.
    pub fn request(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut Encoder),
    ) -> Result<(), Error> {
        self.query(kind, flags, header, body, |_| Ok(())).map(|_| ())
    }

    /// Sends one request, passes every data message of the answer to `read`, and waits for the acknowledgement. `read`
    /// gets the bytes behind the message header.
    ///
    /// # Errors
    /// As [`Connection::request`], and [`ErrorKind::Malformed`] with the first error of `read`.
    pub fn query<T>(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut Encoder),
        mut read: impl FnMut(&[u8]) -> Result<T, WireError>,
    ) -> Result<Vec<T>, Error> {
        const CONTEXT: &str = "netlink request";
        let mut items = Vec::new();
        let request = self.start(kind, flags | NLM_F_ACK, header, body, CONTEXT)?;
        self.answers(request, CONTEXT, |_, content| {
            match content {
                Content::Ack | Content::Done { .. } => return ControlFlow::Break(()),
                Content::Data(payload) => items.push(read(payload)),
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
        let items: Result<Vec<T>, WireError> = items.into_iter().collect();
        items.map_err(|error| Error::new(ErrorKind::Malformed(error), CONTEXT))
    }

    /// Reads a whole table. The result is complete or an error.
    ///
    /// A dump that is interrupted by a change or truncated is started again, up to [`Limits::dump_attempts`] attempts.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`] if no attempt was complete; otherwise as [`Connection::query`].
    pub fn dump<T>(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl Fn(&mut Encoder),
        mut read: impl FnMut(&[u8]) -> Result<T, WireError>,
    ) -> Result<Dump<T>, Error> {
        const CONTEXT: &str = "netlink dump";
        let mut attempts = self.limits.dump_attempts.max(1);
        loop {
            attempts = attempts.saturating_sub(1);
            let mut items = Vec::new();
            let mut datagrams = 0_usize;
            let mut last_offset = usize::MAX;
            let mut interrupted = false;
            let mut unreadable = None;
            let request = self.start(kind, flags | NLM_F_DUMP, header, &body, CONTEXT)?;
            let outcome = self.answers(request, CONTEXT, |message, content| {
                interrupted |= message.message.header.flags & NLM_F_DUMP_INTR != 0;
                match content {
                    Content::Done { .. } => return ControlFlow::Break(()),
                    Content::Data(payload) => {
                        if message.datagram != last_offset {
                            last_offset = message.datagram;
                            datagrams = datagrams.saturating_add(1);
                        }
                        match read(payload) {
                            Ok(item) => items.push(item),
                            // Read to the end: an unfinished dump would block the next one.
                            Err(error) => unreadable = unreadable.take().or(Some(error)),
                        }
                    }
                    _ => {}
                }
                ControlFlow::Continue(())
            });
            match outcome {
                Ok(()) if interrupted => {}
                Ok(()) => {
                    return match unreadable {
                        Some(error) => Err(Error::new(ErrorKind::Malformed(error), CONTEXT)),
                        None => Ok(Dump { items, datagrams }),
                    };
                }
                // A part was lost or truncated (the buffer has grown since). Partial lists are never returned.
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::StateUnknown) => {
                    self.drain(request.sequence)?;
                }
                Err(error) => return Err(error),
            }
            if attempts == 0 {
                return Err(Error::new(ErrorKind::Interrupted, CONTEXT));
            }
        }
    }

    /// Starts a batch: many requests in few sends, with one outcome for each.
    pub fn batch(&mut self) -> BatchWriter<'_> {
        BatchWriter::new(self)
    }

    /// Starts a group of requests that the kernel must receive in one datagram.
    pub fn together(&mut self) -> TogetherWriter<'_> {
        TogetherWriter::new(self)
    }

    fn start(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut Encoder),
        context: &'static str,
    ) -> Result<Sent, Error> {
        self.begin();
        let request = self.append(kind, flags, header, body);
        let request = request.map_err(|error| Error::new(ErrorKind::Unsendable(error), context))?;
        self.send(context)?;
        Ok(request)
    }

    /// Empties the send buffer. Sequence numbers start again here if at all, so those of a group increase.
    pub(crate) fn begin(&mut self) {
        self.encoder.clear();
        if self.sequence > u32::MAX / 2 {
            self.sequence = 0;
        }
    }

    /// Appends one message to the send buffer, which is unchanged on failure.
    pub(crate) fn append(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut Encoder),
    ) -> Result<Sent, WireError> {
        // Unsolicited messages have sequence number 0.
        self.sequence = self.sequence.saturating_add(1);
        let (out, sequence) = (&mut self.encoder, self.sequence);
        let start = out.len();
        MessageHeader { length: 0, kind, flags: flags | NLM_F_REQUEST, sequence, port: 0 }.put(out);
        out.bytes(header);
        out.pad();
        body(out);
        let length = u32::try_from(out.len().saturating_sub(start)).unwrap_or(u32::MAX);
        out.patch(start, &length.to_ne_bytes());
        out.pad();
        out.finish().inspect_err(|_| out.truncate(start))?;
        Ok(Sent { start, end: out.len(), sequence, header: header.len() })
    }

    /// Sends the buffer.
    fn send(&mut self, context: &'static str) -> Result<(), Error> {
        self.transport.send(self.encoder.as_slice()).map_err(|error| Error::io(context, error))
    }

    /// Reads the messages that answer `request` until `step` breaks or the kernel reports an error.
    fn answers(
        &mut self,
        request: Sent,
        context: &'static str,
        mut step: impl FnMut(&Answer<'_>, Content<'_>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let mut datagram = 0_usize;
        // Only answers to this request extend the deadline, so a stream of other messages cannot prolong the wait.
        let mut deadline = after(self.limits.timeout);
        loop {
            let length =
                self.receive_until(deadline, context)?.ok_or_else(|| Error::new(ErrorKind::Timeout, context))?;
            let Some(bytes) = self.buffer.get(..length) else {
                // Truncated: enlarge the buffer for the next attempt.
                self.buffer.resize(length.saturating_mul(2), 0);
                return Err(Error::new(ErrorKind::Interrupted, context));
            };
            let refused = |errno, extended, echo: &[u8]| {
                let error = kernel_error(errno, extended, echo, self.encoder.as_slice(), request.header);
                Error::new(ErrorKind::Kernel(error), context)
            };
            datagram = datagram.saturating_add(1);
            let mut ours = false;
            for message in Messages::new(bytes) {
                let malformed = |error| Error::new(ErrorKind::Malformed(error), context);
                let message = message.map_err(malformed)?;
                if message.header.sequence != request.sequence || message.header.port != self.transport.port() {
                    continue; // answers an abandoned request or is not for this socket
                }
                ours = true;
                match message.content().map_err(malformed)? {
                    Content::Error { errno, extended, echo } => return Err(refused(errno, extended, echo)),
                    Content::Done { errno, extended } if errno != 0 => return Err(refused(errno, extended, &[])),
                    Content::Overrun => return Err(Error::new(ErrorKind::StateUnknown, context)),
                    content => {
                        if step(&Answer { message, datagram }, content).is_break() {
                            return Ok(());
                        }
                    }
                }
            }
            if ours {
                deadline = after(self.limits.timeout);
            } else if Instant::now() >= deadline {
                return Err(Error::new(ErrorKind::Timeout, context));
            }
        }
    }

    /// Discards the rest of a dump so that the next one can start.
    fn drain(&mut self, sequence: u32) -> Result<(), Error> {
        const CONTEXT: &str = "netlink dump";
        let deadline = after(self.limits.timeout);
        loop {
            let length = match self.receive_until(deadline, CONTEXT) {
                Ok(Some(length)) => length,
                Ok(None) => return Err(Error::new(ErrorKind::Timeout, CONTEXT)),
                Err(error) if *error.kind() == ErrorKind::StateUnknown => continue,
                Err(error) => return Err(error),
            };
            let bytes = self.buffer.get(..length).unwrap_or(&self.buffer);
            let ours = Messages::new(bytes).map_while(Result::ok).filter(|message| message.header.sequence == sequence);
            for message in ours {
                if matches!(message.content(), Ok(Content::Done { .. } | Content::Error { .. }) | Err(_)) {
                    return Ok(());
                }
            }
            if Instant::now() >= deadline {
                return Err(Error::new(ErrorKind::Timeout, CONTEXT));
            }
        }
    }

    /// Receives one datagram into the buffer and returns its full length, which may exceed the buffer. `None` after the
    /// deadline.
    pub(crate) fn receive_until(&mut self, deadline: Instant, context: &'static str) -> Result<Option<usize>, Error> {
        // Try once before reading the clock: usually the answer is queued when `send` returns.
        let mut timeout = self.limits.timeout;
        loop {
            match self.transport.receive(&mut self.buffer, timeout) {
                Ok(length) => return Ok(Some(length)),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {}
                    _ if error.raw_os_error() == Some(Errno::ENOBUFS.0) => {
                        return Err(Error::new(ErrorKind::StateUnknown, context));
                    }
                    _ => return Err(Error::io(context, error)),
                },
            }
            timeout = deadline.saturating_duration_since(Instant::now());
            if timeout.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Sends the buffer, and asks for an acknowledgement of one of its requests.
    pub(crate) fn send_acknowledged(&mut self, sent: Sent, context: &'static str) -> Result<(), Error> {
        // The flags are bytes 6 and 7 of the message header.
        let flags_at = sent.start.saturating_add(6);
        if let Some(&[a, b]) = self.encoder.as_slice().get(flags_at..flags_at.saturating_add(2)) {
            let flags = u16::from_ne_bytes([a, b]) | NLM_F_ACK;
            self.encoder.patch(flags_at, &flags.to_ne_bytes());
        }
        self.send(context)
    }

    /// Calls `each` for every request that the received datagram answers, with the refusal or `None` on success. `find`
    /// maps a sequence number to the request and to the caller's name for it.
    pub(crate) fn read_acknowledgements<T>(
        &self,
        length: usize,
        context: &'static str,
        find: impl Fn(u32) -> Option<(T, Sent)>,
        mut each: impl FnMut(T, Sent, Option<KernelError>),
    ) -> Result<(), Error> {
        let malformed = |error| Error::new(ErrorKind::Malformed(error), context);
        let datagram = self.buffer.get(..length).ok_or_else(|| Error::new(ErrorKind::StateUnknown, context))?;
        for message in Messages::new(datagram) {
            let message = message.map_err(malformed)?;
            if message.header.port != self.transport.port() {
                continue;
            }
            let Some((name, sent)) = find(message.header.sequence) else {
                continue; // answers an abandoned request
            };
            match message.content().map_err(malformed)? {
                Content::Error { errno, extended, echo } => {
                    let request = self.encoder.as_slice().get(sent.start..sent.end).unwrap_or_default();
                    each(name, sent, Some(kernel_error(errno, extended, echo, request, sent.header)));
                }
                Content::Ack => each(name, sent, None),
                Content::Overrun => return Err(Error::new(ErrorKind::StateUnknown, context)),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn reserve(&mut self, bytes: usize) -> io::Result<usize> {
        self.transport.reserve(bytes)
    }
}

/// A request in the send buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// Offset of the request's first byte; `end` is behind its last.
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) sequence: u32,
    /// Length of the family's fixed header.
    pub(crate) header: usize,
}

/// One message of an answer, and the number of the datagram that carried it.
struct Answer<'a> {
    message: Message<'a>,
    datagram: usize,
}

/// Builds the error for a refused `request`, with the path of the refused attribute.
pub(crate) fn kernel_error(
    errno: i32,
    extended: ExtendedAck<'_>,
    echo: &[u8],
    request: &[u8],
    header: usize,
) -> KernelError {
    let attributes = MESSAGE_HEADER.saturating_add(crate::encode::aligned(header));
    let attribute = extended
        .offset
        .and_then(|offset| usize::try_from(offset).ok()?.checked_sub(attributes))
        .map(|offset| locate(request.get(attributes..).unwrap_or_default(), offset))
        .unwrap_or_default();
    KernelError {
        errno: Errno(errno),
        text: extended.text.map(|text| String::from_utf8_lossy(text.as_bytes()).into_owned()),
        attribute,
        offset: extended.offset,
        missing: extended.missing,
        echo: echo.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Reply, Simulated};

    /// Answers are found by these numbers. After 2^32 requests a batch took some that were refused for done.
    #[test]
    fn numbers_start_again_between_groups() {
        let mut connection = Connection::new(Simulated::new(|_: &Message<'_>| Reply::Error(Errno::EEXIST)));
        connection.set_limits(Limits::default().with_timeout(Duration::from_millis(50)).with_chunk(4, 1 << 20));
        for sequence in [0, u32::MAX / 2, u32::MAX - 2] {
            connection.sequence = sequence;
            let mut batch = connection.batch();
            for _ in 0..9 {
                batch.push(16, 0, &[], |_| {});
            }
            let report = batch.finish();
            assert!(report.stopped.is_none() && report.failures.len() == 9, "{sequence}: {report:?}");
            connection.sequence = sequence;
            let refused = connection.query(16, 0, &[], |_| {}, |_| Ok(())).unwrap_err();
            assert!(refused.kernel().is_some(), "{sequence}");
        }
    }

    /// The clock cannot represent this deadline, which was then taken for past: the batch stopped after one answer.
    #[test]
    fn who_waits_for_ever_gets_every_answer() {
        let mut connection = Connection::new(Simulated::new(|_: &Message<'_>| Reply::Error(Errno::EEXIST)));
        connection.set_limits(Limits::default().with_timeout(Duration::MAX));
        let mut batch = connection.batch();
        for _ in 0..9 {
            batch.push(16, 0, &[], |_| {});
        }
        let report = batch.finish();
        assert!(report.stopped.is_none() && report.failures.len() == 9, "{report:?}");
    }
}

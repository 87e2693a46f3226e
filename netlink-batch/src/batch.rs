//! Many requests in few system calls.
//!
//! A request with its own acknowledgement costs two system calls and one queued answer. In a batch only the last
//! message of each chunk asks for an acknowledgement. The kernel reports errors for every message regardless, so no
//! error is lost.

use std::time::Instant;

use crate::connection::{Connection, Sent, after};
use crate::encode::Encoder;
use crate::error::{Error, ErrorKind, KernelError, WireError};
use crate::header::NLM_F_ACK;

/// Outcome of one request of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The kernel carried it out.
    Done,
    /// The kernel refused it and changed nothing.
    Refused(Box<KernelError>),
    /// The request cannot be encoded and was never sent.
    Unsendable(Box<WireError>),
    /// The request was sent, but its answer was lost: it may or may not have been carried out.
    Unknown,
    /// The request was not sent, because the batch stopped before it.
    NotSent,
}

impl Outcome {
    /// Whether the kernel carried the request out.
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done)
    }
}

/// The outcomes of a batch. Only requests that were not carried out are listed, so success takes no memory.
#[derive(Clone, Debug)]
#[must_use = "a batch reports failures only here"]
#[non_exhaustive]
pub struct BatchReport {
    /// Number of requests.
    pub len: usize,
    /// The requests that were not carried out, as (index in the batch, outcome), in order.
    pub failures: Vec<(usize, Outcome)>,
    /// Why the batch stopped early, if it did. A refused request does not stop a batch.
    pub stopped: Option<Error>,
}

impl BatchReport {
    /// Whether every request was carried out.
    pub fn is_done(&self) -> bool {
        self.stopped.is_none() && self.failures.is_empty()
    }

    /// The outcome of the request at this index.
    pub fn outcome(&self, index: usize) -> &Outcome {
        self.failures
            .binary_search_by_key(&index, |(index, _)| *index)
            .map_or(&Outcome::Done, |found| self.failures.get(found).map_or(&Outcome::Done, |(_, outcome)| outcome))
    }
}

/// A request of the chunk being filled.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Index of the request in the batch.
    index: usize,
    sent: Sent,
}

/// Collects requests and sends them in chunks. Memory is bounded by the chunk, not by the batch.
///
/// The kernel carries out the requests in the order in which they were added. Always call
/// [`finish`](BatchWriter::finish): dropping the writer discards the requests that were not sent yet.
///
/// ```
/// use netlink_batch::header::{NLM_F_CREATE, NLM_F_EXCL};
/// use netlink_batch::testing::{Reply, Simulated};
/// use netlink_batch::{Connection, Errno, Message, Outcome};
///
/// const RTM_NEWADDR: u16 = 20;
/// const IFA_LOCAL: u16 = 2;
///
/// // A kernel whose device has 10.96.0.10 already; in a program, `Connection::open(Protocol::Route)?`.
/// let mut connection = Connection::new(Simulated::new(|message: &Message<'_>| {
///     let is_there = message.attributes(8).flatten().any(|attribute| attribute.payload == [10, 96, 0, 10]);
///     if is_there { Reply::Error(Errno::EEXIST) } else { Reply::Ok }
/// }));
///
/// let device = 7_u32.to_ne_bytes();
/// let header = [[2, 32, 0, 0], device].concat(); // struct ifaddrmsg: AF_INET, /32
/// let mut batch = connection.batch();
/// for address in [[10, 96, 0, 1], [10, 96, 0, 10], [10, 96, 0, 11]] {
///     batch.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &header, |out| out.attr(IFA_LOCAL, &address));
/// }
/// assert_eq!((batch.len(), batch.pending()), (3, 3)); // all fit into one send
///
/// let report = batch.finish();
/// assert!(!report.is_done());
/// for (place, outcome) in &report.failures {
///     match outcome {
///         Outcome::Refused(error) => assert_eq!((*place, error.errno), (1, Errno::EEXIST)),
///         other => println!("{place}: {other:?}"),
///     }
/// }
/// assert!(report.outcome(2).is_done()); // a refused request does not stop the batch
/// ```
#[derive(Debug)]
#[must_use = "a batch is only complete after finish()"]
pub struct BatchWriter<'a> {
    connection: &'a mut Connection,
    pending: Vec<Pending>,
    len: usize,
    failures: Vec<(usize, Outcome)>,
    stopped: Option<Error>,
    chunk_messages: usize,
    chunk_bytes: usize,
}

const CONTEXT: &str = "netlink batch";

impl<'a> BatchWriter<'a> {
    pub(crate) fn new(connection: &'a mut Connection) -> Self {
        connection.begin();
        let chunk_messages = connection.chunk_messages();
        let chunk_bytes = connection.limits().chunk_bytes;
        BatchWriter {
            connection,
            pending: Vec::with_capacity(chunk_messages),
            len: 0,
            failures: Vec::new(),
            stopped: None,
            chunk_messages,
            chunk_bytes,
        }
    }

    /// Number of requests added so far, which is the index of the next one.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no request was added yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of requests added but not yet sent.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Returns the failures known so far, in order. The final report does not repeat them.
    pub fn take_failures(&mut self) -> Vec<(usize, Outcome)> {
        std::mem::take(&mut self.failures)
    }

    /// Adds one request and returns its index in the report.
    ///
    /// `header` is the family's fixed header; `body` appends the attributes. A full chunk is sent at once.
    pub fn push(&mut self, kind: u16, flags: u16, header: &[u8], body: impl FnOnce(&mut Encoder)) -> usize {
        let index = self.len;
        self.len = self.len.saturating_add(1);
        if self.stopped.is_some() {
            self.failures.push((index, Outcome::NotSent));
            return index;
        }
        match self.connection.append(kind, flags & !NLM_F_ACK, header, body) {
            Ok(sent) => self.pending.push(Pending { index, sent }),
            Err(error) => self.failures.push((index, Outcome::Unsendable(Box::new(error)))),
        }
        if self.pending.len() >= self.chunk_messages || self.connection.encoder.len() >= self.chunk_bytes {
            self.flush();
        }
        index
    }

    /// Sends the rest and returns the outcome of every request.
    pub fn finish(mut self) -> BatchReport {
        self.flush();
        BatchReport { len: self.len, failures: self.failures, stopped: self.stopped }
    }

    /// Sends the pending requests, reads the answers and records the failures.
    fn flush(&mut self) {
        if let Some(last) = self.pending.last().copied() {
            let mut refused: Vec<(usize, KernelError)> = Vec::new();
            let (others, stopped) = match self.connection.send_acknowledged(last.sent, CONTEXT) {
                Err(error) => (Outcome::NotSent, Some(error)),
                Ok(()) => match self.collect(last, &mut refused) {
                    Ok(()) => (Outcome::Done, None),
                    Err(error) => (Outcome::Unknown, Some(error)),
                },
            };
            if !others.is_done() {
                let answered: Vec<usize> = refused.iter().map(|(index, _)| *index).collect();
                let silent = self.pending.iter().map(|pending| pending.index).filter(|index| !answered.contains(index));
                self.failures.extend(silent.map(|index| (index, others.clone())));
            }
            self.failures.extend(refused.into_iter().map(|(index, error)| (index, Outcome::Refused(Box::new(error)))));
            self.failures.sort_unstable_by_key(|(index, _)| *index);
            self.stopped = stopped;
        }
        self.pending.clear();
        self.connection.begin();
    }

    /// Reads answers up to that of the last request. If this fails, the state of every unanswered request is unknown.
    fn collect(&mut self, last: Pending, refused: &mut Vec<(usize, KernelError)>) -> Result<(), Error> {
        let deadline = after(self.connection.limits().timeout);
        loop {
            match self.connection.receive_until(deadline, CONTEXT) {
                Ok(Some(length)) => {
                    if self.read_answers(length, last, refused)? {
                        return Ok(());
                    }
                    if Instant::now() >= deadline {
                        return Err(Error::new(ErrorKind::Timeout, CONTEXT));
                    }
                }
                Ok(None) => return Err(Error::new(ErrorKind::Timeout, CONTEXT)),
                Err(error) => {
                    if *error.kind() == ErrorKind::StateUnknown {
                        // Some answers were dropped, but those still queued are valid. The last answer may be among the
                        // dropped ones, so read only what is queued already.
                        self.collect_queued(last, refused);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Reads the answers that are queued already, without waiting for more.
    fn collect_queued(&mut self, last: Pending, refused: &mut Vec<(usize, KernelError)>) {
        let limits = self.connection.limits();
        let mut now = limits;
        now.timeout = std::time::Duration::from_millis(1);
        self.connection.set_limits(now);
        let deadline = after(limits.timeout);
        loop {
            match self.connection.receive_until(Instant::now(), CONTEXT) {
                Ok(Some(length)) => {
                    let finished = !matches!(self.read_answers(length, last, refused), Ok(false));
                    if finished || Instant::now() >= deadline {
                        break;
                    }
                }
                Err(error) if *error.kind() == ErrorKind::StateUnknown => {}
                Ok(None) | Err(_) => break,
            }
        }
        self.connection.set_limits(limits);
    }

    /// Reads one datagram. Returns `true` if it contained the last request's answer.
    fn read_answers(
        &self,
        length: usize,
        last: Pending,
        refused: &mut Vec<(usize, KernelError)>,
    ) -> Result<bool, Error> {
        let mut finished = false;
        let find = |sequence| {
            let place = self.pending.binary_search_by_key(&sequence, |pending| pending.sent.sequence).ok()?;
            self.pending.get(place).map(|pending| (pending.index, pending.sent))
        };
        self.connection.read_acknowledgements(length, CONTEXT, find, |index, sent, refusal| {
            finished |= sent.sequence == last.sent.sequence;
            refused.extend(refusal.map(|error| (index, error)));
        })?;
        Ok(finished)
    }
}

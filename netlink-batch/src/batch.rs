//! Many requests in few sends.
//!
//! A request with its own acknowledgement costs two system calls and a queued answer. In a batch only the last message of
//! each chunk asks for one: errors are reported for any message, acknowledged or not, so nothing is lost.

use std::time::Instant;

use crate::connection::{Connection, after, append_message, kernel_error};
use crate::encode::Encoder;
use crate::error::{Error, ErrorKind, KernelError, WireError};
use crate::header::NLM_F_ACK;
use crate::message::{Content, Messages};

/// What became of one request of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The kernel carried it out.
    Done,
    /// The kernel refused it and changed nothing.
    Refused(Box<KernelError>),
    /// It cannot be written and was never sent.
    Unsendable(Box<WireError>),
    /// It was sent, but its answer was lost: it may or may not have been carried out.
    Unknown,
    /// It was not sent, because the batch stopped before it.
    NotSent,
}

impl Outcome {
    /// Whether the kernel carried the request out.
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done)
    }
}

/// One outcome for each request, in the order they were added.
#[derive(Debug)]
#[must_use = "a batch reports failures only here"]
pub struct BatchReport {
    /// One outcome for each request.
    pub outcomes: Vec<Outcome>,
    /// Why the batch stopped early, when it did. A refused request does not stop it.
    pub stopped: Option<Error>,
}

impl BatchReport {
    /// Whether every request was carried out.
    pub fn is_done(&self) -> bool {
        self.stopped.is_none() && self.outcomes.iter().all(Outcome::is_done)
    }

    /// The requests that were not carried out, with their place in the batch.
    pub fn failures(&self) -> impl Iterator<Item = (usize, &Outcome)> {
        self.outcomes.iter().enumerate().filter(|(_, outcome)| !outcome.is_done())
    }
}

/// A request of the chunk being filled.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Its place in the batch.
    index: usize,
    /// Its first and last byte in the chunk.
    start: usize,
    end: usize,
    sequence: u32,
    /// Length of the family's fixed header.
    header: usize,
}

/// Collects requests and sends them a chunk at a time. Memory is bounded by the chunk, not by the batch.
///
/// Requests are carried out in the order they are added. Call [`finish`](BatchWriter::finish): what was not yet sent when
/// the writer is dropped is never sent.
#[derive(Debug)]
#[must_use = "a batch is only complete after finish()"]
pub struct BatchWriter<'a> {
    connection: &'a mut Connection,
    pending: Vec<Pending>,
    outcomes: Vec<Outcome>,
    stopped: Option<Error>,
    chunk_messages: usize,
    chunk_bytes: usize,
}

const CONTEXT: &str = "netlink batch";

impl<'a> BatchWriter<'a> {
    pub(crate) fn new(connection: &'a mut Connection) -> Self {
        connection.encoder.clear();
        let chunk_messages = connection.chunk_messages();
        let chunk_bytes = connection.limits().chunk_bytes;
        BatchWriter {
            connection,
            pending: Vec::with_capacity(chunk_messages),
            outcomes: Vec::new(),
            stopped: None,
            chunk_messages,
            chunk_bytes,
        }
    }

    /// Number of requests added so far: the next one's place in the report.
    pub fn len(&self) -> usize {
        self.outcomes.len()
    }

    /// Whether no request was added yet.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// Adds one request and returns its place in the report.
    ///
    /// `header` is the family's fixed header; `body` appends the attributes. Sends the chunk when it is full.
    pub fn push(&mut self, kind: u16, flags: u16, header: &[u8], body: impl FnOnce(&mut Encoder)) -> usize {
        let index = self.outcomes.len();
        self.outcomes.push(Outcome::NotSent);
        if self.stopped.is_some() {
            return index;
        }
        let start = self.connection.encoder.len();
        let sequence = self.connection.next_sequence();
        match append_message(&mut self.connection.encoder, kind, flags & !NLM_F_ACK, sequence, header, body) {
            Ok(()) => {
                let end = self.connection.encoder.len();
                self.pending.push(Pending { index, start, end, sequence, header: header.len() });
            }
            Err(error) => self.set(index, Outcome::Unsendable(Box::new(error))),
        }
        if self.pending.len() >= self.chunk_messages || self.connection.encoder.len() >= self.chunk_bytes {
            self.flush();
        }
        index
    }

    /// Sends what is pending and gives the outcome of every request.
    pub fn finish(mut self) -> BatchReport {
        self.flush();
        BatchReport { outcomes: self.outcomes, stopped: self.stopped }
    }

    fn set(&mut self, index: usize, outcome: Outcome) {
        if let Some(place) = self.outcomes.get_mut(index) {
            *place = outcome;
        }
    }

    fn flush(&mut self) {
        if let Some(last) = self.pending.last().copied()
            && self.stopped.is_none()
            && let Err(error) = self.exchange(last)
        {
            self.stopped = Some(error);
        }
        self.pending.clear();
        self.connection.encoder.clear();
    }

    /// Sends the pending requests and takes their answers, the last one's included.
    fn exchange(&mut self, last: Pending) -> Result<(), Error> {
        // Flags lie at bytes 6 and 7 of the message header.
        let flags_at = last.start.saturating_add(6);
        let flags = self.connection.encoder.as_slice().get(flags_at..flags_at.saturating_add(2));
        if let Some(&[a, b]) = flags {
            let flags = u16::from_ne_bytes([a, b]) | NLM_F_ACK;
            self.connection.encoder.patch(flags_at, &flags.to_ne_bytes());
        }
        self.connection.send(0, last.end).map_err(|error| Error::io(CONTEXT, error))?;

        // Sent: until an answer says otherwise, nobody knows.
        let mut verdict = Outcome::Done;
        let mut stop = None;
        let mut refused: Vec<(usize, KernelError)> = Vec::new();
        let deadline = after(self.connection.limits().timeout);
        'answers: loop {
            let length = match self.connection.receive_until(deadline, CONTEXT) {
                Ok(Some(length)) => length,
                Ok(None) => {
                    stop = stop.or_else(|| Some(Error::new(ErrorKind::Timeout, CONTEXT)));
                    verdict = Outcome::Unknown;
                    break;
                }
                Err(error) if *error.kind() == ErrorKind::StateUnknown => {
                    // Some answers were dropped; those still queued are good. The last one may be among the dropped, and
                    // then nothing more comes: what is queued is there already.
                    verdict = Outcome::Unknown;
                    stop = Some(error);
                    self.collect_queued(last, &mut refused);
                    break;
                }
                Err(error) => {
                    verdict = Outcome::Unknown;
                    stop = Some(error);
                    break;
                }
            };
            match self.read_answers(length, last, &mut refused) {
                Ok(true) => break 'answers,
                Ok(false) => {}
                Err(error) => {
                    verdict = Outcome::Unknown;
                    stop = Some(error);
                    break;
                }
            }
        }
        for at in 0..self.pending.len() {
            if let Some(pending) = self.pending.get(at).copied() {
                self.set(pending.index, verdict.clone());
            }
        }
        for (index, error) in refused {
            self.set(index, Outcome::Refused(Box::new(error)));
        }
        stop.map_or(Ok(()), Err)
    }

    /// Takes the answers that are queued already, without waiting for more.
    fn collect_queued(&mut self, last: Pending, refused: &mut Vec<(usize, KernelError)>) {
        let limits = self.connection.limits();
        let mut now = limits;
        now.timeout = std::time::Duration::from_millis(1);
        self.connection.set_limits(now);
        loop {
            match self.connection.receive_until(Instant::now(), CONTEXT) {
                Ok(Some(length)) => {
                    if !matches!(self.read_answers(length, last, refused), Ok(false)) {
                        break;
                    }
                }
                Err(error) if *error.kind() == ErrorKind::StateUnknown => {}
                Ok(None) | Err(_) => break,
            }
        }
        self.connection.set_limits(limits);
    }

    /// Reads one datagram; `true` when the last request's answer was in it.
    fn read_answers(
        &self,
        length: usize,
        last: Pending,
        refused: &mut Vec<(usize, KernelError)>,
    ) -> Result<bool, Error> {
        let malformed = |error| Error::new(ErrorKind::Malformed(error), CONTEXT);
        let Some(datagram) = self.connection.datagram(length) else {
            return Err(Error::new(ErrorKind::StateUnknown, CONTEXT));
        };
        let mut finished = false;
        for message in Messages::new(datagram) {
            let message = message.map_err(malformed)?;
            let sequence = message.header.sequence;
            if message.header.port != self.connection.port() {
                continue;
            }
            let Ok(place) = self.pending.binary_search_by_key(&sequence, |pending| pending.sequence) else {
                continue; // an answer to something that was given up
            };
            let Some(pending) = self.pending.get(place).copied() else {
                continue;
            };
            match message.content().map_err(malformed)? {
                Content::Error { errno, extended, echo } => {
                    let request =
                        self.connection.encoder.as_slice().get(pending.start..pending.end).unwrap_or_default();
                    refused.push((pending.index, kernel_error(errno, extended, echo, request, pending.header)));
                    finished |= sequence == last.sequence;
                }
                Content::Ack => finished |= sequence == last.sequence,
                Content::Overrun => return Err(Error::new(ErrorKind::StateUnknown, CONTEXT)),
                _ => {}
            }
        }
        Ok(finished)
    }
}

//! Transports without a kernel (feature `testing`).
//!
//! [`Simulated`] answers each message of a datagram through a [`Responder`], with the kernel's own framing: errors for
//! any message, acknowledgements on request, the end of a dump. [`Faults`] adds the failures of a real socket.
//! [`header_numbers`] reads the numbers of C headers.
//!
//! ```
//! use netlink_batch::testing::{Reply, Simulated};
//! use netlink_batch::{Connection, ErrorKind, Message};
//!
//! let transport = Simulated::new(|_: &Message<'_>| Reply::Dump(vec![(33, vec![1]), (33, vec![2])]));
//! let faults = transport.faults();
//! let mut connection = Connection::new(transport);
//! let mut table = move || connection.dump(33, 0, &[], |_| {}, |payload| Ok(payload.to_vec())).map(|dump| dump.items);
//!
//! faults.lock().unwrap().interrupted_dumps = 1;
//! assert_eq!(table()?, [[1], [2]]); // read again
//! faults.lock().unwrap().interrupted_dumps = u32::MAX;
//! assert_eq!(*table().unwrap_err().kind(), ErrorKind::Interrupted);
//! # Ok::<(), netlink_batch::Error>(())
//! ```

mod headers;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::connection::Transport;
use crate::encode::Encoder;
use crate::error::Errno;
use crate::extack::ExtAckAttr;
use crate::header::{
    MESSAGE_HEADER, MessageHeader, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLM_F_MULTI, NLMSG_DONE,
    NLMSG_ERROR,
};
use crate::message::{Message, Messages};

pub use headers::header_numbers;

/// Answer of a simulated kernel to one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Success; acknowledged if the request asked for it.
    Ok,
    /// Refused.
    Error(Errno),
    /// Refused because of the attribute that starts at this offset in the message.
    ErrorAt(Errno, u32),
    /// Data messages (type and the bytes behind the message header), then success.
    Data(Vec<(u16, Vec<u8>)>),
    /// A dump: data messages, then the end.
    Dump(Vec<(u16, Vec<u8>)>),
}

/// A simulated kernel: decides the reply to each message.
pub trait Responder: Send {
    /// Handles one message.
    fn respond(&mut self, message: &Message<'_>) -> Reply;

    /// Handles the messages of one datagram together, with one reply for each. `None`, the default, passes each to
    /// [`respond`](Responder::respond).
    fn respond_together(&mut self, _messages: &[Message<'_>]) -> Option<Vec<Reply>> {
        None
    }
}

impl<F: FnMut(&Message<'_>) -> Reply + Send> Responder for F {
    fn respond(&mut self, message: &Message<'_>) -> Reply {
        self(message)
    }
}

/// Faults to inject. All are off by default. Counters decrease with each fault injected.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Mark this many dumps as interrupted.
    pub interrupted_dumps: u32,
    /// Truncate this many datagrams: report a length beyond the buffer's.
    pub truncated: u32,
    /// Report `ENOBUFS` this many times instead of an answer, and drop everything queued.
    pub no_buffers: u32,
    /// Report `EINTR` this many times before an answer.
    pub signals: u32,
    /// Drop this many datagrams silently.
    pub lost: u32,
    /// Never send the end of a dump.
    pub lose_end: bool,
    /// Send unrelated messages endlessly.
    pub flood: bool,
    /// Send stale and unrelated messages before each answer.
    pub noise: bool,
    /// Messages of a dump in one datagram; 0 means 16.
    pub dump_chunk: usize,
}

/// A transport with a simulated kernel behind it.
pub struct Simulated<R> {
    responder: R,
    faults: Arc<Mutex<Faults>>,
    queue: VecDeque<Vec<u8>>,
}

const PORT: u32 = 4711;

impl<R: Responder> Simulated<R> {
    /// A transport without faults.
    pub fn new(responder: R) -> Self {
        Simulated { responder, faults: Arc::default(), queue: VecDeque::new() }
    }

    /// The faults, which can be changed while the transport is in use.
    pub fn faults(&self) -> Arc<Mutex<Faults>> {
        Arc::clone(&self.faults)
    }
}

impl<R> std::fmt::Debug for Simulated<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulated")
            .field("queued", &self.queue.len())
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

fn frame(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(MESSAGE_HEADER.saturating_add(payload.len())).unwrap_or(u32::MAX);
    let mut out = Encoder::new();
    MessageHeader { length, kind, flags, sequence, port: PORT }.put(&mut out);
    out.bytes(payload);
    out.pad();
    out.as_slice().to_vec()
}

fn error(request: MessageHeader, errno: i32) -> Vec<u8> {
    error_at(request, errno, None)
}

fn error_at(request: MessageHeader, errno: i32, offset: Option<u32>) -> Vec<u8> {
    let mut payload = Encoder::new();
    payload.bytes(&errno.saturating_neg().to_ne_bytes());
    request.put(&mut payload);
    let mut flags = NLM_F_CAPPED;
    if let Some(offset) = offset {
        flags |= NLM_F_ACK_TLVS;
        payload.attr(ExtAckAttr::OFFS, &offset);
    }
    frame(NLMSG_ERROR, flags, request.sequence, payload.as_slice())
}

fn take(counter: &mut u32) -> bool {
    let left = *counter > 0;
    *counter = counter.saturating_sub(1);
    left
}

impl<R: Responder> Transport for Simulated<R> {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let messages: Vec<Message<'_>> = Messages::new(datagram).map_while(Result::ok).collect();
        let mut together = self.responder.respond_together(&messages).map(Vec::into_iter);
        for message in messages {
            let request = message.header;
            if faults.noise {
                self.queue
                    .push_back(error(MessageHeader { sequence: request.sequence.wrapping_sub(1000), ..request }, 5));
                self.queue.push_back(frame(NLMSG_DONE, 0, 0, &[0; 4]));
            }
            let reply = match &mut together {
                Some(replies) => replies.next().unwrap_or(Reply::Ok),
                None => self.responder.respond(&message),
            };
            match reply {
                Reply::Ok if request.flags & NLM_F_ACK != 0 => self.queue.push_back(error(request, 0)),
                Reply::Ok => {}
                Reply::Error(errno) => self.queue.push_back(error(request, errno.0)),
                Reply::ErrorAt(errno, offset) => self.queue.push_back(error_at(request, errno.0, Some(offset))),
                Reply::Data(items) => {
                    for (kind, payload) in items {
                        self.queue.push_back(frame(kind, 0, request.sequence, &payload));
                    }
                    if request.flags & NLM_F_ACK != 0 {
                        self.queue.push_back(error(request, 0));
                    }
                }
                Reply::Dump(items) => {
                    let chunk = if faults.dump_chunk == 0 { 16 } else { faults.dump_chunk };
                    let interrupted = if take(&mut faults.interrupted_dumps) { NLM_F_DUMP_INTR } else { 0 };
                    for part in items.chunks(chunk) {
                        let datagram = part
                            .iter()
                            .flat_map(|(kind, payload)| frame(*kind, NLM_F_MULTI, request.sequence, payload));
                        self.queue.push_back(datagram.collect());
                    }
                    if !faults.lose_end {
                        let end = frame(NLMSG_DONE, NLM_F_MULTI | interrupted, request.sequence, &[0; 4]);
                        self.queue.push_back(end);
                    }
                }
            }
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], _timeout: Duration) -> io::Result<usize> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if take(&mut faults.signals) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if faults.flood {
            self.queue.clear();
            self.queue.push_back(frame(NLMSG_DONE, 0, 0, &[0; 4]));
        }
        if take(&mut faults.no_buffers) {
            // The kernel drops what does not fit. The end of a dump still arrives, since the kernel waits for room to
            // send it.
            self.queue.retain(|datagram| {
                Messages::new(datagram).map_while(Result::ok).any(|message| message.header.kind == NLMSG_DONE)
            });
            return Err(io::Error::from_raw_os_error(Errno::ENOBUFS.0));
        }
        if !self.queue.is_empty() && take(&mut faults.lost) {
            self.queue.pop_front();
        }
        let Some(datagram) = self.queue.pop_front() else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let fits = datagram.len().min(buffer.len());
        let fits = if take(&mut faults.truncated) { 0 } else { fits };
        for (place, byte) in buffer.iter_mut().zip(datagram.iter().take(fits)) {
            *place = *byte;
        }
        if fits < datagram.len() {
            return Ok(buffer.len().saturating_add(1).max(datagram.len()));
        }
        Ok(datagram.len())
    }

    fn port(&self) -> u32 {
        PORT
    }

    fn in_flight(&self) -> usize {
        128
    }
}

//! Splits datagrams into messages: data, errors, acknowledgements and ends of dumps.

use crate::attr::{Attrs, RawAttrs};
use crate::encode::aligned;
use crate::error::WireError;
use crate::extack::{ExtAckAttr, ExtendedAck};
use crate::header::{
    MESSAGE_HEADER, MessageHeader, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN,
};

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Header of the message.
    pub header: MessageHeader,
    /// Bytes behind the header, without padding.
    pub payload: &'a [u8],
}

/// Content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content<'a> {
    /// The family's own data.
    Data(&'a [u8]),
    /// The request with this sequence number succeeded.
    Ack,
    /// The request with this sequence number failed. `errno` is positive.
    Error {
        /// The kernel's error number.
        errno: i32,
        /// The kernel's extended error: message, offset, missing attribute.
        extended: ExtendedAck<'a>,
        /// The kernel's copy of the request behind its message header; empty if omitted (`NLM_F_CAPPED`).
        echo: &'a [u8],
    },
    /// The end of a dump. `errno` is 0, or positive if the dump failed midway.
    Done {
        /// The kernel's error number, 0 for success.
        errno: i32,
        /// The kernel's extended error: message, offset, missing attribute.
        extended: ExtendedAck<'a>,
    },
    /// Nothing.
    Noop,
    /// The kernel lost data (`NLMSG_OVERRUN`).
    Overrun,
}

impl<'a> Message<'a> {
    /// Decodes the message.
    ///
    /// # Errors
    /// [`WireError::Message`] when an error or end message is shorter than its fixed part.
    pub fn content(&self) -> Result<Content<'a>, WireError> {
        let broken = || WireError::Message { offset: 0, available: self.payload.len() };
        Ok(match self.header.kind {
            NLMSG_NOOP => Content::Noop,
            NLMSG_OVERRUN => Content::Overrun,
            NLMSG_DONE => {
                // Old kernels end a dump with an empty message.
                let (errno, rest) = match self.payload.split_first_chunk::<4>() {
                    Some((raw, rest)) => (i32::from_ne_bytes(*raw), rest),
                    None => (0, &[][..]),
                };
                Content::Done { errno: errno.saturating_neg(), extended: self.extended(rest) }
            }
            NLMSG_ERROR => {
                let (raw, rest) = self.payload.split_first_chunk::<4>().ok_or_else(broken)?;
                match i32::from_ne_bytes(*raw) {
                    0 => Content::Ack,
                    errno => {
                        let request = MessageHeader::get(rest).ok_or_else(broken)?;
                        let repeated = if self.header.flags & NLM_F_CAPPED == 0 {
                            aligned(usize::try_from(request.length).unwrap_or(usize::MAX))
                        } else {
                            MESSAGE_HEADER
                        };
                        let echo = rest.get(MESSAGE_HEADER..repeated.min(rest.len())).unwrap_or_default();
                        let tail = rest.get(repeated..).unwrap_or_default();
                        Content::Error { errno: errno.saturating_neg(), extended: self.extended(tail), echo }
                    }
                }
            }
            _ => Content::Data(self.payload),
        })
    }

    fn extended(&self, attributes: &'a [u8]) -> ExtendedAck<'a> {
        if self.header.flags & NLM_F_ACK_TLVS == 0 {
            return ExtendedAck::default();
        }
        ExtendedAck::read(Attrs::<ExtAckAttr<'a>>::new(attributes))
    }

    /// The attributes behind a header of `skip` bytes.
    pub fn attributes(&self, skip: usize) -> RawAttrs<'a> {
        RawAttrs::new(self.payload.get(skip..).unwrap_or_default())
    }
}

/// Splits a datagram into messages. After an error it ends.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Messages<'a> {
    /// Starts at the first message of a datagram.
    pub fn new(datagram: &'a [u8]) -> Self {
        Messages { bytes: datagram, offset: 0 }
    }

    fn take(&mut self) -> Result<Message<'a>, WireError> {
        let rest = self.bytes.get(self.offset..).unwrap_or_default();
        let broken = WireError::Message { offset: self.offset, available: rest.len() };
        let Some(header) = MessageHeader::get(rest) else {
            return Err(broken);
        };
        let length = usize::try_from(header.length).unwrap_or(usize::MAX);
        let Some(payload) = rest.get(MESSAGE_HEADER..length) else {
            return Err(broken);
        };
        self.offset = self.offset.saturating_add(aligned(length));
        Ok(Message { header, payload })
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.bytes.len() {
            return None;
        }
        let item = self.take();
        if item.is_err() {
            self.offset = self.bytes.len();
        }
        Some(item)
    }
}

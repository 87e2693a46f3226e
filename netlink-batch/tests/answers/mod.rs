//! A kernel that answers with a fuzzer's bytes, for the fuzz targets of the crates above.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use netlink_batch::header::{MESSAGE_HEADER, MessageHeader, NLM_F_DUMP, NLM_F_MULTI, NLMSG_DONE, NLMSG_ERROR};
use netlink_batch::{Encoder, Transport};

const PORT: u32 = 7;

/// The fuzzer's bytes, split at one of them.
pub(crate) fn parts(data: &[u8], most: usize) -> Vec<Vec<u8>> {
    data.split(|byte| *byte == 0xf5).take(most).map(<[u8]>::to_vec).collect()
}

pub(crate) fn framed(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(MESSAGE_HEADER + payload.len()).unwrap_or(u32::MAX);
    let mut out = Encoder::new();
    MessageHeader { length, kind, flags, sequence, port: PORT }.put(&mut out);
    out.bytes(payload);
    out.as_slice().to_vec()
}

/// Answers every request but the first with the fuzzer's bytes.
///
/// The first two bits of each part select how it is sent. It is sent unchanged, as the payload of a message that fits
/// the request, as attributes behind the protocol's message header, or as an error.
pub(crate) struct Answers {
    parts: Vec<Vec<u8>>,
    header: [u8; 4],
    first: Option<Vec<u8>>,
    queue: VecDeque<Vec<u8>>,
}

impl Answers {
    /// With the protocol's message header, and the payload of the first answer.
    pub(crate) fn new(data: &[u8], header: [u8; 4], first: Vec<u8>) -> Self {
        Answers { parts: parts(data, 16), header, first: Some(first), queue: VecDeque::new() }
    }
}

impl Transport for Answers {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let Some(request) = MessageHeader::get(datagram) else { return Err(io::ErrorKind::InvalidInput.into()) };
        let (kind, sequence) = (request.kind, request.sequence);
        if let Some(payload) = self.first.take() {
            self.queue.push_back(framed(kind, 0, sequence, &payload));
            self.queue.push_back(framed(NLMSG_ERROR, 0x100, sequence, &[0; 20]));
            return Ok(());
        }
        let multi = if request.flags & NLM_F_DUMP == NLM_F_DUMP { NLM_F_MULTI } else { 0 };
        for part in &self.parts {
            let Some((how, rest)) = part.split_first() else { continue };
            self.queue.push_back(match how & 3 {
                0 => rest.to_vec(),
                1 => framed(kind, multi, sequence, rest),
                2 => framed(kind, multi, sequence, &[&self.header, rest].concat()),
                _ => framed(NLMSG_ERROR, 0x200, sequence, rest),
            });
        }
        let end = if multi == 0 { NLMSG_ERROR } else { NLMSG_DONE };
        self.queue.push_back(framed(end, 0x100 | multi, sequence, &[0; 20]));
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], _timeout: Duration) -> io::Result<usize> {
        let datagram = self.queue.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
        for (place, byte) in buffer.iter_mut().zip(&datagram) {
            *place = *byte;
        }
        Ok(datagram.len())
    }

    fn port(&self) -> u32 {
        PORT
    }

    fn in_flight(&self) -> usize {
        16
    }
}

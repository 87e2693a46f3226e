//! Requests that must be in one datagram, such as nftables' all-or-nothing transactions.

use std::time::Instant;

use crate::connection::{Connection, Sent, after};
use crate::encode::Encoder;
use crate::error::{Error, ErrorKind, KernelError, WireError};
use crate::header::NLM_F_ACK;

/// Collects requests and sends them in one datagram. The send buffer is enlarged as needed.
///
/// Nothing is sent before [`send`](TogetherWriter::send).
///
/// A transaction of nf_tables:
///
/// ```
/// use netlink_batch::header::{NLM_F_CREATE, NfGenHeader};
/// use netlink_batch::testing::{Reply, Simulated};
/// use netlink_batch::{Connection, Message, NulStr};
///
/// const BATCH_BEGIN: u16 = 0x10;
/// const BATCH_END: u16 = 0x11;
/// const NEW_TABLE: u16 = 10 << 8; // NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWTABLE
/// const NAME: u16 = 1;
///
/// // In a program, `Connection::open(Protocol::Netfilter)?`.
/// let mut connection = Connection::new(Simulated::new(|_: &Message<'_>| Reply::Ok));
/// let nftables = NfGenHeader { resource: 10, ..NfGenHeader::default() }.to_bytes();
/// let inet = NfGenHeader { family: 1, ..NfGenHeader::default() }.to_bytes();
///
/// let mut transaction = connection.together();
/// transaction.push(BATCH_BEGIN, 0, &nftables, |_| {})?;
/// let table = transaction.push(NEW_TABLE, NLM_F_CREATE, &inet, |out| out.attr(NAME, &NulStr::from("agent")))?;
/// transaction.push(BATCH_END, 0, &nftables, |_| {})?;
/// assert_eq!((transaction.len(), transaction.bytes()), (3, 20 + 32 + 20));
///
/// // The kernel commits at the end, and then acknowledges the table.
/// let refused = transaction.send(table)?;
/// assert_eq!(refused, []);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "nothing is sent before send()"]
pub struct TogetherWriter<'a> {
    connection: &'a mut Connection,
    sent: Vec<Sent>,
}

const CONTEXT: &str = "netlink transaction";

impl<'a> TogetherWriter<'a> {
    pub(crate) fn new(connection: &'a mut Connection) -> Self {
        connection.begin();
        TogetherWriter { connection, sent: Vec::new() }
    }

    /// Number of requests added so far, which is the index of the next one.
    pub fn len(&self) -> usize {
        self.sent.len()
    }

    /// Whether no request was added yet.
    pub fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Length of the datagram so far, in bytes.
    pub fn bytes(&self) -> usize {
        self.connection.encoder.len()
    }

    /// Adds one request and returns its index.
    ///
    /// `header` is the family's fixed header; `body` appends the attributes.
    ///
    /// # Errors
    /// When the request cannot be encoded; the group is unchanged.
    pub fn push(
        &mut self,
        kind: u16,
        flags: u16,
        header: &[u8],
        body: impl FnOnce(&mut Encoder),
    ) -> Result<usize, WireError> {
        let place = self.sent.len();
        self.sent.push(self.connection.append(kind, flags & !NLM_F_ACK, header, body)?);
        Ok(place)
    }

    /// Sends everything and waits for the answer to the request with index `acknowledged`, or for an error answer to
    /// the first request. Returns the refused requests by index, in the order of the answers.
    ///
    /// If there are more refusals than the receive buffer holds, only the first are returned.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] before anything is sent. [`ErrorKind::Timeout`] and [`ErrorKind::StateUnknown`] if the
    /// outcome is unknown. [`ErrorKind::Io`].
    pub fn send(mut self, acknowledged: usize) -> Result<Vec<(usize, KernelError)>, Error> {
        let bytes = self.bytes();
        let (Some(first), Some(last)) = (self.sent.first().copied(), self.sent.get(acknowledged).copied()) else {
            return Ok(Vec::new());
        };
        let limit = self.connection.reserve(bytes).map_err(|error| Error::io(CONTEXT, error))?;
        if limit < bytes {
            self.connection.encoder.clear();
            return Err(Error::new(ErrorKind::TooLarge { bytes, limit }, CONTEXT));
        }
        self.connection.send_acknowledged(last, CONTEXT)?;
        let mut refused = Vec::new();
        let answered = self.collect(first, last, &mut refused);
        self.connection.encoder.clear();
        match answered {
            // Success is a single answer, so only refusals can overflow the buffer. Those that arrived name the fault.
            Err(error) if *error.kind() == ErrorKind::StateUnknown && !refused.is_empty() => Ok(refused),
            Err(error) => Err(error),
            Ok(()) => Ok(refused),
        }
    }

    fn collect(&mut self, first: Sent, last: Sent, refused: &mut Vec<(usize, KernelError)>) -> Result<(), Error> {
        let deadline = after(self.connection.limits().timeout);
        let mut lost = false;
        loop {
            match self.connection.receive_until(deadline, CONTEXT) {
                Ok(Some(length)) => {
                    if self.read_answers(length, first, last, refused)? {
                        return Ok(());
                    }
                    if lost {
                        // The final answer may be among the lost ones; the refusals that arrived are enough.
                        return Err(Error::new(ErrorKind::StateUnknown, CONTEXT));
                    }
                    if Instant::now() >= deadline {
                        return Err(Error::new(ErrorKind::Timeout, CONTEXT));
                    }
                }
                Ok(None) if lost => return Err(Error::new(ErrorKind::StateUnknown, CONTEXT)),
                Ok(None) => return Err(Error::new(ErrorKind::Timeout, CONTEXT)),
                // The kernel reports the loss before it delivers the answers that are queued.
                Err(error) if *error.kind() == ErrorKind::StateUnknown && !lost && refused.is_empty() => lost = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads one datagram. Returns `true` when no more answers are expected.
    fn read_answers(
        &self,
        length: usize,
        first: Sent,
        last: Sent,
        refused: &mut Vec<(usize, KernelError)>,
    ) -> Result<bool, Error> {
        let mut finished = false;
        let find = |sequence| {
            let place = self.sent.binary_search_by_key(&sequence, |sent| sent.sequence).ok()?;
            self.sent.get(place).map(|sent| (place, *sent))
        };
        self.connection.read_acknowledgements(length, CONTEXT, find, |place, sent, refusal| {
            finished |= sent.sequence == last.sequence || (refusal.is_some() && sent.sequence == first.sequence);
            refused.extend(refusal.map(|error| (place, error)));
        })?;
        Ok(finished)
    }
}

//! Sockets to the simulated sets that record which sets were written, and stop if the process dies between two
//! messages.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use netlink_batch::header::{MESSAGE_HEADER, NfGenHeader};
use netlink_batch::{Message, Messages, NulStr, RawAttrs, Transport};

use super::control::Control;
use super::shared::Shared;

/// Number of writes to each set, so that reads of unchanged sets can be reused.
#[derive(Debug, Default)]
pub(super) struct WriteCounts {
    all: u64,
    by_name: BTreeMap<String, u64>,
}

impl WriteCounts {
    /// Changes whenever the set with this name may have changed.
    pub(super) fn generation(&self, name: &str) -> (u64, u64) {
        (self.all, self.by_name.get(name).copied().unwrap_or_default())
    }

    fn note(&mut self, message: &Message<'_>) {
        // CREATE, ADD and DEL change the named set; other commands change more than one, or all.
        let name = match command(message.header.kind) {
            2 | 9 | 10 => set_name(message),
            _ => None,
        };
        let count = match name {
            Some(name) => self.by_name.entry(name).or_default(),
            None => &mut self.all,
        };
        *count = count.saturating_add(1);
    }
}

/// `IPSET_ATTR_SETNAME` of a request.
fn set_name(message: &Message<'_>) -> Option<String> {
    let (_, attributes) = NfGenHeader::split(message.payload)?;
    let mut attributes = RawAttrs::new(attributes).map_while(Result::ok);
    let name = attributes.find(|attribute| attribute.kind() == 2)?;
    NulStr::new(name.payload).to_str().map(str::to_owned)
}

fn command(kind: u16) -> u8 {
    let [_, command] = kind.to_be_bytes();
    command
}

/// CREATE, DESTROY, FLUSH, RENAME, SWAP, ADD and DEL (`enum ipset_cmd`, linux/netfilter/ipset/ip_set.h).
fn is_write(kind: u16) -> bool {
    matches!(command(kind), 2..=6 | 9 | 10)
}

/// Records writes, and passes messages on until the process dies.
pub(super) struct RecordingSocket<T> {
    inner: T,
    written: Shared<WriteCounts>,
    /// The process that may die, and whether messages count. If not, their effect was counted before.
    mortal: Option<(Shared<Control>, Shared<bool>)>,
}

impl<T> RecordingSocket<T> {
    /// Creates a socket for a test.
    pub(super) fn new(inner: T, written: Shared<WriteCounts>) -> Self {
        RecordingSocket { inner, written, mortal: None }
    }

    /// Creates a socket for the process under test.
    pub(super) fn mortal(
        inner: T,
        written: Shared<WriteCounts>,
        control: Shared<Control>,
        counting: Shared<bool>,
    ) -> Self {
        RecordingSocket { inner, written, mortal: Some((control, counting)) }
    }
}

impl<T: Transport> Transport for RecordingSocket<T> {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let counting = self.mortal.as_ref().filter(|(_, counting)| *counting.lock());
        let mut end = 0_usize;
        for message in Messages::new(datagram).map_while(Result::ok) {
            if is_write(message.header.kind) {
                if counting.is_some_and(|(control, _)| !control.lock().spend()) {
                    self.inner.send(datagram.get(..end).unwrap_or_default())?;
                    return Err(io::Error::other("the process has crashed"));
                }
                self.written.lock().note(&message);
            }
            let length = MESSAGE_HEADER.saturating_add(message.payload.len());
            end = end.saturating_add(length.next_multiple_of(4));
        }
        self.inner.send(datagram)
    }

    fn receive(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        self.inner.receive(buffer, timeout)
    }

    fn port(&self) -> u32 {
        self.inner.port()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

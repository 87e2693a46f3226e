//! Sockets to the simulated sets that stop if the process dies between two messages.

use std::io;
use std::time::Duration;

use netlink_batch::header::MESSAGE_HEADER;
use netlink_batch::{Messages, Transport};

use super::control::Control;
use super::shared::Shared;

/// CREATE, DESTROY, FLUSH, RENAME, SWAP, ADD and DEL (`enum ipset_cmd`, linux/netfilter/ipset/ip_set.h).
fn is_write(kind: u16) -> bool {
    let [_, command] = kind.to_be_bytes();
    matches!(command, 2..=6 | 9 | 10)
}

pub(super) struct MortalSocket<T> {
    pub(super) inner: T,
    pub(super) control: Shared<Control>,
    /// Whether messages count. If not, their effect was counted before.
    pub(super) counting: Shared<bool>,
}

impl<T: Transport> Transport for MortalSocket<T> {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        let is_counting = *self.counting.lock();
        let mut end = 0_usize;
        for message in Messages::new(datagram).map_while(Result::ok).filter(|_| is_counting) {
            if is_write(message.header.kind) && !self.control.lock().spend() {
                self.inner.send(datagram.get(..end).unwrap_or_default())?;
                return Err(io::Error::other("the process has crashed"));
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

//! Sockets of a process that may die between two messages.

use std::io;
use std::time::Duration;

use netlink_batch::header::MESSAGE_HEADER;
use netlink_batch::{Messages, Transport};

use super::control::Control;
use super::shared::Shared;

/// Lets messages through until the process dies. Only those of ipset are told apart as writes.
pub(super) struct Mortal<T> {
    inner: T,
    control: Shared<Control>,
    /// Whether messages count; else what they do was counted before.
    counting: Shared<bool>,
}

impl<T> Mortal<T> {
    pub(super) fn new(inner: T, control: Shared<Control>, counting: Shared<bool>) -> Self {
        Mortal { inner, control, counting }
    }
}

/// CREATE, DESTROY, FLUSH, RENAME, SWAP, ADD and DEL (`enum ipset_cmd`, linux/netfilter/ipset/ip_set.h).
fn is_write(kind: u16) -> bool {
    let [_, command] = kind.to_be_bytes();
    matches!(command, 2..=6 | 9 | 10)
}

impl<T: Transport> Transport for Mortal<T> {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        if !*self.counting.lock() {
            return self.inner.send(datagram);
        }
        let mut end = 0_usize;
        for message in Messages::new(datagram).map_while(Result::ok) {
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

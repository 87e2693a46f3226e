//! What the kernel's thread is told, by whom it may be, in the order in which it came.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use proxier_core::service::{Neighbour, User};
use tokio::sync::mpsc;

use crate::proxier_demo::sources::change::Change;

/// A change and when it arrived.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it arrived in this process.
    pub at: Instant,
    /// What it is.
    pub change: Change,
}

/// All neighbours of each kind.
pub(crate) type Found = BTreeMap<User, BTreeSet<Neighbour>>;

/// What the kernel's thread is told besides changes of the input.
#[derive(Debug)]
pub(crate) enum Control {
    /// Compare everything (SIGHUP).
    Resync,
    /// Addresses or devices of the host changed; these addresses were added, even if they are gone again.
    HostChanged(Vec<IpAddr>),
    /// What is held back is meant (SIGUSR1).
    ConfirmRemoval,
    /// Whom this node has to reach has changed.
    Neighbours(Found),
}

/// What the kernel's thread gets.
#[derive(Debug)]
pub(crate) enum Message {
    Event(Event),
    Control(Control),
}

/// Where a source of Services sends changes.
#[derive(Clone, Debug)]
pub struct Changes(Receiver);

#[derive(Clone, Debug)]
enum Receiver {
    /// Takes changes only.
    Reader(mpsc::Sender<Event>),
    Kernel(mpsc::Sender<Message>),
}

/// Nobody takes changes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// How much a channel holds. Who sends waits for who receives, so that a large cluster's objects are not all in memory at
/// once.
const ROOM: usize = 256;

/// A channel for changes.
pub fn channel() -> (Changes, mpsc::Receiver<Event>) {
    let (sender, receiver) = mpsc::channel(ROOM);
    (Changes(Receiver::Reader(sender)), receiver)
}

/// The channel of the kernel's thread: changes of the input, whatever else it is told, and its end.
pub(crate) fn to_kernel() -> (Changes, mpsc::Sender<Message>, mpsc::Receiver<Message>) {
    let (sender, receiver) = mpsc::channel(ROOM);
    (Changes(Receiver::Kernel(sender.clone())), sender, receiver)
}

impl Changes {
    /// Sends a change, with the time now.
    ///
    /// # Errors
    ///
    /// The receiver is gone.
    pub async fn send(&self, change: Change) -> Result<(), Closed> {
        let event = Event { at: Instant::now(), change };
        let sent = match &self.0 {
            Receiver::Reader(reader) => reader.send(event).await.is_ok(),
            Receiver::Kernel(kernel) => kernel.send(Message::Event(event)).await.is_ok(),
        };
        if sent { Ok(()) } else { Err(Closed) }
    }
}

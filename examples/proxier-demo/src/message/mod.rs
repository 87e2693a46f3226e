//! Messages to the kernel's thread, in order of arrival, and their contents.

pub mod change;
pub(crate) mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use proxier_core::config::{Neighbour, User};
use proxier_core::kernel::TableChanges;
use proxier_core::net::FrontendKey;
use tokio::sync::{mpsc, oneshot};

use crate::message::change::Change;
use crate::message::view::View;

#[derive(Clone, Debug)]
pub struct Event {
    pub at: Instant,
    pub change: Change,
}

pub(crate) type NeighboursByUser = BTreeMap<User, BTreeSet<Neighbour>>;

/// Messages to the kernel's thread.
#[derive(Debug)]
pub(crate) enum Message {
    /// A change of the input.
    Event(Event),
    /// Compare everything (SIGHUP).
    Resync,
    /// Addresses or devices of the host changed; these addresses were added, even if they were removed again.
    HostChanged(Vec<IpAddr>),
    /// The nf_tables tables changed, possibly by this process.
    TablesChanged(TableChanges),
    /// Delete the objects whose deletion is held back (SIGUSR1).
    ConfirmRemoval,
    /// The neighbours that this node must reach have changed.
    Neighbours(NeighboursByUser),
    /// Stop serving in this process. Connections get this much time. The answer is the number of remaining connections.
    Finish(Duration, oneshot::Sender<usize>),
    /// Report the state, for the status page.
    View(oneshot::Sender<View>),
    /// Report the connections started by userspace mode, for metrics.
    Begun(oneshot::Sender<Vec<Begun>>),
}

/// A listener of userspace mode, with its Service and port, and the connections and UDP flows that it has started.
pub(crate) type Begun = (FrontendKey, String, u64);

/// Channel to which a source of Services sends changes.
#[derive(Clone, Debug)]
pub struct Changes(Receiver);

#[derive(Clone, Debug)]
enum Receiver {
    /// Receives only changes.
    Reader(mpsc::Sender<Event>),
    Kernel(mpsc::Sender<Message>),
}

/// The receiver of changes was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

/// Messages in a channel. When it is full, senders wait, so that a large cluster's objects are not all in memory at
/// once.
const ROOM: usize = 256;

pub fn channel() -> (Changes, mpsc::Receiver<Event>) {
    let (sender, receiver) = mpsc::channel(ROOM);
    (Changes(Receiver::Reader(sender)), receiver)
}

/// The channel of the kernel's thread: a sender for changes of the input, a sender for any message, and the receiver.
pub(crate) fn to_kernel() -> (Changes, mpsc::Sender<Message>, mpsc::Receiver<Message>) {
    let (sender, receiver) = mpsc::channel(ROOM);
    (Changes(Receiver::Kernel(sender.clone())), sender, receiver)
}

impl Changes {
    /// Sends a change with the current time.
    pub async fn send(&self, change: Change) -> Result<(), Closed> {
        let event = Event { at: Instant::now(), change };
        match &self.0 {
            Receiver::Reader(reader) => reader.send(event).await.map_err(|_closed| Closed),
            Receiver::Kernel(kernel) => kernel.send(Message::Event(event)).await.map_err(|_closed| Closed),
        }
    }
}

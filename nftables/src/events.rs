//! Follows changes as they happen.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use netlink_batch::{Attrs, Listener, Protocol, Socket, Transport, WireError};

use crate::attrs::ElemListAttr;
use crate::error::{self, Error};
use crate::model::{
    Element, ObservedChain, ObservedFlowtable, ObservedObject, ObservedRule, ObservedSet, ObservedTable, SetKey,
    TableKey,
};
use crate::trace::{Trace, get_trace};
use crate::uapi;
use crate::wire::{
    get_chain, get_elements, get_flowtable, get_generation, get_key, get_name, get_object, get_rule, get_set,
    get_table, split,
};

/// Whether something was added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Change {
    /// Added or changed.
    Added,
    /// Deleted.
    Deleted,
}

/// A change of the rule set, by any program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Event {
    /// A table.
    Table(Change, ObservedTable),
    /// A chain.
    Chain(Change, ObservedChain),
    /// A rule.
    Rule(Change, Box<ObservedRule>),
    /// A set or map.
    Set(Change, Box<ObservedSet>),
    /// Elements of a set, in the kernel's form. Only some kernels report elements that expire.
    Elements(Change, SetKey, Vec<Element>),
    /// An object.
    Object(Change, ObservedObject),
    /// A flow table. If devices were removed from it, only those are listed.
    Flowtable(Change, ObservedFlowtable),
    /// A transaction ended; the rule set now has this generation.
    Generation(u32),
    /// A step of a traced packet; only from [`Events::open_traces`].
    Trace(Box<Trace>),
    /// A message of another type.
    Other(u16),
}

impl Event {
    /// The table that changed or contains the change, or in which a packet is; `None` for [`Event::Generation`] and
    /// [`Event::Other`].
    pub fn table(&self) -> Option<&TableKey> {
        Some(match self {
            Event::Table(_, of) => &of.table.key,
            Event::Chain(_, of) => &of.chain.key.table,
            Event::Rule(_, of) => &of.chain.table,
            Event::Set(_, of) => &of.set.key.table,
            Event::Elements(_, set, _) => &set.table,
            Event::Object(_, of) => &of.object.key.table,
            Event::Flowtable(_, of) => &of.flowtable.key.table,
            Event::Trace(step) => &step.chain.table,
            Event::Generation(_) | Event::Other(_) => return None,
        })
    }
}

/// A socket that receives every change in one network namespace.
///
/// While any program listens, the kernel builds a message for each element of a transaction before the commit ends. A
/// transaction with 200,000 elements takes about twice as long (`nf_tables_setelem_notify`).
///
/// The socket works in an event loop or async runtime ([`AsFd`]). When its descriptor is readable, call
/// [`wait`](Events::wait) with a timeout of zero until it returns `None`. [`Listener`] shows how with tokio.
///
/// ```no_run
/// use nftables::{Client, ErrorKind, Events, TableKey};
/// use std::time::Duration;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let table: TableKey = "inet proxy".parse()?;
/// // Listen first and read afterwards: no change is missed between.
/// let mut events = Events::open()?;
/// events.set_receive_buffer(8 << 20)?;
/// let mut client = Client::open()?;
/// let mut known = client.snapshot(&table)?;
/// loop {
///     let changed = match events.wait(Duration::from_secs(60)) {
///         Ok(Some(events)) => events.iter().any(|event| event.table() == Some(&table)),
///         Ok(None) => false,
///         // Some were lost.
///         Err(error) if error.kind() == ErrorKind::StateUnknown => true,
///         Err(error) => return Err(error.into()),
///     };
///     if changed {
///         known = client.snapshot(&table)?;
///         println!("{known}");
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Events<T = Socket> {
    listener: Listener<T>,
}

fn opening(error: netlink_batch::Error) -> Error {
    error::opening(error, "listening for changes of nf_tables")
}

impl Events {
    /// Listens in the calling thread's network namespace. Start to listen before you read the rule set, so that no
    /// change is missed.
    ///
    /// # Errors
    /// As [`Client::open`](crate::Client::open).
    pub fn open() -> Result<Self, Error> {
        let listener = Listener::open(Protocol::Netfilter, &[uapi::NFNLGRP_NFTABLES]).map_err(opening)?;
        Ok(Events { listener })
    }

    /// Listens only for steps of packets for which a rule has set `meta nftrace`, like `nft monitor trace`.
    ///
    /// # Errors
    /// As [`Client::open`](crate::Client::open).
    pub fn open_traces() -> Result<Self, Error> {
        let listener = Listener::open(Protocol::Netfilter, &[uapi::NFNLGRP_NFTRACE]).map_err(opening)?;
        Ok(Events { listener })
    }

    /// Listens in another network namespace, given by an open file such as `/run/netns/<name>`.
    ///
    /// # Errors
    /// As [`Client::open_in`](crate::Client::open_in).
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, Error> {
        let groups = [uapi::NFNLGRP_NFTABLES];
        let listener = Listener::open_in(Protocol::Netfilter, &groups, namespace).map_err(opening)?;
        Ok(Events { listener })
    }

    /// Sets how many bytes of unread events the kernel keeps. Returns the size granted, which is twice as much, since
    /// the kernel counts its own overhead (socket(7), `SO_RCVBUF`); see [`Socket::set_receive_buffer`]. Default: 1 MiB.
    ///
    /// # Errors
    /// [`ErrorKind::Io`](crate::ErrorKind::Io).
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<usize, Error> {
        self.listener.set_receive_buffer(bytes).map_err(opening)
    }
}

impl<T: Transport> Events<T> {
    /// Listens on any transport.
    pub fn with_transport(transport: T) -> Self {
        Events { listener: Listener::with_transport(transport) }
    }

    /// Waits for changes; `None` if none came within `timeout`. A timeout of zero does not wait.
    ///
    /// # Errors
    /// [`ErrorKind::StateUnknown`](crate::ErrorKind::StateUnknown) if events were lost: read the state again.
    /// [`ErrorKind::Malformed`](crate::ErrorKind::Malformed).
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Vec<Event>>, Error> {
        self.listener.wait(timeout, read).map_err(|error| Error::netlink(error, "waiting for changes of nf_tables"))
    }
}

impl<T: AsFd> AsFd for Events<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl<T: AsFd> AsRawFd for Events<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }
}

fn read(kind: u16, payload: &[u8]) -> Result<Event, WireError> {
    let [subsystem, command] = kind.to_be_bytes();
    if subsystem != uapi::NFNL_SUBSYS_NFTABLES {
        return Ok(Event::Other(kind));
    }
    Ok(match command {
        uapi::NFT_MSG_NEWTABLE => Event::Table(Change::Added, get_table(payload)?),
        uapi::NFT_MSG_DELTABLE => Event::Table(Change::Deleted, get_table(payload)?),
        uapi::NFT_MSG_NEWCHAIN => Event::Chain(Change::Added, get_chain(payload)?),
        uapi::NFT_MSG_DELCHAIN => Event::Chain(Change::Deleted, get_chain(payload)?),
        uapi::NFT_MSG_NEWRULE => Event::Rule(Change::Added, Box::new(get_rule(payload)?)),
        uapi::NFT_MSG_DELRULE => Event::Rule(Change::Deleted, Box::new(get_rule(payload)?)),
        uapi::NFT_MSG_NEWSET => Event::Set(Change::Added, Box::new(get_set(payload)?)),
        uapi::NFT_MSG_DELSET => Event::Set(Change::Deleted, Box::new(get_set(payload)?)),
        uapi::NFT_MSG_NEWSETELEM => elements(Change::Added, payload)?,
        uapi::NFT_MSG_DELSETELEM => elements(Change::Deleted, payload)?,
        uapi::NFT_MSG_NEWOBJ => Event::Object(Change::Added, get_object(payload)?),
        uapi::NFT_MSG_DELOBJ => Event::Object(Change::Deleted, get_object(payload)?),
        uapi::NFT_MSG_NEWFLOWTABLE => Event::Flowtable(Change::Added, get_flowtable(payload)?),
        uapi::NFT_MSG_DELFLOWTABLE => Event::Flowtable(Change::Deleted, get_flowtable(payload)?),
        uapi::NFT_MSG_TRACE => Event::Trace(Box::new(get_trace(payload)?)),
        uapi::NFT_MSG_NEWGEN => Event::Generation(get_generation(payload)?),
        _ => Event::Other(kind),
    })
}

fn elements(change: Change, payload: &[u8]) -> Result<Event, WireError> {
    let (family, attributes) = split(payload)?;
    let (mut table, mut set) = (None, None);
    for attr in Attrs::<ElemListAttr<'_>>::new(attributes).iter() {
        match attr? {
            ElemListAttr::Table(text) => table = Some(get_name(text)),
            ElemListAttr::Set(text) => set = Some(get_name(text)),
            _ => {}
        }
    }
    let (table, name) = get_key(family, (table, "NFTA_SET_ELEM_LIST_TABLE"), (set, "NFTA_SET_ELEM_LIST_SET"))?;
    let mut found = Vec::new();
    get_elements(payload, |element| found.push(element))?;
    Ok(Event::Elements(change, SetKey { table, name }, found))
}

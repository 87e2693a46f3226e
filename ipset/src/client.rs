//! The client: one method per command.

use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use netlink_batch::header::NfGenHeader;
use netlink_batch::{Connection, Limits, Protocol, Socket, Transport, WireError};

use crate::cmd::entries::Test;
use crate::cmd::list::{Detail, List};
use crate::cmd::sets::{Create, Destroy, Flush, Rename, Swap};
use crate::cmd::{Command, HEADER, message_type, put_protocol, query};
use crate::error::{Error, ErrorKind};
use crate::model::{Entry, Family, ObservedSet, SetName, SetSpec, SetType};
use crate::uapi::{IPSET_PROTOCOL, IPSET_PROTOCOL_MIN};
use crate::wire::get_listed;

/// A connection to the kernel's ipset in one network namespace. Calls block, one request at a time. It is [`Send`].
#[derive(Debug)]
pub struct Client {
    pub(crate) connection: Connection,
    pub(crate) protocol: u8,
}

impl Client {
    /// Opens a connection in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::Permission`], [`ErrorKind::Unsupported`] if the kernel has no ipset,
    /// [`ErrorKind::ProtocolMismatch`] if it supports neither version 6 nor 7.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter).map_err(opening)?;
        Self::with_transport(socket)
    }

    /// Opens a connection in another network namespace, given by an open file such as `/run/netns/<name>`.
    ///
    /// # Errors
    /// As [`Client::open`]. Entering a namespace needs `CAP_SYS_ADMIN`.
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, Error> {
        let socket = Socket::open_in(Protocol::Netfilter, namespace).map_err(opening)?;
        Self::with_transport(socket)
    }

    /// Opens a connection over any transport: your own socket, or a fake kernel.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub fn with_transport(transport: impl Transport + 'static) -> Result<Self, Error> {
        let mut client = Client { connection: Connection::new(transport), protocol: IPSET_PROTOCOL };
        let offered = client.protocols()?;
        client.protocol = IPSET_PROTOCOL.min(*offered.end());
        if client.protocol < IPSET_PROTOCOL_MIN || *offered.start() > IPSET_PROTOCOL {
            return Err(Error::new(ErrorKind::ProtocolMismatch, "agreeing on a protocol version"));
        }
        Ok(client)
    }

    /// Timeouts, attempts at a listing, and the size of a send.
    pub fn limits(&self) -> Limits {
        self.connection.limits()
    }

    /// Changes the limits.
    pub fn set_limits(&mut self, limits: Limits) {
        self.connection.set_limits(limits);
    }

    /// The protocol version in use: 6 or 7.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The protocol versions that the kernel supports.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], [`ErrorKind::Permission`].
    pub fn protocols(&mut self) -> Result<RangeInclusive<u8>, Error> {
        self.ask(&query::Protocol, query::protocols)
    }

    /// The revisions of a type that the kernel supports. The kernel loads the type's module if possible.
    ///
    /// # Errors
    /// [`ErrorKind::TypeUnsupported`].
    pub fn type_revisions(&mut self, set_type: SetType, family: Family) -> Result<RangeInclusive<u8>, Error> {
        self.ask(&query::Type(set_type, family), query::revisions)
    }

    /// Creates a set with the lowest revision of its type that supports all requested options and all entry options.
    ///
    /// # Errors
    /// [`ErrorKind::SetExists`] if the name is taken; [`ErrorKind::TypeUnsupported`] and
    /// [`ErrorKind::OptionUnsupported`] if the kernel is too old; [`ErrorKind::OptionInvalid`]; [`ErrorKind::Invalid`].
    #[doc(alias = "IPSET_CMD_CREATE")]
    pub fn create_set(&mut self, set: &SetSpec) -> Result<(), Error> {
        let revision = self.revision(set)?;
        self.tell(&Create::<false> { set, revision })
    }

    /// Creates a set unless an equal one exists (`ipset -exist create`). The kernel compares type, maxelem, timeout and
    /// extensions, but not the hash size.
    ///
    /// # Errors
    /// [`ErrorKind::SetExists`] if a set with other options exists; otherwise as [`Client::create_set`].
    pub fn ensure_set(&mut self, set: &SetSpec) -> Result<(), Error> {
        let revision = match self.set_header(&set.name) {
            // The kernel does not compare revisions, so reuse the existing one.
            Ok((set_type, _, revision)) if set_type == set.set_type => revision,
            _ => self.revision(set)?,
        };
        set.check()?;
        self.tell(&Create::<true> { set, revision })
    }

    fn revision(&mut self, set: &SetSpec) -> Result<u8, Error> {
        let action = || format!("creating set {} of type {}", set.name, set.set_type);
        set.check().map_err(|error| Error::new(ErrorKind::Invalid(error), action()))?;
        let offered = self.type_revisions(set.set_type, set.options.family)?;
        set.set_type
            .revision(&set.options, &offered)
            .map_err(|option| Error::new(ErrorKind::OptionUnsupported(option), action()))
    }

    /// Destroys a set with its entries.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; [`ErrorKind::InUse`] while rules, lists or a listing refer to it.
    #[doc(alias = "IPSET_CMD_DESTROY")]
    pub fn destroy_set(&mut self, name: &SetName) -> Result<(), Error> {
        self.tell(&Destroy(Some(name)))
    }

    /// Destroys all sets of the namespace, or none.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while any of them is referred to.
    pub fn destroy_all_sets(&mut self) -> Result<(), Error> {
        self.tell(&Destroy(None))
    }

    /// Removes all entries of a set.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`].
    #[doc(alias = "IPSET_CMD_FLUSH")]
    pub fn flush_set(&mut self, name: &SetName) -> Result<(), Error> {
        self.tell(&Flush(Some(name)))
    }

    /// Removes all entries of all sets of the namespace.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] and socket errors.
    pub fn flush_all_sets(&mut self) -> Result<(), Error> {
        self.tell(&Flush(None))
    }

    /// Renames a set.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; [`ErrorKind::SetExists`] if the new name is taken; [`ErrorKind::InUse`] while the set
    /// is referred to.
    #[doc(alias = "IPSET_CMD_RENAME")]
    pub fn rename_set(&mut self, from: &SetName, to: &SetName) -> Result<(), Error> {
        self.tell(&Rename(from, to))
    }

    /// Swaps the contents of two sets atomically. References by name then see the other set's entries.
    ///
    /// Use it to replace all entries of a set that rules refer to. [`Client::sync`] does this when necessary.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`], [`ErrorKind::SecondSetMissing`], [`ErrorKind::TypeMismatch`]; [`ErrorKind::InUse`]
    /// while a program lists one of them.
    #[doc(alias = "IPSET_CMD_SWAP")]
    pub fn swap_sets(&mut self, one: &SetName, other: &SetName) -> Result<(), Error> {
        self.tell(&Swap(one, other))
    }

    /// Lists all sets with their entries; list:set sets come last.
    ///
    /// The kernel does not lock the sets meanwhile: each listed entry was in its set at some time during the listing.
    ///
    /// # Errors
    /// [`ErrorKind::Interrupted`], [`ErrorKind::Malformed`].
    #[doc(alias = "IPSET_CMD_LIST")]
    #[doc(alias = "IPSET_CMD_SAVE")]
    pub fn list_sets(&mut self) -> Result<Vec<ObservedSet>, Error> {
        self.list(&List { set: None, detail: Detail::Entries })
    }

    /// Lists all sets without their entries.
    ///
    /// # Errors
    /// As [`Client::list_sets`].
    pub fn list_headers(&mut self) -> Result<Vec<ObservedSet>, Error> {
        self.list(&List { set: None, detail: Detail::Headers })
    }

    /// Lists the names of all sets.
    ///
    /// # Errors
    /// As [`Client::list_sets`].
    pub fn list_names(&mut self) -> Result<Vec<SetName>, Error> {
        self.dump(&List { set: None, detail: Detail::Names }, |attributes| {
            let mut unknown = SetType::Unknown;
            get_listed(attributes, &mut unknown).map(|listed| listed.name)
        })
    }

    /// Reads one set with its entries.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; otherwise as [`Client::list_sets`].
    pub fn get_set(&mut self, name: &SetName) -> Result<ObservedSet, Error> {
        self.list_one(name, Detail::Entries)
    }

    /// Reads one set without its entries.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; otherwise as [`Client::list_sets`].
    pub fn get_header(&mut self, name: &SetName) -> Result<ObservedSet, Error> {
        self.list_one(name, Detail::Headers)
    }

    /// Reads a set's type, family and revision. The request is not a listing, so it does not disturb other listings.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`].
    #[doc(alias = "IPSET_CMD_HEADER")]
    pub fn set_header(&mut self, name: &SetName) -> Result<(SetType, Family, u8), Error> {
        self.ask(&query::Header(name), query::header)
    }

    /// The index by which rules refer to a set. It stays with the name when sets are swapped.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; [`ErrorKind::ProtocolMismatch`] on kernels that only support protocol 6.
    #[doc(alias = "IPSET_CMD_GET_BYNAME")]
    pub fn set_index(&mut self, name: &SetName) -> Result<u16, Error> {
        self.ask(&query::GetByName(name), query::index)
    }

    /// The name of the set with this index.
    ///
    /// # Errors
    /// As [`Client::set_index`].
    #[doc(alias = "IPSET_CMD_GET_BYINDEX")]
    pub fn set_name(&mut self, index: u16) -> Result<SetName, Error> {
        self.ask(&query::GetByIndex(index), query::name)
    }

    /// Whether a packet with these values would match. An address matches if a network in the set contains it, unless a
    /// `nomatch` network contains it too. A network is looked up as an entry.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; [`ErrorKind::Invalid`] for an entry of another form or family.
    #[doc(alias = "IPSET_CMD_TEST")]
    pub fn test_entry(&mut self, set: &SetName, entry: &Entry) -> Result<bool, Error> {
        let form = self.form(set)?;
        let test = Test { set, entry };
        entry.check(&form).map_err(|error| Error::new(ErrorKind::Invalid(error), test.action()))?;
        match self.tell(&test) {
            Ok(()) => Ok(true),
            Err(error) if *error.kind() == ErrorKind::ElementMissing => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads the set's type and the options that decide the form of its entries.
    pub(crate) fn form(&mut self, name: &SetName) -> Result<SetSpec, Error> {
        let (set_type, family, _) = self.set_header(name)?;
        let mut form = SetSpec::new(name.clone(), set_type);
        form.options.family = family;
        Ok(form)
    }

    fn tell<C: Command>(&mut self, command: &C) -> Result<(), Error> {
        let protocol = self.protocol;
        self.connection
            .request(message_type(C::CMD), C::FLAGS, &HEADER.to_bytes(), |out| {
                put_protocol(out, protocol);
                command.encode(out);
            })
            .map_err(|error| Error::netlink(error, command.action(), |errno| command.classify(errno)))
    }

    fn ask<C: Command, T>(&mut self, command: &C, read: impl Fn(&[u8]) -> Result<T, WireError>) -> Result<T, Error> {
        let protocol = self.protocol;
        let fail = |error| Error::netlink(error, command.action(), |errno| command.classify(errno));
        let answers = self
            .connection
            .query(
                message_type(C::CMD),
                C::FLAGS,
                &HEADER.to_bytes(),
                |out| {
                    put_protocol(out, protocol);
                    command.encode(out);
                },
                |payload| read(attributes(payload)?),
            )
            .map_err(fail)?;
        answers.into_iter().next().ok_or_else(|| {
            let error = WireError::Missing { attribute: "the answer".to_owned() };
            Error::new(ErrorKind::Malformed(error.to_string()), command.action())
        })
    }

    fn dump<T>(
        &mut self,
        list: &List<'_>,
        mut read: impl FnMut(&[u8]) -> Result<T, WireError>,
    ) -> Result<Vec<T>, Error> {
        let protocol = self.protocol;
        self.connection
            .dump(
                message_type(List::CMD),
                List::FLAGS,
                &HEADER.to_bytes(),
                |out| {
                    put_protocol(out, protocol);
                    list.encode(out);
                },
                |payload| read(attributes(payload)?),
            )
            .map(|dump| dump.items)
            .map_err(|error| Error::netlink(error, list.action(), |errno| list.classify(errno)))
    }

    fn list(&mut self, list: &List<'_>) -> Result<Vec<ObservedSet>, Error> {
        let mut last = SetType::Unknown;
        let messages = self.dump(list, |attributes| get_listed(attributes, &mut last))?;
        let mut sets: Vec<ObservedSet> = Vec::new();
        for mut message in messages {
            match (message.header.take(), sets.last_mut()) {
                (Some(mut set), _) => {
                    set.entries = message.entries;
                    sets.push(set);
                }
                (None, Some(set)) if set.spec.name == message.name => set.entries.append(&mut message.entries),
                // The set was renamed or swapped meanwhile: the parts belong to different sets.
                (None, _) => return Err(Error::new(ErrorKind::Interrupted, list.action())),
            }
        }
        Ok(sets)
    }

    fn list_one(&mut self, name: &SetName, detail: Detail) -> Result<ObservedSet, Error> {
        let list = List { set: Some(name), detail };
        let sets = self.list(&list)?;
        sets.into_iter().next().ok_or_else(|| Error::new(ErrorKind::SetMissing, list.action()))
    }
}

fn opening(error: netlink_batch::Error) -> Error {
    Error::netlink(error, "opening a netlink socket", crate::cmd::common)
}

fn attributes(payload: &[u8]) -> Result<&[u8], WireError> {
    let available = payload.len();
    NfGenHeader::split(payload).map(|(_, rest)| rest).ok_or(WireError::Message { offset: 0, available })
}

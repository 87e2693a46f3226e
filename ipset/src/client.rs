//! The client: one method per command.

use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use netlink_batch::header::{NLM_F_CREATE, NLM_F_EXCL, NfGenHeader};
use netlink_batch::{Be32, Connection, Encoder, Errno, Limits, NulStr, Protocol, Socket, Transport, WireError};

use crate::attrs::{CmdAttr, put_net};
use crate::cmd::{HEADER, Request, answers, message_type, not_created, not_renamed, not_swapped};
use crate::error::{Error, ErrorKind};
use crate::model::{Entry, Family, ObservedSet, SetName, SetSpec, SetType};
use crate::uapi::{self, IPSET_PROTOCOL, IPSET_PROTOCOL_MIN};
use crate::wire::{get_listed, put_entry, put_set_options};

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
        // nfnetlink has no ipset, and loading the module nfnetlink-subsys-6 failed (nfnetlink_rcv_msg).
        let meaning = |errno| (Errno(errno) == Errno::EINVAL).then_some(ErrorKind::Unsupported);
        let request = Request::new(uapi::IPSET_CMD_PROTOCOL, "asking for ipset's protocol version", &[]);
        self.ask(&Request { meaning: &meaning, ..request }, answers::protocols)
    }

    /// The revisions of a type that the kernel supports. The kernel loads the type's module if possible.
    ///
    /// # Errors
    /// [`ErrorKind::TypeUnsupported`].
    pub fn type_revisions(&mut self, set_type: SetType, family: Family) -> Result<RangeInclusive<u8>, Error> {
        let request = Request::new(uapi::IPSET_CMD_TYPE, format!("asking for set type {set_type}"), &[]);
        let put = |out: &mut Encoder| {
            out.attr(CmdAttr::TYPENAME, &NulStr::from(set_type.name()));
            out.attr(CmdAttr::FAMILY, &set_type.family_number(family));
        };
        self.ask(&Request { put: &put, ..request }, answers::revisions)
    }

    /// Creates a set with the lowest revision of its type that supports all requested options and all entry options.
    ///
    /// # Errors
    /// [`ErrorKind::SetExists`] if the name is taken; [`ErrorKind::TypeUnsupported`] and
    /// [`ErrorKind::OptionUnsupported`] if the kernel is too old; [`ErrorKind::OptionInvalid`]; [`ErrorKind::Invalid`].
    #[doc(alias = "IPSET_CMD_CREATE")]
    pub fn create_set(&mut self, set: &SetSpec) -> Result<(), Error> {
        let revision = self.revision(set)?;
        self.create(set, revision, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Creates a set unless an equal one exists (`ipset -exist create`). Type, family, maxelem, timeout, masks, range and
    /// extensions are compared; hash size, bucket size, initval and `forceadd` are not.
    ///
    /// # Errors
    /// [`ErrorKind::SetExists`] if a set with other options exists; otherwise as [`Client::create_set`].
    pub fn ensure_set(&mut self, set: &SetSpec) -> Result<(), Error> {
        let revision = match self.set_header(&set.name) {
            // The kernel does not compare families (`ip_set_create`).
            Ok((set_type, family, _)) if set_type.has_family() && family != set.options.family => {
                return Err(Error::new(ErrorKind::SetExists, creating(set)));
            }
            // Nor revisions, so reuse the existing one.
            Ok((set_type, _, revision)) if set_type == set.set_type => revision,
            _ => self.revision(set)?,
        };
        set.check()?;
        self.create(set, revision, NLM_F_CREATE)
    }

    /// Without `NLM_F_EXCL`, an equal existing set is not an error.
    fn create(&mut self, set: &SetSpec, revision: u8, flags: u16) -> Result<(), Error> {
        let SetSpec { name, set_type, options } = set;
        let put = |out: &mut Encoder| {
            out.attr(CmdAttr::TYPENAME, &NulStr::from(set_type.name()));
            out.attr(CmdAttr::REVISION, &revision);
            out.attr(CmdAttr::FAMILY, &set_type.family_number(options.family));
            out.nest(CmdAttr::DATA, |out| put_set_options(out, options));
        };
        let meaning = |errno| not_created(set, errno);
        let request = Request::new(uapi::IPSET_CMD_CREATE, creating(set), &[]);
        self.tell(&Request { flags, sets: &[name], put: &put, meaning: &meaning, ..request })
    }

    fn revision(&mut self, set: &SetSpec) -> Result<u8, Error> {
        set.check().map_err(|error| Error::new(ErrorKind::Invalid(error), creating(set)))?;
        let offered = self.type_revisions(set.set_type, set.options.family)?;
        set.set_type
            .revision(&set.options, &offered)
            .map_err(|option| Error::new(ErrorKind::OptionUnsupported(option), creating(set)))
    }

    /// Destroys a set with its entries.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; [`ErrorKind::InUse`] while rules, lists or a listing refer to it.
    #[doc(alias = "IPSET_CMD_DESTROY")]
    pub fn destroy_set(&mut self, name: &SetName) -> Result<(), Error> {
        self.destroy(format!("destroying set {name}"), &[name])
    }

    /// Destroys all sets of the namespace, or none.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while any of them is referred to.
    pub fn destroy_all_sets(&mut self) -> Result<(), Error> {
        self.destroy("destroying all sets".to_owned(), &[])
    }

    fn destroy(&mut self, action: String, sets: &[&SetName]) -> Result<(), Error> {
        let meaning = |errno| (errno == uapi::IPSET_ERR_BUSY).then_some(ErrorKind::InUse);
        let request = Request::new(uapi::IPSET_CMD_DESTROY, action, sets);
        // Without the flag, newer kernels report success for a missing set.
        self.tell(&Request { flags: NLM_F_EXCL, meaning: &meaning, ..request })
    }

    /// Removes all entries of a set.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`].
    #[doc(alias = "IPSET_CMD_FLUSH")]
    pub fn flush_set(&mut self, name: &SetName) -> Result<(), Error> {
        self.tell(&Request::new(uapi::IPSET_CMD_FLUSH, format!("flushing set {name}"), &[name]))
    }

    /// Removes all entries of all sets of the namespace.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] and socket errors.
    pub fn flush_all_sets(&mut self) -> Result<(), Error> {
        self.tell(&Request::new(uapi::IPSET_CMD_FLUSH, "flushing all sets", &[]))
    }

    /// Renames a set.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; [`ErrorKind::SetExists`] if the new name is taken; [`ErrorKind::InUse`] while the set
    /// is referred to.
    #[doc(alias = "IPSET_CMD_RENAME")]
    pub fn rename_set(&mut self, from: &SetName, to: &SetName) -> Result<(), Error> {
        let sets = [from, to];
        let request = Request::new(uapi::IPSET_CMD_RENAME, format!("renaming set {from} to {to}"), &sets);
        self.tell(&Request { meaning: &not_renamed, ..request })
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
        let sets = [one, other];
        let request = Request::new(uapi::IPSET_CMD_SWAP, format!("swapping sets {one} and {other}"), &sets);
        self.tell(&Request { meaning: &not_swapped, ..request })
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
        self.list(&[], None)
    }

    /// Lists all sets without their entries.
    ///
    /// # Errors
    /// As [`Client::list_sets`].
    pub fn list_headers(&mut self) -> Result<Vec<ObservedSet>, Error> {
        self.list(&[], Some(uapi::IPSET_FLAG_LIST_HEADER))
    }

    /// Lists the names of all sets.
    ///
    /// # Errors
    /// As [`Client::list_sets`].
    pub fn list_names(&mut self) -> Result<Vec<SetName>, Error> {
        self.dump(&[], Some(uapi::IPSET_FLAG_LIST_SETNAME), |attributes| {
            let mut unknown = SetType::Unknown;
            get_listed(attributes, &mut unknown).map(|listed| listed.name)
        })
    }

    /// Reads one set with its entries.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; otherwise as [`Client::list_sets`].
    pub fn get_set(&mut self, name: &SetName) -> Result<ObservedSet, Error> {
        self.list_one(name, None)
    }

    /// Reads one set without its entries.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; otherwise as [`Client::list_sets`].
    pub fn get_header(&mut self, name: &SetName) -> Result<ObservedSet, Error> {
        self.list_one(name, Some(uapi::IPSET_FLAG_LIST_HEADER))
    }

    /// Reads a set's type, family and revision. The request is not a listing, so it does not disturb other listings.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`].
    #[doc(alias = "IPSET_CMD_HEADER")]
    pub fn set_header(&mut self, name: &SetName) -> Result<(SetType, Family, u8), Error> {
        let action = format!("asking for the type of set {name}");
        self.ask(&Request::new(uapi::IPSET_CMD_HEADER, action, &[name]), answers::header)
    }

    /// Whether a packet with these values would match. An address matches if a network in the set contains it, unless a
    /// `nomatch` network contains it too. A network is looked up as an entry.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; [`ErrorKind::Invalid`] for an entry of another form or family.
    #[doc(alias = "IPSET_CMD_TEST")]
    pub fn test_entry(&mut self, set: &SetName, entry: &Entry) -> Result<bool, Error> {
        let form = self.form(set)?;
        let request = Request::new(uapi::IPSET_CMD_TEST, format!("testing {} in set {set}", entry.element), &[]);
        entry.check(&form).map_err(|error| Error::new(ErrorKind::Invalid(error), request.action.as_str()))?;
        let put = |out: &mut Encoder| out.nest(CmdAttr::DATA, |out| put_entry(out, entry));
        let meaning = |errno| (errno == uapi::IPSET_ERR_EXIST).then_some(ErrorKind::ElementMissing);
        match self.tell(&Request { sets: &[set], put: &put, meaning: &meaning, ..request }) {
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

    fn tell(&mut self, request: &Request<'_>) -> Result<(), Error> {
        let (kind, protocol) = (message_type(request.command), self.protocol);
        let told =
            self.connection.request(kind, request.flags, &HEADER.to_bytes(), |out| request.encode(out, protocol));
        told.map_err(|error| failed(error, request))
    }

    fn ask<T>(&mut self, request: &Request<'_>, read: impl Fn(&[u8]) -> Result<T, WireError>) -> Result<T, Error> {
        let (kind, protocol) = (message_type(request.command), self.protocol);
        let put = |out: &mut Encoder| request.encode(out, protocol);
        let read = |payload: &[u8]| read(attributes(payload)?);
        let answers = self.connection.query(kind, request.flags, &HEADER.to_bytes(), put, read);
        answers.map_err(|error| failed(error, request))?.into_iter().next().ok_or_else(|| {
            let error = WireError::Missing { attribute: "the answer".to_owned() };
            Error::new(ErrorKind::Malformed(error.to_string()), request.action.as_str())
        })
    }

    /// Lists these sets, or all; list:set sets come after their members. `flags` reduce what is listed of each.
    fn dump<T>(
        &mut self,
        sets: &[&SetName],
        flags: Option<u32>,
        mut read: impl FnMut(&[u8]) -> Result<T, WireError>,
    ) -> Result<Vec<T>, Error> {
        let put_flags =
            |out: &mut Encoder| flags.into_iter().for_each(|flags| put_net(out, CmdAttr::FLAGS, &Be32(flags)));
        let request = Request { put: &put_flags, ..Request::new(uapi::IPSET_CMD_LIST, listing(sets), sets) };
        let (kind, protocol) = (message_type(request.command), self.protocol);
        let put = |out: &mut Encoder| request.encode(out, protocol);
        let dump = self.connection.dump(kind, 0, &HEADER.to_bytes(), put, |payload| read(attributes(payload)?));
        dump.map(|dump| dump.items).map_err(|error| failed(error, &request))
    }

    fn list(&mut self, names: &[&SetName], flags: Option<u32>) -> Result<Vec<ObservedSet>, Error> {
        let mut last = SetType::Unknown;
        let messages = self.dump(names, flags, |attributes| get_listed(attributes, &mut last))?;
        let mut sets: Vec<ObservedSet> = Vec::new();
        for mut message in messages {
            match (message.header.take(), sets.last_mut()) {
                (Some(mut set), _) => {
                    set.entries = message.entries;
                    sets.push(set);
                }
                (None, Some(set)) if set.spec.name == message.name => set.entries.append(&mut message.entries),
                // The set was renamed or swapped meanwhile: the parts belong to different sets.
                (None, _) => return Err(Error::new(ErrorKind::Interrupted, listing(names))),
            }
        }
        Ok(sets)
    }

    fn list_one(&mut self, name: &SetName, flags: Option<u32>) -> Result<ObservedSet, Error> {
        let sets = self.list(&[name], flags)?;
        sets.into_iter().next().ok_or_else(|| Error::new(ErrorKind::SetMissing, listing(&[name])))
    }
}

fn creating(set: &SetSpec) -> String {
    format!("creating set {} of type {}", set.name, set.set_type)
}

fn listing(sets: &[&SetName]) -> String {
    sets.first().map_or_else(|| "listing sets".to_owned(), |name| format!("listing set {name}"))
}

fn failed(error: netlink_batch::Error, request: &Request<'_>) -> Error {
    Error::netlink(error, request.action.as_str(), |errno| request.classify(errno))
}

fn opening(error: netlink_batch::Error) -> Error {
    Error::netlink(error, "opening a netlink socket", crate::cmd::common)
}

fn attributes(payload: &[u8]) -> Result<&[u8], WireError> {
    let available = payload.len();
    NfGenHeader::split(payload).map(|(_, rest)| rest).ok_or(WireError::Message { offset: 0, available })
}

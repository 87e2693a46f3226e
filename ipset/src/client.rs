//! The client: one method for each command.

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

/// A conversation with the kernel's ipset in one network namespace. Blocking; one request at a time; [`Send`].
///
/// ```
/// # #[cfg(feature = "testing")] {
/// use ipset::fake::FakeIpset;
/// use ipset::{Client, Entry, SetSpec, SetType};
///
/// // On a host: Client::open()?
/// let mut client = Client::with_transport(FakeIpset::new().transport())?;
///
/// let set = SetSpec::new("cluster-ip".parse()?, SetType::HashIpPort);
/// client.create_set(&set)?;
/// let dns = Entry::parse(set.set_type, "10.96.0.10,udp:53")?;
/// client.add_entry(&set.name, &dns)?;
/// assert!(client.test_entry(&set.name, &dns)?);
/// assert_eq!(client.get_set(&set.name)?.entries, [dns.clone()]);
///
/// client.delete_entry(&set.name, &dns)?;
/// assert!(client.delete_entry(&set.name, &dns).unwrap_err().is_not_found());
///
/// client.flush_set(&set.name)?; // removes the entries, keeps the set
/// assert_eq!(client.list_names()?, [set.name.clone()]);
/// client.destroy_set(&set.name)?;
/// assert!(client.list_names()?.is_empty());
/// # }
/// # Ok::<(), ipset::Error>(())
/// ```
#[derive(Debug)]
pub struct Client {
    pub(crate) connection: Connection,
    pub(crate) protocol: u8,
}

impl Client {
    /// Opens a conversation in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`ErrorKind::Io`], [`ErrorKind::Permission`], [`ErrorKind::Unsupported`] when the kernel has no ipset,
    /// [`ErrorKind::ProtocolMismatch`] when it speaks neither version 6 nor 7.
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(Protocol::Netfilter).map_err(opening)?;
        Self::with_transport(socket)
    }

    /// Opens a conversation in another network namespace, given by an open file such as `/run/netns/<name>`.
    ///
    /// ```no_run
    /// use std::os::fd::AsFd;
    ///
    /// let blue = std::fs::File::open("/run/netns/blue")?;
    /// let mut client = ipset::Client::open_in(blue.as_fd())?;
    /// print!("{}", client.save()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::open`]. Entering a namespace takes `CAP_SYS_ADMIN`.
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, Error> {
        let socket = Socket::open_in(Protocol::Netfilter, namespace).map_err(opening)?;
        Self::with_transport(socket)
    }

    /// A conversation over any transport: a socket of one's own, or a fake kernel.
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

    /// Waiting time, number of repeated listings, and amount of one send.
    pub fn limits(&self) -> Limits {
        self.connection.limits()
    }

    /// Changes these.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use std::time::Duration;
    ///
    /// use ipset::Client;
    ///
    /// let mut client = Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// assert_eq!(client.limits().timeout, Duration::from_secs(10));
    /// client.set_limits(client.limits().with_timeout(Duration::from_secs(2)).with_dump_attempts(3));
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
    pub fn set_limits(&mut self, limits: Limits) {
        self.connection.set_limits(limits);
    }

    /// The protocol version in use: 6 or 7.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The protocol versions the kernel speaks.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`], [`ErrorKind::Permission`].
    pub fn protocols(&mut self) -> Result<RangeInclusive<u8>, Error> {
        self.ask(&query::Protocol, query::protocols)
    }

    /// The revisions of a type that the kernel has. The kernel loads the type's module if it can.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::{Family, SetType};
    ///
    /// # let mut client = ipset::Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// let revisions = client.type_revisions(SetType::HashIp, Family::Inet)?;
    /// let knows_bitmask = revisions.contains(&6); // hash:ip has it since revision 6, Linux 6.2
    /// assert!(knows_bitmask);
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::TypeUnsupported`].
    pub fn type_revisions(&mut self, set_type: SetType, family: Family) -> Result<RangeInclusive<u8>, Error> {
        self.ask(&query::Type(set_type, family), query::revisions)
    }

    /// Creates a set. The type's revision is the least that knows every option asked for and every entry option.
    ///
    /// # Errors
    /// [`ErrorKind::SetExists`] if one of this name exists; [`ErrorKind::TypeUnsupported`],
    /// [`ErrorKind::OptionUnsupported`] when the kernel is too old; [`ErrorKind::OptionInvalid`]; [`ErrorKind::Invalid`].
    #[doc(alias = "IPSET_CMD_CREATE")]
    pub fn create_set(&mut self, set: &SetSpec) -> Result<(), Error> {
        let revision = self.revision(set)?;
        self.tell(&Create::<false> { set, revision })
    }

    /// Creates a set unless an equal one exists (`ipset -exist create`). "Equal" is the kernel's notion: type, maxelem,
    /// timeout and extensions, not the hash size.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::{ErrorKind, SetSpec, SetType};
    ///
    /// # let mut client = ipset::Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// let set = SetSpec::new("allowed".parse()?, SetType::HashNet).with_hashsize(64);
    /// client.ensure_set(&set)?;
    /// client.ensure_set(&set.clone().with_hashsize(4096))?; // the hash size is not compared: the set stays as it is
    ///
    /// let error = client.ensure_set(&set.with_maxelem(1_000_000)).unwrap_err();
    /// assert_eq!(*error.kind(), ErrorKind::SetExists);
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SetExists`] if one with other options exists; else as [`Client::create_set`].
    pub fn ensure_set(&mut self, set: &SetSpec) -> Result<(), Error> {
        let revision = match self.set_header(&set.name) {
            // The kernel compares no revisions, so the one in use will do.
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
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::fake::FakeIpset;
    /// use ipset::{Client, ErrorKind, SetSpec, SetType};
    ///
    /// let kernel = FakeIpset::new();
    /// let mut client = Client::with_transport(kernel.transport())?;
    /// let set = SetSpec::new("allowed".parse()?, SetType::HashIp);
    /// client.create_set(&set)?;
    ///
    /// kernel.add_reference(&set.name); // iptables -A INPUT -m set --match-set allowed src -j ACCEPT
    /// assert_eq!(*client.destroy_set(&set.name).unwrap_err().kind(), ErrorKind::InUse);
    /// kernel.remove_reference(&set.name); // iptables -D INPUT ...
    /// client.destroy_set(&set.name)?;
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; [`ErrorKind::InUse`] while rules, lists or listings refer to it.
    #[doc(alias = "IPSET_CMD_DESTROY")]
    pub fn destroy_set(&mut self, name: &SetName) -> Result<(), Error> {
        self.tell(&Destroy(Some(name)))
    }

    /// Destroys all sets of the namespace, or none.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while anything refers to one of them.
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
    /// [`ErrorKind::Permission`] and failures of the socket.
    pub fn flush_all_sets(&mut self) -> Result<(), Error> {
        self.tell(&Flush(None))
    }

    /// Renames a set.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::{Entry, SetSpec, SetType};
    ///
    /// # let mut client = ipset::Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// let old = SetSpec::new("allowed".parse()?, SetType::HashIp);
    /// client.create_set(&old)?;
    /// client.add_entry(&old.name, &Entry::parse(old.set_type, "192.0.2.1")?)?;
    ///
    /// let new = "allowed-v4".parse()?;
    /// client.rename_set(&old.name, &new)?;
    /// assert_eq!(client.get_set(&new)?.entries.len(), 1);
    /// assert!(client.get_set(&old.name).unwrap_err().is_not_found());
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; [`ErrorKind::SetExists`] if the new name is taken; [`ErrorKind::InUse`] while anything
    /// refers to the set.
    #[doc(alias = "IPSET_CMD_RENAME")]
    pub fn rename_set(&mut self, from: &SetName, to: &SetName) -> Result<(), Error> {
        self.tell(&Rename(from, to))
    }

    /// Exchanges the contents of two sets at one instant. What refers to a name afterwards finds the other's entries.
    ///
    /// Replaces all entries of a set that rules refer to. [`Client::sync`] does this where it has to.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::{Entry, IfPresent, SetSpec, SetType};
    ///
    /// # let mut client = ipset::Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// let live = SetSpec::new("allowed".parse()?, SetType::HashNet);
    /// client.create_set(&live)?;
    /// client.add_entry(&live.name, &Entry::parse(live.set_type, "192.0.2.0/24")?)?;
    ///
    /// let next = SetSpec::new("allowed-next".parse()?, SetType::HashNet);
    /// client.create_set(&next)?;
    /// let entries = [Entry::parse(next.set_type, "198.51.100.0/24")?, Entry::parse(next.set_type, "203.0.113.0/24")?];
    /// client.add_entries(&next.name, &entries, IfPresent::Refuse).into_result()?;
    ///
    /// client.swap_sets(&next.name, &live.name)?;
    /// client.destroy_set(&next.name)?; // holds what `allowed` held
    /// assert_eq!(client.get_set(&live.name)?.entries, entries);
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`], [`ErrorKind::SecondSetMissing`], [`ErrorKind::TypeMismatch`];
    /// [`ErrorKind::InUse`] while a program lists one of them.
    #[doc(alias = "IPSET_CMD_SWAP")]
    pub fn swap_sets(&mut self, one: &SetName, other: &SetName) -> Result<(), Error> {
        self.tell(&Swap(one, other))
    }

    /// Lists all sets with their entries; list:set sets come last. Empty when there are none.
    ///
    /// The kernel lists while others write: each set's entries are those it held at some time during the listing.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::{Entry, SetSpec, SetType};
    ///
    /// # let mut client = ipset::Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// let (nodes, all) = (SetSpec::new("nodes".parse()?, SetType::HashIp), SetSpec::new("all".parse()?, SetType::ListSet));
    /// client.create_set(&all)?;
    /// client.create_set(&nodes)?;
    /// client.add_entry(&nodes.name, &Entry::parse(nodes.set_type, "192.0.2.7")?)?;
    /// client.add_entry(&all.name, &Entry::parse(all.set_type, "nodes")?)?;
    ///
    /// let sets = client.list_sets()?;
    /// assert_eq!((&sets[0].spec.name, sets[0].references), (&nodes.name, 1)); // the list refers to it
    /// assert_eq!((&sets[1].spec.name, sets[1].entries[0].to_string()), (&all.name, "nodes".to_owned()));
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
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
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::{Entry, SetSpec, SetType};
    ///
    /// # let mut client = ipset::Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// let set = SetSpec::new("denied".parse()?, SetType::HashNet);
    /// client.create_set(&set)?;
    /// client.add_entry(&set.name, &Entry::parse(set.set_type, "198.51.100.0/24")?)?;
    /// for header in client.list_headers()? {
    ///     let entries = header.elements.unwrap_or(0);
    ///     println!("{}: {entries} entries, {} bytes, {} references", header.spec.name, header.memory, header.references);
    /// }
    /// let header = client.get_header(&set.name)?;
    /// assert_eq!((header.elements, header.entries.len()), (Some(1), 0)); // counted, not listed
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::list_sets`].
    pub fn list_headers(&mut self) -> Result<Vec<ObservedSet>, Error> {
        self.list(&List { set: None, detail: Detail::Headers })
    }

    /// The names of all sets.
    ///
    /// # Errors
    /// As [`Client::list_sets`].
    pub fn list_names(&mut self) -> Result<Vec<SetName>, Error> {
        self.dump(&List { set: None, detail: Detail::Names }, |attributes| {
            let mut unknown = SetType::Unknown;
            get_listed(attributes, &mut unknown).map(|listed| listed.name)
        })
    }

    /// One set with its entries.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; else as [`Client::list_sets`].
    pub fn get_set(&mut self, name: &SetName) -> Result<ObservedSet, Error> {
        self.list_one(name, Detail::Entries)
    }

    /// One set without its entries.
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; else as [`Client::list_sets`].
    pub fn get_header(&mut self, name: &SetName) -> Result<ObservedSet, Error> {
        self.list_one(name, Detail::Headers)
    }

    /// A set's type, family and revision, by a request that is no listing and so disturbs no other listing.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::{Family, SetSpec, SetType};
    ///
    /// # let mut client = ipset::Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// let set = SetSpec::new("allowed6".parse()?, SetType::HashIp).with_family(Family::Inet6);
    /// client.create_set(&set)?;
    /// let (set_type, family, _revision) = client.set_header(&set.name)?;
    /// assert_eq!((set_type, family), (SetType::HashIp, Family::Inet6));
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`].
    #[doc(alias = "IPSET_CMD_HEADER")]
    pub fn set_header(&mut self, name: &SetName) -> Result<(SetType, Family, u8), Error> {
        self.ask(&query::Header(name), query::header)
    }

    /// The index by which rules refer to a set. It stays with the name when sets are swapped.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::{SetSpec, SetType};
    ///
    /// # let mut client = ipset::Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// let (live, next) = (SetSpec::new("live".parse()?, SetType::HashIp), SetSpec::new("next".parse()?, SetType::HashIp));
    /// client.create_set(&live)?;
    /// client.create_set(&next)?;
    ///
    /// let index = client.set_index(&live.name)?;
    /// client.swap_sets(&live.name, &next.name)?;
    /// assert_eq!(client.set_index(&live.name)?, index);
    /// assert_eq!(client.set_name(index)?, live.name);
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::SetMissing`]; [`ErrorKind::ProtocolMismatch`] on kernels that speak protocol 6 only.
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

    /// Whether a packet with these values would match: an address inside a network of the set counts as in it, unless a
    /// `nomatch` network holds it. A network is looked up as an entry.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::{Entry, SetSpec, SetType};
    ///
    /// # let mut client = ipset::Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// let set = SetSpec::new("denied".parse()?, SetType::HashNet);
    /// client.create_set(&set)?;
    /// client.add_entry(&set.name, &Entry::parse(set.set_type, "198.51.100.0/24")?)?;
    /// client.add_entry(&set.name, &Entry::parse(set.set_type, "198.51.100.128/25 nomatch")?)?;
    ///
    /// assert!(client.test_entry(&set.name, &Entry::parse(set.set_type, "198.51.100.9")?)?);
    /// assert!(!client.test_entry(&set.name, &Entry::parse(set.set_type, "198.51.100.200")?)?); // nomatch holds it
    /// assert!(!client.test_entry(&set.name, &Entry::parse(set.set_type, "198.51.100.0/26")?)?); // no such entry
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
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

    /// The set as far as the form of its entries goes.
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
                // A set that was renamed or swapped meanwhile: what we have belongs to no one set.
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

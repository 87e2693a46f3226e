//! Generic netlink: families by name (linux/genetlink.h; net/netlink/genetlink.c).

use crate::attr::{Attrs, RawAttrs};
use crate::batch::Outcome;
use crate::connection::{Connection, Dump, Transport};
use crate::encode::Encoder;
use crate::error::{Errno, Error, ErrorKind, WireError};
use crate::header::GenlHeader;
use crate::socket::{Protocol, Socket};
use crate::wire::NulStr;

/// The controller that knows all families (`GENL_ID_CTRL`).
const CONTROLLER: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;

crate::attrs! {
    /// Attributes of a family, in the controller's answer.
    "CTRL_ATTR_", pub enum ControllerAttr<'a> {
        /// The message type of the family in this kernel.
        FAMILY_ID = 1 => FamilyId(u16),
        /// Name of the family.
        FAMILY_NAME = 2 => FamilyName(NulStr<'a>),
        /// Version of the family.
        VERSION = 3 => Version(u32),
        /// A list of its multicast groups, each with the attributes of [`GroupAttr`].
        MCAST_GROUPS = 7 => McastGroups(&'a [u8]),
    }
}

crate::attrs! {
    /// Attributes of a multicast group, in the controller's answer.
    "CTRL_ATTR_MCAST_GRP_", pub enum GroupAttr<'a> {
        /// Name of the group.
        NAME = 1 => Name(NulStr<'a>),
        /// Number of the group in this kernel.
        ID = 2 => Id(u32),
    }
}

/// A generic-netlink family as registered in this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Family {
    /// Message type. Valid until the module is unloaded.
    pub id: u16,
    /// Version the kernel announces.
    pub version: u8,
}

/// A conversation with one generic-netlink family.
///
/// The family's number is looked up at the start, and again when the kernel answers `ENOENT`, because a reloaded module
/// may have another number.
#[derive(Debug)]
pub struct Genl {
    connection: Connection,
    name: &'static str,
    family: Family,
}

impl Genl {
    /// Opens a socket in the calling thread's network namespace and looks up the family.
    ///
    /// # Errors
    /// [`ErrorKind::FamilyMissing`] if the kernel does not have the family; [`ErrorKind::Io`].
    pub fn open(name: &'static str) -> Result<Self, Error> {
        Self::new(Connection::open(Protocol::Generic)?, name)
    }

    /// Like [`Genl::open`], in another network namespace; see [`Socket::open_in`].
    ///
    /// # Errors
    /// As [`Genl::open`].
    pub fn open_in(name: &'static str, namespace: std::os::fd::BorrowedFd<'_>) -> Result<Self, Error> {
        Self::new(Connection::new(Socket::open_in(Protocol::Generic, namespace)?), name)
    }

    /// Looks up the family over any transport.
    ///
    /// # Errors
    /// As [`Genl::open`].
    pub fn with_transport(name: &'static str, transport: impl Transport + 'static) -> Result<Self, Error> {
        Self::new(Connection::new(transport), name)
    }

    /// Looks up the family over a connection that was opened with [`Protocol::Generic`].
    ///
    /// # Errors
    /// As [`Genl::open`].
    pub fn new(mut connection: Connection, name: &'static str) -> Result<Self, Error> {
        let family = lookup(&mut connection, name)?;
        Ok(Genl { connection, name, family })
    }

    /// The family as last looked up.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Number of a multicast group of this family, for [`Listener::open`](crate::Listener::open) with
    /// [`Protocol::Generic`]. `None` if the family has no group of this name. Valid until the module is unloaded.
    ///
    /// # Errors
    /// As [`Connection::query`], and [`ErrorKind::FamilyMissing`] if the family was unregistered.
    #[doc(alias = "CTRL_ATTR_MCAST_GROUPS")]
    pub fn group(&mut self, name: &str) -> Result<Option<u32>, Error> {
        ask(&mut self.connection, self.name, |attributes| {
            for attribute in Attrs::<ControllerAttr<'_>>::new(attributes).iter() {
                if let ControllerAttr::McastGroups(list) = attribute? {
                    return find_group(list, name);
                }
            }
            Ok(None)
        })
    }

    /// The underlying connection.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn header(&self, command: u8) -> [u8; GenlHeader::LENGTH] {
        GenlHeader { command, version: self.family.version }.to_bytes()
    }

    /// Looks up the family again. Returns whether its number has changed.
    fn moved(&mut self) -> Result<bool, Error> {
        let family = lookup(&mut self.connection, self.name)?;
        let moved = family != self.family;
        self.family = family;
        Ok(moved)
    }

    /// Runs `attempt`, and once more if the family's number has changed.
    fn with_family<T>(&mut self, mut attempt: impl FnMut(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        match attempt(self) {
            Err(error) if error.kernel().is_some_and(|kernel| kernel.errno == Errno::ENOENT) => {
                if self.moved()? {
                    attempt(self)
                } else {
                    Err(error)
                }
            }
            result => result,
        }
    }

    /// Sends one command and waits for its acknowledgement.
    ///
    /// # Errors
    /// As [`Connection::request`], and [`ErrorKind::FamilyMissing`] if the family was unregistered.
    pub fn request(&mut self, command: u8, body: impl Fn(&mut Encoder)) -> Result<(), Error> {
        self.with_family(|this| this.connection.request(this.family.id, 0, &this.header(command), &body))
    }

    /// Sends one command and reads its answer. `read` gets the header and attributes of each data message.
    ///
    /// # Errors
    /// As [`Connection::query`].
    pub fn query<T>(
        &mut self,
        command: u8,
        body: impl Fn(&mut Encoder),
        mut read: impl FnMut(GenlHeader, &[u8]) -> Result<T, WireError>,
    ) -> Result<Vec<T>, Error> {
        self.with_family(|this| {
            this.connection.query(this.family.id, 0, &this.header(command), &body, |payload| {
                split(payload).and_then(|(header, attributes)| read(header, attributes))
            })
        })
    }

    /// Reads a whole table.
    ///
    /// # Errors
    /// As [`Connection::dump`].
    pub fn dump<T>(
        &mut self,
        command: u8,
        body: impl Fn(&mut Encoder),
        mut read: impl FnMut(GenlHeader, &[u8]) -> Result<T, WireError>,
    ) -> Result<Dump<T>, Error> {
        self.with_family(|this| {
            this.connection.dump(this.family.id, 0, &this.header(command), &body, |payload| {
                split(payload).and_then(|(header, attributes)| read(header, attributes))
            })
        })
    }

    /// Sends commands as a batch; `write` appends the attributes of one.
    ///
    /// `failed` is called once for each command that was not carried out. Commands that fail because the family's
    /// number has changed are sent once more under the new number. Memory is bounded by one chunk, not by the number of
    /// commands.
    ///
    /// # Errors
    /// The reason, if the batch stopped early. A refused command does not stop it.
    pub fn batch<T: Clone>(
        &mut self,
        commands: impl IntoIterator<Item = T>,
        command: impl Fn(&T) -> u8,
        write: impl Fn(&T, &mut Encoder),
        mut failed: impl FnMut(T, Outcome),
    ) -> Result<(), Error> {
        let mut orphaned: Vec<(T, Outcome)> = Vec::new();
        let first = self.run(commands, &command, &write, |item, outcome| match &outcome {
            Outcome::Refused(error) if error.errno == Errno::ENOENT => orphaned.push((item, outcome)),
            _ => failed(item, outcome),
        });
        let moved = if orphaned.is_empty() || first.is_err() { Ok(false) } else { self.moved() };
        if let Ok(true) = moved {
            return self.run(orphaned.into_iter().map(|(item, _)| item), &command, &write, failed);
        }
        for (item, outcome) in orphaned {
            failed(item, outcome);
        }
        first.and(moved.map(|_| ()))
    }

    fn run<T: Clone>(
        &mut self,
        commands: impl IntoIterator<Item = T>,
        command: &impl Fn(&T) -> u8,
        write: &impl Fn(&T, &mut Encoder),
        mut failed: impl FnMut(T, Outcome),
    ) -> Result<(), Error> {
        let Family { id, version } = self.family;
        let mut batch = self.connection.batch();
        // The commands of the current chunk, to pass those that fail to `failed`.
        let mut chunk: Vec<T> = Vec::new();
        let mut first = 0_usize;
        let mut give_back = |chunk: &[T], first: usize, failures: Vec<(usize, Outcome)>| {
            for (index, outcome) in failures {
                if let Some(item) = index.checked_sub(first).and_then(|place| chunk.get(place)) {
                    failed(item.clone(), outcome);
                }
            }
        };
        for item in commands {
            batch.push(id, 0, &GenlHeader { command: command(&item), version }.to_bytes(), |out| write(&item, out));
            chunk.push(item);
            if batch.pending() == 0 {
                give_back(&chunk, first, batch.take_failures());
                chunk.clear();
                first = batch.len();
            }
        }
        let report = batch.finish();
        give_back(&chunk, first, report.failures);
        report.stopped.map_or(Ok(()), Err)
    }
}

fn split(payload: &[u8]) -> Result<(GenlHeader, &[u8]), WireError> {
    GenlHeader::split(payload).ok_or(WireError::Message { offset: 0, available: payload.len() })
}

fn lookup(connection: &mut Connection, name: &'static str) -> Result<Family, Error> {
    ask(connection, name, |attributes| {
        let mut id = None;
        let mut version = 0;
        for attribute in Attrs::<ControllerAttr<'_>>::new(attributes).iter() {
            match attribute? {
                ControllerAttr::FamilyId(value) => id = Some(value),
                ControllerAttr::Version(value) => version = u8::try_from(value).unwrap_or(u8::MAX),
                _ => {}
            }
        }
        let id = id.ok_or_else(|| WireError::Missing { attribute: "CTRL_ATTR_FAMILY_ID".to_owned() })?;
        Ok(Family { id, version })
    })
}

/// Looks up the number of a group in a list of groups.
fn find_group(list: &[u8], name: &str) -> Result<Option<u32>, WireError> {
    for entry in RawAttrs::new(list) {
        let (mut id, mut is_wanted) = (None, false);
        for attribute in Attrs::<GroupAttr<'_>>::new(entry?.payload).iter() {
            match attribute? {
                GroupAttr::Name(found) => is_wanted = found.as_bytes() == name.as_bytes(),
                GroupAttr::Id(number) => id = Some(number),
                GroupAttr::Unknown(_) => {}
            }
        }
        if is_wanted {
            let missing = || WireError::Missing { attribute: "CTRL_ATTR_MCAST_GRP_ID".to_owned() };
            return id.ok_or_else(missing).map(Some);
        }
    }
    Ok(None)
}

/// Asks the controller for a family and passes its attributes to `read`.
fn ask<T>(
    connection: &mut Connection,
    name: &'static str,
    read: impl Fn(&[u8]) -> Result<T, WireError>,
) -> Result<T, Error> {
    const CONTEXT: &str = "looking up the generic-netlink family";
    let header = GenlHeader { command: GET_FAMILY, version: 2 }.to_bytes();
    let name_attribute = |out: &mut Encoder| out.attr(ControllerAttr::FAMILY_NAME, &NulStr::from(name));
    let answer = connection
        .query(CONTROLLER, 0, &header, name_attribute, |payload| split(payload).and_then(|(_, found)| read(found)));
    let missing = || Error::new(ErrorKind::FamilyMissing, CONTEXT);
    match answer {
        Ok(families) => families.into_iter().next().ok_or_else(missing),
        Err(error) if error.kernel().is_some_and(|kernel| kernel.errno == Errno::ENOENT) => Err(missing()),
        Err(error) => Err(error),
    }
}

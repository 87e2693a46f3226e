//! What a pass needs of the outside world: one small trait for each part of the kernel, with only the methods used.
//!
//! Feature `kernel` implements them with this project's clients; feature `testing` has fakes that keep the kernel's rules
//! and pass the same tests. Every method blocks until the kernel has answered. None of them logs, retries for long or
//! decides: a failure comes back as [`PortError`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::net::Family;
use ipset::Element;
use ipvs::model::{ObservedRealServer, Snapshot, Timeouts, TimeoutsUpdate};
use ipvs::{Operation, VirtualServerKey};

use crate::modes::ipvs::sets::SetKey;
use crate::snapshot::HostAddresses;

/// Why the kernel, or the program that speaks to it, did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum PortErrorKind {
    /// What the call is about does not exist (ENOENT, ESRCH, ENODEV, EADDRNOTAVAIL).
    NotFound,
    /// It exists already (EEXIST).
    AlreadyExists,
    /// The process may not do this: CAP_NET_ADMIN or CAP_NET_RAW is missing (EPERM, EACCES).
    Permission,
    /// This kernel cannot do it now: a module, a family, a set type or a program is missing.
    Unavailable,
    /// Something holds it at the moment; the same call may succeed soon (EBUSY, EAGAIN, EINTR, ENOBUFS, ENOMEM, the lock of
    /// iptables).
    Busy,
    /// It takes no more: a set is full (ENOSPC, IPSET_ERR_HASH_FULL).
    Full,
    /// Something of this name has another type or form, or the kernel refuses a value (EINVAL and others).
    Invalid,
    /// It was not tried, because something it depends on failed.
    Skipped,
    /// It was sent, but the outcome is not known.
    Unknown,
    /// Everything else.
    Other,
}

/// A failed call, or a failed part of one.
///
/// Prints as one line that says what failed, on what and why, in the words of the client below.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PortError {
    kind: PortErrorKind,
    message: Box<str>,
}

impl PortError {
    /// An error of a kind. The message says what failed, on what, why, and what to do.
    pub fn new(kind: PortErrorKind, message: impl fmt::Display) -> Self {
        PortError { kind, message: message.to_string().into() }
    }

    /// An error of a client with its causes, on one line.
    pub fn from_error(kind: PortErrorKind, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            // Some libraries print their cause themselves.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = cause.source();
        }
        PortError::new(kind, message)
    }

    /// The kind.
    pub fn kind(&self) -> PortErrorKind {
        self.kind
    }
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.message)
    }
}

impl std::error::Error for PortError {}

/// One item of a call with many that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemFailure {
    /// Its index among the items given.
    pub index: usize,
    /// Why.
    pub error: PortError,
}

/// The items of a call that were not carried out, by index. All others were.
pub type ItemFailures = Vec<ItemFailure>;

/// Virtual and real servers.
pub trait Ipvs {
    /// All virtual servers, whoever made them, complete.
    ///
    /// # Errors
    /// When it could not be read as a whole. A kernel without the module `ip_vs` is [`PortErrorKind::Unavailable`].
    fn snapshot(&mut self) -> Result<Snapshot, PortError>;

    /// All of them, read once: virtual servers may be missing or listed twice when others made changes meanwhile.
    ///
    /// # Errors
    /// As [`Ipvs::snapshot`].
    fn snapshot_once(&mut self) -> Result<Snapshot, PortError> {
        self.snapshot()
    }

    /// Whether the virtual servers, without their real servers, are still those of a snapshot: then none was missing.
    ///
    /// # Errors
    /// When they could not be read.
    fn is_still(&mut self, snapshot: &Snapshot) -> Result<bool, PortError> {
        // A complete snapshot needs no second check.
        let _ = snapshot;
        Ok(true)
    }

    /// The real servers of one virtual server with their connections.
    ///
    /// # Errors
    /// [`PortErrorKind::NotFound`] if the virtual server does not exist.
    fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>, PortError>;

    /// Carries out operations in order. One that the kernel refuses does not stop those behind it.
    fn run(&mut self, operations: &[Operation]) -> ItemFailures;

    /// Timeouts of connections.
    ///
    /// # Errors
    /// When they could not be read.
    fn timeouts(&mut self) -> Result<Timeouts, PortError>;

    /// Changes timeouts.
    ///
    /// # Errors
    /// When the kernel refused.
    fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<(), PortError>;
}

/// The sets that rules refer to. Only sets of [`SetKey`] are ever read or written.
pub trait Sets {
    /// The entries of a set; `None` if it does not exist.
    ///
    /// # Errors
    /// [`PortErrorKind::Invalid`] when a set of this name has another type or family: it is not ours to fill.
    fn entries(&mut self, set: SetKey) -> Result<Option<BTreeSet<Element>>, PortError>;

    /// Creates a set, with room for this many entries at least; done if one of this type and family exists.
    ///
    /// # Errors
    /// [`PortErrorKind::Invalid`] when it exists with another type, [`PortErrorKind::Unavailable`] without the module.
    fn create(&mut self, set: SetKey, room: usize) -> Result<(), PortError>;

    /// Adds entries; one that is there counts as added.
    fn add(&mut self, set: SetKey, elements: &[&Element]) -> ItemFailures;

    /// Deletes entries; one that is not there counts as deleted.
    fn delete(&mut self, set: SetKey, elements: &[&Element]) -> ItemFailures;

    /// Brings a set to exactly these entries, in one step for packets, with more room if needed: rules that refer to it
    /// stay valid, and no wanted entry that is there is missing for a moment. A set that does not exist is created with all
    /// of them at once.
    /// be with all of them at once.
    ///
    /// # Errors
    /// As [`Sets::create`]; no wanted entry that was there is missing after an error.
    fn replace(&mut self, set: SetKey, elements: &[&Element]) -> Result<(), PortError>;

    /// Whether a process that was killed while it made or replaced this set left an unfinished one beside it;
    /// [`Sets::destroy`] removes both. The set itself may be missing.
    ///
    /// # Errors
    /// When the sets could not be listed.
    fn has_unfinished(&mut self, set: SetKey) -> Result<bool, PortError>;

    /// Destroys a set; done if it does not exist.
    ///
    /// # Errors
    /// [`PortErrorKind::Busy`] while a rule refers to it.
    fn destroy(&mut self, set: SetKey) -> Result<(), PortError>;
}

/// Rules of both families, over iptables-save and iptables-restore.
pub trait Rules {
    /// Whether the program masquerades with random ports (`--random-fully`).
    ///
    /// # Errors
    /// [`PortErrorKind::Unavailable`] when there is no program for this family.
    fn has_random_fully(&mut self, family: Family) -> Result<bool, PortError>;

    /// Tables nat and filter, whoever made the rules. A table that nobody has used yet may be missing.
    ///
    /// # Errors
    /// [`PortErrorKind::Unavailable`] when there is no program for this family that works with this kernel.
    fn dump(&mut self, family: Family) -> Result<iptables::Dump, PortError>;

    /// Runs `work`, and lists these families in parallel where possible: the next [`Rules::dump`] waits less, and shows the
    /// rules as they were when this was called.
    fn list_meanwhile(&mut self, families: &[Family], work: &mut dyn FnMut()) {
        // The default lists nothing and only runs `work`.
        let _ = families;
        work();
    }

    /// From now on a restore waits at most this long for whoever holds the lock of iptables. Default: as the port was made.
    fn set_lock_wait(&mut self, wait: Duration) {
        // Ports without a lock do not wait.
        let _ = wait;
    }

    /// Carries out a transaction; each table is changed as a whole or not at all.
    ///
    /// # Errors
    /// The refused line and the reason; [`PortErrorKind::Busy`] when another program held the lock too long.
    fn restore(&mut self, family: Family, transaction: &iptables::Transaction) -> Result<(), PortError>;

    /// As [`Rules::restore`] for several families, with an outcome for each, in their order. Families run in parallel where
    /// possible: most of the time goes into starting the programs.
    fn restore_families(&mut self, changes: &[(Family, &iptables::Transaction)]) -> Vec<Result<(), PortError>> {
        changes.iter().map(|(family, transaction)| self.restore(*family, transaction)).collect()
    }
}

/// The dummy device, and the addresses and gateways of this host.
pub trait Links {
    /// Creates the dummy device; done if it exists. It stays down: its addresses count all the same.
    ///
    /// # Errors
    /// [`PortErrorKind::Invalid`] when something else has its name, [`PortErrorKind::Unavailable`] without the module.
    fn create_device(&mut self, name: &str) -> Result<(), PortError>;

    /// Deletes the dummy device with its addresses; done if it does not exist.
    ///
    /// # Errors
    /// [`PortErrorKind::Invalid`] when what has the name is no dummy device.
    fn delete_device(&mut self, name: &str) -> Result<(), PortError>;

    /// The addresses of every interface, an interface without any included.
    ///
    /// # Errors
    /// When they could not be read as a whole.
    fn addresses(&mut self) -> Result<HostAddresses, PortError>;

    /// The gateways of the default routes of both families: of routes for an eighth of all addresses or more.
    ///
    /// # Errors
    /// When the routes could not be read as a whole.
    fn gateways(&mut self) -> Result<BTreeSet<IpAddr>, PortError>;

    /// Adds addresses to the device, as `/32` or `/128`; one that is there counts as added.
    fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures;

    /// Deletes addresses from the device; one that is not there counts as deleted.
    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures;
}

/// Values below `/proc/sys`.
pub trait Sysctls {
    /// Reads one, without white space around it. `path` as in `net/ipv4/ip_forward`.
    ///
    /// # Errors
    /// [`PortErrorKind::NotFound`] if this kernel does not have it.
    fn get(&mut self, path: &str) -> Result<String, PortError>;

    /// Whether it may be written. Some values belong to the whole host and are read-only in a network namespace.
    fn can_set(&mut self, path: &str) -> bool;

    /// Writes one.
    ///
    /// # Errors
    /// [`PortErrorKind::NotFound`], [`PortErrorKind::Permission`].
    fn set(&mut self, path: &str, value: &str) -> Result<(), PortError>;
}

/// UDP flows to forget, by what the client sent to.
///
/// A flow is forgotten when its original destination is one of the keys, with protocol UDP, and the endpoint that answers
/// it is not among the value's addresses.
pub type UdpServices = BTreeMap<SocketAddr, BTreeSet<SocketAddr>>;

/// A number of flows, by family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Flows {
    /// Of IPv4.
    pub v4: usize,
    /// Of IPv6.
    pub v6: usize,
}

impl Flows {
    /// Of both families.
    pub fn total(self) -> usize {
        self.v4.saturating_add(self.v6)
    }

    /// Adds these.
    pub fn add(&mut self, more: Flows) {
        self.v4 = self.v4.saturating_add(more.v4);
        self.v6 = self.v6.saturating_add(more.v6);
    }
}

/// Tracked connections.
pub trait Conntrack {
    /// Deletes the UDP flows to these addresses and ports that none of the endpoints listed there answers; returns how
    /// many. Lists the kernel's table once for each family, for any number of addresses.
    ///
    /// # Errors
    /// [`PortErrorKind::Unavailable`] without the module; when the table could not be listed.
    fn forget_udp(&mut self, services: &UdpServices) -> Result<Flows, PortError>;
}

/// Everything a pass works on.
pub struct Ports<'a> {
    /// Virtual and real servers.
    pub ipvs: &'a mut dyn Ipvs,
    /// Sets.
    pub sets: &'a mut dyn Sets,
    /// Rules.
    pub rules: &'a mut dyn Rules,
    /// Dummy device and addresses.
    pub links: &'a mut dyn Links,
    /// Values below `/proc/sys`.
    pub sysctls: &'a mut dyn Sysctls,
    /// Tracked connections.
    pub conntrack: &'a mut dyn Conntrack,
}

impl fmt::Debug for Ports<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ports")
    }
}

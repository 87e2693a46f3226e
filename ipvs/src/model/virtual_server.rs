//! Virtual servers.

use std::net::Ipv4Addr;

use crate::model::{Family, Name, ObservedRealServer, OutOfRange, Scheduler, SchedulerFlags, Stats, VirtualServerKey};

/// Size of the client networks that persistence treats as one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Granularity {
    /// Each address separately. Default.
    #[default]
    Client,
    /// Addresses with the same first bits: 0 to 31 for IPv4, 1 to 127 for IPv6.
    Prefix(u8),
    /// IPv4 only: addresses that are equal under a mask with gaps.
    Mask(Ipv4Addr),
}

impl Granularity {
    /// Converts an IPv4 mask.
    pub fn from_mask(mask: Ipv4Addr) -> Self {
        let ones = mask.to_bits().leading_ones();
        let contiguous = mask.to_bits().checked_shl(ones).unwrap_or(0) == 0;
        match u8::try_from(ones) {
            Ok(32) => Granularity::Client,
            Ok(prefix) if contiguous => Granularity::Prefix(prefix),
            _ => Granularity::Mask(mask),
        }
    }

    /// Converts a prefix length.
    ///
    /// # Errors
    /// [`OutOfRange`] above the family's number of bits, and 0 for IPv6.
    pub fn from_prefix(family: Family, prefix: u8) -> Result<Self, OutOfRange> {
        let granularity = if prefix == family.bits() { Granularity::Client } else { Granularity::Prefix(prefix) };
        granularity.check(family)?;
        Ok(granularity)
    }

    /// Normalises to the form in which the kernel reports it.
    fn canonical(self, family: Family) -> Self {
        match (self, family) {
            (Granularity::Prefix(prefix), _) if prefix == family.bits() => Granularity::Client,
            (Granularity::Mask(mask), Family::V4) => Granularity::from_mask(mask),
            (other, _) => other,
        }
    }

    pub(crate) fn check(self, family: Family) -> Result<(), OutOfRange> {
        let what = "persistence granularity";
        match (self, family) {
            (Granularity::Prefix(prefix), Family::V4) if prefix > 32 => {
                Err(OutOfRange::new(what, format!("/{prefix}"), "/0 to /32 for IPv4"))
            }
            (Granularity::Prefix(prefix), Family::V6) if prefix == 0 || prefix > 128 => {
                Err(OutOfRange::new(what, format!("/{prefix}"), "/1 to /128 for IPv6"))
            }
            (Granularity::Mask(mask), Family::V6) => Err(OutOfRange::new(what, mask, "a prefix length for IPv6")),
            _ => Ok(()),
        }
    }
}

/// Persistence: a client stays with its last real server (`ipvsadm -p`), even if the weight of that one is 0; see
/// [`Weight::DRAIN`](crate::Weight::DRAIN).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Persistence {
    /// Seconds that it lasts after the client's last connection. The default is 360 in ipvsadm and 10800 in Kubernetes.
    pub timeout_secs: u32,
    /// Size of the client networks that are treated as one client.
    #[cfg_attr(feature = "serde", serde(default))]
    pub granularity: Granularity,
    /// A persistence engine that inspects packets. The kernel has `sip`, which keeps the packets of a call together,
    /// but only among clients within one granularity (`ip_vs_sip_ct_match` in `net/netfilter/ipvs/ip_vs_pe_sip.c`).
    #[cfg_attr(feature = "serde", serde(default))]
    pub engine: Option<Name>,
}

impl Persistence {
    /// Persistence of this many seconds, for each client address separately.
    pub fn new(timeout_secs: u32) -> Self {
        Persistence { timeout_secs, granularity: Granularity::Client, engine: None }
    }
}

netlink_batch::settings! {
    Persistence:
    /// Sets which clients are treated as one.
    with_granularity(granularity: Granularity) |of| of.granularity = granularity;
    /// Sets the persistence engine.
    with_engine(engine: Name) |of| of.engine = Some(engine);
}

/// The settings of a virtual server that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct VirtualServerConfig {
    /// How new connections are distributed.
    pub scheduler: Scheduler,
    /// Scheduler flags.
    #[cfg_attr(feature = "serde", serde(default))]
    pub scheduler_flags: SchedulerFlags,
    /// Whether clients stay with their real server.
    #[cfg_attr(feature = "serde", serde(default))]
    pub persistence: Option<Persistence>,
    /// Schedules every packet separately (UDP; `ipvsadm -o`). Only for packets without a reply: without a connection,
    /// the kernel does not rewrite the source address of replies from masqueraded real servers
    /// (`ip_vs_update_conntrack`).
    #[cfg_attr(feature = "serde", serde(default))]
    pub one_packet: bool,
}

impl VirtualServerConfig {
    /// A configuration with this scheduler, without flags or persistence.
    pub fn new(scheduler: Scheduler) -> Self {
        VirtualServerConfig {
            scheduler,
            scheduler_flags: SchedulerFlags::empty(),
            persistence: None,
            one_packet: false,
        }
    }
}

/// A virtual server. Clients connect to it, and the kernel forwards each connection to one of its real servers.
#[doc(alias = "service")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct VirtualServer {
    /// Identity of the virtual server.
    pub key: VirtualServerKey,
    /// Scheduler, persistence and flags: the settings that can be changed.
    pub config: VirtualServerConfig,
}

impl VirtualServer {
    /// A virtual server with this scheduler, without flags or persistence.
    pub fn new(key: VirtualServerKey, scheduler: Scheduler) -> Self {
        VirtualServer { key, config: VirtualServerConfig::new(scheduler) }
    }

    /// Sets the configuration.
    #[must_use]
    pub fn with_config(mut self, config: VirtualServerConfig) -> Self {
        self.config = config;
        self
    }

    /// Normalises to the form in which [`Client`](crate::Client) reports it, for values with several spellings.
    pub(crate) fn canonical(mut self) -> Self {
        let family = self.key.family();
        self.key = self.key.canonical();
        self.config.scheduler = self.config.scheduler.canonical();
        if let Some(persistence) = &mut self.config.persistence {
            persistence.granularity = persistence.granularity.canonical(family);
        }
        self
    }

    /// Checks values that the types cannot rule out: a granularity of the other family.
    pub(crate) fn check(&self) -> Result<(), OutOfRange> {
        self.config.persistence.map_or(Ok(()), |persistence| persistence.granularity.check(self.key.family()))
    }
}

netlink_batch::settings! {
    VirtualServerConfig, VirtualServer in config:
    /// Sets the scheduler flags.
    with_scheduler_flags(flags: SchedulerFlags) |of| of.scheduler_flags = flags;
    /// Sets persistence.
    with_persistence(persistence: Persistence) |of| of.persistence = Some(persistence);
    /// Schedules every packet separately.
    with_one_packet() |of| of.one_packet = true;
}

/// A virtual server as read from the kernel, with its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedVirtualServer {
    /// The virtual server.
    pub server: VirtualServer,
    /// Counters and rates.
    #[cfg_attr(feature = "serde", serde(default))]
    pub stats: Stats,
}

/// A virtual server with all counters zero.
impl From<VirtualServer> for ObservedVirtualServer {
    fn from(server: VirtualServer) -> Self {
        ObservedVirtualServer { server, stats: Stats::default() }
    }
}

/// A virtual server of a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SnapshotEntry {
    /// The virtual server.
    pub virtual_server: ObservedVirtualServer,
    /// Real servers in the kernel's order: the most recently added first.
    #[cfg_attr(feature = "serde", serde(default))]
    pub real_servers: Vec<ObservedRealServer>,
}

/// All virtual servers with all their real servers at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The virtual servers, in the kernel's order.
    #[cfg_attr(feature = "serde", serde(default))]
    pub entries: Vec<SnapshotEntry>,
}

impl Snapshot {
    /// Returns a virtual server with its real servers; `None` if there is none with this key. A linear search.
    pub fn get(&self, key: &VirtualServerKey) -> Option<&SnapshotEntry> {
        self.entries.iter().find(|entry| entry.virtual_server.server.key == *key)
    }
}

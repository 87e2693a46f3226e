//! Settings of connection synchronisation.

use std::net::IpAddr;

use ipvs::model::{DaemonState, Name, SyncDaemon};

use crate::named::{named, one_of};
use crate::objects::ConnectionSyncObject;
use crate::snapshot::Reporter;

named! {
    /// Role of a node in connection synchronisation.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum SyncRole, "no connection is synchronised" {
        /// Sends its connections and learns those of others. An address may come to this node and leave it without an election. Default.
        #[default]
        Both = "both",
        /// Sends its connections.
        Master = "master",
        /// Learns the connections of others.
        Backup = "backup",
    }
}

/// Synchronisation of the connections of IPVS between nodes, in IPVS mode: the kernel's daemons multicast them (net/netfilter/ipvs/ip_vs_sync.c), so
/// that a node to which an address moves knows the connections to it. Connections that are masqueraded end all the same: the next node has
/// another source address.
///
/// Interface and sync id name the daemons of this proxy. One that runs with these is adopted as it is, or started again with the other settings
/// where they differ; one with another interface or sync id is foreign and stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionSync {
    /// Interface over which connections are multicast. Daemons start once it is there.
    pub interface: Name,
    /// Number of the group of nodes: daemons talk to those with the same one; a backup with 0 learns from all. Default 0.
    pub sync_id: u8,
    /// Role of this node. Default [`SyncRole::Both`].
    pub role: SyncRole,
    /// Multicast group. Default the kernel's, 224.0.0.81.
    pub group: Option<IpAddr>,
    /// UDP port, not 0. Default the kernel's, 8848.
    pub port: Option<u16>,
    /// Time to live of the multicasts, not 0. Default the kernel's, 1: they pass no router.
    pub ttl: Option<u8>,
    /// Largest UDP payload in bytes, 1024 to 65507 (65487 over IPv6). Default the kernel's, from the interface's MTU.
    pub max_length: Option<u16>,
}

impl ConnectionSync {
    /// Bytes of the largest payload: a backup takes no fewer than the first number (`start_sync_thread`), a datagram no more than the second.
    const LENGTHS: std::ops::RangeInclusive<u16> = 1024..=65507;

    /// Both roles over this interface, with sync id 0 and the kernel's defaults.
    pub fn new(interface: Name) -> Self {
        let role = SyncRole::Both;
        ConnectionSync { interface, sync_id: 0, role, group: None, port: None, ttl: None, max_length: None }
    }

    /// Daemons of this node's role.
    pub fn daemons(&self) -> impl Iterator<Item = SyncDaemon> + use<> {
        let sync = *self;
        let states: &[DaemonState] = match sync.role {
            SyncRole::Both => &[DaemonState::Master, DaemonState::Backup],
            SyncRole::Master => &[DaemonState::Master],
            SyncRole::Backup => &[DaemonState::Backup],
        };
        states.iter().map(move |state| {
            let mut daemon = SyncDaemon::new(*state, sync.interface, sync.sync_id);
            (daemon.group, daemon.port, daemon.ttl, daemon.max_length) =
                (sync.group, sync.port, sync.ttl, sync.max_length);
            daemon
        })
    }

    /// Whether a daemon has the interface and the sync id, which make it this proxy's.
    pub(crate) fn owns(&self, daemon: &SyncDaemon) -> bool {
        (self.interface, self.sync_id) == (daemon.interface, daemon.sync_id)
    }

    /// Checks the settings; `None` if any is impossible, since nodes with different settings would not hear each other.
    pub(super) fn check(object: &ConnectionSyncObject, report: &mut Reporter<'_>) -> Option<Self> {
        let before = report.rejections.len();
        let reason = "not a device's name of 1 to 15 characters; no connection is synchronised";
        let interface = Some(object.interface.as_str());
        let interface = report.read("ipvs.connectionSync.interface", interface, |name| Name::new(name).ok(), reason);
        let mut sync = ConnectionSync::new(interface?);
        let reason = "not 0 to 255; no connection is synchronised";
        let id = report.read("ipvs.connectionSync.syncID", Some(object.sync_id), |id| id.try_into().ok(), reason);
        sync.sync_id = id.unwrap_or_default();
        let role =
            report.read_text("ipvs.connectionSync.role", object.role.as_deref(), SyncRole::by_name, SyncRole::UNKNOWN);
        sync.role = role.unwrap_or_default();
        let multicast = |text: &str| text.parse().ok().filter(IpAddr::is_multicast);
        let reason = "not a multicast address (224.0.0.0/4, ff00::/8); no connection is synchronised";
        sync.group = report.read_text("ipvs.connectionSync.group", object.group.as_deref(), multicast, reason);
        let number = |port: i64| port.try_into().ok().filter(|port| *port != 0);
        let reason = "not 1 to 65535; no connection is synchronised";
        sync.port = report.read("ipvs.connectionSync.port", object.port, number, reason);
        let hops = |ttl: i64| ttl.try_into().ok().filter(|ttl| *ttl != 0);
        sync.ttl =
            report.read("ipvs.connectionSync.ttl", object.ttl, hops, "not 1 to 255; no connection is synchronised");
        let length = |bytes: i64| bytes.try_into().ok().filter(|bytes| Self::LENGTHS.contains(bytes));
        let reason = "not 1024 to 65507; no connection is synchronised";
        sync.max_length = report.read("ipvs.connectionSync.maxLength", object.max_length, length, reason);
        (report.rejections.len() == before).then_some(sync)
    }
}

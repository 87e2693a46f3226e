//! The synchronisation daemon, which tells other directors of connections.

use std::net::IpAddr;

use crate::model::Name;

/// Which end of the synchronisation a daemon is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DaemonState {
    /// It sends connections.
    Master,
    /// It receives connections.
    Backup,
}

/// A synchronisation daemon of this network namespace; there is at most one in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SyncDaemon {
    /// Which end it is.
    pub state: DaemonState,
    /// Interface over which connections are multicast.
    pub interface: Name,
    /// Only daemons with the same number talk to each other; a backup with 0 takes all.
    pub sync_id: u8,
    /// Largest UDP payload in bytes; `None` lets the kernel derive it from the interface's MTU.
    pub max_length: Option<u16>,
    /// Multicast group; `None` means 224.0.0.81.
    pub group: Option<IpAddr>,
    /// UDP port; `None` means 8848.
    pub port: Option<u16>,
    /// Time to live of the multicasts; `None` means 1.
    pub ttl: Option<u8>,
}

impl SyncDaemon {
    /// A daemon with the kernel's defaults.
    pub fn new(state: DaemonState, interface: Name, sync_id: u8) -> Self {
        SyncDaemon { state, interface, sync_id, max_length: None, group: None, port: None, ttl: None }
    }
}

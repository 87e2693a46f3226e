//! The synchronisation daemon, which replicates connections to other directors.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use crate::model::{Name, OutOfRange};

/// Role of a synchronisation daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DaemonState {
    /// Sends connections.
    Master,
    /// Receives connections.
    Backup,
}

/// `master`, `backup`: as in `ipvsadm --start-daemon`.
impl fmt::Display for DaemonState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DaemonState::Master => "master",
            DaemonState::Backup => "backup",
        })
    }
}

impl FromStr for DaemonState {
    type Err = OutOfRange;

    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        match text {
            "master" => Ok(DaemonState::Master),
            "backup" => Ok(DaemonState::Backup),
            _ => Err(OutOfRange::new("daemon state", text, "master or backup")),
        }
    }
}

#[cfg(feature = "serde")]
netlink_batch::serde_as_text!(DaemonState, "master or backup");

/// A synchronisation daemon of this network namespace. At most one can run in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SyncDaemon {
    /// Role of the daemon.
    pub state: DaemonState,
    /// Interface over which connections are multicast.
    pub interface: Name,
    /// Daemons exchange connections only with those of the same number; a backup with 0 accepts all.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sync_id: u8,
    /// Largest UDP payload in bytes. `None` means what fits into 1500 bytes, or for a backup into the interface's MTU if
    /// that is more.
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

    /// Whether a running daemon, as [`Client::list_daemons`](crate::Client::list_daemons) reports it, has these
    /// settings. Missing settings mean the kernel's defaults. The kernel derives the running daemon's largest payload
    /// from the requested one (net/netfilter/ipvs/ip_vs_sync.c, `start_sync_thread`). If none is requested for a backup,
    /// any value matches, since it depends on the interface's MTU at the start.
    pub fn is_met_by(&self, running: &SyncDaemon) -> bool {
        let group = self.group.unwrap_or(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 81)));
        // IP and UDP headers.
        let within = |packet: u16| packet.saturating_sub(if group.is_ipv4() { 28 } else { 48 });
        let is_backup = self.state == DaemonState::Backup;
        let least = if is_backup { 1024 } else { 1 };
        let has_length = match self.max_length.filter(|length| *length != 0) {
            Some(length) => running.max_length == Some(length.clamp(least, within(u16::MAX))),
            // Kernels before 4.3 do not report it.
            None => is_backup || running.max_length.is_none_or(|length| length == within(1500)),
        };
        let or_default = |value: Option<u16>, default| value.filter(|value| *value != 0).unwrap_or(default);
        let ttl = |daemon: &SyncDaemon| or_default(daemon.ttl.map(u16::from), 1);
        (self.state, self.interface, self.sync_id) == (running.state, running.interface, running.sync_id)
            && running.group.is_none_or(|running| running == group)
            && or_default(self.port, 8848) == or_default(running.port, 8848)
            && ttl(self) == ttl(running)
            && has_length
    }
}

netlink_batch::settings! {
    SyncDaemon:
    /// Sets the largest payload.
    with_max_length(bytes: u16) |of| of.max_length = Some(bytes);
    /// Sets the multicast group.
    with_group(group: IpAddr) |of| of.group = Some(group);
    /// Sets the UDP port.
    with_port(port: u16) |of| of.port = Some(port);
    /// Sets the time to live.
    with_ttl(ttl: u8) |of| of.ttl = Some(ttl);
}

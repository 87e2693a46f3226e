//! IPVS.

use ipvs::model::{DaemonState, ObservedRealServer, Snapshot, SyncDaemon, Timeouts, TimeoutsUpdate};
use ipvs::{Operation, VirtualServerKey};

use super::{ItemFailures, PortError, PortErrorKind};

/// Virtual and real servers.
pub trait Ipvs {
    /// All virtual servers, own and foreign, complete.
    ///
    /// # Errors
    /// When it could not be read as a whole. A kernel without the module `ip_vs` is [`Unavailable`](super::PortErrorKind::Unavailable).
    fn snapshot(&mut self) -> Result<Snapshot, PortError>;

    /// All virtual servers, read once: some may be missing or listed twice when other programs made changes meanwhile.
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
    /// [`NotFound`](super::PortErrorKind::NotFound) if the virtual server does not exist.
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

    /// The synchronisation daemons that run, at most one in each state.
    ///
    /// # Errors
    /// When they could not be read; [`Unavailable`](PortErrorKind::Unavailable) by default, for ports without daemons.
    fn sync_daemons(&mut self) -> Result<Vec<SyncDaemon>, PortError> {
        Err(no_daemons())
    }

    /// Starts a synchronisation daemon.
    ///
    /// # Errors
    /// [`AlreadyExists`](PortErrorKind::AlreadyExists) if one runs in this state, [`NotFound`](PortErrorKind::NotFound) without its interface, and what
    /// else the kernel refuses.
    fn start_sync_daemon(&mut self, daemon: &SyncDaemon) -> Result<(), PortError> {
        let _ = daemon;
        Err(no_daemons())
    }

    /// Stops the synchronisation daemon of a state.
    ///
    /// # Errors
    /// [`NotFound`](PortErrorKind::NotFound) if none runs.
    fn stop_sync_daemon(&mut self, state: DaemonState) -> Result<(), PortError> {
        let _ = state;
        Err(no_daemons())
    }
}

fn no_daemons() -> PortError {
    PortError::new(PortErrorKind::Unavailable, "this port knows no synchronisation daemons")
}

//! IPVS.

use ipvs::model::{ObservedRealServer, Snapshot, Timeouts, TimeoutsUpdate};
use ipvs::{Operation, VirtualServerKey};

use super::{ItemFailures, PortError};

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
}

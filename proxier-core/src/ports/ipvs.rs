//! IPVS.

use ipvs::model::{ObservedRealServer, Snapshot, Timeouts, TimeoutsUpdate};
use ipvs::{Operation, VirtualServerKey};

use super::{ItemFailures, PortError};

/// Virtual and real servers.
pub trait Ipvs {
    /// Reads all virtual servers, including those of other programs. The result is complete.
    ///
    /// # Errors
    /// If it could not be read completely. A kernel without the module `ip_vs` is
    /// [`Unavailable`](super::PortErrorKind::Unavailable).
    fn snapshot(&mut self) -> Result<Snapshot, PortError>;

    /// Reads all virtual servers once: some may be missing or repeated if other programs change them meanwhile.
    ///
    /// # Errors
    /// As [`Ipvs::snapshot`].
    fn snapshot_once(&mut self) -> Result<Snapshot, PortError> {
        self.snapshot()
    }

    /// Whether the virtual servers, without their real servers, are still those of a snapshot. If so, none was missing.
    ///
    /// # Errors
    /// If they could not be read.
    fn is_still(&mut self, snapshot: &Snapshot) -> Result<bool, PortError> {
        // A complete snapshot needs no second check.
        let _ = snapshot;
        Ok(true)
    }

    /// Reads the real servers of one virtual server with their connections.
    ///
    /// # Errors
    /// [`NotFound`](super::PortErrorKind::NotFound) if the virtual server does not exist.
    fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>, PortError>;

    /// Carries out operations in order. A refused operation does not stop the following ones.
    fn run(&mut self, operations: &[Operation]) -> ItemFailures;

    /// Timeouts of connections.
    ///
    /// # Errors
    /// If they could not be read.
    fn timeouts(&mut self) -> Result<Timeouts, PortError>;

    /// Changes timeouts.
    ///
    /// # Errors
    /// If the kernel refused.
    fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<(), PortError>;
}

//! Virtual and real servers over [`ipvs::Client`].

use ipvs::model::{ObservedRealServer, Snapshot, Timeouts, TimeoutsUpdate};
use ipvs::{Client, Error, ErrorKind, Operation, Outcome, VirtualServerKey};

use super::error::{all, io_kind, skipped, unknown};
use super::lazy::Lazy;
use crate::ports::{Ipvs, ItemFailures, PortError, PortErrorKind, Result};

/// Writes virtual and real servers through [`ipvs::Client`].
#[doc(hidden)]
#[derive(Debug)]
pub struct IpvsPort {
    client: Lazy<Client, Error>,
}

fn kind_of(error: &Error) -> PortErrorKind {
    match error.kind() {
        ErrorKind::VirtualServerNotFound | ErrorKind::RealServerNotFound | ErrorKind::InterfaceNotFound => {
            PortErrorKind::NotFound
        }
        ErrorKind::VirtualServerExists | ErrorKind::RealServerExists => PortErrorKind::AlreadyExists,
        ErrorKind::ModuleMissing(_) | ErrorKind::FamilyUnsupported => PortErrorKind::Unavailable,
        ErrorKind::Permission => PortErrorKind::Permission,
        ErrorKind::OutOfRange(_) | ErrorKind::Invalid => PortErrorKind::Invalid,
        ErrorKind::OutOfMemory | ErrorKind::Interrupted => PortErrorKind::Busy,
        ErrorKind::Timeout | ErrorKind::StateUnknown => PortErrorKind::Unknown,
        ErrorKind::Io => io_kind(error),
        ErrorKind::Other => error.errno().map_or(PortErrorKind::Other, super::error::errno_kind),
        _ => PortErrorKind::Other,
    }
}

fn port_error(error: &Error) -> PortError {
    PortError::from_error(kind_of(error), error)
}

/// Whether the next call should open a new socket.
fn is_broken(error: &Error) -> bool {
    use ErrorKind::{Io, Malformed, ModuleMissing, StateUnknown, Timeout};
    matches!(error.kind(), Io | Malformed | StateUnknown | Timeout | ModuleMissing(ipvs::MissingModule::Ipvs))
}

impl IpvsPort {
    pub fn new(open: impl FnMut() -> Result<Client, Error> + Send + 'static) -> Self {
        IpvsPort { client: Lazy::new(open) }
    }

    fn call<T>(&mut self, ask: impl FnOnce(&mut Client) -> Result<T, Error>) -> Result<T> {
        self.client.ask(ask, is_broken).map_err(|error| port_error(&error))
    }
}

impl Ipvs for IpvsPort {
    fn snapshot(&mut self) -> Result<Snapshot> {
        self.call(Client::snapshot)
    }

    fn snapshot_once(&mut self) -> Result<Snapshot> {
        self.call(Client::snapshot_once)
    }

    fn is_still(&mut self, snapshot: &Snapshot) -> Result<bool> {
        self.call(|client| client.is_still(snapshot))
    }

    fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>> {
        self.call(|client| {
            let servers = client.list_real_servers(key)?;
            if servers.is_empty() {
                // The kernel returns an empty list for a missing virtual server.
                client.get_virtual_server(key)?;
            }
            Ok(servers)
        })
    }

    fn run(&mut self, operations: &[&Operation]) -> ItemFailures {
        let report = match self.client.get() {
            Ok(client) => client.run(operations.iter().copied()),
            Err(error) => return all(operations.len(), &port_error(&error)),
        };
        let mut stopped = report.stopped.as_ref().map(port_error);
        if report.stopped.as_ref().is_some_and(is_broken) {
            self.client.close();
        }
        let mut failures = ItemFailures::new();
        for ((index, outcome), operation) in report.outcomes.iter().enumerate().zip(operations) {
            let error = match outcome {
                Outcome::Done => continue,
                Outcome::Failed(error) => {
                    if is_broken(error) {
                        self.client.close();
                    }
                    port_error(error)
                }
                Outcome::Unknown => unknown(operation),
                Outcome::NotSent => match &mut stopped {
                    // Nothing was sent at all, so this item reports the reason itself.
                    Some(why) if index == 0 => why.clone(),
                    why => skipped(operation, why.as_ref()),
                },
                _ => PortError::new(PortErrorKind::Other, format!("{operation}: {outcome:?}")),
            };
            failures.insert(index, error);
        }
        failures
    }

    fn timeouts(&mut self) -> Result<Timeouts> {
        self.call(Client::timeouts)
    }

    fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<()> {
        self.call(|client| client.set_timeouts(timeouts))
    }
}

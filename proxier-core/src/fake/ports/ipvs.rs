//! Virtual and real servers.

use ipvs::fake::FakeIpvs;
use ipvs::model::{ObservedRealServer, Snapshot, Timeouts, TimeoutsUpdate};
use ipvs::{Operation, VirtualServerKey};

use super::gate::Gate;
use crate::fake::LastChange;
use crate::fake::control::Call;
use crate::fake::shared::Shared;
use crate::kernel::IpvsPort;
use crate::ports::{Ipvs, ItemFailure, ItemFailures, PortError, PortErrorKind};

pub(super) struct FakeIpvsPort {
    pub(super) gate: Gate,
    pub(super) port: IpvsPort,
    pub(super) kernel: FakeIpvs,
    pub(super) changed: Shared<LastChange>,
    /// The last read, and its generation.
    pub(super) seen: Option<(u64, Snapshot)>,
}

impl Ipvs for FakeIpvsPort {
    fn snapshot(&mut self) -> Result<Snapshot, PortError> {
        let (port, kernel, changed, seen) = (&mut self.port, &self.kernel, &self.changed, &mut self.seen);
        self.gate.call(Call::IpvsSnapshot, None, || {
            let (generation, quiet_from) = {
                let changed = changed.lock();
                (changed.generation, changed.quiet_from)
            };
            let quiet = quiet_from == 0 || kernel.messages() >= quiet_from;
            if let Some((_, snapshot)) = seen.as_ref().filter(|(at, _)| quiet && *at == generation) {
                return Ok(snapshot.clone());
            }
            let snapshot = port.snapshot()?;
            *seen = Some((generation, snapshot.clone()));
            Ok(snapshot)
        })
    }

    fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>, PortError> {
        self.gate.call(Call::IpvsRealServers, None, || self.port.real_servers(key))
    }

    fn run(&mut self, operations: &[Operation]) -> ItemFailures {
        let mut changed = self.changed.lock();
        changed.generation = changed.generation.saturating_add(1);
        drop(changed);
        let objection = self.gate.0.lock().objection;
        self.gate.items(Call::IpvsRun, None, operations, |operations| {
            let is_refused = |operation: &Operation| objection.is_some_and(|(refuses, _)| refuses(operation));
            let refused = operations.iter().enumerate().filter(|(_, operation)| is_refused(operation));
            let (places, allowed): (Vec<usize>, Vec<Operation>) =
                operations.iter().copied().enumerate().filter(|(_, operation)| !is_refused(operation)).unzip();
            let mut failures: ItemFailures = refused
                .map(|(index, operation)| {
                    let kind = objection.map_or(PortErrorKind::Other, |(_, kind)| kind);
                    ItemFailure { index, error: PortError::new(kind, format_args!("{operation}: refused for a test")) }
                })
                .collect();
            for failure in self.port.run(&allowed) {
                if let Some(index) = places.get(failure.index).copied() {
                    failures.push(ItemFailure { index, ..failure });
                }
            }
            failures
        })
    }

    fn timeouts(&mut self) -> Result<Timeouts, PortError> {
        self.gate.call(Call::IpvsTimeouts, None, || self.port.timeouts())
    }

    fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<(), PortError> {
        self.gate.call(Call::IpvsSetTimeouts, None, || self.port.set_timeouts(timeouts))
    }
}

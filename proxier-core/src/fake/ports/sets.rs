//! Sets.

use std::collections::{BTreeMap, BTreeSet};

use ipset::Element;

use super::gate::Gate;
use crate::fake::control::Call;
use crate::fake::shared::Shared;
use crate::fake::transport::WriteCounts;
use crate::kernel::SetsPort;
use crate::ports::{ItemFailures, NamedSet, PortError, Sets};

pub(super) struct FakeSetsPort {
    pub(super) gate: Gate,
    pub(super) port: SetsPort,
    /// Whether the messages of a replacement are counted individually.
    pub(super) counting: Shared<bool>,
    pub(super) written: Shared<WriteCounts>,
    /// The last read of each set, and its generation.
    pub(super) seen: BTreeMap<NamedSet, CachedEntries>,
}

/// The generation of a set, and its entries.
pub(super) type CachedEntries = ((u64, u64), Option<BTreeSet<Element>>);

impl Sets for FakeSetsPort {
    fn entries(&mut self, set: NamedSet) -> Result<Option<BTreeSet<Element>>, PortError> {
        let (port, written, seen) = (&mut self.port, &self.written, &mut self.seen);
        self.gate.call(Call::SetsEntries, Some(set.key.family), || {
            let generation = written.lock().generation(&set.name());
            if let Some((_, entries)) = seen.get(&set).filter(|(at, _)| *at == generation) {
                return Ok(entries.clone());
            }
            let entries = port.entries(set)?;
            seen.insert(set, (generation, entries.clone()));
            Ok(entries)
        })
    }

    fn create(&mut self, set: NamedSet, room: usize) -> Result<(), PortError> {
        self.gate.call(Call::SetsCreate, Some(set.key.family), || self.port.create(set, room))
    }

    fn add(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        self.gate.items(Call::SetsAdd, Some(set.key.family), elements, |elements| self.port.add(set, elements))
    }

    fn delete(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        self.gate.items(Call::SetsDelete, Some(set.key.family), elements, |elements| self.port.delete(set, elements))
    }

    fn replace(&mut self, set: NamedSet, elements: &[&Element]) -> Result<(), PortError> {
        let counting = &self.counting;
        self.gate.weighing(Call::SetsReplace, Some(set.key.family), elements.len().max(1), false, || {
            *counting.lock() = self.gate.0.lock().is_armed();
            let outcome = self.port.replace(set, elements);
            *counting.lock() = false;
            outcome
        })
    }

    fn has_unfinished(&mut self, set: NamedSet) -> Result<bool, PortError> {
        self.gate.call(Call::SetsEntries, Some(set.key.family), || self.port.has_unfinished(set))
    }

    fn destroy(&mut self, set: NamedSet) -> Result<(), PortError> {
        self.gate.call(Call::SetsDestroy, Some(set.key.family), || self.port.destroy(set))
    }
}

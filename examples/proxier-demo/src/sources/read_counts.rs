//! Counts objects that were read, to show progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::message::change::Change;

/// Counts of Services and EndpointSlices that were read, shared between reader and display.
#[derive(Clone, Debug, Default)]
pub struct ReadCounts(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    services: AtomicUsize,
    slices: AtomicUsize,
}

impl ReadCounts {
    /// Counts the object of a change.
    pub fn saw(&self, change: &Change) {
        match change {
            Change::UpsertService(_) => self.0.services.fetch_add(1, Ordering::Relaxed),
            Change::UpsertSlice(_) => self.0.slices.fetch_add(1, Ordering::Relaxed),
            _ => return,
        };
    }

    /// `3 Services, 4 EndpointSlices`.
    pub fn words(&self) -> String {
        let number = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
        format!("{} Services, {} EndpointSlices", number(&self.0.services), number(&self.0.slices))
    }
}

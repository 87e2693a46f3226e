//! Injects failures before a port is called.

use crate::fake::control::{Call, Control, Fate};
use crate::fake::shared::Shared;
use crate::net::Family;
use crate::ports::{ItemFailures, PortError};

pub(super) struct Gate(pub(super) Shared<Control>);

impl Gate {
    pub(super) fn call<T>(
        &self,
        call: Call,
        family: Option<Family>,
        ask: impl FnOnce() -> Result<T, PortError>,
    ) -> Result<T, PortError> {
        self.weighing(call, family, 1, true, ask)
    }

    pub(super) fn weighing<T>(
        &self,
        call: Call,
        family: Option<Family>,
        writes: usize,
        spends: bool,
        ask: impl FnOnce() -> Result<T, PortError>,
    ) -> Result<T, PortError> {
        let fates = self.0.lock().decide(call, family, writes, spends);
        match fates.and_then(|fates| fates.into_iter().next()) {
            None | Some(Fate::Plain) => ask(),
            Some(Fate::Fail(error)) => Err(error),
            Some(Fate::DoneAndFail(error)) => {
                drop(ask());
                Err(error)
            }
        }
    }

    pub(super) fn items<T: Clone>(
        &self,
        call: Call,
        family: Option<Family>,
        items: &[T],
        write: impl FnOnce(&[T]) -> ItemFailures,
    ) -> ItemFailures {
        let decided = self.0.lock().decide(call, family, items.len(), true);
        let Some(mut fates) = decided else { return write(items) };
        fates.truncate(items.len());
        let sent = fates.iter().enumerate().filter(|(_, fate)| !matches!(fate, Fate::Fail(_)));
        let (places, sent): (Vec<usize>, Vec<T>) =
            sent.filter_map(|(place, _)| Some((place, items.get(place)?.clone()))).unzip();
        let refused = if sent.is_empty() { ItemFailures::new() } else { write(&sent) };
        let mut failures = at_places(refused, &places);
        for (place, fate) in fates.into_iter().enumerate() {
            if let Fate::Fail(error) | Fate::DoneAndFail(error) = fate {
                failures.insert(place, error);
            }
        }
        failures
    }
}

/// Failures among some items, by their places among all.
pub(super) fn at_places(failures: ItemFailures, places: &[usize]) -> ItemFailures {
    failures.into_iter().filter_map(|(index, error)| Some((*places.get(index)?, error))).collect()
}

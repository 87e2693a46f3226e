//! Bringing the kernel to a wanted table.

use crate::batch::{Batch, Operation, Outcome};
use crate::client::Client;
use crate::diff::SyncPolicy;
use crate::error::Error;
use crate::text::Ruleset;

/// Attempts while other programs change the same virtual servers.
const ATTEMPTS: usize = 4;

/// Result of a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[must_use = "a sync reports failures only here"]
#[non_exhaustive]
pub struct SyncReport {
    /// Operations carried out, in this order. Prints in ipvsadm's words. Empty when the kernel had everything as wanted.
    pub done: Batch,
    /// Operations not carried out.
    pub failures: Vec<SyncFailure>,
    /// Reason for stopping early, when it did: answers were lost, or the socket failed. Sync again then.
    pub stopped: Option<Error>,
}

/// An operation that a sync did not get carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SyncFailure {
    /// The operation.
    pub operation: Operation,
    /// Outcome of the operation: anything but [`Outcome::Done`].
    pub outcome: Outcome,
    /// Whether it follows from another failure, as [`Report::cause`](crate::Report::cause) says.
    pub is_consequence: bool,
}

impl SyncReport {
    /// Whether the kernel has everything as wanted now.
    pub fn is_done(&self) -> bool {
        self.failures.is_empty() && self.stopped.is_none()
    }

    /// Whether the kernel's state was changed. When answers were lost, it may have been without this saying so.
    pub fn is_changed(&self) -> bool {
        !self.done.is_empty()
    }

    /// The operations carried out, if that was all of them.
    ///
    /// # Errors
    /// The first operation's error, or why the sync stopped.
    pub fn into_result(self) -> Result<Batch, Error> {
        let refused = self.failures.into_iter().find_map(|failure| match failure.outcome {
            Outcome::Failed(error) => Some(error),
            _ => None,
        });
        refused.or(self.stopped).map_or(Ok(self.done), Err)
    }
}

impl Client {
    /// Brings the virtual servers that are the caller's, with their real servers, to exactly the wanted state, with the least
    /// writes: [`Client::snapshot`], [`Ruleset::diff`], [`Client::run`]. Virtual servers of others stay as they are, and
    /// connections through what stays wanted are not touched. A second sync writes nothing.
    ///
    /// One refused operation does not stop the others. When another program changes the same virtual servers at the same time, the
    /// table is read again, a few times at most.
    ///
    /// # Errors
    /// Nothing was written then: those of [`Ruleset::diff`], for mistakes in the wanted state; those of [`Client::snapshot`], as
    /// long as nothing was written before. What the kernel refuses is in the report.
    pub fn sync(&mut self, wanted: &Ruleset, policy: &SyncPolicy<'_>) -> Result<SyncReport, Error> {
        wanted.check(policy)?;
        let mut synced = SyncReport::default();
        for attempt in 1..=ATTEMPTS {
            let batch = match self.snapshot().and_then(|observed| wanted.diff(&observed, policy)) {
                Ok(batch) => batch,
                Err(error) if attempt == 1 => return Err(error),
                Err(error) => {
                    synced.stopped = Some(error);
                    break;
                }
            };
            let mut report = self.run(&batch);
            synced.stopped = report.stopped.take();
            synced.failures.clear();
            let outcomes = std::mem::take(&mut report.outcomes);
            for (index, (operation, outcome)) in batch.iter().zip(outcomes).enumerate() {
                if outcome.is_done() {
                    synced.done.push(*operation);
                } else {
                    let is_consequence = report.cause(index).is_some();
                    synced.failures.push(SyncFailure { operation: *operation, outcome, is_consequence });
                }
            }
            if synced.stopped.is_some() || !synced.failures.iter().any(is_surprise) {
                break;
            }
        }
        Ok(synced)
    }
}

/// Whether the kernel holds something else than was read: another program was faster.
fn is_surprise(failure: &SyncFailure) -> bool {
    let error = failure.outcome.error();
    !failure.is_consequence && error.is_some_and(|error| error.is_not_found() || error.is_already_exists())
}

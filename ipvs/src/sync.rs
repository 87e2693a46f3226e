//! Brings the kernel to a desired table.

use crate::batch::{Batch, Operation, Outcome};
use crate::client::Client;
use crate::diff::SyncPolicy;
use crate::error::Error;
use crate::text::Ruleset;

/// Attempts if other programs change the same virtual servers.
const ATTEMPTS: usize = 4;

/// Result of a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[must_use = "a sync reports failures only here"]
#[non_exhaustive]
pub struct SyncReport {
    /// Operations carried out, in order. Prints in ipvsadm's syntax. Empty if the kernel already had the desired state.
    pub done: Batch,
    /// Operations not carried out.
    pub failures: Vec<SyncFailure>,
    /// Why the sync stopped early, if it did: answers were lost, or the socket failed. Sync again in that case.
    pub stopped: Option<Error>,
}

/// An operation that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SyncFailure {
    /// The operation.
    pub operation: Operation,
    /// Outcome of the operation: anything but [`Outcome::Done`].
    pub outcome: Outcome,
    /// Whether another failure caused this one, see [`Report::cause`](crate::Report::cause).
    pub is_consequence: bool,
}

impl SyncReport {
    /// Whether the kernel now has the desired state.
    pub fn is_done(&self) -> bool {
        self.failures.is_empty() && self.stopped.is_none()
    }

    /// Whether the sync changed the kernel's state. If answers were lost, it may have changed although this returns
    /// false.
    pub fn is_changed(&self) -> bool {
        !self.done.is_empty()
    }

    /// Returns the operations carried out if there was no failure.
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
    /// Brings the caller's virtual servers and their real servers to the desired state with the fewest writes. It combines [`Client::snapshot`], [`Ruleset::diff`] and [`Client::run`]. Other programs' virtual
    /// servers and connections through unchanged servers are not affected. A second sync writes nothing.
    ///
    /// A refused operation does not stop the others. If another program changes the same virtual servers meanwhile, the
    /// sync starts over, a limited number of times.
    ///
    /// # Errors
    /// All errors mean that nothing was written: those of [`Ruleset::diff`] for mistakes in the desired state, and
    /// those of the first [`Client::snapshot`]. Refusals by the kernel are in the report.
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

/// Whether the failure shows that another program changed the table after it was read.
fn is_surprise(failure: &SyncFailure) -> bool {
    let error = failure.outcome.error();
    !failure.is_consequence && error.is_some_and(|error| error.is_not_found() || error.is_already_exists())
}

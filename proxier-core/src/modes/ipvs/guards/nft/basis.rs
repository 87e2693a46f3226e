//! State that tables are written from: as they were read, unless another program has changed them since.

use std::collections::BTreeMap;
use std::sync::Arc;

use nftables::Transaction;

use super::found::{Found, read};
use crate::config::Config;
use crate::net::Family;
use crate::ports::{NotCommitted, PortErrorKind, Tables};

/// Number of times that a table is compared again because another program changed something between reading and writing.
const ATTEMPTS: usize = 4;

/// The tables as a full pass has read them. The first transaction of a family changes its table only as it was read; after that, what was
/// written is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::modes::ipvs) struct Basis {
    config: Config,
    /// The generation of the rule set that the tables were read from, or that was made of it by our own transactions.
    generation: Option<u32>,
    read: BTreeMap<Family, Option<Arc<Found>>>,
}

/// Whether a transaction was committed.
pub(super) enum Outcome {
    Committed,
    Refused(NotCommitted),
    /// Another program has changed the table since it was read.
    Changed(NotCommitted),
}

impl Basis {
    pub(super) fn new(config: &Config, generation: Option<u32>, read: BTreeMap<Family, Option<Arc<Found>>>) -> Self {
        Basis { config: config.clone(), generation, read }
    }

    /// Commits a transaction of a family, unless its table is not as it was read.
    pub(super) fn commit(&mut self, family: Family, transaction: &mut Transaction, tables: &mut dyn Tables) -> Outcome {
        let mut attempts = ATTEMPTS;
        loop {
            let expected = self.generation.filter(|_| self.read.contains_key(&family));
            if let Some(expected) = expected {
                transaction.expect_generation(expected);
            }
            let refused = match tables.commit(transaction) {
                Ok(()) => {
                    self.generation = self.generation.map(|generation| generation.wrapping_add(1));
                    self.read.remove(&family);
                    return Outcome::Committed;
                }
                Err(refused) => refused,
            };
            let is_busy = refused.error.kind() == PortErrorKind::Busy && refused.refused.is_none();
            let now = tables.generation().ok().filter(|now| is_busy && expected.is_some_and(|of| of != *now));
            let Some(now) = now else { return Outcome::Refused(refused) };
            // Another program has committed something: is this table as it was?
            let found = read(family, &self.config, tables);
            let is_the_same =
                found.is_ok_and(|found| self.read.get(&family).is_some_and(|read| read.as_deref() == found.as_ref()));
            if !is_the_same || attempts == 0 {
                return Outcome::Changed(refused);
            }
            attempts = attempts.saturating_sub(1);
            self.generation = Some(now);
        }
    }
}

//! Detects flushed tables.

use crate::client::{Ensured, Iptables};
use crate::error::Error;
use crate::name::{ChainName, TableName};
use crate::rule::Rule;
use crate::runner::Runner;

/// State of the canaries.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum CanaryState {
    /// All canaries exist.
    Intact,
    /// Missing from these tables, present in others. A flush goes table by table, so one may be in progress: check
    /// again soon.
    Partial(Vec<TableName>),
    /// Missing from all tables: everything was flushed, and all rules must be written again.
    Flushed,
}

/// A chain with a unique name in a few tables. `iptables -F`, `iptables -X`, `iptables-restore` without `--noflush`,
/// `nft flush ruleset` or a firewall reload removes it together with everything else.
///
/// The chain has one rule, which reveals a flush that keeps chains (`-F`). Nothing jumps to the chain, so packets never
/// enter it. It starts no thread: call [`Canary::check`] from your own timer.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// use iptables::{Backend, Canary, CanaryState, ChainName, Family, Iptables, fake::FakeHost};
///
/// let host = FakeHost::new();
/// let iptables = Iptables::open(&host, Family::Ipv4, Backend::NfTables)?;
/// let canary = Canary::new(ChainName::new("MY-CANARY")?);
/// let _ = canary.plant(&iptables)?;
/// assert_eq!(canary.check(&iptables)?, CanaryState::Intact);
///
/// host.flush(Family::Ipv4, Backend::NfTables); // nft flush ruleset
/// assert_eq!(canary.check(&iptables)?, CanaryState::Flushed);
/// // Now write all rules again, and plant the canary again.
///
/// canary.remove(&iptables)?; // at the end of one's work
/// # }
/// # Ok::<(), iptables::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary {
    chain: ChainName,
    tables: Vec<TableName>,
}

impl Canary {
    /// A canary of this name in `mangle`, `nat` and `filter`.
    pub fn new(chain: ChainName) -> Self {
        Self::in_tables(chain, [TableName::MANGLE, TableName::NAT, TableName::FILTER])
    }

    /// A canary of this name in these tables.
    pub fn in_tables(chain: ChainName, tables: impl IntoIterator<Item = TableName>) -> Self {
        Self { chain, tables: tables.into_iter().collect() }
    }

    fn rule() -> Result<Rule, Error> {
        Rule::builder().comment("tells when the tables are flushed").target("RETURN").build()
    }

    /// Creates the canary where it is missing.
    pub fn plant<R: Runner>(&self, iptables: &Iptables<R>) -> Result<Ensured, Error> {
        let mut result = Ensured::AlreadyThere;
        for table in &self.tables {
            if iptables.ensure_chain_rules(table, &self.chain, &[Self::rule()?])? == Ensured::Added {
                result = Ensured::Added;
            }
        }
        Ok(result)
    }

    /// Checks whether it still exists, with one `iptables-save` per table.
    ///
    /// # Errors
    /// A failed check is an error, never a sign of a flush.
    pub fn check<R: Runner>(&self, iptables: &Iptables<R>) -> Result<CanaryState, Error> {
        let mut gone = Vec::new();
        for table in &self.tables {
            let alive = iptables.dump_table(table)?.chain(self.chain.as_str()).is_some_and(|c| !c.rules.is_empty());
            if !alive {
                gone.push(table.clone());
            }
        }
        Ok(match gone.len() {
            0 => CanaryState::Intact,
            n if n == self.tables.len() => CanaryState::Flushed,
            _ => CanaryState::Partial(gone),
        })
    }

    /// Removes it from all tables. A missing canary is not an error.
    pub fn remove<R: Runner>(&self, iptables: &Iptables<R>) -> Result<(), Error> {
        for table in &self.tables {
            iptables.delete_chain(table, &self.chain)?;
        }
        Ok(())
    }
}

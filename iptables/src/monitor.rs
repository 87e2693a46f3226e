//! Detection of flushed tables.

use crate::client::{Ensured, Iptables};
use crate::error::Error;
use crate::name::{ChainName, TableName};
use crate::rule::Rule;
use crate::runner::Runner;

/// State of the canaries.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum CanaryState {
    /// All canaries are there.
    Intact,
    /// Gone from these tables, alive in others. A flush goes table by table, so this may be one under way: look again soon.
    Partial(Vec<TableName>),
    /// Gone from all tables: everything was flushed, and all rules must be written again.
    Flushed,
}

/// A chain of a name that no other program uses, in each of a few tables. `iptables -F`, `iptables -X`, `iptables-restore` without
/// `--noflush`, `nft flush ruleset` or a firewall's reload take it away together with everything else.
///
/// The chain holds one rule and nothing jumps to it, so packets never see it. The rule tells of a flush (`-F`) that left the
/// chains in place. There is no thread: call [`Canary::check`] from your own timer.
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

    /// Puts the canary where it is missing.
    pub fn plant<R: Runner>(&self, iptables: &Iptables<R>) -> Result<Ensured, Error> {
        let mut result = Ensured::AlreadyThere;
        for table in &self.tables {
            if iptables.ensure_chain_rules(table, &self.chain, &[Self::rule()?])? == Ensured::Added {
                result = Ensured::Added;
            }
        }
        Ok(result)
    }

    /// Looks whether it is still there, one `iptables-save` per table.
    ///
    /// # Errors
    /// A failure to look is an error, never a sign of a flush.
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

    /// Removes it from all tables. It need not be there.
    pub fn remove<R: Runner>(&self, iptables: &Iptables<R>) -> Result<(), Error> {
        for table in &self.tables {
            iptables.delete_chain(table, &self.chain)?;
        }
        Ok(())
    }
}

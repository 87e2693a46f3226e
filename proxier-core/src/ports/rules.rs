//! Rules.

use std::collections::BTreeSet;
use std::time::Duration;

use iptables::Backend;

use super::{PortError, Result};
use crate::net::Family;

/// Rules of both families, over iptables-save and iptables-restore.
pub trait Rules {
    /// Whether the program can masquerade with random ports (`--random-fully`);
    /// [`Unavailable`](super::PortErrorKind::Unavailable) if this family has no program.
    fn has_random_fully(&mut self, family: Family) -> Result<bool>;

    /// Reads the tables nat and filter, with the rules of all programs. A table that was never used may be missing. If
    /// nft has added something to a chain that iptables cannot express, its rules only have targets and comments.
    /// [`Unavailable`](super::PortErrorKind::Unavailable) if no program for this family works with this kernel.
    fn dump(&mut self, family: Family) -> Result<iptables::Dump>;

    /// The back end of iptables that [`Rules::dump`] reads and [`Rules::restore`] writes; detects it if it is not
    /// settled. `None`: unknown, or there are no programs. Default `None`.
    fn used_backend(&mut self) -> Option<Backend> {
        None
    }

    /// Like [`Rules::dump`], for this back end, in use or not. Loads no module of a back end without tables. Default:
    /// nothing.
    fn dump_of(&mut self, backend: Backend, family: Family) -> Result<iptables::Dump> {
        let _ = (backend, family);
        Ok(iptables::Dump::default())
    }

    /// Like [`Rules::restore`], for this back end, in use or not. Default: refused.
    fn restore_to(&mut self, backend: Backend, family: Family, transaction: &iptables::Transaction) -> Result<()> {
        let _ = (family, transaction);
        Err(PortError::new(super::PortErrorKind::Unavailable, format!("no rules of the {backend} back end")))
    }

    /// A number that differs after every write to the rules of either family, by any program; each table that one run of
    /// iptables-restore changes adds 1. `None`: unknown, as for the legacy tables. Default `None`.
    ///
    /// The next [`Rules::dump`] returns the rules at this number or a later one.
    fn generation(&mut self) -> Option<u32> {
        None
    }

    /// Whether iptables has tables of this family, without starting a program; `None` if unknown. Tables of the
    /// nf_tables back end may be omitted, since they can be read as nf_tables tables too
    /// ([`Tables::table`](super::Tables::table)).
    fn has_tables(&mut self, family: Family) -> Option<bool> {
        let _ = family;
        None
    }

    /// Whether iptables has tables of this family that no program here can read, without reading any: those of
    /// iptables-legacy without its programs. Default no.
    fn has_unreadable_tables(&mut self, family: Family) -> bool {
        let _ = family;
        false
    }

    /// Runs `work`, and lists these families in parallel if possible. The next [`Rules::dump`] is then faster, and
    /// returns the rules at the time of this call.
    fn list_meanwhile(&mut self, families: &[Family], work: &mut dyn FnMut()) {
        // The default only runs `work`.
        let _ = families;
        work();
    }

    /// Limits how long a restore waits for the lock of iptables. By default unchanged.
    fn set_lock_wait(&mut self, wait: Duration) {
        let _ = wait;
    }

    /// The names of the existing packet counters ([`Rules::make_counters`]). Default:
    /// [`Unavailable`](super::PortErrorKind::Unavailable), as on a kernel that does not support them.
    fn counters(&mut self) -> Result<BTreeSet<String>> {
        Err(PortError::new(super::PortErrorKind::Unavailable, "no counters of packets"))
    }

    /// Creates named packet counters (nfacct) to which rules can refer, unless they exist. Default: not supported.
    fn make_counters(&mut self, names: &[&str]) -> Result<()> {
        let _ = names;
        Err(PortError::new(super::PortErrorKind::Unavailable, "no counters of packets"))
    }

    /// Deletes counters to which no rule refers; returns how many. Missing ones count as deleted. Default: none.
    fn delete_counters(&mut self, names: &[&str]) -> Result<usize> {
        let _ = names;
        Ok(0)
    }

    /// Lets the program check a transaction, without changes: whether it and the kernel support every match and target.
    /// The kernel may load modules. [`Unavailable`](super::PortErrorKind::Unavailable) if the program or the kernel lacks
    /// a match or target.
    fn check(&mut self, family: Family, transaction: &iptables::Transaction) -> Result<()>;

    /// Applies a transaction; each table is changed as a whole or not at all. An error has the refused line;
    /// [`Busy`](super::PortErrorKind::Busy) if another program held the lock too long.
    fn restore(&mut self, family: Family, transaction: &iptables::Transaction) -> Result<()>;

    /// Like [`Rules::restore`] for several families, each with transactions that are applied in order until one fails.
    /// Returns an outcome for each family, in order. Families run in parallel if possible, since most of the time goes
    /// into starting the programs.
    fn restore_families(&mut self, changes: &[(Family, &[iptables::Transaction])]) -> Vec<Result<()>> {
        let mut restore = |(family, all): &(Family, &[iptables::Transaction])| {
            all.iter().try_for_each(|transaction| self.restore(*family, transaction))
        };
        changes.iter().map(&mut restore).collect()
    }
}

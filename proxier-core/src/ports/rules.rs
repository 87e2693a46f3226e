//! Rules.

use std::collections::BTreeSet;
use std::time::Duration;

use iptables::Backend;

use super::PortError;
use crate::net::Family;

/// Rules of both families, over iptables-save and iptables-restore.
pub trait Rules {
    /// Whether the program masquerades with random ports (`--random-fully`).
    ///
    /// # Errors
    /// [`Unavailable`](super::PortErrorKind::Unavailable) when there is no program for this family.
    fn has_random_fully(&mut self, family: Family) -> Result<bool, PortError>;

    /// Tables nat and filter, with own and foreign rules. A table that nothing has used yet may be missing. In a chain into which nft has put
    /// something that iptables has no words for, rules say only where they lead, and their comments.
    ///
    /// # Errors
    /// [`Unavailable`](super::PortErrorKind::Unavailable) when there is no program for this family that works with this kernel.
    fn dump(&mut self, family: Family) -> Result<iptables::Dump, PortError>;

    /// The back end of iptables that [`Rules::dump`] reads and [`Rules::restore`] writes; looks for it where that is open. `None`: not known, or
    /// there are no programs. Default `None`.
    fn used_backend(&mut self) -> Option<Backend> {
        None
    }

    /// As [`Rules::dump`], of this back end, used or not. Loads no module of a back end that has no tables. Default: nothing.
    ///
    /// # Errors
    /// As [`Rules::dump`].
    fn dump_of(&mut self, backend: Backend, family: Family) -> Result<iptables::Dump, PortError> {
        let _ = (backend, family);
        Ok(iptables::Dump::default())
    }

    /// As [`Rules::restore`], to this back end, used or not. Default: refused.
    ///
    /// # Errors
    /// As [`Rules::restore`].
    fn restore_to(
        &mut self,
        backend: Backend,
        family: Family,
        transaction: &iptables::Transaction,
    ) -> Result<(), PortError> {
        let _ = (family, transaction);
        Err(PortError::new(super::PortErrorKind::Unavailable, format!("no rules of the {backend} back end")))
    }

    /// Whether iptables has tables of this family, found out without starting a program; `None` when that is not known. Those of the
    /// nf_tables back end may not count: they are tables of nf_tables, too ([`Tables::table`](super::Tables::table)).
    fn has_tables(&mut self, family: Family) -> Option<bool> {
        let _ = family;
        None
    }

    /// Whether iptables has tables of this family that no program here can read, found out without reading any: those of iptables-legacy
    /// without its programs. Default no.
    fn has_unreadable_tables(&mut self, family: Family) -> bool {
        let _ = family;
        false
    }

    /// Runs `work`, and lists these families in parallel where possible: the next [`Rules::dump`] waits less, and shows the
    /// rules as they were when this was called.
    fn list_meanwhile(&mut self, families: &[Family], work: &mut dyn FnMut()) {
        // The default lists nothing and only runs `work`.
        let _ = families;
        work();
    }

    /// Limits the time for which a restore waits for the lock of iptables, from now on. Default: as the port was made.
    fn set_lock_wait(&mut self, wait: Duration) {
        // Ports without a lock do not wait.
        let _ = wait;
    }

    /// The names of the counters of packets that there are ([`Rules::make_counters`]). Default: the kernel has none.
    ///
    /// # Errors
    /// [`Unavailable`](super::PortErrorKind::Unavailable) when the kernel cannot have any.
    fn counters(&mut self) -> Result<BTreeSet<String>, PortError> {
        Err(PortError::new(super::PortErrorKind::Unavailable, "no counters of packets"))
    }

    /// Makes counters of packets by name, which rules may name then (nfacct), unless they are there. Default: there are none.
    ///
    /// # Errors
    /// As [`Rules::counters`].
    fn make_counters(&mut self, names: &[&str]) -> Result<(), PortError> {
        let _ = names;
        Err(PortError::new(super::PortErrorKind::Unavailable, "no counters of packets"))
    }

    /// Deletes counters that no rule names, and returns how many. What is gone already counts as done. Default: none.
    ///
    /// # Errors
    /// As [`Rules::counters`].
    fn delete_counters(&mut self, names: &[&str]) -> Result<usize, PortError> {
        let _ = names;
        Ok(0)
    }

    /// Has the program check a transaction, and changes nothing: whether it and the kernel know every match and target. The
    /// kernel may load modules for that.
    ///
    /// # Errors
    /// [`Unavailable`](super::PortErrorKind::Unavailable) for matches and targets that the program or the kernel lacks.
    fn check(&mut self, family: Family, transaction: &iptables::Transaction) -> Result<(), PortError>;

    /// Carries out a transaction; each table is changed as a whole or not at all.
    ///
    /// # Errors
    /// The refused line and the reason; [`Busy`](super::PortErrorKind::Busy) when another program held the lock too long.
    fn restore(&mut self, family: Family, transaction: &iptables::Transaction) -> Result<(), PortError>;

    /// As [`Rules::restore`] for several families, with an outcome for each, in their order. Families run in parallel where
    /// possible: most of the time goes into starting the programs.
    fn restore_families(&mut self, changes: &[(Family, &iptables::Transaction)]) -> Vec<Result<(), PortError>> {
        changes.iter().map(|(family, transaction)| self.restore(*family, transaction)).collect()
    }
}

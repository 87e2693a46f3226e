//! Computes the batch that brings one table to another. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::batch::{Batch, Operation};
use crate::error::{Error, ErrorKind, Subject};
use crate::model::{RealServer, RealServerKey, Snapshot, SnapshotEntry, VirtualServerKey, Weight};
use crate::text::{Entry, Ruleset};

/// Whether the desired state or another program decides the weights of existing real servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Weights {
    /// The desired state decides. Default.
    #[default]
    Set,
    /// Another program, such as a health check or a feedback agent. Desired weights apply only to real servers that are
    /// added; existing ones keep their weight.
    Keep,
    /// Another program disables real servers with weight 0 and enables them with any other weight. Existing real
    /// servers of weight 0 keep it; the others get the desired weight.
    KeepZero,
}

impl Weights {
    fn of(self, wanted: Weight, observed: Weight) -> Weight {
        match self {
            Weights::Keep => observed,
            Weights::KeepZero if observed == Weight::DRAIN => observed,
            Weights::Set | Weights::KeepZero => wanted,
        }
    }
}

/// Which virtual servers a diff or sync may change, and who decides the weights.
///
/// It has no default: IPVS does not record who added a virtual server, so the caller must decide.
pub struct SyncPolicy<'a> {
    owns: Box<dyn Fn(&VirtualServerKey) -> bool + Send + Sync + 'a>,
    weights: Weights,
}

impl<'a> SyncPolicy<'a> {
    /// The caller owns every virtual server of the network namespace. Those that are not desired are deleted.
    pub fn owning_all() -> Self {
        Self::owning(|_| true)
    }

    /// The caller owns the virtual servers for which `owns` returns true. The others and their real servers are not
    /// changed.
    pub fn owning(owns: impl Fn(&VirtualServerKey) -> bool + Send + Sync + 'a) -> Self {
        SyncPolicy { owns: Box::new(owns), weights: Weights::Set }
    }

    /// Sets who decides the weights.
    #[must_use]
    pub fn with_weights(mut self, weights: Weights) -> Self {
        self.weights = weights;
        self
    }

    /// Whether the caller owns this virtual server.
    pub fn owns(&self, key: &VirtualServerKey) -> bool {
        (self.owns)(key)
    }
}

impl fmt::Debug for SyncPolicy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncPolicy").field("weights", &self.weights).finish_non_exhaustive()
    }
}

/// Operations, grouped by the order in which they must run.
#[derive(Default)]
struct Phases {
    add: Vec<Operation>,
    update: Vec<Operation>,
    /// Updates that lower a weight.
    lower: Vec<Operation>,
    delete_real_servers: Vec<Operation>,
    delete_virtual_servers: Vec<Operation>,
}

impl Phases {
    fn add(&mut self, wanted: &Entry) {
        let server = wanted.virtual_server.canonical();
        self.add.push(Operation::AddVirtualServer(server));
        self.add.extend(wanted.real_servers.iter().map(|real| Operation::AddRealServer(server.key, *real)));
    }

    fn change(&mut self, wanted: &Entry, observed: &SnapshotEntry, weights: Weights) {
        let server = wanted.virtual_server.canonical();
        if server != observed.virtual_server.server.canonical() {
            self.update.push(Operation::UpdateVirtualServer(server));
        }
        let mut there: BTreeMap<RealServerKey, RealServer> =
            observed.real_servers.iter().map(|real| (real.server.key, real.server)).collect();
        for real in &wanted.real_servers {
            let Some(have) = there.remove(&real.key) else {
                self.add.push(Operation::AddRealServer(server.key, *real));
                continue;
            };
            let want = real.with_weight(weights.of(real.config.weight, have.config.weight));
            if want.canonical() == have.canonical() {
                continue;
            }
            let lowered = want.config.weight < have.config.weight;
            let phase = if lowered { &mut self.lower } else { &mut self.update };
            phase.push(Operation::UpdateRealServer(server.key, want));
        }
        self.delete_real_servers.extend(there.into_keys().map(|real| Operation::DeleteRealServer(server.key, real)));
    }

    fn in_order(self) -> Batch {
        [self.add, self.update, self.lower, self.delete_real_servers, self.delete_virtual_servers]
            .into_iter()
            .flatten()
            .collect()
    }
}

impl Ruleset {
    /// Computes the batch that turns the observed table into this one, limited to the virtual servers that the caller
    /// owns. Print it for a dry run in ipvsadm's syntax, or carry it out with [`Client::run`](crate::Client::run).
    /// [`Client::sync`](crate::Client::sync) does all of it.
    ///
    /// Make before break. First come all additions, each virtual server followed by its real servers. Then come changes
    /// in place, those that lower a weight last. Deletions are last, virtual servers at the end. An existing server
    /// that is still desired is never deleted, since everything except its identity can be changed in place. So a
    /// virtual server that has a weighted real server before and after has one at every moment between. The exception
    /// is a replacement of all its real servers when the kernel refuses the new ones.
    ///
    /// Deleting a real server cuts its connections. To drain one, keep it with [`Weight::DRAIN`] until a snapshot shows
    /// no connections.
    ///
    /// Values are compared in the form that the kernel reports, so different spellings of one value are equal. A value
    /// that the kernel changes when it stores it is a difference every time. Examples are the type of a tunnel before
    /// Linux 5.2 and a persistence timeout that wraps.
    ///
    /// `observed` must be complete, which [`Client::snapshot_once`](crate::Client::snapshot_once) does not guarantee.
    ///
    /// # Errors
    /// Mistakes in the desired state: [`ErrorKind::Repeated`]; [`ErrorKind::NotOwned`] for a virtual server that the
    /// caller does not own according to the policy, since nothing would delete it later; [`ErrorKind::OutOfRange`].
    pub fn diff(&self, observed: &Snapshot, policy: &SyncPolicy<'_>) -> Result<Batch, Error> {
        self.check(policy)?;
        let mut there: BTreeMap<VirtualServerKey, &SnapshotEntry> =
            observed.entries.iter().map(|entry| (entry.virtual_server.server.key.canonical(), entry)).collect();
        let mut phases = Phases::default();
        for wanted in &self.entries {
            match there.remove(&wanted.virtual_server.key.canonical()) {
                Some(observed) => phases.change(wanted, observed, policy.weights),
                None => phases.add(wanted),
            }
        }
        let unwanted = there.into_keys().filter(|key| policy.owns(key));
        phases.delete_virtual_servers.extend(unwanted.map(Operation::DeleteVirtualServer));
        Ok(phases.in_order())
    }

    /// Checks that [`Ruleset::diff`] can accept this desired state.
    pub(crate) fn check(&self, policy: &SyncPolicy<'_>) -> Result<(), Error> {
        let refuse = |kind, subject| Err(Error::new(kind, "checking wanted", subject));
        let mut virtual_servers = BTreeSet::new();
        for Entry { virtual_server, real_servers } in &self.entries {
            let key = virtual_server.key.canonical();
            if !virtual_servers.insert(key) {
                return refuse(ErrorKind::Repeated, Subject::VirtualServer(key));
            }
            if !policy.owns(&key) {
                return refuse(ErrorKind::NotOwned, Subject::VirtualServer(key));
            }
            if let Err(range) = virtual_server.check() {
                return refuse(ErrorKind::OutOfRange(range), Subject::VirtualServer(key));
            }
            let mut keys = BTreeSet::new();
            if let Some(again) = real_servers.iter().find(|real| !keys.insert(real.key)) {
                return refuse(ErrorKind::Repeated, Subject::RealServer(key, again.key));
            }
        }
        Ok(())
    }
}

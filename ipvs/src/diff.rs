//! Difference of two tables: the batch that turns the kernel's table into the wanted one. Reads and writes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::batch::{Batch, Operation};
use crate::error::{Error, ErrorKind, Subject};
use crate::model::{RealServer, RealServerKey, Snapshot, SnapshotEntry, VirtualServerKey, Weight};
use crate::text::{Entry, Ruleset};

/// Authority over the weights of real servers that are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Weights {
    /// The wanted state does. Default.
    #[default]
    Set,
    /// Another program does, such as a health check or a feedback agent: a wanted weight is for real servers that are added, and
    /// one that is there keeps its weight.
    Keep,
    /// Another program takes real servers out by weight 0 and puts them back by any other: one that has weight 0 keeps it, and the
    /// others get the wanted weight.
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

/// Ownership and weight rules of a difference or a sync.
///
/// There is no default: IPVS does not say who added a virtual server, so the caller has to.
pub struct SyncPolicy<'a> {
    owns: Box<dyn Fn(&VirtualServerKey) -> bool + Send + Sync + 'a>,
    weights: Weights,
}

impl<'a> SyncPolicy<'a> {
    /// Every virtual server of the network namespace is the caller's: those that are not wanted are deleted.
    pub fn owning_all() -> Self {
        Self::owning(|_| true)
    }

    /// The virtual servers for which `owns` says so are the caller's. The others are left alone with all their real servers.
    pub fn owning(owns: impl Fn(&VirtualServerKey) -> bool + Send + Sync + 'a) -> Self {
        SyncPolicy { owns: Box::new(owns), weights: Weights::Set }
    }

    /// The same with another owner of weights.
    #[must_use]
    pub fn with_weights(mut self, weights: Weights) -> Self {
        self.weights = weights;
        self
    }

    /// Whether this virtual server is the caller's.
    pub fn owns(&self, key: &VirtualServerKey) -> bool {
        (self.owns)(key)
    }
}

impl fmt::Debug for SyncPolicy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncPolicy").field("weights", &self.weights).finish_non_exhaustive()
    }
}

/// Operations by when they have to come.
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
    /// The batch that turns the observed table into this one, within the virtual servers that the policy gives to the caller. Printed, it
    /// is a dry run in ipvsadm's words; [`Client::run`](crate::Client::run) carries it out, and
    /// [`Client::sync`](crate::Client::sync) does all of that.
    ///
    /// Make before break: first all additions, each virtual server followed by its real servers; then changes in place, those that
    /// lower a weight last; then deletions, virtual servers last. A wanted server that is there is never deleted: everything but its
    /// identity can be changed in place. So a virtual server that has a real server with a weight before and after has one at every
    /// moment between, unless all of them are exchanged at once and the kernel refuses the new ones.
    ///
    /// Deleting a real server cuts its connections. To drain one, want it with [`Weight::DRAIN`] until a snapshot shows that it has
    /// none left.
    ///
    /// Values are compared as the kernel reports them, so other spellings of the same are no difference. A value that the kernel
    /// stores as another, such as a tunnel's type before Linux 5.3 or a persistence timeout that wraps, is one each time.
    ///
    /// `observed` must be complete; [`Client::snapshot_once`](crate::Client::snapshot_once) may not be.
    ///
    /// # Errors
    /// Mistakes in the wanted state: [`ErrorKind::Repeated`]; [`ErrorKind::NotOwned`] for a virtual server that the policy says is
    /// not the caller's, since nothing would delete it later; [`ErrorKind::OutOfRange`].
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

    /// Checks what [`Ruleset::diff`] asks of a wanted state.
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

//! What became of a pass.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipvs::model::Family;
use ipvs::{RealServerKey, VirtualServerKey};

use crate::config::Config;
use crate::ports::{Flows, PortError, PortErrorKind};
use crate::sets::SetKey;
use crate::step::{Action, Part, Step};
use crate::sysctls::SysctlChange;

/// How many operations of each kind.
pub type Counts = BTreeMap<(Part, Action), u64>;

/// An operation that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// The operation.
    pub step: Step,
    /// Why.
    pub error: PortError,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut step = self.step.clone();
        step.lines.clear();
        write!(f, "{step}: {}", self.error)
    }
}

/// Part of the kernel that could not be read, so that nothing of it was changed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Unread {
    /// Which part, in words: `virtual servers`, `set KUBE-CLUSTER-IP`, `rules of IPv6`.
    pub what: String,
    /// Why.
    pub error: PortError,
}

impl Unread {
    /// A part that could not be read.
    pub fn new(what: impl fmt::Display, error: PortError) -> Self {
        Unread { what: what.to_string(), error }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reading {}: {}", self.what, self.error)
    }
}

/// What carrying out a plan came to: an outcome for every operation.
///
/// Operations that were done are counted, those that were not are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Applied {
    /// Operations that were carried out.
    pub done: Counts,
    /// Operations that were not.
    pub failures: Vec<Failure>,
    /// UDP flows that were forgotten.
    pub flows: Flows,
    /// Real servers that drain from now on.
    pub drained: Vec<(VirtualServerKey, RealServerKey)>,
    /// Real servers that are served again, or that went: they do not drain any more.
    pub settled: Vec<(VirtualServerKey, RealServerKey)>,
    /// Families whose rules were restored.
    pub restored: Vec<Family>,
    /// Virtual servers that went.
    pub deleted: Vec<VirtualServerKey>,
    /// How often the kernel held something else than was thought: what was to be added was there, what was to be changed or
    /// deleted was not. All of it was brought to what is wanted, but there may be more.
    pub surprises: usize,
}

impl Applied {
    pub(crate) fn count(&mut self, part: Part, action: Action, number: usize) {
        if number > 0 {
            let count = self.done.entry((part, action)).or_default();
            *count = count.saturating_add(u64::try_from(number).unwrap_or(u64::MAX));
        }
    }

    pub(crate) fn fail(&mut self, step: Step, error: PortError) {
        self.failures.push(Failure { step, error });
    }

    /// Takes the outcome of one call for one operation.
    pub(crate) fn note(&mut self, step: impl FnOnce() -> Step, outcome: Result<(), PortError>) -> bool {
        match outcome {
            Ok(()) => {
                let step = step();
                self.count(step.part, step.action, 1);
                true
            }
            Err(error) => {
                self.fail(step(), error);
                false
            }
        }
    }
}

/// Addresses that are shown and not touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Foreign {
    /// Virtual servers of somebody else.
    pub virtual_servers: Vec<VirtualServerKey>,
}

/// What a pass found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The kernel was read as a whole; otherwise only what changed in the input was looked at.
    pub full: bool,
    /// Parts that could not be read.
    pub unread: Vec<Unread>,
    /// What was carried out and what was not.
    pub applied: Applied,
    /// Differences that a full pass found although no input had changed: made by others, and repaired.
    pub drift: Vec<Step>,
    /// What is somebody else's; known after a full pass.
    pub foreign: Foreign,
    /// Virtual servers that are not served, and why.
    pub refused: Vec<Refused>,
    /// Values below `/proc/sys` that were asked for and may not be written from here; serving works without. Known after a
    /// full pass.
    pub unmet: Vec<SysctlChange>,
    /// Deletions that were held back because they were too many at once, and what to do; the rest was done.
    pub stopped: Option<Arc<str>>,
    /// Real servers that drain now.
    pub draining: usize,
    /// Health checks of Services may have changed ([`Desired::health_checks`](crate::state::Desired::health_checks)).
    pub health_checks_touched: bool,
}

/// A virtual server that a Service asks for and that is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused {
    /// The Service, `namespace/name`.
    pub service: String,
    /// Address, protocol and port.
    pub key: VirtualServerKey,
    /// Why, and what to do.
    pub reason: String,
}

impl Report {
    /// Whether the kernel holds what is wanted, as far as this pass looked.
    pub fn is_done(&self) -> bool {
        !self.has_failed() && self.stopped.is_none()
    }

    /// Whether something could not be read or done. What is held back on purpose ([`Report::stopped`]) is no failure: what
    /// is wanted is served, and more.
    pub fn has_failed(&self) -> bool {
        !self.unread.is_empty() || !self.applied.failures.is_empty()
    }

    /// How many operations were carried out: 0 when nothing differed.
    pub fn writes(&self) -> u64 {
        self.applied.done.values().sum()
    }
}

fn skipped(message: fmt::Arguments<'_>) -> PortError {
    PortError::new(PortErrorKind::Skipped, message)
}

pub(crate) fn bound_too_early(address: IpAddr) -> PortError {
    skipped(format_args!("{address} is not bound, because none of its virtual servers could be made"))
}

pub(crate) fn not_without_device(address: IpAddr) -> PortError {
    skipped(format_args!("{address} is not bound, because there is no device {}", Config::DUMMY_DEVICE))
}

pub(crate) fn not_without_set(set: SetKey) -> PortError {
    skipped(format_args!("not tried, because set {set} could not be created"))
}

pub(crate) fn not_without_virtual_server(key: &VirtualServerKey) -> PortError {
    skipped(format_args!("not tried, because virtual server {key} could not be made"))
}

pub(crate) fn needed_by(key: &VirtualServerKey) -> PortError {
    skipped(format_args!("stays, because it tells that virtual server {key} is ours, which could not be deleted"))
}
